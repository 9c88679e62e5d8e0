"""What one member owns, is assigned and claims: sets of partitions, and what always holds among them.

KIP-429 has three sets: owned, assigned, revoked. Two more come from what it leaves out: a process that continues where
another one ended, and an assignment that a member never asked for. All are values; time and messages are elsewhere.

==================  ====================================================================================================
`owned`             what the application may be reading; grows with each assignment, shrinks when it is given up or lost
`assigned`          the group's word: what of the last SyncGroup this member subscribes
`previously_owned`  what an earlier process of this seat owned; claimed until the first assignment answers it
`left_over`         of that, what was assigned to somebody else: claimed until the application has given it up
`unwanted`          assigned, of topics that we do not subscribe: claimed until the application has given it up
`claimed`           what the last answered join claimed: what the leader goes by until our next one
==================  ====================================================================================================

Derived::

    claims     = owned | previously_owned | left_over | unwanted        the next join says that we own these
    to_give_up = (owned - assigned) | left_over | unwanted              given up before the next piece of work

Invariants, after each event (`tests/harness/simulated_invariants.py` checks them)::

    1. owned & left_over == owned & unwanted == left_over & unwanted == {}      each is given up for one reason
    2. assigned & left_over == assigned & unwanted == {}
    3. previously_owned != {}  =>  owned == assigned == left_over == unwanted == {}     nothing was assigned yet
    4. topics(owned | assigned) <= subscribed,  topics(unwanted) & subscribed == {}
    5. (owned - assigned) | left_over <= claimed      what is kept beyond the assignment, the leader has reckoned with
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
        tolerated: assigned once more though we neither subscribe nor claimed it: neither owned nor given up.
        objections: how many generations in a row assigned us what we neither subscribe nor claimed.

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
        """From the next assignment on, `topics` are what is subscribed; until then nothing changes."""
        self._topics = frozenset(topics)

    @property
    def claims(self) -> frozenset[TopicPartition]:
        """What the next join claims, so that the leader hands none of it on while it may be read here."""
        return self.owned | self.previously_owned | self.left_over | self.unwanted

    @property
    def claims_generation(self) -> int:
        """The generation in which `claims` were assigned: a subscription has one for all of them (KIP-792).

        What is left over may have another owner by now, who claims it in our generation and must win. What we own may
        be claimed by a process that comes back and knows it from before, and must not win. So it is the generation
        before ours: who claims the same in that one is no surer than we are, and the leader gives it to neither.
        """
        return max(self._previously_owned_in, self.assigned_in - 1) if self.left_over else self.assigned_in

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """What is to be given up: KIP-429's `Minus(owned-partitions, assigned-partitions)`, and more."""
        return (self.owned - self.assigned) | self.left_over | self.unwanted

    @property
    def claimed_beyond_assigned(self) -> frozenset[TopicPartition]:
        """What the leader kept from others for us, and we do not need."""
        return self.claimed - self.assigned

    @property
    def assigned_beyond_owned(self) -> frozenset[TopicPartition]:
        """What the group believes that we read, and nobody does."""
        return self.assigned - self.owned

    def confirms(self, assignment: frozenset[TopicPartition]) -> bool:
        """Whether `assignment` says what the last one said."""
        return assignment == self.assigned | self.unwanted

    def take(self, assignment: frozenset[TopicPartition], generation: int) -> frozenset[TopicPartition]:
        """Make the answer to SyncGroup the group's word; returns what is new (KIP-429: newly-added-partitions).

        Nothing leaves `owned` here: what is not in `assignment` is read on until the application gives it up.
        """
        self.left_over = (self.previously_owned | self.left_over) - assignment
        self.previously_owned = _NONE
        self.assigned = self._subscribed_of(assignment)
        self.assigned_in = generation
        added = self.assigned - self.owned
        self.owned |= added
        return added

    def _subscribed_of(self, assignment: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """What of `assignment` is subscribed. The rest is to be given up, where that tells the leader news.

        1. a static seat comes back with another subscription; 2. the group stays as it is, and so does its assignment
        (KIP-345); 3. only the join that follows when the unwanted is given up tells the leader of it. 4. A leader of
        another client that assigns such a topic even then would have the group rebalance without end: what it assigns
        again is tolerated, and joins that object to it come ever more seldom.
        """
        foreign = frozenset(tp for tp in assignment if tp.topic not in self._topics)
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
        """Lose what is owned and no join has claimed; returns it."""
        lost = self.owned - self.claimed
        self.owned -= lost
        return lost

    def lose_all(self) -> frozenset[TopicPartition]:
        """Lose everything (KIP-429: onPartitionsLost for all partitions, then join with none); returns what was owned.

        What was not read by us is lost without a word: nobody here has to stop reading it.
        """
        lost, self.owned, self.assigned = self.owned, _NONE, _NONE
        self.previously_owned = self.left_over = self.unwanted = _NONE
        self.assigned_in = NO_GENERATION
        self.objections = 0
        return lost
