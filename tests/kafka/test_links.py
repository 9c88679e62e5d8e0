"""The proxies of `make chaos` before a real cluster: nodes and clients go through them, and a cut lets no byte pass."""

from collections.abc import Iterator

import pytest
from chaos.cluster import Cluster
from chaos.links import CLIENTS, Faults, cut_off
from confluent_kafka.admin import AdminClient
from harness.waiting import wait_for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("links"), {}) as cluster:
        cluster.kafka.create_topic("orders", 3)
        yield cluster


def leaders_by(cluster: Cluster, node: int) -> set[int]:
    """The leaders of the topic's partitions, as this broker says to a client, or none if another broker answered."""
    server = cluster.addresses(node)[0]
    metadata = AdminClient({"bootstrap.servers": server, "log_level": 0}).list_topics("orders", timeout=10)
    if metadata.orig_broker_id not in (-1, node):
        return set()
    return {partition.leader for partition in metadata.topics["orders"].partitions.values()}


def test_every_connection_between_nodes_goes_through_a_proxy(cluster: Cluster) -> None:
    nodes = cluster.node_ids
    assert {(source, node) for source in nodes for node in nodes if source != node} <= cluster.links.seen
    leaders_by(cluster, nodes[0])
    assert any(source == CLIENTS for source, _ in cluster.links.seen)


def test_a_broker_that_is_cut_off_goes_on_answering_what_it_knew(cluster: Cluster) -> None:
    """The other brokers make new leaders, while it says to clients that all is as before."""
    nodes = cluster.node_ids
    cut, *others = nodes
    before = wait_for(lambda: leaders_by(cluster, cut), "the broker's word")
    assert before == set(nodes)
    cluster.links.fail(Faults(cuts=cut_off(cut, nodes)))
    try:
        knew = wait_for(lambda: leaders_by(cluster, cut), "its word when it is cut off")
        wait_for(lambda: leaders_by(cluster, others[0]) == set(others), "the others to lead all", 60)
        # On a busy machine it may have been fenced a moment before: then it knew that, and goes on saying so.
        assert wait_for(lambda: leaders_by(cluster, cut), "its word after that") == knew
    finally:
        cluster.links.heal()
    wait_for(lambda: leaders_by(cluster, cut) == set(others), "it to know better", 60)
