"""A coordinator and its caller: requests by few words, answers by token, records in a log, time that a test turns."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from spark_kgroup.coordinator import (
    Answer,
    Append,
    CoordinatorConfig,
    Effect,
    GroupCoordinator,
    Received,
    Record,
)
from spark_kgroup.coordinator.classic_group import ClassicGroup
from spark_kgroup.wire import schema

RANGE = (("range", b"of range"),)
SESSION_MS = 10_000
REBALANCE_MS = 30_000


class Asking:
    """One coordinator. `now_ms` passes only by `pass_ms`.

    Attributes:
        log: all records, in their order.
        answers: token -> response, of all requests that were answered.
        dropped: tokens of requests that never will be.
        waiting: tokens of requests that are parked.
    """

    def __init__(self, log: Iterable[Record] = (), now_ms: int = 1_000_000, **config: int) -> None:
        self.now_ms = now_ms
        self.log = list(log)
        self.answers: dict[int, Any] = {}
        self.dropped: set[int] = set()
        self.waiting: set[int] = set()
        self._tokens = count(1)
        ids = count(len(self.log) * 1_000 + 1)
        self.coordinator = GroupCoordinator(CoordinatorConfig(**config), new_id=lambda: str(next(ids)))
        for record in self.log:
            self.coordinator.apply(record)
        self._carry_out(self.coordinator.start(now_ms))

    def restarted(self, **config: int) -> Asking:
        """Another coordinator that goes on from the log."""
        return Asking(self.log, self.now_ms, **config)

    def ask(self, request: schema.Request, version: int = 9) -> int:
        """Send a request, and return its token."""
        token = next(self._tokens)
        self.waiting.add(token)
        self._carry_out(self.coordinator.receive(Received(request, version, "me", "/127.0.0.1", token), self.now_ms))
        return token

    def answer(self, request: schema.Request, version: int = 9) -> Any:
        """The answer that a request has at once."""
        return self.answers[self.ask(request, version)]

    def pass_ms(self, wait_ms: int) -> None:
        """Let time pass, each timer at its instant."""
        end_ms = self.now_ms + wait_ms
        while (at_ms := self.coordinator.next_wakeup_at_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self._carry_out(self.coordinator.tick(self.now_ms))
        self.now_ms = end_ms

    def resign(self) -> None:
        """Another broker coordinates."""
        self._carry_out(self.coordinator.resign(self.now_ms))

    def delete_topics(self, *names: str) -> None:
        """The broker deleted topics."""
        self._carry_out(self.coordinator.delete_topics(names, self.now_ms))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append(records=records):
                    self.log += records
                case Answer(token=int(token), response=response):
                    self.waiting.remove(token)
                    self.answers[token] = response
                case _:
                    assert not isinstance(effect, Answer)
                    self.waiting.remove(effect.token)  # type: ignore[arg-type]
                    self.dropped.add(effect.token)  # type: ignore[arg-type]

    @property
    def group(self) -> ClassicGroup:
        """The group "g"."""
        return self.coordinator.groups["g"]

    @property
    def state(self) -> str:
        """Of the group "g", Dead if it is not there."""
        return self.state_of("g")

    def state_of(self, group: str) -> str:
        """Of a group, as DescribeGroups shows it."""
        state: str = self.answer(schema.DescribeGroupsRequest((group,), False), 5).groups[0].group_state
        return state

    # ------------------------------------------------------------------------------------------------ few words

    def join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = RANGE,
        *,
        version: int = 9,
        **other: Any,
    ) -> int:
        """Send JoinGroup of a member."""
        request = schema.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type="consumer",
            protocols=tuple(schema.JoinGroupRequestProtocol(*each) for each in protocols),
            reason=None,
        )
        return self.ask(request._replace(**other), version)

    def sync(
        self, member_id: str, generation: int, shares: dict[str, bytes] | None = None, instance_id: str | None = None
    ) -> int:
        """Send SyncGroup, with the shares of a leader."""
        assignments = tuple(schema.SyncGroupRequestAssignment(*each) for each in (shares or {}).items())
        return self.ask(
            schema.SyncGroupRequest("g", generation, member_id, instance_id, "consumer", "range", assignments)
        )

    def beat(self, member_id: str, generation: int, instance_id: str | None = None) -> int:
        """The error of a Heartbeat."""
        return self.answer(schema.HeartbeatRequest("g", generation, member_id, instance_id), 4).error_code  # type: ignore[no-any-return]

    def leave(self, *members: tuple[str, str | None]) -> list[int]:
        """The error of each member of a LeaveGroup."""
        leaving = tuple(schema.LeavingMember(*each, None) for each in members)
        return [each.error_code for each in self.answer(schema.LeaveGroupRequest("g", leaving), 5).members]

    def commit(self, offsets: dict[int, int], member_id: str = "", generation: int = -1, text: str = "") -> list[int]:
        """The error of each partition of an OffsetCommit, of the topic "t"."""
        partitions = tuple(schema.OffsetCommitRequestPartition(*each, 5, text) for each in offsets.items())
        topics = (schema.OffsetCommitRequestTopic("t", partitions),)
        found = self.answer(schema.OffsetCommitRequest("g", generation, member_id, None, topics), 8)
        return [each.error_code for topic in found.topics for each in topic.partitions]

    def fetch(self) -> dict[tuple[str, int], tuple[int, str]]:
        """All committed offsets of the group, with their texts."""
        asked = schema.OffsetFetchRequest((schema.OffsetFetchRequestGroup("g", None),), False)
        (group,) = self.answer(asked, 8).groups
        return {
            (topic.name, each.partition_index): (each.committed_offset, each.metadata)
            for topic in group.topics
            for each in topic.partitions
        }

    def two_seats(self) -> tuple[str, str]:
        """The member ids of two static members, the leader's first, of a group at rest in generation 1."""
        first, second = self.join(instance_id="a"), self.join(instance_id="b")
        self.pass_ms(6_000)
        leader, follower = self.answers[first].member_id, self.answers[second].member_id
        self.sync(follower, 1, instance_id="b")
        self.sync(leader, 1, {leader: b"of a", follower: b"of b"}, "a")
        assert self.state == "Stable"
        return leader, follower
