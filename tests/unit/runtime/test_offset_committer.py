"""A seat's commit on the wire: its size, the metadata beside its offsets, and the reaction to a refusal."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from harness.fake_cluster import WHO, BrokerWorld, in_a_world
from harness.kio_messages import OffsetCommitRequest
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kgroup import rights
from spark_kgroup.errors import BrokerError
from spark_kgroup.limits import COMMIT_PARTITIONS_MAX
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.runtime import offset_committer as commits_module
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings, OwnerHooks

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

LARGE = [TopicPartition("a", index) for index in range(COMMIT_PARTITIONS_MAX)]

Scenario = Callable[[BrokerWorld, Group], Awaitable[None]]


@pytest.fixture(autouse=True)
def _time_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than the bound on a commit, of which some of these tests set one of their own."""
    monkeypatch.setattr(commits_module, "COMMIT_TIMEOUT_MS", 60_000)


def with_a_group(scenario: Scenario) -> Callable[[], None]:
    """A group whose seats write a long note and a short mark."""

    @in_a_world()
    async def run(world: BrokerWorld) -> None:
        settings = GroupSettings(
            bootstrap=(world.brokers[0].address,),
            group="g",
            topics=("a",),
            instance_ids=("seat-0",),
            hooks=OwnerHooks(
                commit_metadata=lambda who, topic_id: f"{who.instance_id} serves this{topic_id}",
                commit_mark=lambda _, topic_id: f"mark{topic_id}",
            ),
        )
        group = Group(settings)
        try:
            await scenario(world, group)
        finally:
            await group.close()

    run.__name__, run.__doc__ = scenario.__name__, scenario.__doc__
    return run


def commits(world: BrokerWorld) -> list[dict[TopicPartition, str | None]]:
    """The metadata beside each partition, for each request."""
    return [
        {TopicPartition(t.name, p.partition_index): p.committed_metadata for t in r.topics for p in t.partitions}
        for r in world.brokers[0].requests
        if isinstance(r, OffsetCommitRequest)
    ]


def longer_than(most: int) -> Callable[[dict[TopicPartition, str]], bool]:
    return lambda beside: max(map(len, beside.values())) > most


def refuse(world: BrokerWorld, code: int, when: Callable[[dict[TopicPartition, str]], bool]) -> None:
    """Answer `code` to each commit that `when` picks, by the metadata beside its partitions."""
    answer = world.on_OffsetCommit

    def refusing(node: int, request: Any, error: KioErrorCode) -> Any:
        beside = {
            TopicPartition(t.name, p.partition_index): p.committed_metadata
            for t in request.topics
            for p in t.partitions
        }
        return answer(node, request, KioErrorCode(code) if when(beside) else error)

    world.on_OffsetCommit = refusing  # type: ignore[method-assign]


@with_a_group
async def test_the_note_stands_beside_one_partition_of_each_topic_and_the_mark_beside_all_other_partitions(
    world: BrokerWorld, group: Group
) -> None:
    partitions = [TopicPartition(topic, index) for topic in ("a", "b") for index in (3, 5, 8)]
    assert await group.commits.commit(WHO, dict.fromkeys(partitions, 7)) == set(partitions)
    (beside,) = commits(world)
    noted = {tp for tp, text in beside.items() if text == "seat-0 serves this"}
    assert noted == {TopicPartition("a", 3), TopicPartition("b", 3)}
    assert {text for tp, text in beside.items() if tp not in noted} == {"mark"}


@with_a_group
async def test_a_commit_names_the_topic_that_was_read(world: BrokerWorld, group: Group) -> None:
    partitions = [TopicPartition(topic, index) for topic in ("a", "b") for index in (0, 1)]
    await group.commits.commit(WHO, dict.fromkeys(partitions, 7), {"a": " 6f1c2f0e"})
    (beside,) = commits(world)
    assert list(beside.values()) == ["seat-0 serves this 6f1c2f0e", "mark 6f1c2f0e", "seat-0 serves this", "mark"]


