"""A world of members under the consumer protocol and one coordinator, in virtual time, with a network that fails.

As in `simulated_world`, workload and faults and checks are apart, and everything random comes from one seed. Heartbeats
go over any connection, so there are none here: a request arrives or not, and so does its answer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from random import Random
from uuid import UUID

from harness.model_consumer_group import ModelConsumerGroup
from harness.simulated_brokers import NODES, SimulatedBrokers, SimulatedClient

from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.member import contract
from spark_kgroup.member.config import ConsumerMemberConfig, PreviouslyOwned, Resumption
from spark_kgroup.member.consumer import ConsumerMember, State
from spark_kgroup.member.consumer_contract import (
    JOIN_EPOCH,
    Ask,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    Effect,
    Event,
    ResolveTopics,
    TopicsResolved,
    Unanswered,
)
from spark_kgroup.member.member_ids import new_member_id
from spark_kgroup.model import (
    DescribedGroup,
    DescribedMember,
    ErrorCode,
    MemberIdentity,
    TopicDescription,
    TopicIdPartition,
    TopicPartition,
)
from spark_kgroup.runtime.resumptions import resumable, with_topic_ids
from spark_kgroup.wire.cluster import ClusterMetadata

TOPIC = "orders"
REQUEST_TIMEOUT_MS = 3_000
LOOK_TIMEOUT_MS = 30_000


class Process:
    """One run of a seat: a fresh machine and its application."""

    def __init__(self, world: ConsumerWorld, seat: str, number: int) -> None:
        self.world = world
        self.seat = seat
        self.name = f"{seat}/{number}"
        self.config = replace(world.seats[seat], resumes=world.owed_by(seat))
        self.machine = ConsumerMember(
            self.config, jitter=world.rng.random, new_id=lambda: new_member_id(world.rng.randbytes)
        )
        self.alive = True
        self.paused = False
        self.client = SimulatedClient(world.brokers, world, paused=lambda: self.paused)
        self.failure: Exception | None = None
        self.launched_at_ms = world.now_ms
        self.confirmed_at_ms = world.now_ms
        self.gained: list[tuple[int, frozenset[TopicPartition]]] = []
        """When it was assigned new partitions, and which."""
        self.lost: list[str] = []
        self.nameless_since_ms: int | None = None
        """Since when it is assigned a topic id without a name."""
        self._inbox: deque[Event] = deque()
        self._wakes_at_ms: int | None = None
        self.post(contract.Join())
        world.after(world.boundary_ms(), self._boundary)

    @property
    def running(self) -> bool:
        """Alive and not ended: it may be reading its partitions."""
        return self.alive and not self.machine.ended

    def post(self, event: Event) -> None:
        """Take the event, now or when the process goes on."""
        self._inbox.append(event)
        self.drain()

    def drain(self) -> None:
        """Take the events that wait, timers first, as `runtime.session` does."""
        while self._inbox and self.alive and not self.paused:
            event = self._inbox.popleft()
            self._take(contract.Tick())
            self._take(event)

    def wake(self) -> None:
        """Take a timer that is due, or set the next."""
        self._wakes_at_ms = None
        due_at_ms = self.machine.next_wakeup_at_ms()
        if due_at_ms is None or not self.alive or self.paused:
            return
        if due_at_ms <= self.world.now_ms:
            self._take(contract.Tick())
        else:
            self._wake_when_due()

    def _take(self, event: Event) -> None:
        before = self.machine.identity, self.machine.owned
        effects = self.machine.handle(event, self.world.now_ms)
        if effects or not isinstance(event, contract.Tick):  # else no timer was due, and the state is unchanged
            self.world.log(self.name, self.machine.state, event, "->", *effects)
            for effect in effects:
                self._carry_out(effect)
            self.world.check(self, changed=before != (self.machine.identity, self.machine.owned))
        self._wake_when_due()

    def _wake_when_due(self) -> None:
        """Have the next timer fire. One that is set already for an earlier instant looks again by itself."""
        due_at_ms = self.machine.next_wakeup_at_ms()
        if due_at_ms is not None and (self._wakes_at_ms is None or due_at_ms < self._wakes_at_ms):
            self._wakes_at_ms = due_at_ms
            self.world.at(due_at_ms, self.wake)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Ask(request=request):
                self.world.ask(self, request)
            case ResolveTopics(topic_ids=topic_ids):
                self.world.after(self.world.delay_ms(), lambda: self._resolve(topic_ids))
            case contract.LookAtSeat():
                self.world.after(2 * self.world.delay_ms(), self._look_at_seat)
            case contract.Assigned(added=added):
                self.gained.append((self.world.now_ms, added))
            case contract.Lost(reason=reason):
                self.lost.append(reason)
            case contract.Failed(error=error):
                self.failure = error
                self.world.on_failed(self)
            case _:
                pass

    def _resolve(self, topic_ids: frozenset[UUID]) -> None:
        """As `Cluster.resolve_topic_names`, with no answer kept for later questions."""

        def on_looked(found: ClusterMetadata | None) -> None:
            if found is None:
                return
            known = {topic.topic_id for topic in found.topics.values() if topic.topic_id is not None}
            if not topic_ids <= known:
                self.client.doubt()
            named = sorted(each for each in topic_ids & known if not self.client.known.is_replaced(each))
            self.post(TopicsResolved(names=tuple((each, TOPIC) for each in named)))

        self.client.look(on_looked, timeout_ms=LOOK_TIMEOUT_MS, wanted=lambda: self.running)

    def _look_at_seat(self) -> None:
        if not self.world.broken:
            self.world.group.expire(self.world.now_ms)
            self.post(contract.SeatSeen(member_id=self.world.group.member_id_of(self.config.instance_id)))

    def _boundary(self) -> None:
        """Between two pieces of work: stop reading partitions that must go, commit them, and say so some time later."""
        if not self.running:
            return
        self.world.after(self.world.boundary_ms(), self._boundary)
        going = self.machine.to_give_up
        if not self.paused and going:
            some = frozenset(tp for tp in sorted(going) if self.world.at_peace or self.world.rng.random() < 0.8)
            self.world.after(self.world.rng.choice((0, 5, 500)), lambda: self.post(contract.GaveUp(partitions=some)))


class ConsumerWorld:
    """Time, messages, the coordinator, and every process that ever ran.

    Attributes:
        broken: no request is answered.
        moving: the coordinator answers that it is none, or that it loads.
        brokers: they tell metadata, which learn of a new topic id later than the coordinator.

    """

    def __init__(
        self, seed: int, seats: dict[str, ConsumerMemberConfig], *, boundary: tuple[int, int], delay: tuple[int, int]
    ) -> None:
        self.rng = Random(seed)
        self.seats = seats
        self.now_ms = 1_000
        self.loss = 0.0
        self.broken = self.moving = self.at_peace = False
        self.named_within_ms: int | None = None
        """How soon a process knows the name of each topic id, None where faults set no bound."""
        self.topic_id = UUID(int=1)
        self.count = 11
        self.brokers = SimulatedBrokers(seed, TOPIC, self.count)
        self.group = ModelConsumerGroup(self._partitions())
        self.processes: list[Process] = []
        self.fenced: list[Process] = []
        self.last_joined: dict[str, Process] = {}
        self._trace: deque[tuple[int, tuple[object, ...]]] = deque(maxlen=80)
        self._boundary, self._delay = boundary, delay
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        for seat in seats:
            self.launch(seat)

    def _partitions(self) -> frozenset[TopicIdPartition]:
        return frozenset(TopicIdPartition(self.topic_id, index) for index in range(self.count))

    @property
    def reachable(self) -> bool:
        """Whether brokers can be reached."""
        return not self.broken

    # ------------------------------------------------------------------------------------------------ time

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        """Call `action` at an instant."""
        self._order += 1
        heapq.heappush(self._agenda, (max(at_ms, self.now_ms), self._order, action))

    def after(self, wait_ms: int, action: Callable[[], None]) -> None:
        """Call `action` later."""
        self.at(self.now_ms + wait_ms, action)

    def run_for(self, duration_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + duration_ms
        while self._agenda and self._agenda[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._agenda)
            action()
        self.now_ms = end_ms

    def log(self, *words: object) -> None:
        """Keep words for the message of a failure, which alone turns them into text."""
        self._trace.append((self.now_ms, words))

    def story(self) -> str:
        """The last events, for the message of a failure."""
        return "\n".join(f"{at_ms:>8} {' '.join(map(_short, words))}" for at_ms, words in self._trace)

    def delay_ms(self) -> int:
        """One way through the network."""
        return self.rng.randint(*self._delay)

    def boundary_ms(self) -> int:
        """How long the next piece of work takes. A member slower than the rebalance timeout is never at rest."""
        longest_ms = 20_000 if self.at_peace else self._boundary[1]
        return min(self.rng.randint(*self._boundary), longest_ms)

    # --------------------------------------------------------------------------------------------- messages

    def ask(self, process: Process, request: ConsumerHeartbeatRequest) -> None:
        """Carry a request to the coordinator and its answer back, or neither, or not the answer."""
        answered = False

        def deliver(event: Event) -> None:
            nonlocal answered
            if not answered and process.alive:
                answered = True
                process.post(event)

        def arrive() -> None:
            if self.broken or self.rng.random() < self.loss:
                return
            response, given_at_ms = self._receive(process, request), self.now_ms
            if self.rng.random() >= self.loss:
                self.after(self.delay_ms(), lambda: None if self.broken else confirm(response, given_at_ms))

        def confirm(response: ConsumerHeartbeatResponse, given_at_ms: int) -> None:
            if response.error == ErrorCode.NONE and not answered:
                process.confirmed_at_ms = given_at_ms
            deliver(response)

        self.after(self.delay_ms(), arrive)
        self.after(REQUEST_TIMEOUT_MS, lambda: deliver(Unanswered(request=request, reason="timeout")))

    def _receive(self, process: Process, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
        if self.moving:
            error = self.rng.choice((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return ConsumerHeartbeatResponse(request=request, error=error)
        response = self.group.receive(request, process.config, self.now_ms)
        self.log("coordinator epoch", self.group.epoch, request, "->", response)
        if response.error == ErrorCode.NONE and request.identity.generation == JOIN_EPOCH:
            self.last_joined[process.seat] = process
        return response

    # ------------------------------------------------------------------------------------------- processes

    def owed_by(self, seat: str) -> Resumption | None:
        """The membership that a seat's next process resumes: its last one's partitions are in the checkpoint."""
        last = next((p for p in reversed(self.processes) if p.seat == seat), None)
        if last is None or last.alive or last.config.instance_id is None:
            return None
        machine = last.machine
        owned = self._by_name(machine.partitions.owned_by_id)
        reading = {seat: PreviouslyOwned(partitions=owned, member_id=machine.identity.member_id)}
        found = resumable(reading, self._described(), [seat], [TOPIC]).get(seat)
        topics = {TOPIC: TopicDescription(name=TOPIC, topic_id=self.topic_id, partition_count=self.count)}
        return with_topic_ids(found, topics) if found is not None else None

    def _described(self) -> DescribedGroup:
        """ConsumerGroupDescribe: partitions that a member is told to give up are in no member's assignment."""
        self.group.expire(self.now_ms)
        members = tuple(
            DescribedMember(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id="",
                client_host="",
                assignment=self._by_name(member.assigned),
                target=self._by_name(self.group.target[member_id]),
                epoch=member.epoch,
                protocol="consumer",
            )
            for member_id, member in self.group.members.items()
        )
        return DescribedGroup(group="g", state="Stable", protocol="uniform", members=members, group_type="consumer")

    def _by_name(self, partitions: frozenset[TopicIdPartition]) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(TOPIC, p.partition) for p in partitions if p.topic_id == self.topic_id)

    def launch(self, seat: str) -> None:
        """Start a new process on a seat, beside any that runs there."""
        self.processes.append(Process(self, seat, len(self.processes)))

    def relaunch(self, seat: str) -> None:
        """Start a process on a seat that has none, as soon as one that is about to end has ended."""
        running = [p for p in self.processes if p.running and p.seat == seat]
        if not running:
            self.launch(seat)
        elif any(p.machine.state is State.LEAVING for p in running):
            self.after(500, lambda: self.relaunch(seat))

    def on_failed(self, process: Process) -> None:
        """Only a process that joined later fences one. A supervisor sees to it that the seat has a process again."""
        assert isinstance(process.failure, FencedInstanceId), f"{process.name}: {process.failure}"
        assert self.last_joined[process.seat] is not process, f"{process.name} is fenced though nobody took its seat"
        self.fenced.append(process)
        self.after(1_000, lambda: self.relaunch(process.seat))

    def running(self) -> list[Process]:
        """The processes that run now."""
        return [p for p in self.processes if p.running]

    # ------------------------------------------------------------------------------------------------ checks

    def check(self, process: Process, *, changed: bool) -> None:
        """Assert the invariants after an event. `changed` says whether the process's identity or partitions changed."""
        machine = process.machine
        if machine.in_generation:
            assert machine.identity.generation > 0
            assert machine.settled == machine.partitions.at_rest, "stable is what owes nothing"
            assert machine.next_wakeup_at_ms() is not None, f"{process.name} holds without a timer"
        elif machine.state not in (State.LEAVING, State.CLOSED):
            assert not machine.owned, f"{process.name} holds, and is no member"
        if process.running and machine.in_generation:
            silent_ms = self.now_ms - process.confirmed_at_ms
            held_for_ms = process.config.session_timeout_ms + 2 * self._delay[1]
            assert silent_ms <= held_for_ms or process.paused, f"{process.name} holds after {silent_ms} ms"
        if self.named_within_ms is not None:
            self._named_in_time(process, self.named_within_ms)
        if changed:
            self._one_owner()

    def _named_in_time(self, process: Process, within_ms: int) -> None:
        if not process.machine.partitions.unnamed:
            process.nameless_since_ms = None
        elif process.nameless_since_ms is None:
            process.nameless_since_ms = self.now_ms
        else:
            nameless_ms = self.now_ms - process.nameless_since_ms
            assert nameless_ms <= within_ms, f"{process.name} has had no name of a topic for {nameless_ms} ms"

    def _one_owner(self) -> None:
        """No partition has two owners among the members that the coordinator has in the group, in any epoch."""
        owner: dict[TopicIdPartition, str] = {}
        for process in self.running():
            member = self.group.members.get(process.machine.identity.member_id)
            released = member is None or member.epoch < 0
            if released or not (process.machine.in_generation or process.machine.state is State.RESUMING):
                continue
            for each in process.machine.partitions.owned_by_id:
                other = owner.setdefault(each, process.name)
                assert other == process.name, f"{each.partition} is held by {other} and {process.name}"

    def lacking(self) -> str:
        """The conditions that a group lacks to be at rest, in words, or an empty string."""
        running = self.running()
        owned = [tp for p in running for tp in p.machine.owned]
        shares = [len(p.machine.owned) for p in running]
        members = self.group.members
        missing = {
            "one process a seat": len(running) != len(self.seats) or len(members) != len(self.seats),
            "settled": not all(p.machine.settled for p in running),
            "one epoch": {p.machine.identity.generation for p in running} != {self.group.epoch},
            "the coordinator's word": any(
                p.machine.identity.member_id not in members
                or members[p.machine.identity.member_id].assigned != p.machine.partitions.owned_by_id
                for p in running
            ),
            "each partition once": sorted(owned) != [TopicPartition(TOPIC, index) for index in range(self.count)],
            "balance": bool(shares) and max(shares) - min(shares) > 1,
        }
        return ", ".join(name for name, lacks in missing.items() if lacks)

    # ------------------------------------------------------------------------------------------------ faults

    def someone(self) -> Process | None:
        """Any process that runs."""
        running = self.running()
        return self.rng.choice(running) if running else None

    def break_network(self) -> None:
        """No request is answered, for up to two sessions."""
        self.broken = True
        self.after(self.rng.choice((100, 3_000, 20_000)), self.mend)

    def move_coordinator(self) -> None:
        """The coordinator is away for a while, and keeps its state."""
        self.moving = True
        self.after(self.rng.choice((50, 1_000, 6_000)), self.mend)

    def lose_messages(self) -> None:
        """Some requests, and some answers, are lost for a while."""
        self.loss = 0.3
        self.after(self.rng.randint(1_000, 15_000), self.mend)

    def mend(self) -> None:
        """End the faults of the network and of the coordinator."""
        self.broken = self.moving = False
        self.loss = 0.0
        for member in self.group.members.values():
            member.heard_at_ms = max(member.heard_at_ms, self.now_ms - 5_000)

    def pause(self) -> None:
        """SIGSTOP, for up to two sessions."""
        if (process := self.someone()) and not process.paused:
            process.paused = True
            self.after(self.rng.choice((50, 2_000, 8_000, 25_000)), lambda: self.resume(process))

    def resume(self, process: Process) -> None:
        """SIGCONT."""
        if process.paused:
            process.paused = False
            process.wake()
            process.drain()

    def kill(self) -> None:
        """SIGKILL, and a new process on the same seat some time later."""
        if process := self.someone():
            process.alive = False
            self.after(self.rng.choice((0, 200, 5_000, 25_000)), lambda: self.relaunch(process.seat))

    def kill_briefly(self) -> None:
        """SIGKILL, and a new process within the session."""
        if process := self.someone():
            process.alive = False
            self.after(self.rng.choice((0, 200, 3_000)), lambda: self.relaunch(process.seat))

    def close(self) -> None:
        """A process ends as it should, and another one comes."""
        if (process := self.someone()) and not process.paused:
            process.post(contract.Close())
            self.after(self.rng.choice((500, 5_000, 25_000)), lambda: self.relaunch(process.seat))

    def duplicate(self) -> None:
        """A second process takes a seat while the first is alive."""
        if (process := self.someone()) and process.config.instance_id is not None:
            self.launch(process.seat)

    def leave(self) -> None:
        """A member leaves for good. Later another process comes to its seat."""
        if (process := self.someone()) and not process.paused:
            process.post(contract.Leave(reason="the test says so"))
            self.after(self.rng.choice((5_000, 20_000)), lambda: self.relaunch(process.seat))

    def refuse_commit(self) -> None:
        """A commit is refused, rightly or not."""
        if process := self.someone():
            refused = contract.MembershipRefused(identity=process.machine.identity, error=ErrorCode.UNKNOWN_MEMBER_ID)
            if process.machine.state is not State.IDLE:
                process.post(refused)

    def grow(self) -> None:
        """The topic has more partitions."""
        if self.count < 30:
            more = self.rng.randint(1, 3)
            self.count += more
            self.brokers.grow(more)
            self.group.change_metadata(self._partitions())

    def create_anew(self) -> None:
        """The topic is deleted and created. Brokers say so a little later."""
        if self.brokers.may_create_anew:
            self.topic_id = UUID(int=self.topic_id.int + 1)
            self.group.change_metadata(self._partitions())
            self.after(self.rng.choice((0, 500, 4_000)), self._tell_topic_id)

    def _tell_topic_id(self) -> None:
        while self.brokers.topic.topic_id != self.topic_id:
            self.brokers.create_anew()

    def cut_off_a_broker(self) -> None:
        """One broker goes on answering metadata as of this moment, or knows no topic, as if it just started."""
        if self.brokers.is_one_behind or self.brokers.topic.topic_id != self.topic_id:
            return
        self.brokers.cut_off(self.rng.choice(sorted(NODES)), denies=self.rng.random() < 0.25)
        lasts_ms = self.rng.choice((500, 5_000, 40_000, None))
        if lasts_ms is not None:
            self.after(lasts_ms, self.brokers.catch_up)

    def make_peace(self) -> None:
        """No fault from now on, and those under way end."""
        self.at_peace = True
        self.mend()
        self._tell_topic_id()
        for process in list(self.processes):
            self.resume(process)
        for seat in self.seats:
            self.relaunch(seat)


def _short(value: object) -> str:
    """One line of the trace: partitions by their numbers, requests by their senders."""
    match value:
        case frozenset():
            return str(sorted(each.partition for each in value if hasattr(each, "partition")))
        case ConsumerHeartbeatRequest(identity=who, owned=owned):
            return f"{who.member_id[:4]}@{who.generation}{'' if owned is None else _short(owned)}"
        case MemberIdentity():
            return f"{value.member_id[:4]}@{value.generation}"
        case Enum():
            return str(value.value)
    names = getattr(value, "__dataclass_fields__", None)
    if names is None:
        return str(value)
    values = {name: getattr(value, name) for name in names}
    return f"{type(value).__name__}({', '.join(f'{n}={_short(v)}' for n, v in values.items() if v)})"
