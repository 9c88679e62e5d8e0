"""Liveness: one fault is left on. Partitions that it spares must be read on, and the cause of a stop must be named."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka import TopicPartition as Elected
from confluent_kafka.admin import AdminClient
from harness.waiting import wait_for
from history.facts import Lasting

from chaos.cluster import Cluster
from chaos.network import BREAKS
from chaos.schedule import Fault
from spark_kgroup.limits import AUTHENTICATION_GRACE_MS, AUTHORIZATION_GRACE_MS
from spark_kgroup.model import TopicPartition

GOES_ON_S: Final = 30.0
"""How soon spared partitions are read, as README promises of a broker that is gone or cut off."""

NAMED_S: Final = 45.0
"""How soon a warning names the cause of a stop: a seat warns after 10 s, a boundary after its patience."""

STALL_S: Final = 90.0
"""kafka.default.api.timeout.ms of queries where a leader is there and out of reach for good. A batch that was planned
before must be read, so all waits with it. Its error comes after this long (default 5 min: too long to watch)."""

_SLACK_S: Final = 30.0
"""How much later than a bound an error or a row may be seen, on a busy machine."""

FAULTS: Final = (
    Fault.CUT_OFF_BROKER,
    Fault.LOSE_ANSWERS,
    Fault.LOSE_REQUESTS,
    Fault.SLOW_ANSWERS,
    Fault.RESET_ANSWERS,
    Fault.TWO_MINDS,
    Fault.KILL_BROKER,
)
OPERATORS: Final = (Fault.REVOKE_RIGHT, Fault.OTHER_PASSWORD, Fault.JUMP_CLOCK)
"""What is changed for the main query, where the operator's lane plays."""

UNREACHABLE: Final = frozenset({Fault.LOSE_ANSWERS, Fault.LOSE_REQUESTS})
"""Clients lose a broker, and the cluster does not: its partitions have a leader that no client reaches."""


_REFUSED_S: Final = max(AUTHORIZATION_GRACE_MS, AUTHENTICATION_GRACE_MS) / 1000
"""How long a query waits for a right or a login that was good before (README)."""

_COORDINATORS: Final = "__consumer_offsets"
"""The topic of which a partition's leader coordinates a group."""


def named_s(fault: Fault) -> float:
    """How soon a warning or an error must name the fault."""
    if fault in UNREACHABLE:
        return STALL_S + _SLACK_S
    return _REFUSED_S + _SLACK_S if fault in OPERATORS else NAMED_S


def lasts_s(fault: Fault) -> float:
    """How long it is watched: long enough for records that come at its beginning to be read, or missed."""
    return named_s(fault) + _SLACK_S


def chosen(seed: int, lanes: Collection[str]) -> Fault:
    """The fault that this seed leaves on, where these lanes play."""
    faults: list[Fault] = [*FAULTS, *(OPERATORS if "operator" in lanes else ())]
    return Random(f"{seed} lasting").choice(faults)


@dataclass(frozen=True, slots=True)
class Change:
    """A change for the main query that is left on.

    Attributes:
        name: what is other than before.
        begin: makes it.
        end: takes it back.
        words: one of them stands in the error of a query that it ends. Without any, the query goes on.
    """

    name: str
    begin: Callable[[], object]
    end: Callable[[], object]
    words: Sequence[str]


@dataclass(frozen=True, slots=True)
class Roles:
    """The leaders and the coordinator in the cluster, when the fault begins."""

    leaders: Mapping[TopicPartition, int]
    coordinator: int

    def without(self, nodes: Sequence[int]) -> int:
        """A broker that leads partitions, and does not coordinate the group: without it the rest can go on."""
        led = list(self.leaders.values())
        return max((node for node in nodes if node != self.coordinator), key=led.count)


def roles(server: str, group: str, topics: Sequence[str]) -> Roles:
    """The roles by the cluster's present metadata. An election may have moved the coordinator a moment ago."""
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})

    def asked() -> Roles | None:
        try:
            described = admin.list_topics(timeout=10).topics
            coordinator = admin.describe_consumer_groups([group])[group].result(10).coordinator
        except KafkaException:
            return None
        return Roles(
            {TopicPartition(t, p): m.leader for t in topics for p, m in described[t].partitions.items()},
            coordinator.id,
        )

    return wait_for(asked, f"the leaders of {', '.join(topics)} and the coordinator of {group}", 60)


def leave_on(fault: Fault, cluster: Cluster, group: str, topics: Sequence[str], watch: Callable[[], None]) -> Lasting:
    """Begin `fault`, watch for as long as `watch` takes, and return what should have gone on. `end` heals it.

    Preferred leaders are elected first, so that each broker leads some partitions, and the cluster does not move the
    group's coordinator to the broker while the fault lasts (its auto.leader.rebalance.enable). It may still move a
    leader there: a partition is spared only if neither its first nor its last leader is out of reach.
    """
    _elect_preferred(cluster, [*topics, _COORDINATORS])
    now = roles(cluster.server, group, topics)
    nodes = cluster.node_ids
    node = now.without(nodes)
    began = time.time()
    if fault is Fault.KILL_BROKER:
        cluster.kafka.nodes[nodes.index(node)].kill()
    else:
        cluster.links.fail(BREAKS[fault](node, next(n for n in nodes if n != node), nodes))
    watch()
    gone = {node} if fault in UNREACHABLE else set()
    later = roles(cluster.server, group, topics).leaders if gone else now.leaders
    lost = {tp for tp, leader in now.leaders.items() if gone & {leader, later[tp]}}
    return Lasting(
        fault=f"{fault.value} (node {node})",
        words=[
            *(f"broker {node}", f"node {node}", *cluster.addresses(node)),
            *(f"{tp.topic}-{tp.partition}" for tp in sorted(lost)),
        ],
        spared=[list(tp) for tp in sorted(now.leaders.keys() - lost)],
        goes_on_s=GOES_ON_S,
        named_s=named_s(fault),
        wall_at_s=began,
        until_s=time.time(),
    )


def leave_change_on(
    change: Change, bound_s: float, partitions: Sequence[TopicPartition], watch: Callable[[], None]
) -> Lasting:
    """As `leave_on`, for a change by an operator, which is taken back in the end."""
    began = time.time()
    try:
        change.begin()
        watch()
        until = time.time()
    finally:
        change.end()
    return Lasting(
        fault=change.name,
        words=list(change.words),
        spared=[] if change.words else [list(tp) for tp in partitions],
        goes_on_s=GOES_ON_S,
        named_s=bound_s,
        wall_at_s=began,
        until_s=until,
    )


def _elect_preferred(cluster: Cluster, topics: Sequence[str]) -> None:
    described = cluster.kafka.admin.list_topics(timeout=10).topics
    every = [Elected(topic, partition) for topic in topics for partition in described[topic].partitions]
    cluster.kafka.admin.elect_leaders(ElectionType.PREFERRED, every).result(30)


def end(cluster: Cluster) -> None:
    """Heal all faults, and return when the cluster is whole."""
    cluster.links.heal()
    for node in cluster.kafka.nodes:
        if not node.running:
            node.restart()
    cluster.kafka.await_ready()
