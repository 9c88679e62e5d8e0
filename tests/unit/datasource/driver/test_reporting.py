"""A query's report of itself (`reporting`), and a listener's use of it (`listener`)."""

import builtins
import json
import logging
import time
from datetime import UTC, datetime
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from pyspark_kgroup.driver.registry.reporting import Counts, commit_metadata, latest_offset
from pyspark_kgroup.driver.registry.seat_bindings import Home
from pyspark_kgroup.listener import KgroupListener, format_line, parse_lag
from pyspark_kgroup.offsets.checkpoint import Checkpoint, Owned, Period, Topic
from pyspark_kgroup.shared.tickets import Executor
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.model import TopicPartition
from spark_kgroup.seat_note import Author, SeatNote

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
BY = Author(app="job", run=1_700_000_000_000)
COUNTS = Counts(guest_bindings=6, warm_reads=7, network_reads=4, direct_reads=3, rows=100, rows_ready=80)
MEMBERS = {"seat-0": "m0", "seat-1": "m1"}
RUN = "4f624205-1dad-4d49-9be3-c798bd1eaab1"


def home(executor_id: str = "1", warm: bool = True, age_ms: int = 60_000) -> Home:
    executor = Executor(key="k", executor_id=executor_id, host="h1", pid=7)
    return Home(executor=executor, since_ms=monotonic_ms() - age_ms, move=0, warm=warm)


def checkpoint(**positions: int) -> Checkpoint:
    """Partition i of topic t is seat-(i % 2)'s."""
    owned = {
        TopicPartition("t", index): Owned(
            period=Period(topic_id="id", start=0, seat=f"seat-{index % 2}", generation=3), position=position
        )
        for index, position in enumerate(positions.values())
    }
    return Checkpoint(topics={"t": Topic(topic_id="id", first_sight=3)}, owned=owned, group="job")


def progress(latest: Any, end: Any = None, **more: Any) -> dict[str, Any]:
    """The progress of a query as Spark 4.3 reports it."""
    source = {
        "description": "PythonMicroBatchStreamWithAdmissionControl@1",
        "startOffset": None,
        "endOffset": end if end is not None else checkpoint(a=5, b=5, c=5).to_json(),
        "latestOffset": latest,
        "numInputRows": 1,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.2,
    }
    return {
        "id": "f862bb95-8851-4085-9b76-a19dca7cb132",
        "runId": RUN,
        "name": "hello",
        "timestamp": "2026-11-21T18:28:21.951Z",
        "batchId": 2,
        "batchDuration": 335,
        "numInputRows": 1,
        "inputRowsPerSecond": 2.1,
        "processedRowsPerSecond": 3.0,
        "durationMs": {"addBatch": 143},
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "NoopTable", "numOutputRows": 1},
        **more,
    }


def event(reported: dict[str, Any]) -> QueryProgressEvent:
    return QueryProgressEvent(StreamingQueryProgress.fromJson(reported))


def reported() -> dict[str, Any]:
    ends, homes = {P0: 9, P1: 5, P2: 3}, {"seat-0": home(), "seat-1": home("2")}
    latest = latest_offset(checkpoint(a=5, b=5, c=5), ends, MEMBERS, homes, COUNTS)
    copied: dict[str, Any] = json.loads(json.dumps(latest))
    return copied


# ------------------------------------------------------------------------------------------------ the report


def test_the_latest_offset_is_the_offset_with_the_ends_of_the_logs_and_who_serves_the_seats() -> None:
    found = reported()
    assert Checkpoint.from_json(found) == checkpoint(a=9, b=5, c=5)  # a frozen or listed end never lies before
    since = _since(found, "seat-1")
    assert found["seats"]["seat-1"] == {"member": "m1", "executor": "2", "host": "h1", "warm": True, "since": since}
    assert abs(_since(found, "seat-0") / 1000 - (time.time() - 60)) < 5


def test_reads_are_counted_by_who_did_them() -> None:
    assert reported()["reads"] == {"at_home": 7, "network": 4, "guest": 2, "alone": 1, "rows": 100, "ready": 80}


