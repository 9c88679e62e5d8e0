"""What goes into a member machine and what comes out of it. All plain values.

*Requests* are what a machine wants sent; a *Response* brings back the request it answers, so that an answer to a
question nobody asks any more is recognised and dropped. *Events* go in, one at a time, with the instant. *Effects* come
out, in the order in which they are to be carried out; each says what must have happened BEFORE it.

The application adopts and gives up partitions only *between two pieces of work*: it reads nothing then, and what it has
done with all that it read is durable.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kgroup.errors import GroupError
from spark_kgroup.model import GroupMember, MemberIdentity, Subscription, TopicPartition

Shares = tuple[tuple[str, frozenset[TopicPartition]], ...]
"""What a leader assigns: (member id, its partitions)."""

# ------------------------------------------------------------------------------------------------ requests


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroupRequest v9: take part in the next generation.

    Attributes:
        identity: the member id is empty for a newcomer, and for a process that takes its seat back (KIP-345).
        protocols: (assignor name, subscription) in order of preference. Who sends it adds the rack (KIP-881).
        reason: for the broker's log (KIP-800).

    """

    identity: MemberIdentity
    protocols: tuple[tuple[str, Subscription], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroupRequest v5: ask for our share of the generation that `identity` names.

    Attributes:
        protocol: the assignor that the coordinator chose; it refuses another one (KIP-559).
        assignments: everybody's shares, empty unless this member leads and assigns.

    """

    identity: MemberIdentity
    protocol: str
    assignments: Shares = ()


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
"""What the coordinator may park for longer than a session."""

Request = Parkable | HeartbeatRequest | RenameRequest | LeaveRequest

# ------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Become a member; the coordinator is not known yet. `Leave` and `Close` are its opposites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A fresh connection to the group's coordinator is open; nothing is in flight on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection is gone, and with it every answer that was still to come."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """JoinGroupResponse v9, answering `request`. With an error it says nothing more, but for MEMBER_ID_REQUIRED.

    Attributes:
        generation: the new one, or the current one where the group does not rebalance for this join.
        protocol: the assignor that the coordinator chose among those that all members have.
        leader: the member id of the leader; empty in a group of type consumer, which has none.
        member_id: ours from now on. MEMBER_ID_REQUIRED brings it too, to be sent with the next join (KIP-394).
        members: everybody's subscriptions, if this member leads; else nothing.
        skip_assignment: this leader must not assign: the group keeps what it has (KIP-814).

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
    """SyncGroupResponse v5, answering `request`; `assignment` is the group's word on what this member reads."""

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
    assignments: Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentFailed:
    """The assignor failed in `generation` (the other answer to `ComputeAssignment`).

    Attributes:
        error: what the member ends with as soon as the group has `kept`.
        kept: what each member claims, so that all others go on with it.

    """

    generation: int
    error: GroupError
    kept: Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """Between two pieces of work the application stopped reading these; their positions are committed."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinWanted:
    """Force one rebalance: the leader saw metadata change, or a subscribed partition is owned by nobody."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourJoins:
    """A member of the same process has sent a join and is not answered yet: the group may be rebalancing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """The group is classic and at rest, with our seat: have it under `MemberConfig.own_id`."""


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
    """Send `request` on the current connection; its answer, or `ConnectionLost`, comes back as an event.

    A LeaveRequest goes another way, for all that is parked there, and is always answered.
    """

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """While a request is parked: ask over other connections who coordinates the group, and whether it still knows us.

    If it is another broker than our connection leads to, that is a `ConnectionLost`. Else send `heartbeat`, if there is
    one; its answer comes back as an event. Silence says nothing.
    """

    heartbeat: HeartbeatRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAtSeat:
    """Ask the group who has our seat; answer with `SeatSeen`, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Look the coordinator up, open a fresh connection AFTER closing the old one; keep trying, with backoff."""

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
        rejoined: the coordinator gave a static seat back (no member id was sent, KIP-345), or gave it to a member
            id of ours; a partition may have lost its owner meanwhile, and its leader may not know that it leads.

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
        assigned: all that the group assigned to this member of what it subscribes.
        added: what was not owned before; adopted before the next piece of work.
        revoked: what is owned still, was owned by an earlier process or is not subscribed, and must be given up
            before the next piece of work, BEFORE the next join is sent; of an eager member nothing, or
            all, `added` included.

    """

    identity: MemberIdentity
    assigned: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    revoked: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpAll:
    """The group rebalances, and this member is eager: everything must be given up BEFORE the next join is sent.

    Attributes:
        partitions: all that is owned, to be given up before the next piece of work.

    """

    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Ownership ended without our consent (KIP-429: onPartitionsLost): nothing of it may be committed any more."""

    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoining:
    """A join is about to be sent for `reason`; AFTER everything that had to be given up first was."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The machine has ended: the seat was given back.

    If `error` is not NONE, nobody has confirmed it, and the seat may stay until its session is over.
    """

    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The machine ends with an error that retrying cannot mend; a dynamic member leaves, and `Left` follows."""

    error: GroupError


Work = Send | Look | LookAtSeat | ComputeAssignment
"""What is done beside the machine and ends in an event, or in none if nobody answers."""

Notice = Joined | Assigned | GiveUpAll | Lost | Rejoining | Left | Failed
"""What the application is to know, in order; nothing is asked of the outside."""

Effect = Connect | Work | Notice
