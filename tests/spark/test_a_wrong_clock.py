"""A query on a host whose clock is an hour off, or jumps: nothing is lost or doubled, and rows go on coming."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from harness.application import Application, rows
from harness.group_history import assert_never_rewound, group_history
from harness.kafka import contents, produce
from harness.offsets import committed
from harness.stream import options
from harness.wrong_clock import WrongClock

from spark_kgroup.testing import ApacheKafka

pytestmark = pytest.mark.usefixtures("class_archive")

HOUR_S = 3_600
GOES_ON_S = 120
"""On a busy machine: mostly a second."""

NewTopic = Callable[[int], str]


def assert_wrong(clock: WrongClock, pid: int) -> None:
    """This process takes the time of day from the wrong clock."""
    assert str(clock.path) in Path(f"/proc/{pid}/maps").read_text()


def runs(application: Application) -> set[str]:
    """The runs on its folder of which Spark has reported progress."""
    return {progress["runId"] for progress in application.progress()}


@pytest.mark.full
@pytest.mark.parametrize("ahead_s", [-HOUR_S, HOUR_S], ids=["behind", "ahead"])
def test_a_query_goes_on_where_the_clock_is_an_hour_off_and_where_it_jumps(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path, ahead_s: int
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    produce(server, topic, 40, partitions=4)
    folder, read = tmp_path / "query", options(server, topic, group, startingOffsets="earliest")
    with Application(folder, read) as right:
        right.await_rows(40)
        right.stop()
    earlier = runs(right)  # none, if it was stopped before Spark reported its only batch
    clock = WrongClock(tmp_path / "clock", ahead_s)
    with Application(folder, read, clock=clock) as wrong:
        produce(server, topic, 40, partitions=4, first=40)
        wrong.await_rows(80)
        assert_wrong(clock, wrong.reader_pid)
        assert_wrong(clock, wrong.worker_pids[0])
        for jump, to_s in enumerate((-ahead_s, 0, ahead_s)):
            clock.jump(to_s)
            first = 80 + 40 * jump
            produce(server, topic, 40, partitions=4, first=first)
            wrong.await_rows(first + 40, GOES_ON_S)
        known = partial(committed, server, group, topic, 4)
        wrong.wait_for(lambda: known() == dict.fromkeys(range(4), 50), "the group to know", GOES_ON_S)
        assert len(runs(wrong) - earlier) == 1, "the query has begun anew"
        wrong.kill()
    with Application(folder, read) as right:
        produce(server, topic, 40, partitions=4, first=200)
        right.await_rows(240)
        right.stop()
    assert sorted((row.partition, row.offset) for row in rows(folder)) == sorted(contents(server, topic))
    assert_never_rewound(group_history(server, group))


@pytest.mark.full
def test_a_new_checkpoint_starts_where_the_option_says_on_a_host_that_is_an_hour_behind(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    produce(server, topic, 40, partitions=2)
    read = options(server, topic, group, startingOffsets="earliest")
    for host in ("right", "wrong"):
        clock = WrongClock(tmp_path / "clock", -HOUR_S) if host == "wrong" else None
        with Application(tmp_path / host, read, clock=clock) as application:
            application.await_rows(40)
            application.stop()
        assert sorted((row.partition, row.offset) for row in rows(tmp_path / host)) == sorted(contents(server, topic))


@pytest.mark.full
@pytest.mark.parametrize("ahead_s", [-HOUR_S, HOUR_S], ids=["behind", "ahead"])
def test_executors_whose_clock_is_an_hour_off_read_from_their_seats_servers(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path, ahead_s: int
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    produce(server, topic, 40, partitions=4)
    clock, folder = WrongClock(tmp_path / "clock", ahead_s), tmp_path / "query"
    conf = {f"spark.executorEnv.{name}": value for name, value in clock.environment.items()}
    read = options(server, topic, group, startingOffsets="earliest")
    with Application(folder, read, master="local-cluster[2,1,1024]", conf=conf) as application:
        application.await_rows(40)
        application.wait_for(lambda: len(application.sidecars()) == 2, "both sidecars", GOES_ON_S)
        for pid in (*application.worker_pids, *application.sidecars()):
            assert_wrong(clock, pid)
        produce(server, topic, 40, partitions=4, first=40)
        application.await_rows(80, GOES_ON_S)
        application.stop()
    assert sorted((row.partition, row.offset) for row in rows(folder)) == sorted(contents(server, topic))
