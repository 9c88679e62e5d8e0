"""A seat that waits names the reason: in its view at once, and by one warning after a while."""

import logging
from random import Random

import pytest
from harness.fake_broker import until
from harness.fake_cluster import BrokerWorld, in_a_world
from harness.sessions import join_refused

from spark_kgroup.model import ErrorCode
from spark_kgroup.runtime import classic_work
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

TROUBLE = "is refused: JoinGroup is answered with COORDINATOR_LOAD_IN_PROGRESS"


@pytest.mark.parametrize("told_after_ms", [0, 60_000])
def test_a_seat_that_is_refused_for_long_says_so_once(
    told_after_ms: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(classic_work, "WAIT_TOLD_AFTER_MS", told_after_ms)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.on_JoinGroup = lambda *_: join_refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # type: ignore[attr-defined]
        settings = GroupSettings(
            bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",)
        )
        group = Group(settings, rng=Random(1))
        with caplog.at_level(logging.WARNING, "spark_kgroup.runtime.classic_work"):
            await group.start()
            try:
                await until(lambda: group.view().seats[0].trouble == TROUBLE)
                await until(lambda: sum(type(r).__name__ == "JoinGroupRequest" for r in world.brokers[0].requests) > 3)
            finally:
                await group.close()
        warnings = [message for message in caplog.messages if TROUBLE in message]
        assert len(warnings) == (told_after_ms == 0)
        assert all(message.startswith("g/seat-0 has been waiting for 0 s: it is refused") for message in warnings)

    scenario()
