"""Tasks in the background: a failure is told, and the end waits for all of them."""

import asyncio

from harness.fake_broker import on_a_loop

from spark_kgroup.tasks import TaskSet


@on_a_loop
async def test_a_failure_is_told_and_other_tasks_go_on() -> None:
    told: asyncio.Queue[BaseException] = asyncio.Queue()
    tasks = TaskSet(told.put_nowait)
    bug = ValueError("a bug")

    async def fail() -> None:
        raise bug

    other = tasks.begin(forever())
    tasks.begin(fail())
    assert await asyncio.wait_for(told.get(), 10) is bug
    assert not other.done()
    await tasks.end()
    assert other.cancelled()
    assert told.empty(), "a task that was cancelled has not failed"


@on_a_loop
async def test_a_task_may_end_the_other_tasks_and_goes_on_itself() -> None:
    told: list[BaseException] = []
    tasks = TaskSet(told.append)
    other = tasks.begin(forever())
    ended = tasks.begin(tasks.end())
    await asyncio.wait_for(ended, 10)
    assert other.cancelled()
    assert not ended.cancelled()
    assert told == []


async def forever() -> None:
    await asyncio.Event().wait()
