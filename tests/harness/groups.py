"""A group as its coordinator shows it to an admin client, and as it wrote it down."""

import asyncio

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from harness.group_log import read_group_record
from harness.offsets import COORDINATOR_ON_ITS_WAY, COORDINATOR_WITHIN_S
from harness.waiting import wait_for
from spark_kgroup.model import DescribedGroup
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.kafka_node import KafkaNode
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster

_DESCRIBE_TIMEOUT_S = 10


def stable_generation(kafka: ApacheKafka, group: str) -> int:
    """The generation of a group at rest, from the coordinator's own record.

    Of a group of type consumer, the epoch of its targets, whether its members have reached them or not.
    """
    if described_by_us(kafka, group).is_consumer_type:
        epoch = wait_for(lambda: _target_epoch(kafka, group), f"{group} to have targets")
        assert epoch is not None
        return epoch
    wait_for(lambda: _described(kafka, group).state is ConsumerGroupState.STABLE, f"{group} to be stable")
    record = wait_for(lambda: read_group_record(kafka.bootstrap_servers, group), f"the coordinator's record of {group}")
    return record.generation


def instance_ids(kafka: ApacheKafka, group: str) -> list[str | None]:
    """The instance id of each member, sorted, with None for each dynamic one before them.

    By librdkafka's admin client, in a group of type classic. Kafka's own tool says the same, and takes 0.9 s of CPU
    time to start.
    """
    if (described := described_by_us(kafka, group)).is_consumer_type:
        found = [member.instance_id for member in described.members]
    else:
        found = [member.group_instance_id or None for member in _described(kafka, group).members]
    return sorted(found, key=lambda each: each or "")


def assignment_by_instance(kafka: ApacheKafka, group: str) -> dict[str, set[tuple[str, int]]]:
    """Instance id, or the member id of a dynamic member -> partitions."""
    if (described := described_by_us(kafka, group)).is_consumer_type:
        return {
            m.instance_id or m.member_id: {(tp.topic, tp.partition) for tp in m.assignment} for m in described.members
        }
    return {
        m.group_instance_id or m.member_id: {(tp.topic, tp.partition) for tp in m.assignment.topic_partitions}
        for m in _described(kafka, group).members
    }


def coordinator_node(kafka: ApacheKafka, group: str) -> KafkaNode:
    """The node that coordinates `group`, whether there is such a group yet or not."""
    coordinator = _described(kafka, group).coordinator.id
    return next(node for node in kafka.nodes if node.node_id == coordinator)


def described_by_us(kafka: ApacheKafka, group: str) -> DescribedGroup:
    """The group as our own client sees it, of whichever type it is."""

    async def ask() -> DescribedGroup:
        cluster = Cluster(parse_bootstrap(kafka.bootstrap_servers), client_id="test")
        try:
            return await cluster.groups.describe(group)
        finally:
            await cluster.close()

    return asyncio.run(ask())


def _target_epoch(kafka: ApacheKafka, group: str) -> int | None:
    """None while targets are being computed."""
    described = described_by_us(kafka, group)
    return described.target_epoch if described.state != "Assigning" else None


def _described(kafka: ApacheKafka, group: str) -> ConsumerGroupDescription:
    def answer() -> ConsumerGroupDescription | None:
        # By a client of its own: librdkafka aborts the process if one that has lived through an outage asks for a group
        # (rd_kafka_enq_once_del_source_return, seen with 2.16).
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        try:
            asked = admin.describe_consumer_groups([group], request_timeout=_DESCRIBE_TIMEOUT_S)[group]
            found: ConsumerGroupDescription = asked.result(_DESCRIBE_TIMEOUT_S + 5)
            return found
        except KafkaException as refusal:
            if refusal.args[0].code() not in COORDINATOR_ON_ITS_WAY:
                raise
            return None

    return wait_for(answer, f"the coordinator of {group}", COORDINATOR_WITHIN_S)
