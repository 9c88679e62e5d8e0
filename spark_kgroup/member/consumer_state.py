"""The states of a member under the consumer protocol, and the steps between them. `consumer` has the table.

::

      IDLE --Join--> JOINING <---------------------------------------------------+
       |              |  |  ^                                                    |
       |  it owes     |  |  |                                                    |
       +--> RESUMING -|--|--+-- the old membership is over;  all given up --> RELEASING
                      |  |  |                                                    |
       the seat has   |  |  | it is released, or                                 |
       another member |  |  | no member has it                                   |
                      v  |  |                                                    |
                 LOOKING |  RELEASING        a join with an id that the group    |
                      |  |   ^   ^           has already releases it first       |
                      +--|---+   +-- JOINING                                     |
                         |                                                       |
       a member epoch    |                                                       |
                         v                                                       |
            STABLE <---> RECONCILING --------------------------------------------+  fenced, or a session lost

      any state but IDLE --Leave, or Close in a seat that owes nothing--> LEAVING --answer--> CLOSED
      any state but CLOSED --Close, or an error that retrying cannot mend--> CLOSED, a dynamic member LEAVING first

RESUMING goes on as the member that an earlier process was, until it owes the group no partition any more. Kafka's
MemberState has RECONCILING and ACKNOWLEDGING for our RECONCILING, FENCED for the way back to JOINING. It has no state
for LOOKING, RELEASING and RESUMING: Java's client ends where a static seat is taken, and leaves it for a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class State(Enum):
    """The states of a member, each with the events it answers. `LEAVES_TO` has the states that may follow."""

    IDLE = "idle"
    """Not started. Answers Join."""

    RESUMING = "resuming"
    """Goes on as an earlier process's member, which has partitions to give up. Heartbeats. Answers GaveUp,
    TopicsResolved, ConsumerHeartbeatResponse."""

    JOINING = "joining"
    """Not a member: a heartbeat with epoch 0 is on its way, or a backoff runs. Answers ConsumerHeartbeatResponse."""

    LOOKING = "looking"
    """The group has another member in our static seat. Answers SeatSeen."""

    RELEASING = "releasing"
    """A heartbeat that releases the seat for us is on its way. Answers ConsumerHeartbeatResponse."""

    RECONCILING = "reconciling"
    """A member that has partitions to give up or to acknowledge, or topic ids to resolve. Heartbeats. Answers GaveUp,
    TopicsResolved, ConsumerHeartbeatResponse."""

    STABLE = "stable"
    """A member that owns the assigned partitions, as the coordinator knows. Heartbeats. Answers as RECONCILING does."""

    LEAVING = "leaving"
    """The last heartbeat is on its way. Answers ConsumerHeartbeatResponse."""

    CLOSED = "closed"
    """Ended, by Close, Leave or a fatal error. Answers no event."""


_ENDS: Final = frozenset({State.LEAVING, State.CLOSED})

LEAVES_TO: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.IDLE: frozenset({State.JOINING, State.RESUMING, State.CLOSED}),
        State.RESUMING: frozenset({State.JOINING, State.RELEASING}) | _ENDS,
        State.JOINING: frozenset({State.LOOKING, State.RELEASING, State.RECONCILING, State.STABLE}) | _ENDS,
        State.LOOKING: frozenset({State.JOINING, State.RELEASING, State.CLOSED}),
        State.RELEASING: frozenset({State.JOINING, State.LOOKING}) | _ENDS,
        State.RECONCILING: frozenset({State.STABLE, State.JOINING}) | _ENDS,
        State.STABLE: frozenset({State.RECONCILING, State.JOINING}) | _ENDS,
        State.LEAVING: frozenset({State.CLOSED}),
        State.CLOSED: frozenset(),
    }
)
"""The states that may follow each state. `StateMachine._become` refuses all other steps. Staying is no step."""
