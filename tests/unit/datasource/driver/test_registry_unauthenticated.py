"""A peer without the application's key learns no state of the registry, changes none, and disturbs no other peer."""

import hashlib
import hmac
import json
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest
from harness.waiting import wait_for

from pyspark_kgroup.driver.registry import peers as peers_module
from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.server import RegistryServer
from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.limits import REGISTRY_UNAUTHENTICATED_MAX
from pyspark_kgroup.shared.channel import Channel, Message, connect, frame, new_key

EXECUTOR: Message = {
    "key": "here/1/1",
    "executor_id": "1",
    "host": "here",
    "pid": 1,
    "has_sidecar": True,
    "rack": "",
    "cores": 0,
}
BIND: Message = {"op": "bind", "id": 1, "scan": 1, "ticket": 0, "executor": EXECUTOR, "for_guest": False}
FLOOD = 10_000
JOIN_S = 60.0
KEY = new_key()
"""The key of another query."""


@pytest.fixture
def sidecar(registry: Registry, server: RegistryServer) -> Iterator[Channel]:
    channel = connect(("127.0.0.1", server.port), server.key)
    hello = {"op": "hello", "query": registry.query, "executor": EXECUTOR, "sidecar": True, "address": None}
    channel.send({"id": 0, **hello})
    assert channel.receive(30) == {"op": "welcome", "id": 0, "serves_others": False}
    yield channel
    channel.close()


def bind(channel: Channel) -> Message:
    channel.send(BIND)
    return channel.receive(30)


def reset(sock: socket.socket) -> None:
    """Close without TIME_WAIT, in which the port would stay taken."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def all_that_it_says(sock: socket.socket) -> bytes:
    """Everything until the registry ends the connection."""
    received = b""
    sock.settimeout(30)
    with suppress(ConnectionResetError):
        while data := sock.recv(65536):
            received += data
    return received


def greeting(sock: socket.socket) -> bytes:
    """The registry's nonce."""
    count = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    return bytes.fromhex(json.loads(sock.recv(count, socket.MSG_WAITALL))["nonce"])


def proof(key: bytes, nonce: bytes) -> bytes:
    """A client's answer to the registry's nonce, by hand."""
    ours = bytes(32)
    text = b"spark-kgroup channel 2: client of registry"
    return frame({"nonce": ours.hex(), "mac": hmac.new(key, text + nonce + ours, hashlib.sha256).hexdigest()})


UNAUTHENTICATED: dict[str, Callable[[bytes], bytes]] = {
    "a wrong key": lambda nonce: proof(KEY, nonce),
    "a request without a handshake": lambda _: frame(BIND),
    "a wrong key and a request at once": lambda nonce: proof(KEY, nonce) + frame(BIND),
    "HTTP": lambda _: b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
    "TLS": lambda _: bytes.fromhex("1603010200010001fc0303") + os.urandom(500),
    "random bytes": lambda _: b"\xff" + os.urandom(100_000),
    "a huge length": lambda _: b"\xff\xff\xff\xff{",
    "a length just above the bound": lambda _: struct.pack(">I", 513),
    "an empty frame": lambda _: bytes(4),
    "deep JSON": lambda _: struct.pack(">I", 512) + b"[" * 512,
    "no object": lambda _: struct.pack(">I", 2) + b"[]",
    "its own nonce": lambda nonce: frame({"nonce": nonce.hex(), "mac": nonce.hex()}),
}


@pytest.mark.parametrize("kind", UNAUTHENTICATED)
def test_an_unauthenticated_peer_learns_a_nonce_and_changes_no_home(
    registry: Registry, server: RegistryServer, sidecar: Channel, kind: str
) -> None:
    bind(sidecar)
    homes = registry.homes()
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        nonce = greeting(peer)
        assert len(nonce) == 32
        peer.sendall(UNAUTHENTICATED[kind](nonce))
        assert all_that_it_says(peer) == b""
    wait_for(lambda: server.counts().refused == 1, "the refusal")
    assert registry.homes() == homes
    assert server.counts().accepted == 1
    assert bind(sidecar)["seat"] == "g-0"


def test_a_peer_that_leaves_without_a_word_is_not_one_that_was_refused(server: RegistryServer) -> None:
    """A worker that was killed while it connected, or a look whether the port is open: it deserves no warning."""
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        greeting(silent)
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        greeting(peer)
        peer.sendall(frame({"op": "heartbeat"}))
        assert all_that_it_says(peer) == b""
    wait_for(lambda: (server.counts().silent, server.counts().refused) == (1, 1), "both to be gone")


