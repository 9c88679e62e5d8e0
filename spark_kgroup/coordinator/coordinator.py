"""The interface of a coordinator: it finds the group of a request or a timer. The package says how to run one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from spark_kgroup.coordinator import joins, listings, membership, offsets
from spark_kgroup.coordinator.classic import Event, happen, kind_of_join
from spark_kgroup.coordinator.classic_group import ClassicGroup
from spark_kgroup.coordinator.config import CoordinatorConfig
from spark_kgroup.coordinator.contract import (
    Effect,
    ExpiryTimer,
    JoinTimer,
    Received,
    SessionTimer,
    SyncTimer,
    TimerKey,
)
from spark_kgroup.coordinator.rebalances import prepare, refused_join, refused_sync
from spark_kgroup.coordinator.records import OffsetCommitted, Record
from spark_kgroup.coordinator.shard import Shard
from spark_kgroup.coordinator.state import State
from spark_kgroup.coordinator.timers import Timers
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire import schema

_EVENT_OF: Final[Mapping[type[TimerKey], Event]] = MappingProxyType(
    {
        SessionTimer: Event.SESSION_OVER,
        JoinTimer: Event.JOIN_TIME_OVER,
        SyncTimer: Event.SYNC_TIME_OVER,
    }
)


class GroupCoordinator:
    """The groups of one broker, or of one shard of the groups.

    Args:
        config: settings of all groups.
        new_id: makes the random part of a member id, another one each time. Kafka's is a UUID as text.
    """

    def __init__(self, config: CoordinatorConfig, *, new_id: Callable[[], str]) -> None:
        self._shard = Shard(config, new_id)

    @property
    def groups(self) -> Mapping[str, ClassicGroup]:
        """All groups by name, to look at."""
        return MappingProxyType(self._shard.groups)

    @property
    def timers(self) -> Timers:
        """The timers that are set, to look at."""
        return self._shard.timers

    def offsets(self, group: str) -> Mapping[TopicPartition, OffsetCommitted]:
        """The committed offsets of a group, empty if there is none."""
        return MappingProxyType(self._shard.durable.offsets.get(group, {}))

    # ------------------------------------------------------------------------------------------ start and end

    def apply(self, record: Record) -> None:
        """Take one record that an earlier coordinator appended. Call it BEFORE `start`."""
        self._shard.durable.apply(record)

    def start(self, now_ms: int) -> list[Effect]:
        """Go on from the records: all sessions begin anew (GroupMetadataManager.onLoaded).

        A group that has more members than it may have rebalances, so that the last to join find no room.
        """
        shard = self._begin(now_ms)
        shard.groups = {group.name: group for group in shard.durable.load(now_ms)}
        for group in shard.groups.values():
            for member in group.members.values():
                shard.renew(group, member)
            if len(group.members) > shard.config.group_max_size:
                prepare(shard, group)
        shard.set(ExpiryTimer(), shard.config.offsets_retention_check_interval_ms)
        return shard.effects

    def resign(self, now_ms: int) -> list[Effect]:
        """Answer all parked requests with NOT_COORDINATOR: another broker coordinates from now on."""
        shard = self._begin(now_ms)
        for group in shard.groups.values():
            if group.state is not State.DEAD:
                happen(shard, group, Event.RESIGN)
        shard.timers.clear()
        return shard.effects

    # ----------------------------------------------------------------------------------------------------- time

    def next_wakeup_at_ms(self) -> int | None:
        """When `tick` is due next, None if no timer is set."""
        return self._shard.timers.next_at_ms()

    def tick(self, now_ms: int) -> list[Effect]:
        """Fire the timers that are due."""
        shard = self._begin(now_ms)
        while (key := shard.timers.take_due(now_ms)) is not None:
            self._fire(shard, key)
        return shard.effects

    def _fire(self, shard: Shard, key: TimerKey) -> None:
        match key:
            case ExpiryTimer():
                offsets.expire(shard)
                shard.set(key, shard.config.offsets_retention_check_interval_ms)
            case SessionTimer(group=name, member_id=member_id):
                happen(shard, shard.groups[name], _EVENT_OF[SessionTimer], member_id)
            case _:
                happen(shard, shard.groups[key.group], _EVENT_OF[type(key)])

    # ------------------------------------------------------------------------------------------------- requests

    def receive(self, received: Received, now_ms: int) -> list[Effect]:
        """Take one request.

        Raises:
            TypeError: `versions.ANSWERED` does not have it.
        """
        shard = self._begin(now_ms)
        match request := received.request:
            case schema.JoinGroupRequest():
                self._join(shard, received, request)
            case schema.SyncGroupRequest():
                if error := membership.refusal_of_sync(shard, received):
                    shard.answer(received.token, refused_sync(error))
                else:
                    happen(shard, shard.groups[request.group_id], Event.SYNC, received)
            case schema.HeartbeatRequest():
                if error := membership.refusal_of_heartbeat(shard, request):
                    shard.answer(received.token, schema.HeartbeatResponse(0, error))
                else:
                    happen(shard, shard.groups[request.group_id], Event.HEARTBEAT, received)
            case schema.LeaveGroupRequest():
                if (refused := membership.refused_leave(shard, request)) is not None:
                    shard.answer(received.token, refused)
                else:
                    happen(shard, shard.groups[request.group_id], Event.LEAVE, received)
            case schema.OffsetCommitRequest():
                self._commit(shard, received, request)
            case _:
                shard.answer(received.token, _answer_at_once(shard, request))
        return shard.effects

    def _join(self, shard: Shard, received: Received, request: schema.JoinGroupRequest) -> None:
        if error := joins.refusal_of_join(shard, request):
            shard.answer(received.token, refused_join(error, request.member_id))
            return
        is_new = request.group_id not in shard.groups
        group = shard.create(request.group_id) if is_new else shard.groups[request.group_id]
        if is_new:
            shard.append(group.record())
        if group.state is State.DEAD or not joins.refused_by_group(shard, group, received):
            happen(shard, group, kind_of_join(group, request), received)

    def _commit(self, shard: Shard, received: Received, request: schema.OffsetCommitRequest) -> None:
        if error := offsets.refusal_of_commit(shard, received):
            offsets.refuse_commit(shard, received, error)
            return
        group = shard.groups.get(request.group_id) or shard.create(request.group_id)
        happen(shard, group, Event.COMMIT, received)

    def delete_topics(self, names: Iterable[str], now_ms: int) -> list[Effect]:
        """Remove the offsets of topics that the broker deleted."""
        shard = self._begin(now_ms)
        offsets.delete_topics(shard, names)
        return shard.effects

    def _begin(self, now_ms: int) -> Shard:
        self._shard.now_ms, self._shard.effects = now_ms, []
        return self._shard


def _answer_at_once(shard: Shard, request: schema.Request) -> schema.Response:
    match request:
        case schema.OffsetFetchRequest() | schema.OffsetFetchRequestV9():
            return offsets.fetch(shard, request)
        case schema.OffsetDeleteRequest():
            return offsets.delete_offsets(shard, request)
        case schema.DeleteGroupsRequest():
            return offsets.delete_groups(shard, request)
        case schema.DescribeGroupsRequest():
            return listings.describe(shard, request)
        case schema.ListGroupsRequest():
            return listings.list_groups(shard, request)
    raise TypeError(f"A coordinator does not answer {type(request).__name__}.")
