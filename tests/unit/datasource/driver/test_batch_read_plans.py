"""The plan of a batch read beside a leader that was cut off: other brokers are asked before an offset is lost."""

from collections.abc import Collection, Coroutine, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from harness.fake_broker import on_a_loop
from harness.fake_cluster import connect_where_advertised

from pyspark_kgroup.driver.batch import batch_plan
from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import END_BELOW_ASKED_MS, END_BELOW_MS
from pyspark_kgroup.options.batch_options import parse_batch
from spark_kgroup.errors import BrokerError, OptionError, RequestTimedOut, WireError
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire import messages
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.cluster import Cluster, ListedTopics
from spark_kgroup.wire.listing import Answers

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BY_TIME = 1_700_000_000_000
NO_LEADER = BrokerError("ListOffsets", ErrorCode.LEADER_NOT_AVAILABLE)
UNSTABLE = BrokerError("OffsetFetch", ErrorCode.UNSTABLE_OFFSET_COMMIT)


class Logs:
    """Logs of 40 records. A leader that was cut off at 25 answers for T0, until `after` questions to other brokers.

    From a question for the timestamp `silent_at` on, no leader answers for T0.
    """

    def __init__(self, after: int, silent_at: int | None = None) -> None:
        self.after = after
        self.silent_at = silent_at
        self.silent = False
        self.asked: list[Collection[TopicPartition]] = []

    async def ask_another_broker(self, partitions: Collection[TopicPartition], _: int) -> None:
        self.asked.append(partitions)

    def begin_list_offsets(self, wanted: Mapping[TopicPartition, int], **_: Any) -> Any:
        self.silent |= self.silent_at in wanted.values()

        async def answers(_: int) -> Answers[Any]:
            end = {T0: 40 if len(self.asked) >= self.after else 25, T1: 40}
            unanswered = {tp: NO_LEADER for tp in wanted if tp == T0 and self.silent}
            places = {messages.EARLIEST: 0, BY_TIME: 20}
            found = {tp: places.get(at, end[tp]) for tp, at in wanted.items() if tp not in unanswered}
            return Answers({tp: SimpleNamespace(offset=offset) for tp, offset in found.items()}, unanswered)

        async def close() -> None: ...

        return SimpleNamespace(answers=answers, close=close)


def batch_read(logs: Logs, options: Mapping[str, str], brokers: int, **more: Any) -> Any:
    cluster = SimpleNamespace(logs=logs, brokers=SimpleNamespace(nodes=range(brokers)), **more)
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", **options}
    if "subscribePattern" in options:
        del given["subscribe"]
    return batch_plan._BatchRead(cast("Cluster", cluster), parse_batch(given))


async def spans(
    monkeypatch: pytest.MonkeyPatch,
    logs: Logs,
    options: dict[str, str],
    brokers: int = 3,
    refused: Mapping[TopicPartition, WireError] = MappingProxyType({}),
) -> dict[Any, Any]:
    now_s = 0.0

    async def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    async def committed(_: str, __: object, patience_ms: int | None, **___: Any) -> Answers[Any]:
        if refused and patience_ms is None:  # the look-up goes on until its time is up
            raise next(iter(refused.values()))
        return Answers({tp: SimpleNamespace(offset=38) for tp in (T0, T1) if tp not in refused}, refused)

    monkeypatch.setattr("pyspark_kgroup.driver.batch.batch_plan.asyncio.sleep", pause)
    monkeypatch.setattr(batch_plan, "time", SimpleNamespace(monotonic=lambda: now_s))
    read = batch_read(logs, options, brokers, groups=SimpleNamespace(committed_answers=committed))
    found: dict[Any, Any] = await read._spans({T0: 25, T1: 40})
    return found


GROUP = {"kafka.group.id": "g", "startingOffsets": "committed"}
STARTS_AT = {"startingOffsets": '{"t": {"0": 38, "1": 38}}'}
ENDS_AT = {"startingOffsets": '{"t": {"0": 5, "1": 5}}', "endingOffsets": '{"t": {"0": 38, "1": 38}}'}


