"""Our members beside Kafka's own, librdkafka's and kafka-python's. Every mix: `make interop`."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from harness.kafka import MakeTopic
from harness.mixed.clients import JAVA, KAFKA_PYTHON, OURS
from harness.mixed.story import MixedGroup, coming_and_going

from spark_kgroup.testing import ApacheKafka

PARTITIONS = 12


def test_members_of_java_and_ours_come_crash_and_go_with_one_owner_at_a_time_and_no_more_moves_than_java_s_alone(
    apache_kafka: ApacheKafka, new_topic: MakeTopic
) -> None:
    def moves(kinds: tuple[str, ...]) -> int:
        with MixedGroup(
            apache_kafka, f"mixed-{uuid4().hex[:8]}", new_topic(PARTITIONS), PARTITIONS, "classic"
        ) as group:
            return coming_and_going(group, kinds)

    with ThreadPoolExecutor(3) as stories:
        mixed = stories.submit(moves, (OURS, JAVA))
        led_by_others = stories.submit(moves, (KAFKA_PYTHON, OURS))
        java = stories.submit(moves, (JAVA, JAVA))
        assert mixed.result() <= java.result()
        assert led_by_others.result() <= java.result()
