"""The table of states and events: each pair has a handler or cannot happen, and random walks keep the invariants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_kgroup.coordinator import CoordinatorConfig
from spark_kgroup.coordinator.classic import TRANSITIONS, Event, happen
from spark_kgroup.coordinator.classic_group import ClassicGroup
from spark_kgroup.coordinator.contract import ExpiryTimer, JoinTimer, SessionTimer, SyncTimer
from spark_kgroup.coordinator.shard import Durable, Shard
from spark_kgroup.coordinator.state import LEAVES_TO, State
from spark_kgroup.errors import IllegalTransition
from spark_kgroup.wire import schema

from .asking import Asking

NO_TIMERS = {Event.SESSION_OVER, Event.JOIN_TIME_OVER, Event.SYNC_TIME_OVER}
CANNOT_HAPPEN = {
    State.EMPTY: {Event.JOIN_REPLACES, Event.JOIN_KNOWN, Event.JOIN_TIME_OVER, Event.SYNC_TIME_OVER},
    State.PREPARING_REBALANCE: {Event.SYNC_TIME_OVER},
    State.COMPLETING_REBALANCE: {Event.JOIN_TIME_OVER},
    State.STABLE: {Event.JOIN_TIME_OVER},
    State.DEAD: {Event.JOIN_REPLACES, Event.JOIN_PENDING, Event.RESIGN} | NO_TIMERS,
}
"""EMPTY has no members, a rebalance has one timer, and a DEAD group has neither."""


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_each_pair_of_state_and_event_has_a_handler_or_cannot_happen(state: State, event: Event) -> None:
    assert (event in TRANSITIONS[state]) is (event not in CANNOT_HAPPEN[state])
    if event not in TRANSITIONS[state]:
        group = ClassicGroup("g", 0)
        group.state = state
        with pytest.raises(IllegalTransition, match=f"{event.name}.*{state.value}"):
            happen(Shard(CoordinatorConfig(), str), group, event)


@pytest.mark.parametrize("to", State)
@pytest.mark.parametrize("state", State)
def test_a_group_takes_only_the_steps_of_kafka_s_diagram(state: State, to: State) -> None:
    group = ClassicGroup("g", 0)
    group.state = state
    if to in LEAVES_TO[state]:
        group.become(to, 5)
        assert (group.state, group.since_ms) == (to, 5)
    else:
        with pytest.raises(IllegalTransition):
            group.become(to, 5)


def walk(group: ClassicGroup) -> Iterator[int]:
    """The tokens of a group's parked requests."""
    for member in group.members.values():
        yield from (t for t in (member.parked_join, member.parked_sync) if isinstance(t, int))


