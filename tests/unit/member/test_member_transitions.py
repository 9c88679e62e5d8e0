"""The table itself: which pairs of state and event exist, and where each state leaves to."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import get_args

import pytest
from harness.classic_driver import COOPERATIVE, EAGER, HEARTBEAT_MS, ME, OWN_ID, Driver, member, parts
from harness.simulated_invariants import check_ownership

from spark_kgroup.errors import GroupError, IllegalTransition
from spark_kgroup.member import contract
from spark_kgroup.member.classic import LEAVES_TO, TRANSITIONS, ClassicMember, State
from spark_kgroup.model import ErrorCode, MemberIdentity

EVENTS: tuple[type[contract.Event], ...] = get_args(contract.Event)
JOIN = contract.JoinRequest(identity=MemberIdentity(instance_id="seat-0"), protocols=(), reason="never sent")
SYNC = contract.SyncRequest(identity=MemberIdentity(instance_id="seat-0"), protocol="")
RENAME = contract.RenameRequest(identity=MemberIdentity(instance_id="seat-0", member_id="never", generation=0))
BEAT = contract.HeartbeatRequest(identity=MemberIdentity(instance_id="seat-0"))
LEAVE = contract.LeaveRequest(identity=MemberIdentity(instance_id="seat-0"), reason="never sent")

SAMPLE: dict[type[contract.Event], contract.Event] = {
    contract.Join: contract.Join(),
    contract.Connected: contract.Connected(),
    contract.ConnectionLost: contract.ConnectionLost(reason="gone"),
    contract.JoinResponse: contract.JoinResponse(request=JOIN, error=0),
    contract.SyncResponse: contract.SyncResponse(request=SYNC, error=0),
    contract.HeartbeatResponse: contract.HeartbeatResponse(request=BEAT, error=0),
    contract.RenameResponse: contract.RenameResponse(request=RENAME, error=0),
    contract.LeaveResponse: contract.LeaveResponse(request=LEAVE, error=0),
    contract.AssignmentComputed: contract.AssignmentComputed(generation=-7, assignments=()),
    contract.AssignmentFailed: contract.AssignmentFailed(generation=-7, error=GroupError("a test"), kept=()),
    contract.GaveUp: contract.GaveUp(partitions=frozenset()),
    contract.RejoinWanted: contract.RejoinWanted(reason="test"),
    contract.NeighbourJoins: contract.NeighbourJoins(),
    contract.Rename: contract.Rename(),
    contract.MembershipRefused: contract.MembershipRefused(identity=BEAT.identity, error=ErrorCode.UNKNOWN_MEMBER_ID),
    contract.SeatSeen: contract.SeatSeen(member_id="another"),
    contract.Tick: contract.Tick(),
    contract.Leave: contract.Leave(reason="test"),
    contract.Close: contract.Close(),
}

NOT_IN_THE_TABLE: dict[State, set[type[contract.Event]]] = {
    State.IDLE: set(EVENTS) - {contract.Join, contract.Tick, contract.Leave, contract.Close},
    State.JOINING: {contract.Join, contract.LeaveResponse},
    State.ASSIGNING: {contract.Join, contract.LeaveResponse},
    State.SYNCING: {contract.Join, contract.LeaveResponse, contract.Connected},  # it syncs only while connected
    State.STABLE: {contract.Join, contract.LeaveResponse},
    State.REVOKING: {contract.Join, contract.LeaveResponse},
    State.RENAMING: {contract.Join, contract.LeaveResponse, contract.Connected},  # it renames only while connected
    State.LEAVING: {contract.Join},
    State.CLOSED: set(),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS)
def test_each_pair_of_state_and_event_is_in_the_table_or_refused(state: State, event: type[contract.Event]) -> None:
    driver = Driver().into(state)
    if event in NOT_IN_THE_TABLE[state]:
        with pytest.raises(IllegalTransition, match=f"classic member.*{event.__name__}.*{state.value}"):
            driver.take(SAMPLE[event])
        assert driver.state is state
    else:
        driver.take(SAMPLE[event])


def test_the_table_has_exactly_these_pairs() -> None:
    assert {state: set(EVENTS) - set(row) for state, row in TRANSITIONS.items()} == NOT_IN_THE_TABLE


@pytest.mark.parametrize("event", EVENTS)
def test_a_closed_member_ignores_every_event(event: type[contract.Event]) -> None:
    assert Driver().into(State.CLOSED).take(SAMPLE[event]) == []


STALE = (
    SAMPLE[contract.JoinResponse],
    SAMPLE[contract.SyncResponse],
    SAMPLE[contract.HeartbeatResponse],
    SAMPLE[contract.RenameResponse],
    SAMPLE[contract.AssignmentComputed],
    SAMPLE[contract.MembershipRefused],
    SAMPLE[contract.SeatSeen],
)


@pytest.mark.parametrize("state", [s for s in State if s is not State.IDLE])
@pytest.mark.parametrize("stale", STALE, ids=lambda event: type(event).__name__)
def test_an_answer_that_is_not_awaited_has_no_effect(state: State, stale: contract.Event) -> None:
    driver = Driver().into(state)
    before = (driver.state, driver.machine.identity, driver.machine.owned, driver.machine.next_wakeup_at_ms())
    assert driver.take(stale) == []
    assert before == (driver.state, driver.machine.identity, driver.machine.owned, driver.machine.next_wakeup_at_ms())


# -------------------------------------------------------------------------------------------- a random walk

ERRORS = (*ErrorCode, 9_999)


class Walk:
    """Feeds one machine with all events from outside, in any order that the runtime's contract allows."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        eager = self.rng.random() < 0.3
        self.driver = Driver(
            instance_id=self.rng.choice(("seat-0", None)),
            assignors=(EAGER if eager else COOPERATIVE,),
            own_id=self.rng.choice(("", OWN_ID)),
        )
        self.connected = self.connecting = False
        self.in_flight: list[contract.Request] = []
        self.generation = 0

    def step(self) -> tuple[State, contract.Event, State]:
        machine, before = self.driver.machine, self.driver.state
        self.driver.now_ms += self.rng.choice((0, 1, 100, 1_000, 20_000))
        event = contract.Join() if before is State.IDLE else self._next()
        effects = self.driver.take(event)
        if isinstance(event, contract.Connected):
            self.connected, self.connecting, self.in_flight = True, False, []
        elif isinstance(event, contract.ConnectionLost):
            self.connected = False
        for effect in effects:
            if isinstance(effect, contract.Send):
                assert self.connected, "sends without a connection"
                self.in_flight.append(effect.request)
            if isinstance(effect, contract.Connect):
                self.connected, self.connecting = False, True
        self._check(machine)
        return before, event, self.driver.state

    def _next(self) -> contract.Event:
        choices: list[contract.Event] = [
            contract.Tick(),
            contract.Tick(),
            contract.RejoinWanted(reason="walk"),
            contract.NeighbourJoins(),
            *[contract.Rename()] * 3,
            contract.GaveUp(partitions=frozenset(tp for tp in sorted(parts(0, 1, 2, 3)) if self.rng.random() < 0.5)),
            contract.GaveUp(partitions=self.driver.machine.to_give_up),
            contract.AssignmentComputed(generation=self.generation, assignments=((ME, parts(0, 1)),)),
            contract.MembershipRefused(
                identity=self.driver.machine.identity,
                error=self.rng.choice((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)),
            ),
        ]
        if self.connecting:
            choices += [contract.Connected()] * 4
        if self.connected:
            choices.append(contract.ConnectionLost(reason="walk"))
        if self.in_flight:
            choices += [self._answer(self.in_flight.pop(0))] * 12
        return self.rng.choice(choices)

    def _answer(self, request: contract.Request) -> contract.Event:
        error = self.rng.choice(ERRORS) if self.rng.random() < 0.2 else ErrorCode.NONE
        match request:
            case contract.JoinRequest():
                self.generation += self.rng.choice((0, 1, 1, 1, 2))
                leader = self.rng.choice((ME, "other"))
                skip = leader == ME and self.rng.random() < 0.3
                return contract.JoinResponse(
                    request=request,
                    error=error,
                    generation=self.generation,
                    protocol="sticky",
                    leader=leader,
                    member_id=request.identity.member_id or ME,
                    members=(member(ME),) if leader == ME else (),
                    skip_assignment=skip,
                )
            case contract.SyncRequest():
                share = frozenset(tp for tp in sorted(parts(0, 1, 2, 3)) if self.rng.random() < 0.5)
                return contract.SyncResponse(request=request, error=error, assignment=share)
            case contract.HeartbeatRequest():
                if self.rng.random() < 0.3:
                    error = ErrorCode.REBALANCE_IN_PROGRESS
                return contract.HeartbeatResponse(request=request, error=error)
            case contract.RenameRequest():
                return contract.RenameResponse(request=request, error=error)
            case contract.LeaveRequest():
                return contract.LeaveResponse(request=request, error=error)

    def _check(self, machine: ClassicMember) -> None:
        wakeup_at_ms = machine.next_wakeup_at_ms()
        if self.connected and machine.state in (State.STABLE, State.REVOKING):
            assert wakeup_at_ms is not None, "stopped its heartbeats"
            assert wakeup_at_ms <= self.driver.now_ms + HEARTBEAT_MS, "stopped its heartbeats"
        if machine.owned and not self.connected and machine.state not in (State.CLOSED, State.LEAVING):
            assert wakeup_at_ms is not None, "holds without a session"
        check_ownership(machine)


