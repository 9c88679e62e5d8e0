"""One connection: first contact, logins, and every way in which an answer may not be one."""

import socket
import ssl
import threading
from datetime import timedelta
from pathlib import Path
from select import select
from typing import Any

import pytest
import trustme
from harness import kio_messages
from harness.fake_broker import HUNG_UP, Raw
from harness.fetch_broker import FetchBroker, answering
from harness.waiting import wait_for
from kio.schema.errors import ErrorCode
from kio.static.primitive import i64Timedelta

from pyspark_kgroup.executor.native import broker_connection as module
from pyspark_kgroup.executor.native import fetch_messages
from pyspark_kgroup.executor.native.broker_connection import AnswerMemory, Broker, BrokerConnection
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity, connection_security
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.shared.token_callback import CALLBACK
from spark_kgroup.errors import OptionError

PLAIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "us",
    "sasl.password": "hush",
}


def connect(broker: FetchBroker, config: dict[str, str] | None = None, *, by_id: bool = True) -> BrokerConnection:
    security = connection_security(config) if config else ConnectionSecurity()
    return BrokerConnection.open(broker.address, "me", security, by_id=by_id)


def ask_to_fetch(connection: BrokerConnection) -> None:
    wanted = [fetch_messages.Wanted("t", 0, b"i" * 16, 0, 0, -1)]
    bounds = fetch_messages.Bounds(500, 1, 1 << 20, 1 << 20)
    connection.ask_to_fetch(fetch_messages.fetch_request(17, wanted, bounds, read_committed=False))


def fetch(connection: BrokerConnection, memory: AnswerMemory | None = None) -> memoryview:
    ask_to_fetch(connection)
    memory = memory or AnswerMemory()
    while (answer := connection.take_fetched(memory)) is None:
        pass
    return answer


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_MS", 100)
    monkeypatch.setattr(module, "FETCH_CONNECT_MS", 300)


# -------------------------------------------------------------------------------------------------------- first contact


@pytest.mark.parametrize(
    ("versions", "by_id", "spoken"),
    [((4, 17), True, 17), ((4, 18), True, 17), ((0, 13), True, 13), ((4, 17), False, 12), ((4, 12), True, 12)],
)
def test_the_newest_version_of_fetch_that_both_speak_is_taken_and_names_topics_where_ids_are_not_known(
    versions: tuple[int, int], by_id: bool, spoken: int
) -> None:
    with FetchBroker(lambda _: None, versions=versions) as broker:
        connection = connect(broker, by_id=by_id)
        assert connection.fetch_version == spoken
        connection.close()


@pytest.mark.parametrize(
    ("versions", "by_id", "why"),
    [((0, 11), True, "Fetch in versions 0 to 11"), ((18, 20), True, "18 to 20"), ((13, 17), False, "13 to 17")],
)
def test_a_broker_without_a_version_in_common_is_unusual(versions: tuple[int, int], by_id: bool, why: str) -> None:
    """It has the same versions at the next read, so the reason is told once, not with each read."""
    with (
        FetchBroker(lambda _: None, versions=versions) as broker,
        pytest.raises(FallbackToLibrdkafka, match=why) as fallback,
    ):
        connect(broker, by_id=by_id)
    assert fallback.value.lasting


def test_a_broker_without_fetch_is_unusual() -> None:
    with FetchBroker(lambda _: None, versions=None) as broker, pytest.raises(FallbackToLibrdkafka, match="no Fetch"):
        connect(broker)


def test_an_address_without_a_listener_is_unusual() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(FallbackToLibrdkafka, match=rf"127.0.0.1:{port}: .*refused"):
        BrokerConnection.open(Broker("127.0.0.1", port), "me", ConnectionSecurity(), by_id=True)
    with pytest.raises(FallbackToLibrdkafka, match=r"no-such-host\.invalid:9092"):
        BrokerConnection.open(Broker("no-such-host.invalid", 9092), "me", ConnectionSecurity(), by_id=True)
    with pytest.raises(FallbackToLibrdkafka, match="label"):
        BrokerConnection.open(Broker("x" * 64 + ".example", 9092), "me", ConnectionSecurity(), by_id=True)


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_accepts_and_stays_silent_is_unusual_within_the_bound() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(FallbackToLibrdkafka, match="did not answer in time"),
    ):
        BrokerConnection.open(Broker(*silent.getsockname()[:2]), "me", ConnectionSecurity(), by_id=True)


@pytest.mark.usefixtures("impatient")
def test_a_name_that_is_looked_up_for_ever_is_unusual_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: done.wait(60))
    with pytest.raises(FallbackToLibrdkafka, match="did not answer in time"):
        BrokerConnection.open(Broker("slow.example", 9092), "me", ConnectionSecurity(), by_id=True)
    done.set()