def test_the_hand_made_proof_is_right(server: RegistryServer) -> None:
    """Else the tests beside it would pass in vain."""
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(proof(server.key, greeting(peer)))
        assert len(greeting_of_mac(peer)) == 32
        wait_for(lambda: server.counts().accepted == 1, "trust")


def greeting_of_mac(sock: socket.socket) -> bytes:
    count = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    return bytes.fromhex(json.loads(sock.recv(count, socket.MSG_WAITALL))["mac"])


def test_a_recorded_handshake_is_refused(server: RegistryServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as honest:
        recorded = proof(server.key, greeting(honest)) + frame(BIND)
        honest.sendall(recorded)
        greeting_of_mac(honest)
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        greeting(peer)
        peer.sendall(recorded)
        assert all_that_it_says(peer) == b""
    assert server.counts().accepted == 1


HALVES = {"nothing": b"", "half a length": bytes(2), "half a frame": struct.pack(">I", 100) + b'{"nonce":'}


@pytest.mark.parametrize("kind", HALVES)
def test_half_open_connections_end_in_time(
    server: RegistryServer, sidecar: Channel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "CHANNEL_HANDSHAKE_MS", 100)
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        greeting(peer)
        peer.sendall(HALVES[kind])
        assert all_that_it_says(peer) == b""
    assert bind(sidecar)["seat"] == "g-0"


def test_an_unauthenticated_peer_that_half_closes_is_dropped_at_once(server: RegistryServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        greeting(peer)
        peer.shutdown(socket.SHUT_WR)
        assert all_that_it_says(peer) == b""


def test_the_oldest_of_too_many_unauthenticated_peers_is_dropped(server: RegistryServer) -> None:
    address = ("127.0.0.1", server.port)
    peers = [socket.create_connection(address) for _ in range(REGISTRY_UNAUTHENTICATED_MAX + 10)]
    for oldest in peers[:10]:
        greeting(oldest)
        assert all_that_it_says(oldest) == b""
    peers[10].settimeout(0.05)
    greeting(peers[10])
    with pytest.raises(TimeoutError):
        peers[10].recv(1)
    for peer in peers:
        peer.close()


def test_unauthenticated_peers_hold_no_more_descriptors_of_the_driver_than_there_may_be_of_them(
    server: RegistryServer,
) -> None:
    at_rest = len(os.listdir("/proc/self/fd"))
    crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(REGISTRY_UNAUTHENTICATED_MAX + 150)]
    assert len(greeting(crowd[-1])) == 32
    held = len(os.listdir("/proc/self/fd")) - at_rest - len(crowd)
    assert 0 < held <= REGISTRY_UNAUTHENTICATED_MAX + 1
    for peer in crowd:
        peer.close()


def test_a_host_that_holds_many_connections_loses_its_own(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly an executor on another host answers: as on a machine with too much to do."""
    monkeypatch.setattr(peers_module, "CHANNEL_HANDSHAKE_MS", 60_000)  # the machine may have too much to do in earnest
    address = ("127.0.0.1", server.port)
    slow = socket.create_connection(address)
    nonce = greeting(slow)
    crowd = [
        socket.create_connection(address, source_address=("127.0.0.2", 0))
        for _ in range(2 * REGISTRY_UNAUTHENTICATED_MAX)
    ]
    wait_for(lambda: server.counts().refused == len(crowd) - REGISTRY_UNAUTHENTICATED_MAX + 1, "all to be taken")
    slow.sendall(proof(server.key, nonce))
    assert len(greeting_of_mac(slow)) == 32
    for peer in (slow, *crowd):
        peer.close()


def test_more_executors_than_there_may_be_are_turned_away(
    server: RegistryServer, sidecar: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "REGISTRY_CONNECTIONS_MAX", 1)
    with socket.create_connection(("127.0.0.1", server.port)) as second:
        second.sendall(proof(server.key, greeting(second)))
        assert all_that_it_says(second) == b""
    assert bind(sidecar)["seat"] == "g-0"


def test_a_peer_that_never_reads_is_disconnected(
    server: RegistryServer, sidecar: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests stay in the kernels' buffers and its own. Other peers are served."""
    monkeypatch.setattr(peers_module, "CHANNEL_SEND_MS", 500)
    deaf = connect(("127.0.0.1", server.port), server.key)
    deaf.socket.settimeout(30)
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    requests = frame({**BIND, "id": "x" * 100_000})
    asked = 0
    with suppress(ConnectionResetError, BrokenPipeError):  # the registry ended it
        while asked < 64 * 1024 * 1024:
            asked += deaf.socket.send(requests)
    assert asked < 64 * 1024 * 1024
    print(f"{asked / 1024:.0f} KiB were taken")
    deaf.close()
    assert bind(sidecar)["seat"] == "g-0"


def flood(address: tuple[str, int], greet: bytes, enough: Event) -> int:
    """Connections of another host, as fast as can be: a third each reset at once, after garbage, or held half open.

    Args:
        enough: ends the flood, once it has made `FLOOD // 2` connections.

    Returns:
        How many connections it has made.
    """
    held: deque[socket.socket] = deque()
    count = 0
    while count < FLOOD // 2 or not enough.is_set():
        peer = socket.create_connection(address, 30, source_address=("127.0.0.2", 0))
        count += 1
        if count % 3 == 0:
            held.append(peer)
            if len(held) <= 300:
                continue
            peer = held.popleft()
        elif count % 3 == 1:
            with suppress(OSError):  # dropped already
                peer.sendall(greet)
        reset(peer)
    for peer in held:
        reset(peer)
    return count


def dropped_by_the_kernel() -> int:
    """How many connections this machine has dropped because a listener's backlog was full, since it started."""
    names, values = (line.split() for line in Path("/proc/net/netstat").read_text().splitlines()[:2])
    return int(values[names.index("ListenOverflows")])


def join(server: RegistryServer) -> int:
    """A newcomer binds, and tries again as workers do: where the backlog is full, the kernel leaves it in silence.

    Returns:
        How many of its connections were in vain.
    """
    begun_s, in_vain = time.monotonic(), 0
    while time.monotonic() - begun_s < JOIN_S:
        try:
            newcomer = connect(("127.0.0.1", server.port), server.key)
        except ChannelEnded as ended:
            # The kernel's doing. A registry that pushes a newcomer out hangs up.
            if not any(words in str(ended) for words in ("silent", "can be reached")):
                raise
            in_vain += 1
            continue
        assert bind(newcomer)["seat"] == "g-0"
        newcomer.close()
        return in_vain
    pytest.fail(f"A newcomer with the key did not get in within {JOIN_S:.0f} s and {in_vain} attempts.")


def test_a_flood_of_connections_does_not_hold_up_sidecars_with_the_key(
    server: RegistryServer, sidecar: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """10,000 connections as fast as they can be made: a sidecar binds on, and newcomers with the key get in."""
    caplog.set_level(logging.DEBUG)
    address = ("127.0.0.1", server.port)
    binds = newcomers = in_vain = 0
    slowest_s = 0.0
    begun_s, dropped_before = time.monotonic(), dropped_by_the_kernel()
    enough = Event()
    with ThreadPoolExecutor(2) as beside:
        greets = (b"\xff" * 100, proof(KEY, bytes(32)))
        floods = [beside.submit(flood, address, greet, enough) for greet in greets]
        try:
            while wait(floods, timeout=0.002).not_done:
                asked_s = time.monotonic()
                assert bind(sidecar)["seat"] == "g-0"
                slowest_s = max(slowest_s, time.monotonic() - asked_s)
                binds += 1
                if binds % 10 == 0:
                    in_vain += join(server)
                    newcomers += 1
                if binds == 100:
                    enough.set()
        finally:
            enough.set()
        flooded = sum(over.result() for over in floods)
    took_s = time.monotonic() - begun_s
    print(
        f"{flooded} connections in {took_s:.1f} s; {binds} binds, at most {slowest_s * 1000:.0f} ms; {newcomers} "
        f"joined, {in_vain} times in vain"
    )
    assert binds >= 100  # else a flood ended with an error, which `result` has raised
    dropped_max = dropped_by_the_kernel() - dropped_before  # those that were reset before there was room in the backlog

    def taken() -> int:  # a reset may overtake the peer's message
        return server.counts().refused + server.counts().silent

    wait_for(lambda: taken() >= flooded - dropped_max, "the count of all of them")
    assert taken() <= flooded + in_vain
    assert newcomers + 1 <= server.counts().accepted <= newcomers + in_vain + 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert 1 <= len(warnings) <= 1 + took_s / 60
    assert "did not show" in warnings[0]
    assert server.key.hex() not in caplog.text


def test_refusals_are_logged_at_most_once_in_a_while_with_their_number(
    server: RegistryServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "REGISTRY_REFUSALS_LOGGED_MS", 1_500)

    def counts() -> list[int]:
        return [int(record.getMessage().split()[0]) for record in caplog.records]

    for expected in (7, 14):
        for _ in range(7):
            with socket.create_connection(("127.0.0.1", server.port)) as peer:
                peer.sendall(frame({}))
                all_that_it_says(peer)
        wait_for(partial(lambda count: sum(counts()) == count, expected), "all of them to be told")
    moments_s = [record.created for record in caplog.records]
    assert all(after - before > 1.4 for before, after in pairwise(moments_s))
