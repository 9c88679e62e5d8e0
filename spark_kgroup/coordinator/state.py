"""The states of a classic group, and the steps between them. `classic` has the table of events that each answers.

::

                 a member joins                        all have joined, or the time is over
      EMPTY ------------------> PREPARING_REBALANCE -----------------------> COMPLETING_REBALANCE
        ^                         |   ^         ^                                  |      |
        +--- no member is left ---+   |         +--- a member joins anew, leaves,  |      |  the leader's SyncGroup
                                      |              or sends no SyncGroup --------+      v
                                      +--- a member joins anew, leaves, or is silent -- STABLE

      any state --another broker coordinates, or the group is deleted--> DEAD
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class State(Enum):
    """Kafka's names (ClassicGroupState). `LEAVES_TO` has the states that may follow."""

    EMPTY = "Empty"
    """No members. The group is there for its offsets, or because a client has a member id and has not joined with it.

    Answers JoinGroup of new members. Answers SyncGroup and Heartbeat with UNKNOWN_MEMBER_ID, and OffsetCommit of
    clients that are no members (generation -1). Leaves to PREPARING_REBALANCE with the first member, and to DEAD when
    it is deleted or its last offset expires."""

    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for all members to join.

    Parks JoinGroup. Answers SyncGroup and Heartbeat with REBALANCE_IN_PROGRESS. Takes OffsetCommit of the generation
    that ends. Leaves to COMPLETING_REBALANCE when all members have joined, or the rebalance timeout is over (an empty
    group's first rebalance: the initial delay), and to EMPTY if no member is left then."""

    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation waits for its leader's assignment.

    Parks SyncGroup. Answers Heartbeat with NONE, OffsetCommit with REBALANCE_IN_PROGRESS, and JoinGroup of a member
    that has not changed with the new generation. Leaves to STABLE with the leader's SyncGroup, and to
    PREPARING_REBALANCE if a member comes, changes, leaves or sends no SyncGroup in time."""

    STABLE = "Stable"
    """Every member has, or can ask for, its assignment.

    Answers SyncGroup with the assignment, Heartbeat with NONE, JoinGroup of a follower that has not changed with the
    same generation, and of a static member that comes back without its member id as well. Takes OffsetCommit. Leaves to
    PREPARING_REBALANCE if a member comes, changes, leaves or is silent, or if the leader joins."""

    DEAD = "Dead"
    """The group is deleted, or another broker coordinates it. Answers with COORDINATOR_NOT_AVAILABLE, and is left to no
    other state."""


LEAVES_TO: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
        State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD}),
        State.COMPLETING_REBALANCE: frozenset({State.STABLE, State.PREPARING_REBALANCE, State.DEAD}),
        State.STABLE: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
        State.DEAD: frozenset(),
    }
)
"""The states that may follow each state (ClassicGroupState.validPreviousStates). `ClassicGroup.become` refuses all
other steps. A group that is loaded from its records begins in EMPTY or STABLE."""
