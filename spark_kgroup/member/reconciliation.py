"""The partitions that a member under the consumer protocol owns and is assigned, by name and by topic id.

The coordinator speaks of topic ids, the application of names. An id without a name waits until brokers know it. A topic
that was deleted and created anew has its old name and another id: owned partitions of the old one are lost, not given
up, because no position of them can be committed again.

=============  =========================================================================================================
`owned`        partitions the application may be reading: added when assigned, removed when given up or lost
`inherited`    partitions an earlier process may have been reading, in whose name this one goes on: never grows
`assigned`     the coordinator's word, as far as its topics have names
`to_give_up`   owned + inherited - assigned: given up before the next piece of work, and acknowledged
`unnamed`      ids in the coordinator's word that have no name yet
=============  =========================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from spark_kgroup.model import TopicIdPartition, TopicPartition


class Reconciliation:
    """The partitions of one member, on their way from the owned ones to the assigned ones."""

    def __init__(self) -> None:
        self._owned: dict[TopicPartition, UUID] = {}
        self._inherited: dict[TopicPartition, UUID] = {}
        self._word: frozenset[TopicIdPartition] = frozenset()
        self._heard = False
        """Whether the coordinator has given its word to this process."""
        self._names: dict[UUID, str] = {}
        self._replaced: set[UUID] = set()
        """Ids of topics whose name belongs to another id by now."""
        self._acknowledged: frozenset[TopicIdPartition] = frozenset()

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that the application may be reading."""
        return frozenset(self._owned)

    @property
    def owned_by_id(self) -> frozenset[TopicIdPartition]:
        """The owned and inherited partitions by topic id, as a heartbeat tells the coordinator."""
        held = {**self._inherited, **self._owned}
        return frozenset(TopicIdPartition(topic_id, tp.partition) for tp, topic_id in held.items())

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The coordinator's word, by the names that are known."""
        return frozenset(self._assigned_by_name())

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """The partitions to give up before the next piece of work."""
        # Before the first word `assigned` is empty, so all inherited partitions would seem to be revoked.
        held = {**self._inherited, **self._owned} if self._heard else self._owned
        return frozenset(held) - self.assigned

    @property
    def unnamed(self) -> frozenset[UUID]:
        """Topic ids of which brokers have to say the name."""
        # An id whose name has passed to another one is not asked for again: its topic was deleted.
        return frozenset(each.topic_id for each in self._word if each.topic_id not in self._names) - self._replaced

    @property
    def acknowledged(self) -> bool:
        """Whether the coordinator was last told of exactly the owned and inherited partitions."""
        return self.owned_by_id == self._acknowledged

    @property
    def at_rest(self) -> bool:
        """No partition to adopt, to give up or to acknowledge, and no topic id to resolve."""
        return not self.unnamed and self.assigned == self.owned and not self.to_give_up and self.acknowledged

    def _assigned_by_name(self) -> dict[TopicPartition, UUID]:
        named = (each for each in self._word if each.topic_id in self._names)
        return {TopicPartition(self._names[each.topic_id], each.partition): each.topic_id for each in named}

    def inherit(self, owned: Iterable[tuple[TopicPartition, UUID]]) -> None:
        """Go on for a process that may have been reading `owned`."""
        self._inherited = dict(owned)
        self._names |= {topic_id: tp.topic for tp, topic_id in self._inherited.items()}

    def assign(self, word: frozenset[TopicIdPartition]) -> None:
        """Take the coordinator's word. `adopt` follows, unless we go on for another process."""
        self._word, self._heard = word, True
        needed = {each.topic_id for each in word} | {*self._owned.values(), *self._inherited.values()}
        self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in needed}
        self._replaced &= needed

    def resolve(self, names: Iterable[tuple[UUID, str]]) -> None:
        """Learn the names of topic ids that were asked for. `adopt` follows."""
        for topic_id, name in names:
            if topic_id in self.unnamed:
                older = [known for known, other in self._names.items() if other == name]
                self._replaced.update(older)
                for known in older:
                    del self._names[known]
                self._names[topic_id] = name

    def adopt(self) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """Own all assigned partitions. Returns those that are lost with their topic, and those that are new."""
        lost = frozenset(tp for tp, topic_id in self._owned.items() if topic_id in self._replaced)
        for tp in lost:
            del self._owned[tp]
        # AFTER the lost ones are gone: a partition of the new topic has the name of the old one, and counts as added.
        assigned = self._assigned_by_name()
        added = frozenset(assigned.keys() - self._owned.keys())
        self._owned.update((tp, assigned[tp]) for tp in added)
        return lost, added

    def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """The application reads none of `partitions` any more, and their positions are committed."""
        for tp in partitions:
            self._owned.pop(tp, None)
            self._inherited.pop(tp, None)

    def acknowledge(self, owned: frozenset[TopicIdPartition]) -> None:
        """The coordinator has heard that we own these."""
        self._acknowledged = owned

    def lose_all(self) -> frozenset[TopicPartition]:
        """The membership is over. Returns the partitions it owned. Names stay: most of them will be needed again."""
        lost = self.owned
        self._owned.clear()
        self._inherited.clear()
        self._word = self._acknowledged = frozenset()
        self._heard = False
        return lost
