"""Exactly once, wherever the driver dies: one query is killed at every named point in turn, and started again.

A chain: each restart meets the state that the last kill left behind. After each kill the sink is compared with the
topic. At the end every record must have been read once, and the group's lag must be 0.
"""

import json
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from harness.application import Application, rows
from harness.group_protocol import OF_ENVIRONMENT
from harness.groups import described_by_us
from harness.kafka import contents, produce
from harness.sharing import Sharing
from harness.stream import options
from harness.waiting import wait_for

from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from pyspark_kgroup.offsets.plan import ranges_by_seat
from spark_kgroup.model import CLASSIC, CONSUMER
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]
Sink = Literal["files", "batches"]
Places = set[tuple[int, int]]
"""(partition, offset) of records."""

PARTITIONS = 4
COMMITTED = {0: 20, 1: 20}
"""Committed for the group before the query exists: above the end of the query's first batch, which starts at 0."""


class Chain:
    """One query's folder, its topic and its group, from kill to kill."""

    def __init__(self, kafka: ApacheKafka, topic: str, group: str, folder: Path, sink: Sink) -> None:
        self.kafka, self.topic, self.group, self.folder, self.sink = kafka, topic, group, folder, sink
        self.server = kafka.bootstrap_servers
        self.produced = 0
        self._consumer = Consumer({"bootstrap.servers": self.server, "group.id": group, "enable.auto.commit": False})
        self._partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]

    def __enter__(self) -> "Chain":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def application(self, stop_at: str | None = None) -> Application:
        """The next start. Batches are short, and the session is longer than any restart takes."""
        more = {"maxOffsetsPerTrigger": 60, "kafka.session.timeout.ms": 600_000}
        read = options(self.server, self.topic, self.group, **more)
        return Application(self.folder, read, sink=self.sink, stop_at=stop_at)

    # ---------------------------------------------------------------------------------------------- Kafka

    def produce(self, count: int = 40) -> None:
        produce(self.server, self.topic, count, partitions=PARTITIONS, first=self.produced)
        self.produced += count

    def commit(self, offsets: dict[int, int]) -> None:
        """Commit for a group without members, as soon as it has a coordinator."""
        positions = [TopicPartition(self.topic, p, offset) for p, offset in offsets.items()]

        def acknowledged() -> bool:
            with suppress(KafkaException):
                self._consumer.commit(offsets=positions, asynchronous=False)
                return True
            return False

        wait_for(acknowledged, "the commit to be acknowledged", 60)

    def committed(self) -> dict[int, int]:
        """Partition -> the group's committed offset, without those that have none."""
        return {tp.partition: tp.offset for tp in self._consumer.committed(self._partitions, 30) if tp.offset >= 0}

    def drained(self) -> bool:
        """Whether the group's lag is 0."""
        ends = {tp.partition: self._consumer.get_watermark_offsets(tp, 30)[1] for tp in self._partitions}
        return self.committed() == ends

    # ------------------------------------------------------------------------------------- checkpoint and sink

    def newest(self, log: str) -> int:
        """The newest batch in one of the checkpoint's logs, -1 if there is none."""
        folder = self.folder / "checkpoint" / log
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def end(self, batch_id: int) -> Checkpoint:
        """The end of a batch: the last line of its entry in Spark's offset log."""
        if batch_id < 0:
            return EMPTY
        entry = self.folder / "checkpoint" / "offsets" / str(batch_id)
        return Checkpoint.from_json(json.loads(entry.read_text().splitlines()[-1]))

    def positions(self, log: str) -> dict[int, int]:
        """How far the query has read, or will, with the newest batch in one of the checkpoint's logs."""
        return {tp.partition: owned.position for tp, owned in self.end(self.newest(log)).owned.items()}

    def planned(self) -> Places:
        """All that the newest planned batch reads."""
        batch_id = self.newest("offsets")
        plan = ranges_by_seat(self.end(batch_id - 1), self.end(batch_id))
        return {(tp.partition, o) for ranges in plan.values() for tp, span in ranges.items() for o in range(*span)}

    def check(self, when: str) -> Places:
        """The sink's records, after asserting that each is there once and as the topic has it."""
        found = rows(self.folder)
        there = contents(self.server, self.topic)
        wrong = [row for row in found if there.get((row.partition, row.offset)) != row.value]
        assert not wrong, f"{when}: not what the topic holds: {wrong[:3]}"
        return once(((row.partition, row.offset) for row in found), when)

    def check_without_gap(self, when: str) -> None:
        """As `check`, while no other member has read: of each partition the sink has all from its beginning on."""
        found = self.check(when)
        for partition in range(PARTITIONS):
            offsets = {offset for p, offset in found if p == partition}
            assert offsets == set(range(len(offsets))), f"{when}: a gap in partition {partition}"


