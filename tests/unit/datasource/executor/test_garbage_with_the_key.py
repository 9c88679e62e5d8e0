"""Any message of a peer that holds the key is understood, or ends its connection. 200,000 messages, seeded."""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.executor.sidecar import sidecar, sidecar_query
from pyspark_kgroup.executor.sidecar.seat_server import _expect_serve
from pyspark_kgroup.shared.channel import Message
from pyspark_kgroup.shared.messages import QueryMessage, parse
from pyspark_kgroup.shared.tickets import OffsetRange

MESSAGES = 50_000
"""The number of messages for each of four readers."""

EXECUTORS: list[Any] = [
    {
        "key": f"{name}:1:1",
        "executor_id": name,
        "host": "h",
        "pid": 1,
        "has_sidecar": has_sidecar,
        "rack": "",
        "cores": 0,
    }
    for name, has_sidecar in (("1", True), ("2", True), ("3", False))
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        2**70,
        10**4000,
        1.5,
        float("inf"),
        "",
        "g-0",
        "g-1",
        "worker",
        "server",
        "\ud800",
    ),
    *([], {}, [[]], [["t", 0, 0, 1]], [["t", 0, 1, "tag"]], [["t", 1, 1]], {"a": "b"}, {"a": {}}, {"key": 1}),
    *EXECUTORS,
]
FIELDS = {
    "bind": ("scan", "ticket", "executor", "for_guest"),
    "served": ("seat", "by", "rows", "ready", "sizes"),
    "hello": ("query", "executor", "sidecar", "address"),
    "heartbeat": (),
    "read": ("query", "scan", "ticket", "config", "reader", "headers", "timestamps"),
    "read-at-home": ("query", "scan", "ticket"),
    "hung": ("query", "seat"),
    "add-query": ("query", "prefetch_bytes", "idle_ms", "tells_sizes"),
    "serve": ("ranges", "owned", "tells_sizes"),
    "homes": ("seats",),
    None: ("seat",),
}
"""The fields of messages that the readers take, and of some that they do not."""

MEANT: dict[str, tuple[Any, ...]] = {
    "op": tuple(FIELDS),
    "scan": (1, 2, 3),
    "ticket": (0, 1),
    "executor": tuple(EXECUTORS),
    "seat": ("g-0", "g-1"),
    "by": ("worker", "worker", "worker", "server", "network"),
    "rows": (1,),
    "ready": (0,),
    "query": ("q",),
    "reader": ("native",),
    "prefetch_bytes": (1,),
    "idle_ms": (1,),
    "sidecar": (True, False),
    "address": (None, ["here", 1, "x"]),
    "config": ({}, {"a": "b"}),
    "headers": (True, False),
    "timestamps": (True, False),
    "id": (1,),
    "ranges": ([], [["t", 0, 0, 1]]),
    "owned": ([], [["t", 0, 1, "tag"]]),
    "seats": ([], ["g-0"]),
    "sizes": ([], [["t", 1, 100]]),
    "tells_sizes": (True, False),
    "for_guest": (True, False),
}
"""Right values of each field."""


def messages(seed: int) -> Iterator[Message]:
    """Most fields right, some missing, some of another message, the rest odd."""
    random = Random(seed)
    for _ in range(MESSAGES):
        op = random.choice(tuple(FIELDS))
        message = {
            name: random.choice(MEANT[name]) if random.random() < 0.9 else random.choice(VALUES)
            for name in (*FIELDS[op], "id")
            if random.random() < 0.95
        }
        if random.random() < 0.05:
            message[random.choice(tuple(MEANT))] = random.choice(VALUES)
        yield {"op": op if random.random() < 0.95 else random.choice(VALUES), **message}


def understood(read: Callable[[Message], object], seed: int) -> Counter[bool]:
    """How many messages were understood. Any other exception than the channel's passes through."""
    outcomes: Counter[bool] = Counter()
    for message in messages(seed):
        try:
            read(message)
        except ChannelEnded:
            outcomes[False] += 1
        else:
            outcomes[True] += 1
    print(dict(outcomes))
    return outcomes


class Unconnected:
    """As much of a connection as requests look at."""

    host = ""
    port = 0
    patience_ms = 0

    def expect_within(self, silence_ms: int) -> None:
        pass

    def respond(self, response: QueryMessage | None) -> None:
        pass


def test_the_registry_understands_a_request_or_ends_its_connection() -> None:
    registry = Registry(["g-0", "g-1"])
    registry.query = "q"
    requests = Requests(registry)
    peers = [Unconnected() for _ in range(5)]
    random = Random(1)

    def read(message: Message) -> None:
        if random.random() < 0.001:
            registry.plan(
                str(random.random()), {"g-0": [[OffsetRange("t", 0, 0, 1)]], "g-1": [[OffsetRange("t", 1, 0, 1)]]}, {}
            )
        requests.answer(random.choice(peers), parse(message))

    outcomes = understood(read, 1)
    assert min(outcomes.values()) > MESSAGES / 20
    assert registry.counts().rows < 2**63 * MESSAGES
    assert set(registry.homes()) <= {"g-0", "g-1"}


def expect_request(message: Message) -> object:
    return sidecar.expect_request(parse(message))


def expect_served(message: Message) -> object:
    return sidecar_query.expect_served(parse(message), "g-0")


@pytest.mark.parametrize("read", [expect_request, expect_served])
def test_a_sidecar_understands_a_worker_or_ends_its_connection(read: Callable[[Message], object]) -> None:
    assert min(understood(read, 2).values()) > MESSAGES / 100


def test_a_seats_server_understands_its_share_or_ends() -> None:
    random = Random(3)

    def read(message: Message) -> None:
        one = [random.choice(VALUES) for _ in range(4)]
        share = random.choice([message.get("ranges"), [*message.values()], [one], []])
        owned = random.choice([message.get("owned"), [one], []])
        _expect_serve(parse({"op": "serve", "ranges": share, "owned": owned, "tells_sizes": True}))

    assert min(understood(read, 3).values()) > MESSAGES / 100
