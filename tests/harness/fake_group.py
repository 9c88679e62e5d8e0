"""A small group as the boundary sees it: the same calls as `GroupRuntime`, no socket, no clock.

The broker's half is a real coordinator (`OneGroup`). The seats' half is the partitions that each seat believes to hold,
as in life: a seat may not know yet that it was expelled. One other application is a member of the group. It reads,
commits and hands over like a good neighbour. All members are scripted: the group's leader assigns the partitions as the
test says (`target`). Messages take no time, and time ends no session. Rebalances are cooperative (KIP-429): a partition
that a member still claims is withheld for a generation, and handing it over needs a further one.

Every commit is checked (`_check_commit`), and every giving up. A call that breaks a promise raises `Violation` at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from uuid import UUID

from harness.fake_leaders import FakeLeaders, OldLeader
from harness.fake_listing import FakeListing, no_leader, unstable
from harness.model_conversion import ConvertedMember, Response
from harness.one_group import Member, OneGroup
from spark_kgroup.coordinator.state import State
from spark_kgroup.errors import UnknownTopic
from spark_kgroup.limits import TOPIC_GONE_AFTER_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import MemberConfig, PreviouslyOwned
from spark_kgroup.model import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    DescribedGroup,
    DescribedMember,
    ErrorCode,
    GroupMember,
    MemberIdentity,
    Subscription,
    TopicDescription,
    TopicPartition,
)
from spark_kgroup.runtime.assignment_drift import AssignmentDrift, find_drift
from spark_kgroup.runtime.previously_owned import claimable
from spark_kgroup.runtime.views import GroupView, SeatCommit, SeatView
from spark_kgroup.seat_note import Author
from spark_kgroup.wire.listing import Answers
from spark_kgroup.wire.responses import CommittedOffset
from spark_kgroup.wire.witnesses import NamedLeader

OTHER = "other"
PROTOCOL = "cooperative-sticky"
PATIENCE_MS = 10**9
"""Session and rebalance timeout of every member: the test says when a session is over."""
WAIT_STEP_MS = 10
COMMITS_PER_INSTANT_MAX = 100


class Violation(AssertionError):
    """An event that the promises forbid (docs/explain/promises.md)."""


@dataclass
class Seat:
    """One of our static members: its own beliefs, which the coordinator may not share."""

    instance_id: str
    identity: MemberIdentity
    owned_since: dict[TopicPartition, MemberIdentity] = field(default_factory=dict)
    to_give_up: frozenset[TopicPartition] = frozenset()
    previously_owned: frozenset[TopicPartition] = frozenset()
    """Partitions of an earlier process, claimed until they are given up or assigned again."""
    trouble: str | None = None

    @property
    def claims(self) -> frozenset[TopicPartition]:
        return self.previously_owned | self.owned_since.keys()

    def learn(self, share: frozenset[TopicPartition]) -> None:
        """The group has assigned `share` in the generation of `identity`."""
        self.owned_since |= dict.fromkeys(share - self.owned_since.keys(), self.identity)
        self.previously_owned -= share
        self.to_give_up = self.claims - share

    def view(self) -> SeatView:
        return SeatView(
            instance_id=self.instance_id,
            identity=self.identity,
            owned_since=MappingProxyType(dict(self.owned_since)),
            to_give_up=self.to_give_up,
            settled=not self.to_give_up,
            leader=False,
            trouble=self.trouble,
        )


def _idle() -> None:
    """The default of `meanwhile`: the world does not change."""


def _nobody(instance_id: str) -> MemberIdentity:
    """The identity of a client that is not a member yet, or no longer."""
    return MemberIdentity(instance_id=instance_id, member_id=UNKNOWN_MEMBER_ID, generation=NO_GENERATION)


@cache
def _config(instance_id: str) -> MemberConfig:
    """The settings of a member that its messages do not carry."""
    return MemberConfig(
        group="g",
        instance_id=instance_id,
        topics=(),
        assignors=(),
        session_timeout_ms=PATIENCE_MS,
        rebalance_timeout_ms=PATIENCE_MS,
    )


class FakeLogs:
    """Where the logs of a `FakeGroup` begin and end."""

    def __init__(self, group: FakeGroup) -> None:
        self._group = group

    def begin_ends(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> FakeListing:
        return FakeListing(
            partitions,
            lambda left, patience_ms: self.ends(left, patience_ms, read_committed=read_committed),
            lambda: self._group.now_ms,
        )

    def ends(self, partitions: Iterable[TopicPartition], patience_ms: int = 0, *, read_committed: bool) -> Answers[int]:
        listed = self._listed(partitions, patience_ms)
        ends = {tp: end for tp, (_, end) in listed.found.items()}
        last = {tp: min(end, self._group.stable.get(tp, end)) if read_committed else end for tp, end in ends.items()}
        return Answers(last, listed.unanswered)

    def starts(self, partitions: Iterable[TopicPartition], patience_ms: int = 0) -> Answers[int]:
        listed = self._listed(partitions, patience_ms)
        return Answers({tp: start for tp, (start, _) in listed.found.items()}, listed.unanswered)

    def at(
        self, timestamps: Mapping[TopicPartition, int], patience_ms: int = 0, *, read_committed: bool
    ) -> Answers[int]:
        """The record at offset n is of the n-th second of 1970."""
        ends = self.ends(timestamps, patience_ms, read_committed=read_committed)
        found = {tp: max(self._group.log[tp][0], -(-timestamps[tp] // 1000)) for tp in ends.found}
        return Answers({tp: at for tp, at in found.items() if at < ends.found[tp]}, ends.unanswered)

    def _listed(self, partitions: Iterable[TopicPartition], patience_ms: int) -> Answers[tuple[int, int]]:
        self._group.meanwhile()
        wanted = list(partitions)
        if any(self._group.is_out_of_reach(tp) for tp in wanted):
            self._group.now_ms += patience_ms
        found = {}
        for tp in wanted:
            if tp not in self._group.log:
                self._group.now_ms += TOPIC_GONE_AFTER_MS
                raise UnknownTopic(f"{tp} does not exist (any more), or this user may not see it.")
            if not self._group.is_out_of_reach(tp):
                found[tp] = self._group.ask_leader(tp)
        return Answers(found, {tp: no_leader(tp) for tp in wanted if tp not in found})

    def ranges(
        self, partitions: Iterable[TopicPartition], patience_ms: int = 0, *, read_committed: bool
    ) -> Answers[tuple[int, int, int]]:
        ends = self.ends(partitions, patience_ms, read_committed=read_committed)
        ranges = {}
        for tp, end in ends.found.items():
            old = self._group.leaders.old(tp)
            start, epoch = (old.log[0], old.epoch) if old else (self._group.log[tp][0], self._group.epoch(tp))
            ranges[tp] = (start, end, epoch)
        return Answers(ranges, ends.unanswered)

    def ask_another_broker(
        self, partitions: Iterable[TopicPartition], _patience_ms: int = 0
    ) -> Mapping[TopicPartition, Sequence[NamedLeader]]:
        self._group.meanwhile()
        leaders = self._group.leaders
        if leaders.cut_off:
            return {tp: leaders.ask_another_broker(tp, self._group.epoch(tp)) for tp in partitions}
        return dict.fromkeys(partitions, self._group.another_broker())


class FakeGroup:
    """One group with `seats` of ours and one other application. Single-threaded. Time passes only where a call waits.

    Attributes:
        target: partition -> the member that shall own it after the next rebalances. An absent partition gets no owner.
        subscribed: the topics that our seats subscribe to. The other application takes all other topics.
        meanwhile: called inside every call of the runtime: the world does not stand still while the boundary asks.
        another_broker: called when leaders are looked up at another broker than the one that named them: the leader as
            it was named before, and as it is named now. By default no broker says who it is.
        leaders: those that are cut off and go on answering (`cut_off_leader`).
        commit_fate: the fate of the next commit of a seat: "ok", "lost" (not carried out), "unheard" (carried out,
            the answer is lost) or "refused".
        stable: last stable offset of partitions with an open transaction.
        unstable: partitions whose committed offset is in a transaction that is not ended (KIP-447).
        taken_unstable: partitions that the other application was given meanwhile, and where it began (an exception of
            promises.md).
        out_of_reach: partition -> whether no leader answers for it now.
        rewinds: partitions whose committed offset may go back, because an explicit `startingOffsets` says so.
        checkpoint_set_back: whether a committed offset that our seats wrote may go back.
        bounds_ms: how long each look at the group or its offsets may take, None for the default.
        cluster: the id of the cluster, or None if brokers do not say it.
        author: the author that our seats write beside their committed offsets. All other commits have no author.
        away: our driver is dead. The group waits for its seats, until their session is over (`expel`): a rebalance
            begins, and ends when they are back.
        old: seats that our driver came back without. Their partitions stay theirs, and a rebalance waits for them,
            until they are made to leave or their session is over.
    """

    def __init__(self, topics: Mapping[str, int], seats: int = 1) -> None:
        self.now_ms = 1_000
        self.coordinator = OneGroup(initial_delay_ms=0)
        self.ids = 0
        self.topics_now: dict[str, TopicDescription] = {}
        self.log: dict[TopicPartition, list[int]] = {}
        self.logs = FakeLogs(self)
        self.leaders = FakeLeaders()
        self.target: dict[TopicPartition, str] = {}
        self.other: dict[TopicPartition, int] = {}
        self.other_read: list[tuple[TopicPartition, int, int]] = []
        self.stable: dict[TopicPartition, int] = {}
        self.out_of_reach: dict[TopicPartition, Callable[[], bool]] = {}
        self.unstable: set[TopicPartition] = set()
        self.taken_unstable: set[tuple[TopicPartition, int]] = set()
        self.rewinds: set[TopicPartition] = set()
        self.checkpoint_set_back = False
        self.bounds_ms: list[int | None] = []
        self.cluster: str | None = "ours"
        self.author = Author(app="seat")
        self._notes: dict[TopicPartition, CommittedOffset] = {}
        self.meanwhile: Callable[[], None] = _idle
        self.another_broker: Callable[[], Sequence[NamedLeader]] = tuple
        self.commit_fate: Callable[[], str] = lambda: "ok"
        self.held: AssignmentDrift | None = None
        self.forced: list[str] = []
        self.state = "Stable"
        self.group_type = "classic"
        self.away = False
        self.old: set[str] = set()
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self._asked: list[int] = []
        self._mailbox: list[tuple[Seat, frozenset[TopicPartition]]] = []
        self._seen_topics: tuple[dict[str, TopicDescription], int] = ({}, -(10**9))
        self.subscribed = tuple(topics)
        for name, count in topics.items():
            self.create_topic(name, count)
        names = [f"seat-{k}" for k in range(seats)]
        self.seats = {name: Seat(name, _nobody(name)) for name in names}
        self.look_due = True
        self._other = _nobody(OTHER)
        self._joins = 0
        self._awaited: dict[str, contract.Request] = {}
        self._answers: deque[tuple[str, Response]] = deque()
        self.spread(names)

    # --------------------------------------------------------------------------------- the world, for tests

    @property
    def instance_ids(self) -> tuple[str, ...]:
        return tuple(self.seats)

    @property
    def generation(self) -> int:
        return self.coordinator.generation

    @property
    def committed_now(self) -> dict[TopicPartition, int]:
        return self.coordinator.committed

    @committed_now.setter
    def committed_now(self, offsets: dict[TopicPartition, int]) -> None:
        self.coordinator.committed = offsets

    @property
    def assigned(self) -> dict[TopicPartition, str]:
        """The coordinator's assignments: partition -> instance id of the owner."""
        members = self.coordinator.members.values()
        return {tp: str(member.instance_id) for member in members for tp in member.assignment}

    def unassign(self, tp: TopicPartition) -> None:
        """The coordinator takes the partition from its owner, and tells no member."""
        for member in self.coordinator.members.values():
            member.assignment -= {tp}

    def is_expelled(self, seat: Seat) -> bool:
        """Whether the coordinator has no member for the seat, which the seat may not know yet."""
        return self.coordinator.static(seat.instance_id) is None

    def create_topic(self, name: str, count: int) -> None:
        """A new topic, also in place of an old one: its records and committed offsets are gone."""
        self.ids += 1
        for table in (self.log, self.committed_now, self.other):
            for tp in [tp for tp in table if tp.topic == name]:
                del table[tp]
        epochs = dict.fromkeys(range(count), 0)
        self.topics_now[name] = TopicDescription(
            name=name, topic_id=UUID(int=self.ids << 96), partition_count=count, leader_epochs=epochs
        )
        self.log |= {tp: [0, 0] for tp in self.topics_now[name].partitions}

    def delete_topic(self, name: str) -> None:
        """A topic is gone, with its records and committed offsets. The group has not rebalanced yet."""
        del self.topics_now[name]
        for table in (self.log, self.committed_now, self.other, self.target):
            for tp in [tp for tp in table if tp.topic == name]:
                del table[tp]

    def add_partition(self, name: str) -> TopicPartition:
        old = self.topics_now[name]
        self.topics_now[name] = TopicDescription(
            name=name,
            topic_id=old.topic_id,
            partition_count=old.partition_count + 1,
            leader_epochs={**old.leader_epochs, old.partition_count: 0},
        )
        tp = TopicPartition(name, old.partition_count)
        self.log[tp] = [0, 0]
        return tp

    def elect(self, tp: TopicPartition) -> None:
        """The partition has another leader from now on."""
        topic = self.topics_now[tp.topic]
        epochs = {**topic.leader_epochs, tp.partition: self.epoch(tp) + 1}
        self.topics_now[tp.topic] = replace(topic, leader_epochs=epochs)

    def cut_off_leader(self, tp: TopicPartition, words: list[str]) -> None:
        """The leader goes on answering as of now, and the partition has another one. See `OldLeader`."""
        self.leaders.cut_off[tp] = OldLeader(self.epoch(tp), (self.log[tp][0], self.log[tp][1]), self.now_ms, words)
        self.elect(tp)

    def ask_leader(self, tp: TopicPartition) -> tuple[int, int]:
        """Where the log begins and ends by the leader that our client asks."""
        if (old := self.leaders.old(tp)) is not None:
            return old.log
        self.leaders.hear(tp, self.epoch(tp))
        return self.log[tp][0], self.log[tp][1]

    def forget_epochs(self) -> None:
        """From now on brokers give no leader epochs."""
        self.topics_now = {name: replace(topic, leader_epochs={}) for name, topic in self.topics_now.items()}

    def produce(self, tp: TopicPartition, count: int) -> None:
        self.log[tp][1] += count

    def spread(self, members: list[str]) -> None:
        """Deal all partitions out to `members` and rebalance."""
        self.target = {tp: members[i % len(members)] for i, tp in enumerate(sorted(self.log))} if members else {}
        self.rebalance()

    def move(self, tp: TopicPartition, member: str) -> None:
        self.target[tp] = member
        self.rebalance()

    def rebalance(self) -> None:
        """One generation: each member joins with its claims, and learns its share.

        If it has to wait for seats without a driver, it only begins here, and the next call goes on with it.
        """
        under_way = self.rebalancing
        self._deliver()
        if under_way and not self.rebalancing:
            return  # the seats that it waited for have left the group
        for name in self._present():
            member = self.coordinator.static(name)
            joined = member is not None and member.joined
            if member is None or not joined or member.subscription(PROTOCOL).owned != self._claims(name):
                self._join(name)
        if self.coordinator.phase is State.PREPARING_REBALANCE and not self.generation:
            self.coordinator.tick(self.now_ms)  # the first generation waits for further members (KIP-134)
        self._deliver()

    def _present(self) -> list[str]:
        """The members that join a rebalance: all but seats that do not know yet that they were expelled."""
        seats = [] if self.away else self.seats.values()
        there = [s.instance_id for s in seats if not s.identity.member_id or not self.is_expelled(s)]
        return [*there, OTHER]

    def _claims(self, name: str) -> frozenset[TopicPartition]:
        return frozenset(self.other) if name == OTHER else self.seats[name].claims

    def _join(self, name: str) -> None:
        self._joins += 1
        subscription = Subscription(
            topics=tuple(sorted({tp.topic for tp in self.log})) if name == OTHER else self.subscribed,
            owned=self._claims(name),
            user_data=str(self._joins).encode(),  # no two joins are equal, so each of a member begins a rebalance
        )
        identity = self._other if name == OTHER else self.seats[name].identity
        self._ask(name, contract.JoinRequest(identity=identity, protocols=((PROTOCOL, subscription),), reason=""))

    def _ask(self, name: str, request: contract.Request) -> None:
        self._awaited[name] = request
        self.coordinator.receive(
            request, _config(name), lambda answer: self._answers.append((name, answer)), self.now_ms
        )

    def _deliver(self) -> None:
        """The coordinator's answers arrive, and the answers to requests that they lead to."""
        while self._answers:
            name, answer = self._answers.popleft()
            if self._awaited.get(name) is not answer.request:
                continue  # the member does not wait for this answer any more
            match answer:
                case contract.JoinResponse(error=ErrorCode.NONE):
                    self._on_joined(name, answer)
                case contract.SyncResponse(error=ErrorCode.NONE):
                    self._on_assigned(name, answer.assignment)
                case contract.SyncResponse(error=ErrorCode.REBALANCE_IN_PROGRESS):
                    self._join(name)
                case _:
                    raise AssertionError(f"{name} cannot be answered {answer}")

    def _on_joined(self, name: str, answer: contract.JoinResponse) -> None:
        identity = MemberIdentity(instance_id=name, member_id=answer.member_id, generation=answer.generation)
        if name == OTHER:
            self._other = identity
        else:
            self.seats[name].identity = identity
        leads = answer.leader == answer.member_id and not answer.skip_assignment
        shares = self._deal(answer.members) if leads else ()
        self._ask(name, contract.SyncRequest(identity=identity, protocol=PROTOCOL, assignments=shares))

    def _deal(self, members: Iterable[GroupMember]) -> contract.Assignments:
        """The leader assigns as the test says, except partitions that another member claims."""
        ids = {str(member.instance_id): member.member_id for member in members}
        claims = {tp: str(member.instance_id) for member in members for tp in member.subscription.owned}
        claims |= {tp: name for name, seat in self.seats.items() if name in ids for tp in seat.owned_since}
        claims |= dict.fromkeys(self.other, OTHER)  # assigned to it after the last process of a seat had owned them
        shares: dict[str, set[TopicPartition]] = {name: set() for name in ids}
        for tp, wanted in self.target.items():
            name = wanted if tp.topic in self.subscribed else OTHER
            if tp in self.log and name in ids and claims.get(tp, name) == name:
                shares[name].add(tp)
        return tuple((ids[name], frozenset(share)) for name, share in shares.items())

    def _on_assigned(self, name: str, share: frozenset[TopicPartition]) -> None:
        if name != OTHER:
            self.seats[name].learn(share)
            return
        for tp in share - self.other.keys():
            self.other[tp] = self.committed_now.get(tp, self.log[tp][0])
            if tp in self.unstable:
                self.taken_unstable.add((tp, self.other[tp]))

    def convert(self, takes: TopicPartition) -> None:
        """A member with `group.protocol=consumer` joins: brokers forget the claims, and it gets `takes` at once."""
        self.group_type = "consumer"
        assert takes not in self.assigned, "only what is withheld has no owner"
        self.target[takes] = OTHER
        neighbour = self.coordinator.members[self._other.member_id]
        neighbour.assignment |= {takes}
        self.other[takes] = self.committed_now.get(takes, self.log[takes][0])

    def other_reads(self, tp: TopicPartition, count: int) -> None:
        """The other application reads and commits at once."""
        first = self.other[tp]
        last = min(first + count, self.log[tp][1])
        if last > first:
            self.other_read.append((tp, first, last))
            self.other[tp] = self.committed_now[tp] = last

    def other_gives_up(self) -> None:
        """The other application has come to its own boundary."""
        asked = self.other.keys() - self.coordinator.members[self._other.member_id].assignment
        for tp in asked:
            self.committed_now.setdefault(tp, self.other[tp])
            del self.other[tp]
        if asked:
            self.rebalance()

    def expel(self, name: str) -> None:
        """The session of a seat is over. The seat does not know yet, and its partitions have no owner."""
        if self.seats[name].identity.generation == NO_GENERATION:
            return  # a seat that waits for the end of a rebalance is not expelled meanwhile
        self.coordinator.remove_static([name], self.now_ms)

    def notice(self, name: str) -> None:
        """An expelled seat hears of it, drops all, and joins anew."""
        seat = self.seats[name]
        seat.owned_since, seat.to_give_up, seat.previously_owned = {}, frozenset(), frozenset()
        seat.identity = _nobody(name)
        self._mailbox = [(s, tps) for s, tps in self._mailbox if s is not seat]
        self.look_due = True
        self.rebalance()

    def die(self) -> None:
        """Our driver is dead, and the broker does not know."""
        self.away = True
        self._mailbox.clear()
        for seat in self.seats.values():
            seat.owned_since, seat.to_give_up, seat.previously_owned = {}, frozenset(), frozenset()
            self._awaited.pop(seat.instance_id, None)

    def restart(self, previously_owned: Mapping[str, PreviouslyOwned], seats: int | None = None) -> None:
        """Our driver is new: every seat rejoins without a member id (KIP-345), and claims the partitions it inherits.

        A seat learns its assignment at once, or, if the group has waited for it, takes part in the next generation.
        """
        if not self.away:
            self.die()
        self.away = False
        self.leaders.begin_process(self.epoch, self.now_ms)
        self._seen_topics = ({}, -(10**9))
        if seats is not None:
            self._resize([f"seat-{k}" for k in range(seats)])
        joins_anew = [seat for seat in self.seats.values() if self.is_expelled(seat)]
        found = claimable(previously_owned, self._described(), list(self.seats))
        for seat in self.seats.values():
            if seat not in joins_anew and seat.instance_id in found:  # else the group keeps no partition for it
                seat.previously_owned = found[seat.instance_id].partitions
            seat.identity = _nobody(seat.instance_id)
        for seat in (*joins_anew, *(seat for seat in self.seats.values() if seat not in joins_anew)):
            self._join(seat.instance_id)
        self._deliver()
        if self.rebalancing:
            self.rebalance()
        self.look_due = True

    def _resize(self, names: list[str]) -> None:
        self.old |= {name for name, seat in self.seats.items() if name not in names and not self.is_expelled(seat)}
        self.seats = {name: self.seats.get(name) or Seat(name, _nobody(name)) for name in names}
        self.old -= self.seats.keys()
        self._deal_out(set(self.target.values()) - self.seats.keys() - self.old - {OTHER})

    def remove_members(self, members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        """The coordinator removes those of `members` that are `old`, and their partitions go to our seats."""
        self.meanwhile()
        self.forced.append(reason)
        self.expire({str(member.instance_id) for member in members} & self.old)
        return {}

    def add_seats(self, count: int) -> None:
        """More of our seats join, and all partitions are dealt out to our seats."""
        names = [f"seat-{k}" for k in range(len(self.seats) + count)]
        self.seats = {name: self.seats.get(name) or Seat(name, _nobody(name)) for name in names}
        self.spread(names)

    def remove_seats(self, instance_ids: Iterable[str], reason: str) -> None:
        """Some of our seats leave in good order, and their partitions go to the seats that stay."""
        self.meanwhile()
        self.forced.append(reason)
        names = set(instance_ids)
        for name in names:
            del self.seats[name]
        self._deal_out(names)
        self.rebalance()

    def expire(self, names: set[str]) -> None:
        """The group has no member of these names any more."""
        self._deal_out(names)
        if names:
            self.rebalance()

    def _deal_out(self, names: set[str]) -> None:
        """The partitions of these members go to our seats, from the next generation on."""
        self.old -= names
        left = list(self.seats)
        for index, tp in enumerate(sorted(tp for tp, member in self.target.items() if member in names)):
            self.target[tp] = left[index % len(left)]
        self.coordinator.remove_static(names, self.now_ms)

    def step(self) -> None:
        """Messages that are under way arrive."""
        self.now_ms += WAIT_STEP_MS
        self._check_assignment()
        posted, self._mailbox = self._mailbox, []
        for seat, partitions in posted:
            # A partition that the seat lost meanwhile, or was assigned again, is not given up.
            gone = partitions & seat.to_give_up
            seat.owned_since = {tp: who for tp, who in seat.owned_since.items() if tp not in gone}
            seat.previously_owned -= gone
            seat.to_give_up -= gone
            if gone and (not seat.to_give_up or self.rebalancing) and not self.is_expelled(seat):
                self.rebalance()

    # -------------------------------------------------------------------------------- the runtime's own calls

    def view(self) -> GroupView:
        self.meanwhile()
        return self._view()

    def cluster_id(self) -> str | None:
        return self.cluster

    def _view(self) -> GroupView:
        seats = (seat.view() for seat in self.seats.values())
        if self.rebalancing:
            seats = (replace(seat, settled=False) for seat in seats)
        return GroupView(seats=tuple(seats), look_due=self.look_due, held=self.held)

    @property
    def rebalancing(self) -> bool:
        """Whether a rebalance waits for seats without a driver. Every member waits with it."""
        return self.coordinator.phase is not State.STABLE

    def wait_until(self, condition: Callable[[GroupView], bool], timeout_ms: int) -> GroupView:
        deadline_ms = self.now_ms + timeout_ms
        # As in the real runtime, the first look may come before the last message was taken.
        while not condition(view := self._view()) and self.now_ms < deadline_ms:
            self.step()
            self.meanwhile()
        return view

    def give_up(self, instance_id: str, partitions: frozenset[TopicPartition]) -> None:
        seat = self.seats[instance_id]
        twice = [tp for s, tps in self._mailbox if s is seat for tp in tps & partitions]
        if twice:
            raise Violation(f"{instance_id} gives up twice: {twice}")
        self._mailbox.append((seat, partitions))

    def _check_assignment(self) -> None:
        """The runtime's look after a rejoin. Its finding waits for the boundary. The script is the assignor."""
        group = self._described()
        if not (self.look_due and self._view().settled) or group.state != "Stable":
            return
        self.look_due = False
        if group.is_consumer_type:
            return
        found = find_drift(group, self.topics_now)
        has = {tp.topic for seat in self.seats for tp, owner in self.assigned.items() if owner == seat}
        moving = {tp.topic for tp, owner in self.target.items() if self.assigned.get(tp, owner) != owner}
        self.held = replace(found, unshared=frozenset(moving & set(self.subscribed) - has)) or None

    def force_rebalance(self, reason: str) -> None:
        self.held = None
        self.forced.append(reason)
        self.rebalance()

    def topics(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        self.meanwhile()
        if self.now_ms - self._seen_topics[1] > max_age_ms:
            subscribed = {t: self.topics_now[t] for t in self.subscribed if t in self.topics_now}
            self._seen_topics = (self.leaders.look_up(subscribed, self.now_ms), self.now_ms)
        return self._seen_topics[0]

    @property
    def topics_seen_at_ms(self) -> int:
        """When brokers were asked for topics last."""
        return self._seen_topics[1]

    def topics_named(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        return {name: self.topics_now[name] for name in names if name in self.topics_now}

    def topics_gone(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(names) - self.topics_now.keys()

    def is_out_of_reach(self, tp: TopicPartition) -> bool:
        """Whether no leader answers for a partition at this moment."""
        return tp in self.log and self.out_of_reach.get(tp, lambda: False)()

    def epoch(self, tp: TopicPartition) -> int:
        """The epoch of a partition's leader, or -1 where brokers do not say."""
        return self.topics_now[tp.topic].leader_epochs.get(tp.partition, -1)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        found = {
            tp: CommittedOffset(offset=self.committed_now[tp], metadata=self.note_beside(tp))
            if tp in self.committed_now
            else None
            for tp in partitions
        }
        if found:  # else no broker is asked
            self.bounds_ms.append(timeout_ms)
        self.meanwhile()
        return found

    def committed_answers(
        self, partitions: Iterable[TopicPartition], patience_ms: int
    ) -> Answers[CommittedOffset | None]:
        found = self.committed(partitions)
        refused = {tp: unstable(tp) for tp in found if tp in self.unstable}
        self.now_ms += patience_ms if refused else 0
        return Answers({tp: offset for tp, offset in found.items() if tp not in refused}, refused)

    def note_beside(self, tp: TopicPartition) -> str:
        """The metadata beside the committed offset: empty, unless one of our seats committed this very offset."""
        note = self._notes.get(tp)
        return note.metadata if note is not None and note.offset == self.committed_now.get(tp) else ""

    def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        self.bounds_ms.append(timeout_ms)
        self.meanwhile()
        return self._described()

    def _described(self) -> DescribedGroup:
        members = list(self.coordinator.members.values())
        if OTHER not in self.target.values() and not self.other:
            members = [member for member in members if member.instance_id != OTHER]
        consumer = self.group_type == "consumer"
        return DescribedGroup(
            group="g",
            state="PreparingRebalance" if self.rebalancing else self.state,
            protocol=PROTOCOL,
            group_type=self.group_type,
            members=tuple(
                DescribedMember(
                    member_id=str(member.instance_id),
                    instance_id=member.instance_id,
                    client_id="spark-kgroup",
                    client_host="",
                    assignment=frozenset() if self.rebalancing else self._assignment_shown(member, consumer=consumer),
                    subscription=None if self.rebalancing or consumer else member.subscription(PROTOCOL),
                )
                for member in members
            ),
        )

    def _assignment_shown(self, member: Member | ConvertedMember, *, consumer: bool) -> frozenset[TopicPartition]:
        """A member's assignment in a description: a group of type consumer leaves out partitions that it asked back."""
        asked_back = {tp for tp in member.assignment if consumer and self.target.get(tp) != member.instance_id}
        return member.assignment - asked_back

    def commit(self, commits: Sequence[SeatCommit]) -> frozenset[TopicPartition]:
        self.meanwhile()
        self._asked.append(self.now_ms)
        if self._asked[-COMMITS_PER_INSTANT_MAX:] == [self.now_ms] * COMMITS_PER_INSTANT_MAX:
            raise Violation("commits again and again without letting time pass")
        acknowledged: set[TopicPartition] = set()
        # In an order that a seed repeats: the caller's order may depend on Python's hashes.
        for commit in sorted(commits, key=lambda commit: commit.seat.instance_id):
            seen, offsets, name = commit.seat, commit.positions, commit.seat.instance_id
            seat, fate = self.seats[name], self.commit_fate()
            if seen.identity.generation == NO_GENERATION:
                raise Violation(f"{name} commits without a generation")
            refusal = self.coordinator.commit(seen.identity, self.now_ms)
            if refusal == ErrorCode.UNKNOWN_MEMBER_ID and seat.identity == seen.identity:
                self.notice(name)
            if refusal or fate in ("lost", "refused"):
                continue  # REBALANCE_IN_PROGRESS, or the request never came
            # Partitions that brokers do not know are not committed, the rest is (KafkaApis.handleOffsetCommitRequest).
            offsets = {tp: offset for tp, offset in offsets.items() if tp in self.log}
            self._check_commit(seat, offsets)
            self.coordinator.commit(seen.identity, self.now_ms, offsets)
            self._notes |= {
                tp: CommittedOffset(offset=offset, metadata=self.author.encode(commit.topic_ids[tp.topic]))
                for tp, offset in offsets.items()
            }
            self.commits.append((name, dict(offsets)))
            if fate == "ok":
                acknowledged |= offsets.keys()
        return frozenset(acknowledged)

    def commit_refusal(self) -> str:
        return "COORDINATOR_NOT_AVAILABLE"

    def _check_commit(self, seat: Seat, offsets: Mapping[TopicPartition, int]) -> None:
        assigned = self.assigned
        for tp, position in offsets.items():
            owner = assigned.get(tp)
            known = not self.rebalancing  # else it is unknown whether an old seat had lost it before the driver died
            if known and tp not in seat.owned_since and owner is not None and owner not in self.old:
                raise Violation(f"{seat.instance_id} commits {tp}, which belongs to {owner}")
            before = self.committed_now.get(tp, 0)
            ours = self.checkpoint_set_back and self.note_beside(tp) != ""
            if position < before and tp not in self.rewinds and not ours:
                raise Violation(f"{tp}: committed offset would go back from {before} to {position}")
