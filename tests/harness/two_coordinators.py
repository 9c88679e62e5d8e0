"""The same random requests to a real Apache Kafka and to our coordinator, and every answer and state compared.

A script is made while it runs, from a seed: its next request depends on the answers so far. Both coordinators take each
request before the next one is made. Our coordinator is given the member ids that Kafka made, and elects leaders in the
order of Java's HashMap, so that answers are compared as they are, but for the order of lists.

Time is real: our timers fire when the clock says so, and Kafka's then must have fired, too. No request is sent shortly
before a timer fires. On a machine that stops for longer, a request may overtake a timer at one of the two coordinators:
a difference after such a stop decides nothing (`Undecided`), and its script is to be run again.

Kafka's own checks before its coordinator sees a request (KafkaApis) are not met: all topics exist.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final, Self

from spark_kgroup.coordinator import Answer, CoordinatorConfig, Dropped, Effect, GroupCoordinator, Received
from spark_kgroup.coordinator.classic_group import ClassicGroup, place_in_java_map
from spark_kgroup.errors import WireError
from spark_kgroup.model import NO_GENERATION, ErrorCode, Subscription
from spark_kgroup.wire import schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.consumer_protocol import encode_subscription

CONFIG: Final = CoordinatorConfig(
    group_initial_rebalance_delay_ms=600,
    group_min_session_timeout_ms=1_000,
    group_max_session_timeout_ms=60_000,
    group_max_size=4,
    offset_metadata_max_bytes=10,
)
BROKER_PROPERTIES: Final = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": str(CONFIG.group_initial_rebalance_delay_ms),
    "group.min.session.timeout.ms": str(CONFIG.group_min_session_timeout_ms),
    "group.max.session.timeout.ms": str(CONFIG.group_max_session_timeout_ms),
    "group.max.size": str(CONFIG.group_max_size),
    "offset.metadata.max.bytes": str(CONFIG.offset_metadata_max_bytes),
}
"""The same settings, for the broker. Groups have one coordinator, which is there before the first script."""

TOPIC: Final = "compared"
ANSWER_S: Final = 20.0
"""How long Kafka may take for an answer that ours has given."""

CLOSE_MS: Final = 250
"""A timer that fires within this time is waited for before the next request: which of the two comes first is open."""

CLIENT: Final = "script"


class Different(AssertionError):
    """Kafka and our coordinator do not agree."""


class Undecided(AssertionError):
    """They do not agree after the machine has stopped for longer than `CLOSE_MS`."""


@dataclass
class Actor:
    """A client that sends requests of one member."""

    name: str
    instance_id: str | None
    member_id: str = ""
    generation: int = NO_GENERATION
    leads: bool = False
    others: tuple[str, ...] = ()
    token: int | None = None
    """Of its parked request."""
    refused: bool = False
    """Its last JoinGroup was refused for a reason other than its member id."""


@dataclass
class Script:
    """One group, at both coordinators."""

    seed: int
    address: Address
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.group = f"compared-{self.seed}-{time.monotonic_ns()}"
        self.actors = [Actor(f"seat-{n}", f"seat-{n}") for n in range(3)] + [
            Actor(f"dynamic-{n}", None) for n in range(3)
        ]
        self._suffix = ""
        self._seen_ids: set[str] = set()
        self._tokens = count(1)
        self._waiting: dict[int, tuple[Actor | None, asyncio.Task[Any]]] = {}
        self._connections: list[Connection] = []
        self._longest_step_ms = 0
        self._ours = GroupCoordinator(CONFIG, new_id=lambda: self._suffix)
        self._ours.start(self.now_ms)

    @property
    def group_now(self) -> ClassicGroup:
        """The group, as both coordinators have it."""
        return self._ours.groups[self.group]

    @property
    def now_ms(self) -> int:
        """The clock of both coordinators."""
        return time.monotonic_ns() // 1_000_000

    async def __aenter__(self) -> Self:
        self._asks = await self._connect()
        return self

    async def __aexit__(self, _kind: object, error: object, _where: object) -> None:
        for _, task in self._waiting.values():
            task.cancel()
            with suppress(asyncio.CancelledError, WireError):
                await task
        for connection in self._connections:
            await connection.close()
        if isinstance(error, Different | WireError):
            kind = Different if self._longest_step_ms < CLOSE_MS else Undecided
            raise kind(f"seed {self.seed}: {error}\n" + "\n".join(self.story)) from error

    async def take_steps(self, count: int) -> None:
        """Send so many requests, or short series of them, and compare after each."""
        for _ in range(count):
            await self._step()

    # ----------------------------------------------------------------------------------------------- both sides

    async def _connect(self) -> Connection:
        connection = await Connection.open(self.address, client_id=CLIENT)
        self._connections.append(connection)
        return connection

    async def send(self, request: Any, version: int, actor: Actor | None = None) -> None:
        """One request to both."""
        await self._let_timers_fire(CLOSE_MS)
        token = next(self._tokens)
        self.story.append(f"{token}: {actor.name if actor else 'admin'} {request}")
        parks = isinstance(request, schema.JoinGroupRequest | schema.SyncGroupRequest)
        connection = await self._connect() if parks else self._asks
        at_ms = self.now_ms
        task = asyncio.create_task(connection.call(request, timeout_ms=120_000))
        self._waiting[token] = (actor, task)
        if actor is not None and parks:
            actor.token = token
        if isinstance(request, schema.JoinGroupRequest) and not request.member_id:
            await self._learn_id(request, task)
        await self._note_how_long(at_ms)
        await self._compare(self._ours.receive(Received(request, version, CLIENT, "/127.0.0.1", token), at_ms))

    async def _note_how_long(self, since_ms: int) -> None:
        """By the answer to a further request, Kafka has the one that was sent before: how long is that after ours?"""
        await self._described_by_kafka()
        self._longest_step_ms = max(self._longest_step_ms, self.now_ms - since_ms)

    async def _learn_id(self, request: schema.JoinGroupRequest, task: asyncio.Task[Any]) -> None:
        """Wait until Kafka tells the member id that it made: in its answer, or in a description of the group."""
        deadline_s = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline_s:
            await asyncio.wait([task], timeout=0.01)
            found = {task.result().member_id} if task.done() else set()
            if not task.done() and request.group_instance_id is not None:
                described = await self._described_by_kafka()
                found = {m.member_id for m in described.members if m.group_instance_id == request.group_instance_id}
            if new := found - self._seen_ids - {""}:
                (member_id,) = new
                self._seen_ids.add(member_id)
                self._suffix = member_id.removeprefix(f"{request.group_instance_id or CLIENT}-")
                return
            if task.done():
                return
        raise Different("Kafka gave no member id")

    async def _let_timers_fire(self, within_ms: int) -> None:
        """Wait for timers that fire so soon, and compare after each."""
        until_ms = self.now_ms + within_ms
        while (at_ms := self._ours.next_wakeup_at_ms()) is not None and at_ms <= until_ms:
            await asyncio.sleep(max(0, at_ms - self.now_ms) / 1000)
            self.story.append(f"time passes: {[k for k in self._ours.timers if self._ours.timers.at_ms(k) == at_ms]}")
            await self._note_how_long(at_ms)
            await self._compare(self._ours.tick(max(self.now_ms, at_ms)))

    async def _compare(self, effects: Iterable[Effect]) -> None:
        """Kafka must give the answers that ours gives, no other ones, and show the same group."""
        for effect in effects:
            match effect:
                case Answer(token=int(token), response=ours):
                    actor, task = self._waiting.pop(token)
                    done, _ = await asyncio.wait([task], timeout=ANSWER_S)
                    if not done:
                        raise Different(f"{token}: Kafka does not answer, ours: {ours}")
                    self._same(token, task.result(), ours)
                    self._hear(actor, token, ours)
                case Dropped(token=int(token)):
                    self._waiting[token][1].cancel()
                    del self._waiting[token]
        await self._same_group()
        for token, (_, task) in self._waiting.items():
            if task.done():
                raise Different(f"{token}: ours does not answer, Kafka: {task.result()}")

    async def _same_group(self) -> None:
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            kafka, ours = _ordered(await self._described_by_kafka()), _ordered(self._described_by_ours())
            if kafka == ours:
                return
            if time.monotonic() > deadline_s:
                raise Different(f"the group\n  at Kafka: {kafka}\n  at ours:  {ours}")
            await asyncio.sleep(0.02)
            await self._let_timers_fire(0)  # a rebalance that waits for no member takes no time

    async def _described_by_kafka(self) -> schema.DescribedClassicGroup:
        response: Any = await self._asks.call(schema.DescribeGroupsRequest((self.group,), False), timeout_ms=20_000)
        return response.groups[0]  # type: ignore[no-any-return]

    def _described_by_ours(self) -> schema.DescribedClassicGroup:
        request = schema.DescribeGroupsRequest((self.group,), False)
        (answer,) = self._ours.receive(Received(request, 5, CLIENT, "/127.0.0.1", 0), self.now_ms)
        response: Any = answer.response  # type: ignore[union-attr]
        return response.groups[0]  # type: ignore[no-any-return]

    def _same(self, token: int, kafka: Any, ours: Any) -> None:
        left, right = (_ordered(self._of_this_group(each)) for each in (kafka, ours))
        self.story.append(f"   {token} -> {right}")
        if left != right:
            raise Different(f"{token}:\n  Kafka: {left}\n  ours:  {right}")

    def _of_this_group(self, response: Any) -> Any:
        if isinstance(response, schema.ListGroupsResponse):
            return response._replace(groups=tuple(g for g in response.groups if g.group_id == self.group))
        return response

    def _hear(self, actor: Actor | None, token: int, response: Any) -> None:
        """The client learns from an answer, unless it has sent another request since."""
        if actor is None or actor.token != token:
            return
        actor.token = None
        if isinstance(response, schema.JoinGroupResponse):
            renews = (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.UNKNOWN_MEMBER_ID)
            actor.refused = response.error_code not in renews
            if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                actor.member_id, actor.generation = "", NO_GENERATION
            elif response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                actor.member_id, actor.generation = response.member_id, response.generation_id
            actor.leads = not response.error_code and response.leader == response.member_id
            actor.others = tuple(sorted(m.member_id for m in response.members))

    # ------------------------------------------------------------------------------------------------ the script

    async def _step(self) -> None:
        rng = self.rng
        kinds = {
            self._settle: 12,
            self._come_back: 6,
            self._join: 25,
            self._sync: 25,
            self._beat: 8,
            self._leave: 5,
            self._commit: 8,
            self._fetch: 3,
            self.elapse: 9,
            self._delete_offsets: 2,
            self._delete_group: 1,
            self._list: 2,
        }
        (kind,) = rng.choices(list(kinds), list(kinds.values()))
        await kind()

    def _actor(self, *, joined: bool = False) -> Actor:
        """A client, mostly one that waits for no answer and, if it is to have joined, is in a generation."""
        fit = [a for a in self.actors if a.token is None and (a.generation >= 0 or not joined)]
        return self.rng.choice(fit if fit and self.rng.random() < 0.95 else self.actors)

    def _generation(self, actor: Actor) -> int:
        return actor.generation if self.rng.random() < 0.92 else actor.generation + self.rng.choice((-1, 1))

    def _member_id(self, actor: Actor) -> str:
        chance = self.rng.random()
        if chance < 0.85:
            return actor.member_id
        return "" if chance < 0.95 else self.rng.choice(self.actors).member_id or "none"

    async def _settle(self) -> None:
        """Some clients do as they should: they join, all that are in the new generation sync, the leader somewhere."""
        for actor in self.rng.sample(self.actors, self.rng.randint(1, 3)):
            while actor.token is None and not await self.join_well(actor):
                pass
        await self.elapse()
        synced = [actor for actor in self.actors if actor.token is None and actor.generation >= 0]
        for actor in self.rng.sample(synced, len(synced)):
            if actor.leads or self.rng.random() < 0.7:
                await self.sync_well(actor)

    async def _come_back(self) -> None:
        """A static member is restarted. It may have changed."""
        actor = self.rng.choice([actor for actor in self.actors if actor.instance_id is not None])
        await self.join_well(actor, member_id="", topic=self.rng.choice((TOPIC, TOPIC, "other")))
        if actor.token is None and self.rng.random() < 0.7:
            await self.sync_well(actor)

    async def join_well(self, actor: Actor, member_id: str | None = None, topic: str = TOPIC) -> bool:
        """Join, and return whether that is all: a client that is given a member id, or lacks one, has to join again."""
        metadata = encode_subscription(Subscription(topics=(topic,)))
        protocols = tuple(schema.JoinGroupRequestProtocol(name, metadata) for name in ("range", "sticky"))
        asked = actor.member_id if member_id is None else member_id
        request = schema.JoinGroupRequest(
            self.group, 20_000, 1_500, asked, actor.instance_id, "consumer", protocols, "a script"
        )
        await self.send(request, 9, actor)
        return actor.token is not None or actor.generation >= 0 or actor.refused

    async def sync_well(self, actor: Actor) -> None:
        """Sync, and assign if the client leads."""
        shares = tuple(schema.SyncGroupRequestAssignment(m, f"of {m[:9]}".encode()) for m in actor.others)
        request = schema.SyncGroupRequest(
            group_id=self.group,
            generation_id=actor.generation,
            member_id=actor.member_id,
            group_instance_id=actor.instance_id,
            protocol_type="consumer",
            protocol_name=self._protocol(),
            assignments=shares,
        )
        await self.send(request, 5, actor)

    async def _join(self) -> None:
        actor = self._actor()
        names = self.rng.choices((("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)), (4, 4, 4, 1))[0]
        topics = self.rng.choice(((TOPIC,), (TOPIC,), ("other",)))
        metadata = encode_subscription(Subscription(topics=topics)) if self.rng.random() < 0.9 else b"\x01"
        request = schema.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.rng.choices((4_000, 1_500, 60_000, 999), (4, 4, 8, 0.3))[0],
            rebalance_timeout_ms=self.rng.choice((700, 1_500, 2_500)),
            member_id=self._member_id(actor),
            group_instance_id=actor.instance_id,
            protocol_type=self.rng.choices(("consumer", "connect"), (30, 1))[0],
            protocols=tuple(schema.JoinGroupRequestProtocol(name, metadata) for name in names),
            reason="a script",
        )
        await self.send(request, 9, actor)

    async def _sync(self) -> None:
        actor = self._actor(joined=True)
        shares = [schema.SyncGroupRequestAssignment(m, f"share {self.rng.random()}".encode()) for m in actor.others]
        if shares and self.rng.random() < 0.2:
            shares.pop()
        request = schema.SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation(actor),
            member_id=self._member_id(actor),
            group_instance_id=actor.instance_id,
            protocol_type=self.rng.choices(("consumer", "connect", None), (40, 1, 1))[0],
            protocol_name=self._protocol(),
            assignments=tuple(shares) if actor.leads else (),
        )
        await self.send(request, 5, actor)

    def _protocol(self) -> str:
        group = self._ours.groups.get(self.group)
        known = (group.protocol if group is not None else None) or "range"
        return known if self.rng.random() < 0.97 else "roundrobin"

    async def _beat(self) -> None:
        actor = self._actor(joined=True)
        request = schema.HeartbeatRequest(
            self.group, self._generation(actor), self._member_id(actor), actor.instance_id
        )
        await self.send(request, 4)

    async def _leave(self) -> None:
        leaving = []
        for actor in self.rng.sample(self.actors, self.rng.randint(1, 2)):
            member_id = "" if actor.instance_id and self.rng.random() < 0.5 else self._member_id(actor)
            leaving.append(schema.LeavingMember(member_id, actor.instance_id, "a script"))
        await self.send(schema.LeaveGroupRequest(self.group, tuple(leaving)), 5)

    async def _commit(self) -> None:
        actor = self._actor(joined=True)
        as_member = self.rng.random() < 0.8
        partitions = tuple(
            schema.OffsetCommitRequestPartition(
                index,
                self.rng.randrange(100),
                self.rng.choice((-1, 3)),
                self.rng.choice((None, "", "note", "far too long")),
            )
            for index in self.rng.sample(range(3), self.rng.randint(1, 3))
        )
        version, kind = self.rng.choice(((8, schema.OffsetCommitRequest), (9, schema.OffsetCommitRequestV9)))
        request = kind(
            group_id=self.group,
            generation_id_or_member_epoch=self._generation(actor) if as_member else NO_GENERATION,
            member_id=self._member_id(actor) if as_member else "",
            group_instance_id=actor.instance_id if as_member else None,
            topics=(schema.OffsetCommitRequestTopic(TOPIC, partitions),),
        )
        await self.send(request, version)

    async def _fetch(self) -> None:
        topics = self.rng.choice((None, (schema.OffsetFetchRequestTopics(TOPIC, (0, 1, 2)),)))
        stable = self.rng.random() < 0.5
        if self.rng.random() < 0.5:
            groups = (schema.OffsetFetchRequestGroup(self.group, topics), schema.OffsetFetchRequestGroup("none", None))
            await self.send(schema.OffsetFetchRequest(groups, stable), 8)
        else:
            actor = self._actor()
            asked = schema.OffsetFetchRequestGroupV9(self.group, actor.member_id or None, actor.generation, topics)
            await self.send(schema.OffsetFetchRequestV9((asked,), stable), 9)

    async def _delete_offsets(self) -> None:
        partitions = tuple(map(schema.OffsetDeleteRequestPartition, (0, 2)))
        topics = (schema.OffsetDeleteRequestTopic(TOPIC, partitions),)
        await self.send(schema.OffsetDeleteRequest(self.group, topics), 0)

    async def _delete_group(self) -> None:
        await self.send(schema.DeleteGroupsRequest((self.group,)), 2)

    async def _list(self) -> None:
        states = self.rng.choice(((), ("stable",), ("Empty", "PreparingRebalance"), ("unheard-of",)))
        types = self.rng.choice(((), ("Classic",), ("consumer",)))
        await self.send(schema.ListGroupsRequest(states, types), 5)

    async def elapse(self) -> None:
        """Wait for the next timer, if it is not far away."""
        at_ms = self._ours.next_wakeup_at_ms()
        if at_ms is not None and at_ms - self.now_ms < 3_000:
            await self._let_timers_fire(at_ms - self.now_ms + CLOSE_MS)


def _ordered(value: Any) -> Any:
    """The same value with every list of structs in an order of its own."""
    if isinstance(value, tuple):
        parts = [_ordered(each) for each in value]
        return tuple(parts) if hasattr(value, "_fields") else tuple(sorted(parts, key=repr))
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


async def await_coordinator(address: Address) -> None:
    """Wait until the broker coordinates groups: at first it has no topic for their records."""
    connection = await Connection.open(address, client_id=CLIENT)
    deadline_s = time.monotonic() + 60
    async with connection:
        await connection.call(schema.FindCoordinatorRequest(0, ("any",)), timeout_ms=20_000)
        answer: Any = None
        while answer is None or answer.error_code != ErrorCode.UNKNOWN_MEMBER_ID:
            assert time.monotonic() < deadline_s, f"groups have no coordinator: {answer}"
            answer = await connection.call(schema.HeartbeatRequest("any", 0, "none", None), timeout_ms=20_000)
            await asyncio.sleep(0.05)


def first_in_java_map(candidates: Iterable[str]) -> str | None:
    """The member that Kafka elects among few."""
    return min(candidates, key=place_in_java_map, default=None)
