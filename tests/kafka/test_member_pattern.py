"""`kgroup member --pattern` against a real Kafka: topics that come and go while members run."""

from uuid import uuid4

import pytest
from harness.groups import described_by_us
from harness.members import MemberProcess
from harness.waiting import wait_for

from spark_kgroup.testing import ApacheKafka


@pytest.fixture
def prefix() -> str:
    return f"of-{uuid4().hex[:8]}"


def generations(member: MemberProcess) -> list[int]:
    return [event["generation"] for event in member.events if event["event"] == "joined"]


def test_under_the_consumer_protocol_topics_are_assigned_as_they_appear_and_given_up_when_they_go(
    apache_kafka: ApacheKafka, group: str, prefix: str
) -> None:
    more = ["--metadata-max-age-ms", "500", "--group-protocol", "consumer"]
    with (
        MemberProcess(apache_kafka.bootstrap_servers, group, None, None, *more, pattern=f"{prefix}-[a-y]++") as first,
        MemberProcess(apache_kafka.bootstrap_servers, group, None, "b", *more, pattern=f"{prefix}-[a-y]++") as second,
    ):
        apache_kafka.create_topic(f"{prefix}-z", 2)
        apache_kafka.create_topic(f"{prefix}-b", 4)
        first.wait_for_owned(2)
        second.wait_for_owned(2)
        apache_kafka.create_topic(f"{prefix}-c", 4)
        first.wait_for_owned(4)
        second.wait_for_owned(4)
        assert {topic for topic, _ in first.owned | second.owned} == {f"{prefix}-b", f"{prefix}-c"}
        apache_kafka.admin.delete_topics([f"{prefix}-b"])[f"{prefix}-b"].result(30)
        first.wait_for_owned(2)
        second.wait_for_owned(2)
        assert {topic for topic, _ in first.owned | second.owned} == {f"{prefix}-c"}


def test_under_the_consumer_protocol_brokers_notice_topics_between_two_looks_of_the_member(
    apache_kafka: ApacheKafka, group: str, prefix: str
) -> None:
    """Brokers look again 10 s after their last look (GroupMetadataManager.REGEX_BATCH_REFRESH_MIN_INTERVAL_MS)."""
    more = ["--metadata-max-age-ms", "3600000", "--group-protocol", "consumer"]
    apache_kafka.create_topic(f"{prefix}-a", 2)
    with (
        MemberProcess(apache_kafka.bootstrap_servers, group, None, "a", *more, pattern=f"{prefix}-[a-y]") as first,
        MemberProcess(apache_kafka.bootstrap_servers, group, None, "b", *more, pattern=f"{prefix}-[a-y]") as second,
    ):
        first.wait_for_owned(1)
        second.wait_for_owned(1)
        apache_kafka.create_topic(f"{prefix}-z", 2)
        apache_kafka.create_topic(f"{prefix}-b", 4)
        first.wait_for_owned(3)
        second.wait_for_owned(3)
        assert {topic for topic, _ in first.owned | second.owned} == {f"{prefix}-a", f"{prefix}-b"}
        apache_kafka.admin.delete_topics([f"{prefix}-a"])[f"{prefix}-a"].result(30)
        first.wait_for_owned(2)
        second.wait_for_owned(2)
        assert {topic for topic, _ in first.owned | second.owned} == {f"{prefix}-b"}


def test_a_member_that_comes_back_with_topics_by_name_is_not_assigned_the_matches_of_its_pattern(
    apache_kafka: ApacheKafka, group: str, prefix: str
) -> None:
    more = ["--group-protocol", "consumer"]
    apache_kafka.create_topic(f"{prefix}-a", 2)
    apache_kafka.create_topic(f"{prefix}-b", 2)

    def targets() -> set[tuple[str, int]]:
        members = described_by_us(apache_kafka, group).members
        return {(tp.topic, tp.partition) for member in members for tp in member.target or ()}

    with MemberProcess(apache_kafka.bootstrap_servers, group, None, "a", *more, pattern=f"{prefix}-.") as matching:
        matching.wait_for_owned(4)
    with MemberProcess(apache_kafka.bootstrap_servers, group, f"{prefix}-b", "a", *more) as naming:
        naming.wait_for_owned(2)
        wait_for(lambda: targets() == {(f"{prefix}-b", 0), (f"{prefix}-b", 1)}, "the coordinator to forget the pattern")


def test_a_topic_that_appears_costs_one_rebalance_and_one_that_is_deleted_is_given_up(
    apache_kafka: ApacheKafka, group: str, prefix: str
) -> None:
    more = ["--metadata-max-age-ms", "1000"]
    with (
        MemberProcess(apache_kafka.bootstrap_servers, group, None, "a", *more, pattern=f"{prefix}-[a-y]++") as first,
        MemberProcess(apache_kafka.bootstrap_servers, group, None, "b", *more, pattern=f"{prefix}-[a-y]++") as second,
    ):
        first.wait_for_event("assigned")
        second.wait_for_event("assigned")
        wait_for(lambda: generations(first)[-1] == generations(second)[-1], "one generation")
        before = generations(first)[-1]
        apache_kafka.create_topic(f"{prefix}-z", 2)
        apache_kafka.create_topic(f"{prefix}-b", 4)
        first.wait_for_owned(2)
        second.wait_for_owned(2)
        assert {topic for topic, _ in first.owned | second.owned} == {f"{prefix}-b"}
        assert generations(first)[-1] == generations(second)[-1] == before + 1
        apache_kafka.admin.delete_topics([f"{prefix}-b"])[f"{prefix}-b"].result(30)
        first.wait_for_owned(0, 60)  # the only broker denies it for 30 s
        second.wait_for_owned(0, 60)
        assert first.process.poll() is None
        assert second.process.poll() is None
