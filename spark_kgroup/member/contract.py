"""The inputs and outputs of a member machine. All plain values.

A machine wants *Requests* sent. A *Response* brings back the request it answers, so that an answer that is no longer
awaited is recognised and dropped. *Events* go in, one at a time, with the instant. *Effects* come out, in the order in
which they are to be carried out. Each names the steps that must come BEFORE it.

The application adopts and gives up partitions only *between two pieces of work*: it reads no record then, and its
results from all records that it read are durable.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kgroup.errors import GroupError
from spark_kgroup.model import GroupMember, MemberIdentity, Subscription, TopicPartition

Assignments = tuple[tuple[str, frozenset[TopicPartition]], ...]
"""A leader's assignment: (member id, its partitions) of each member."""

# ------------------------------------------------------------------------------------------------ requests


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroupRequest v9: take part in the next generation.

    Attributes:
        identity: the member id is empty for a newcomer, and for a process that takes its seat back (KIP-345).
        protocols: (assignor name, subscription) in order of preference. The sender adds the rack (KIP-881).
        reason: for the broker's log (KIP-800).

    """

    identity: MemberIdentity
    protocols: tuple[tuple[str, Subscription], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroupRequest v5: ask for this member's partitions in the generation of `identity`.

    Attributes:
        protocol: the assignor that the coordinator chose. The coordinator refuses another one (KIP-559).
        assignments: the partitions of every member. Empty unless this member is the leader and assigns.
    """

    identity: MemberIdentity
    protocol: str
    assignments: Assignments = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """HeartbeatRequest v4: we live, and is `identity` still good? The coordinator counts a session from it."""

    identity: MemberIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """LeaveGroupRequest v5 with this member alone in its list."""

    identity: MemberIdentity
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameRequest:
    """ConsumerGroupHeartbeatRequest v1 in epoch 0: have our seat of a classic group under the id that `identity` names.

    The coordinator makes the group one of type consumer for it, and a classic one again at the JoinGroup that follows.
    """

    identity: MemberIdentity


Parkable = JoinRequest | SyncRequest
"""The requests that the coordinator may park for longer than a session."""

Request = Parkable | HeartbeatRequest | RenameRequest | LeaveRequest