def _since(found: dict[str, Any], seat: str) -> int:
    since: int = found["seats"][seat]["since"]
    return since


def test_a_partition_whose_log_was_not_listed_stands_where_it_is_read() -> None:
    assert Checkpoint.from_json(latest_offset(checkpoint(a=5), {}, {}, {}, COUNTS)) == checkpoint(a=5)


@pytest.mark.parametrize("ended", [True, False])
def test_a_stream_with_an_end_says_whether_it_has_come_to_it_and_no_other_stream_does(ended: bool) -> None:
    found = latest_offset(checkpoint(a=5), {}, {}, {}, COUNTS, ended=ended)
    assert found.pop("ended") is ended
    assert found == latest_offset(checkpoint(a=5), {}, {}, {}, COUNTS)
    assert "ended" not in found


def test_the_metadata_of_a_commit_says_who_serves_the_seat() -> None:
    note = SeatNote.decode(commit_metadata(BY, "job-1-id", "6f1c2f0e-6a3b", home(warm=False)))
    assert note is not None
    assert (note.member, note.executor, note.host, note.warm) == ("job-1-id", "1", "h1", False)
    assert note.since_ms is not None
    assert 55_000 < note.at_ms - note.since_ms < 65_000
    assert (note.author, note.topic_id) == (BY, "6f1c2f0e")
    note = SeatNote.decode(commit_metadata(BY, "job-1-id", "6f1c2f0e-6a3b", None))
    assert note is not None
    assert note.author == BY
    assert (note.member, note.executor, note.host, note.warm, note.since_ms) == ("job-1-id", None, None, None, None)


# -------------------------------------------------------------------------------------------- the listener


def test_lag_by_partition_and_by_seat() -> None:
    lag = parse_lag(progress(reported()))
    assert lag is not None
    assert (lag.query, lag.batch) == ("hello", 2)
    assert {each.partition: (each.seat, each.position, each.lag) for each in lag.partitions} == {
        P0: ("seat-0", 5, 4),
        P1: ("seat-1", 5, 0),
        P2: ("seat-0", 5, 0),
    }
    assert lag.by_seat == {"seat-0": 4, "seat-1": 0}
    assert format_line(lag) == (
        "query hello, batch 2: lag 4 in 3 partitions. "
        "seat-0 (executor 1 on h1, warm): 4, seat-1 (executor 2 on h1, warm): 0"
    )


@pytest.mark.parametrize(
    "other",
    [
        progress({"t": {"0": 5}}, {"t": {"0": 4}}),  # format("kafka")
        progress(None),  # PySpark 4.0
        progress(checkpoint(a=5, b=5, c=5).to_json()),  # PySpark 4.1: the result of `latestOffset`, the batch's end
        progress("7", "6"),  # rate
        {**progress(None), "sources": []},
    ],
)
def test_other_sources_are_passed_over(other: dict[str, Any]) -> None:
    assert parse_lag(other) is None


def test_gauges_follow_the_progress_and_go_with_the_query() -> None:
    registry = CollectorRegistry()
    listener = KgroupListener(registry)
    listener.onQueryProgress(event(progress(reported())))
    served = {"query": "hello", "group": "job", "seat": "seat-0"}
    labels = {**served, "topic": "t", "partition": "0"}
    assert registry.get_sample_value("kgroup_partition_lag_offsets", labels) == 4
    assert registry.get_sample_value("kgroup_partition_position_offset", labels) == 5
    assert registry.get_sample_value("kgroup_partition_end_offset", labels) == 9
    who = {"executor": "1", "host": "h1", "member_id": "m0"}
    assert registry.get_sample_value("kgroup_seat_info", {**served, **who}) == 1
    assert registry.get_sample_value("kgroup_seat_lag_offsets", served) == 4
    assert registry.get_sample_value("kgroup_seat_warm", served) == 1
    since_s = registry.get_sample_value("kgroup_seat_since_timestamp_seconds", served)
    assert since_s is not None
    assert abs(since_s - (time.time() - 60)) < 5
    moved = {**reported(), "seats": {}}
    listener.onQueryProgress(event(progress(moved)))
    assert registry.get_sample_value("kgroup_seat_warm", served) is None
    assert registry.get_sample_value("kgroup_seat_lag_offsets", served) == 4, "a home that moves ends no series"
    listener.onQueryTerminated(QueryTerminatedEvent(progress(None)["id"], cast("UUID", RUN), None, None))
    assert b'query="hello"' not in generate_latest(registry)


