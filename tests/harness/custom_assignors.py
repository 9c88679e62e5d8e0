"""Assignors of a user: one that keeps its promises, and some that each break one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from spark_kgroup.assignors.contract import Assignor, RebalanceProtocol, ranked
from spark_kgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from spark_kgroup.model import GroupMember, TopicDescription, TopicPartition


class FirstTakesAll(Assignor):
    """Assigns all of a topic to the first member that wants it."""

    name = "first-takes-all"
    protocol = RebalanceProtocol.EAGER

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """None: it has no memory."""

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Any:
        shares: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
        for name, topic in topics.items():
            for first in ranked(m for m in members if name in m.subscription.topics)[:1]:
                shares[first.member_id].update(topic.partitions)
        return shares


class Forgetful(FirstTakesAll):
    """Leaves out members without a partition."""

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Any:
        return {member_id: share for member_id, share in super().assign(members, topics).items() if share}


class Cooperative(FirstTakesAll):
    """Hands on partitions that another member still owns."""

    protocol = RebalanceProtocol.COOPERATIVE


class Twice(FirstTakesAll):
    """Assigns one partition to two members."""

    def assign(self, members: Sequence[GroupMember], *_: Any) -> Any:
        return {member.member_id: {TopicPartition("t", 0)} for member in members}


class Sparing(FirstTakesAll):
    """Leaves out all but the first partition of a topic, which its contract allows."""

    name = "sparing"
    protocol = RebalanceProtocol.COOPERATIVE

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Any:
        shares = super().assign(members, topics)
        return {who: {tp for tp in share if tp.partition == 0} for who, share in shares.items()}


class Foreign(FirstTakesAll):
    """Assigns to an id that no member has."""

    def assign(self, *_: Any) -> Any:
        return {"nobody": set()}


class Unwanted(FirstTakesAll):
    """Assigns to a member that does not want the topic."""

    def assign(self, members: Sequence[GroupMember], *_: Any) -> Any:
        return {members[0].member_id: {TopicPartition("u", 0)}}


class Missing(FirstTakesAll):
    """Assigns a partition that does not exist."""

    def assign(self, members: Sequence[GroupMember], *_: Any) -> Any:
        return {members[0].member_id: {TopicPartition("t", 2)}}


class Text(FirstTakesAll):
    """Assigns a text in place of a partition."""

    def assign(self, members: Sequence[GroupMember], *_: Any) -> Any:
        return {members[0].member_id: ["t-0"]}


class Nothing(FirstTakesAll):
    """Answers None."""

    def assign(self, *_: Any) -> Any:
        return None


class Raising(FirstTakesAll):
    """Fails."""

    def assign(self, *_: Any) -> Any:
        raise KeyError("a bug")


class Exiting(FirstTakesAll):
    """Would end the process."""

    def assign(self, *_: Any) -> Any:
        sys.exit(0)


class ExitingWhenMade(FirstTakesAll):
    """Would end the process when it is made."""

    def __init__(self) -> None:
        sys.exit(0)


class Hanging(FirstTakesAll):
    """Never answers."""

    def assign(self, *_: Any) -> Any:
        threading.Event().wait()


class HangingWhenMade(FirstTakesAll):
    """Never ends its constructor."""

    def __init__(self) -> None:
        threading.Event().wait()


class Growing(FirstTakesAll):
    """Adds a partition to the topic, and assigns it."""

    def assign(self, members: Sequence[GroupMember], topics: Any) -> Any:
        topics["t"] = TopicDescription(name="t", topic_id=None, partition_count=3)
        return {members[0].member_id: {TopicPartition("t", 2)}}


class Clearing(FirstTakesAll):
    """Empties all that it is given."""

    def assign(self, members: Any, topics: Any) -> Any:
        shares = super().assign(members, topics)
        topics["t"].racks.clear()
        topics.clear()
        members.clear()
        return shares


class Truthful(FirstTakesAll):
    """Assigns the index True, which equals 1 and is no index."""

    def assign(self, members: Sequence[GroupMember], *_: Any) -> Any:
        return {members[0].member_id: {TopicPartition("t", True)}}


class Halved(FirstTakesAll):
    """Assigns an index between two partitions."""

    def assign(self, members: Sequence[GroupMember], *_: Any) -> Any:
        index: Any = 0.5
        return {members[0].member_id: {TopicPartition("t", index)}}


class TextData(FirstTakesAll):
    """User data that is not bytes."""

    def user_data(self, *_: Any) -> Any:
        return "text"


class Nameless(FirstTakesAll):
    """Without a name, no group could agree on it."""

    name = ""


class Mute(FirstTakesAll):
    """Cannot assign."""

    assign: Any = None


class Undecided(FirstTakesAll):
    """Of a protocol that does not exist."""

    protocol: Any = 7


class Choosy(FirstTakesAll):
    """Cannot be made without arguments."""

    def __init__(self, taste: str) -> None:
        self.taste = taste


class Counted:
    """Has all that an assignor has, and does not say that it is one."""

    name = "counted"
    protocol = RebalanceProtocol.EAGER
    user_data = FirstTakesAll.user_data
    assign = FirstTakesAll.assign
    made = 0

    def __init__(self) -> None:
        Counted.made += 1


class FailingForThree(Assignor):
    """As Kafka's own `cooperative-sticky`, but fails for three members."""

    name = "cooperative-sticky"
    protocol = RebalanceProtocol.COOPERATIVE

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        return CooperativeStickyAssignor().user_data(owned, generation)

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Any:
        if len(members) == 3:
            raise KeyError("a bug")
        return CooperativeStickyAssignor().assign(members, topics)
