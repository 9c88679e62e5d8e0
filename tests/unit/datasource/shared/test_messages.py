"""The messages of a query's own processes: each survives its journey, and no other message is understood."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args

import pytest

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.shared import messages
from pyspark_kgroup.shared.messages import (
    AddQuery,
    Bind,
    Bound,
    CannotFetch,
    CannotStart,
    Durable,
    Finished,
    Heartbeat,
    Hello,
    Homes,
    Hung,
    JsonObject,
    NothingLeft,
    QueryMessage,
    Read,
    ReadAtHome,
    ReadDirectly,
    ReadFromServer,
    Ready,
    Refused,
    Resting,
    Serve,
    Served,
    SidecarParameters,
    StartSeatServer,
    UnknownQuery,
    Welcome,
    WorkerGone,
    parse,
    to_json,
)
from pyspark_kgroup.shared.tickets import Executor, Leader, OffsetRange, Position, SidecarAddress, TopicSize

FAR = 2**63 - 1
EXECUTOR = Executor(key="host:1:2", executor_id="7", host="host", pid=1, has_sidecar=False)
ADDRESS = SidecarAddress("host", 7078, EXECUTOR.key)
RANGES = (OffsetRange("t", 0, 5, 10), OffsetRange("ü", 1, FAR - 1, FAR, Leader(1, "broker", 9092, 7, "0a" * 16)))
OWNED = (Position("t", 0, 10, "id of t/1", Leader(1, "broker", 9092, 7, "")), Position("t", 2, 0, ""))

EXAMPLES: list[QueryMessage] = [
    Hello(query="q", executor=EXECUTOR, sidecar=True, address=ADDRESS),
    Welcome(serves_others=True),
    Heartbeat(),
    Homes(seats=("g-0", "g-1")),
    Bind(scan=1, ticket=0, executor=EXECUTOR),
    Bound(seat="g-0", at_home=True, ranges=RANGES, owned=OWNED),
    Bound(seat="g-0", at_home=False, ranges=RANGES, owned=OWNED, home=ADDRESS),
    NothingLeft(),
    Refused(reason="the batch is over"),
    Served(seat="g-0", by="server", rows=10, ready=10, sizes=(TopicSize("t", 10, 360),)),
    Resting(seat="g-0"),
    SidecarParameters(
        folder="/tmp/\udcff",
        key=b"\x00\xff",
        executor=EXECUTOR,
        host="here",
    ),
    Durable(query="q", end="0a"),
    AddQuery(query="q", prefetch_bytes=1, idle_ms=2, tells_sizes=True),
    UnknownQuery(),
    StartSeatServer(seat="g-0", config={"sasl.password": "hush"}, headers=True, timestamps=False),
    Ready(),
    CannotStart(reason="nobody is there"),
    Read(
        query="q", scan=1, ticket=0, config={"sasl.password": "hush"}, reader="native", headers=False, timestamps=True
    ),
    ReadFromServer(seat="g-0", ranges=RANGES),
    ReadDirectly(seat="g-0", ranges=(), home=ADDRESS),
    ReadAtHome(query="q", scan=1, ticket=0),
    Hung(query="q", seat="g-0"),
    Serve(ranges=RANGES, owned=OWNED, tells_sizes=False),
    Finished(rows=10, ready=0, sizes=()),
    WorkerGone(),
    CannotFetch(reason="t-0: an old format", lasting=True),
]
ODD: list[Any] = [None, True, 1, 1.5, 2**63, -(2**70), "x", [], [1], ["x"], [[]], [["t", 0, 1]], {}, {"a": 1}]
ODD += [[["t", 0, 1, None]], [["t", 0, "1", 2]], [["t", True, 1, 2]], [["t", 0, 1, 2]], [["t", 0, 1, 2, 3]], {"a": "b"}]
ODD += [
    [["t", 0, 1, 2, [1, "b", 9, 5]]],
    [["t", 0, 1, 2, [1, "b", "9", 5, "a"]]],
    [["t", 0, 1, 2, [1, "b", 9, 5, None]]],
]


ODD += [["h", 1, 2], ["h", "1", "x"], [1, 1, "x"], ["h", 1, "x", 0]]


def by_name(example: QueryMessage) -> str:
    return type(example).__name__


def travelled(message: QueryMessage) -> JsonObject:
    """`message` as it comes out of a channel."""
    raw: JsonObject = json.loads(json.dumps(to_json(message)))
    return raw


@pytest.mark.parametrize("name", ["key", "executor_id", "host"])
def test_an_executor_whose_name_would_be_a_log_line_of_its_own_is_refused(name: str) -> None:
    raw = to_json(Bind(scan=1, ticket=0, executor=EXECUTOR))
    raw["executor"][name] = "1\n2026-11-25 03:00:00 ERROR spark: all is lost"
    with pytest.raises(ChannelEnded, match="no names of an executor"):
        parse(raw)


def test_there_is_an_example_of_each_message() -> None:
    assert {type(example) for example in EXAMPLES} == set(get_args(QueryMessage))
    assert len({example.op for example in EXAMPLES}) == len({type(example) for example in EXAMPLES})


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_a_message_survives_its_journey_with_all_its_fields(example: QueryMessage) -> None:
    assert parse(travelled(example)) == example
    assert travelled(example).keys() == {"op"} | {one.name for one in fields(example)}


def test_the_id_of_a_request_is_no_field_of_it() -> None:
    assert parse({"op": "heartbeat", "id": 7}) == Heartbeat()


@pytest.mark.parametrize("op", [None, "", "nonsense", "Heartbeat", 5, ["heartbeat"], {}, "x" * 1_000_000], ids=repr)
def test_an_unknown_type_is_refused_in_few_words(op: Any) -> None:
    for raw in ({"op": op}, {}):
        with pytest.raises(ChannelEnded, match="unknown type") as refused:
            parse(raw)
        assert len(str(refused.value)) < 200


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_a_message_with_an_unknown_field_is_refused(example: QueryMessage) -> None:
    with pytest.raises(ChannelEnded, match="other fields"):
        parse({**travelled(example), "from_tomorrow": 1})


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_a_message_that_lacks_a_field_is_refused(example: QueryMessage) -> None:
    for missing in travelled(example):
        with pytest.raises(ChannelEnded):
            parse({name: value for name, value in travelled(example).items() if name != missing})


def odd_values(example: QueryMessage) -> Iterator[tuple[str, Any, JsonObject]]:
    """Field, an odd value, and the message with that value in it, also for the fields of an executor."""
    raw = travelled(example)
    for name in raw.keys() - {"op"}:
        yield from ((name, value, {**raw, name: value}) for value in ODD)
    if "executor" in raw:
        for name in raw["executor"]:
            yield from ((name, value, {**raw, "executor": {**raw["executor"], name: value}}) for value in ODD)


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_an_accepted_message_has_each_field_of_its_type(example: QueryMessage) -> None:
    """For any value of a field, the message is refused, or the message that comes out goes in again as it was."""
    for name, value, raw in odd_values(example):
        try:
            understood = parse(raw)
        except ChannelEnded:
            continue
        assert json.dumps(travelled(understood), sort_keys=True) == json.dumps(raw, sort_keys=True), (name, value)


@pytest.mark.parametrize(("rows", "ready"), [(1, 2), (-1, -1), (5, -1), (2**63, 0)])
def test_counts_that_cannot_be_are_refused(rows: int, ready: int) -> None:
    for kind in ({"op": "served", "seat": "g-0", "by": "worker", "sizes": []}, {"op": "finished", "sizes": []}):
        with pytest.raises(ChannelEnded):
            parse({**kind, "rows": rows, "ready": ready})


def test_the_text_of_a_message_shows_no_secret() -> None:
    shown = repr(EXAMPLES)
    assert "hush" not in shown
    assert repr(b"\x00\xff") not in shown


def test_the_table_names_every_message_and_no_other() -> None:
    """It is the first thing that is read of the protocol."""
    table = re.findall(r"^ {4}\S.*$", messages.__doc__ or "", re.MULTILINE)
    named = set(re.findall(r"\b[A-Z]\w+", "\n".join(table)))
    assert named == {type_.__name__ for type_ in get_args(QueryMessage)}
