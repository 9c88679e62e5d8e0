"""A small model of a consumer group as the boundary sees it: the same calls as `GroupRuntime`, no socket, no clock.

The broker's half (`assigned`, `committed`, `generation`) and the seats' half (what each believes to hold) are kept
apart, as in life: a seat may not know yet that it was expelled. One other application works in the group; it reads,
commits and hands over like a good neighbour. Rebalances are cooperative (KIP-429): what somebody still claims is
withheld for a generation, and handing it over needs a further one.

The broker checks every commit (`_check_commit`) and every giving up: what must never happen raises `Violation` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

from harness.group_state import GroupState
from spark_kgroup.errors import UnknownTopic
from spark_kgroup.limits import TOPIC_GONE_AFTER_MS
from spark_kgroup.member.classic import PreviouslyOwned
from spark_kgroup.model import (
    NO_GENERATION,
    DescribedGroup,
    DescribedMember,
    ErrorCode,
    MemberIdentity,
    TopicDescription,
    TopicPartition,
)
from spark_kgroup.runtime.previously_owned import claimable
from spark_kgroup.runtime.views import GroupView, SeatCommit, SeatView
from spark_kgroup.seat_note import Author
from spark_kgroup.wire.responses import CommittedOffset

OTHER = "other"
WAIT_STEP_MS = 10
COMMITS_PER_INSTANT_MAX = 100


class Violation(AssertionError):
    """Something happened that the promises forbid (README, *What is promised*)."""


@dataclass
class Seat:
    """One of our static members: what it believes."""

    instance_id: str
    identity: MemberIdentity
    owned_since: dict[TopicPartition, MemberIdentity] = field(default_factory=dict)
    to_give_up: frozenset[TopicPartition] = frozenset()
    previously_owned: frozenset[TopicPartition] = frozenset()
    """An earlier process's, claimed until it is given up or assigned again."""
    trouble: str | None = None

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
    """Nothing happens meanwhile."""


@dataclass(frozen=True)
class Membership:
    """One of our static members: what the broker knows of it."""

    member_id: str
    instance_id: str


