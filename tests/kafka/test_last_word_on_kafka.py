"""A member's partitions while its requests are parked, on a real Kafka.

They are parked at a coordinator that is well, at one that stands still while another takes its place, and in a group
with members of the consumer protocol (KIP-848).
"""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer
from harness.fake_broker import on_a_loop, until
from harness.groups import instance_ids
from harness.members import MemberProcess
from harness.waiting import wait_for

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.member import contract
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, ProtocolSettings
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.groups import Coordinators

SESSION_MS = 6_000


class Seats:
    """The seats of one application, and what happened to them."""

    def __init__(
        self,
        kafka: ApacheKafka,
        *names: str,
        group: str = "",
        topic: str = "",
        topics: tuple[str, ...] = (),
        client: ClientSettings | None = None,
        session_timeout_ms: int = SESSION_MS,
    ) -> None:
        self.name = group or f"group-{uuid4().hex[:8]}"
        self.topic = topic or f"topic-{uuid4().hex[:8]}"
        if not topic:
            kafka.create_topic(self.topic, partitions=6)
        self.counts: Counter[type[contract.Effect]] = Counter()
        self.lost: list[str] = []
        self.group = Group(
            GroupSettings(
                bootstrap=parse_bootstrap(kafka.bootstrap_servers),
                group=self.name,
                topics=topics or (self.topic,),
                instance_ids=names,
                client=client or ClientSettings(),
                protocol=ProtocolSettings(session_timeout_ms=session_timeout_ms, heartbeat_interval_ms=1_000),
            ),
            observer=self._observe,
        )

    def _observe(self, _: Session, effect: contract.Effect) -> None:
        self.counts[type(effect)] += 1
        if isinstance(effect, contract.Lost):
            self.lost.append(effect.reason)

    async def boundary(self) -> None:
        """Between two batches: give up all that the group asks back."""
        for seat in self.group.view().seats:
            if seat.to_give_up:
                self.group.give_up(seat.instance_id, seat.to_give_up)

    @property
    def held(self) -> int:
        return sum(len(seat.owned_since) for seat in self.group.view().seats)

    def settled_with(self, partitions: int) -> bool:
        return self.group.view().settled and self.held == partitions


@contextmanager
def slow_member(kafka: ApacheKafka, seats: Seats) -> Iterator[MemberProcess]:
    """Another application's member in the same group, which a rebalance will wait for: it stands still."""
    with MemberProcess(
        kafka.bootstrap_servers, seats.name, seats.topic, "slow", "--session-timeout-ms", "120000"
    ) as slow:
        slow.wait_for_event("joined")
        yield slow


async def half_each(seats: Seats, slow: MemberProcess) -> None:
    async with asyncio.timeout(60):
        while len(slow.owned) != 3 or not seats.settled_with(3):
            await seats.boundary()
            await asyncio.sleep(0.05)


