"""When a session wakes its machine: never early, and far-away timers of many seats at one moment."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from harness.fake_broker import on_a_loop
from harness.sessions import session_of

from spark_kgroup.member import contract
from spark_kgroup.runtime import session as session_module
from spark_kgroup.runtime.session import Session

NOW_MS = 1_000_130


class Clock:
    """The loop's `call_at`, noted instead of awaited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set_for_ms: list[int] = []
        self.cancelled = 0
        monkeypatch.setattr(asyncio.get_running_loop(), "call_at", self.call_at)
        monkeypatch.setattr(session_module, "monotonic_ms", lambda: NOW_MS)

    def call_at(self, at_s: float, _wake: Any) -> Any:
        self.set_for_ms.append(round(at_s * 1000))
        return SimpleNamespace(cancel=self.cancel)

    def cancel(self) -> None:
        self.cancelled += 1


def with_timer(due_at_ms: int | None, *, in_touch: bool = True) -> Session:
    session = session_of(None)
    session.machine = SimpleNamespace(next_wakeup_at_ms=lambda: due_at_ms, in_touch=lambda _: in_touch)
    return session


@pytest.mark.parametrize(
    ("wait_ms", "late_ms"),
    [
        pytest.param(-5, 0, id="due already"),
        pytest.param(40, 0, id="near"),
        pytest.param(2_499, 0, id="near enough"),
        pytest.param(2_500, 120, id="far"),
        pytest.param(2_620, 0, id="far, at a whole quarter of a second"),
        pytest.param(2_621, 249, id="far, and just past one"),
    ],
)
def test_a_timer_that_is_far_away_waits_for_others_of_its_quarter_of_a_second(
    wait_ms: int, late_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_a_loop
    async def scenario() -> None:
        clock = Clock(monkeypatch)
        with_timer(NOW_MS + wait_ms)._set_alarm()
        assert clock.set_for_ms == [NOW_MS + wait_ms + late_ms]

    scenario()


def test_a_deadline_is_kept_by_a_machine_that_is_not_in_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    @on_a_loop
    async def scenario() -> None:
        clock = Clock(monkeypatch)
        with_timer(NOW_MS + 2_500, in_touch=False)._set_alarm()
        assert clock.set_for_ms == [NOW_MS + 2_500]

    scenario()


def test_an_alarm_is_set_once_and_moved_when_the_timer_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    @on_a_loop
    async def scenario() -> None:
        clock = Clock(monkeypatch)
        session = with_timer(NOW_MS + 10)
        session._set_alarm()
        session._set_alarm()
        assert (clock.set_for_ms, clock.cancelled) == ([NOW_MS + 10], 0)
        session.machine.next_wakeup_at_ms = lambda: NOW_MS + 5  # type: ignore[method-assign]
        session._set_alarm()
        assert (clock.set_for_ms, clock.cancelled) == ([NOW_MS + 10, NOW_MS + 5], 1)
        session.machine.next_wakeup_at_ms = lambda: None  # type: ignore[method-assign]
        session._set_alarm()
        assert (len(clock.set_for_ms), clock.cancelled) == (2, 2)

    scenario()


def test_an_alarm_posts_a_tick_and_may_be_set_for_the_same_instant_again(monkeypatch: pytest.MonkeyPatch) -> None:
    @on_a_loop
    async def scenario() -> None:
        clock = Clock(monkeypatch)
        session = with_timer(NOW_MS)
        session._set_alarm()
        session._wake()
        assert session._events.get_nowait() == contract.Tick()
        session._set_alarm()
        assert clock.set_for_ms == [NOW_MS, NOW_MS]

    scenario()
