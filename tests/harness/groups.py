"""A group as Kafka itself shows it."""

from harness.waiting import wait_for
from spark_kgroup.testing import ApacheKafka


def stable_generation(kafka: ApacheKafka, group: str) -> int:
    """The generation of a group at rest, from the coordinator's own record."""
    wait_for(lambda: kafka.describe_group_state(group).state == "Stable", f"{group} to be stable")
    record = wait_for(lambda: kafka.group_record(group), f"the coordinator's record of {group}")
    return record.generation


def assignment_by_instance(kafka: ApacheKafka, group: str) -> dict[str, set[tuple[str, int]]]:
    """Instance id -> partitions, from Kafka's own group tool."""
    members = kafka.describe_members(group)
    return {m.instance_id or m.member_id: {(tp.topic, tp.partition) for tp in m.assignment} for m in members}
