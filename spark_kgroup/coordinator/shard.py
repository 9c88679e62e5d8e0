"""The parts that all handlers share: durable state, groups, timers, and the effects of the call that goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spark_kgroup.coordinator.classic_group import ClassicGroup, ClassicMember
from spark_kgroup.coordinator.config import CoordinatorConfig
from spark_kgroup.coordinator.contract import (
    Answer,
    Append,
    Dropped,
    Effect,
    JoinTimer,
    SessionTimer,
    SyncTimer,
    TimerKey,
    Token,
)
from spark_kgroup.coordinator.records import GroupMetadata, GroupRemoved, OffsetCommitted, OffsetRemoved, Record
from spark_kgroup.coordinator.timers import Timers
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire import schema


class Durable:
    """The state that outlives a restart. `apply` alone changes it.

    Attributes:
        groups: the last metadata of each group. A group that only has offsets has none.
        offsets: group -> partition -> its committed offset. A group without offsets is not in it.
    """

    def __init__(self) -> None:
        self.groups: dict[str, GroupMetadata] = {}
        self.offsets: dict[str, dict[TopicPartition, OffsetCommitted]] = {}

    def apply(self, record: Record) -> None:
        """Take one record."""
        match record:
            case GroupMetadata(group=group):
                self.groups[group] = record
            case GroupRemoved(group=group):
                self.groups.pop(group, None)
            case OffsetCommitted(group=group):
                self.offsets.setdefault(group, {})[TopicPartition(record.topic, record.partition)] = record
            case OffsetRemoved(group=group):
                left = self.offsets.get(group, {})
                left.pop(TopicPartition(record.topic, record.partition), None)
                if not left:
                    self.offsets.pop(group, None)

    def load(self, now_ms: int) -> Iterator[ClassicGroup]:
        """Each group as a restart finds it. Offsets alone make a group, too (OffsetMetadataManager.replay)."""
        for record in self.groups.values():
            yield ClassicGroup.from_record(record)
        for name in self.offsets.keys() - self.groups.keys():
            yield ClassicGroup(name, now_ms)


class Shard:
    """All state of one coordinator (Kafka: GroupCoordinatorShard). Handlers are functions of it and of a group.

    Attributes:
        groups: all groups by name, with the state that a restart forgets.
        now_ms: the instant of the call that goes on.
        effects: of the call that goes on, so far.
    """

    def __init__(self, config: CoordinatorConfig, new_id: Callable[[], str]) -> None:
        self.config = config
        self.new_id = new_id
        self.durable = Durable()
        self.groups: dict[str, ClassicGroup] = {}
        self.timers = Timers()
        self.now_ms = 0
        self.effects: list[Effect] = []

    def append(self, *records: Record) -> None:
        """Apply the records, and have the caller append them before it carries out later effects."""
        for record in records:
            self.durable.apply(record)
        if records:
            self.effects.append(Append(records))

    def answer(self, token: Token, response: schema.Response) -> None:
        """Answer the request with `token`."""
        self.effects.append(Answer(token, response))

    def answer_join(self, member: ClassicMember, response: schema.JoinGroupResponse) -> None:
        """Answer a member's parked JoinGroup, if there is one."""
        if member.parked_join is not None:
            self.answer(member.parked_join, response)
            member.parked_join = None

    def answer_sync(self, member: ClassicMember, response: schema.SyncGroupResponse) -> bool:
        """Answer a member's parked SyncGroup, if there is one, and return whether there was."""
        if member.parked_sync is None:
            return False
        self.answer(member.parked_sync, response)
        member.parked_sync = None
        return True

    def park_join(self, member: ClassicMember, token: Token) -> None:
        """Have a JoinGroup wait, in place of the one that its member sent before."""
        self._drop(member.parked_join)
        member.parked_join = token

    def park_sync(self, member: ClassicMember, token: Token) -> None:
        """Have a SyncGroup wait, in place of the one that its member sent before."""
        self._drop(member.parked_sync)
        member.parked_sync = token

    def _drop(self, token: Token | None) -> None:
        if token is not None:
            self.effects.append(Dropped(token))

    # ------------------------------------------------------------------------------------------ groups, members

    def create(self, name: str) -> ClassicGroup:
        """A new group without members."""
        self.groups[name] = group = ClassicGroup(name, self.now_ms)
        return group

    def forget(self, group: ClassicGroup) -> None:
        """A group is deleted: no timer of it is left. Its records are another matter."""
        del self.groups[group.name]
        keys: list[TimerKey] = [JoinTimer(group.name), SyncTimer(group.name)]
        for key in keys + [SessionTimer(group.name, member_id) for member_id in (*group.members, *group.pending_joins)]:
            self.timers.cancel(key)

    def renew(self, group: ClassicGroup, member: ClassicMember) -> None:
        """A member's session begins anew."""
        self.set(SessionTimer(group.name, member.member_id), member.session_timeout_ms)

    def expel(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a member, or a member id that no member has used yet.

        A parked SyncGroup of its is never answered: Kafka forgets it (ClassicGroup.remove).
        """
        if member := group.members.get(member_id):
            self._drop(member.parked_sync)
        group.remove(member_id)
        self.timers.cancel(SessionTimer(group.name, member_id))

    def set(self, key: TimerKey, wait_ms: int) -> None:
        """Set a timer that fires after `wait_ms`."""
        self.timers.set(key, self.now_ms + wait_ms)
