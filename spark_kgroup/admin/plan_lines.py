"""Lines of `kgroup assign`: a group as one JSON object, and its plan as another.

    {"assignor": "cooperative-sticky",
     "topics":  {"t": {"partitions": 6, "racks": [["r1", "r2"], ...]}},
     "members": {"m1": {"topics": ["t"], "instance_id": null, "owned": [["t", 0]], "generation": 3, "rack": null,
                        "user_data": null}}}

Of a topic only `partitions` must be there, of a member only `topics`. `racks` lists those of each partition's replicas.
`user_data` is hexadecimal. null stands for the bytes of a member that owns `owned` since `generation`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from spark_kgroup.assignors import assignor as known
from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.assignors.plan import Plan, plan
from spark_kgroup.errors import KgroupError
from spark_kgroup.limits import PLANNED_PARTITIONS_MAX
from spark_kgroup.model import NO_GENERATION, GroupMember, Subscription, TopicDescription, TopicPartition
from spark_kgroup.uncollected import uncollected

T = TypeVar("T")

_INT32_MAX = 2**31 - 1


class BadLine(Exception):
    """A line is no group. The message says where and why."""


@uncollected()
def answer(line: bytes) -> dict[str, Any]:
    """The plan for the group in `line`, or `{"error": ...}` for any error, an assignor's included."""
    try:
        return _parse_plan(line)
    except (BadLine, KgroupError) as problem:
        return {"error": str(problem)}
    except Exception as problem:  # noqa: BLE001 - an assignor may be any program; the next line has another group
        return {"error": f"The assignor failed: {type(problem).__name__}: {problem}"}


def _parse_plan(line: bytes) -> dict[str, Any]:
    asked = _fields("the line", _parsed(line), ("assignor", "topics", "members"), ())
    how = known(_is("assignor", asked["assignor"], str, "a string"))
    topics = {name: _topic(name, given) for name, given in _object("topics", asked["topics"]).items()}
    if sum(topic.partition_count for topic in topics.values()) > PLANNED_PARTITIONS_MAX:
        raise BadLine(f"topics have more than {PLANNED_PARTITIONS_MAX:,} partitions together")
    members = [_member(member_id, given, how) for member_id, given in _object("members", asked["members"]).items()]
    seats: dict[str, str] = {}
    for member in members:
        if member.instance_id and (other := seats.setdefault(member.instance_id, member.member_id)) != member.member_id:
            raise BadLine(f"members.{other} and members.{member.member_id} have the instance_id {member.instance_id!r}")
    return as_object(plan(how, members, topics))


def as_object(planned: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    return {
        "assignment": {member: _pairs(partitions) for member, partitions in planned.target.items()},
        "first_round": {member: _pairs(partitions) for member, partitions in planned.first_round.items()},
        "moved": [[*move.partition, move.giver, move.taker] for move in planned.moved],
    }


def _pairs(partitions: Iterable[TopicPartition]) -> list[list[str | int]]:
    return list(map(list, partitions))


# -------------------------------------------------------------------------------------------------------------- reading


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_distinct)
    except RecursionError:
        raise BadLine("the line is no JSON: it is nested too deeply") from None
    except ValueError as problem:  # also of bytes that are no UTF-8, and of numbers with thousands of digits
        raise BadLine(f"the line is no JSON: {problem}") from None


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise BadLine(f"{twice!r} stands twice in one object")
    return found


def _topic(name: str, given: Any) -> TopicDescription:
    where = f"topics.{name}"
    fields = _fields(where, given, ("partitions",), ("racks",))
    count = _integer(f"{where}.partitions", fields["partitions"], 0, _INT32_MAX)
    listed: list[list[str]] = []
    if (racks := fields.get("racks")) is not None:
        listed = [_strings(f"{where}.racks[{at}]", each) for at, each in enumerate(_list(f"{where}.racks", racks))]
        if len(listed) != count:
            raise BadLine(f"{where}.racks has {len(listed)} entries for {count} partitions")
    return TopicDescription(
        name=name, topic_id=None, partition_count=count, racks=dict(enumerate(map(frozenset, listed)))
    )


def _member(member_id: str, given: Any, how: Assignor) -> GroupMember:
    where = f"members.{member_id}"
    fields = _fields(where, given, ("topics",), ("instance_id", "owned", "generation", "rack", "user_data"))
    found = {name: value for name, value in fields.items() if value is not None}
    owned = _partitions(f"{where}.owned", found.get("owned", []))
    generation = _integer(f"{where}.generation", found.get("generation", NO_GENERATION), NO_GENERATION, _INT32_MAX)
    return GroupMember(
        member_id=member_id,
        instance_id=_optional_string(f"{where}.instance_id", found.get("instance_id")),
        subscription=Subscription(
            topics=tuple(sorted(set(_strings(f"{where}.topics", fields["topics"])))),
            owned=owned,
            generation=generation,
            rack=_optional_string(f"{where}.rack", found.get("rack")),
            user_data=_bytes(f"{where}.user_data", found["user_data"])
            if "user_data" in found
            else how.user_data(owned, generation),
        ),
    )


def _partitions(where: str, given: Any) -> frozenset[TopicPartition]:
    return frozenset([_partition(where, at, each) for at, each in enumerate(_list(where, given))])


def _partition(where: str, at: int, given: Any) -> TopicPartition:
    match given:
        case [str(topic), index] if type(index) is int and 0 <= index <= _INT32_MAX:
            return TopicPartition(topic, index)
        case [str(), index]:
            _integer(f"{where}[{at}][1]", index, 0, _INT32_MAX)
    raise BadLine(f"{where}[{at}] is not [topic, partition]")


def _fields(where: str, given: Any, needed: Sequence[str], more: Sequence[str]) -> Mapping[str, Any]:
    found = _object(where, given)
    for name in needed:
        if name not in found:
            raise BadLine(f"{where} has no {name!r}")
    for name in found:
        if name not in (*needed, *more):
            raise BadLine(f"{where} has {name!r}, which is none of {', '.join((*needed, *more))}")
    return found


def _object(where: str, given: Any) -> dict[str, Any]:
    return _is(where, given, dict, "an object")


def _list(where: str, given: Any) -> list[Any]:
    return _is(where, given, list, "a list")


def _strings(where: str, given: Any) -> list[str]:
    return [_is(f"{where}[{at}]", each, str, "a string") for at, each in enumerate(_list(where, given))]


def _optional_string(where: str, given: Any) -> str | None:
    return None if given is None else _is(where, given, str, "a string")


def _integer(where: str, given: Any, least: int, most: int) -> int:
    if type(given) is not int or not least <= given <= most:  # True is no number here
        raise BadLine(f"{where} is no integer from {least} to {most}")
    return given


def _bytes(where: str, given: Any) -> bytes:
    try:
        return bytes.fromhex(_is(where, given, str, "a string"))
    except ValueError:
        raise BadLine(f"{where} is not hexadecimal") from None


def _is(where: str, given: Any, kind: type[T], words: str) -> T:
    if not isinstance(given, kind):
        raise BadLine(f"{where} is not {words}")
    return given