# -------------------------------------------------------------------------------------------------------------- answers


def test_an_answer_is_received_whole_into_memory_that_is_used_again() -> None:
    records = [b"a" * 300_000, b"b" * 200_000, b"c" * 100]
    memory = AnswerMemory()
    with FetchBroker(answering(lambda _, __: records.pop(0))) as broker:
        connection = connect(broker)
        first = fetch(connection, memory)
        used = first.obj
        assert bytes(first).count(b"a") >= 300_000
        del first
        second = fetch(connection, memory)
        assert second.obj is used
        held = second[-200_000:]
        content = bytes(held)
        third = fetch(connection, memory)
        assert third.obj is not used, "somebody still reads the second answer"
        assert bytes(held) == content
        assert b"c" * 100 in bytes(third)
        connection.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HUNG_UP, "closed the connection"),
        (Raw(b"\0\0\0\x03abc"), "an answer of 3 bytes"),
        (Raw(b"HTTP/1.1 400 Bad Request"), "an answer of 1213486160 bytes"),
        (Raw(b"\xff\xff\xff\xff"), "an answer of -1 bytes"),
        (b"\0\0\0\x09\0", "request 9 where 2 was due"),
    ],
)
def test_bytes_that_are_no_answer_are_unusual(answer: Any, why: str) -> None:
    with FetchBroker(lambda _: answer) as broker:
        connection = connect(broker)
        with pytest.raises(FallbackToLibrdkafka, match=f"{broker.address}.*{why}"):
            fetch(connection)
        connection.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("begun", [b"", b"\0\0", b"\0\0\0\x20abc"])
def test_an_answer_that_does_not_come_or_not_to_its_end_is_unusual(begun: bytes) -> None:
    with FetchBroker(lambda _: Raw(begun)) as broker:
        connection = connect(broker)
        with pytest.raises(FallbackToLibrdkafka, match="did not answer in time"):
            fetch(connection)
        connection.close()


def test_a_connection_that_has_ended_is_unusual_when_it_is_used() -> None:
    with FetchBroker(lambda _: None) as broker:
        connection = connect(broker)
        broker.stop()
        with pytest.raises(FallbackToLibrdkafka):
            fetch(connection)
        connection.close()


# --------------------------------------------------------------------------------------------------------- TLS and SASL


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    return context


