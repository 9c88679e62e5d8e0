"""The proxies of `make chaos` before a real cluster: nodes and clients go through them, and a cut lets no byte pass."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
from chaos.cluster import Cluster
from chaos.links import CLIENTS, Faults, cut_off
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaException, NewTopic
from harness.kafka import leaders_by
from harness.waiting import wait_for

pytestmark = pytest.mark.full  # a tool of `make chaos`, and of tests/spark/test_a_broker_cut_off.py


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("links"), {}) as cluster:
        cluster.kafka.create_topic("orders", 3)
        yield cluster


def word_of(cluster: Cluster, node: int) -> dict[str, set[int]]:
    """Topic -> leaders of its partitions, as this very broker says to a client."""
    return leaders_by(cluster.addresses(node)[0])


def active_controller(cluster: Cluster) -> int:
    status = cluster.kafka.tool(
        "org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", cluster.server, "describe", "--status"
    )
    (leader,) = re.findall(r"^LeaderId:\s+(\d+)$", status, re.MULTILINE)
    return int(leader)


def created(cluster: Cluster, node: int, name: str, replicas: int) -> bool:
    """Whether this broker knows the topic, which it is asked to create with one partition if not.

    A broker whose controller is the one that was cut off asks that one in vain first, for its request.timeout.ms.
    """
    if name in word_of(cluster, node):
        return True
    admin = AdminClient({"bootstrap.servers": cluster.addresses(node)[0], "log_level": 0})
    topic = NewTopic(name, num_partitions=1, replication_factor=replicas)
    with suppress(KafkaException, TimeoutError):
        admin.create_topics([topic], request_timeout=10)[name].result(timeout=15)
    return False


def test_every_connection_between_nodes_goes_through_a_proxy(cluster: Cluster) -> None:
    nodes = cluster.node_ids
    between = {(source, node) for source in nodes for node in nodes if source != node}
    wait_for(lambda: between <= cluster.links.seen, "each node to fetch from each other one", 60)
    word_of(cluster, nodes[0])
    assert any(source == CLIENTS for source, _ in cluster.links.seen)


def test_a_broker_that_is_cut_off_goes_on_answering_with_its_last_metadata(cluster: Cluster) -> None:
    """The other brokers make new leaders and a new topic, of which it says nothing to clients.

    It is the active controller, so they elect another one first. If the quorum got past the proxies, it would fence the
    others, and lead all partitions. Its word of the leaders is no proof: on a busy machine it may be fenced, and know
    that, just before it is cut off.
    """
    nodes = cluster.node_ids
    cut = active_controller(cluster)
    others = [node for node in nodes if node != cut]
    assert word_of(cluster, cut).keys() == {"orders"}
    cluster.kafka.await_in_sync()  # else the others may not lead a partition whose replica was fenced on a busy machine
    cluster.links.fail(Faults(cuts=cut_off(cut, nodes)))
    wait_for_word = partial(wait_for, every_s=0.5)  # each look takes a new connection, or an admin client
    try:
        wait_for_word(lambda: word_of(cluster, others[0])["orders"] <= set(others), "the others to lead all", 180)
        wait_for_word(lambda: created(cluster, others[0], "later", len(others)), "the others to have a new topic", 180)
        assert word_of(cluster, cut).keys() == {"orders"}
    finally:
        cluster.links.heal()
    wait_for_word(lambda: "later" in word_of(cluster, cut), "it to know better", 60)
