"""One classic group: the table of states, events and handlers.

The law of this machine:

1. An event comes with a `Received` request, with the member id of a session, or alone. Handlers add effects to the
   `Shard`, in the order in which they are to be carried out.
2. `TRANSITIONS` has every pair of state and event that may occur. Any other is an `IllegalTransition`.
3. `ClassicGroup` alone changes members, votes and generations, and `ClassicGroup.become` the state.
4. A record is appended before the answers that promise it.

`state` draws the states, `joins`, `membership`, `rebalances` and `offsets` have the handlers.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from spark_kgroup.coordinator import joins, membership, offsets, rebalances
from spark_kgroup.coordinator.classic_group import ClassicGroup
from spark_kgroup.coordinator.contract import Received
from spark_kgroup.coordinator.shard import Shard
from spark_kgroup.coordinator.state import State
from spark_kgroup.errors import IllegalTransition
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.schema import JoinGroupRequest


class Event(Enum):
    """An event of one group."""

    JOIN_NEW = "JoinGroup of a dynamic member without an id"
    JOIN_NEW_STATIC = "JoinGroup of an unknown static member without an id"
    JOIN_REPLACES = "JoinGroup of a known static member without an id"
    JOIN_PENDING = "JoinGroup with the id that MEMBER_ID_REQUIRED gave"
    JOIN_KNOWN = "JoinGroup of a member"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"
    COMMIT = "OffsetCommit"
    SESSION_OVER = "the end of a session"
    JOIN_TIME_OVER = "the end of the time to join"
    SYNC_TIME_OVER = "the end of the time to sync"
    RESIGN = "the group moves to another broker"


Handler = Callable[..., None]
"""Called with the shard, the group, and the request or the member id if the event has one."""


def _nothing(_shard: Shard, _group: ClassicGroup) -> None:
    """No further step."""


_REBALANCES_AFTER: Final[dict[Event, Handler]] = {
    Event.HEARTBEAT: membership.beat(ErrorCode.NONE),
    Event.LEAVE: membership.leave(rebalances.prepare),
    Event.SESSION_OVER: membership.session_over(rebalances.prepare, of_pending=_nothing),
    Event.SYNC_TIME_OVER: rebalances.sync_time_over,
}
"""COMPLETING_REBALANCE and STABLE alike: a member that goes leaves a generation that the others rebalance."""

_WITH_A_NEW_MEMBER: Final[dict[Event, Handler]] = {
    Event.JOIN_NEW: joins.give_id_or_add,
    Event.JOIN_NEW_STATIC: joins.add_static,
    Event.JOIN_PENDING: joins.add_pending,
    Event.RESIGN: membership.resign,
}
"""Alike in every state but DEAD: `rebalances.rebalance` begins a rebalance, or looks whether it is complete."""

TRANSITIONS: Final[dict[State, dict[Event, Handler]]] = {
    # No member that could be known or replaced, and no rebalance whose time could be over.
    State.EMPTY: {
        **_WITH_A_NEW_MEMBER,
        Event.SYNC: membership.sync_refused(ErrorCode.UNKNOWN_MEMBER_ID),
        Event.HEARTBEAT: membership.beat_refused(ErrorCode.UNKNOWN_MEMBER_ID),
        Event.LEAVE: membership.leave(_nothing),
        Event.COMMIT: offsets.commit_to_empty,
        Event.SESSION_OVER: membership.session_over(_nothing, of_pending=_nothing),
    },
    # Parked JoinGroups are answered when all are there. The last one that is waited for may leave, or be silent.
    State.PREPARING_REBALANCE: {
        **_WITH_A_NEW_MEMBER,
        Event.JOIN_REPLACES: joins.replace_and_wait,
        Event.JOIN_KNOWN: joins.rejoin,
        Event.SYNC: membership.sync_in_rebalance,
        Event.HEARTBEAT: membership.beat(ErrorCode.REBALANCE_IN_PROGRESS),
        Event.LEAVE: membership.leave(rebalances.complete_if_all_joined),
        Event.COMMIT: offsets.commit_as_member,
        Event.SESSION_OVER: membership.session_over(rebalances.after_removal, of_pending=rebalances.after_removal),
        Event.JOIN_TIME_OVER: rebalances.join_time_over,
    },
    # Offsets belong to the generation before, and the new one has no assignment yet.
    State.COMPLETING_REBALANCE: {
        **_WITH_A_NEW_MEMBER,
        **_REBALANCES_AFTER,
        Event.JOIN_REPLACES: joins.replace_and_prepare,
        Event.JOIN_KNOWN: joins.rejoin_new_generation,
        Event.SYNC: membership.sync_new_generation,
        Event.COMMIT: offsets.commit_too_early,
    },
    # Only the leader, a changed follower, or a change of members begins a rebalance.
    State.STABLE: {
        **_WITH_A_NEW_MEMBER,
        **_REBALANCES_AFTER,
        Event.JOIN_REPLACES: joins.replace_at_rest,
        Event.JOIN_KNOWN: joins.rejoin_at_rest,
        Event.SYNC: membership.sync_at_rest,
        Event.COMMIT: offsets.commit_as_member,
    },
    # The client looks for another coordinator. No timer is left.
    State.DEAD: {
        Event.JOIN_NEW: joins.join_unavailable,
        Event.JOIN_NEW_STATIC: joins.join_unavailable,
        Event.JOIN_KNOWN: joins.join_unavailable,
        Event.SYNC: membership.sync_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Event.HEARTBEAT: membership.beat_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Event.LEAVE: membership.leave_unavailable,
        Event.COMMIT: offsets.commit_unavailable,
    },
}
"""State x event -> handler. A pair that is not here cannot happen, and is a bug if it does."""


def happen(shard: Shard, group: ClassicGroup, event: Event, *about: Received | str) -> None:
    """Let an event happen to a group.

    Raises:
        IllegalTransition: the pair of state and event is not in the table: a bug of ours.
    """
    handler = TRANSITIONS[group.state].get(event)
    if handler is None:
        raise IllegalTransition("classic group", group.state.value, event.name)
    handler(shard, group, *about)


def kind_of_join(group: ClassicGroup, request: JoinGroupRequest) -> Event:
    """Which event a JoinGroup is."""
    if request.member_id:
        return Event.JOIN_PENDING if request.member_id in group.pending_joins else Event.JOIN_KNOWN
    if request.group_instance_id is None:
        return Event.JOIN_NEW
    return Event.JOIN_REPLACES if request.group_instance_id in group.seats else Event.JOIN_NEW_STATIC
