"""`kgroup assign` on lines: the group of each in, its plan out."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from spark_kgroup.admin.cli import app
from spark_kgroup.admin.plan_lines import BadLine, _distinct, answer
from spark_kgroup.assignors import NAMES, assignor
from spark_kgroup.assignors.contract import Assignor, RebalanceProtocol
from spark_kgroup.limits import PLANNED_PARTITIONS_MAX
from spark_kgroup.model import Assignment, GroupMember, TopicDescription, TopicPartition

KGROUP = str(Path(sys.executable).parent / "kgroup")


def group(assignor: str = "cooperative-sticky", partitions: int = 4, **members: dict[str, Any]) -> dict[str, Any]:
    return {"assignor": assignor, "topics": {"t": {"partitions": partitions}}, "members": members}


def member(*owned: int, **more: Any) -> dict[str, Any]:
    return {"topics": ["t"], "owned": [["t", index] for index in owned], "generation": 3, **more}


def pairs(*indexes: int) -> list[list[str | int]]:
    return [["t", index] for index in indexes]


GROUP = group(a=member(0, 1, 2, 3), b=member())


def planned(asked: object) -> dict[str, Any]:
    return answer(json.dumps(asked).encode())


def answers(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The command's answers, line by line."""
    done = CliRunner().invoke(app, ["assign"], input=b"".join(line + b"\n" for line in lines))
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


# ------------------------------------------------------------------------------------------------------------ a plan


def test_a_cooperative_plan_withholds_from_the_first_round_the_claims_of_other_members() -> None:
    assert planned(GROUP) == {
        "assignment": {"a": pairs(0, 1), "b": pairs(2, 3)},
        "first_round": {"a": pairs(0, 1), "b": []},
        "moved": [["t", 2, "a", "b"], ["t", 3, "a", "b"]],
    }


def test_an_eager_plan_has_one_round() -> None:
    assert planned(GROUP | {"assignor": "range"}) == {
        "assignment": {"a": pairs(0, 1), "b": pairs(2, 3)},
        "first_round": {"a": pairs(0, 1), "b": pairs(2, 3)},
        "moved": [["t", 2, "a", "b"], ["t", 3, "a", "b"]],
    }


def test_a_partition_that_is_gained_stands_behind_those_that_are_kept() -> None:
    found = planned(group(a=member(2, 1), b=member(3)))
    assert found["assignment"] == {"a": pairs(1, 2), "b": pairs(3, 0)}
    assert found["moved"] == []


def test_a_claim_of_a_newer_generation_is_the_one_that_is_moved_from() -> None:
    found = planned(group(partitions=1, a=member(0), b=member(0, generation=4)))
    assert found["assignment"] == {"a": [], "b": pairs(0)}
    found = planned(group(partitions=1, a=member(0), b=member(0, generation=4, topics=[])))
    assert found["moved"] == [["t", 0, "b", "a"]]


def test_topics_that_do_not_exist_may_be_subscribed_and_claimed() -> None:
    a = {"topics": ["gone", "t"], "owned": [["gone", 0], ["t", 99]]}
    assert planned(group(partitions=1, a=a))["assignment"] == {"a": pairs(0)}


def test_static_members_come_first_by_instance_id() -> None:
    found = planned(group("range", 1, a=member(instance_id="z"), b=member(instance_id="y"), c=member()))
    assert found["assignment"] == {"a": [], "b": pairs(0), "c": []}


def test_an_eager_sticky_plan_keeps_owned_partitions_as_if_members_had_written_them_in_their_user_data() -> None:
    found = planned(group("sticky", a=member(3, 0), b=member(2)))
    assert found["assignment"] == found["first_round"] == {"a": pairs(0, 3), "b": pairs(1, 2)}


def test_a_custom_cooperative_assignor_is_planned_round_by_round_until_no_partition_moves() -> None:
    found = planned(GROUP | {"assignor": f"{__name__}:Halves"})
    assert found["assignment"] == {"a": pairs(0, 1), "b": pairs(2, 3)}
    assert found["first_round"] == {"a": pairs(0, 1), "b": []}


