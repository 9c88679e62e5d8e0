"""`Group.connect`: arguments that cannot be meant, and topics that are deleted and created again."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from harness.fake_broker import NO_THROTTLE, on_a_loop
from harness.fake_cluster import A0, A1, BrokerWorld, in_a_world
from harness.sessions import joined, synced
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kgroup import Assigned, Group, GroupSettings, Lost, ProtocolSettings, Revoked, TopicPartition, membership
from spark_kgroup.errors import OptionError
from spark_kgroup.member import contract
from spark_kgroup.model import ErrorCode, MemberIdentity
from spark_kgroup.seat_note import Author, is_of_topic
from spark_kgroup.wire import messages
from spark_kgroup.wire.address import parse_bootstrap

OTHER_ID = UUID(int=0xABCDEF << 100)
GIVEN: Mapping[str, Any] = {"bootstrap": "b:9092", "group": "g", "topics": ["t"], "instance_ids": ["a"]}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bootstrap": "b"}, "`bootstrap.servers`: 'b' is not HOST:PORT."),
        ({"bootstrap": ["b:9092"]}, "`bootstrap` has ['b:9092']: give a text that is not empty."),
        ({"group": ""}, "`group` has '': give a text that is not empty."),
        ({"topics": "t"}, "`topics` is 't': give a list, such as ['orders']."),
        ({"topics": []}, "`topics` is empty: give at least one, such as ['orders']."),
        ({"topics": [7]}, "`topics` has 7: give a text that is not empty."),
        ({"instance_ids": 2}, "`instance_ids` is 2: give a list, such as ['worker-0']."),
        ({"instance_ids": ["a", "a"]}, "`instance_ids` names a seat twice: ['a', 'a']."),
        ({"assignors": ["stickiest"]}, "stickiest"),
        ({"assignors": "range"}, "`assignors` is 'range': give a list, such as ['range']."),
        ({"group_protocol": "Consumer"}, "`group_protocol` is 'Consumer': give 'classic' or 'consumer'."),
        ({"server_assignor": "uniform"}, "`server_assignor` is 'uniform', but under group_protocol='classic'"),
        ({"group_protocol": "consumer", "server_assignor": ""}, "`server_assignor` has '': give a text that is not"),
        (
            {"group_protocol": "consumer", "assignors": ["range"]},
            "`assignors` is ['range'], but under group_protocol='consumer' the brokers assign: give `server_assignor`",
        ),
        (
            {"group_protocol": "consumer", "session_timeout_ms": 45_000},
            "`session_timeout_ms` is 45000, but under group_protocol='consumer' the brokers decide: set the group's "
            "consumer.session.timeout.ms there.",
        ),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_before_a_seat_joins(wrong: Mapping[str, Any], sentence: str) -> None:
    @on_a_loop
    async def scenario() -> None:
        with pytest.raises(OptionError, match=re.escape(sentence)):
            async with Group.connect(**{**GIVEN, **wrong}):
                pass

    scenario()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bootstrap": "b:9092"}, "`bootstrap` is 'b:9092': give addresses, as `parse_bootstrap` returns them"),
        ({"bootstrap": ("b:9092",)}, "`bootstrap` is ('b:9092',): give addresses"),
        ({"topics": "t"}, "`topics` is 't': give a tuple, such as ('t',)."),
        ({"instance_ids": "a"}, "`instance_ids` is 'a': give a tuple"),
    ],
    ids=str,
)
def test_settings_of_a_wrong_type_are_refused(wrong: Mapping[str, Any], sentence: str) -> None:
    right = {**GIVEN, "bootstrap": parse_bootstrap("b:9092"), "topics": ("t",), "instance_ids": ("a",)}
    GroupSettings(**right)
    with pytest.raises(OptionError, match=re.escape(sentence)):
        GroupSettings(**{**right, **wrong})


def test_a_text_for_the_assignors_is_refused() -> None:
    with pytest.raises(OptionError, match=re.escape("`assignors` is 'range': give a tuple, such as ('range',).")):
        ProtocolSettings(assignors="range")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ topics that are created again


class Coordinator:
    """Assigns `share` to the only seat, and asks it to join again as often as `rebalances` says."""

    def __init__(self, world: BrokerWorld) -> None:
        self.share: list[TopicPartition] = [A0, A1]
        self.rebalances = 0
        self.generation = 0
        answers: Any = world  # which has no answers of its own to these
        answers.on_JoinGroup = self.on_join
        answers.on_SyncGroup = lambda *_: synced(self.share)
        answers.on_Heartbeat = self.on_heartbeat

    def on_join(self, *_: Any) -> Any:
        self.generation += 1
        return joined(leader="leader", generation=self.generation)

    def on_heartbeat(self, *_: Any) -> Any:
        code = ErrorCode.NONE
        if self.rebalances:
            self.rebalances, code = self.rebalances - 1, ErrorCode.REBALANCE_IN_PROGRESS
        return messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode(code))


@pytest.fixture(autouse=True)
def _looks_at_topics_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "TOPIC_IDS_MAX_AGE_MS", -1)


@asynccontextmanager
async def connected(world: BrokerWorld) -> AsyncIterator[Group]:
    """A program that was told that it has both partitions of the topic."""
    async with Group.connect(
        str(world.brokers[0].address), group="g", topics=["a"], instance_ids=["seat-0"], session_timeout_ms=6_000
    ) as group:
        assert await anext(group.events()) == Assigned(instance_id="seat-0", partitions=frozenset({A0, A1}))
        yield group


@in_a_world()
async def test_a_committed_offset_counts_for_the_topic_that_its_commit_names(world: BrokerWorld) -> None:
    Coordinator(world)
    async with connected(world) as group:
        assert await group.commit({A0: 7, A1: 8}) == {A0, A1}
        assert await group.committed([A0, A1]) == {A0: 7, A1: 8}
        assert is_of_topic(world.texts[A0], str(world.topic_id))
        assert Author.of(world.texts[A0]) is None, "to the data source it is another client's"
        world.topic_id = OTHER_ID
        assert await group.committed([A0, A1]) == {}
        world.texts[A0] = ""  # another client's, which names no topic id
        assert await group.committed([A0, A1]) == {A0: 7}


@in_a_world()
async def test_a_position_in_a_topic_that_was_created_again_is_not_committed(world: BrokerWorld) -> None:
    Coordinator(world)
    async with connected(world) as group:
        events = group.events()
        await group.commit({A0: 7})
        world.topic_id = OTHER_ID
        assert await group.commit({A0: 9}) == frozenset()
        assert group.owned == {"seat-0": {A0, A1}}
        lost = await anext(events)
        assert lost == Lost(instance_id="seat-0", partitions=frozenset({A0, A1}), reason="deleted and created again: a")
        assert await group.commit({A0: 9}) == frozenset(), "the program was not told yet that it goes on"
        assert world.committed == {A0: 7}
        assert await anext(events) == Assigned(instance_id="seat-0", partitions=frozenset({A0, A1}))
        assert await group.committed([A0, A1]) == {}
        assert await group.commit({A0: 3}) == {A0}
        assert await group.committed([A0, A1]) == {A0: 3}


@in_a_world()
async def test_a_program_that_waits_for_events_hears_at_once_that_a_topic_was_created_again(world: BrokerWorld) -> None:
    Coordinator(world)
    async with connected(world) as group:
        world.topic_id = OTHER_ID
        topics, changed = await group._seats.topics.named(["a"]), group._seats._seats.changed
        changed.clear()
        group._hear_of_topics(topics)
        assert changed.is_set()
        assert isinstance(await anext(group.events()), Lost)


@in_a_world()
async def test_partitions_to_be_released_of_a_topic_that_was_created_again_are_released_without_a_commit(
    world: BrokerWorld,
) -> None:
    coordinator = Coordinator(world)
    async with connected(world) as group:
        events = group.events()
        coordinator.share, coordinator.rebalances = [A0], 1
        assert await anext(events) == Revoked(instance_id="seat-0", partitions=frozenset({A1}))
        world.topic_id = OTHER_ID
        assert await group.commit({A1: 9}) == frozenset()
        group.release({A1})
        assert await anext(events) == Lost(
            instance_id="seat-0", partitions=frozenset({A0}), reason="deleted and created again: a"
        )
        assert await anext(events) == Assigned(instance_id="seat-0", partitions=frozenset({A0}))
        assert group.owned == {"seat-0": {A0}}
        assert world.committed == {}


def test_a_commit_does_not_wait_for_brokers_that_tell_no_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "COMMIT_TIMEOUT_MS", 100)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        Coordinator(world)
        async with connected(world) as group:
            world.first["Metadata"] = [ErrorCode.UNKNOWN_SERVER_ERROR] * 99
            assert await group.commit({A0: 7}) == {A0}
            assert is_of_topic(world.texts[A0], str(world.topic_id))

    scenario()


@in_a_world()
async def test_a_position_from_before_a_topic_was_created_again_is_not_committed_by_a_call_that_was_under_way(
    world: BrokerWorld,
) -> None:
    Coordinator(world)
    async with connected(world) as group:
        events = group.events()

        async def others_hear_of_it_meanwhile() -> None:
            world.topic_id = OTHER_ID
            group._hear_of_topics(await group._seats.topics.named(["a"]))
            assert [type(await anext(events)) for _ in range(2)] == [Lost, Assigned]

        look: Any = group
        look._see_topics = others_hear_of_it_meanwhile
        assert await group.commit({A0: 100}) == frozenset()
        del look._see_topics
        assert world.committed == {}
        assert await group.commit({A0: 3}) == {A0}


def notice_of(seat: str) -> Any:
    return SimpleNamespace(config=SimpleNamespace(instance_id=seat))


@in_a_world()
async def test_a_seat_that_hears_late_of_its_loss_does_not_keep_another_seat_from_committing(
    world: BrokerWorld,
) -> None:
    Coordinator(world)
    async with connected(world) as group:
        before = notice_of("seat-1")
        group._owned["seat-1"] = frozenset({A0})
        group._on_notice(before, contract.Lost(partitions=frozenset({A0}), reason="its session had ended"))
        assert await group.commit({A0: 7}) == {A0}


@in_a_world()
async def test_a_partition_that_was_lost_before_the_program_took_its_assignment_is_not_committed(
    world: BrokerWorld,
) -> None:
    Coordinator(world)
    async with connected(world) as group:
        events, seat, both = group.events(), notice_of("seat-0"), frozenset({A0, A1})
        who = MemberIdentity(instance_id="seat-0", member_id="m", generation=1)
        assigned = contract.Assigned(identity=who, assigned=both, added=frozenset({A0}), revoked=frozenset())
        for _ in range(2):
            group._on_notice(seat, contract.Lost(partitions=frozenset({A0}), reason="a generation was missed"))
            group._on_notice(seat, assigned)
        assert [type(await anext(events)) for _ in range(2)] == [Lost, Assigned]
        assert await group.commit({A0: 7}) == frozenset(), "lost again, which the program has yet to hear"
        assert [type(await anext(events)) for _ in range(2)] == [Lost, Assigned]
        assert await group.commit({A0: 7}) == {A0}
