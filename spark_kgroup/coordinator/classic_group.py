"""One classic group: its members, their votes and its generation. It alone changes them (Kafka: ClassicGroup).

Invariants, of which `check` has each:

1. `seats` has the member id of each member with an instance id, and no other one.
2. The leader is a member. A group with members has one.
3. A member id in `pending_joins` belongs to no member.
4. JoinGroup is parked in PREPARING_REBALANCE alone, and SyncGroup in COMPLETING_REBALANCE alone.
5. EMPTY and DEAD have no members, STABLE and COMPLETING_REBALANCE have some, and a protocol that all of these support.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_kgroup.coordinator.contract import Token
from spark_kgroup.coordinator.records import GroupMetadata, PersistedMember
from spark_kgroup.coordinator.state import LEAVES_TO, State
from spark_kgroup.errors import IllegalTransition, ProtocolViolation
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.consumer_protocol import decode_subscribed_topics
from spark_kgroup.wire.schema import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponseMember

CONSUMER_TYPE = "consumer"
"""The protocol type of consumers: the one whose bytes Kafka reads, too (ConsumerProtocol.PROTOCOL_TYPE)."""


@dataclass(eq=False, slots=True, kw_only=True)
class ClassicMember:
    """One member (ClassicGroupMember).

    Attributes:
        protocols: in the order in which the member prefers them.
        is_new: it has been in no generation yet, so its session is over even while its JoinGroup is parked.
        parked_join, parked_sync: tokens of requests that are not answered yet.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[JoinGroupRequestProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    parked_join: Token | None = None
    parked_sync: Token | None = None

    @property
    def waits(self) -> bool:
        """Whether a parked request stands for its heartbeats (ClassicGroupMember.hasSatisfiedHeartbeat)."""
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)

    def supports(self, protocol: str) -> bool:
        """Whether it has bytes for a protocol."""
        return any(each.name == protocol for each in self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """Its bytes for a protocol that it supports."""
        return next(each.metadata for each in self.protocols if each.name == protocol)

    def take_over(self, request: JoinGroupRequest) -> None:
        """Take the protocols and timeouts of a further JoinGroup (ClassicGroup.updateMember)."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms


class ClassicGroup:
    """The state of one group.

    Attributes:
        since_ms: when it came to its state.
        rebalances_first: it left EMPTY for the rebalance that goes on, so further members are waited for (KIP-134).
        member_added: a member came in that time: the initial delay is extended.
        initial_wait_ms, initial_left_ms: how long the present part of the initial delay is, and how long it may be
            extended after that.
        protocol_type: empty until a member has joined.
        members: by member id, in the order in which they joined. Java's are in no order.
        seats: instance id -> member id.
        pending_joins: member ids that clients have been given and not joined with (KIP-394).
        pending_syncs: members of this generation that have not sent SyncGroup. The id of a static member that was
            replaced before it did stays here, as Kafka's does, so that the group rebalances when the time is over.
        subscribed_topics: of a group of consumers, None if it is not known.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.state = State.EMPTY
        self.since_ms = now_ms
        self.rebalances_first = False
        self.member_added = False
        self.initial_wait_ms = 0
        self.initial_left_ms = 0
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.seats: dict[str, str] = {}
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None

    @staticmethod
    def from_record(record: GroupMetadata) -> ClassicGroup:
        """The group as a restart finds it: EMPTY or STABLE (GroupMetadataManager.replay)."""
        group = ClassicGroup(record.group, record.since_ms)
        group.generation, group.protocol_type = record.generation, record.protocol_type
        group.protocol, group.leader = record.protocol, record.leader
        for saved in record.members:
            member = ClassicMember(
                member_id=saved.member_id,
                instance_id=saved.instance_id,
                client_id=saved.client_id,
                client_host=saved.client_host,
                rebalance_timeout_ms=saved.rebalance_timeout_ms,
                session_timeout_ms=saved.session_timeout_ms,
                protocols=(JoinGroupRequestProtocol(record.protocol or "", saved.metadata),),
                assignment=saved.assignment,
            )
            group.members[member.member_id] = member
            if member.instance_id is not None:
                group.seats[member.instance_id] = member.member_id
        if group.members:
            group.state = State.STABLE
        group.subscribed_topics = group._read_subscribed_topics()
        return group

    def record(self) -> GroupMetadata:
        """All of the group that a restart knows: with its members only if it is STABLE."""
        return GroupMetadata(
            group=self.name,
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            since_ms=self.since_ms,
            members=tuple(
                PersistedMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    metadata=member.metadata(self.protocol or ""),
                    assignment=member.assignment,
                )
                for member in self.members.values()
            ),
        )

    def become(self, state: State, now_ms: int) -> None:
        """Change the state. No other method does.

        Raises:
            IllegalTransition: `LEAVES_TO` does not have this step: a bug of ours.
        """
        if state not in LEAVES_TO[self.state]:
            raise IllegalTransition("classic group", self.state.value, f"become {state.value}")
        self.rebalances_first = self.state is State.EMPTY and state is State.PREPARING_REBALANCE
        self.state, self.since_ms = state, now_ms

    def die(self, now_ms: int) -> None:
        """The group is deleted here, or coordinated elsewhere. Its parked requests have been answered."""
        self.become(State.DEAD, now_ms)
        self.members, self.seats, self.leader = {}, {}, None
        self.pending_joins, self.pending_syncs = set(), set()

    # ------------------------------------------------------------------------------------------------- members

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """A member that none was before. The first one leads, and says the group's protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.seats[member.instance_id] = member.member_id
        self.leader = self.leader or member.member_id
        self.members[member.member_id] = member
        self.pending_joins.discard(member.member_id)

    def replace(self, old: ClassicMember, new_id: str) -> ClassicMember:
        """Give a static member's seat, place and assignment to a new member id (ClassicGroup.replaceStaticMember)."""
        assert old.instance_id is not None
        new = ClassicMember(
            member_id=new_id,
            instance_id=old.instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members = {m.member_id: m for m in (new if m is old else m for m in self.members.values())}
        self.seats[old.instance_id] = new_id
        if self.leader == old.member_id:
            self.leader = new_id
        return new

    def remove(self, member_id: str) -> None:
        """Forget a member, or a member id that no member has used yet. Another member leads if it led."""
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self.seats[member.instance_id]
        if self.leader == member_id:
            self.leader = self.elected(self.members)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def refusal(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """The error that a request of this identity meets, NONE if it is a member (ClassicGroup.validateMember)."""
        if instance_id is not None and self.seats.get(instance_id, member_id) != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        known = member_id in self.members and (instance_id is None or instance_id in self.seats)
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def all_have_joined(self) -> bool:
        """Whether a rebalance waits for no member, and for no client that has its id and has not joined."""
        return not self.pending_joins and all(m.parked_join is not None for m in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of its members'."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def accepts(self, member_id: str, size_max: int) -> bool:
        """Whether the group's limit of members leaves room for a JoinGroup (acceptJoiningMember).

        While a rebalance goes on, members that have joined count, so that the last of too many find no room.
        """
        member = self.members.get(member_id)
        match self.state:
            case State.PREPARING_REBALANCE:
                joined = sum(each.parked_join is not None for each in self.members.values())
                return (member is not None and member.parked_join is not None) or joined < size_max
            case State.COMPLETING_REBALANCE | State.STABLE:
                return member is not None or len(self.members) < size_max
            case _:
                return True

    # ----------------------------------------------------------------------------------------------- protocols

    def shares_protocol(self, protocol_type: str, protocols: Iterable[JoinGroupRequestProtocol]) -> bool:
        """Whether all members support a protocol of a JoinGroup (ClassicGroup.supportsProtocols)."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        return protocol_type == self.protocol_type and any(self._all_support(each.name) for each in protocols)

    def vote(self) -> str:
        """The protocol that most members prefer among those that all support (ClassicGroup.selectProtocol)."""
        first, *others = self.members.values()
        common = {each.name for each in first.protocols if all(m.supports(each.name) for m in others)}
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common) for member in self.members.values()
        )
        return min(votes, key=lambda name: (-votes[name], place_in_java_map(name)))

    def _all_support(self, protocol: str) -> bool:
        return all(member.supports(protocol) for member in self.members.values())

    # --------------------------------------------------------------------------------------------- generations

    def elect_joined_leader(self) -> bool:
        """Whether a member leads that has joined, after another one may have been elected."""
        joined = [m.member_id for m in self.members.values() if m.parked_join is not None]
        if joined and self.leader not in joined:
            self.leader = self.elected(joined)
        return bool(joined)

    @staticmethod
    def elected(candidates: Iterable[str]) -> str | None:
        """The member that leads when the leader is gone: the first that joined. Kafka's is the first of a HashMap."""
        return next(iter(candidates), None)

    def begin_generation(self, now_ms: int) -> None:
        """The next generation, of the members that are left (ClassicGroup.initNextGeneration)."""
        self.generation += 1
        self.pending_syncs = set(self.members)
        self.protocol = self.vote() if self.members else None
        self.subscribed_topics = self._read_subscribed_topics()
        self.become(State.COMPLETING_REBALANCE if self.members else State.EMPTY, now_ms)

    def settle(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """The leader has assigned. A member that it left out has an empty assignment."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.become(State.STABLE, now_ms)

    def listed(self) -> tuple[JoinGroupResponseMember, ...]:
        """All members as the leader sees them."""
        return tuple(
            JoinGroupResponseMember(m.member_id, m.instance_id, m.metadata(self.protocol or ""))
            for m in self.members.values()
        )

    # ------------------------------------------------------------------------------------------------- topics

    def subscribes_to(self, topic: str) -> bool:
        """Whether offsets of a topic are in use. A group of consumers whose topics are not known uses all."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_TYPE
        return topic in self.subscribed_topics

    def _read_subscribed_topics(self) -> frozenset[str] | None:
        """ClassicGroup.computeSubscribedTopics."""
        if self.protocol_type != CONSUMER_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        try:
            metadata = [member.metadata(self.protocol) for member in self.members.values()]
            return frozenset(topic for raw in metadata for topic in decode_subscribed_topics(raw))
        except ProtocolViolation:
            return None

    def check(self) -> None:
        """Assert the invariants of this module."""
        static = {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}
        assert self.seats == static, "invariant 1"
        assert (self.leader in self.members) if self.members else (self.leader is None), "invariant 2"
        assert not self.pending_joins & self.members.keys(), "invariant 3"
        joins = any(m.parked_join is not None for m in self.members.values())
        syncs = any(m.parked_sync is not None for m in self.members.values())
        assert not joins or self.state is State.PREPARING_REBALANCE, "invariant 4"
        assert not syncs or self.state is State.COMPLETING_REBALANCE, "invariant 4"
        if self.state in (State.EMPTY, State.DEAD):
            assert not self.members, "invariant 5"
        elif self.state is not State.PREPARING_REBALANCE:
            assert self.members, "invariant 5"
            assert self._all_support(self.protocol or ""), "invariant 5"


def place_in_java_map(text: str) -> int:
    """The bucket of a text in a small java.util.HashMap: its order decides between protocols with as many votes."""
    code = 0
    for character in text:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code ^ code >> 16) & 15
