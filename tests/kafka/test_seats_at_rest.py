"""Two seats of a process hear for all: how seldom the others beat on a real Kafka, and how soon they know all the same.

A seat at rest beats each 30 s, and no test waits for as long: what it knows earlier, it was told by its neighbours.
"""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from harness.members import KGROUP
from harness.runtime import options_of, owned, settings_of
from harness.waiting import wait_for

from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.runtime.settings import ProtocolSettings
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.runtime.views import GroupView
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.schema import HeartbeatRequest, Request, Response

SEATS = 6
SOON_MS = 15_000
AT_REST = ProtocolSettings(session_timeout_ms=300_000, heartbeat_interval_ms=300)

Start = Callable[..., GroupRuntime]


@pytest.fixture
def start(apache_kafka: ApacheKafka, topic: str) -> Iterator[Start]:
    with ExitStack() as started:

        def begin(prefix: str, seats: int = SEATS) -> GroupRuntime:
            settings = settings_of(options_of(apache_kafka.bootstrap_servers, topic, prefix, seats))
            return started.enter_context(GroupRuntime(replace(settings, protocol=AT_REST)))

        yield begin


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Counter[str | None]:
    """How many heartbeats each instance id has sent."""
    sent: Counter[str | None] = Counter()
    call = Connection.call

    async def counted(self: Connection, request: Request, **more: Any) -> Response:
        if isinstance(request, HeartbeatRequest):
            sent[request.group_instance_id] += 1
        return await call(self, request, **more)

    monkeypatch.setattr(Connection, "call", counted)
    return sent


def settled(view: GroupView, generation: int = 0) -> bool:
    return all(seat.settled and seat.identity.generation > generation for seat in view.seats)


def at_rest(runtime: GroupRuntime, beats: Counter[str | None]) -> int:
    """The generation in which two seats beat, and the others do not."""
    runtime.wait_until(lambda view: settled(view) and len(owned(view)) == 4, SOON_MS)
    quiet: set[str | None] = set()

    def two_beat() -> bool:
        before = Counter(beats)
        wait_for(lambda: max((beats - before).values(), default=0) >= 5, "five heartbeats of a seat")
        quiet.clear()
        quiet.update(seat for seat in (f"one-{index}" for index in range(SEATS)) if beats[seat] == before[seat])
        return len(quiet) == SEATS - 2

    wait_for(two_beat, "all seats but two to rest", 60)
    assert quiet == {f"one-{index}" for index in range(2, SEATS)}
    return max(seat.identity.generation for seat in runtime.view().seats)


def test_seats_at_rest_take_part_in_a_rebalance_at_once(start: Start, beats: Counter[str | None]) -> None:
    first = start("one")
    generation = at_rest(first, beats)
    second = start("two", 1)
    # A rebalance that waits for any seat takes until its next heartbeat.
    second.wait_until(settled, SOON_MS)
    first.wait_until(lambda view: settled(view, generation), SOON_MS)


def test_seats_at_rest_end_as_soon_as_another_process_has_them(start: Start, beats: Counter[str | None]) -> None:
    first = start("one")
    at_rest(first, beats)
    start("one").wait_until(settled, SOON_MS)
    with pytest.raises(FencedInstanceId):
        first.wait_until(lambda _: False, SOON_MS)


def test_a_seat_at_rest_that_was_taken_out_of_the_group_joins_again_at_once(
    start: Start, beats: Counter[str | None], apache_kafka: ApacheKafka, topic: str
) -> None:
    first = start("one")
    generation = at_rest(first, beats)
    address = ("--bootstrap-server", apache_kafka.bootstrap_servers, "--group", f"of-{topic}")
    subprocess.run([KGROUP, "remove-members", *address, "--instance-id", "one-4", "--yes"], check=True, timeout=60)
    first.wait_until(lambda view: settled(view, generation) and len(owned(view)) == 4, SOON_MS)
