"""The proxies of `make chaos` before a real cluster: nodes and clients go through them, and a cut lets no byte pass."""

from collections.abc import Iterator

import pytest
from chaos.cluster import Cluster
from chaos.links import CLIENTS, Faults, cut_off
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.waiting import wait_for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("links"), {}) as cluster:
        cluster.kafka.create_topic("orders", 3)
        yield cluster


def word_of(cluster: Cluster, node: int) -> dict[str, set[int]]:
    """Topic -> leaders of its partitions, as this broker says to a client; empty if another broker answered."""
    server = cluster.addresses(node)[0]
    metadata = AdminClient({"bootstrap.servers": server, "log_level": 0}).list_topics(timeout=10)
    if metadata.orig_broker_id not in (-1, node):
        return {}
    return {name: {at.leader for at in topic.partitions.values()} for name, topic in metadata.topics.items()}


def create_topic(cluster: Cluster, node: int, name: str, replicas: int) -> None:
    """Create a topic of one partition through this broker."""
    admin = AdminClient({"bootstrap.servers": cluster.addresses(node)[0], "log_level": 0})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=replicas)])[name].result(timeout=30)


def test_every_connection_between_nodes_goes_through_a_proxy(cluster: Cluster) -> None:
    nodes = cluster.node_ids
    assert {(source, node) for source in nodes for node in nodes if source != node} <= cluster.links.seen
    word_of(cluster, nodes[0])
    assert any(source == CLIENTS for source, _ in cluster.links.seen)


def test_a_broker_that_is_cut_off_goes_on_answering_what_it_knew(cluster: Cluster) -> None:
    """The other brokers make new leaders and a new topic, of which it says nothing to clients.

    Its word of the leaders is no proof: on a busy machine it may be fenced, and know that, just before it is cut off.
    """
    nodes = cluster.node_ids
    cut, *others = nodes
    assert wait_for(lambda: word_of(cluster, cut), "the broker's word").keys() == {"orders"}
    cluster.links.fail(Faults(cuts=cut_off(cut, nodes)))
    try:
        wait_for(lambda: word_of(cluster, others[0]).get("orders") == set(others), "the others to lead all", 60)
        create_topic(cluster, others[0], "later", replicas=len(others))
        wait_for(lambda: "later" in word_of(cluster, others[0]), "the others to know the new topic")
        assert wait_for(lambda: word_of(cluster, cut), "its word after that").keys() == {"orders"}
    finally:
        cluster.links.heal()
    wait_for(lambda: "later" in word_of(cluster, cut), "it to know better", 60)
