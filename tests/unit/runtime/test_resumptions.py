"""Which restarted seats go on as the member that an earlier process was."""

from uuid import UUID

import pytest

from spark_kgroup.member.config import PreviouslyOwned
from spark_kgroup.model import DescribedGroup, DescribedMember, TopicDescription, TopicPartition
from spark_kgroup.runtime.resumptions import SeatDebt, resumable, with_topic_ids


def parts(*indexes: int, of: str = "orders") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(of, index) for index in indexes)


def member(
    instance_id: str | None,
    has: frozenset[TopicPartition],
    shall_have: frozenset[TopicPartition],
    *,
    epoch: int = 5,
    protocol: str | None = "consumer",
) -> DescribedMember:
    return DescribedMember(
        member_id=f"id of {instance_id}",
        instance_id=instance_id,
        client_id="c",
        client_host="h",
        assignment=has,
        target=shall_have,
        epoch=epoch,
        protocol=protocol,
    )


def found(
    *members: DescribedMember,
    before: frozenset[TopicPartition] = parts(0, 1, 2),
    group_type: str = "consumer",
    by: str = "",
) -> dict[str | None, SeatDebt]:
    group = DescribedGroup(group="g", state="Reconciling", protocol="uniform", members=members, group_type=group_type)
    owned = {"a": PreviouslyOwned(partitions=before, generation=5, member_id=by)}
    return resumable(owned, group, ["a", "b"], ["orders"])


def owing(owned: frozenset[TopicPartition]) -> dict[str | None, SeatDebt]:
    return {"a": SeatDebt(member_id="id of a", epoch=5, owned=owned)}


def test_a_seat_whose_target_has_all_that_it_owned_owes_no_partition() -> None:
    assert found(member("a", parts(0, 1, 2), parts(0, 1, 2, 3))) == {}


def test_a_seat_that_died_before_it_heard_of_a_new_target_owes_the_partitions_that_are_not_in_it() -> None:
    assert found(member("a", parts(0, 1, 2), parts(0)), member("b", parts(), parts(1, 2))) == owing(parts(0, 1, 2))


def test_a_seat_that_died_when_it_had_heard_owes_the_partitions_without_an_owner() -> None:
    """Partitions that a member is told to give up are in no member's assignment."""
    assert found(member("a", parts(0), parts(0)), member("b", parts(2), parts(1, 2))) == owing(parts(0, 1))


def test_a_seat_owes_no_partition_that_another_member_has() -> None:
    assert found(member("a", parts(0), parts(0)), member("b", parts(1, 2), parts(1, 2))) == {}


def test_a_seat_owes_partitions_of_a_topic_that_is_subscribed_no_more() -> None:
    left = parts(0, of="clicks")
    assert found(member("a", left, left), before=left) == owing(left)


def test_a_seat_resumes_as_the_very_member_that_owned_the_owed_partitions() -> None:
    owes = member("a", parts(0, 1, 2), parts())
    assert found(owes, by="id of a") == owing(parts(0, 1, 2))


def test_a_seat_that_another_member_has_meanwhile_owes_no_partition() -> None:
    """The seat's new process takes the seat over at once, which fences that member."""
    assert found(member("a", parts(0, 1, 2), parts()), by="a member before") == {}


@pytest.mark.parametrize(
    "gone",
    [
        member("a", parts(0, 1, 2), parts(), epoch=-2),
        member("a", parts(0, 1, 2), parts(), protocol="classic"),
        member("other", parts(0, 1, 2), parts()),
        member(None, parts(0, 1, 2), parts()),
    ],
    ids=["released", "a classic member", "another seat", "a dynamic member"],
)
def test_a_seat_that_the_group_does_not_have_as_a_member_owes_no_partition(gone: DescribedMember) -> None:
    assert found(gone) == {}


def test_a_classic_group_has_claims_for_this() -> None:
    assert found(member("a", parts(0, 1, 2), parts()), group_type="classic") == {}


def test_owed_partitions_have_the_ids_of_their_topics_but_not_of_a_topic_that_is_gone() -> None:
    topics = {"orders": TopicDescription(name="orders", topic_id=UUID(int=3), partition_count=4)}
    resumes = with_topic_ids(SeatDebt(member_id="m", epoch=5, owned=parts(1) | parts(0, of="gone")), topics)
    assert (resumes.member_id, resumes.epoch) == ("m", 5)
    assert resumes.owned == {(TopicPartition("orders", 1), UUID(int=3))}
