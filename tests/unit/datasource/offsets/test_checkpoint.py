"""The offset in Spark's checkpoint: the same bytes for the same state, and a refusal of another source's offset."""

import json
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kgroup.errors import CheckpointError
from pyspark_kgroup.offsets.checkpoint import EMPTY, VERSION, Checkpoint, Owned, Period, Topic
from spark_kgroup.model import TopicPartition

names = st.sampled_from(["a", "b.c", "t-1", "t_10", "ü", '"'])
offsets = st.integers(min_value=0, max_value=2**63 - 1)
topic_tables = st.dictionaries(
    names,
    st.builds(
        Topic, topic_id=st.sampled_from(["", "id-1", "id-2"]), first_sight=st.integers(0, 12), left=st.booleans()
    ),
)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    topics = draw(topic_tables)
    partitions = (
        st.builds(TopicPartition, st.sampled_from(sorted(topics)), st.integers(0, 12)) if topics else st.nothing()
    )
    held = draw(st.lists(partitions, unique=True))
    remembered = [*held[1::3], *held[2::3]]
    return Checkpoint(
        topics=topics,
        owned={
            tp: Owned(
                period=Period(
                    topic_id=topics[tp.topic].topic_id,
                    start=draw(offsets),
                    seat=draw(st.sampled_from(["job-0", "job-10", "ä"])),
                    generation=draw(st.integers(-1, 2**31 - 1)),
                    cut=draw(st.integers(0, 2)),
                ),
                position=draw(offsets),
            )
            for tp in held[::3]
        },
        lost={tp: draw(offsets) for tp in held[1::3]},
        given_up={tp: draw(offsets) for tp in held[2::3]},
        inherited=frozenset(draw(st.lists(st.sampled_from(remembered))) if remembered else ()),
        unstarted=frozenset(held[3::5]),
        group=draw(st.sampled_from(["", "flights"])),
        app=draw(st.sampled_from(["", "job"])),
        run=draw(st.sampled_from([0, 7])),
        members=draw(st.dictionaries(st.sampled_from(["job-0", "ä"]), st.sampled_from(["id-1", "id-2"]))),
        cluster=draw(st.sampled_from(["", "ours"])),
        record_bytes=draw(st.dictionaries(names, st.integers(1, 2**40))),
    )


def dumps(checkpoint: Checkpoint) -> str:
    return json.dumps(checkpoint.to_json())


