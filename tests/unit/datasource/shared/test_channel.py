"""The messages between driver and executors, and who may exchange them."""

import hashlib
import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from harness.accepting import accept
from harness.odd_servers import Listener

from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.limits import CHANNEL_BYTES_MAX, CHANNEL_HANDSHAKE_BYTES_MAX, CHANNEL_REQUEST_BYTES_MAX
from pyspark_kgroup.shared.channel import REGISTRY, Challenge, Channel, Frames, Message, connect, frame, new_key

Pair = tuple[socket.socket, socket.socket]
KEY = new_key()
MESSAGES: list[Message] = [{}, {"op": "bind", "scan": 7, "ranges": [["t", 0, 1, 2]]}, {"seat": "größe-0", "n": None}]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def length(count: int) -> bytes:
    return count.to_bytes(4, "big")


# ------------------------------------------------------------------------------------------------------------ frames


@pytest.mark.parametrize("cut", [1, 3, 10_000])
def test_messages_arrive_however_their_bytes_were_cut(cut: int) -> None:
    frames, seen = Frames(), []
    wire = b"".join(map(frame, MESSAGES))
    for start in range(0, len(wire), cut):
        frames.feed(wire[start : start + cut])
        while (message := frames.next()) is not None:
            seen.append(message)
    assert seen == MESSAGES


def test_a_frame_is_its_length_and_a_json_object() -> None:
    wire = frame({"op": "heartbeat", "id": 1})
    assert int.from_bytes(wire[:4], "big") == len(wire) - 4
    assert json.loads(wire[4:]) == {"op": "heartbeat", "id": 1}


@pytest.mark.parametrize("trusted", [False, True])
def test_a_length_beyond_the_bound_is_refused_before_its_first_byte_has_come(trusted: bool) -> None:
    most = CHANNEL_BYTES_MAX if trusted else CHANNEL_HANDSHAKE_BYTES_MAX
    within, beyond = Frames(), Frames()
    for frames in (within, beyond) if trusted else ():
        frames.trust()
    within.feed(length(most))
    assert within.next() is None
    beyond.feed(length(most + 1))
    with pytest.raises(ChannelEnded):
        beyond.next()


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b"nonsense",
        b"[1]",
        b"null",
        b'{"a":',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n":' + b"9" * 10_000 + b"}",
    ],
    ids=["utf-8", "nonsense", "array", "null", "cut", "deep", "deep objects", "huge number"],
)
def test_a_message_that_is_no_json_object_ends_the_channel(body: bytes) -> None:
    frames = Frames()
    frames.trust()
    frames.feed(length(len(body)) + body)
    with pytest.raises(ChannelEnded):
        frames.next()


def test_a_message_that_no_peer_would_take_is_not_sent() -> None:
    with pytest.raises(ChannelEnded, match="larger than any peer takes"):
        frame({"big": "x" * CHANNEL_BYTES_MAX})


def test_a_client_takes_larger_messages_than_it_may_send(beside: ThreadPoolExecutor) -> None:
    def answers_hugely(client: socket.socket) -> None:
        channel = accept(client, KEY)
        channel.send({"big": "x" * (CHANNEL_BYTES_MAX - 10)})
        with pytest.raises(ChannelEnded, match="announced"):
            channel.receive(30)
        channel.close()

    with Listener(answers_hugely) as listener:
        channel = connect(("127.0.0.1", listener.port), KEY)
        assert len(channel.receive(30)["big"]) == CHANNEL_BYTES_MAX - 10
        with suppress(ChannelEnded):  # it hangs up in the midst
            channel.send({"big": "x" * CHANNEL_REQUEST_BYTES_MAX})
        with pytest.raises(ChannelEnded):
            channel.receive(30)


def test_an_empty_frame_ends_the_channel() -> None:
    frames = Frames()
    frames.feed(length(0))
    with pytest.raises(ChannelEnded):
        frames.next()


# --------------------------------------------------------------------------------------------------------- handshake


def shake(nonce: str, key: bytes, server: str = "registry") -> Message:
    """The client's answer, as the module's text describes it, written a second time."""
    ours = "ab" * 32
    text = f"spark-kgroup channel 2: client of {server}".encode()
    proof = hmac.new(key, text + bytes.fromhex(nonce) + bytes.fromhex(ours), hashlib.sha256)
    return {"nonce": ours, "mac": proof.hexdigest()}