def once(places: Iterable[tuple[int, int]], when: str) -> Places:
    """`places` as a set. None may be there twice."""
    seen = list(places)
    assert len(seen) == len(set(seen)), f"{when}: {len(seen) - len(set(seen))} records were read twice"
    return set(seen)


# ------------------------------------------------------------------- how the world looks at each point


def during_adoption(chain: Chain) -> None:
    assert chain.newest("offsets") == -1
    assert chain.committed() == COMMITTED


def before_read(chain: Chain) -> None:
    assert chain.newest("offsets") == 0
    assert chain.newest("commits") == -1
    assert rows(chain.folder) == []
    # decision 5: the first batch lies below the committed offsets, and these were set back before it was planned.
    ends = chain.positions("offsets")
    assert all(0 < ends[p] < COMMITTED[p] for p in COMMITTED)
    assert chain.committed() == dict.fromkeys(range(PARTITIONS), 0)


def while_reading(chain: Chain) -> None:
    assert chain.newest("offsets") == 0
    assert chain.newest("commits") == -1
    assert rows(chain.folder) == []


def after_sink(chain: Chain) -> None:
    batch_id = chain.newest("offsets")
    assert chain.newest("commits") == batch_id - 1
    assert {(r.partition, r.offset) for r in rows(chain.folder) if r.batch_id == batch_id} == chain.planned()


def after_commit_log(chain: Chain) -> None:
    assert chain.newest("commits") == chain.newest("offsets")
    committed = chain.committed()
    assert any(committed[p] < position for p, position in chain.positions("commits").items())


def during_rebalance(chain: Chain) -> None:
    assert described_by_us(chain.kafka, chain.group).state == "CompletingRebalance"


def asked_to_give_up(chain: Chain) -> set[int]:
    """Returns the partitions that are taken back: they have no next owner yet."""
    group = described_by_us(chain.kafka, chain.group)
    assert group.state == ("Reconciling" if group.is_consumer_type else "Stable")
    assert [member.assignment for member in group.members if member.instance_id is None] == [frozenset()]
    seats = [member for member in group.members if member.instance_id is not None]
    kept = {tp.partition for seat in seats for tp in (seat.assignment if seat.target is None else seat.target)}
    assert len(kept) == PARTITIONS - 1
    return set(range(PARTITIONS)) - kept


def given_up_unsaid(chain: Chain) -> None:
    committed, durable = chain.committed(), chain.positions("commits")
    assert all(committed[p] == durable[p] for p in asked_to_give_up(chain))


REACHED_ALONE: list[tuple[str, Callable[[Chain], None]]] = [
    ("during adoption", during_adoption),
    ("before read", before_read),
    ("while reading", while_reading),
    ("after sink, before commit log", after_sink),
    ("after commit log, before group commit", after_commit_log),
]
"""Points that a query comes to by itself, each with work left over from the last one."""

WITH_OTHERS = "when others join"
"""Stands for the points of `REACHED_WITH_OTHERS`, which come last."""

EVERY_POINT = (*(point for point, _ in REACHED_ALONE), WITH_OTHERS)

BETWEEN_THEM: dict[Sink, tuple[str, ...]] = {
    "files": ("during adoption", "while reading", "after sink, before commit log", WITH_OTHERS),
    "batches": (
        "before read",
        "after sink, before commit log",
        "after commit log, before group commit",
    ),
}
"""Two chains that share the points: each has those that concern its sink, and work left over from the one before."""

