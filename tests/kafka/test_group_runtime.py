"""The runtime and the boundary on a real Kafka, without Spark: effects that only show between two generations."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from harness.kafka import produce
from harness.runtime import options_of, owned, settings_of
from harness.waiting import wait_for

from pyspark_kgroup.driver.boundary import idle_check
from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from spark_kgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from spark_kgroup.errors import ConnectionFailed, GroupRejected, GroupUnsettled, OptionError, UnknownTopic
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire import schema
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.schema import HeartbeatRequest, Request, Response

Run = Callable[..., tuple[GroupRuntime, Boundary]]

LONG_MS = 20_000
"""A heartbeat interval that no test waits for: an answer that comes sooner was asked for sooner."""


@pytest.fixture
def run(apache_kafka: ApacheKafka, topic: str) -> Iterator[Run]:
    """Start the seats of one query, and close them at the end without leaving."""
    with ExitStack() as started:

        def start(prefix: str, members: int, *, bounded: bool = False, **more: str) -> tuple[GroupRuntime, Boundary]:
            options = options_of(apache_kafka.bootstrap_servers, topic, prefix, members, **more)
            runtime = started.enter_context(GroupRuntime(settings_of(options)))
            return runtime, Boundary(BoundaryContext.of(runtime, options), bounded=bounded)

        yield start


def seats_and_positions(checkpoint: Checkpoint) -> dict[TopicPartition, tuple[str, int]]:
    return {tp: (owned.period.seat, owned.position) for tp, owned in checkpoint.owned.items()}


def test_a_fresh_group_whose_first_seat_was_alone_settles_without_waiting_for_its_heartbeat(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With group.initial.rebalance.delay.ms=0, and seats that connect more slowly than the first one joins.
    call = Connection.call
    told_that_all_is_well = asyncio.Event()

    async def late(self: Connection, request: Request, **more: Any) -> Response:
        if isinstance(request, schema.JoinGroupRequest) and request.group_instance_id != "one-0":
            await told_that_all_is_well.wait()
        response = await call(self, request, **more)
        if isinstance(request, HeartbeatRequest):
            told_that_all_is_well.set()
        return response

    monkeypatch.setattr(Connection, "call", late)
    runtime, boundary = run("one", 4, **{"kafka.heartbeat.interval.ms": str(LONG_MS)})
    # A generation with the first seat alone, one with all, and one when the first seat has given up its surplus.
    together = runtime.wait_until(lambda v: all(s.identity.generation == 2 for s in v.seats), LONG_MS // 4)
    assert [seat.identity.generation for seat in together.seats] == [2] * 4
    began = time.monotonic()
    assert len(boundary.advance(EMPTY).owned) == 4
    assert time.monotonic() - began < LONG_MS / 4000
    assert {(len(seat.owned_since), seat.identity.generation) for seat in runtime.view().seats} == {(1, 3)}


def test_a_partition_still_being_read_is_claimed_though_it_is_assigned_to_no_member(run: Run) -> None:
    # KIP-429: between the two generations of a hand-over a partition has no owner in the group's eyes.
    first, _ = run("one", 1)
    first.wait_until(lambda v: len(owned(v)) == 4, 20_000)
    second, boundary = run("two", 1)
    asked = first.wait_until(lambda v: any(seat.to_give_up for seat in v.seats), 20_000)
    withheld = asked.seats[0].to_give_up
    assert len(withheld) == 2
    wait_for(lambda: first.describe().state == "Stable", "the generation between")
    members = {m.instance_id: m for m in first.describe().members}
    assert not withheld & (members["one-0"].assignment | members["two-0"].assignment)
    assert withheld <= members["one-0"].claimed
    # So the newcomer, whose join was a static one, sees no orphans and forces no rebalance.
    joined = second.wait_until(lambda v: v.seats[0].identity.generation > 0, 20_000)  # it hears of it after the broker
    generation = joined.seats[0].identity.generation
    boundary.advance(EMPTY)
    assert second.view().seats[0].identity.generation == generation


def test_partitions_added_right_after_a_restart_are_noticed(run: Run, apache_kafka: ApacheKafka, topic: str) -> None:
    # KIP-814: a leader that comes back does not assign, so it has no metadata to compare with.
    first, boundary = run("one", 2)
    checkpoint = boundary.advance(EMPTY)
    assert len(checkpoint.owned) == 4
    first.close()
    again, boundary = run("one", 2)
    # Not their periods: one is of an earlier generation where a seat was alone in it, before the other one joined.
    assert seats_and_positions(boundary.advance(checkpoint)) == seats_and_positions(checkpoint)
    apache_kafka.add_partitions(topic, 6)
    noticed = again.wait_until(lambda v: len(owned(v)) == 6, 20_000)
    assert len(owned(noticed)) == 6


def test_partitions_added_while_the_leader_was_away_are_noticed(
    run: Run, apache_kafka: ApacheKafka, topic: str
) -> None:
    # The hole that KIP-814 names and leaves open.
    first, boundary = run("one", 2)
    checkpoint = boundary.advance(EMPTY)
    first.close()
    apache_kafka.add_partitions(topic, 6)
    _, boundary = run("one", 2)

    def adopted() -> Checkpoint | None:
        now = boundary.advance(checkpoint)
        return now if len(now.owned) == 6 else None

    wait_for(adopted, "six partitions")


def test_seats_of_an_earlier_run_leave_before_a_fresh_checkpoint_is_begun(run: Run) -> None:
    first, _ = run("one", 4)
    first.wait_until(lambda v: v.settled and len(owned(v)) == 4, 20_000)
    first.close()
    again, boundary = run("one", 2, bounded=True)
    assert len(boundary.advance(EMPTY).owned) == 4
    assert sorted(str(m.instance_id) for m in again.describe().members) == ["one-0", "one-1"]


def test_a_start_beyond_the_end_is_refused(run: Run, apache_kafka: ApacheKafka, topic: str) -> None:
    produce(apache_kafka.bootstrap_servers, topic, 40, partitions=4)
    places = ",".join(f'"{index}":{99 if index == 2 else 5}' for index in range(4))
    _, boundary = run("one", 1, startingOffsets=f'{{"{topic}":{{{places}}}}}')
    with pytest.raises(OptionError, match=rf"{topic}-2: 99 \(ends at 10\)"):
        boundary.advance(EMPTY)


def test_a_start_that_fails_leaves_no_thread(apache_kafka: ApacheKafka) -> None:
    unknown = GroupRuntime(settings_of(options_of(apache_kafka.bootstrap_servers, "no-such-topic", "one", 1)))
    with pytest.raises(UnknownTopic, match="no-such-topic"):
        unknown.start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses every connection
        refused = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=refused):
            GroupRuntime(settings_of(options_of(refused, "topic", "one", 1))).start()
    assert "kgroup" not in {thread.name for thread in threading.enumerate()}


def test_closing_twice_is_fine_and_asking_afterwards_is_an_error(run: Run) -> None:
    runtime, _ = run("one", 1)
    runtime.close()
    runtime.close()
    with pytest.raises(GroupUnsettled, match="closed"):
        runtime.view()


def test_a_bug_in_an_assignor_reaches_the_query(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(CooperativeStickyAssignor, "assign", fail)
    runtime, _ = run("one", 1)
    with pytest.raises(GroupRejected, match=r"Member 'one-0' of group .*ZeroDivisionError\('a bug'\)"):
        runtime.wait_until(lambda v: v.settled, 20_000)


def test_idle_triggers_ask_brokers_for_end_offsets_alone(
    run: Run, apache_kafka: ApacheKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    call = Connection.call

    async def noted(self: Connection, request: Request, **more: Any) -> Response:
        asked.append(type(request).__name__)
        return await call(self, request, **more)

    monkeypatch.setattr(Connection, "call", noted)
    monkeypatch.setattr(idle_check, "IDLE_TOPICS_MAX_AGE_MS", 300_000)
    _, boundary = run("one", 2, **{"kafka.metadata.max.age.ms": "300000", "kafka.heartbeat.interval.ms": "3000"})
    durable = boundary.advance(EMPTY)
    at_rest = boundary.advance(durable)
    assert at_rest == durable
    asked.clear()
    wait_for(lambda: boundary.advance(durable) != durable or asked.count("ListOffsetsRequest") == 10, "triggers")
    assert set(asked) - {"HeartbeatRequest"} == {"ListOffsetsRequest"}
    produce(apache_kafka.bootstrap_servers, topic, 8, partitions=4)
    asked.clear()
    wait_for(lambda: boundary.advance(durable) != durable, "what is new")
    assert asked.count("MetadataRequest") == 1
    assert asked.index("MetadataRequest") > asked.index("ListOffsetsRequest")
