"""An error as Spark's Python process shows it: a sentence of ours, or the whole traceback of a bug."""

import io
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.util import handle_worker_exception

from pyspark_kgroup.brief_errors import brief_errors
from pyspark_kgroup.source import DefaultSource
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.errors import FencedInstanceId, IllegalTransition, KgroupError, OptionError, WireError


@pytest.fixture(autouse=True)
def spark_shows_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # as Spark starts its processes, put back after the test


def shown(call: Callable[[], object]) -> str:
    """The text that Spark's own code sends to the JVM for the error of `call`."""
    sent = io.BytesIO()
    try:
        call()
    except (KgroupError, ValueError, IllegalTransition) as error:
        handle_worker_exception(error, sent)
    return sent.getvalue()[8:].decode()  # after its code and its length


@brief_errors()
def failing(error: Exception) -> None:
    try:
        raise WireError("below")
    except WireError as cause:
        raise error from cause


def test_an_error_of_ours_is_one_line_and_its_traceback_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pyspark_kgroup.brief_errors")
    assert shown(lambda: failing(OptionError("Option a is b."))) == "spark_kgroup.errors.OptionError: Option a is b.\n"
    assert "in failing" in caplog.text
    assert "WireError: below" in caplog.text


def test_the_error_of_a_taken_seat_names_the_causes_under_spark() -> None:
    words = shown(lambda: failing(FencedInstanceId("g", "job-0")))
    assert len(words.splitlines()) == 1
    assert "Another process took the seat 'job-0' in group 'g' (FENCED_INSTANCE_ID). Does a second" in words
    for named in ("same load()", "self-join", "python_streaming_source_runner"):
        assert named in words


def test_the_error_of_a_taken_seat_asks_first_whether_each_query_wants_every_record() -> None:
    """Another `instanceIdPrefix` alone gives each of two sinks a part of the records, without a word."""
    words = shown(lambda: failing(FencedInstanceId("g", "job-0")))
    every, share = words.index("every record, give each its own load()"), words.index("share the records")
    assert every < words.index("`kafka.group.id`") < share < words.index("`instanceIdPrefix`")


@pytest.mark.parametrize("bug", [ValueError("a bug"), IllegalTransition("member", "stable", "Joined")])
def test_a_bug_keeps_its_traceback(bug: Exception) -> None:
    text = shown(lambda: failing(bug))
    assert "Traceback" in text
    assert "in failing" in text
    assert not os.environ["SPARK_HIDE_TRACEBACK"]


def test_every_call_of_the_source_is_brief() -> None:
    source = DefaultSource({"subscribe": "t"})
    schema: Any = None
    calls: list[Callable[[], object]] = [source.schema]
    calls += [
        source.reader(schema).partitions,
        lambda: source.writer(schema, False),
        lambda: source.streamWriter(schema, False),
    ]
    reader = source.streamReader(schema)
    assert isinstance(reader, KgroupStreamReader)
    calls += [reader.getDefaultReadLimit, reader.latestOffset, lambda: reader.partitions({}, {})]
    for call in calls:
        assert len(shown(call).splitlines()) == 1