def test_a_client_with_the_key_is_let_in_and_gets_a_proof() -> None:
    challenge = Challenge(KEY, REGISTRY)
    response = shake(challenge.message["nonce"], KEY)
    text = b"spark-kgroup channel 2: server of registry"
    both = bytes.fromhex(challenge.message["nonce"] + response["nonce"])
    assert challenge.answer(response) == {"mac": hmac.new(KEY, text + both, hashlib.sha256).hexdigest()}


def test_a_recorded_answer_fails_since_each_challenge_is_new() -> None:
    first, second = Challenge(KEY, REGISTRY), Challenge(KEY, REGISTRY)
    recorded = shake(first.message["nonce"], KEY)
    first.answer(recorded)
    with pytest.raises(KeyRefused):
        second.answer(recorded)


def test_another_key_is_refused() -> None:
    challenge = Challenge(KEY, REGISTRY)
    with pytest.raises(KeyRefused):
        challenge.answer(shake(challenge.message["nonce"], new_key()))


@pytest.mark.parametrize("meant", ["sidecar /tmp/a", "", "registry "])
def test_a_proof_that_was_meant_for_another_server_is_refused(meant: str) -> None:
    challenge = Challenge(KEY, "registry")
    with pytest.raises(KeyRefused):
        challenge.answer(shake(challenge.message["nonce"], KEY, meant))


@pytest.mark.parametrize(
    "wrong",
    [{}, {"nonce": None}, {"nonce": ""}, {"nonce": "ab"}, {"nonce": "xy" * 32}, {"mac": 5}, {"mac": "ab" * 33}],
    ids=str,
)
def test_a_handshake_of_another_shape_is_refused(wrong: Message) -> None:
    challenge = Challenge(KEY, REGISTRY)
    right = shake(challenge.message["nonce"], KEY)
    with pytest.raises(KeyRefused):
        challenge.answer({**right, **wrong} if wrong else {})


def test_two_peers_with_the_key_exchange_messages_up_to_the_bound(beside: ThreadPoolExecutor) -> None:
    with Listener(echo) as listener:
        channel = connect(("127.0.0.1", listener.port), KEY)
        for message in [*MESSAGES, {"big": "x" * (CHANNEL_REQUEST_BYTES_MAX - 10)}]:
            sending = beside.submit(channel.send, message)
            assert channel.receive(30) == message
            sending.result()
        channel.close()


def echo(client: socket.socket) -> None:
    channel = accept(client, KEY)
    with suppress(ChannelEnded):
        while True:
            channel.send(channel.receive(30))


def test_a_unix_socket_serves_as_well(tmp_path: Path, beside: ThreadPoolExecutor) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        connecting = beside.submit(connect, tmp_path / "s", KEY)
        theirs = accept(listener.accept()[0], KEY)
        ours = connecting.result()
        ours.send({"op": "read"})
        assert theirs.receive(30) == {"op": "read"}
        ours.close()
        theirs.close()


def test_a_client_with_another_key_learns_a_nonce_and_no_more(pair: Pair, beside: ThreadPoolExecutor) -> None:
    server, client = pair
    accepting = beside.submit(accept, server, KEY)
    nonce = receive(client)["nonce"]
    client.sendall(frame(shake(nonce, new_key())))
    with pytest.raises(KeyRefused):
        accepting.result()
    assert client.recv(100) == b""
    assert server.fileno() == -1


@pytest.mark.parametrize("reply", ["their own code", "random", "nothing", "garbage"])
def test_a_server_without_the_key_is_not_believed(reply: str) -> None:
    def impostor(client: socket.socket) -> None:
        client.sendall(frame({"nonce": "cd" * 32}))
        response = receive(client)
        if reply == "their own code":  # the roles make it worthless
            client.sendall(frame({"mac": response["mac"]}))
        elif reply == "random":
            client.sendall(frame({"mac": "ef" * 32}))
        elif reply == "garbage":
            client.sendall(b"HTTP/1.1 400 Bad Request")

    with Listener(impostor) as listener, pytest.raises(KeyRefused):
        connect(("127.0.0.1", listener.port), KEY)


