"""A short run of `make fuzz`, whether it would notice, and the same over real sockets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random, SystemRandom
from struct import pack
from typing import Any

import pytest
from fuzz import run as fuzz_run
from fuzz.frames import Maker
from fuzz.run import run
from harness import kio_messages
from harness.fake_broker import NO_THROTTLE, FakeBroker, Raw, on_a_loop, until
from kio.schema.errors import ErrorCode as KioErrorCode

from pyspark_kgroup.driver.registry.peers import Peers
from spark_kgroup.errors import WireError
from spark_kgroup.member.classic import State
from spark_kgroup.model import MemberIdentity
from spark_kgroup.wire import messages, responses, schema
from spark_kgroup.wire.connection import Connection

SHORT = 3_000
WHO = MemberIdentity(instance_id="s-0", member_id="m", generation=1)


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Many hostile messages are warned of."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [7, SystemRandom().randrange(2**32)], ids=["the same as ever", "a new one"])
def test_hostile_messages_are_taken_or_refused_within_the_error_tree(seed: int) -> None:
    print(f"again: make fuzz FRAMES={SHORT} SEED={seed}")
    found = run(SHORT, seed)
    assert found.verdict() == []
    assert found.messages == found.outcomes.total() == SHORT


def test_runs_reach_every_state_of_a_member_and_take_and_refuse_in_every_room() -> None:
    """One in six of so short runs misses a state."""
    found = run(SHORT, 7)
    states = found.states | run(SHORT, 2).states | run(SHORT, 3).states
    assert states >= {state.name for state in State} - {State.IDLE.name}
    assert found.outcomes.keys() >= {"answers: interpreted", "answers: ProtocolViolation", "members: ProtocolViolation"}
    assert found.outcomes.keys() >= {"channels: heard", "channels: connection ended"}


def test_the_same_seed_makes_the_same_run() -> None:
    assert run(500, 3).outcomes == run(500, 3).outcomes


# Code that is broken on purpose must be found: else a run without findings is no proof.


def test_an_error_outside_the_tree_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(_: Any) -> None:
        raise IndexError("no such member")

    monkeypatch.setattr(responses, "still_members", careless)
    assert any("answers: IndexError" in found for found in run(SHORT, 7).verdict())


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(responses, "still_members", endless)
    monkeypatch.setattr(fuzz_run, "MESSAGE_TIMEOUT_S", 0.05)
    assert any("answers: Hang" in found for found in run(500, 7).verdict())


def test_the_end_of_another_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_all(peers: Peers, _: Any) -> None:
        for peer in list(peers._connected):
            peer.end()

    monkeypatch.setattr(Peers, "on_ended", end_all)
    assert any("ended the connection of an honest one" in found for found in run(200, 7).verdict())


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_answers_nonsense_loses_its_own_connection_and_no_other_on_the_loop(seed: int) -> None:
    maker = Maker(Random(seed))

    def nonsense(_: Any) -> Raw:
        response = maker.response(schema.HeartbeatRequest, {}, whole=0.3)
        asked = pack(">i", 2)  # the first request was ApiVersions
        answer = asked + response[4:]
        return Raw(pack(">i", len(answer)) + answer)

    def sense(_: Any) -> kio_messages.HeartbeatResponse:
        return kio_messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode.none)

    @on_a_loop
    async def scenario() -> None:
        refused = 0
        async with FakeBroker(nonsense) as hostile, FakeBroker(sense) as honest:
            good = await Connection.open(honest.address, client_id="test")
            for _ in range(50):
                bad = await Connection.open(hostile.address, client_id="test")
                try:
                    await bad.call(messages.heartbeat("g", WHO), timeout_ms=10_000)
                except WireError:
                    refused += 1
                await bad.close()
                answer = await good.call(messages.heartbeat("g", WHO), timeout_ms=10_000)
                assert isinstance(answer, schema.HeartbeatResponse)
            await good.close()
            await until(lambda: hostile.open_connections == honest.open_connections == 0)
        assert 0 < refused < 50

    scenario()
