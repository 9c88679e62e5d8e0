"""The fault that `make chaos` leaves on: which it is, where, and how long it is watched."""

import pytest
from chaos.lasting import FAULTS, GOES_ON_S, OPERATORS, UNREACHABLE, Roles, chosen, lasts_s, named_s
from chaos.links import Cut
from chaos.network import BREAKS
from chaos.schedule import LANES, Fault

from spark_kgroup.model import TopicPartition

NODES = [1, 2, 3]


def leaders(*nodes: int) -> dict[TopicPartition, int]:
    return {TopicPartition("orders", partition): node for partition, node in enumerate(nodes)}


@pytest.mark.parametrize(
    ("led_by", "coordinator", "without"), [((1, 1, 2), 3, 1), ((1, 1, 2), 1, 2), ((1, 1, 1), 1, 2), ((3, 2, 3), 2, 3)]
)
def test_the_broker_that_is_taken_leads_most_and_does_not_coordinate_the_group(
    led_by: tuple[int, ...], coordinator: int, without: int
) -> None:
    assert Roles(leaders(*led_by), coordinator).without(NODES) == without


@pytest.mark.parametrize(("lanes", "faults"), [(("main", "operator"), {*FAULTS, *OPERATORS}), (("main",), {*FAULTS})])
def test_the_seed_decides_and_each_fault_of_the_lanes_that_play_comes(
    lanes: tuple[str, ...], faults: set[Fault]
) -> None:
    assert chosen(7, lanes) == chosen(7, lanes)
    assert {chosen(seed, lanes) for seed in range(200)} == faults


@pytest.mark.parametrize("fault", [*FAULTS, *OPERATORS])
def test_it_is_watched_for_longer_than_its_bounds(fault: Fault) -> None:
    assert lasts_s(fault) > max(named_s(fault), GOES_ON_S)


def test_each_fault_of_the_network_is_known() -> None:
    assert set(BREAKS) == set(LANES["network"][1]) - {Fault.RESET_CLIENTS}
    assert set(FAULTS) - set(BREAKS) == {Fault.KILL_BROKER}


UNREACHABLE_BY_NAME = sorted(UNREACHABLE, key=lambda fault: fault.name)


@pytest.mark.parametrize("fault", UNREACHABLE_BY_NAME)
def test_an_unreachable_broker_is_whole_to_its_peers(fault: Fault) -> None:
    assert {cut.source for cut in BREAKS[fault](1, 2, NODES).cuts} == {0}


def test_a_broker_that_is_cut_off_answers_clients() -> None:
    cuts = BREAKS[Fault.CUT_OFF_BROKER](1, 2, NODES).cuts
    assert all(cut.source and 1 in (cut.source, cut.node) for cut in cuts)
    assert Cut(1, 2, requests=True) in cuts