def test_a_man_in_the_middle_is_trusted_by_neither_side(pair: Pair, beside: ThreadPoolExecutor) -> None:
    """A client of the sidecar in folder /a, and the registry. Between them is a peer without the key."""
    server, to_server = pair
    answers: list[Message] = []

    def relay(client: socket.socket) -> None:
        client.sendall(frame(receive(to_server)))
        answers.append(receive(client))
        to_server.sendall(frame(answers[0]))
        client.recv(100)

    accepting = beside.submit(accept, server, KEY, REGISTRY)
    with Listener(relay) as listener:
        connecting = beside.submit(connect, ("127.0.0.1", listener.port), KEY, "sidecar /a")
        with pytest.raises(KeyRefused):
            accepting.result(30)
        listener.cut()
        with pytest.raises(KeyRefused):
            connecting.result(30)
    assert to_server.recv(100) == b""
    assert set(answers[0]) == {"nonce", "mac"}


def test_a_client_sends_no_proof_to_the_socket_of_another_user(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's listener can belong to another user. Without root, this process takes itself for another user."""
    listener = socket.socket(socket.AF_UNIX)
    folder = tmp_path_factory.mktemp("of-another")
    with listener:
        listener.bind(str(folder / "socket"))
        if os.geteuid() == 0:
            as_nobody(listener.listen)
        else:
            listener.listen()
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(KeyRefused, match="another user"):
            connect(folder / "socket", KEY)
        client, _ = listener.accept()
        with client:
            assert client.recv(100) == b""


def as_nobody(act: Callable[[], None]) -> None:
    """Do it in a process of another user: the caller of listen(2) is the peer (unix(7), SO_PEERCRED)."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def receive(sock: socket.socket) -> Message:
    """One message, read by hand."""
    count = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    message: Message = json.loads(sock.recv(count, socket.MSG_WAITALL))
    return message


# ------------------------------------------------------------------------------------------------------------ bounds


@pytest.fixture
def channels(pair: Pair, beside: ThreadPoolExecutor) -> tuple[Channel, socket.socket]:
    """A server's channel that was shaken, and its client's socket."""
    server, client = pair
    accepting = beside.submit(accept, server, KEY)
    client.sendall(frame(shake(receive(client)["nonce"], KEY)))
    assert set(receive(client)) == {"mac"}
    return accepting.result(), client


def test_no_byte_behind_a_message_is_read(channels: tuple[Channel, socket.socket]) -> None:
    """Behind a worker's request its socket is handed to another process."""
    channel, client = channels
    client.sendall(frame({"n": 1}) + b"ARROW1")
    assert channel.receive(30) == {"n": 1}
    assert channel.socket.recv(100, socket.MSG_DONTWAIT) == b"ARROW1"
    assert channel.socket.getblocking()


def test_a_message_of_which_a_part_came_in_time_can_be_awaited_again(channels: tuple[Channel, socket.socket]) -> None:
    channel, client = channels
    wire = frame({"n": 1})
    client.sendall(wire[:7])
    with pytest.raises(ChannelEnded, match="silent"):
        channel.receive(0.05)
    client.sendall(wire[7:])
    assert channel.receive(30) == {"n": 1}


def test_a_peer_that_hangs_up_in_the_midst_of_a_message_has_ended(channels: tuple[Channel, socket.socket]) -> None:
    channel, client = channels
    client.sendall(frame({"n": 1})[:7])
    client.close()
    with pytest.raises(ChannelEnded, match="hung up"):
        channel.receive(30)


def test_a_peer_that_does_not_read_has_ended(channels: tuple[Channel, socket.socket]) -> None:
    channel, _ = channels
    with pytest.raises(ChannelEnded):
        channel.send({"big": "x" * (CHANNEL_BYTES_MAX - 10)}, timeout_s=0.2)
    with pytest.raises(ChannelEnded):
        channel.send({})


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_a_handshake_takes_no_longer_than_its_bound(drips: bool) -> None:
    """Even if a byte comes now and then, from whichever side."""
    stop = threading.Event()

    def slow(peer: socket.socket) -> None:
        for byte in length(500) + b"{" * 500:
            if stop.wait(0.05):
                return
            if drips:
                peer.sendall(bytes([byte]))

    begun_s = time.monotonic()
    with Listener(slow) as listener:
        with pytest.raises(ChannelEnded, match="silent"):
            connect(("127.0.0.1", listener.port), KEY, timeout_s=0.3)
        with pytest.raises(ChannelEnded, match="silent"):
            accept(socket.create_connection(("127.0.0.1", listener.port)), KEY, timeout_s=0.3)
        stop.set()
    assert 0.6 <= time.monotonic() - begun_s < 25, "each would take 25 s"


def test_an_address_without_a_listener_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address in (("127.0.0.1", port), tmp_path / "absent", tmp_path / ("x" * 200)):
        with pytest.raises(ChannelEnded):
            connect(address, KEY)