class Halves(Assignor):
    """Cooperative, and without a target of its own."""

    name = "halves"
    protocol = RebalanceProtocol.COOPERATIVE

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """None."""

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """The first half to the first member, unless the other member claims it."""
        everything = topics["t"].partitions
        shares = {"a": frozenset(everything[:2]), "b": frozenset(everything[2:])}
        for one in members:
            for other in members:
                if one is not other:
                    shares[one.member_id] -= other.subscription.owned
        return shares


def test_the_generation_may_stand_in_the_user_data_as_older_members_have_it() -> None:
    a, b = member(0, generation=None, user_data="00000009"), member(0, generation=None, user_data="00000008")
    assert planned(group(partitions=1, a=a, b=b))["assignment"] == {"a": pairs(0), "b": []}


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """Groups in any condition."""
    topics = {name: {"partitions": draw(st.integers(0, 5))} for name in draw(st.sets(st.sampled_from("tuv")))}
    places = st.tuples(st.sampled_from("tuvw"), st.integers(0, 6)).map(list)
    one = st.fixed_dictionaries(
        {"topics": st.lists(st.sampled_from("tuvw"), max_size=3)},
        optional={
            "owned": st.lists(places, max_size=5),
            "generation": st.none() | st.integers(-1, 3),
            "instance_id": st.none() | st.text(max_size=2),
            "rack": st.none() | st.text(max_size=2),
            "user_data": st.none() | st.binary(max_size=6).map(bytes.hex),
        },
    )
    members = draw(st.dictionaries(st.text(max_size=3), one, max_size=4))
    return {"assignor": draw(st.sampled_from(NAMES)), "topics": topics, "members": members}


@given(groups())
def test_the_first_round_is_the_target_without_the_claims_of_other_members(asked: dict[str, Any]) -> None:
    found = planned(asked)
    assert found.keys() == {"assignment", "first_round", "moved"}
    claimed = {who: {tuple(p) for p in m.get("owned", ())} for who, m in asked["members"].items()}
    cooperative = assignor(asked["assignor"]).protocol is RebalanceProtocol.COOPERATIVE
    for who, target in found["assignment"].items():
        sent = found["first_round"][who]
        assert sent == [p for p in target if p in sent]
        others = set().union(*(claimed[each] for each in claimed if each != who)) if cooperative else set()
        withheld = [p for p in target if p not in sent]
        assert {tuple(p) for p in withheld} <= others
        assert all(tuple(p) in claimed[who] for p in sent if tuple(p) in others)
    for topic, index, giver, taker in found["moved"]:
        assert (topic, index) in claimed[giver]
        assert [topic, index] in found["assignment"][taker]
        assert [topic, index] not in found["assignment"][giver]


@pytest.mark.parametrize("chosen", ["range", "sticky", "cooperative-sticky"])
def test_partitions_go_to_members_in_the_racks_of_their_replicas(chosen: str) -> None:
    asked = {
        "assignor": chosen,
        "topics": {"t": {"partitions": 4, "racks": [["r2"], ["r1"], ["r2"], ["r1"]]}},
        "members": {f"m{k}": {"topics": ["t"], "rack": f"r{k}"} for k in (1, 2)},
    }
    assert planned(asked)["assignment"] == {"m1": [["t", 1], ["t", 3]], "m2": [["t", 0], ["t", 2]]}


