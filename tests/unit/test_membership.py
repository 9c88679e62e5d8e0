"""`Group.connect`: arguments that cannot be meant, and topics that are deleted and created again."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from harness import kio_messages
from harness.fake_broker import NO_THROTTLE, on_a_loop
from harness.fake_cluster import A0, A1, BrokerWorld, in_a_world
from harness.sessions import joined, synced
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kgroup import (
    Assigned,
    Group,
    GroupSettings,
    Lost,
    ProtocolSettings,
    Revoked,
    SecuritySettings,
    TopicPartition,
    membership,
)
from spark_kgroup.errors import OptionError
from spark_kgroup.member import contract
from spark_kgroup.model import ErrorCode, MemberIdentity
from spark_kgroup.seat_note import Author, is_of_topic
from spark_kgroup.wire.address import parse_bootstrap

OTHER_ID = UUID(int=0xABCDEF << 100)
GIVEN: Mapping[str, Any] = {"bootstrap": "b:9092", "group": "g", "topics": ["t"], "instance_ids": ["a"]}


NAMES = "give names of 1 to 249 letters, digits, `.`, `_` and `-`, such as"
TEXT = "give a text of 1 to 32767 bytes in UTF-8, such as"
LIST = "give a list with at least one item, such as"
NUMBER = "give a whole number of ms from 1 to 2147483647, such as 300000."
HALF_A_LETTER = "\ud800"

WRONG = [
    ({"bootstrap": "b"}, "`bootstrap`: 'b' is not HOST:PORT: give one or more brokers, such as 'broker-1:9092,"),
    ({"bootstrap": ","}, "`bootstrap` is ',': give one or more brokers, such as 'broker-1:9092'."),
    ({"bootstrap": ["b:9092"]}, "`bootstrap` is ['b:9092']: give brokers as a text, such as 'broker-1:9092'."),
    ({"bootstrap": None}, "`bootstrap` is None: give brokers as a text, such as 'broker-1:9092'."),
    ({"group": ""}, f"`group` is '': {TEXT} 'shards'."),
    ({"group": " "}, f"`group` is ' ': {TEXT} 'shards'."),
    ({"group": 7}, f"`group` is 7: {TEXT} 'shards'."),
    ({"group": b"g"}, f"`group` is b'g': {TEXT} 'shards'."),
    ({"group": HALF_A_LETTER}, f"`group` is '\\ud800': {TEXT} 'shards'."),
    ({"group": "ü" * 16_384}, f" ...: {TEXT} 'shards'."),
    ({"topics": "t"}, f"`topics` is 't': {LIST} ['orders']."),
    ({"topics": b"t"}, f"`topics` is b't': {LIST} ['orders']."),
    ({"topics": []}, f"`topics` is []: {LIST} ['orders']."),
    ({"topics": None}, f"`topics` is None: {LIST} ['orders']."),
    ({"topics": [7]}, f"`topics` has 7: {NAMES} 'orders'."),
    ({"topics": ["t", ["u"]]}, f"`topics` has ['u']: {NAMES} 'orders'."),
    ({"topics": ["t", None]}, f"`topics` has None: {NAMES} 'orders'."),
    ({"topics": ["t,u"]}, f"`topics` has 't,u': {NAMES} 'orders'."),
    ({"topics": [""]}, f"`topics` has '': {NAMES} 'orders'."),
    ({"topics": ["."]}, f"`topics` has '.': {NAMES} 'orders'."),
    ({"topics": ["t" * 250]}, f": {NAMES} 'orders'."),
    ({"instance_ids": 2}, f"`instance_ids` is 2: {LIST} ['worker-0']."),
    ({"instance_ids": "a"}, f"`instance_ids` is 'a': {LIST} ['worker-0']."),
    ({"instance_ids": None}, f"`instance_ids` is None: {LIST} ['worker-0']."),
    ({"instance_ids": []}, f"`instance_ids` is []: {LIST} ['worker-0']."),
    ({"instance_ids": [["a"]]}, f"`instance_ids` has ['a']: {NAMES} 'worker-0', or None for one dynamic member."),
    ({"instance_ids": [0]}, f"`instance_ids` has 0: {NAMES} 'worker-0', or None"),
    ({"instance_ids": [True]}, f"`instance_ids` has True: {NAMES} 'worker-0', or None"),
    ({"instance_ids": ["a b"]}, f"`instance_ids` has 'a b': {NAMES} 'worker-0', or None"),
    (
        {"instance_ids": ["b", "a", "a"]},
        "`instance_ids` has 'a' twice: give each seat one of its own, and None at most",
    ),
    ({"instance_ids": [None, None]}, "`instance_ids` has None twice: give each seat one of its own, and None at most"),
    (
        {"assignors": ["stickiest"]},
        "`assignors` is ['stickiest']: Unknown assignor 'stickiest': use one of cooperative",
    ),
    ({"assignors": ["no.such.module:Class"]}, "`assignors` is ['no.such.module:Class']: "),
    ({"assignors": ["range", "range"]}, "`assignors` is ['range', 'range']: Two of the assignors"),
    ({"assignors": "range"}, f"`assignors` is 'range': {LIST} ['range']."),
    ({"assignors": []}, f"`assignors` is []: {LIST} ['range']."),
    ({"assignors": [7]}, "`assignors` has 7: give names, such as 'range', or 'module:Class'."),
    ({"group_protocol": "Consumer"}, "`group_protocol` is 'Consumer': give 'classic' or 'consumer'."),
    ({"group_protocol": None}, "`group_protocol` is None: give 'classic' or 'consumer'."),
    ({"group_protocol": ["classic"]}, "`group_protocol` is ['classic']: give 'classic' or 'consumer'."),
    ({"server_assignor": "uniform"}, "`server_assignor` is 'uniform', but under group_protocol='classic'"),
    ({"group_protocol": "consumer", "server_assignor": ""}, f"`server_assignor` is '': {TEXT} 'uniform'."),
    ({"group_protocol": "consumer", "server_assignor": 7}, f"`server_assignor` is 7: {TEXT} 'uniform'."),
    (
        {"group_protocol": "consumer", "assignors": ["range"]},
        "`assignors` is ['range'], but under group_protocol='consumer' the brokers assign: give `server_assignor`",
    ),
    (
        {"group_protocol": "consumer", "session_timeout_ms": 45_000},
        "`session_timeout_ms` is 45000, but under group_protocol='consumer' the brokers decide: set the group's "
        "consumer.session.timeout.ms there.",
    ),
    ({"session_timeout_ms": "300000"}, f"`session_timeout_ms` is '300000': {NUMBER}"),
    ({"session_timeout_ms": True}, f"`session_timeout_ms` is True: {NUMBER}"),
    ({"session_timeout_ms": 1.5}, f"`session_timeout_ms` is 1.5: {NUMBER}"),
    ({"session_timeout_ms": 45_000.0}, f"`session_timeout_ms` is 45000.0: {NUMBER}"),
    ({"session_timeout_ms": -1}, f"`session_timeout_ms` is -1: {NUMBER}"),
    ({"session_timeout_ms": 0}, f"`session_timeout_ms` is 0: {NUMBER}"),
    ({"session_timeout_ms": 2**31}, f"`session_timeout_ms` is 2147483648: {NUMBER}"),
    ({"security": "PLAINTEXT"}, "`security` is of type str: give SecuritySettings, such as SecuritySettings("),
    ({"security": {"sasl.password": "s3cret"}}, "`security` is of type dict: give SecuritySettings, such as"),
    ({"security": False}, "`security` is of type bool: give SecuritySettings"),
    ({"security": SecuritySettings}, "`security` is of type type: give SecuritySettings"),
    ({"security": SecuritySettings(protocol="SASL_SSL")}, "Option `sasl.mechanism` is missing"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[ascii(wrong)[:60] for wrong, _ in WRONG])
def test_a_wrong_argument_is_refused_before_a_seat_joins(wrong: Mapping[str, Any], sentence: str) -> None:
    @on_a_loop
    async def scenario() -> None:
        with pytest.raises(OptionError, match=re.escape(sentence)) as refused:
            async with Group.connect(**{**GIVEN, **wrong}):
                pass
        assert "s3cret" not in str(refused.value)
        assert len(str(refused.value)) < 1_000, "an error does not repeat a text of any length"

    scenario()


def test_an_unknown_or_missing_argument_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'session_timeout'"):
        Group.connect(**{**GIVEN, "session_timeout": 6_000})
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'topics'"):
        Group.connect(**{name: value for name, value in GIVEN.items() if name != "topics"})


@pytest.mark.parametrize(("session_timeout_ms", "interval_ms"), [(None, 3_000), (9_000, 3_000), (6_000, 2_000), (1, 1)])
def test_three_heartbeats_fit_into_a_session(
    session_timeout_ms: int | None, interval_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(monkeypatch, session_timeout_ms=session_timeout_ms)
    assert settings.protocol.heartbeat_interval_ms == interval_ms


def test_a_topic_that_is_named_twice_is_subscribed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(monkeypatch, topics=iter(["t", "u", "t"])).topics == ("t", "u")


def settings_of(monkeypatch: pytest.MonkeyPatch, **given: Any) -> GroupSettings:
    """The settings that `Group.connect` makes of its arguments."""
    made: list[GroupSettings] = []

    class Unconnected(Exception):
        """Ends the call where the seats would start."""

    def keep(settings: GroupSettings, **_: Any) -> None:
        made.append(settings)
        raise Unconnected

    monkeypatch.setattr(membership, "Seats", keep)

    @on_a_loop
    async def scenario() -> None:
        with pytest.raises(Unconnected):
            async with Group.connect(**{**GIVEN, **given}):
                pass

    scenario()
    return made[0]


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
        return kio_messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode(code))


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
