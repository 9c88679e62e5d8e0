"""Where a member stands. `classic` has the table of what leads from where to where."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a member stands. Each state says what it answers to and what it leaves to.

    Besides, Leave and Close lead from every state to LEAVING or CLOSED, and so does a fatal error.
    """

    IDLE = "idle"
    """Not started. Leaves to JOINING on Start."""

    JOINING = "joining"
    """Wants to be in the next generation: waits for a connection, a backoff, or the answer to JoinGroup, which the
    coordinator parks until all members have joined. Leaves to ASSIGNING (leader) or SYNCING."""

    ASSIGNING = "assigning"
    """Leads a new generation; the assignor runs outside. Leaves to SYNCING on AssignmentComputed, or back to JOINING
    if a connection was lost meanwhile or the session ran out."""

    SYNCING = "syncing"
    """Waits for its share of the assignment, which the coordinator parks until the leader's is there. Leaves to STABLE,
    or REVOKING if something held is not in it, or back to JOINING if the group has moved on or the answer is lost."""

    STABLE = "stable"
    """In a generation, holding what it is assigned. Heartbeats. Leaves to JOINING when the group rebalances; an eager
    member that holds something to REVOKING."""

    REVOKING = "revoking"
    """In a generation, but something held must be given up at the next boundary. Heartbeats. Leaves to JOINING once it
    is given up; a cooperative member also when the group rebalances, claiming what it still holds."""

    LEAVING = "leaving"
    """LeaveGroup is on its way, past whatever is parked on our connection. Leaves to CLOSED on any answer."""

    CLOSED = "closed"
    """Ended, by Close, Leave or a fatal error. Answers nothing."""
