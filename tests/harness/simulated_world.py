"""A world of members and one coordinator in virtual time: a network that fails, an application with boundaries.

Workload, faults and checks are apart: `Process` is one run of a seat as `runtime.session` would run it (timers before
events, one connection whose requests are answered in order, one `Connected` for each `Connect`), `MemberWorld` moves
time and messages, `simulated_faults` breaks things, `simulated_invariants` watches. Everything random comes from one
seed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from harness.model_conversion import Response
from harness.one_group import OneGroup
from harness.simulated_brokers import SimulatedBrokers, SimulatedClient
from harness.simulated_invariants import Invariants
from harness.simulated_story import is_heartbeat, short
from spark_kgroup.assignors.cooperative_sticky import add_claims
from spark_kgroup.coordinator.state import State as GroupState
from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.limits import API_TIMEOUT_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember, MemberConfig, PreviouslyOwned, State
from spark_kgroup.model import (
    DescribedGroup,
    DescribedMember,
    ErrorCode,
    TopicPartition,
)
from spark_kgroup.runtime.assignment_drift import find_drift, find_unshared, not_known_of
from spark_kgroup.wire.cluster import ClusterMetadata

TOPIC = "orders"
METADATA_MAX_AGE_MS = 2_000
RENAMES_EACH_MS = 1_000
REQUEST_TIMEOUT_MS = 5_000
LOOK_TIMEOUT_MS = 30_000
LEAVE_TIMEOUT_MS = 4_000
_MEMBERSHIP_OVER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


@dataclass(eq=False)
class Call:
    """One request on its way."""

    request: contract.Request
    answered: bool = False


@dataclass(eq=False)
class Connection:
    """One TCP connection: requests are answered in order, those behind a parked one wait (Kafka mutes the channel).

    Attributes:
        black_hole: no packet arrives any more, and neither end notices.
        outdated: it leads to a broker that is no longer the coordinator.

    """

    owner: Process
    open: bool = True
    black_hole: bool = False
    outdated: bool = False
    waiting: deque[Call] = field(default_factory=deque)
    current: Call | None = None


class Process:
    """One run of a seat: a fresh machine, its connection, its application."""

    def __init__(self, world: MemberWorld, name: str, config: MemberConfig, owned_before: PreviouslyOwned) -> None:
        claimed = owned_before if world.claims_previously_owned else PreviouslyOwned()
        self.world = world
        self.name = name
        self.config = config
        self.replaces = world.coordinator.member_id_of(config.instance_id)
        own_id = f"own-{len(world.processes):03}" if world.own_ids and config.instance_id is not None else ""
        own = replace(config, previously_owned=claimed, replaces=self.replaces, own_id=own_id)
        self.machine = ClassicMember(own, jitter=world.rng.random)
        self.previously_owned = owned_before.partitions
        self.adopted: frozenset[TopicPartition] = frozenset()
        """The partitions held at the last boundary. A partition that came later is in no checkpoint yet."""
        self.adopted_in = owned_before.generation
        self.alive = True
        self.paused = False
        self.connection: Connection | None = None
        self.client = SimulatedClient(world.brokers, world, paused=lambda: self.paused)
        self.snapshot: int | None = None
        self.look_due = False
        self._looking = False
        self._gone = frozenset[TopicPartition]()
        self.failure: Exception | None = None
        self.flapping = False
        self.dies_renaming = False
        self.word_given_at_ms = world.now_ms
        self.word_is_watched = False
        self.healthy_since_ms = world.now_ms
        self._inbox: deque[contract.Event] = deque()
        self._connecting = False
        self._wakes_at_ms: int | None = None
        self.post(contract.Join())
        world.after(world.rng.randrange(METADATA_MAX_AGE_MS), self._watch_metadata)
        world.after(world.next_boundary_in_ms(), self._boundary)
        if own_id:
            world.after(world.rng.randrange(RENAMES_EACH_MS), self._rename)

    @property
    def seat(self) -> str:
        """The name of its seat, which stays the same when a restart changes the configuration."""
        return self.name.partition("/")[0]

    @property
    def running(self) -> bool:
        """Alive and not ended: it may be reading its partitions."""
        return self.alive and self.machine.state is not State.CLOSED

    @property
    def unfinished(self) -> frozenset[TopicPartition]:
        """Partitions that it is reading, or that its next process will read again: no other member may own them."""
        return (self.machine.owned & self.adopted) | self.previously_owned

    def kill(self) -> None:
        """SIGKILL. The broker sees the connection end."""
        self.alive = False
        self.disconnect()

    def _die_renaming(self) -> None:
        """Die after the request is sent, and restart later.

        The request arrives before the next process is there: else it would fence that one, as a zombie's would.
        """
        self.world.log(f"FAULT {self.name} dies renaming")
        self.kill()
        self.world.after(self.world.rng.choice((500, 1_000, 3_000)), lambda: self.world.relaunch(self.seat))

    # --------------------------------------------------------------------------- as runtime.session does it

    def post(self, event: contract.Event) -> None:
        """Take the event, now or when the process goes on."""
        self._inbox.append(event)
        self._drain()

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT: timers that are due fire first, then the events that came meanwhile are taken."""
        self.paused = False
        self.on_trouble()
        self._wake()
        self._drain()

    def on_trouble(self) -> None:
        """A fault outside this process hits it just now."""
        self.healthy_since_ms = self.world.now_ms

    def _drain(self) -> None:
        while self._inbox and self.alive and not self.paused:
            event = self._inbox.popleft()
            self._take(contract.Tick())
            self._take(event)

    def _wake(self) -> None:
        self._wakes_at_ms = None
        due_at_ms = self.machine.next_wakeup_at_ms()
        if due_at_ms is None or not self.alive or self.paused:
            return
        if due_at_ms <= self.world.now_ms:
            self._take(contract.Tick())
        else:
            self._wake_when_due()

    def _take(self, event: contract.Event) -> None:
        before, identity_before = self.machine.owned, self.machine.identity
        if isinstance(event, contract.Connected):
            self.connection = Connection(self)
        elif isinstance(event, contract.ConnectionLost):
            self.connection = None
        effects = self.machine.handle(event, self.world.now_ms)
        if effects or not isinstance(event, contract.Tick):  # else no timer was due, and no state has changed
            if not isinstance(event, contract.Tick | contract.HeartbeatResponse) or not all(map(is_heartbeat, effects)):
                self.world.log(self.name, self.machine.state, event, "->", *effects)
            for effect in effects:
                self._carry_out(effect)
            self.world.invariants.after(self, event, effects, before, identity_before)
        self._wake_when_due()

    def _wake_when_due(self) -> None:
        """Have the next timer fire. A timer that is set already for an earlier instant looks again by itself."""
        due_at_ms = self.machine.next_wakeup_at_ms()
        if due_at_ms is not None and (self._wakes_at_ms is None or due_at_ms < self._wakes_at_ms):
            self._wakes_at_ms = due_at_ms
            self.world.at(due_at_ms, self._wake)

    def _carry_out(self, effect: contract.Effect) -> None:
        match effect:
            case contract.Send(request=contract.LeaveRequest() as request):
                self._leave(request)
            case contract.Look() | contract.LookAtSeat():
                connection = self.connection
                self.world.after(self.world.delay_ms(), lambda: self._perform_look(effect, connection))
            case contract.Send(request=request):
                assert self.connection is not None, f"{self.name} sends without a connection"
                self._send(self.connection, request)
            case contract.Connect():
                self.disconnect()
                if not self._connecting:
                    self._connecting = True
                    self.world.after(self.world.delay_ms(), self._connect)
            case contract.ComputeAssignment():
                self.world.after(self.world.delay_ms(), lambda: self._compute(effect))
            case contract.Lost():
                self.previously_owned = frozenset()
            case contract.Joined(rejoined=rejoined):
                self.snapshot = None
                self.look_due |= rejoined
            case contract.Failed(error=error):
                self.failure = error
                self.world.on_failed(self)
            case _:
                pass

    def _send(self, connection: Connection, request: contract.Request) -> None:
        parks = isinstance(request, contract.JoinRequest | contract.SyncRequest)
        timeout_ms = self.config.rebalance_timeout_ms + 5_000 if parks else REQUEST_TIMEOUT_MS
        call = Call(request)
        self.world.transmit(connection, call)
        if self.dies_renaming and isinstance(request, contract.RenameRequest):
            self.dies_renaming = False
            self.world.after(4 * self.world.delay_ms(), self._die_renaming)
        self.world.after(timeout_ms, lambda: None if call.answered else self.lose_connection(connection, "timeout"))

    def _perform_look(self, look: contract.Look | contract.LookAtSeat, connection: Connection | None) -> None:
        """Brokers name the coordinator. If our connection leads there, a heartbeat goes over another one.

        For a `LookAtSeat`, the coordinator names the member that has the seat.
        """
        if isinstance(look, contract.LookAtSeat):
            if self.world.answers:
                self.post(contract.SeatSeen(member_id=self.world.coordinator.member_id_of(self.config.instance_id)))
        elif not self.world.reachable or connection is None or connection is not self.connection:
            return
        elif connection.outdated:
            self.lose_connection(connection, "the coordinator moved")
        elif look.heartbeat is not None:
            self.world.transmit(Connection(self), Call(look.heartbeat))

    def _leave(self, request: contract.LeaveRequest) -> None:
        """Leave over a connection of its own, because a request may be parked on ours."""
        call = Call(request)
        self.world.transmit(Connection(self), call)
        unanswered = contract.LeaveResponse(request=request, error=ErrorCode.NETWORK_EXCEPTION)
        self.world.after(LEAVE_TIMEOUT_MS, lambda: None if call.answered else self.post(unanswered))

    def lose_connection(self, connection: Connection, reason: str) -> None:
        """The connection ends, and the process notices."""
        if connection.open and connection is self.connection and self.alive:
            connection.open = False
            self.on_trouble()
            self.post(contract.ConnectionLost(reason=reason))

    def disconnect(self) -> None:
        """Close our end."""
        if self.connection is not None:
            if self.connection.black_hole:  # the trouble lasted until now
                self.on_trouble()
            self.connection.open = False
            self.connection = None

    def _connect(self) -> None:
        if not self.running:
            return
        if not self.world.reachable or self.world.frozen or self.paused:
            self.world.after(200, self._connect)
            return
        self._connecting = False
        self.post(contract.Connected())

    def _compute(self, work: contract.ComputeAssignment, *, contradicted: bool = False) -> None:
        """As `runtime.classic_work.Leading` does it: with metadata of its own, while the generation waits for it."""

        def assign(found: ClusterMetadata | None) -> None:
            if found is None:
                self._compute(work)
                return
            if not contradicted and not_known_of(work.members, found.topics):
                self.client.doubt()
                self._compute(work, contradicted=True)
                return
            chosen = next(a for a in self.config.assignors if a.name == work.assignor)
            result = chosen.assign(work.members, found.topics)
            if hidden := found.unclear.keys() - found.topics.keys():
                result = add_claims(hidden, result, work.members)
            self.snapshot = count_in(found)
            self.world.invariants.on_assigning(self, work.members, self.snapshot)
            assignments = tuple(sorted(result.items()))
            self.post(contract.AssignmentComputed(generation=work.generation, assignments=assignments))

        wanted = partial(self._still_assigns, work.generation)
        self.client.look(assign, timeout_ms=API_TIMEOUT_MS, wanted=wanted)

    def _still_assigns(self, generation: int) -> bool:
        return self.running and self.machine.assigning_in == generation

    # --------------------------------------------------------------------------------------- the application

    def _watch_metadata(self) -> None:
        if not self.running:
            return
        self.world.after(METADATA_MAX_AGE_MS, self._watch_metadata)
        # A renamed member was told no leader, and the group's leader may not know that it leads (decision 72).
        if self.machine.in_generation and not self.machine.leader_id:
            self.look_due = True
        if self.machine.watched_topics and self.machine.state in (State.STABLE, State.REVOKING):
            self._look(self._compare)

    def _look(self, judge: Callable[[ClusterMetadata], None]) -> None:
        """As `runtime.metadata_watch` looks: once at a time, and without a conclusion about a later generation."""
        generation = self.machine.identity.generation

        def on_looked(found: ClusterMetadata | None) -> None:
            self._looking = False
            if found is not None and self.machine.in_generation and self.machine.identity.generation == generation:
                judge(found)

        if not self._looking and not self.paused:
            self._looking = True
            self.client.look(on_looked, timeout_ms=LOOK_TIMEOUT_MS, wanted=lambda: self.running)

    def _compare(self, found: ClusterMetadata) -> None:
        if self.snapshot is not None and self.machine.leader and TOPIC not in found.unclear:
            before, self.snapshot = self.snapshot, count_in(found)
            assert before <= self.snapshot, f"{self.name} takes partitions for gone: {before} -> {self.snapshot}"
            if before != self.snapshot:
                self.post(contract.RejoinWanted(reason="partitions were added"))

    def _rename(self) -> None:
        """While the seat has another member id: ask for our own when the group is at rest, and no member hands over."""
        group = self.world.coordinator
        if not self.running:
            return
        self.world.after(RENAMES_EACH_MS, self._rename)
        at_rest = group.phase is GroupState.STABLE and not group.renaming and self.world.answers and not self.paused
        member_id = self.machine.identity.member_id
        lacking = member_id != self.machine.config.own_id and member_id in group.members
        if not self.world.own_ids_in_company:
            lacking &= not self.adopted and set(group.members) == {member_id}
        if (
            lacking
            and at_rest
            and all(m.subscription(group.protocol).owned <= m.assignment for m in group.members.values())
        ):
            self.world.after(self.world.delay_ms(), lambda: self.post(contract.Rename()))

    def _boundary(self) -> None:
        """Between two batches: stop reading the partitions to give up, commit them, and report it some time later."""
        if not self.running:
            return
        self.world.after(self.world.next_boundary_in_ms(), self._boundary)
        if self.paused or not self.world.answers:
            return
        self._find_drift()
        going = self.machine.to_give_up
        if self.machine.state in (State.STABLE, State.REVOKING):
            self.previously_owned &= going  # the batch is read again and done
            self.adopted, self.adopted_in = self.machine.owned, self.machine.identity.generation
        if not going:
            return
        error = self.world.coordinator.commit(identity := self.machine.identity, self.world.now_ms)
        if error == ErrorCode.NONE:
            some = self.world.some_of(going)
            self.world.words_under_way += 1
            self.world.after(self.world.hand_over_delay_ms(), lambda: self._given_up(some))
        elif error in _MEMBERSHIP_OVER:
            self.world.after(
                self.world.delay_ms(), lambda: self.post(contract.MembershipRefused(identity=identity, error=error))
            )

    def _given_up(self, partitions: frozenset[TopicPartition]) -> None:
        self.world.words_under_way -= 1
        self.previously_owned -= partitions
        self.post(contract.GaveUp(partitions=partitions))

    def _find_drift(self) -> None:
        """After a static rejoin: a partition without an owner needs one rebalance.

        So does a member without a share if the assignor would give it one (`runtime.assignment_drift`). Without this
        check, 1. a new member joins, 2. brokers convert the group to rename another member, and end the rebalance,
        3. the new member joins again, gets no partition, and no other member sees a reason to rebalance.
        """
        if self.look_due and self.world.coordinator.phase is GroupState.STABLE and self.machine.state is State.STABLE:
            self._look(self._judge)

    def _judge(self, found: ClusterMetadata) -> None:
        if self.world.coordinator.phase is not GroupState.STABLE or self.machine.state is not State.STABLE:
            return
        group = self.world.described()
        drift = find_drift(group, found.topics, hidden=found.unclear.keys())
        # As in the product: partitions that two looks in a row do not find, the second one at another broker.
        gone, self._gone = drift.gone & self._gone, drift.gone
        assert not gone, f"{self.name} takes partitions for gone: {short(gone)}"
        if drift.gone:
            self.client.doubt()
            return
        self.look_due, self.snapshot = False, count_in(found)
        if drift.without_owner:
            self.post(contract.RejoinWanted(reason="a partition has no owner"))
        elif find_unshared(group, found.topics):
            self.post(contract.RejoinWanted(reason="subscribed without a share"))


