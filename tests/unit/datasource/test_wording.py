"""Errors and log lines of the group's side reach users with the options of this source in them."""

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from harness.fake_broker import on_a_loop

from pyspark_kgroup.brief_errors import brief_errors
from pyspark_kgroup.driver.query import Query
from pyspark_kgroup.offsets.checkpoint import EMPTY
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.wording import in_options_words, log_in_options_words
from spark_kgroup.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    FencedInstanceId,
    KgroupError,
    OptionError,
    UnknownTopic,
)
from spark_kgroup.member.rejections import rejection
from spark_kgroup.model import ErrorCode
from spark_kgroup.runtime import group
from spark_kgroup.testing.free_ports import PortReservation
from spark_kgroup.wire.security.oauth import TokenCache
from spark_kgroup.wire.security.tokens import Token


def words_of(error: KgroupError) -> str:
    with pytest.raises(type(error)) as raised, brief_errors():
        raise error
    assert raised.value is error
    return str(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (rejection("g", "g-0", "JoinGroup", ErrorCode.INVALID_SESSION_TIMEOUT), "set kafka.session.timeout.ms within"),
        (
            rejection("g", "g-0", "JoinGroup", ErrorCode.GROUP_MAX_SIZE_REACHED),
            "use fewer `members`, or raise group.max.size",
        ),
        (ConnectionFailed("Check the bootstrap servers (`bootstrap.servers`)."), "(kafka.bootstrap.servers)."),
        (UnknownTopic("correct the option `topics`."), "correct the option `subscribe`."),
        (OptionError("Option `ssl.truststore.location` is"), "Option kafka.ssl.truststore.location is"),
        (ConnectionFailed("see `kgroup describe` and `sasl.oauthbearer.*`"), "`kgroup describe` and kafka.sasl.oauth"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_in_an_error_is_named_as_the_option_that_users_give(error: KgroupError, words: str) -> None:
    assert words in words_of(error)


def test_the_error_of_a_fenced_seat_names_what_fences_one_under_spark() -> None:
    words = words_of(FencedInstanceId("g", "job-0"))
    assert words.startswith("Another process took the seat 'job-0' in group 'g' (FENCED_INSTANCE_ID). Does a second")
    for named in ("same load()", "self-join", "python_streaming_source_runner"):
        assert named in words


def test_the_error_of_a_fenced_seat_asks_first_whether_each_query_wants_every_record() -> None:
    """Another `instanceIdPrefix` alone gives each of two sinks a part of the records, without a word."""
    words = words_of(FencedInstanceId("g", "job-0"))
    every, share = words.index("every record, give each its own load()"), words.index("share the records")
    assert every < words.index("`kafka.group.id`") < share < words.index("`instanceIdPrefix`")


def test_an_error_that_passes_twice_is_worded_once() -> None:
    error = FencedInstanceId("g", "job-0")
    with pytest.raises(FencedInstanceId), in_options_words():
        raise error
    once = str(error)
    assert words_of(error) == once


def engine_filters() -> dict[str, list[object]]:
    """The filters on the loggers of the group's side that have any."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("spark_kgroup.")]
    return {name: list(filters) for name in names if (filters := logging.getLogger(name).filters)}


def test_a_warning_that_no_broker_is_reached_names_the_option_until_the_query_stops(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine_filters()
    monkeypatch.setattr(group, "STARTUP_TIMEOUT_MS", 500)
    nobody = PortReservation("127.0.0.1", 1)
    servers = f"127.0.0.1:{nobody.ports[0]}"
    query = Query(parse({"kafka.bootstrap.servers": servers, "kafka.group.id": "g", "subscribe": "t"}), bounded=False)
    with pytest.raises(ConnectionFailed):
        query.advance(EMPTY)
    nobody.close()
    assert engine_filters() != before
    query.stop()
    assert engine_filters() == before
    (warning,) = (r.getMessage() for r in caplog.records if r.name == "spark_kgroup.wire.brokers")
    assert warning.startswith("Trying again: No broker could be reached. Check the bootstrap servers (kafka.bootstrap.")


@on_a_loop
async def test_a_warning_that_no_new_token_is_had_names_the_option(caplog: pytest.LogCaptureFixture) -> None:
    outcomes: Iterator[Token | AuthenticationFailed] = iter(
        [Token("t", time.time() + 1000), AuthenticationFailed("refused: check `sasl.oauthbearer.scope`.")]
    )

    def provider() -> Token:
        outcome = next(outcomes)
        if isinstance(outcome, AuthenticationFailed):
            raise outcome
        return outcome

    undo = log_in_options_words()
    cache = TokenCache(provider)
    await cache.token()
    await cache.token(fresh=True)
    undo()
    assert "check kafka.sasl.oauthbearer.scope. The token at hand serves" in caplog.text


LOGGING = """
import logging, sys
from pyspark_kgroup.wording import show_log
if sys.argv[1:] == ["configured"]:
    logging.basicConfig(format="ours: %(message)s")
show_log("100%s of it")
logging.getLogger("spark_kgroup.wire").warning("a warning with %d words", 4)
logging.getLogger("pyspark_kgroup.driver").info("seats join")
logging.getLogger("py4j").info("not ours")
"""


@pytest.mark.parametrize(
    ("given", "level", "lines"),
    [
        ((), "", ["WARNING kgroup, group 100%s of it: a warning with 4 words"]),
        ((), "nonsense", ["WARNING kgroup, group 100%s of it: a warning with 4 words"]),
        (
            (),
            "info",
            [
                "WARNING kgroup, group 100%s of it: a warning with 4 words",
                "INFO kgroup, group 100%s of it: seats join",
            ],
        ),
        ((), "error", []),
        (("configured",), "", ["ours: a warning with 4 words"]),
    ],
)
def test_log_lines_of_a_stream_reader_say_when_how_grave_and_of_which_group(
    given: tuple[str, ...], level: str, lines: list[str]
) -> None:
    command = [sys.executable, "-c", LOGGING, *given]
    environment = {**os.environ, "KGROUP_LOG_LEVEL": level}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    shown = done.stderr.splitlines()
    if not given:
        assert all(re.match(r"[0-9]{2}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} ", line) for line in shown)
        shown = [line[18:] for line in shown]
    assert shown == lines
