"""The proxies of `make chaos`, before a server that answers each Kafka frame with a test's bytes."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from chaos.links import CLIENTS, Cut, Faults, Links, cut_off
from harness.waiting import wait_for

NODE = 2
METADATA, FETCH = 3, 1


class Server:
    """Answers each request with its correlation id and `body`. A context manager."""

    def __init__(self) -> None:
        self.body = b"first"
        self.received: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._answer, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _answer(self, client: socket.socket) -> None:
        with suppress(OSError), client, client.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(*struct.unpack(">i", head))
                self.received.append(frame)
                client.sendall(framed(frame[4:8] + self.body))


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def request(correlation_id: int, api_key: int = FETCH, body: bytes = b"", client_id: bytes = b"me") -> bytes:
    return framed(struct.pack(">hhih", api_key, 12, correlation_id, len(client_id)) + client_id + body)


class Client:
    """A connection by way of the proxy."""

    def __init__(self, links: Links, server: Server, listener: str = "CLIENTS") -> None:
        port = links.port_before(NODE, listener, server.port)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def send(self, correlation_id: int, api_key: int = FETCH, body: bytes = b"") -> None:
        self.socket.sendall(request(correlation_id, api_key, body))

    def answer(self) -> tuple[int, bytes]:
        """(correlation id, body)."""
        (length,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(length)
        return struct.unpack_from(">i", frame)[0], frame[4:]

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = self.socket.recv(count - len(found))
            assert piece, f"the connection ended after {found!r}"
            found += piece
        return found

    def hears_nothing(self) -> bool:
        """No byte has come by now."""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1, socket.MSG_PEEK) is None
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(10)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def links(server: Server) -> Iterator[Links]:
    with Links(dict) as links:
        yield links


@pytest.fixture
def client(links: Links, server: Server) -> Iterator[Client]:
    client = Client(links, server)
    with client.socket:
        yield client


def test_requests_and_answers_pass(client: Client, links: Links, server: Server) -> None:
    client.send(1)
    client.send(2, body=b"x" * 200_000)
    assert [client.answer(), client.answer()] == [(1, b"first"), (2, b"first")]
    assert [len(frame) for frame in server.received] == [12, 200_012]
    assert links.seen == {(CLIENTS, NODE)}


def test_a_port_before_a_listener_stays_while_the_listener_behind_it_moves(links: Links, server: Server) -> None:
    nowhere = socket.create_server(("127.0.0.1", 0))
    port = links.port_before(NODE, "CLIENTS", nowhere.getsockname()[1])
    nowhere.close()
    assert links.port_before(NODE, "CLIENTS", server.port) == port
    assert links.bootstrap("CLIENTS") == f"127.0.0.1:{port}"
    client = Client(links, server)
    with client.socket:
        client.send(1)
        assert client.answer() == (1, b"first")


def test_a_node_that_does_not_listen_resets_its_client(links: Links) -> None:
    nowhere = socket.create_server(("127.0.0.1", 0))
    port = links.port_before(NODE, "CLIENTS", nowhere.getsockname()[1])
    nowhere.close()
    with pytest.raises(ConnectionResetError), socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.recv(1)


def test_requests_that_are_cut_come_when_the_link_is_healed(client: Client, links: Links, server: Server) -> None:
    client.send(1)
    client.answer()
    links.fail(Faults(cuts=frozenset({Cut(CLIENTS, NODE, requests=True)})))
    client.send(2)
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)
    assert len(server.received) == 1
    links.heal()
    client.socket.settimeout(10)
    assert client.answer() == (2, b"first")


def test_answers_that_are_cut_leave_the_request_done(client: Client, links: Links, server: Server) -> None:
    links.fail(Faults(cuts=frozenset({Cut(CLIENTS, NODE, requests=False)})))
    client.send(1)
    wait_for(lambda: server.received, "the server to see the request")
    assert client.hears_nothing()
    links.heal()
    assert client.answer() == (1, b"first")


def test_a_cut_of_other_links_is_not_ours(client: Client, links: Links) -> None:
    links.fail(Faults(cuts=frozenset({Cut(CLIENTS, 1, requests=True), Cut(1, NODE, requests=False)})))
    client.send(1)
    assert client.answer() == (1, b"first")


def test_answers_of_a_slow_node_are_late(client: Client, links: Links) -> None:
    links.fail(Faults(delays_s={NODE: 0.2}))
    began = time.monotonic()
    client.send(1)
    assert client.answer() == (1, b"first")
    assert time.monotonic() - began >= 0.2


def test_an_answer_ends_in_its_midst_with_a_reset(client: Client, links: Links, server: Server) -> None:
    server.body = b"x" * 100
    links.fail(Faults(reset_every={NODE: 2}))
    answers: list[bytes] = []

    def ask_until_reset() -> None:
        for number in range(50):
            client.send(number)
            answers.append(b"")
            while len(answers[-1]) < 108:
                answers[-1] += client.socket.recv(1000)

    with pytest.raises(ConnectionResetError):
        ask_until_reset()
    assert len(answers) > 1, "no answer came whole"
    assert len(answers[-1]) < 108


def test_a_node_of_another_mind_answers_metadata_as_before_and_all_else_as_it_is(
    client: Client, links: Links, server: Server
) -> None:
    client.send(1, METADATA, b"topic a")
    assert client.answer() == (1, b"first")
    links.fail(Faults(of_old=frozenset({NODE})))
    server.body = b"the second"
    for correlation_id, api_key, body in [(2, METADATA, b"topic a"), (3, METADATA, b"topic b"), (4, FETCH, b"")]:
        client.send(correlation_id, api_key, body)
    assert [client.answer() for _ in range(3)] == [(2, b"first"), (3, b"the second"), (4, b"the second")]
    links.heal()
    client.send(5, METADATA, b"topic a")
    assert client.answer() == (5, b"the second")


def test_all_clients_are_reset_at_once(client: Client, links: Links) -> None:
    client.send(1)
    client.answer()
    links.reset_clients()
    with pytest.raises(ConnectionResetError):
        client.socket.recv(1)


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="which process has a socket is told by Linux alone")
def test_a_connection_from_a_node_s_process_is_that_node_s(server: Server) -> None:
    with Links(lambda: {1: os.getpid()}, between_nodes=["REPLICATION"]) as links:
        links.fail(Faults(cuts=cut_off(NODE, (1, NODE)), delays_s={NODE: 9}))
        client = Client(links, server, "REPLICATION")
        with client.socket:
            client.send(1)
            wait_for(lambda: links.seen == {(1, NODE)}, "the connection to be seen")
            assert not server.received
            links.fail(Faults(delays_s={NODE: 9}))  # clients' answers are late, not other nodes'
            began = time.monotonic()
            assert client.answer() == (1, b"first")
            assert time.monotonic() - began < 9


def test_a_connection_between_nodes_from_no_node_ends(server: Server) -> None:
    with Links(dict, between_nodes=["REPLICATION"]) as links:
        client = Client(links, server, "REPLICATION")
        with client.socket, pytest.raises(ConnectionResetError):
            client.socket.recv(1)
        # A librdkafka client of another test may still look for its broker, whose port this server was given.
        assert not [frame for frame in server.received if b"rdkafka" not in frame]


def test_bytes_that_cannot_be_understood_pass_as_they_are(server: Server) -> None:
    with Links(dict, tls=["CLIENTS"]) as links:
        client = Client(links, server)
        with client.socket:
            client.send(1, METADATA)
            assert client.answer() == (1, b"first")


def test_a_node_that_is_cut_off_neither_hears_nor_is_heard() -> None:
    both = cut_off(1, (1, 2))
    assert both == {Cut(2, 1, True), Cut(2, 1, False), Cut(1, 2, True), Cut(1, 2, False)}
    assert cut_off(1, (1, 2), hears=True) == {Cut(2, 1, False), Cut(1, 2, True)}
    assert cut_off(1, (1, 2), is_heard=True) == {Cut(2, 1, True), Cut(1, 2, False)}
