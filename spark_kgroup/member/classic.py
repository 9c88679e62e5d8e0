"""The member's half of the classic group protocol, without any I/O: the table of states, events and handlers.

The law of this machine:

1. An event and `now_ms` go in (`ClassicMember.handle`), effects come out, in the order in which they are to be carried
   out. No method reads a clock, a socket or a random source.
2. `TRANSITIONS` has every pair of state and event that may occur. Any other is an `IllegalTransition`.
3. `StateMachine._become` alone changes the state, and takes no step that `state.LEAVES_TO` does not have.
4. `ownership` alone changes the owned, assigned and claimed partitions. Its invariants hold after each event.
5. Timers are data (`next_wakeup_at_ms`). A `Tick` fires those that are due.

`state` draws the states, `handlers` has a method for each event and `actions` their steps, `contract` has the events
and effects.

Sources: KIP-345 (static membership), KIP-394 (MEMBER_ID_REQUIRED), KIP-429 (cooperative rebalance), KIP-792 (generation
in the subscription), KIP-800 (reasons), KIP-814 (SkipAssignment), and Kafka's AbstractCoordinator and
ConsumerCoordinator where the KIPs leave a question open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from spark_kgroup.member import contract
from spark_kgroup.member.config import MemberConfig, PreviouslyOwned
from spark_kgroup.member.handlers import IN_A_GENERATION, Handlers
from spark_kgroup.member.state import LEAVES_TO, State

__all__ = ["LEAVES_TO", "TRANSITIONS", "ClassicMember", "MemberConfig", "PreviouslyOwned", "State"]

Handler = Callable[[Handlers, Any, int], list[contract.Effect]]
_M: Final = Handlers

_ALWAYS: Final[dict[type[contract.Event], Handler]] = {
    contract.Tick: _M._on_tick,
    contract.Leave: _M._on_leave,
    # A static seat is kept for the next process, so no request is sent.
    contract.Close: _M._on_close,
}
"""Alike in every state between IDLE and LEAVING: time passes, and a user may end the member at any time."""

_REBALANCING: Final[dict[type[contract.Event], Handler]] = {
    **_ALWAYS,
    contract.ConnectionLost: _M._on_connection_lost,
    # Answers to requests that a lost connection, or an error, has made us send anew. One that comes in another state
    # does not lead to SyncGroup (AbstractCoordinator.JoinGroupResponseHandler).
    contract.JoinResponse: _M._ignore,
    contract.SyncResponse: _M._ignore,
    contract.HeartbeatResponse: _M._on_look_response,
    contract.AssignmentComputed: _M._ignore,
    contract.AssignmentFailed: _M._ignore,
    contract.GaveUp: _M._on_gave_up,
    contract.RejoinWanted: _M._ignore,  # the next generation is on its way
    contract.NeighbourJoins: _M._ignore,
    contract.Rename: _M._ignore,
    contract.RenameResponse: _M._ignore,
    contract.MembershipRefused: _M._on_membership_refused,
    contract.SeatSeen: _M._ignore,
}
"""JOINING, ASSIGNING and SYNCING alike. The rows below say where they differ.