@pytest.mark.parametrize("options", [GROUP, STARTS_AT, ENDS_AT], ids=["committed", "start", "end"])
@on_a_loop
async def test_an_offset_beyond_a_leader_s_log_is_looked_for_at_the_leader_that_another_broker_names(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = Logs(after=2)
    found = await spans(monkeypatch, logs, options)
    assert found[T0] == found[T1]
    assert logs.asked == [[T0], [T0]]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "t-0 is to be read at offset 38, but its log ends at 25" in warning


@pytest.mark.parametrize(
    ("options", "error"), [(GROUP, DataLoss), (STARTS_AT, OptionError), (ENDS_AT, OptionError)], ids=str
)
@on_a_loop
async def test_an_offset_that_no_leader_has_is_an_error_after_ten_seconds(
    options: dict[str, str], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Logs(after=1_000)
    with pytest.raises(error, match="t-0"):
        await spans(monkeypatch, logs, options)
    assert len(logs.asked) == END_BELOW_MS // END_BELOW_ASKED_MS + 1


@on_a_loop
async def test_the_only_broker_is_believed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(after=1)
    with pytest.raises(DataLoss, match="t-0"):
        await spans(monkeypatch, logs, GROUP, brokers=1)
    assert logs.asked == []


@pytest.mark.parametrize(("brokers", "end"), [(1, 25), (3, 40)])
@on_a_loop
async def test_a_read_up_to_latest_has_the_leaders_named_by_a_second_broker(brokers: int, end: int) -> None:
    read = batch_read(Logs(after=1), {"startingOffsets": "earliest"}, brokers)
    assert await read._ends([T0, T1]) == {T0: end, T1: 40}


@pytest.mark.parametrize("options", [{"startingOffsets": "earliest"}, {"endingOffsets": "latest"}], ids=str)
@on_a_loop
async def test_logs_that_have_all_that_is_asked_for_are_listed_once(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Logs(after=0)
    assert set(await spans(monkeypatch, logs, options)) == {T0, T1}
    assert logs.asked == []


@on_a_loop
async def test_a_read_names_the_address_that_answers_and_the_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def planning(at: Address) -> Coroutine[Any, Any, object]:
        return batch_plan._plan(parse_batch({"kafka.bootstrap.servers": str(at), "subscribe": "a"}))

    await connect_where_advertised(planning, monkeypatch, caplog)


FIRST = messages.EARLIEST
SINCE = {"startingOffsetsByTimestamp": f'{{"t": {{"0": {BY_TIME}, "1": {BY_TIME}}}}}'}
BEFORE_ITS_END = {**SINCE, "endingOffsets": '{"t": {"0": 30, "1": 30}}'}


@pytest.mark.parametrize(
    ("options", "silent_at"), [(GROUP, FIRST), (SINCE, FIRST), (SINCE, BY_TIME), (BEFORE_ITS_END, BY_TIME)], ids=str
)
@on_a_loop
async def test_a_leader_that_is_lost_while_starts_are_looked_up_is_waited_for_and_then_left_out_or_an_error(
    options: dict[str, str], silent_at: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RequestTimedOut, match=r"No leader has answered for t-0 .*set failOnDataLoss=false"):
        await spans(monkeypatch, Logs(after=0, silent_at=silent_at), options)
    caplog.clear()
    found = await spans(monkeypatch, Logs(after=0, silent_at=silent_at), {**options, "failOnDataLoss": "false"})
    assert set(found) == {T1}
    waits, without = (record.getMessage() for record in caplog.records)
    assert "waits for a leader of t-0 " in waits
    assert "No record is read of t-0 " in without


@on_a_loop
async def test_a_partition_whose_committed_offset_is_refused_is_an_error_or_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BrokerError, match="UNSTABLE_OFFSET_COMMIT"):
        await spans(monkeypatch, Logs(after=0), GROUP, refused={T0: UNSTABLE})
    found = await spans(monkeypatch, Logs(after=0), {**GROUP, "failOnDataLoss": "false"}, refused={T0: UNSTABLE})
    assert set(found) == {T1}
    (without,) = (record.getMessage() for record in caplog.records)
    assert "No record is read of t-0 " in without
    assert "UNSTABLE_OFFSET_COMMIT" in without


@pytest.mark.parametrize("there", [{"t-new": "described"}, {}], ids=["there", "gone"])
@on_a_loop
async def test_a_topic_of_a_pattern_that_one_broker_lists_is_asked_for_by_name(
    there: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[set[str]] = []

    async def list_topics(**_: object) -> ListedTopics:
        agreed = cast("Any", {"t-old": "described", "other": "described"})
        return ListedTopics(agreed, frozenset({"t-new", "another"}))

    async def metadata(topics: Collection[str], **_: object) -> Any:
        asked.append(set(topics))
        return SimpleNamespace(topics=there)

    read = batch_read(Logs(0), {"subscribePattern": "t-.*"}, 3, list_topics=list_topics, metadata=metadata)
    assert await read._topics() == {"t-old": "described", **there}
    assert asked == [{"t-new"}]
    assert ("'t-new'" in caplog.text) is not bool(there)
