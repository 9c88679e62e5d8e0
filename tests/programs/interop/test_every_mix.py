"""Members of all clients that speak a protocol in one group, led by each of them: `make interop`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from harness.mixed.clients import JAVA, SPEAKING
from harness.mixed.story import MixedGroup, coming_and_going, rolling_bounce

from spark_kgroup.testing import ApacheKafka

PARTITIONS = 12


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    """Sessions of the consumer protocol are the broker's to decide: as short as the stories' classic ones."""
    properties = {
        "group.consumer.min.session.timeout.ms": "6000",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.heartbeat.interval.ms": "500",
    }
    with ApacheKafka(server_properties=properties) as kafka:
        yield kafka


def mixed(kafka: ApacheKafka, protocol: str) -> MixedGroup:
    name = f"mixed-{uuid4().hex[:8]}"
    kafka.create_topic(name, PARTITIONS)
    return MixedGroup(kafka, name, name, PARTITIONS, protocol)


@pytest.mark.parametrize(("protocol", "leader"), [(name, kind) for name, kinds in SPEAKING.items() for kind in kinds])
def test_members_of_all_clients_come_crash_and_go_with_one_owner_at_a_time_and_no_more_moves_than_java_s_alone(
    kafka: ApacheKafka, protocol: str, leader: str
) -> None:
    kinds = (leader, *(kind for kind in SPEAKING[protocol] if kind != leader))

    def moves(of: tuple[str, ...]) -> int:
        with mixed(kafka, protocol) as group:
            return coming_and_going(group, of)

    with ThreadPoolExecutor(2) as stories:
        alone = stories.submit(moves, (JAVA,) * len(kinds))
        together = moves(kinds)
        print(f"{protocol}, led by {leader}: {together} moves; Java's alone {alone.result()}")
        assert together <= alone.result()


@pytest.mark.parametrize("leader", SPEAKING["classic"])
def test_static_members_of_all_clients_restarted_in_turn_move_no_partition_and_end_no_generation(
    kafka: ApacheKafka, leader: str
) -> None:
    """KIP-345's rolling bounce, with each kind of client as the leader.

    Under the consumer protocol other clients wait for their own session.
    """
    with mixed(kafka, "classic") as group:
        rolling_bounce(group, (leader, *(kind for kind in SPEAKING["classic"] if kind != leader)))
