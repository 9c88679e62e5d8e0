"""The sets of partitions that one member owns, is assigned and claims, and the invariants among them.

KIP-429 has three sets: owned, assigned, revoked. Two more come from cases that it leaves out: a process that continues
where another one ended, and an assignment that a member never asked for. All are values. Time and messages are
elsewhere.

==================  ====================================================================================================
`owned`             partitions the application may be reading: added when assigned, removed when given up or lost
`assigned`          the group's word: the part of the last SyncGroup that this member subscribes to
`previously_owned`  owned by an earlier process of this seat: claimed until the first assignment answers it
`left_over`         the part of that not assigned to this member: claimed until the application has given it up
`unwanted`          assigned, of topics that we do not subscribe to: claimed until the application has given it up
`claimed`           the claims of the last answered join, by which the leader goes until our next one
==================  ====================================================================================================

Derived::

    claims     = owned | previously_owned | left_over | unwanted        the next join says that we own these
    to_give_up = (owned - assigned) | left_over | unwanted              given up before the next piece of work

Invariants, after each event (`tests/harness/simulated_invariants.py` checks them)::

    1. owned & left_over == owned & unwanted == left_over & unwanted == {}      each is given up for one reason
    2. assigned & left_over == assigned & unwanted == {}
    3. previously_owned != {}  =>  owned == assigned == left_over == unwanted == {}     nothing was assigned yet
    4. topics(owned | assigned) <= subscribed,  topics(unwanted) & subscribed == {}
    5. (owned - assigned) | left_over <= claimed      the leader knows of all that is kept beyond the assignment
    6. owned != {}  =>  assigned_in != NO_GENERATION
"""

from __future__ import annotations

from collections.abc import Collection

from spark_kgroup.member.config import PreviouslyOwned
from spark_kgroup.model import NO_GENERATION, TopicPartition

_NONE: frozenset[TopicPartition] = frozenset()


class Ownership:
    """The sets of one member.

    Attributes:
        assigned_in: the generation of `assigned`: claims of a later one win over ours (KIP-792).
        tolerated: partitions assigned once more though we neither subscribe to nor claimed them: neither owned nor
            given up.
        objections: how many generations in a row assigned us partitions that we neither subscribe to nor claimed.

    """

    def __init__(self, topics: Collection[str], owned_before: PreviouslyOwned) -> None:
        self.owned = _NONE
        self.assigned = _NONE
        self.assigned_in = owned_before.generation
        self.previously_owned = owned_before.partitions
        self.left_over = _NONE
        self.unwanted = _NONE
        self.claimed = _NONE
        self.tolerated = _NONE
        self.objections = 0
        self._topics = frozenset(topics)
        self._previously_owned_in = owned_before.generation

    def subscribe(self, topics: Collection[str]) -> None:
        """Take `topics` for the subscription from the next assignment on."""
        self._topics = frozenset(topics)

    @property
    def claims(self) -> frozenset[TopicPartition]:
        """The claims of the next join, so that the leader hands on no partition that may be read here."""
        return self.owned | self.previously_owned | self.left_over | self.unwanted

    @property
    def claims_generation(self) -> int:
        """The generation in which `claims` were assigned: a subscription has one for all of them (KIP-792).

        With left-over partitions it is the generation before ours, or that of the earlier process if it is later. A
        left-over partition may have another owner by now, which claims it in our generation and must win. A process
        that comes back may claim a partition of ours from an older generation, and must not win. A claim in the same
        generation is as unsure as ours, and the leader gives the partition to neither.
        """
        return max(self._previously_owned_in, self.assigned_in - 1) if self.left_over else self.assigned_in

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """The partitions to give up: KIP-429's `Minus(owned-partitions, assigned-partitions)`, and more."""
        return (self.owned - self.assigned) | self.left_over | self.unwanted

    @property
    def claimed_beyond_assigned(self) -> frozenset[TopicPartition]:
        """Partitions that the leader kept from other members for us, and that we do not need."""
        return self.claimed - self.assigned

    @property
    def assigned_beyond_owned(self) -> frozenset[TopicPartition]:
        """Partitions that the group believes we read, and that no member reads."""
        return self.assigned - self.owned

    def confirms(self, assignment: frozenset[TopicPartition]) -> bool:
        """Whether `assignment` is the assigned and unwanted partitions: the last one, unless some were tolerated."""
        return assignment == self.assigned | self.unwanted

    def take(self, assignment: frozenset[TopicPartition], generation: int) -> frozenset[TopicPartition]:
        """Make the answer to SyncGroup the group's word. Returns the new partitions (KIP-429: newly-added-partitions).

        No partition leaves `owned` here: one that is not in `assignment` is read on until the application gives it up.
        """
        self.left_over = (self.previously_owned | self.left_over) - assignment
        self.previously_owned = _NONE
        self.assigned = self._subscribed_part(assignment)
        self.assigned_in = generation
        added = self.assigned - self.owned
        self.owned |= added
        return added

    def _subscribed_part(self, assignment: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """The subscribed part of `assignment`. The rest is to be given up, where that tells the leader news.

        1. A static seat comes back with another subscription. 2. The group stays as it is, and so does its assignment
        (KIP-345). 3. Only the join that follows when the unwanted partitions are given up tells the leader of it. 4. A
        leader of another client that assigns such a topic even then would have the group rebalance without end: a
        partition that it assigns again is tolerated, and joins that object to it come ever more seldom.
        """
        foreign = frozenset(tp for tp in assignment if tp.topic not in self._topics)
        # While our last join claims a partition, the leader leaves it with us: it cannot know yet that it is unwanted.
        news = foreign & self.claimed if self.objections else foreign
        self.unwanted |= news
        self.tolerated = foreign - news
        self.objections = self.objections + bool(foreign - self.claimed) if foreign else 0
        return assignment - foreign

    def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """The application reads none of `partitions` any more, and their positions are committed."""
        self.owned -= partitions
        self.left_over -= partitions
        self.unwanted -= partitions

    def lose_unclaimed(self) -> frozenset[TopicPartition]:
        """Lose the owned partitions that no join has claimed (`claimed`), and return them."""
        lost = self.owned - self.claimed
        self.owned -= lost
        return lost

    def lose_all(self) -> frozenset[TopicPartition]:
        """Lose all partitions (KIP-429: onPartitionsLost for all, then join with none). Returns those that were owned.

        The rest is lost silently: this application does not read it, so it has no reading to stop.
        """
        lost, self.owned, self.assigned = self.owned, _NONE, _NONE
        self.previously_owned = self.left_over = self.unwanted = _NONE
        self.assigned_in = NO_GENERATION
        self.objections = 0
        return lost