def test_a_join_parked_for_longer_than_a_session_costs_no_partition_while_the_coordinator_is_well(
    apache_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    call = Coordinators.call

    async def counted(coordinators: Coordinators, group: str, request: Any, **more: Any) -> Any:
        nonlocal looks
        looks += type(request).__name__ == "HeartbeatRequest"
        return await call(coordinators, group, request, **more)

    monkeypatch.setattr(Coordinators, "call", counted)

    @on_a_loop
    async def scenario() -> None:
        seats = Seats(apache_kafka, "seat-0")
        await seats.group.start()
        try:
            with slow_member(apache_kafka, seats) as slow:
                await half_each(seats, slow)
                os.kill(slow.process.pid, signal.SIGSTOP)
                seats.group.force_rebalance("the test says so")
                began_at_ms = monotonic_ms()
                await until(lambda: looks >= 7)  # three in a session
                assert monotonic_ms() - began_at_ms > 2 * SESSION_MS
                assert seats.held == 3
                assert not seats.group.view().settled
                os.kill(slow.process.pid, signal.SIGCONT)
                await until(lambda: seats.settled_with(3))
                assert not seats.lost
        finally:
            await seats.group.close()

    scenario()


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize(
    ("now", "each"),
    [
        pytest.param("12", 4, id="as before"),
        pytest.param("1", 4, id="narrowed"),
        pytest.param("13", 6, id="replaced"),
        pytest.param("123", 6, id="widened"),
    ],
)
def test_a_seat_that_comes_back_with_another_subscription_gets_partitions_of_subscribed_topics_only(
    apache_kafka: ApacheKafka, who: str, now: str, each: int
) -> None:
    """Two seats share topics 1 and 2, of 4 partitions each.

    One comes back within its session. A broker does not rebalance for it (KIP-345), yet the topic it dropped goes to
    the other one, and its new topic arrives.
    """
    name = f"changed-{uuid4().hex[:8]}-"
    for digit in "123":
        apache_kafka.create_topic(name + digit, partitions=4)

    def seat(instance_id: str, digits: str) -> Seats:
        topics = tuple(name + digit for digit in digits)
        return Seats(
            apache_kafka,
            instance_id,
            group=name,
            topic=name + "1",
            topics=topics,
            client=ClientSettings(metadata_max_age_ms=500),
            session_timeout_ms=30_000,
        )

    def shared(one: Seats, other: Seats, each: int) -> bool:
        topics = {tp.topic for seats in (one, other) for seat in seats.group.view().seats for tp in seat.owned_since}
        subscribed = {*one.group.settings.topics, *other.group.settings.topics}
        return topics == subscribed and one.held == other.held == each and 4 * len(topics) == 2 * each

    @on_a_loop
    async def scenario() -> None:
        leads, follows = seat("leads", "12"), seat("follows", "12")
        back, other = (leads, follows) if who == "leader" else (follows, leads)
        again = seat("leads" if who == "leader" else "follows", now)
        try:
            await leads.group.start()
            await until(lambda: leads.settled_with(8))
            await follows.group.start()
            await at_rest(leads, follows, lambda: shared(leads, follows, 4))
            await back.group.close()
            await again.group.start()
            await at_rest(again, other, lambda: shared(again, other, each))
            wanted = {name + digit for digit in now}
            assert {tp.topic for seat in again.group.view().seats for tp in seat.owned_since} <= wanted
        finally:
            for seats in (leads, follows, again):
                await seats.group.close()

    scenario()


async def at_rest(one: Seats, other: Seats, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not (condition() and one.group.view().settled and other.group.view().settled):
            await one.boundary()
            await other.boundary()
            await asyncio.sleep(0.05)


def test_a_leave_does_not_wait_behind_a_parked_join(apache_kafka: ApacheKafka) -> None:
    seats = Seats(apache_kafka, "unused")
    with slow_member(apache_kafka, seats) as slow:
        slow.wait_for_owned(6)
        os.kill(slow.process.pid, signal.SIGSTOP)
        with MemberProcess(apache_kafka.bootstrap_servers, seats.name, seats.topic, None) as leaving:
            wait_for(lambda: len(instance_ids(apache_kafka, seats.name)) == 2, "its join to be parked")
            began_at_ms = monotonic_ms()
            leaving.process.send_signal(signal.SIGINT)
            assert leaving.end() == 0
            assert monotonic_ms() - began_at_ms < 30_000, "the join waits for a session of 120 s"
            assert leaving.events[-1]["event"] == "left"
        assert instance_ids(apache_kafka, seats.name) == ["slow"]


@pytest.mark.full
@pytest.mark.xdist_group("together-faults_of_three_nodes")
def test_a_join_parked_at_a_broker_that_stands_still_goes_to_the_next_coordinator(
    three_nodes: ApacheKafka,
) -> None:
    """1. Our join is parked. 2. The broker stops, and its kernel keeps the connection. 3. Another one coordinates."""
    kafka = three_nodes

    @on_a_loop
    async def scenario() -> None:
        seats = Seats(kafka, "seat-0", client=ClientSettings(request_timeout_ms=5_000), session_timeout_ms=30_000)
        await seats.group.start()
        try:
            with slow_member(kafka, seats) as slow:
                await half_each(seats, slow)
                os.kill(slow.process.pid, signal.SIGSTOP)
                address = await seats.group._cluster.coordinators.find(seats.name)
                frozen = next(node for node in kafka.nodes if node.port == address.port)
                seats.group.force_rebalance("the test says so")
                await until(lambda: seats.counts[contract.Rejoining] and not seats.group.view().settled)
                await in_phase(seats.group, "PreparingRebalance")
                frozen.pause()
                try:
                    async with asyncio.timeout(60):
                        # It is the new coordinator's word: the frozen one answers no request.
                        await in_phase(seats.group, "PreparingRebalance")
                    os.kill(slow.process.pid, signal.SIGCONT)
                    async with asyncio.timeout(60):
                        while not seats.settled_with(3):
                            await seats.boundary()
                            await asyncio.sleep(0.05)
                finally:
                    frozen.resume()
        finally:
            await seats.group.close()

    scenario()


async def in_phase(group: Group, phase: str) -> None:
    while True:
        if (await group.describe()).state == phase:
            return
        await asyncio.sleep(0.1)


@contextmanager
def consumer_protocol_member(kafka: ApacheKafka, seats: Seats) -> Iterator[set[int]]:
    """A librdkafka consumer that speaks KIP-848 in the same group. Yields the partitions that it has."""
    ended = threading.Event()
    owned: set[int] = set()

    def poll() -> None:
        consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": seats.name, "group.protocol": "consumer"}
        )
        consumer.subscribe(
            [seats.topic],
            on_assign=lambda _, added: owned.update(tp.partition for tp in added),
            on_revoke=lambda _, gone: owned.difference_update(tp.partition for tp in gone),
        )
        while not ended.is_set():
            consumer.poll(0.1)
        consumer.close()

    thread = threading.Thread(target=poll, name="consumer protocol")
    thread.start()
    try:
        yield owned
    finally:
        ended.set()
        thread.join(30)


def test_long_batches_beside_a_member_of_the_consumer_protocol_cost_few_joins_and_no_partition(
    apache_kafka: ApacheKafka,
) -> None:
    """The broker turns the group into one of type consumer and serves classic members in it (KIP-848, migration).

    A member that must give up partitions has its heartbeat answered REBALANCE_IN_PROGRESS, its join at once.
    """

    @on_a_loop
    async def scenario() -> None:
        seats = Seats(apache_kafka, "a", "b", session_timeout_ms=30_000)
        await seats.group.start()
        try:
            async with asyncio.timeout(60):
                while not seats.settled_with(6):  # one seat may be alone in the first generation, and must give up then
                    await seats.boundary()
                    await asyncio.sleep(0.1)
            with consumer_protocol_member(apache_kafka, seats) as theirs:
                await until(lambda: any(seat.to_give_up for seat in seats.group.view().seats))
                before = seats.counts[contract.Rejoining]
                batch_ends_at_ms = monotonic_ms() + 8_000
                await until(lambda: monotonic_ms() >= batch_ends_at_ms)
                assert seats.counts[contract.Rejoining] - before <= 2 * 4, "joins of two seats in 8 s"
                async with asyncio.timeout(60):
                    while not (len(theirs) == 2 and seats.held == 4):
                        await seats.boundary()
                        await asyncio.sleep(0.1)
            async with asyncio.timeout(60):
                while not seats.settled_with(6):
                    await seats.boundary()
                    await asyncio.sleep(0.1)
            assert not seats.lost
        finally:
            await seats.group.close()

    scenario()