@given(checkpoints())
def test_a_checkpoint_reads_back_as_it_was_written(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_json(json.loads(dumps(checkpoint))) == checkpoint


@given(checkpoints())
def test_a_round_trip_keeps_every_byte(checkpoint: Checkpoint) -> None:
    text = dumps(checkpoint)
    assert dumps(Checkpoint.from_json(json.loads(text))) == text


@given(checkpoints(), st.randoms())
def test_the_order_of_discovery_does_not_change_the_bytes(checkpoint: Checkpoint, rng: Any) -> None:
    def shuffled(table: Any) -> dict[Any, Any]:
        entries = list(table.items())
        rng.shuffle(entries)
        return dict(entries)

    again = Checkpoint(
        topics=shuffled(checkpoint.topics),
        owned=shuffled(checkpoint.owned),
        lost=shuffled(checkpoint.lost),
        given_up=shuffled(checkpoint.given_up),
        inherited=frozenset(shuffled(dict.fromkeys(checkpoint.inherited))),
        unstarted=checkpoint.unstarted,
        group=checkpoint.group,
        app=checkpoint.app,
        run=checkpoint.run,
        members=shuffled(checkpoint.members),
        cluster=checkpoint.cluster,
        record_bytes=shuffled(checkpoint.record_bytes),
    )
    assert dumps(again) == dumps(checkpoint)


@given(checkpoints(), checkpoints())
def test_different_checkpoints_of_one_group_differ_in_their_bytes(one: Checkpoint, another: Checkpoint) -> None:
    one, another = (
        replace(each, group="g", app="", run=0, members={}, cluster="", record_bytes={}) for each in (one, another)
    )
    assert (dumps(one) == dumps(another)) == (one == another)


def test_the_writer_of_a_checkpoint_is_no_part_of_its_equality() -> None:
    written = Checkpoint(group="flights", app="job", run=7, members={"job-0": "id-1"})
    assert (written, written.digest) == (EMPTY, EMPTY.digest)


def test_sizes_of_records_are_no_part_of_the_equality_of_checkpoints() -> None:
    sized = replace(FLIGHTS, record_bytes={"flights": 449})
    assert (sized, sized.digest) == (FLIGHTS, FLIGHTS.digest)


def test_the_cluster_is_no_part_of_the_equality_of_checkpoints() -> None:
    """Else a checkpoint of an earlier release, which does not name it, would get an empty batch at its first start."""
    told = replace(FLIGHTS, cluster="ours")
    assert (told, told.digest) == (FLIGHTS, FLIGHTS.digest)


def test_the_cluster_is_read_back_and_absent_from_an_older_checkpoint() -> None:
    written = replace(FLIGHTS, cluster="ours").to_json()
    assert Checkpoint.from_json(written).cluster == "ours"
    del written["cluster"]
    assert written == FLIGHTS.to_json()
    assert Checkpoint.from_json(written).cluster == ""


@pytest.mark.parametrize("cluster", [None, 7, ["ours"]])
def test_a_cluster_that_is_no_text_is_refused(cluster: object) -> None:
    with pytest.raises(CheckpointError, match="not kgroup's"):
        Checkpoint.from_json({**FLIGHTS.to_json(), "cluster": cluster})


FLIGHTS = Checkpoint(
    topics={"flights": Topic(topic_id="id", first_sight=8)},
    owned={
        TopicPartition("flights", index): Owned(
            period=Period(topic_id="id", start=0, seat=f"job-{seat}", generation=3), position=position
        )
        for index, seat, position in ((0, 0, 120), (1, 1, 7), (2, 0, 0), (4, 1, 95))
    },
    lost={TopicPartition("flights", 5): 77},
)
SELDOM = Checkpoint(
    topics={"flights": Topic(topic_id="id", first_sight=8, left=True)},
    owned={
        TopicPartition("flights", index): Owned(
            period=Period(topic_id="id", start=start, seat="job-0", generation=3, cut=2), position=60
        )
        for index, start in ((0, 60), (10, 50))
    },
    given_up={TopicPartition("flights", 6): 90},
    inherited=frozenset({TopicPartition("flights", 6)}),
    group="airport",
    app="job",
    run=7,
    members={"job-0": "s1kWtk0nQWmvXpWSMYSIVA"},
    cluster="5L6g3nShT-eMCtK--X86sw",
    record_bytes={"flights": 449},
)
WAITING = Checkpoint(
    topics={"flights": Topic(topic_id="id", first_sight=8)},
    unstarted=frozenset({TopicPartition("flights", 3), TopicPartition("flights", 4)}),
)
IN_VERSION_2 = [
    (
        FLIGHTS,
        {
            "version": 2,
            "topics": {"flights": {"id": "id", "first_sight": 8}},
            "periods": [["job-0", 3], ["job-1", 3]],
            "owned": {"flights": {"partitions": "0-2 4", "period": "0 1 0 1", "from": "0", "pos": "120 7 0 95"}},
            "released": {"flights": {"partitions": "5", "pos": "77"}},
        },
    ),
    (
        SELDOM,
        {
            "version": 2,
            "topics": {"flights": {"id": "id", "first_sight": 8, "left": True}},
            "periods": [["job-0", 3, 2]],
            "owned": {"flights": {"partitions": "0 10", "period": "0", "from": "60 50", "pos": "60 60"}},
            "released": {},
            "given_up": {"flights": {"partitions": "6", "pos": "90"}},
            "inherited": {"flights": "6"},
            "group": "airport",
            "app": "job",
            "run": 7,
            "members": {"job-0": "s1kWtk0nQWmvXpWSMYSIVA"},
            "cluster": "5L6g3nShT-eMCtK--X86sw",
            "record_bytes": {"flights": 449},
        },
    ),
    (
        WAITING,
        {
            "version": 2,
            "topics": {"flights": {"id": "id", "first_sight": 8}},
            "periods": [],
            "owned": {},
            "released": {},
            "unstarted": {"flights": {"partitions": "3-4", "pos": "0 0"}},
        },
    ),
]
IN_VERSION_1 = [
    (
        FLIGHTS,
        {
            "version": 1,
            "topics": {"flights": {"id": "id", "first_sight": 8}},
            "owned": {
                "flights": {
                    "0": {"from": 0, "pos": 120, "seat": "job-0", "generation": 3},
                    "1": {"from": 0, "pos": 7, "seat": "job-1", "generation": 3},
                    "2": {"from": 0, "pos": 0, "seat": "job-0", "generation": 3},
                    "4": {"from": 0, "pos": 95, "seat": "job-1", "generation": 3},
                }
            },
            "released": {"flights": {"5": 77}},
        },
    ),
    (
        replace(SELDOM, inherited=frozenset()),
        {
            "version": 1,
            "topics": {"flights": {"id": "id", "first_sight": 8, "left": True}},
            "owned": {
                "flights": {
                    "0": {"from": 60, "pos": 60, "seat": "job-0", "generation": 3, "cut": 2},
                    "10": {"from": 50, "pos": 60, "seat": "job-0", "generation": 3, "cut": 2},
                }
            },
            "released": {},
            "given_up": {"flights": {"6": 90}},
            "group": "airport",
        },
    ),
]


@pytest.mark.parametrize(("checkpoint", "written"), IN_VERSION_2, ids=["usual", "with what is seldom there", "waiting"])
def test_the_shape_on_disk_is_as_the_module_documents(checkpoint: Checkpoint, written: dict[str, Any]) -> None:
    """A checkpoint lives longer than a release: a change of this shape needs a new version."""
    assert checkpoint.to_json() == written


@pytest.mark.parametrize(("checkpoint", "written"), [*IN_VERSION_1, *IN_VERSION_2])
def test_every_version_that_was_ever_written_is_read(checkpoint: Checkpoint, written: dict[str, Any]) -> None:
    again = Checkpoint.from_json(written)
    assert (again, again.group) == (checkpoint, checkpoint.group)


def test_partitions_are_in_order_of_their_number() -> None:
    checkpoint = Checkpoint(lost={TopicPartition("t", index): index for index in (10, 9, 100, 11)})
    assert checkpoint.to_json()["released"]["t"] == {"partitions": "9-11 100", "pos": "9 10 11 100"}


def test_an_offset_of_10_000_partitions_is_no_longer_than_the_built_in_sources() -> None:
    """Spark writes three of them with each batch, and keeps them in its progress."""
    partitions = [TopicPartition(f"orders.eu.v{number % 10}", number // 10) for number in range(10_000)]
    topics = {
        tp.topic: Topic(topic_id=str(UUID(int=number)), first_sight=1_000) for number, tp in enumerate(partitions)
    }

    def owned(number: int, tp: TopicPartition) -> Owned:
        seat, topic_id = f"orders-app-{number % 64}", topics[tp.topic].topic_id
        period = Period(topic_id=topic_id, start=1_234_567_890, seat=seat, generation=17)
        return Owned(period=period, position=1_234_667_890 + number)

    found = Checkpoint(topics=topics, owned={tp: owned(number, tp) for number, tp in enumerate(partitions)})
    built_in: dict[str, dict[str, int]] = {}
    for tp, held in found.owned.items():
        built_in.setdefault(tp.topic, {})[str(tp.partition)] = held.position
    assert len(dumps(found)) < len(json.dumps(built_in, separators=(",", ":"))) < 200_000


def test_the_initial_offset_is_constant_and_fresh() -> None:
    assert EMPTY.to_json() == {"version": VERSION, "topics": {}, "periods": [], "owned": {}, "released": {}}
    assert EMPTY.fresh


def test_a_checkpoint_that_saw_a_topic_is_not_fresh() -> None:
    assert not Checkpoint(topics={"t": Topic(topic_id="", first_sight=0)}).fresh


def test_a_checkpoint_has_positions_of_owned_and_lost_partitions_only() -> None:
    owned, lost, unknown = (TopicPartition("t", index) for index in range(3))
    period = Period(topic_id="", start=0, seat="job-0", generation=1)
    checkpoint = Checkpoint(
        topics={"t": Topic(topic_id="", first_sight=3)},
        owned={owned: Owned(period=period, position=5)},
        lost={lost: 7},
    )
    assert [checkpoint.position(tp) for tp in (owned, lost, unknown)] == [5, 7, None]


@pytest.mark.parametrize(
    ("version", "named"),
    [(VERSION + 1, "3"), (0, "0"), (None, "'NoneType'"), ("1", "'1'"), (1.5, "'float'"), (True, "True")],
)
def test_another_version_is_refused_by_name(version: object, named: str) -> None:
    with pytest.raises(CheckpointError, match=f"of version {named}; .*reads versions 1 to 2"):
        Checkpoint.from_json({**EMPTY.to_json(), "version": version})


@pytest.mark.parametrize(
    "foreign",
    [
        5,  # rate
        [],
        "5",
        None,
        {},
        {"files": {"part-0": 5}},
        {"flights": {"0": 120, "1": 7}},  # format("kafka"), which `kafka_offset` reads
        {"shards": {"0": "49590338"}},
    ],
    ids=repr,
)
def test_an_offset_of_another_source_is_refused_and_not_taken_for_kafkas(foreign: Any) -> None:
    with pytest.raises(CheckpointError, match="checkpointLocation") as problem:
        Checkpoint.from_json(foreign)
    assert "kafka" not in str(problem.value)


DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]


ONE = {"topics": {"t": {"id": "x", "first_sight": 8}}, "periods": [["s", 1]]}
COLUMNS = {"partitions": "0", "period": "0", "from": "0", "pos": "0"}


def repr_in_short(value: object) -> str:
    """As an id of pytest, which writes a backslash twice at a second look (`make mutants` takes two)."""
    try:
        return ascii(value)[:60].replace("\\", "")
    except RecursionError:
        return "deep"


def held(**columns: Any) -> dict[str, Any]:
    return ONE | {"owned": {"t": COLUMNS | columns}}


@pytest.mark.parametrize(
    "broken",
    [
        {"topics": None},
        {"topics": {"t": {"id": "x"}}},
        {"topics": {"t": {"id": DEEP, "first_sight": 1}}},
        {"topics": {"t": {"id": "\ud800", "first_sight": 1}}},
        {"topics": {"t": {"id": "x", "first_sight": float("inf")}}},
        {"topics": {"\ud800": {"id": "x", "first_sight": 1}}},
        {"topics": DEEP},
        {"owned": DEEP},
        {"version": DEEP},
        {"owned": {"t": 5}},
        {"owned": {"unknown": COLUMNS}, "periods": [["s", 1]]},
        {"released": {"t": {"0": 7}}},
        {"released": {"t": {"partitions": "0", "pos": 7}}},
        {"released": {"t": {"partitions": "0", "pos": DEEP}}},
        {"released": {"t": {"partitions": "0", "pos": "many"}}},
        {"released": {"t": {"partitions": "0", "pos": "1.5"}}},
        {"released": {"t": {"partitions": "0", "pos": " 1"}}},
        {"released": {"t": {"partitions": "0", "pos": "1_0"}}},
        {"released": {"t": {"partitions": "0", "pos": "\u0663"}}},
        {"released": {"t": {"partitions": "0", "pos": str(2**63)}}},
        {"released": {"t": {"partitions": "0", "pos": "9" * 5_000}}},
        {"released": {"t": {"partitions": "", "pos": ""}}},
        {"released": {"t": {"partitions": "-1", "pos": "0"}}},
        {"released": {"t": {"partitions": "\u0663", "pos": "0"}}},
        {"released": {"t": {"partitions": "9" * 5_000, "pos": "0"}}},
        {"released": {"t": {"partitions": "0-9999999999", "pos": "0"}}},
        {"released": {"t": {"partitions": "3-2", "pos": ""}}},
        {"released": {"t": {"partitions": "3-2 5-6", "pos": "0 0"}}},
        {"released": {"t": {"partitions": "1 0", "pos": "0 0"}}},
        {"released": {"t": {"partitions": "0 0", "pos": "0 0"}}},
        {"released": {"t": {"partitions": "0-1 1", "pos": "0 0 0"}}},
        {"released": {"\ud800": {"partitions": "0", "pos": "0"}}},
        held(pos="0 0"),
        held(period="1"),
        held(period="-1"),
        held(period="0 0"),
        held(**{"from": "0 0"}),
        held() | {"periods": [["s"]]},
        held() | {"periods": [["s", 1, 0, 0]]},
        held() | {"periods": [["\ud800", 1]]},
        held() | {"periods": [["s", True]]},
        held() | {"periods": DEEP},
    ],
    ids=repr_in_short,
)
def test_a_damaged_offset_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"not kgroup's|of version 'list'") as problem:
        Checkpoint.from_json({**EMPTY.to_json(), **broken})
    assert len(str(problem.value)) < 1_000


@pytest.mark.parametrize(
    "broken",
    [
        {"owned": {"t": {"zero": {}}}},
        {"owned": {"unknown": {"0": {"from": 0, "pos": 0, "seat": "s", "generation": 1}}}},
        {"released": {"t": {"0": "many"}}},
        {"released": {"t": {"0": float("nan")}}},
        {"released": {"t": {"0": True}}},
        {"released": {"t": {"0": 2**63}}},
        {"released": {"t": {"-1": 0}}},
        {"released": {"t": {"\u0663": 0}}},
        {"released": {"t": {"9" * 5_000: 0}}},
    ],
    ids=repr_in_short,
)
def test_a_damaged_offset_of_version_1_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="not kgroup's"):
        Checkpoint.from_json({"version": 1, "topics": {}, "owned": {}, "released": {}, **broken})


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"released": {"t": {"partitions": "0", "pos": str(2**63)}}}, "does not fit into 64 bits"),
        ({"released": {"t": {"partitions": "0", "pos": str(-(2**63) - 1)}}}, "does not fit into 64 bits"),
        ({"released": {"t": {"partitions": "first", "pos": "0"}}}, "not numbers and ranges"),
        ({"released": {"t": {"partitions": "0-2", "pos": "0"}}}, "not as many partitions as positions"),
        ({"released": {"t": {"partitions": "1 0", "pos": "0 0"}}}, "not in order"),
        (held(pos="one"), "a column is not numbers"),
        (held(period="-1"), "a partition refers to a period that `periods` does not list"),
        ({"group": 5}, "a text is not a string"),
    ],
    ids=str,
)
def test_the_refusal_of_a_damaged_offset_names_the_damage(broken: dict[str, Any], why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        Checkpoint.from_json({**EMPTY.to_json(), **broken})


@pytest.mark.parametrize(("partition", "position"), [(0, 2**63 - 1), (2**31 - 1, 0), (0, -(2**63))])
def test_the_widest_numbers_of_kafka_are_read_back(partition: int, position: int) -> None:
    checkpoint = Checkpoint(lost={TopicPartition("t", partition): position})
    assert Checkpoint.from_json(json.loads(dumps(checkpoint))) == checkpoint


VALUES: list[Any] = [
    *(None, [], {}, "", "x", 1, -1, 1.5, float("inf"), float("nan"), True, 2**70, {"a": 1}, [1], "9" * 5_000, "\u0663"),
    *("\ud800", "\0", "0", "0 1", "0-1", "1-0", "-1", "0-99999999"),
]
KEYS = ("t", "0", "-1", "x", "", "\u0663", "9" * 5_000, "\ud800")


@pytest.mark.parametrize(
    "whole",
    [IN_VERSION_1[1][1], IN_VERSION_2[0][1], IN_VERSION_2[1][1]],
    ids=["version 1", "version 2", "version 2 with what is seldom there"],
)
def test_any_json_is_read_as_it_was_written_or_refused(whole: dict[str, Any]) -> None:
    """10,000 damaged ones, seeded."""
    random = Random(11)

    def damaged(part: Any) -> Any:
        if random.random() < 0.05:
            return random.choice(VALUES)
        if isinstance(part, dict):
            return {
                (random.choice(KEYS) if random.random() < 0.03 else key): damaged(value)
                for key, value in part.items()
                if random.random() > 0.02
            }
        return list(map(damaged, part)) if isinstance(part, list) else part

    read = 0
    for _ in range(10_000):
        try:
            again = Checkpoint.from_json(damaged(whole)).to_json()
        except CheckpointError:
            continue
        json.dumps(again, ensure_ascii=False).encode()
        assert Checkpoint.from_json(again).to_json() == again
        read += 1
    assert 500 < read < 9_500


@pytest.mark.parametrize("missing", ["topics", "periods", "owned", "released"])
def test_an_incomplete_offset_is_refused(missing: str) -> None:
    with pytest.raises(CheckpointError, match=missing):
        Checkpoint.from_json({key: value for key, value in EMPTY.to_json().items() if key != missing})
