"""The schedule of `make chaos` is decided by its seed alone."""

import pytest
from chaos.schedule import LANES, Fault, schedule


@pytest.mark.parametrize("lane", LANES)
def test_the_seed_alone_decides_the_schedule(lane: str) -> None:
    assert schedule(lane, 7, 10) == schedule(lane, 7, 10)
    assert schedule(lane, 7, 10) != schedule(lane, 8, 10)


@pytest.mark.parametrize("lane", LANES)
def test_a_longer_run_begins_like_a_shorter_one(lane: str) -> None:
    short, long = schedule(lane, 7, 5), schedule(lane, 7, 10)
    assert long[: len(short)] == short
    assert sum(event.gap_s + event.lasts_s for event in short) >= 5 * 60


def test_every_fault_comes_in_some_lane() -> None:
    assert {event.fault for lane in LANES for event in schedule(lane, 7, 60)} == set(Fault)