No heartbeat goes over our connection, for the coordinator reads no request behind a parked one: a HeartbeatResponse
here answers a look. Partitions may be given up all the while, for owned ones are read on through a rebalance (KIP-429).
"""

_IN_GENERATION: Final[dict[type[contract.Event], Handler]] = {
    **_ALWAYS,
    contract.Connected: _M._on_connected_in_generation,
    contract.ConnectionLost: _M._on_connection_lost,
    # Answers to requests sent before this generation was complete, and sent anew since.
    contract.JoinResponse: _M._ignore,
    contract.SyncResponse: _M._ignore,
    contract.HeartbeatResponse: _M._on_heartbeat_response,
    contract.AssignmentComputed: _M._ignore,
    contract.AssignmentFailed: _M._ignore,
    contract.GaveUp: _M._on_gave_up,
    contract.RejoinWanted: _M._on_rejoin_wanted,
    contract.NeighbourJoins: _M._on_neighbour_joins,
    contract.Rename: _M._ignore,
    contract.RenameResponse: _M._ignore,
    contract.MembershipRefused: _M._on_membership_refused,
    contract.SeatSeen: _M._ignore,
}
"""STABLE and REVOKING alike: a member heartbeats, and may be asked to join again. They differ in the effect of
`GaveUp`, and STABLE alone renames."""

_EVENTS: Final[tuple[type[contract.Event], ...]] = contract.Event.__args__
"""All events. `test_member_transitions` puts each to each state."""

TRANSITIONS: Final[dict[State, dict[type[contract.Event], Handler]]] = {
    # No request was sent, so no answer can come.
    State.IDLE: {
        **_ALWAYS,
        contract.Join: _M._on_join,
        contract.Tick: _M._ignore,
    },
    # The answer to JoinGroup says which generation, and whether we lead it.
    State.JOINING: {
        **_REBALANCING,
        contract.Connected: _M._on_connected_joining,
        contract.JoinResponse: _M._on_join_response,
        contract.SeatSeen: _M._on_seat_seen,
    },
    # No request is sent to the coordinator: the assignor's result goes out with SyncGroup.
    State.ASSIGNING: {
        **_REBALANCING,
        contract.Connected: _M._on_connected_assigning,
        contract.AssignmentComputed: _M._on_assignment_computed,
        contract.AssignmentFailed: _M._on_assignment_failed,
    },
    # Never Connected: a member syncs only while it is, and joins again over the next connection.
    State.SYNCING: {
        **_REBALANCING,
        contract.SyncResponse: _M._on_sync_response,
    },
    # The owned partitions are the assigned ones. A generation ends when the answer to a heartbeat, or to a commit, says
    # so.
    State.STABLE: {
        **_IN_GENERATION,
        contract.Rename: _M._on_rename,
    },
    # Partitions must be given up first (KIP-429, "Consumer Coordinator Algorithm"). An eager member joins only when
    # they are, a cooperative one also when the group rebalances.
    State.REVOKING: _IN_GENERATION,
    # Which of its two ids the coordinator knows is open, so answers about the old one have no meaning. Never Connected:
    # without a connection no seat is renamed.
    State.RENAMING: {
        **dict.fromkeys(set(_EVENTS) - {contract.Join, contract.LeaveResponse, contract.Connected}, _M._ignore),
        **_ALWAYS,
        contract.ConnectionLost: _M._on_connection_lost,
        contract.RenameResponse: _M._on_rename_response,
        contract.GaveUp: _M._on_gave_up,
        contract.RejoinWanted: _M._on_rejoin_wanted_renaming,
    },
    # Requests under way are over. LeaveGroup is sent past them, and is always answered (`Send`).
    State.LEAVING: {
        **dict.fromkeys(set(_EVENTS) - {contract.Join}, _M._ignore),
        contract.LeaveResponse: _M._on_leave_response,
        contract.Close: _M._on_close,
    },
    # Answers that were on their way when the member ended may still arrive.
    State.CLOSED: dict.fromkeys(_EVENTS, _M._ignore),
}
"""State x event -> handler. A pair that is not here cannot happen, and is a bug if it does."""


class ClassicMember(Handlers):
    """One member's state machine: the handlers behind their table.

    `runtime.session` runs one in real time; the simulated worlds of the tests run many in virtual time, and the random
    walk of `test_member_transitions` takes each step of `LEAVES_TO`.
    """

    @property
    def in_generation(self) -> bool:
        """In a generation, with its assignment."""
        return self.state in IN_A_GENERATION

    def in_touch(self, now_ms: int) -> bool:
        """In a generation, connected, and no heartbeat has been unanswered for an interval."""
        late_at_ms = self._heartbeats.awaited_at_ms + self.config.heartbeat_interval_ms
        answered = self._heartbeats.awaited is None or now_ms <= late_at_ms
        return self.in_generation and self._connected and answered

    @property
    def awaits_join(self) -> bool:
        """A join was sent and is not answered yet."""
        return isinstance(self._awaited, contract.JoinRequest)

    @property
    def assigning_in(self) -> int | None:
        """The generation that waits for this leader's assignor, None if none does."""
        return self.identity.generation if self.state is State.ASSIGNING else None

    @property
    def settled(self) -> bool:
        """In a generation, no partition to give up, no rejoin on its way."""
        return self.state is State.STABLE

    def handle(self, event: contract.Event, now_ms: int) -> list[contract.Effect]:
        """Take one event, and return the effects to be carried out, in order.

        Raises:
            IllegalTransition: the pair of state and event is not in the table: a bug of the caller or ours.

        """
        return self._follow(TRANSITIONS, event, now_ms)