# --------------------------------------------------------------------------------------------------------- bad lines


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5_000, "no JSON"),
        (b"[]", "the line is not an object"),
        (b"{}", "the line has no 'assignor'"),
        (b'{"assignor": "range", "assignor": "range"}', "'assignor' stands twice"),
        (json.dumps(GROUP | {"assignor": "fair"}).encode(), "use one of"),
        (json.dumps(GROUP | {"topic": {}}).encode(), "'topic', which is none of assignor, topics, members"),
        (json.dumps(group(partitions=PLANNED_PARTITIONS_MAX + 1)).encode(), "more than 2,000,000 partitions"),
        (json.dumps(group(partitions=-1)).encode(), "topics.t.partitions is no integer from 0"),
        (json.dumps(group(partitions=True)).encode(), "topics.t.partitions is no integer"),
        (json.dumps(group(a={"topics": "t"})).encode(), "members.a.topics is not a list"),
        (json.dumps(group(a={"topics": [1]})).encode(), "members.a.topics[0] is not a string"),
        (json.dumps(group(a=member(generation="3"))).encode(), "members.a.generation is no integer"),
        (json.dumps(group(a=member(owned=[["t"]]))).encode(), "members.a.owned[0] is not [topic, partition]"),
        (json.dumps(group(a=member(user_data="xyz"))).encode(), "members.a.user_data is not hexadecimal"),
        (json.dumps(GROUP | {"topics": {"t": {"partitions": 2, "racks": [["r"]]}}}).encode(), "1 entries for 2"),
    ],
)
def test_a_bad_line_gets_an_error_that_names_the_place_and_the_next_line_its_plan(line: bytes, words: str) -> None:
    refused, good = answers([line, json.dumps(GROUP).encode()])
    assert refused.keys() == {"error"}
    assert words in refused["error"]
    assert good == planned(GROUP)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def spoilt_groups(draw: st.DrawFn) -> bytes:
    """A group with one value, somewhere in it, replaced by any other."""
    asked = draw(groups())
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, key))
            if isinstance(inner, dict | list):
                walk(inner)

    walk(asked)
    container, key = draw(st.sampled_from(places))
    container[key] = draw(JSON)
    return json.dumps(asked).encode()


LINES = st.binary().map(lambda raw: raw.replace(b"\n", b"")) | JSON.map(lambda value: json.dumps(value).encode())


@given(LINES | spoilt_groups())
def test_any_line_gets_a_plan_or_an_error(line: bytes) -> None:
    assert answer(line).keys() in ({"error"}, {"assignment", "first_round", "moved"})


# --------------------------------------------------------------------------------------------------------- the stream


def test_each_line_is_answered_before_the_next_one_is_sent() -> None:
    with subprocess.Popen([KGROUP, "assign"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for partitions in (4, 2):
            asked = group(partitions=partitions, a=member())
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == planned(asked)
        process.stdin.close()
        assert process.wait(timeout=20) == 0


def test_the_command_ends_when_its_reader_has_enough() -> None:
    with subprocess.Popen([KGROUP, "assign"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(json.dumps(GROUP).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(timeout=20) == 141


class CountedName(str):
    """A name that counts how often it is compared."""

    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_a_name_that_stands_twice_among_very_many_is_found_without_comparing_each_with_each() -> None:
    names = [*(CountedName(index) for index in range(3000)), CountedName(2999)]
    with pytest.raises(BadLine, match="'2999' stands twice"):
        _distinct([(name, None) for name in names])
    assert CountedName.compared < 10 * len(names)


def test_two_members_in_one_seat_are_refused_by_their_names_and_the_instance_id() -> None:
    found = planned(group(a=member(instance_id="s"), b=member(instance_id="s"), c=member(instance_id="u")))
    assert found == {"error": "members.a and members.b have the instance_id 's'"}
    assert "error" not in planned(group(a=member(), b=member(instance_id=None), c=member(instance_id="u")))


@pytest.mark.parametrize(
    ("shell", "sentence"),
    [
        ("assign <&-", "Standard input is closed"),
        (
            "remove-members --bootstrap-server localhost:1 --group g --all <&-",
            "No member was removed: --all asks first",
        ),
        ("assign <<<'{}' >/dev/full", "no space is left"),
        ("--version >/dev/full", "no space is left"),
    ],
)
def test_a_closed_input_and_a_full_disk_end_a_command_with_one_sentence(shell: str, sentence: str) -> None:
    done = subprocess.run(["bash", "-c", f"{KGROUP} {shell}"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kgroup: ")
    assert sentence in last
    assert "Traceback" not in done.stderr
