"""Ends of logs that grow old while they are asked for."""

from collections.abc import Collection
from typing import Any

from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.log_ends import LogEnds
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.options.parser import parse
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire.listing import Answers

A, B, C = (TopicPartition("t", number) for number in range(3))


class Listing:
    ended = True

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self._partitions = partitions

    def answers(self, _: int) -> Answers[int]:
        return Answers(dict.fromkeys(self._partitions, 7), {})


class Group:
    def __init__(self) -> None:
        self.logs = Logs()


class Logs:
    def begin_ends(self, partitions: Collection[TopicPartition], **_: bool) -> Listing:
        return Listing(partitions)


def test_ends_that_grow_old_between_two_looks_at_the_clock_are_kept() -> None:
    """A partition that was neither listed nor known to be unanswered ended a query (KeyError)."""
    now_ms = [0]

    def clock() -> int:
        now_ms[0] += 1
        return now_ms[0]

    group: Any = Group()
    options = parse({"kafka.bootstrap.servers": "b:9092", "kafka.group.id": "g", "subscribe": "t"})
    ends = LogEnds(BoundaryContext.of(group, options, clock=clock), lambda _: None)
    for wait_ms in range(END_OFFSETS_MAX_AGE_MS - 20, END_OFFSETS_MAX_AGE_MS + 20):
        now_ms[0] += 10 * END_OFFSETS_MAX_AGE_MS
        assert ends.of([A, B]) == {A: 7, B: 7}
        now_ms[0] += wait_ms
        assert ends.of([A, B, C]) == {A: 7, B: 7, C: 7}