# ------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Become a member. The coordinator is not known yet. `Leave` and `Close` are its opposites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A fresh connection to the group's coordinator is open, with no request in flight on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection is gone, and with it every answer that was still to come."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """JoinGroupResponse v9, answering `request`. With an error no other field counts, except MEMBER_ID_REQUIRED's id.

    Attributes:
        generation: the new one, or the current one where the group does not rebalance for this join.
        protocol: the assignor that the coordinator chose among those that all members have.
        leader: the member id of the leader, or empty in a group of type consumer, which has none.
        member_id: ours from now on. MEMBER_ID_REQUIRED brings it too, to be sent with the next join (KIP-394).
        members: the subscriptions of all members if this member leads, else empty.
        skip_assignment: this leader must not assign: the group keeps its assignment (KIP-814).

    """

    request: JoinRequest
    error: int
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    members: tuple[GroupMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """SyncGroupResponse v5, answering `request`. `assignment` is the group's word on the partitions of this member."""

    request: SyncRequest
    error: int
    assignment: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """HeartbeatResponse v4, answering `request`."""

    request: HeartbeatRequest
    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameResponse:
    """ConsumerGroupHeartbeatResponse v1, answering `request`."""

    request: RenameRequest
    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    """LeaveGroupResponse v5, answering `request`."""

    request: LeaveRequest
    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentComputed:
    """The assignor ran for `generation` (the answer to `ComputeAssignment`)."""

    generation: int
    assignments: Assignments


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentFailed:
    """The assignor failed in `generation` (the other answer to `ComputeAssignment`).

    Attributes:
        error: the error that the member ends with as soon as the group has `kept`.
        kept: the claims of each member, so that all other members go on with them.

    """

    generation: int
    error: GroupError
    kept: Assignments


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """Between two pieces of work the application stopped reading these, and their positions are committed."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinWanted:
    """Force one rebalance: the leader saw metadata change, or a subscribed partition has no owner."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourJoins:
    """A member of the same process has sent a join and is not answered yet: the group may be rebalancing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """The group is classic, at rest, and has our seat: take the seat under `MemberConfig.own_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRefused:
    """A commit under `identity` was answered with an error that means this membership is over."""

    identity: MemberIdentity
    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatSeen:
    """The group says under which member id it keeps our seat, empty if it does not (the answer to `LookAtSeat`)."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; due timers fire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Give the seat back for good."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Stop without a word: a static seat stays in place until its session expires (KIP-345)."""


Event = (
    Join
    | Connected
    | ConnectionLost
    | JoinResponse
    | SyncResponse
    | HeartbeatResponse
    | RenameResponse
    | LeaveResponse
    | AssignmentComputed
    | AssignmentFailed
    | GaveUp
    | RejoinWanted
    | NeighbourJoins
    | Rename
    | MembershipRefused
    | SeatSeen
    | Tick
    | Leave
    | Close
)

# ------------------------------------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send `request` on the current connection. Its answer, or `ConnectionLost`, comes back as an event.

    A LeaveRequest goes another way, because requests may be parked there, and is always answered.
    """

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """While a request is parked: ask over other connections which broker coordinates the group, and if it knows us.

    If it is another broker than our connection leads to, that is a `ConnectionLost`. Else send `heartbeat`, if there is
    one. Its answer comes back as an event. Silence has no meaning.
    """

    heartbeat: HeartbeatRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAtSeat:
    """Ask the group which member has our seat. Answer with `SeatSeen`, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Look the coordinator up, open a fresh connection AFTER closing the old one, and keep trying, with backoff."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeAssignment:
    """Run `assignor` over `members` with fresh metadata of all their topics.

    Answer with `AssignmentComputed` or `AssignmentFailed`.
    """

    generation: int
    assignor: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The coordinator knows this member by `identity`.

    Attributes:
        leader: this member is the leader of its generation.
        skip_assignment: the leader came back to a stable group and must not assign (KIP-814).
        rejoined: the coordinator gave a static seat back (no member id was sent, KIP-345), or gave it to a member id of
            ours. A partition may have lost its owner meanwhile, and the group's leader may not know that it leads.

    """

    identity: MemberIdentity
    leader: bool
    protocol: str
    skip_assignment: bool
    rejoined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A generation's assignment arrived.

    Attributes:
        assigned: all partitions of subscribed topics that the group assigned to this member.
        added: partitions that were not owned before, to be adopted before the next piece of work.
        revoked: partitions that are owned still, were owned by an earlier process or are not subscribed, and must be
            given up before the next piece of work, BEFORE the next join is sent. Of an eager member none, or all,
            `added` included.

    """

    identity: MemberIdentity
    assigned: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    revoked: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpAll:
    """The group rebalances, and this member is eager: it must give up all partitions BEFORE the next join is sent.

    Attributes:
        partitions: all owned and unwanted ones, to be given up before the next piece of work.

    """

    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Ownership ended without our consent (KIP-429: onPartitionsLost): their positions may not be committed."""

    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoining:
    """A join is about to be sent for `reason`, AFTER all partitions that had to be given up were given up."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The machine has ended: the seat was given back.

    If `error` is not NONE, the coordinator has not confirmed it, and the seat may stay until its session is over.
    """

    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The machine ends with an error that retrying cannot mend. A dynamic member leaves, and `Left` follows."""

    error: GroupError


Work = Send | Look | LookAtSeat | ComputeAssignment
"""Effects carried out beside the machine. Each ends in an event, or in none if no answer comes."""

Notice = Joined | Assigned | GiveUpAll | Lost | Rejoining | Left | Failed
"""Effects that only inform the application, in order."""

Effect = Connect | Work | Notice
