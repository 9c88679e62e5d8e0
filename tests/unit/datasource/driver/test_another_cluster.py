"""A checkpoint names the cluster whose offsets it holds, and a restart reads no other one, whatever is lost there."""

import asyncio
import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from harness.fake_broker import on_a_loop
from harness.fake_cluster import A0, TOPIC_ID, BrokerWorld
from harness.fake_group import FakeGroup
from harness.kio_messages import MetadataRequest

from pyspark_kgroup.driver import query as query_module
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint, Owned, Period, Topic
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.stream import KgroupStreamReader, Ticket
from spark_kgroup.errors import ConnectionFailed
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime import group as group_module
from spark_kgroup.runtime.settings import GroupSettings

T0 = TopicPartition("t", 0)


def reader_of(topic: str, bootstrap: str = "a:9092", **more: str) -> KgroupStreamReader:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.group.id": "g",
        "subscribe": topic,
        "startingOffsets": "earliest",
        "prefetchBytes": "0",
        "members": "1",
        **more,
    }
    return KgroupStreamReader(options, spark_schema(COLUMNS))


# ------------------------------------------------------------------------------- when a checkpoint names its cluster


class Runtime(FakeGroup):
    """The fake group with a runtime's beginning and end."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Restarts:
    """A query on the fake group, whose reader is a new one after each restart.

    Attributes:
        told: the cluster that each runtime was told to believe.
        told_tasks: the cluster that each ticket names.
        durable: the end of the last batch that is done, as JSON.
    """

    group: Runtime = field(default_factory=lambda: Runtime({"t": 1}))
    told: list[str | None] = field(default_factory=list)
    told_tasks: list[str] = field(default_factory=list)
    durable: str = ""

    def __post_init__(self) -> None:
        self.restart()
        self.durable = json.dumps(self.reader.initialOffset())

    def runtime(self, settings: GroupSettings) -> Runtime:
        self.told.append(settings.client.cluster_id)
        return self.group

    def restart(self) -> None:
        self.reader = reader_of("t")

    def plan(self, records: int = 0) -> str:
        """The next offset, after so many new records."""
        self.group.produce(T0, records)
        self.group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
        return json.dumps(self.reader.latestOffset(json.loads(self.durable)))

    def run(self, records: int) -> dict[str, Any]:
        """The end of the next batch, which is done."""
        end = self.plan(records)
        tickets = self.reader.partitions(json.loads(self.durable), json.loads(end))
        self.told_tasks += [ticket.payload.settings.cluster for ticket in tickets if isinstance(ticket, Ticket)]
        self.durable = end
        written: dict[str, Any] = json.loads(end)
        return written


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Restarts:
    query = Restarts()
    monkeypatch.setattr(query_module, "GroupRuntime", query.runtime)
    monkeypatch.setattr(BoundaryContext, "of", partial(BoundaryContext.of, clock=lambda: query.group.now_ms))
    return query


def test_a_restart_believes_the_cluster_that_the_checkpoint_names(query: Restarts) -> None:
    assert query.run(3)["cluster"] == "ours"
    query.restart()
    assert query.run(4)["cluster"] == "ours"
    assert query.told == [None, "ours"]
    assert query.told_tasks == ["ours", "ours"]


def test_a_replay_believes_the_cluster_that_the_checkpoint_names(query: Restarts) -> None:
    """A restart with an unfinished batch begins with `partitions`."""
    planned = query.plan(3)
    query.restart()
    query.reader.partitions(json.loads(query.durable), json.loads(planned))
    assert query.told == [None, "ours"]


def test_a_checkpoint_without_the_cluster_gets_it_with_the_next_batch_and_not_before(query: Restarts) -> None:
    """Any other bytes at an idle trigger would make Spark run a batch, at each trigger."""
    older = query.run(3)
    del older["cluster"]
    query.durable = json.dumps(older)
    query.restart()
    for _ in range(3):
        assert query.plan() == query.durable
    assert query.told == [None, None]
    assert query.run(4)["cluster"] == "ours"
    for _ in range(3):
        assert query.plan() == query.durable


def test_brokers_that_do_not_say_their_cluster_leave_the_checkpoint_without_one(query: Restarts) -> None:
    query.group.cluster = None
    assert "cluster" not in query.run(3)
    query.restart()
    assert "cluster" not in query.run(4)
    assert query.told == [None, None]


# ------------------------------------------------------------------------------------ another cluster at the address


def read_up_to_7(cluster: str) -> Checkpoint:
    """Of topic a, as another process has left it."""
    period = Period(topic_id=str(TOPIC_ID), start=0, seat="g-0", generation=1)
    return Checkpoint(
        topics={"a": Topic(topic_id=str(TOPIC_ID), first_sight=2)},
        owned={A0: Owned(period=period, position=7)},
        group="g",
        app="g",
        cluster=cluster,
    )


@pytest.mark.parametrize("fails", ["true", "false"])
def test_another_cluster_is_an_error_whatever_fail_on_data_loss_says(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """120 offsets of the other cluster were planned and committed there, and then our own ones again from 0."""
    monkeypatch.setattr(group_module, "STARTUP_TIMEOUT_MS", 1_500)

    @on_a_loop
    async def scenario() -> None:
        world = BrokerWorld(cluster_id="other")
        await world.start()
        at = str(world.brokers[0].address)
        reader = reader_of("a", at, failOnDataLoss=fails)
        with pytest.raises(ConnectionFailed) as problem:
            await asyncio.to_thread(reader.latestOffset, read_up_to_7("ours").to_json())
        message = str(problem.value)
        for named in (f"of another cluster is at {at} (cluster id other, was ours)", "Correct `bootstrap.servers`"):
            assert named in message
        assert "a fresh checkpoint and a fresh sink" in message
        assert "failOnDataLoss" not in message
        assert {type(request) for request in world.brokers[0].requests} == {MetadataRequest}
        reader.stop()
        await world.stop()

    scenario()