def test_a_random_walk_takes_each_step_of_the_table_and_no_other() -> None:
    seen: dict[State, set[State]] = defaultdict(set)
    for seed in range(150):
        walk = Walk(seed)
        for _ in range(120):
            try:
                before, _, now = walk.step()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            if before is not now:
                seen[before].add(now)
    ends = {State.LEAVING, State.CLOSED}  # a walk does not leave, and an error may end it anywhere
    assert {state: seen[state] - ends for state in State} == {state: LEAVES_TO[state] - ends for state in State}


def test_a_step_that_the_table_does_not_have_is_refused() -> None:
    driver = Driver().into(State.STABLE)
    with pytest.raises(IllegalTransition, match=r"classic member.*become syncing.*stable"):
        driver.machine._become(State.SYNCING)
    assert driver.state is State.STABLE


@pytest.mark.parametrize("state", [s for s in State if s not in (State.LEAVING, State.CLOSED)])
def test_leave_and_close_end_every_state(state: State) -> None:
    left, closed = Driver().into(state), Driver().into(state)
    left.take(contract.Leave(reason="test"))
    assert left.state in (State.LEAVING, State.CLOSED)
    assert closed.take(contract.Close()) == []
    assert closed.state is State.CLOSED
    assert closed.machine.next_wakeup_at_ms() is None