@with_a_group
async def test_a_large_commit_is_cut_to_a_broker_s_bound(world: BrokerWorld, group: Group) -> None:
    positions = {TopicPartition("a", index): index for index in range(4 * COMMIT_PARTITIONS_MAX + 1)}
    assert await group.commits.commit(WHO, positions) == positions.keys()
    assert [len(beside) for beside in commits(world)] == [COMMIT_PARTITIONS_MAX] * 4 + [1]
    assert world.committed == positions


def test_a_broker_s_refusal_says_more_than_its_silence_at_the_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "COMMIT_TIMEOUT_MS", 1_500)

    @with_a_group
    async def scenario(world: BrokerWorld, group: Group) -> None:
        asked = 0

        def refused_then_silent(node: int, request: Any, error: KioErrorCode) -> Any:
            nonlocal asked
            asked += 1
            return answer(node, request, KioErrorCode.stale_member_epoch) if asked == 1 else None

        answer = world.on_OffsetCommit
        world.on_OffsetCommit = refused_then_silent  # type: ignore[method-assign]
        assert await group.commits.commit(WHO, {TopicPartition("a", 0): 7}) == frozenset()
        assert asked > 1
        assert group.commits.refusal == "STALE_MEMBER_EPOCH"

    scenario()


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_COMMIT_OFFSET_SIZE])
def test_a_commit_that_is_too_large_for_the_coordinator_is_halved_until_it_fits(code: ErrorCode) -> None:
    @with_a_group
    async def scenario(world: BrokerWorld, group: Group) -> None:
        refuse(world, code, lambda beside: len(beside) > 130)
        assert await group.commits.commit(WHO, dict.fromkeys(LARGE, 7)) == set(LARGE)
        assert sorted(map(len, commits(world))) == [125] * 8 + [250] * 4 + [500] * 2 + [1000]
        assert world.committed == dict.fromkeys(LARGE, 7)
        assert group.commits.refusal == ""

    scenario()


@with_a_group
async def test_a_deleted_topic_beside_it_does_not_hide_that_a_commit_is_too_large(
    world: BrokerWorld, group: Group
) -> None:
    """A broker answers by itself for unknown partitions, and hands the rest to the coordinator (KafkaApis)."""
    gone = TopicPartition("gone", 0)
    refuse(world, ErrorCode.UNKNOWN_SERVER_ERROR, lambda beside: len(beside) > 130)
    answer = world.on_OffsetCommit

    def knowing(node: int, request: Any, error: KioErrorCode) -> Any:
        found = answer(node, request, error)
        unknown = tuple(
            replace(p, error_code=KioErrorCode.invalid_topic_exception)
            for t in found.topics
            if t.name == gone.topic
            for p in t.partitions
        )
        return replace(
            found, topics=tuple(replace(t, partitions=unknown) if t.name == gone.topic else t for t in found.topics)
        )

    world.on_OffsetCommit = knowing  # type: ignore[method-assign]
    assert await group.commits.commit(WHO, dict.fromkeys([*LARGE[:500], gone], 7)) == set(LARGE[:500])