REACHED_WITH_OTHERS: dict[str, list[tuple[str, Callable[[Chain], object]]]] = {
    CLASSIC: [("during rebalance", during_rebalance), ("when asked to give up", asked_to_give_up)],
    CONSUMER: [("when asked to give up", asked_to_give_up), ("given up, unsaid", given_up_unsaid)],
}
"""Group protocol -> points that it comes to when another member joins.

The query meets the second one when it is back: in the midst of the rebalance, asked for partitions that its unfinished
batch reads.
"""


@pytest.mark.parametrize(
    "everywhere", [False, pytest.param(True, marks=pytest.mark.full)], ids=["shared", "everywhere"]
)
@pytest.mark.usefixtures("class_archive")
def test_exactly_once_at_every_kill_point(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path, everywhere: bool
) -> None:
    """Two sinks, a chain for each. They share the points, or each goes through all of them."""
    assert {point for points in BETWEEN_THEM.values() for point in points} == set(EVERY_POINT)
    chains = [Chain(apache_kafka, new_topic(PARTITIONS), f"{group}-{s}", tmp_path / s, s) for s in BETWEEN_THEM]
    with ThreadPoolExecutor(len(chains)) as side_by_side:  # most of a start is waiting
        outcomes = [
            (chain, side_by_side.submit(killed_at, chain, EVERY_POINT if everywhere else BETWEEN_THEM[chain.sink]))
            for chain in chains
        ]
    for chain, outcome in outcomes:
        if (failure := outcome.exception()) is not None:
            failure.add_note(f"sink: {chain.sink}")
            raise failure


def killed_at(to_be_killed: Chain, points: tuple[str, ...]) -> None:
    with to_be_killed as chain:
        chain.produce(100)
        chain.commit(COMMITTED)
        for point, as_described in REACHED_ALONE:
            if point not in points:
                continue
            with chain.application(point) as application:
                application.await_stop_point()
                as_described(chain)
            chain.check_without_gap(f"killed {point}")
            chain.produce()
            if point == "while reading":
                one_process_is_killed(chain, point)
        by_others = killed_while_others_join(chain) if WITH_OTHERS in points else read_to_the_end(chain)
        ours = chain.check("at the end")
        assert ours | by_others == contents(chain.server, chain.topic).keys(), "at the end: a gap"
        assert not ours & by_others, "at the end: read by both, and no membership was lost"


def one_process_is_killed(chain: Chain, point: str) -> None:
    """With sink "files" the JVM, with "batches" the stream reader: the rest ends by itself, with an error."""
    with chain.application(point) as application:
        application.await_stop_point()
        os.kill(application.jvm_pid if chain.sink == "files" else application.reader_pid, signal.SIGKILL)
        application.release()
        assert application.await_end() != 0, "a part of the application was killed, and it took no notice"
    chain.check_without_gap(f"one process killed {point}")


def read_to_the_end(chain: Chain) -> Places:
    """Let the query read all that is left, alone. Returns the offsets that other members have read: none."""
    with chain.application() as application:
        application.wait_for(chain.drained, "lag 0 at the end")
        application.stop()
    return set()


def killed_while_others_join(chain: Chain) -> Places:
    """The points in a rebalance, with a librdkafka consumer that joins, reads and leaves.

    Then the query reads all the rest.

    Returns:
        The offsets that the consumer has read.
    """
    (first, as_described), (second, as_described_then) = REACHED_WITH_OTHERS[OF_ENVIRONMENT]
    with ExitStack() as others:
        application = chain.application(first)
        application.disarm()  # seats that find their places in the group may come to it, too
        with application:
            application.wait_for(chain.drained, "lag 0, after all kills without others")
            chain.produce(400)  # batches follow each other: the kill meets one
            application.arm()
            peer = others.enter_context(Sharing(chain.server, chain.group, chain.topic, protocol=OF_ENVIRONMENT))
            application.await_stop_point()
            as_described(chain)
        chain.check(f"killed {first}")
        with chain.application(second) as application:
            application.await_stop_point()
            as_described_then(chain)
        chain.check(f"killed {second}")
        assert peer.owned == set()
        chain.produce()
        with chain.application() as application:
            application.wait_for(lambda: peer.rows, "the other's share: the partition without an owner is noticed")
            application.pause()
            others.close()  # a rebalance that waits for the query
            chain.produce()
            application.resume()
            application.wait_for(chain.drained, "lag 0 at the end")
            application.stop()
    return once(peer.rows, "by the other")