INSTANCES = st.sampled_from((None, None, "a", "b"))
GROUPS = st.sampled_from(("g", "g", "h"))
PROTOCOLS = st.sampled_from((("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)))
CONFIG = {
    "group_initial_rebalance_delay_ms": 500,
    "group_min_session_timeout_ms": 1_000,
    "group_max_size": 3,
    "offsets_retention_minutes": 1,
    "offsets_retention_check_interval_ms": 20_000,
}


class RandomWalk(RuleBasedStateMachine):
    """Clients that do as they like, with ids that they have been given, time, restarts, and topics that go."""

    def __init__(self) -> None:
        super().__init__()
        self.g = Asking((), 1_000_000, **CONFIG)
        self.ids = [""]

    @initialize()
    def begin(self) -> None:
        """The group begins with members half of the time."""
        self.g.join(instance_id="a")

    def note_ids(self) -> None:
        """Clients have the ids of the answers."""
        heard = (a.member_id for a in self.g.answers.values() if isinstance(a, schema.JoinGroupResponse))
        self.ids = list(dict.fromkeys([*self.ids, *heard]))[-8:]

    def generation(self, group: str, ahead: int) -> int:
        found = self.g.coordinator.groups.get(group)
        return (found.generation if found is not None else 0) + ahead

    @rule(
        group=GROUPS,
        data=st.data(),
        instance_id=INSTANCES,
        names=PROTOCOLS,
        metadata=st.sampled_from((b"x", b"y")),
        version=st.sampled_from((9, 9, 5, 3)),
        session_ms=st.sampled_from((1_000, 6_000, 60_000)),
        rebalance_ms=st.sampled_from((0, 700, 5_000)),
    )
    def join(self, group: str, data: Any, names: tuple[str, ...], metadata: bytes, **of: Any) -> None:
        self.g.join(
            data.draw(st.sampled_from(self.ids)),
            of["instance_id"],
            [(name, metadata) for name in names],
            version=of["version"],
            group_id=group,
            session_timeout_ms=of["session_ms"],
            rebalance_timeout_ms=of["rebalance_ms"],
        )
        self.note_ids()

    @rule(group=GROUPS, data=st.data(), instance_id=INSTANCES, ahead=st.sampled_from((0, 0, 0, 1, -1)))
    def sync(self, group: str, data: Any, instance_id: str | None, ahead: int) -> None:
        shares = tuple(schema.SyncGroupRequestAssignment(m, b"of " + m.encode()) for m in self.ids)
        member_id = data.draw(st.sampled_from(self.ids))
        self.g.ask(
            schema.SyncGroupRequest(group, self.generation(group, ahead), member_id, instance_id, None, None, shares), 4
        )

    @rule(group=GROUPS)
    def settle(self, group: str) -> None:
        """All members of a new generation sync."""
        found = self.g.coordinator.groups.get(group)
        if found is not None and found.state is State.COMPLETING_REBALANCE:
            shares = tuple(schema.SyncGroupRequestAssignment(m, b"of " + m.encode()) for m in found.members)
            for member in list(found.members.values()):
                request = schema.SyncGroupRequest(
                    group, found.generation, member.member_id, member.instance_id, None, None, shares
                )
                self.g.ask(request, 4)
            assert self.g.state_of(group) == "Stable"

    @rule(group=GROUPS, data=st.data(), instance_id=INSTANCES, ahead=st.sampled_from((0, 0, 1)))
    def beat(self, group: str, data: Any, instance_id: str | None, ahead: int) -> None:
        member_id = data.draw(st.sampled_from(self.ids))
        self.g.answer(schema.HeartbeatRequest(group, self.generation(group, ahead), member_id, instance_id), 4)

    @rule(group=GROUPS, data=st.data(), instance_id=INSTANCES)
    def leave(self, group: str, data: Any, instance_id: str | None) -> None:
        leaving = schema.LeavingMember(data.draw(st.sampled_from(self.ids)), instance_id, None)
        self.g.answer(schema.LeaveGroupRequest(group, (leaving, schema.LeavingMember("", "b", None))), 5)

    @rule(
        group=GROUPS, data=st.data(), instance_id=INSTANCES, ahead=st.sampled_from((0, 0, -9)), index=st.integers(0, 2)
    )
    def commit(self, group: str, data: Any, instance_id: str | None, ahead: int, index: int) -> None:
        member_id = data.draw(st.sampled_from(self.ids))
        partitions = (schema.OffsetCommitRequestPartition(index, 7, -1, None),)
        topics = (schema.OffsetCommitRequestTopic("t", partitions),)
        request = schema.OffsetCommitRequest(group, self.generation(group, ahead), member_id, instance_id, topics)
        self.g.answer(request, 8)

    @rule(group=GROUPS)
    def delete(self, group: str) -> None:
        self.g.answer(schema.DeleteGroupsRequest((group,)), 2)

    @rule()
    def delete_topic(self) -> None:
        self.g.delete_topics("t")

    @rule(wait_ms=st.sampled_from((1, 100, 500, 1_000, 6_000, 70_000)))
    def pass_ms(self, wait_ms: int) -> None:
        self.g.pass_ms(wait_ms)

    @rule()
    def restart(self) -> None:
        self.g = self.g.restarted(**CONFIG)

    # --------------------------------------------------------------------------------------------- must hold

    @invariant()
    def groups_are_consistent(self) -> None:
        for group in self.g.coordinator.groups.values():
            group.check()

    @invariant()
    def each_parked_request_is_of_one_member_and_each_other_one_is_answered_or_dropped(self) -> None:
        parked = [token for group in self.g.coordinator.groups.values() for token in walk(group)]
        assert sorted(parked) == sorted(self.g.waiting)

    @invariant()
    def each_timer_has_an_owner(self) -> None:
        for key in self.g.coordinator.timers:
            match key:
                case SessionTimer(group=name, member_id=member_id):
                    group = self.g.coordinator.groups[name]
                    assert member_id in group.members.keys() | group.pending_joins
                case JoinTimer(group=name):
                    assert self.g.coordinator.groups[name].state is State.PREPARING_REBALANCE
                case SyncTimer(group=name):
                    group = self.g.coordinator.groups[name]
                    assert group.state in (State.COMPLETING_REBALANCE, State.STABLE)
                    assert group.pending_syncs
                case _:
                    assert key == ExpiryTimer()

    @invariant()
    def what_waits_has_a_timer(self) -> None:
        timers = self.g.coordinator.timers
        for name, group in self.g.coordinator.groups.items():
            assert (JoinTimer(name) in timers) is (group.state is State.PREPARING_REBALANCE)
            assert (SyncTimer(name) in timers) is bool(group.pending_syncs)
            for member in group.members.values():
                assert member.waits or SessionTimer(name, member.member_id) in timers, member
            assert all(SessionTimer(name, each) in timers for each in group.pending_joins)

    @invariant()
    def a_restart_is_a_replay(self) -> None:
        durable, shard = Durable(), self.g.coordinator
        for record in self.g.log:
            durable.apply(record)
        for name, group in shard.groups.items():
            assert durable.offsets.get(name, {}) == dict(shard.offsets(name))
            if group.state is State.STABLE or (group.state is State.EMPTY and name in durable.groups):
                assert durable.groups[name] == group.record()
        assert {group.name for group in durable.load(0)} <= shard.groups.keys()


RandomWalk.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestRandomWalk = RandomWalk.TestCase
