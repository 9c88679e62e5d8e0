"""Where no Kafka broker is, the start fails with one clear error, within its bound, and leaves no trace behind."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from harness.odd_servers import (
    Listener,
    garbage_in_a_frame,
    hangs_up,
    http,
    huge_length,
    random_bytes,
    silent,
    truncated_frame,
)

from spark_kgroup.errors import WireError
from spark_kgroup.limits import CONNECT_TIMEOUT_MS, STARTUP_TIMEOUT_MS
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.wire.address import parse_bootstrap

ODD_SERVERS = (http, silent, hangs_up, random_bytes, huge_length, truncated_frame, garbage_in_a_frame)
UNRESOLVABLE = "no-such-host.invalid:9092"
LOADED_S = 30
"""The time that a loaded machine may add."""


def failure_of(server: str) -> tuple[str, float]:
    """The error of a start against `server`, and after how many seconds it comes."""
    began = time.monotonic()
    settings = GroupSettings(bootstrap=parse_bootstrap(server), group="g", topics=("t",), instance_ids=("seat-0",))
    with pytest.raises(WireError) as failure:
        GroupRuntime(settings).start()
    return str(failure.value), time.monotonic() - began


def test_a_bootstrap_server_that_is_no_kafka_broker_is_one_clear_error_within_the_bound_of_the_start() -> None:
    with ExitStack() as listening, ThreadPoolExecutor(len(ODD_SERVERS) + 1) as at_once:
        servers = [listening.enter_context(Listener(odd_server)).address for odd_server in ODD_SERVERS]
        answers = dict(
            zip((*ODD_SERVERS, UNRESOLVABLE), at_once.map(failure_of, [*servers, UNRESOLVABLE]), strict=True)
        )
    for odd_server, server in zip((*ODD_SERVERS, UNRESOLVABLE), (*servers, UNRESOLVABLE), strict=True):
        text, seconds = answers[odd_server]
        print(f"{getattr(odd_server, '__name__', odd_server)}: {seconds:.1f} s: {text}")
        assert server in text
        assert "`bootstrap.servers`" in text
        assert seconds < STARTUP_TIMEOUT_MS / 1000 + LOADED_S
    for at_once_known in (http, huge_length):
        assert answers[at_once_known][1] < CONNECT_TIMEOUT_MS / 1000 + LOADED_S
        assert "not a Kafka broker" in answers[at_once_known][0]
    assert "kgroup" not in {thread.name for thread in threading.enumerate()}
