"""The member's half of the consumer group protocol, without any I/O: the table of states, events and handlers.

The law of this machine is that of `classic`:

1. An event and `now_ms` go in (`ConsumerMember.handle`), effects come out, in the order in which they are to be carried
   out. No method reads a clock, a socket or a random source.
2. `TRANSITIONS` has every pair of state and event that may occur. Any other is an `IllegalTransition`.
3. `StateMachine._become` alone changes the state, and takes no step that `consumer_state.LEAVES_TO` does not have.
4. `reconciliation` alone changes the owned and assigned partitions.
5. Timers are data (`next_wakeup_at_ms`). A `Tick` fires those that are due.
6. At most one heartbeat is awaited. The answer to any other has no effect.

Sources: KIP-848 (the protocol), KIP-1082 (member ids of the client's own), Kafka's AbstractMembershipManager,
ConsumerMembershipManager and ConsumerHeartbeatRequestManager for the client's half, GroupMetadataManager and
CurrentAssignmentBuilder for the coordinator's half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from spark_kgroup.member import consumer_contract, contract
from spark_kgroup.member.consumer_handlers import ConsumerHandlers
from spark_kgroup.member.consumer_state import LEAVES_TO, State

__all__ = ["LEAVES_TO", "TRANSITIONS", "ConsumerMember", "State"]

Handler = Callable[[ConsumerHandlers, Any, int], list[consumer_contract.Effect]]
_M: Final = ConsumerHandlers
_EVENTS: Final[tuple[type[consumer_contract.Event], ...]] = consumer_contract.Event.__args__

_STARTED: Final[dict[type[consumer_contract.Event], Handler]] = {
    contract.Tick: _M._on_tick,
    contract.Leave: _M._on_leave,
    contract.Close: _M._on_close,
    # No request asks for a rebalance: the coordinator watches metadata and subscriptions itself.
    contract.RejoinWanted: _M._ignore,
}
"""Alike in every state between IDLE and LEAVING: time passes, and a user may end the member at any time."""

_OUTSIDE: Final[dict[type[consumer_contract.Event], Handler]] = {
    **_STARTED,
    # Answers to earlier requests, and news of a membership that is over.
    consumer_contract.ConsumerHeartbeatResponse: _M._ignore,
    consumer_contract.Unanswered: _M._on_unanswered,
    consumer_contract.TopicsResolved: _M._ignore,
    consumer_contract.NewsExpected: _M._ignore,
    contract.GaveUp: _M._ignore,
    contract.MembershipRefused: _M._ignore,
    contract.SeatSeen: _M._ignore,
}
"""JOINING, LOOKING and RELEASING alike: not a member, owning no partitions. The rows below say where they differ."""

_IN_THE_GROUP: Final[dict[type[consumer_contract.Event], Handler]] = {
    **_STARTED,
    consumer_contract.ConsumerHeartbeatResponse: _M._on_heartbeat_response,
    consumer_contract.Unanswered: _M._on_unanswered,
    consumer_contract.TopicsResolved: _M._on_topics_resolved,
    consumer_contract.NewsExpected: _M._on_news_expected,
    contract.GaveUp: _M._on_gave_up,
    contract.MembershipRefused: _M._on_membership_refused,
    contract.SeatSeen: _M._ignore,
}
"""RECONCILING and STABLE alike: a member heartbeats, and reconciles with the answers. RESUMING differs in how it takes
an answer."""

TRANSITIONS: Final[dict[State, dict[type[consumer_contract.Event], Handler]]] = {
    # No request was sent, so no answer can come.
    State.IDLE: {
        contract.Join: _M._on_join,
        contract.Tick: _M._ignore,
        contract.Leave: _M._on_leave,
        contract.Close: _M._on_close,
    },
    # The answer has our first member epoch, or says that the group has another member in our place.
    State.JOINING: {
        **_OUTSIDE,
        consumer_contract.ConsumerHeartbeatResponse: _M._on_join_response,
    },
    State.RESUMING: {
        **_IN_THE_GROUP,
        consumer_contract.ConsumerHeartbeatResponse: _M._on_resume_response,
    },
    # No heartbeat is awaited: the holder of the seat is looked up by requests of other kinds.
    State.LOOKING: {
        **_OUTSIDE,
        contract.SeatSeen: _M._on_seat_seen,
    },
    State.RELEASING: {
        **_OUTSIDE,
        consumer_contract.ConsumerHeartbeatResponse: _M._on_release_response,
    },
    State.RECONCILING: _IN_THE_GROUP,
    State.STABLE: _IN_THE_GROUP,
    # Requests under way are over.
    State.LEAVING: {
        **dict.fromkeys(set(_EVENTS) - {contract.Join}, _M._ignore),
        consumer_contract.ConsumerHeartbeatResponse: _M._on_leave_response,
        consumer_contract.Unanswered: _M._on_leave_unanswered,
        contract.Close: _M._on_close,
    },
    # Answers that were on their way when the member ended may still arrive.
    State.CLOSED: dict.fromkeys(_EVENTS, _M._ignore),
}
"""State x event -> handler. A pair that is not here cannot happen, and is a bug if it does."""


class ConsumerMember(ConsumerHandlers):
    """One member's state machine under the consumer protocol: the handlers behind their table.

    `runtime.session` runs one in real time; a simulated world of the tests runs many in virtual time.
    """

    def handle(self, event: consumer_contract.Event, now_ms: int) -> list[consumer_contract.Effect]:
        """Take one event, and return the effects to be carried out, in order.

        Raises:
            IllegalTransition: the pair of state and event is not in the table: a bug of the caller or ours.

        """
        return self._follow(TRANSITIONS, event, now_ms)