def count_in(found: ClusterMetadata) -> int:
    """How many partitions the topic has by these metadata, 0 if it is not there."""
    return found.topics[TOPIC].partition_count if TOPIC in found.topics else 0


class MemberWorld:
    """Time, messages, the coordinator, and every process that ever ran.

    Args:
        seats: name -> the configuration of its member. One process of each seat runs when the world is at peace.
        boundary_ms: shortest and longest time between two boundaries.
        delay_ms: shortest and longest time that a message takes.
        claims_previously_owned: a new process of a seat claims the partitions that the last one was reading.
        own_ids: each process of a static seat asks for a member id of its own.
        own_ids_in_company: also after its first boundary, and while the group has other members: two members may own a
            partition for a moment then (decision 72).

    """

    def __init__(
        self,
        seed: int,
        seats: dict[str, MemberConfig],
        *,
        partitions: int,
        boundary_ms: tuple[int, int],
        delay_ms: tuple[int, int],
        claims_previously_owned: bool = False,
        own_ids: bool = False,
        own_ids_in_company: bool = True,
    ) -> None:
        self.own_ids = own_ids
        self.own_ids_in_company = own_ids and own_ids_in_company
        self.rng = Random(seed)
        self.now_ms = 1_000
        self.coordinator = OneGroup()
        self.reachable = True
        self.loading = False
        self.frozen = False
        self.at_peace = False
        self.brokers = SimulatedBrokers(seed, TOPIC, partitions)
        self.words_under_way = 0
        self.seats = seats
        self.claims_previously_owned = claims_previously_owned
        self.processes: list[Process] = []
        self.invariants = Invariants(self)
        self._boundary_ms = boundary_ms
        self._delay_ms = delay_ms
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._tick_at_ms: int | None = None
        self._held_up: list[Connection] = []
        self._trace: deque[tuple[int, tuple[object, ...]]] = deque(maxlen=150)
        for name in seats:
            self.launch(name)

    # ------------------------------------------------------------------------------------------------ time

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        """Do `action` at an instant."""
        self._order += 1
        heapq.heappush(self._agenda, (max(at_ms, self.now_ms), self._order, action))

    def after(self, wait_ms: int, action: Callable[[], None]) -> None:
        """Do `action` later."""
        self.at(self.now_ms + wait_ms, action)

    def run_for(self, duration_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + duration_ms
        while self._agenda and self._agenda[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._agenda)
            action()
        self.now_ms = end_ms

    def _schedule_coordinator(self) -> None:
        """Have the coordinator's next deadline fire. Call it AFTER each step that may have set a deadline."""
        due_at_ms = None if self.frozen else self.coordinator.next_wakeup_at_ms()
        if due_at_ms is not None and (self._tick_at_ms is None or due_at_ms < self._tick_at_ms):
            self._tick_at_ms = due_at_ms
            self.at(due_at_ms, self._tick_coordinator)

    def _tick_coordinator(self) -> None:
        self._tick_at_ms = None
        if not self.frozen:
            self.coordinator.tick(self.now_ms)
            self._schedule_coordinator()

    def log(self, *words: object) -> None:
        """Remember `words` for the message of a failure. Only a failure turns them into text."""
        self._trace.append((self.now_ms, words))

    def story(self) -> str:
        """The last events, for the message of a failure."""
        return "\n".join(f"{at_ms:>8} {' '.join(map(short, words))}" for at_ms, words in self._trace)

    # --------------------------------------------------------------------------------------------- messages

    def transmit(self, connection: Connection, call: Call) -> None:
        """Carry a request over. One on a connection that just broke may arrive all the same."""
        arrives_late = self.rng.random() < 0.5

        def arrive() -> None:
            cut_off = not connection.open and (connection.owner.connection is not None or not arrives_late)
            if self.reachable and not connection.black_hole and not cut_off:
                connection.waiting.append(call)
                self._serve(connection)

        self.after(self.delay_ms(), arrive)

    def _serve(self, connection: Connection) -> None:
        if self.frozen:
            self._held_up.append(connection)
            return
        if connection.current is not None or not connection.waiting:
            return
        call = connection.current = connection.waiting.popleft()

        def reply(response: Response) -> None:
            given_at_ms = self.now_ms
            self.after(self.delay_ms(), lambda: self._deliver(connection, call, response, given_at_ms))
            if connection.current is call:
                connection.current = None
                self.after(0, lambda: self._serve(connection))

        if not isinstance(call.request, contract.HeartbeatRequest):
            self.log("coordinator", self.coordinator.phase, self.coordinator.generation, call.request)
        if connection.outdated or self.loading:
            error = ErrorCode.NOT_COORDINATOR if connection.outdated else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            reply(refusal(call.request, error))
            return
        self.invariants.on_request(connection.owner, call.request)
        self.coordinator.receive(call.request, connection.owner.config, reply, self.now_ms)
        self._schedule_coordinator()
        if connection.owner.flapping and isinstance(call.request, contract.JoinRequest):
            self.after(self.rng.randint(1, 500), lambda: connection.owner.lose_connection(connection, "flapping"))

    def _deliver(self, connection: Connection, call: Call, response: Response, given_at_ms: int) -> None:
        if connection.open and self.reachable and not connection.black_hole:
            call.answered = True
            self.invariants.word(connection.owner, response, given_at_ms)
            connection.owner.post(response)

    def load_anew(self) -> None:
        """The coordinator goes by its persisted records, and counts every session from now on."""
        self.coordinator.fail_over(self.now_ms)
        self._schedule_coordinator()
        self.invariants.on_forgotten()

    def fail_over(self) -> None:
        """Another broker coordinates from now on. The old one answers NOT_COORDINATOR or is gone."""
        self.log("FAULT fail-over")
        self.load_anew()
        for process in self.processes:
            connection = process.connection
            process.on_trouble()
            if connection is None:
                continue
            if self.rng.random() < 0.5:
                process.lose_connection(connection, "broker died")
                continue
            connection.outdated = True
            if call := connection.current:
                connection.current = None
                self._deliver(connection, call, refusal(call.request, ErrorCode.NOT_COORDINATOR), self.now_ms)
                self._serve(connection)

    @property
    def answers(self) -> bool:
        """Whether the coordinator answers requests now."""
        return self.reachable and not self.frozen and not self.loading

    def freeze(self) -> None:
        """The coordinator's broker stops (SIGSTOP): its kernel still accepts requests, and none is answered."""
        self.log("FAULT freeze")
        self.frozen = True
        for process in self.processes:
            process.on_trouble()

    def thaw(self) -> None:
        """The broker goes on where it stopped: first the deadlines that are due, then the requests sent meanwhile."""
        if not self.frozen:
            return
        self.log("FAULT thaw")
        self.frozen = False
        for process in self.processes:
            process.on_trouble()
        self.coordinator.tick(self.now_ms)
        self._schedule_coordinator()
        held_up, self._held_up = self._held_up, []
        for connection in held_up:
            self._serve(connection)

    def take_over(self) -> None:
        """Another broker coordinates, and the old one stays frozen: requests on its connections are never answered."""
        if not self.frozen:
            return
        self.log("FAULT take-over")
        self.frozen = False
        for connection in (*self._held_up, *(p.connection for p in self.processes if p.connection)):
            connection.black_hole = connection.outdated = True
        self._held_up.clear()
        self.load_anew()
        for process in self.processes:
            process.on_trouble()

    def delay_ms(self) -> int:
        """One way through the network, or a short piece of work."""
        return self.rng.randint(*self._delay_ms)

    # -------------------------------------------------------------------------------------- what members see

    @property
    def partition_count(self) -> int:
        """Of the topic, by brokers that are not behind."""
        return self.brokers.topic.partition_count

    def described(self) -> DescribedGroup:
        """DescribeGroups, of the group at rest."""
        members = tuple(
            DescribedMember(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id="",
                client_host="",
                assignment=member.assignment,
                subscription=member.subscription(self.coordinator.protocol),
            )
            for member_id, member in self.coordinator.members.items()
        )
        return DescribedGroup(group="g", state="Stable", protocol=self.coordinator.protocol, members=members)

    def partitions(self) -> frozenset[TopicPartition]:
        """All partitions, each of which must have an owner."""
        return frozenset(TopicPartition(TOPIC, index) for index in range(self.partition_count))

    def next_boundary_in_ms(self) -> int:
        """How long the next batch takes."""
        return self.rng.randint(*self._boundary_ms)

    def hand_over_delay_ms(self) -> int:
        """From the decision to give up, over the commit, to the machine's hearing of it."""
        return self.rng.choice((0, 5, 50, 500))

    def some_of(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """All, or now and then a part: commits may be acknowledged for some partitions only."""
        if self.at_peace or self.rng.random() < 0.7:
            return partitions
        return frozenset(tp for tp in sorted(partitions) if self.rng.random() < 0.5)

    # ------------------------------------------------------------------------------------------- processes

    def launch(self, name: str) -> None:
        """Start a new process on a seat, even if another one runs there."""
        config = self.seats[name]
        self.processes.append(Process(self, f"{name}/{len(self.processes)}", config, self._owned_before(name)))

    def _owned_before(self, name: str) -> PreviouslyOwned:
        """The partitions that the last process of a seat left unfinished, if the group still keeps the seat."""
        config = self.seats[name]
        last = next((p for p in reversed(self.processes) if p.seat == name), None)
        kept = any(m.instance_id == config.instance_id for m in self.coordinator.members.values())
        if last is None or not kept or config.instance_id is None:
            return PreviouslyOwned()
        return PreviouslyOwned(partitions=last.unfinished, generation=last.adopted_in)

    def relaunch(self, name: str) -> None:
        """Start a process on a seat that has none."""
        if not any(self.of_seat(name)):
            self.launch(name)

    def of_seat(self, name: str) -> Iterator[Process]:
        """The running processes of a seat, oldest first."""
        return (p for p in self.processes if p.running and p.seat == name)

    def on_failed(self, process: Process) -> None:
        """A machine ended with an error: a supervisor starts another one unless a newer one runs."""
        assert isinstance(process.failure, FencedInstanceId), f"{process.name}: {process.failure}"
        self.invariants.on_fenced(process)
        self.after(1_000, lambda: self.relaunch(process.seat))


def refusal(request: contract.Request, error: int) -> Response:
    """The answer of a broker that will not even look at the request."""
    match request:
        case contract.JoinRequest():
            return contract.JoinResponse(request=request, error=error)
        case contract.SyncRequest():
            return contract.SyncResponse(request=request, error=error)
        case contract.HeartbeatRequest():
            return contract.HeartbeatResponse(request=request, error=error)
        case contract.RenameRequest():
            return contract.RenameResponse(request=request, error=error)
        case contract.LeaveRequest():
            return contract.LeaveResponse(request=request, error=error)