def test_a_second_listener_shares_the_gauges_of_the_first() -> None:
    """A notebook's cell that is run again. Then the first listener is removed, and its query goes on."""
    registry = CollectorRegistry(auto_describe=True)  # as prometheus-client's own: it takes a name once
    former = KgroupListener(registry)
    former.onQueryProgress(event(progress(reported())))
    listener = KgroupListener(registry)
    labels = {"query": "hello", "group": "job", "seat": "seat-0", "topic": "t", "partition": "0"}
    assert registry.get_sample_value("kgroup_partition_lag_offsets", labels) == 4
    listener.onQueryProgress(event(progress(reported(), checkpoint(a=9, b=5, c=5).to_json())))
    assert registry.get_sample_value("kgroup_partition_lag_offsets", labels) == 0
    listener.onQueryTerminated(QueryTerminatedEvent(progress(None)["id"], cast("UUID", RUN), None, None))
    assert b'query="hello"' not in generate_latest(registry)


def test_the_listener_logs_one_line_of_lag_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    listener = KgroupListener(CollectorRegistry())
    with caplog.at_level(logging.INFO, "pyspark_kgroup.listener"):
        for _ in range(5):
            listener.onQueryProgress(event(progress(reported())))
        listener.onQueryProgress(event(progress(reported(), runId="00000000-0000-0000-0000-000000000001")))
    assert [record.getMessage()[:12] for record in caplog.records] == ["query hello,"] * 2


def test_at_debug_the_listener_logs_all_that_describe_shows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pyspark_kgroup.listener"):
        KgroupListener(CollectorRegistry()).onQueryProgress(event(progress(reported())))
    _, seat, *_, partition = [record.getMessage() for record in caplog.records if record.levelno <= logging.INFO]
    since = datetime.fromtimestamp(_since(reported(), "seat-0") / 1000, UTC).isoformat(timespec="seconds")[:-8]
    assert seat.startswith(f"query hello: seat seat-0 is member m0, served by executor 1 on h1 since {since}")
    assert seat.endswith(", warm")
    assert partition == "query hello: t-2 of seat seat-0 is read up to 5 of 5, lag 0"


@pytest.mark.parametrize(("batch", "rows", "warned"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_the_listener_warns_of_a_first_batch_that_the_sink_has_skipped(
    caplog: pytest.LogCaptureFixture, batch: int, rows: int, warned: bool
) -> None:
    """The checkpoint was deleted and the output kept. With one batch that takes all, no stream reader hears of it."""
    first = progress(checkpoint(a=5, b=5, c=5).to_json(), batchId=batch)  # PySpark 4.1: without seats
    first["sources"][0]["numInputRows"] = rows
    KgroupListener(CollectorRegistry()).onQueryProgress(event(first))
    assert ("query hello: A batch of 15 offsets is done, and no task has read" in caplog.text) is warned


def test_the_listener_without_prometheus_client_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *rest)

    with patch.object(builtins, "__import__", without), caplog.at_level(logging.INFO, "pyspark_kgroup.listener"):
        listener = KgroupListener()
        listener.onQueryProgress(event(progress(reported())))
    assert "not installed" in caplog.text
    assert "lag 4" in caplog.text


def test_the_listeners_line_is_short_with_many_seats() -> None:
    seats = {
        f"seat-{index}": {"member": "m", "executor": "1", "host": "h", "warm": False, "since": 0}
        for index in range(100)
    }
    lag = parse_lag(progress({**reported(), "seats": seats}))
    assert lag is not None
    assert format_line(lag).endswith("and 95 more seats")