def test_tls_is_spoken_as_the_properties_say(ca: trustme.CA, server_tls: ssl.SSLContext) -> None:
    trusted = {"security.protocol": "SSL", "ssl.ca.pem": ca.cert_pem.bytes().decode()}
    with FetchBroker(answering(lambda _, __: b"x" * 300_000), tls=server_tls) as broker:
        connection = connect(broker, trusted)
        assert bytes(fetch(connection)).count(b"x") >= 300_000
        connection.close()
        with pytest.raises(FallbackToLibrdkafka, match="certificate verify failed"):
            connect(broker, {**trusted, "ssl.ca.pem": trustme.CA().cert_pem.bytes().decode()})
    with pytest.raises(OptionError, match=r"ssl\.ca\.location"):
        connection_security({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"})


def test_a_new_connection_of_the_same_reader_trusts_the_ca_that_is_on_disk_by_then(
    ca: trustme.CA, tmp_path: Path
) -> None:
    """A seat's server lives for as long as its query."""
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(server_tls)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    security = connection_security({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")})
    with FetchBroker(answering(lambda _, __: b""), tls=server_tls) as broker:
        BrokerConnection.open(broker.address, "me", security, by_id=True).close()
        next_ca = trustme.CA()
        next_ca.issue_cert("127.0.0.1").configure_cert(server_tls)
        with pytest.raises(FallbackToLibrdkafka, match="certificate verify failed"):
            BrokerConnection.open(broker.address, "me", security, by_id=True)
        next_ca.cert_pem.write_to_path(tmp_path / "ca.pem")
        BrokerConnection.open(broker.address, "me", security, by_id=True).close()


def test_answers_that_take_turns_come_whole_into_one_memory_as_select_reports_them(
    monkeypatch: pytest.MonkeyPatch, ca: trustme.CA, server_tls: ssl.SSLContext
) -> None:
    """`select` does not tell of bytes that TLS has decrypted already. Neither answer is put over the other."""
    monkeypatch.setattr(module, "FETCH_TURN_MS", 0)
    trusted = {"security.protocol": "SSL", "ssl.ca.pem": ca.cert_pem.bytes().decode()}
    contents = [b"x" * 300_000, b"y" * 300_000]
    with FetchBroker(answering(lambda _, __: contents.pop(0)), tls=server_tls) as broker:
        memory, waiting = AnswerMemory(), [connect(broker, trusted) for _ in range(2)]
        connections, answers, turns = list(waiting), [], 0
        for connection in connections:
            ask_to_fetch(connection)
        while waiting:
            readable, _, _ = select(waiting, [], [], 60)
            assert readable, "nothing more comes"
            for connection in readable:
                turns += 1
                answer = connection.take_fetched(memory)
                if answer is not None:
                    waiting.remove(connection)
                    answers.append(bytes(answer))
        assert sorted(max(answer.count(b"x"), answer.count(b"y")) for answer in answers) == [300_000, 300_000]
        assert turns > 10
        for connection in connections:
            connection.close()


class Logins:
    """The broker's half of SASL: the clients' messages, and the answers to them."""

    def __init__(self, error: int = 0, lifetime_ms: int = 0) -> None:
        self.messages: list[Any] = []
        self._error = error
        self._lifetime_ms = lifetime_ms

    def __call__(self, request: Any) -> Any:
        if hasattr(request, "mechanism"):
            self.messages.append(request.mechanism)
            known = request.mechanism in ("PLAIN", "OAUTHBEARER")
            return kio_messages.SaslHandshakeResponse(error_code=ErrorCode(0 if known else 33), mechanisms=("PLAIN",))
        self.messages.append(request.auth_bytes)
        return kio_messages.SaslAuthenticateResponse(
            error_code=ErrorCode(self._error),
            error_message=None,
            auth_bytes=b"",
            session_lifetime=i64Timedelta.parse(timedelta(milliseconds=self._lifetime_ms)),
        )


def test_a_login_is_said_in_saslhandshake_and_saslauthenticate() -> None:
    logins = Logins()
    with FetchBroker(logins) as broker:
        connection = connect(broker, PLAIN)
        assert logins.messages == ["PLAIN", b"\0us\0hush"]
        assert not connection.session_ends
        connection.close()


def test_a_session_that_ends_says_so_before_it_does() -> None:
    with FetchBroker(Logins(lifetime_ms=3_600_000)) as broker:
        connection = connect(broker, PLAIN)
        assert not connection.session_ends
        connection.close()
    with FetchBroker(Logins(lifetime_ms=1)) as broker:
        connection = connect(broker, PLAIN)
        wait_for(lambda: connection.session_ends, "the end of a session of 1 ms")
        connection.close()


@pytest.mark.parametrize(
    ("error", "mechanism", "why"),
    [(58, "PLAIN", "SASL_AUTHENTICATION_FAILED"), (0, "SCRAM-SHA-256", "UNSUPPORTED_SASL_MECHANISM")],
)
def test_a_login_that_is_refused_is_unusual_and_shows_no_secret(error: int, mechanism: str, why: str) -> None:
    with FetchBroker(Logins(error)) as broker, pytest.raises(FallbackToLibrdkafka, match=why) as problem:
        connect(broker, {**PLAIN, "sasl.mechanism": mechanism})
    assert "hush" not in str(problem.value)


def test_a_scram_server_that_makes_no_sense_is_unusual() -> None:
    def anything(request: Any) -> Any:
        answer = Logins()(request)
        return (
            answer
            if hasattr(request, "auth_bytes")
            else kio_messages.SaslHandshakeResponse(error_code=ErrorCode(0), mechanisms=("SCRAM-SHA-256",))
        )

    with FetchBroker(anything) as broker, pytest.raises(FallbackToLibrdkafka, match="did not prove"):
        connect(broker, {**PLAIN, "sasl.mechanism": "SCRAM-SHA-256"})


def with_tokens() -> ConnectionSecurity:
    return connection_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            CALLBACK: "harness.tokens:token_for",
            "sasl.oauthbearer.config": "alice",
        }
    )


def test_one_token_serves_several_connections_while_it_lives() -> None:
    logins, security = Logins(), with_tokens()
    with FetchBroker(logins) as broker:
        for _ in range(2):
            BrokerConnection.open(broker.address, "me", security, by_id=True).close()
    assert [each for each in logins.messages if each == "OAUTHBEARER"] == ["OAUTHBEARER"] * 2
    first, second = (each for each in logins.messages if each != "OAUTHBEARER")
    assert first == second
    assert b"auth=Bearer " in first


def test_a_token_that_was_refused_is_not_sent_again() -> None:
    refusing, accepting, security = Logins(58), Logins(), with_tokens()
    with FetchBroker(refusing) as broker, pytest.raises(FallbackToLibrdkafka):
        BrokerConnection.open(broker.address, "me", security, by_id=True)
    with FetchBroker(accepting) as broker:
        BrokerConnection.open(broker.address, "me", security, by_id=True).close()
    assert refusing.messages[1] != accepting.messages[1]