def test_a_commit_goes_on_for_as_long_as_the_coordinator_takes_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the last partitions of a very large seat would come too late at each boundary, and never go on."""
    monkeypatch.setattr(commits_module, "COMMIT_PARTITIONS_MAX", 10)
    monkeypatch.setattr(commits_module, "COMMIT_TIMEOUT_MS", 3_000)

    @with_a_group
    async def scenario(world: BrokerWorld, group: Group) -> None:
        answer = world.brokers[0].answer

        async def slow(request: Any) -> Any:
            if isinstance(request, OffsetCommitRequest):
                await asyncio.sleep(0.4)
            return answer(request)

        world.brokers[0].answer = slow
        assert await group.commits.commit(WHO, dict.fromkeys(LARGE[:100], 7)) == set(LARGE[:100])
        assert world.asked(OffsetCommitRequest) == 10

    scenario()


def test_a_commit_to_a_coordinator_that_is_silent_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "COMMIT_PARTITIONS_MAX", 10)
    monkeypatch.setattr(commits_module, "COMMIT_TIMEOUT_MS", 1_500)

    @with_a_group
    async def scenario(world: BrokerWorld, group: Group) -> None:
        world.first["OffsetCommit"] = [None] * 10
        assert await group.commits.commit(WHO, dict.fromkeys(LARGE[:100], 7)) == frozenset()
        assert world.asked(OffsetCommitRequest) == 1
        (waited_ms,) = re.findall(r"within (\d+) ms", group.commits.refusal)
        assert int(waited_ms) <= 1_500, "what is left of the bound when the request is sent"

    scenario()


@with_a_group
async def test_a_coordinator_that_takes_no_offset_is_not_asked_for_each_partition(
    world: BrokerWorld, group: Group
) -> None:
    refuse(world, ErrorCode.UNKNOWN_SERVER_ERROR, lambda _: True)
    assert await group.commits.commit(WHO, dict.fromkeys(LARGE, 7)) == frozenset()
    assert [len(beside) for beside in commits(world)] == [1000, 500, 250, 125, 62, 31, 15, 7, 3, 1]
    assert group.commits.refusal == "UNKNOWN_SERVER_ERROR"


@with_a_group
async def test_a_note_that_is_too_long_gives_way_to_the_mark_and_then_to_an_empty_text(
    world: BrokerWorld, group: Group
) -> None:
    positions = {TopicPartition("a", 0): 7, TopicPartition("a", 1): 8}
    for most, written in [(4, "mark"), (3, "")]:
        refuse(
            world,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            longer_than(most),
        )
        assert await group.commits.commit(WHO, positions) == positions.keys()
        assert set(commits(world)[-1].values()) == {written}


@with_a_group
async def test_why_the_last_commit_was_refused_is_known_until_one_is_taken(world: BrokerWorld, group: Group) -> None:
    world.first["OffsetCommit"] = [ErrorCode.INVALID_GROUP_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert await group.commits.commit(WHO, {LARGE[0]: 7}) == frozenset()
    assert group.commits.refusal == "INVALID_GROUP_ID"
    with pytest.raises(
        BrokerError, match=f"TOPIC_AUTHORIZATION_FAILED: topic '{LARGE[0].topic}': grant READ on the topic"
    ):
        await group.commits.commit(WHO, {LARGE[0]: 7})
    assert await group.commits.commit(WHO, {LARGE[0]: 7}) == {LARGE[0]}
    assert group.commits.refusal == ""


@with_a_group
async def test_a_member_had_the_right_to_its_group_also_before_its_first_commit(
    world: BrokerWorld, group: Group
) -> None:
    """It has joined with it. A query that had just begun ended by a right that was away for seconds (chaos)."""
    world.first["OffsetCommit"] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    assert await group.commits.commit(WHO, {LARGE[0]: 7}) == frozenset()
    assert group.commits.refusal == "GROUP_AUTHORIZATION_FAILED"
    assert await group.commits.commit(WHO, {LARGE[0]: 7}) == {LARGE[0]}


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_commit_waits_for_rights_that_were_there_until_they_have_been_missing_for_long(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that starts may not have all ACLs yet (KAFKA-10233)."""

    @with_a_group
    async def scenario(world: BrokerWorld, group: Group) -> None:
        assert await group.commits.commit(WHO, {LARGE[0]: 7}) == {LARGE[0]}
        world.first["OffsetCommit"] = [code]
        assert await group.commits.commit(WHO, {LARGE[0]: 8}) == frozenset()
        assert group.commits.refusal == code.name
        assert await group.commits.commit(WHO, {LARGE[0]: 8}) == {LARGE[0]}
        monkeypatch.setattr(rights, "AUTHORIZATION_GRACE_MS", 0)
        world.first["OffsetCommit"] = [code]
        of = "group 'g'" if code is ErrorCode.GROUP_AUTHORIZATION_FAILED else f"topic '{LARGE[0].topic}'"
        with pytest.raises(BrokerError, match=f"{code.name}: {of}: grant READ on the {of.split()[0]} to this user"):
            await group.commits.commit(WHO, {LARGE[0]: 9})

    scenario()
