"""Spark's driver around a boundary: logs, batches, replays and crashes, against a `FakeGroup`."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

from harness.fake_group import FakeGroup
from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from pyspark_kgroup.offsets.earlier_runs import owned_by_seat
from pyspark_kgroup.offsets.offset_spec import OffsetSpec
from pyspark_kgroup.offsets.plan import Limit, Ranges, ranges_by_seat
from pyspark_kgroup.options.offset_bound import OffsetBound, parse_starting_offsets
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.options.subscription import Subscription
from spark_kgroup.model import TopicPartition
from spark_kgroup.topic_pattern import TopicPattern

COMMITTED_OR_EARLIEST = replace(parse_starting_offsets("committed"), everywhere=OffsetSpec.EARLIEST)
"""`startingOffsets=committed` with `kafka.auto.offset.reset=earliest`."""

_OPTIONS = parse(
    {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.group.id": "g",
        "subscribe": "t",
        "instanceIdPrefix": "seat",
    }
)
"""Options of a query. Only those matter that a `Driver` replaces."""


class Crash(Exception):
    """The driver dies here."""


@dataclass
class Driver:
    """Spark's side: an offset log, a commit log, an idempotent sink, and a boundary that dies with each restart.

    Attributes:
        bounded: it runs under AvailableNow.
        planned: the offset log: the end of each batch, as JSON.
        batches_done: the length of the commit log.
        sink: batch -> the ranges that it read. A replay must read the same.
    """

    group: FakeGroup
    starting: OffsetBound = COMMITTED_OR_EARLIEST
    read_committed: bool = False
    fail_on_data_loss: bool = True
    bounded: bool = False
    pattern: TopicPattern | None = None
    """Subscribed in place of the group's topics, which then are the topics that it matches."""
    offsets_min: int | None = None
    ending: OffsetBound | None = None
    name: str = "g"
    """The group's name in the options."""
    planned: list[str] = field(default_factory=list)
    batches_done: int = 0
    sink: dict[int, Ranges] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.options = replace(
            _OPTIONS,
            group_id=self.name,
            subscription=Subscription(topics=() if self.pattern else self.group.subscribed, pattern=self.pattern),
            starting_offsets=self.starting,
            read_committed=self.read_committed,
            fail_on_data_loss=self.fail_on_data_loss,
            min_offsets_per_trigger=self.offsets_min,
            ending_offsets=self.ending,
        )
        self.boundary = Boundary(
            BoundaryContext.of(self.group, self.options, clock=lambda: self.group.now_ms), bounded=self.bounded
        )

    def restart(self, seats: int | None = None, *, bounded: bool = False) -> None:
        """The driver comes back (with so many seats, or under AvailableNow): an unfinished batch is read again."""
        self.bounded = bounded
        last = loads(self.planned[-1]) if self.planned else EMPTY
        self.group.restart(owned_by_seat(last, self.options.group_id), seats)
        self.start()
        if len(self.planned) > self.batches_done:
            self.run_batch()

    @property
    def durable(self) -> Checkpoint:
        """The end of the last completed batch, as it comes back from Spark's log."""
        return loads(self.planned[self.batches_done - 1]) if self.batches_done else EMPTY

    def set_back(self, batches: int) -> None:
        """Checkpoint and sink are restored to the end of an earlier batch, while the driver is down."""
        self.batches_done = batches
        self.planned = self.planned[:batches]
        self.sink = {batch: read for batch, read in self.sink.items() if batch < batches}

    def ask(self, limit: int | None = None) -> Checkpoint:
        self.group.step()  # messages do not stay under way for longer than a batch
        return self.boundary.advance(self.durable, Limit(limit))

    def trigger(self, limit: int | None = None, crash: str = "") -> bool:
        """One trigger. Returns whether a batch ran. `crash`: where the driver dies: unplanned, unread, uncommitted."""
        before = self.durable
        end = self.ask(limit)
        if end == before:
            return False
        if crash == "unplanned":
            raise Crash
        self.planned.append(dumps(end))
        if crash == "unread":
            raise Crash
        self.run_batch(crash)
        return True

    def run_batch(self, crash: str = "") -> None:
        batch = self.batches_done
        start, end = self.durable, loads(self.planned[batch])
        plan = self.boundary.logs.readable(end, ranges_by_seat(start, end))
        read = {tp: span for ranges in plan.values() for tp, span in ranges.items()}
        assert sum(len(ranges) for ranges in plan.values()) == len(read), "one partition, two seats"
        assert self.sink.setdefault(batch, read) == read, "a replay reads something else"
        if crash == "uncommitted":
            raise Crash
        self.batches_done += 1

    def drain(self, triggers_max: int = 60) -> None:
        for _ in range(triggers_max):
            self.group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
            if not self.trigger() and not any(seat.to_give_up for seat in self.group.seats.values()):
                return
        raise AssertionError("never came to rest")

    @property
    def plans(self) -> dict[TopicPartition, list[tuple[int, int]]]:
        """The ranges that every planned batch reads, the unfinished one included, in order."""
        found: dict[TopicPartition, list[tuple[int, int]]] = {}
        checkpoints = [EMPTY, *map(loads, self.planned)]
        for start, end in pairwise(checkpoints):
            for ranges in ranges_by_seat(start, end).values():
                for tp, span in ranges.items():
                    found.setdefault(tp, []).append(span)
        return found

    @property
    def rows(self) -> dict[TopicPartition, list[tuple[int, int]]]:
        """The ranges that the completed batches read, in order."""
        found: dict[TopicPartition, list[tuple[int, int]]] = {}
        for batch in range(self.batches_done):
            for tp, span in self.sink.get(batch, {}).items():
                found.setdefault(tp, []).append(span)
        return found


def dumps(checkpoint: Checkpoint) -> str:
    return json.dumps(checkpoint.to_json())


@lru_cache(maxsize=200)
def loads(text: str) -> Checkpoint:
    """Cached, as a checkpoint is a value: in a world a hundred checks look at each. Parsing was half of the time."""
    return Checkpoint.from_json(json.loads(text))


def seats_of(driver: Driver) -> set[str]:
    """The seats that own a partition by the last durable offset."""
    return {owned.period.seat for owned in driver.durable.owned.values()}


def assert_read_once(driver: Driver, count: int, partitions: Iterable[TopicPartition]) -> None:
    """Each of `partitions` was read from 0 to `count`, without a gap and no record twice."""
    for tp in partitions:
        spans = driver.rows[tp]
        assert (spans[0][0], spans[-1][1]) == (0, count)
        assert all(a[1] == b[0] for a, b in pairwise(spans)), spans
