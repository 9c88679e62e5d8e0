"""Random groups to be assigned, each made from its seed alone."""

import base64
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors.contract import RebalanceProtocol
from spark_kgroup.model import GroupMember, Subscription, TopicDescription, TopicPartition

ASSIGNORS: Final = ("cooperative-sticky", "sticky", "range", "roundrobin")

_PARTITIONS: Final = (1, 1, 2, 3, 3, 4, 5, 8, 13)
_RACKS: Final = ("r1", "r2", "r3")
_GENERATION: Final = 5


@dataclass(frozen=True)
class Case:
    """One group that is to be assigned.

    Attributes:
        members: their claims and generation are in the subscription, for any assignor.
    """

    seed: int
    assignor: str
    members: Sequence[GroupMember]
    topics: Mapping[str, TopicDescription]

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions, and more than one round may be needed."""
        return assignor(self.assignor).protocol is RebalanceProtocol.COOPERATIVE

    @property
    def sticky(self) -> bool:
        """Whether members' claims count."""
        return self.assignor in {"cooperative-sticky", "sticky"}

    @property
    def owners(self) -> dict[TopicPartition, str]:
        """Partition -> its owner, as far as that is clear: of several, the only one with the highest generation."""
        claims: dict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
        for member in self.members:
            for partition in member.subscription.owned:
                claims[partition].append((member.subscription.generation, member.member_id))
        newest = {partition: max(those) for partition, those in claims.items()}
        return {
            partition: owner
            for partition, (generation, owner) in newest.items()
            if sum(generation == other for other, _ in claims[partition]) == 1
        }

    def as_sent(self) -> list[GroupMember]:
        """The members as the leader sees them: an eager one's partitions are in the user data at most."""
        if self.cooperative:
            return list(self.members)
        return [replace(member, subscription=self._eager(member.subscription)) for member in self.members]

    def _eager(self, was: Subscription) -> Subscription:
        user_data = assignor(self.assignor).user_data(was.owned, was.generation)
        return replace(was, owned=frozenset(), user_data=user_data)

    def as_json(self) -> dict[str, Any]:
        """The input of `JavaAssignors`."""
        return {
            "assignor": self.assignor,
            "topics": {
                name: [sorted(topic.racks.get(index, ())) for index in range(topic.partition_count)]
                for name, topic in self.topics.items()
            },
            "members": {member.member_id: _member_as_json(member) for member in self.as_sent()},
        }


def _member_as_json(member: GroupMember) -> dict[str, Any]:
    sent = member.subscription
    return {
        "topics": sent.topics,
        "instance_id": member.instance_id,
        "rack": sent.rack,
        "owned": sorted(sent.owned),
        "generation": sent.generation,
        "user_data": None if sent.user_data is None else base64.b64encode(sent.user_data).decode(),
    }


def case(seed: int) -> Case:
    """The group of this seed."""
    rng = Random(seed)
    name = rng.choices(ASSIGNORS, (4, 3, 2, 1))[0]
    racks = _RACKS[: rng.randint(1, 3)] if rng.random() < 0.4 else ()
    topics = _topics(rng, racks)
    members = _members(rng, [*topics, "gone"], racks)
    if name in {"cooperative-sticky", "sticky"} and rng.random() < 0.85:
        members = _with_owners(rng, members, topics)
    return Case(seed, name, members, topics)


def _topics(rng: Random, racks: Sequence[str]) -> dict[str, TopicDescription]:
    alike = rng.choice(_PARTITIONS) if rng.random() < 0.4 else None
    topics = {}
    for name in (f"t{k}" for k in range(rng.randint(1, 6))):
        count = alike or rng.choice(_PARTITIONS)
        nearby = {index: frozenset(rng.sample(racks, rng.randint(0, len(racks)))) for index in range(count)}
        if rng.random() < 0.3:
            nearby = dict.fromkeys(range(count), frozenset(racks))  # everywhere: then racks do not matter
        topics[name] = TopicDescription(name=name, topic_id=None, partition_count=count, racks=nearby)
    return topics


def _members(rng: Random, names: Sequence[str], racks: Sequence[str]) -> list[GroupMember]:
    alike = _some(rng, names) if rng.random() < 0.5 else None
    numbers = rng.sample(range(100), rng.randint(1, 8))
    return [
        GroupMember(
            member_id=f"m{number:02}",
            instance_id=f"i{rng.randrange(100):02}-{k}" if rng.random() < 0.4 else None,
            subscription=Subscription(
                topics=alike or _some(rng, names),
                rack=rng.choice((*racks, *racks, "far away", None)) if racks else None,
            ),
        )
        for k, number in enumerate(numbers)
    ]


def _some(rng: Random, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(rng.sample(names, rng.randint(1, len(names)))))


def _with_owners(
    rng: Random, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]
) -> list[GroupMember]:
    """Members after an earlier assignment, of which not all is left: some are new, some missed a generation."""
    owned: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
    claims_collide = rng.random() < 0.15
    for partition in _all_partitions(topics):
        wanted_by = [member.member_id for member in members if partition.topic in member.subscription.topics]
        if wanted_by and rng.random() < 0.85:
            owned[rng.choice(wanted_by)].add(partition)
            if claims_collide and rng.random() < 0.2:
                owned[rng.choice(wanted_by)].add(partition)
    found = []
    for member in members:
        generation = _GENERATION if rng.random() < 0.9 else rng.choice((_GENERATION - 1, _GENERATION - 2, -1))
        if rng.random() < 0.1:
            owned[member.member_id], generation = set(), -1
        claims = replace(member.subscription, owned=frozenset(owned[member.member_id]), generation=generation)
        found.append(replace(member, subscription=claims))
    return found


def _all_partitions(topics: Mapping[str, TopicDescription]) -> Iterator[TopicPartition]:
    for topic in topics.values():
        yield from topic.partitions
