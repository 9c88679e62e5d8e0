"""The offset of Spark's own Kafka source in a checkpoint, from which a query goes on that is changed to kgroup.

Runs on: driver. Pure: JSON objects in and out, no I/O.

`format("kafka")` writes the next offset of each partition, and nothing else (KafkaSourceOffset)::

    {"flights": {"0": 1400, "1": 1377}}

A query with `format("kgroup")` on such a checkpoint remembers these positions and owns none of the partitions, as if
the group had taken them all away: the rules of `adoption` say where each one starts. Partitions that the offset does
not have are new ones, which `format("kafka")` would read from their beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kgroup.offsets.adoption import topic_key
from pyspark_kgroup.offsets.checkpoint import Checkpoint, Topic
from spark_kgroup.model import TopicDescription, TopicPartition


@dataclass(frozen=True, slots=True)
class KafkaOffset:
    """One offset of `format("kafka")`.

    Attributes:
        positions: partition -> the next offset to read. None of a query that has seen no partition yet.
    """

    positions: Mapping[TopicPartition, int]

    @staticmethod
    def from_json(raw: object) -> KafkaOffset | None:
        """Read what `format("kafka")` writes: {topic: {partition: offset}}. None for any other offset."""
        if not isinstance(raw, Mapping):
            return None
        positions: dict[TopicPartition, int] = {}
        for topic, offsets in raw.items():
            if not (_is_name(topic) and isinstance(offsets, Mapping) and offsets):
                return None
            for partition, offset in offsets.items():
                if not (_is_partition(partition) and type(offset) is int and 0 <= offset < 2**63):
                    return None
                positions[TopicPartition(topic, int(partition))] = offset
        return KafkaOffset(positions)

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `format("kafka")` reads, with sorted topics and partitions."""
        written: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.positions.items()):
            written.setdefault(topic, {})[str(partition)] = offset
        return written

    def checkpoint(
        self,
        subscribed: Container[str],
        topics: Mapping[str, TopicDescription],
        without: Collection[TopicPartition] = (),
    ) -> Checkpoint:
        """These positions as a checkpoint that remembers them and owns no partition.

        Topics have the ids that they have now, since `format("kafka")` writes none. A subscribed topic without a
        description keeps its positions under no id, so that it counts as gone. The positions in topics that are not
        subscribed are left out, as `format("kafka")` forgets them: without an id they could not be told from positions
        in another topic of that name.

        Args:
            subscribed: contains the names of topics that are read if they exist.
            topics: the subscribed topics as cluster metadata show them, or none to have positions alone.
            without: partitions that do not exist any more.
        """
        names = {tp.topic for tp in self.positions}
        return Checkpoint(
            topics={
                name: Topic(
                    topic_id=topic_key(topics[name]) if name in topics else "",
                    first_sight=0,  # a partition without a position was added later
                    left=name not in subscribed,
                )
                for name in names
            },
            lost={tp: offset for tp, offset in self.positions.items() if tp.topic in subscribed and tp not in without},
        )


def _is_name(topic: object) -> bool:
    """JSON's texts may hold half a letter (a lone surrogate), which no name can."""
    return isinstance(topic, str) and topic.isprintable()


def _is_partition(key: object) -> bool:
    """A partition's number in ASCII digits. Other digits of Unicode are refused."""
    return isinstance(key, str) and key.isascii() and key.isdigit() and int(key) < 2**31 and str(int(key)) == key


def exported(checkpoint: Checkpoint) -> KafkaOffset:
    """The positions of a query of kgroup in the partitions that it owns, from which `format("kafka")` goes on.

    Topics that are not subscribed any more are left out: `format("kafka")` would take them for deleted ones.
    """
    owned = checkpoint.owned.items()
    return KafkaOffset({tp: held.position for tp, held in owned if not _has_left(checkpoint, tp.topic)})


def not_owned(checkpoint: Checkpoint) -> list[TopicPartition]:
    """The known partitions of subscribed topics, in order, that the query does not own.

    Another member of the group may read on where this query has stopped, or had them from the beginning, or no leader
    has answered for them yet: the checkpoint does not say where `format("kafka")` would have to go on. Partitions that
    were added later are known only if a seat of the query had them.
    """
    known = {
        TopicPartition(name, number) for name, topic in checkpoint.topics.items() for number in range(topic.first_sight)
    }
    known |= {*checkpoint.lost, *checkpoint.given_up, *checkpoint.unstarted}
    return sorted({tp for tp in known if not _has_left(checkpoint, tp.topic)} - checkpoint.owned.keys())


def _has_left(checkpoint: Checkpoint, topic: str) -> bool:
    return topic in checkpoint.topics and checkpoint.topics[topic].left