class FakeGroup(GroupState[Membership]):
    """One group with `seats` of ours and one other application. Single-threaded; time passes only in `wait_until`.

    Attributes:
        target: partition -> who shall own it after the next rebalances; absent means nobody.
        subscribed: the topics that our seats subscribe to; the other application takes what they do not.
        meanwhile: called inside every call of the runtime: the world does not stand still while we ask.
        commit_fate: what becomes of the next commit of a seat: "ok", "lost" (not carried out), "unheard" (carried out,
            the answer is lost) or "refused".
        stable: last stable offset of partitions with an open transaction.
        rewinds: partitions whose committed offset may go back, because an explicit `startingOffsets` says so.
        checkpoint_set_back: what we committed ourselves may go back.
        bounds_ms: how long each look at the group or its offsets may take, None for the default.
        author: who our seats say they are; what else is committed has no author.
        away: our driver is dead. The group waits for its seats, until their session is over (`expel`): a rebalance
            begins, and ends when they are back.
        old: seats that our driver came back without. Whatever they hold stays theirs, and a rebalance waits for them,
            until they are made to leave or their session is over.
    """

    def __init__(self, topics: Mapping[str, int], seats: int = 1) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.ids = 0
        self.topics_now: dict[str, TopicDescription] = {}
        self.log: dict[TopicPartition, list[int]] = {}
        self.committed_now: dict[TopicPartition, int] = {}
        self.target: dict[TopicPartition, str] = {}
        self.assigned: dict[TopicPartition, str] = {}
        self.claims: dict[TopicPartition, str] = {}
        self.other: dict[TopicPartition, int] = {}
        self.other_read: list[tuple[TopicPartition, int, int]] = []
        self.stable: dict[TopicPartition, int] = {}
        self.rewinds: set[TopicPartition] = set()
        self.checkpoint_set_back = False
        self.bounds_ms: list[int | None] = []
        self.author = Author(app="seat")
        self._notes: dict[TopicPartition, CommittedOffset] = {}
        self.meanwhile: Callable[[], None] = _idle
        self.commit_fate: Callable[[], str] = lambda: "ok"
        self.rejoins = 0
        self.forced: list[str] = []
        self.state = "Stable"
        self.group_type = "classic"
        self.away = False
        self.old: set[str] = set()
        self._pending = False
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self._asked: list[int] = []
        self._mailbox: list[tuple[Seat, frozenset[TopicPartition]]] = []
        self._seen_topics: tuple[dict[str, TopicDescription], int] = ({}, -(10**9))
        self.subscribed = tuple(topics)
        for name, count in topics.items():
            self.create_topic(name, count)
        names = [f"seat-{k}" for k in range(seats)]
        self.seats = {name: Seat(name, self._joined(name)) for name in names}
        self.rejoins = seats
        self.spread(names)

    # --------------------------------------------------------------------------------- the world, for tests

    @property
    def instance_ids(self) -> tuple[str, ...]:
        return tuple(self.seats)

    def _new_identity(self, instance_id: str) -> MemberIdentity:
        self.ids += 1
        return MemberIdentity(instance_id=instance_id, member_id=f"id-{self.ids}", generation=self.generation)

    def _joined(self, instance_id: str) -> MemberIdentity:
        """As whom a seat is in the group that has joined it without a member id."""
        identity = self._new_identity(instance_id)
        new, old = Membership(identity.member_id, instance_id), self.static(instance_id)
        if old is None:
            self.members[new.member_id] = new
        else:
            self.replace_static(old, new)
        return identity

    def is_expelled(self, seat: Seat) -> bool:
        """Whether the coordinator has given the seat away, and the seat does not know."""
        return self.static(seat.instance_id) is None

    def create_topic(self, name: str, count: int) -> None:
        """A new topic, also in place of an old one: its records and committed offsets are gone."""
        self.ids += 1
        for table in (self.log, self.committed_now, self.other):
            for tp in [tp for tp in table if tp.topic == name]:
                del table[tp]
        self.topics_now[name] = TopicDescription(name=name, topic_id=UUID(int=self.ids), partition_count=count)
        self.log |= {tp: [0, 0] for tp in self.topics_now[name].partitions}

    def delete_topic(self, name: str) -> None:
        """A topic is gone, with its records and committed offsets; the group has not rebalanced yet."""
        del self.topics_now[name]
        for table in (self.log, self.committed_now, self.other, self.target):
            for tp in [tp for tp in table if tp.topic == name]:
                del table[tp]

    def add_partition(self, name: str) -> TopicPartition:
        old = self.topics_now[name]
        self.topics_now[name] = TopicDescription(
            name=name, topic_id=old.topic_id, partition_count=old.partition_count + 1
        )
        tp = TopicPartition(name, old.partition_count)
        self.log[tp] = [0, 0]
        return tp

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
        """One generation: everybody joins with what it claims, and learns its share."""
        live = [seat for seat in self.seats.values() if not self.is_expelled(seat)]
        if (self.away and live) or self.old:
            self._pending = True
            return
        self._pending = False
        self.generation += 1
        claims = {tp: seat.instance_id for seat in live for tp in seat.previously_owned}
        claims |= {tp: seat.instance_id for seat in live for tp in seat.owned_since}
        claims |= dict.fromkeys(self.other, OTHER)  # it was given them later than who inherits them
        self.claims = claims
        wanted = {tp: who if tp.topic in self.subscribed else OTHER for tp, who in self.target.items()}
        self.assigned = {
            tp: member for tp, member in wanted.items() if tp in self.log and claims.get(tp, member) == member
        }
        for seat in live:
            seat.identity = MemberIdentity(
                instance_id=seat.instance_id, member_id=seat.identity.member_id, generation=self.generation
            )
            share = {tp for tp, member in self.assigned.items() if member == seat.instance_id}
            seat.owned_since |= dict.fromkeys(share - seat.owned_since.keys(), seat.identity)
            seat.previously_owned -= share
            seat.to_give_up = frozenset(seat.owned_since.keys() - share) | seat.previously_owned
        for tp in {tp for tp, member in self.assigned.items() if member == OTHER} - self.other.keys():
            self.other[tp] = self.committed_now.get(tp, self.log[tp][0])

    def convert(self, takes: TopicPartition) -> None:
        """A member with `group.protocol=consumer` joins: brokers forget what is claimed; it gets `takes` at once."""
        self.group_type = "consumer"
        self.claims = {}
        assert takes not in self.assigned, "only what is withheld has no owner"
        self.target[takes] = self.assigned[takes] = OTHER
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
        asked = [tp for tp in self.other if self.assigned.get(tp) != OTHER]
        for tp in asked:
            self.committed_now.setdefault(tp, self.other[tp])
            del self.other[tp]
        if asked:
            self.rebalance()

    def expel(self, name: str) -> None:
        """The coordinator's patience with a seat is over; the seat does not know yet, its partitions have no owner."""
        if self.seats[name].identity.generation == NO_GENERATION:
            return  # who waits for a rebalance to end is not expelled meanwhile
        self.remove_static([name])
        self.assigned = {tp: member for tp, member in self.assigned.items() if member != name}

    def notice(self, name: str) -> None:
        """An expelled seat hears of it, drops all, and joins anew."""
        seat = self.seats[name]
        seat.owned_since, seat.to_give_up, seat.previously_owned = {}, frozenset(), frozenset()
        seat.identity = replace(self._joined(name), generation=NO_GENERATION)
        self._mailbox = [(s, tps) for s, tps in self._mailbox if s is not seat]
        self.rejoins += 1
        self.rebalance()

    def die(self) -> None:
        """Our driver is dead, and the broker does not know."""
        self.away = True
        self._mailbox.clear()
        for seat in self.seats.values():
            seat.owned_since, seat.to_give_up, seat.previously_owned = {}, frozenset(), frozenset()

    def restart(self, previously_owned: Mapping[str, PreviouslyOwned], seats: int | None = None) -> None:
        """Our driver is new: every seat rejoins without a member id (KIP-345), claiming what it inherits.

        It is told what it holds, or, if the group has waited for it, takes part in the next generation.
        """
        if not self.away:
            self.die()
        self.away = False
        self._seen_topics = ({}, -(10**9))
        if seats is not None:
            self._resize([f"seat-{k}" for k in range(seats)])
        joins_anew = [seat for seat in self.seats.values() if self.is_expelled(seat)]
        found = claimable(previously_owned, self._described(), list(self.seats))
        for seat in self.seats.values():
            seat.identity = self._joined(seat.instance_id)
            self.claims = {tp: member for tp, member in self.claims.items() if member != seat.instance_id}
            if seat in joins_anew:
                continue  # what it was reading is no longer kept for it
            seat.previously_owned = found[seat.instance_id].partitions if seat.instance_id in found else frozenset()
            self.claims |= dict.fromkeys(seat.previously_owned - self.claims.keys(), seat.instance_id)
        if joins_anew or self._pending:
            self._pending = False
            for seat in self.seats.values():  # who comes back into a rebalance waits for its end
                seat.identity = replace(seat.identity, generation=NO_GENERATION)
            self.rebalance()
        else:
            self._tell_again()
        self.rejoins = len(self.seats)

    def _resize(self, names: list[str]) -> None:
        self.old |= {name for name, seat in self.seats.items() if name not in names and not self.is_expelled(seat)}
        self.seats = {name: self.seats.get(name) or self._newcomer(name) for name in names}
        self.old -= self.seats.keys()
        self._deal_out(set(self.target.values()) - self.seats.keys() - self.old - {OTHER})

    def _newcomer(self, name: str) -> Seat:
        """A seat that the group does not have, or has kept."""
        return Seat(name, self._new_identity(name))

    def remove_members(self, members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        """The coordinator takes members out; what they held is dealt out to our seats."""
        self.meanwhile()
        self.forced.append(reason)
        self.expire({str(member.instance_id) for member in members} & self.old)
        return {}

    def expire(self, names: set[str]) -> None:
        """The group has no member of these names any more."""
        self._deal_out(names)
        if names:
            self.rebalance()

    def _deal_out(self, names: set[str]) -> None:
        """What members of these names had is for our seats, from the next generation on."""
        self.old -= names
        self.remove_static(names)
        for table in (self.assigned, self.claims):
            for tp in [tp for tp, member in table.items() if member in names]:
                del table[tp]
        left = list(self.seats)
        for index, tp in enumerate(sorted(tp for tp, member in self.target.items() if member in names)):
            self.target[tp] = left[index % len(left)]

    def _tell_again(self) -> None:
        """A static rejoin of a stable group is answered with the assignment there is."""
        for seat in self.seats.values():
            share = frozenset(tp for tp, member in self.assigned.items() if member == seat.instance_id)
            seat.owned_since, seat.previously_owned = dict.fromkeys(share, seat.identity), seat.previously_owned - share
            seat.to_give_up = seat.previously_owned

    def step(self) -> None:
        """Messages that are under way arrive."""
        self.now_ms += WAIT_STEP_MS
        posted, self._mailbox = self._mailbox, []
        for seat, partitions in posted:
            # What the group assigned to the seat again meanwhile, or what it lost, is not given up.
            gone = partitions & seat.to_give_up
            seat.owned_since = {tp: who for tp, who in seat.owned_since.items() if tp not in gone}
            seat.previously_owned -= gone
            seat.to_give_up -= gone
            if gone and not seat.to_give_up and not self.is_expelled(seat):
                self.rebalance()

    # -------------------------------------------------------------------------------- the runtime's own calls

    def view(self) -> GroupView:
        self.meanwhile()
        return self._view()

    def _view(self) -> GroupView:
        seats = (seat.view() for seat in self.seats.values())
        if self._waits:
            seats = (replace(seat, settled=False) for seat in seats)
        return GroupView(seats=tuple(seats), rejoins=self.rejoins)

    @property
    def rebalancing(self) -> bool:
        """A rebalance waits for our seats."""
        return self._pending

    @property
    def _waits(self) -> bool:
        """A rebalance waits for seats that nobody serves, and our seats wait with it."""
        return self._pending and bool(self.old)

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

    def all_owned(self, topics: Mapping[str, TopicDescription]) -> None:
        """The leader's baseline: this group needs none, it is told of added partitions."""

    def force_rebalance(self, reason: str) -> None:
        self.forced.append(reason)
        self.rebalance()

    def topics(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        self.meanwhile()
        if self.now_ms - self._seen_topics[1] > max_age_ms:
            self._seen_topics = ({t: self.topics_now[t] for t in self.subscribed if t in self.topics_now}, self.now_ms)
        return self._seen_topics[0]

    def topics_named(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        return {name: self.topics_now[name] for name in names if name in self.topics_now}

    def topics_gone(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(names) - self.topics_now.keys()

    def end_offsets(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> dict[TopicPartition, int]:
        ends = {tp: end for tp, (_, end) in self._listed(partitions).items()}
        return {tp: min(end, self.stable.get(tp, end)) if read_committed else end for tp, end in ends.items()}

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: start for tp, (start, _) in self._listed(partitions).items()}

    def _listed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        self.meanwhile()
        listed = {}
        for tp in partitions:
            if tp not in self.log:
                self.now_ms += TOPIC_GONE_AFTER_MS
                raise UnknownTopic(f"{tp} does not exist (any more), or this user may not see it.")
            start, end = self.log[tp]
            listed[tp] = (start, end)
        return listed

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> dict[TopicPartition, tuple[int, int]]:
        ends = self.end_offsets(partitions, read_committed=read_committed)
        return {tp: (self.log[tp][0], end) for tp, end in ends.items()}

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        found = {
            tp: CommittedOffset(offset=self.committed_now[tp], metadata=self.note_beside(tp))
            if tp in self.committed_now
            else None
            for tp in partitions
        }
        if found:  # else nobody is asked
            self.bounds_ms.append(timeout_ms)
        self.meanwhile()
        return found

    def note_beside(self, tp: TopicPartition) -> str:
        """What is written beside the committed offset: nothing, unless one of our seats put it where it is."""
        note = self._notes.get(tp)
        return note.metadata if note is not None and note.offset == self.committed_now.get(tp) else ""

    def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        self.bounds_ms.append(timeout_ms)
        self.meanwhile()
        return self._described()

    def _described(self) -> DescribedGroup:
        members = [*(seat.instance_id for seat in self.seats.values() if not self.is_expelled(seat)), *sorted(self.old)]
        if OTHER in self.target.values() or self.other:
            members.append(OTHER)
        assigned, claims = ({}, {}) if self._waits else (self.assigned, self.claims)
        if self.group_type == "consumer":  # which does not tell what it has asked back
            assigned, claims = {tp: m for tp, m in assigned.items() if self.target.get(tp) == m}, {}
        return DescribedGroup(
            group="g",
            state="PreparingRebalance" if self._waits else self.state,
            protocol="cooperative-sticky",
            group_type=self.group_type,
            members=tuple(
                DescribedMember(
                    member_id=name,
                    instance_id=name,
                    client_id="spark-kgroup",
                    client_host="",
                    assignment=frozenset(tp for tp, member in assigned.items() if member == name),
                    claimed=frozenset(tp for tp, member in claims.items() if member == name),
                )
                for name in members
            ),
        )

    def commit(self, commits: Sequence[SeatCommit]) -> frozenset[TopicPartition]:
        self.meanwhile()
        self._asked.append(self.now_ms)
        if self._asked[-COMMITS_PER_INSTANT_MAX:] == [self.now_ms] * COMMITS_PER_INSTANT_MAX:
            raise Violation("commits again and again without letting time pass")
        acknowledged: set[TopicPartition] = set()
        for commit in commits:
            seen, offsets, name = commit.seat, commit.positions, commit.seat.instance_id
            seat, fate = self.seats[name], self.commit_fate()
            if seen.identity.generation == NO_GENERATION:
                raise Violation(f"{name} commits without a generation")
            refusal = self.refusal(seen.identity, check_generation=True)
            if refusal == ErrorCode.UNKNOWN_MEMBER_ID and seat.identity == seen.identity:
                self.notice(name)
            if refusal or fate in ("lost", "refused"):
                continue  # REBALANCE_IN_PROGRESS, or the request never came
            # What brokers do not know is not committed, the rest is (KafkaApis.handleOffsetCommitRequest).
            offsets = {tp: offset for tp, offset in offsets.items() if tp in self.log}
            self._check_commit(seat, offsets)
            self.committed_now |= offsets
            note = self.author.encode()
            self._notes |= {tp: CommittedOffset(offset=offset, metadata=note) for tp, offset in offsets.items()}
            self.commits.append((name, dict(offsets)))
            if fate == "ok":
                acknowledged |= offsets.keys()
        return frozenset(acknowledged)

    def commit_refusal(self) -> str:
        return "COORDINATOR_NOT_AVAILABLE"

    def _check_commit(self, seat: Seat, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, position in offsets.items():
            owner = self.assigned.get(tp)
            known = not self._waits  # else nobody can know that an old seat had lost it, before the driver died
            if known and tp not in seat.owned_since and owner is not None and owner not in self.old:
                raise Violation(f"{seat.instance_id} commits {tp}, which belongs to {owner}")
            before = self.committed_now.get(tp, 0)
            ours = self.checkpoint_set_back and self.note_beside(tp) != ""
            if position < before and tp not in self.rewinds and not ours:
                raise Violation(f"{tp}: committed offset would go back from {before} to {position}")
