"""Tables as ConsumerGroupCommand printed them: Kafka 4.3.1's, and where a test says so that of an older release."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.model import TopicPartition
from spark_kgroup.testing.group_tool import (
    MemberRow,
    PartitionRow,
    parse_members,
    parse_offsets,
    parse_state,
    with_owned,
)

TABLES = Path(__file__).parent / "printed_tables"
STATIC_MEMBERS = (TABLES / "static_members.txt").read_text()
DYNAMIC_MEMBER = (TABLES / "dynamic_member.txt").read_text()
OFFSETS = (TABLES / "offsets.txt").read_text()
NO_GROUP = "\nError: Executing consumer group command failed due to GroupIdNotFoundException: Group g not found.\n"


def test_members_with_instance_ids_clients_with_spaces_and_assignments_wider_than_their_column() -> None:
    first, second = parse_members(STATIC_MEMBERS)
    assert (first.instance_id, first.client_id, first.host) == ("s-0", "cl 0", "/127.0.0.1")
    assert first.assignment == {
        *(TopicPartition("a", p) for p in range(13)),
        *(TopicPartition("b.c-d_e", p) for p in (0, 1)),
    }
    assert second.member_id == "s-1-58c3d201-35e2-4693-abd4-8901e315ba9b"
    assert second.assignment == {TopicPartition("a", 2)}
    assert second.member_epoch is None


def test_a_member_without_instance_id_or_partitions() -> None:
    assert parse_members(DYNAMIC_MEMBER) == [
        MemberRow(
            member_id="rdkafka-4debcc92-a6d8-428a-9344-93da363fa9bd",
            instance_id=None,
            host="/127.0.0.1",
            client_id="rdkafka",
            member_epoch=2,
            assignment=frozenset(),
        )
    ]


def test_offsets_carry_their_owners_instance_id_and_are_sorted_by_number() -> None:
    rows = parse_offsets(OFFSETS, STATIC_MEMBERS)
    assert [row.partition for row in rows] == [2, 3, 10]
    assert rows[0].current_offset is None
    assert rows[0].lag is None
    assert rows[0].instance_id == "s-0"
    assert rows[1] == PartitionRow(
        topic="a", partition=3, current_offset=5, log_end_offset=9, lag=4,
        member_id=None, instance_id=None, host=None, client_id=None,
    )  # fmt: skip
    assert (rows[2].instance_id, rows[2].lag, rows[2].client_id) == ("s-1", 0, "cl 1")


OLDER_MEMBERS = """
GROUP           CONSUMER-ID                            GROUP-INSTANCE-ID HOST            CLIENT-ID       #PARTITIONS     ASSIGNMENT
g               s-0eac3dba-5da6-43b3-8e89-268183d6129a s                 /127.0.0.1      cl 0            3               b.c-d_e(0,1), u(2)
g               t-c2230e50-3aca-468e-b455-383f3f108c64 t                 /127.0.0.1      cl 1            0               -
"""  # noqa: E501


def test_members_are_parsed_from_the_table_of_kafka_3_2() -> None:
    first, second = parse_members(OLDER_MEMBERS)
    assert first.assignment == {TopicPartition("b.c-d_e", 0), TopicPartition("b.c-d_e", 1), TopicPartition("u", 2)}
    assert (first.instance_id, first.client_id, first.member_epoch) == ("s", "cl 0", None)
    assert second.assignment == frozenset()


def test_the_table_of_offsets_has_the_owners_that_the_table_of_members_leaves_out_in_kafka_3_9() -> None:
    first, second = parse_members(OLDER_MEMBERS.replace("b.c-d_e(0,1), u(2)", "(0,1), (2)"))
    assert (first.instance_id, first.assignment) == ("s", frozenset())
    offsets = """
GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID                            HOST            CLIENT-ID
g               t               1          -               0               -               s-0eac3dba-5da6-43b3-8e89-268183d6129a /127.0.0.1      cl 0
g               t               0          1               1               0               -                                      -               -
g               u               1          -               0               -               s-0eac3dba-5da6-43b3-8e89-268183d6129a /127.0.0.1      cl 0
"""  # noqa: E501
    owned = frozenset({TopicPartition("t", 1), TopicPartition("u", 1)})
    assert with_owned([first, second], offsets) == [replace(first, assignment=owned), second]


def test_the_state_of_a_group_is_parsed_from_the_table_of_kafka_3_2() -> None:
    row = parse_state(
        "\nGROUP                     COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE           #MEMBERS\n"
        "g                         127.0.0.1:43297 (1)       range                Stable          1\n"
    )
    assert (row.coordinator, row.assignor, row.state) == ("127.0.0.1:43297", "range", "Stable")
    assert (row.member_count, row.group_epoch) == (1, None)


def test_the_state_of_a_group_is_parsed_from_the_tool_s_table() -> None:
    row = parse_state(
        "\nGROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                GROUP-EPOCH     "
        "TARGET-ASSIGNMENT-EPOCH   #MEMBERS\n"
        "g               127.0.0.1:43567  (1)      -                    CompletingRebalance  7               "
        "-                         12\n"
    )
    assert (row.coordinator, row.assignor, row.state) == ("127.0.0.1:43567", "", "CompletingRebalance")
    assert (row.member_count, row.group_epoch) == (12, 7)


def test_a_group_that_does_not_exist_has_no_rows() -> None:
    assert parse_members(NO_GROUP) == []
    assert parse_offsets(NO_GROUP, NO_GROUP) == []
    with pytest.raises(EnvironmentProblem, match="Group g not found"):
        parse_state(NO_GROUP)
