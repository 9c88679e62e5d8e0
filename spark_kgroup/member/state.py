"""The states of a classic member, and the steps between them. `classic` has the table of events that each answers.

::

              Join
      IDLE ----------> JOINING <--------------------------------------------+
                         |  |                                               |
      leads and assigns  |  |  follows, or leads and must not assign        |
                         v  |  (SkipAssignment, KIP-814)                    |
                 ASSIGNING -|---------------------------------------------->+  connection or session lost
                         |  |                                               |
      the assignor has   |  |                                               |
      run                v  v                                               |
                        SYNCING ------------------------------------------->+  the group moved on, the answer was
                         |  |                                               |  lost, or our join claimed too much
      none to give up    |  |  partitions to give up                        |
                         v  |                                               |
      RENAMING <--> STABLE -|---------------------------------------------->+  the group rebalances, or must
         |               |  |                                               |
         |               |  |                     the seat has its new id   |
         +------------------------------------------------------------------+
                         |  |                                               |
      eager, and owns    |  |                                               |
      partitions         v  v                                               |
                       REVOKING ------------------------------------------->+  all is given up; cooperative: the
                                                                               group rebalances, too

      any state but IDLE --Leave, or a dynamic member's final error--> LEAVING --answer--> CLOSED
      any state but CLOSED --Close, or an error that retrying cannot mend--> CLOSED

Kafka's AbstractCoordinator has four of these (MemberState): UNJOINED is IDLE, PREPARING_REBALANCE is JOINING,
COMPLETING_REBALANCE is ASSIGNING and SYNCING, STABLE is STABLE, REVOKING and RENAMING: it revokes in a callback that
blocks (ConsumerCoordinator.onJoinPrepare, onJoinComplete), and we wait for the end of a piece of work.
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

    JOINING = "joining"
    """Wants to be in the next generation: waits for a connection, a backoff, or the answer to JoinGroup, which the
    coordinator parks until all members have joined. Answers JoinResponse and, while the join is parked,
    HeartbeatResponse."""

    ASSIGNING = "assigning"
    """Leads a new generation. The assignor runs outside. Answers AssignmentComputed."""

    SYNCING = "syncing"
    """Waits for its assignment, which the coordinator parks until the leader's is there. Answers
    SyncResponse and, while the sync is parked, HeartbeatResponse."""

    STABLE = "stable"
    """In a generation, owning the assigned partitions. Heartbeats. Answers HeartbeatResponse, RejoinWanted, GaveUp."""

    REVOKING = "revoking"
    """In a generation, but partitions must be given up before the next piece of work. Heartbeats. Answers as STABLE
    does."""

    RENAMING = "renaming"
    """In a generation, and asks the coordinator to have its seat under another member id, made here. Sends no heartbeat
    meanwhile, for it does not know under which id. Answers RenameResponse."""

    LEAVING = "leaving"
    """LeaveGroup is on its way, past any request parked on our connection. Answers LeaveResponse."""

    CLOSED = "closed"
    """Ended, by Close, Leave or a fatal error. Answers no event."""


_ENDS: Final = frozenset({State.LEAVING, State.CLOSED})

LEAVES_TO: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.IDLE: frozenset({State.JOINING, State.CLOSED}),
        State.JOINING: frozenset({State.ASSIGNING, State.SYNCING}) | _ENDS,
        State.ASSIGNING: frozenset({State.SYNCING, State.JOINING}) | _ENDS,
        State.SYNCING: frozenset({State.STABLE, State.REVOKING, State.JOINING}) | _ENDS,
        State.STABLE: frozenset({State.JOINING, State.REVOKING, State.RENAMING}) | _ENDS,
        State.RENAMING: frozenset({State.STABLE, State.JOINING}) | _ENDS,
        State.REVOKING: frozenset({State.JOINING}) | _ENDS,
        State.LEAVING: frozenset({State.CLOSED}),
        State.CLOSED: frozenset(),
    }
)
"""The states that may follow each state. `StateMachine._become` refuses all other steps. Staying is no step."""
