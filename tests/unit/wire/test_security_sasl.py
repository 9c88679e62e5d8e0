"""SASL logins and their renewal, against a broker that speaks real bytes. SCRAM's other half is scramp's server."""

import asyncio
import base64
import hashlib
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
import scramp.core
from harness import kio_messages
from harness.fake_broker import HUNG_UP, NO_THROTTLE, FakeBroker, on_a_loop, until
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.primitive import i64Timedelta
from scramp import ScramMechanism

from spark_kgroup.errors import AuthenticationFailed, Disconnected, OptionError, RequestTimedOut
from spark_kgroup.model import MemberIdentity
from spark_kgroup.wire import connection as connection_module
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.security import secured
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import Mechanism, Security, SecuritySettings
from spark_kgroup.wire.security.tokens import Token

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

SECRET = 'p=a,ss "word" \\ ü'
FOREVER_S = 4e9


def login(mechanism: Mechanism = "PLAIN", **more: Any) -> Security:
    who: dict[str, Any] = {} if mechanism == "OAUTHBEARER" else {"username": "us,e=r", "password": SECRET}
    return load_security(SecuritySettings(protocol="SASL_PLAINTEXT", mechanism=mechanism, **who, **more))


def handshake(error: int = 0, mechanisms: tuple[str, ...] = ("PLAIN",)) -> Any:
    return kio_messages.SaslHandshakeResponse(error_code=KioErrorCode(error), mechanisms=mechanisms)


def authenticated(auth_bytes: bytes = b"", *, error: int = 0, message: str | None = None, lifetime_ms: int = 0) -> Any:
    return kio_messages.SaslAuthenticateResponse(
        error_code=KioErrorCode(error),
        error_message=message,
        auth_bytes=auth_bytes,
        session_lifetime=i64Timedelta.parse(timedelta(milliseconds=lifetime_ms)),
    )


def refused() -> Any:
    return authenticated(error=58, message="Authentication failed: Invalid username or password")


def beat(generation: int = 0) -> schema.Request:
    return messages.heartbeat("g", MemberIdentity(instance_id=None, member_id="m", generation=generation))


def alive(request: Any) -> Any:
    return kio_messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode(request.generation_id))


def code_of(response: schema.Response) -> int:
    assert isinstance(response, schema.HeartbeatResponse)
    return response.error_code


class Kafka:
    """Answers a broker's SASL requests, and heartbeats with their generation as the error code.

    Attributes:
        mechanism: told each of the client's messages, answers it.
        seen: the requests, in order: the mechanism's name, a message, or a heartbeat's generation.
    """

    def __init__(self, mechanism: Callable[[bytes], Any] = lambda _: authenticated()) -> None:
        self.mechanism = mechanism
        self.seen: list[Any] = []
        self.parked = asyncio.Event()
        self.parked.set()

    async def __call__(self, request: Any) -> Any:
        if hasattr(request, "mechanism"):
            self.seen.append(request.mechanism)
            return handshake()
        if hasattr(request, "auth_bytes"):
            self.seen.append(request.auth_bytes)
            return self.mechanism(request.auth_bytes)
        self.seen.append(request.generation_id)
        await self.parked.wait()
        return alive(request)


async def connect(broker: FakeBroker, security: Security, **more: Any) -> Connection:
    return await Connection.open(broker.address, client_id="test", security=security, **more)


# ---------------------------------------------------------------------------------------------------- mechanisms


@on_a_loop
async def test_plain_sends_user_and_password_after_a_handshake() -> None:
    """RFC 4616: NUL user NUL password. KIP-43: SaslHandshake names the mechanism first."""
    kafka = Kafka()
    async with FakeBroker(kafka) as broker, await connect(broker, login()):
        assert kafka.seen == ["PLAIN", b"\0us,e=r\0" + SECRET.encode()]


class ScramServer:
    """The broker's half of SCRAM. `impostor` answers without knowing the password."""

    def __init__(self, mechanism: str, password: str = SECRET, *, impostor: bool = False) -> None:
        known = ScramMechanism(mechanism)
        salted = known.make_auth_info(password, iteration_count=4096)
        self.users: list[str] = []
        self._server = known.make_server(lambda user: self.users.append(user) or salted)
        self._impostor = impostor

    def __call__(self, message: bytes) -> Any:
        if not self.users:
            self._server.set_client_first(message.decode())
            return authenticated(self._server.get_server_first().encode())
        if self._impostor:
            return authenticated(b"v=" + base64.b64encode(hashlib.sha256(b"?").digest()))
        self._server.set_client_final(message.decode())
        return authenticated(self._server.get_server_final().encode())


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_proves_the_password_without_sending_it(mechanism: Mechanism) -> None:
    @on_a_loop
    async def scenario() -> None:
        server = ScramServer(mechanism)
        kafka = Kafka(server)
        async with FakeBroker(kafka) as broker, await connect(broker, login(mechanism)) as connection:
            assert server.users == ["us,e=r"]
            assert len(kafka.seen) == 3
            assert not any(SECRET.encode() in message for message in kafka.seen[1:])
            assert code_of(await connection.call(beat(7))) == 7

    scenario()


@on_a_loop
async def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    """RFC 5802: the client MUST check the server's signature."""
    async with FakeBroker(Kafka(ScramServer("SCRAM-SHA-256", impostor=True))) as broker:
        with pytest.raises(AuthenticationFailed, match="the broker did not prove that it knows the password") as raised:
            await connect(broker, login("SCRAM-SHA-256"))
        assert not raised.value.retriable
        await until(lambda: not broker.open_connections)


@pytest.mark.parametrize("message", [b"", b"\xff\xfe", b"r=nonce,s=c2l4dGVlbiBieXRlcy4uLg==,i=4096", b"x" * 10_000])
def test_scram_from_a_broker_that_talks_nonsense(message: bytes) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker(Kafka(lambda _: authenticated(message))) as broker:
            with pytest.raises(AuthenticationFailed, match="SCRAM message or signature is wrong"):
                await connect(broker, login("SCRAM-SHA-512"))

    scenario()


@pytest.mark.parametrize(
    ("salt_bytes", "iterations", "message"),
    [
        (16, "1", "asks for 1 SCRAM iterations, and 4096 to 1000000 are accepted: create the user's SCRAM-SHA-256"),
        (16, "4095", "asks for 4095 SCRAM iterations"),
        (16, "1000001", "asks for 1000001 SCRAM iterations"),
        (16, "9" * 5000, "asks for 9{20} SCRAM iterations"),
        (11, "4096", "salt for this user has 11 bytes, and 12 are the least that is accepted"),
        (16, "-5", "message or signature is wrong"),
        (16, "", "message or signature is wrong"),
        (0, "4096", "message or signature is wrong"),
    ],
    ids=lambda value: str(value)[:8],
)
def test_a_scram_challenge_that_is_too_weak_or_too_costly_is_refused_and_named(
    salt_bytes: int, iterations: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scramp.core, "hi", lambda *_: pytest.fail("nothing is computed for it"))
    salt = base64.b64encode(b"s" * salt_bytes).decode()

    def challenge(client_first: bytes) -> Any:
        nonce = client_first.decode().rpartition("r=")[2]
        return authenticated(f"r={nonce}more,s={salt},i={iterations}".encode())

    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker(Kafka(challenge)) as broker:
            with pytest.raises(AuthenticationFailed, match=message):
                await connect(broker, login("SCRAM-SHA-256"))

    scenario()


@on_a_loop
async def test_while_scram_computes_other_connections_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker sets the number of iterations. A seat's heartbeat must not wait for them."""
    computing, go_on = threading.Event(), threading.Event()
    compute = scramp.core.hi

    def slow(*args: Any) -> bytes:
        computing.set()
        assert go_on.wait(30), "the event loop stood still"
        computed: bytes = compute(*args)
        return computed

    async with (
        FakeBroker(Kafka(ScramServer("SCRAM-SHA-256"))) as costly,
        FakeBroker(alive) as other,
        await Connection.open(other.address, client_id="test") as seat,
    ):
        monkeypatch.setattr(scramp.core, "hi", slow)
        connecting = asyncio.create_task(connect(costly, login("SCRAM-SHA-256")))
        await until(computing.is_set)
        assert code_of(await seat.call(beat(5))) == 5
        go_on.set()
        await (await connecting).close()


def test_a_token_travels_as_rfc_7628_says() -> None:
    token = Token("a.b-c_~+/==", FOREVER_S, {"logicalCluster": "lkc 1", "pool": "p"})
    message = b"n,,\x01auth=Bearer a.b-c_~+/==\x01logicalCluster=lkc 1\x01pool=p\x01\x01"
    assert token.initial_response() == message
    assert Token("abc", FOREVER_S).initial_response() == b"n,,\x01auth=Bearer abc\x01\x01"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (Token("", FOREVER_S), "is no token"),
        (Token("with space", FOREVER_S), "is no token"),
        (Token("x\x01auth=Bearer y", FOREVER_S), "is no token"),
        (Token("ok", FOREVER_S, {"auth": "x"}), "extension 'auth' cannot be sent"),
        (Token("ok", FOREVER_S, {"a1": "x"}), "extension 'a1' cannot be sent"),
        (Token("ok", FOREVER_S, {"a": "x\x01y"}), "extension 'a' cannot be sent"),
    ],
)
def test_a_token_that_no_broker_would_accept_is_not_sent(token: Token, message: str) -> None:
    with pytest.raises(AuthenticationFailed, match=message) as error:
        token.initial_response()
    assert not error.value.retriable
    assert not token.value or token.value not in str(error.value)


@on_a_loop
async def test_a_refused_token_is_an_error_in_the_broker_s_words() -> None:
    """RFC 7628, section 3.2.3: the server says why, and fails when the client has answered with 0x01."""

    def mechanism(message: bytes) -> Any:
        return refused() if message == b"\x01" else authenticated(b'{"status":"invalid_token"}')

    kafka = Kafka(mechanism)
    async with FakeBroker(kafka) as broker:
        with pytest.raises(AuthenticationFailed, match="OAUTHBEARER for our token"):
            await connect(broker, login("OAUTHBEARER", token=lambda: Token("t0ken", FOREVER_S)))
    assert kafka.seen[-1] == b"\x01"


@on_a_loop
async def test_a_refused_token_is_not_shown_again() -> None:
    """The signer of tokens may have changed its key: a token is refused though it lives."""
    made = count()
    security = login("OAUTHBEARER", token=lambda: Token(f"t{next(made)}", FOREVER_S))
    answers = iter([b"", b"", b"revoked", b"", b""])
    kafka = Kafka(lambda message: refused() if message == b"\x01" else authenticated(next(answers)))
    async with FakeBroker(kafka) as broker:
        for let_in in (True, True, False, True, True):
            if let_in:
                await (await connect(broker, security)).close()
            else:
                with pytest.raises(AuthenticationFailed):
                    await connect(broker, security)
    shown = [message.split(b"\x01")[1] for message in kafka.seen if isinstance(message, bytes) and message != b"\x01"]
    assert shown == [b"auth=Bearer t%d" % n for n in (0, 0, 0, 1, 1)]


# -------------------------------------------------------------------------------------------------------- refusals


@on_a_loop
async def test_a_wrong_password_is_final_and_the_error_has_the_user_but_not_the_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeBroker(Kafka(lambda _: refused())) as broker:
        with pytest.raises(AuthenticationFailed) as raised:
            await connect(broker, login())
    text = str(raised.value)
    assert f"{broker.address} refused PLAIN for user 'us,e=r': Authentication failed" in text
    assert "Check `sasl.username` and `sasl.password`" in text
    assert not raised.value.retriable
    assert SECRET not in text + repr(raised.value) + caplog.text


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (handshake(33, ("SCRAM-SHA-512", "OAUTHBEARER")), "this listener has OAUTHBEARER, SCRAM-SHA-512"),
        (handshake(33, ()), "this listener has none"),
        (handshake(34), "is a listener without SASL: check `security.protocol`"),
        (handshake(-1), "refused SaslHandshake with UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_handshake_that_is_refused_fails_the_login_for_good(answer: Any, message: str) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker(lambda _: answer) as broker:
            with pytest.raises(AuthenticationFailed, match=message) as error:
                await connect(broker, login())
            assert not error.value.retriable

    scenario()


@on_a_loop
async def test_a_login_refused_after_a_success_is_retried_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts may not have its users yet. Known, refused, refused for too long, known, refused."""
    security = login()
    answers = iter([authenticated(), refused(), refused(), authenticated(), refused()])
    async with FakeBroker(Kafka(lambda _: next(answers))) as broker:
        for retriable, grace_ms in ((None, 60_000), (True, 60_000), (False, 0), (None, 0), (True, 60_000)):
            monkeypatch.setattr(secured, "AUTHENTICATION_GRACE_MS", grace_ms)
            if retriable is None:
                await (await connect(broker, security)).close()
            else:
                with pytest.raises(AuthenticationFailed) as raised:
                    await connect(broker, security)
                assert raised.value.retriable is retriable
                assert "Invalid username or password" in str(raised.value)
                assert "The cluster accepted this client before, last at " in str(raised.value)


def test_characters_that_scram_forbids_are_an_option_error() -> None:
    with pytest.raises(OptionError, match=r"characters that SCRAM-SHA-256 does not allow"):
        load_security(
            SecuritySettings(protocol="SASL_SSL", mechanism="SCRAM-SHA-256", username="u", password="bell \x07")
        )


# ------------------------------------------------------------------------------------------------------- renewal


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session may be renewed as soon as it begins."""
    monkeypatch.setattr(connection_module, "REAUTHENTICATION_INTERVAL_MS", 0)


def sessions(*lifetimes_ms: int) -> Kafka:
    lifetimes = iter(lifetimes_ms)
    return Kafka(lambda _: authenticated(lifetime_ms=next(lifetimes)))


def lasting(lifetime_ms: int, _: bytes) -> Any:
    return authenticated(lifetime_ms=lifetime_ms)


async def overdue(connection: Connection) -> None:
    """Wait until the session should be renewed."""
    await until(lambda: asyncio.get_running_loop().time() >= connection._login._renew_at_s)


def make_overdue(connection: Connection) -> None:
    """Let the session be one that should be renewed now, however long the test took to come here."""
    connection._login._renew_at_s = asyncio.get_running_loop().time()


LOGGED_IN = ["PLAIN", b"\0us,e=r\0" + SECRET.encode()]


@on_a_loop
async def test_a_session_is_renewed_before_the_first_request_that_is_too_late_for_it(at_once: None) -> None:
    kafka = sessions(50, 3_600_000)
    async with FakeBroker(kafka) as broker, await connect(broker, login()) as connection:
        await overdue(connection)
        assert kafka.seen == LOGGED_IN, "an idle connection waits for its next request"
        assert code_of(await connection.call(beat(1))) == 1
        assert code_of(await connection.call(beat(2))) == 2
        assert kafka.seen == [*LOGGED_IN, *LOGGED_IN, 1, 2]
        assert broker.connections == 1


@on_a_loop
async def test_a_session_is_renewed_between_85_and_95_percent_of_it() -> None:
    """KIP-368."""
    renewals = []
    for lifetime_ms in (10_000, 0):
        async with FakeBroker(Kafka(partial(lasting, lifetime_ms))) as broker:
            for _ in range(20):
                connection = await connect(broker, login())
                renewals.append(connection._login._renew_at_s - asyncio.get_running_loop().time())
                await connection.close()
    long, never = renewals[:20], renewals[20:]
    assert all(8.2 < wait_s <= 9.5 for wait_s in long)
    assert max(long) - min(long) > 0.2, "jittered"
    assert set(never) == {float("inf")}


@on_a_loop
async def test_no_request_is_sent_between_the_end_of_a_session_and_the_moment_it_may_be_renewed() -> None:
    """A token with little of its life left begins such a session. Brokers refuse two renewals within a second."""
    answered_at_s = []

    def lasting_a_moment(_: bytes) -> Any:
        answered_at_s.append(asyncio.get_running_loop().time())
        return authenticated(lifetime_ms=50 if len(answered_at_s) == 1 else 3_600_000)

    kafka = Kafka(lasting_a_moment)
    async with FakeBroker(kafka) as broker, await connect(broker, login()) as connection:
        # Counted from here the session is over for both sides: the client counts from when it has the answer.
        over_at_s = asyncio.get_running_loop().time() + 0.05
        await until(lambda: asyncio.get_running_loop().time() > over_at_s)
        assert [code_of(await connection.call(beat(n))) for n in (1, 2)] == [1, 2]
        assert kafka.seen == [*LOGGED_IN, *LOGGED_IN, 1, 2]
        assert answered_at_s[1] - answered_at_s[0] > 1
        assert broker.connections == 1


@on_a_loop
async def test_a_request_that_waits_for_the_renewal_hears_at_once_that_the_connection_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has waited for less than its own bound, which is shorter than the time until the session may be renewed."""
    monkeypatch.setattr(connection_module, "REAUTHENTICATION_INTERVAL_MS", 60_000)  # the test does not wait for that
    async with (
        FakeBroker(sessions(1, 3_600_000)) as broker,
        await connect(broker, login(), request_timeout_ms=1_000) as connection,
    ):
        loop = asyncio.get_running_loop()
        await overdue(connection)
        held = [asyncio.create_task(connection.call(beat(n))) for n in (1, 2)]
        began_s = loop.time()
        await until(lambda: loop.time() > began_s + 1.3)
        assert not any(each.done() for each in held)
        await broker.stop()
        ended = await asyncio.gather(*held, return_exceptions=True)
        assert loop.time() < connection._login._renewable_at_s
        assert [type(each) for each in ended] == [Disconnected] * 2
        assert connection._login.renewing is None


@on_a_loop
async def test_a_parked_request_is_awaited_and_no_request_is_sent_behind_it(at_once: None) -> None:
    """A broker answers in order, and takes the SaslHandshake that comes first after a parked join.

    Sent behind it, the handshake would not be answered in its own, much shorter time.
    """
    kafka = sessions(3_600_000, 3_600_000)
    async with (
        FakeBroker(kafka) as broker,
        await connect(broker, login(), request_timeout_ms=1_000) as connection,
    ):
        kafka.parked.clear()
        parked = asyncio.create_task(connection.call(beat(1), timeout_ms=10_000))
        await until(lambda: 1 in kafka.seen)
        make_overdue(connection)
        behind = [asyncio.create_task(connection.call(beat(n), timeout_ms=10_000)) for n in (2, 3)]
        await until(lambda: connection._login.renewing)
        go_on_at_s = asyncio.get_running_loop().time() + 1.2
        await until(lambda: asyncio.get_running_loop().time() > go_on_at_s)
        kafka.parked.set()
        assert [code_of(answer) for answer in await asyncio.gather(parked, *behind)] == [1, 2, 3]
        assert kafka.seen == [*LOGGED_IN, 1, *LOGGED_IN, 2, 3]
        assert broker.connections == 1


def test_requests_that_waited_for_their_turn_are_held_back_too(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is sent between a SaslHandshake and its SaslAuthenticate: a broker would end the connection."""
    monkeypatch.setattr(connection_module, "IN_FLIGHT_MAX", 2)

    @on_a_loop
    async def scenario() -> None:
        kafka = sessions(3_600_000, 3_600_000)
        async with FakeBroker(kafka) as broker, await connect(broker, login()) as connection:
            kafka.parked.clear()
            calls = [asyncio.create_task(connection.call(beat(n))) for n in (1, 2, 3, 4)]
            await until(lambda: 1 in kafka.seen)
            make_overdue(connection)
            kafka.parked.set()
            assert [code_of(answer) for answer in await asyncio.gather(*calls)] == [1, 2, 3, 4]
            assert kafka.seen == [*LOGGED_IN, 1, 2, *LOGGED_IN, 3, 4]

    scenario()


@on_a_loop
async def test_a_renewal_that_is_refused_ends_the_connection(at_once: None) -> None:
    answers = iter([authenticated(lifetime_ms=1), refused(), refused()])
    security = login()
    async with FakeBroker(Kafka(lambda _: next(answers))) as broker, await connect(broker, security) as connection:
        await overdue(connection)
        results = await asyncio.gather(*(connection.call(beat(n)) for n in (1, 2)), return_exceptions=True)
        assert [type(result) for result in results] == [AuthenticationFailed] * 2
        assert results[0] is not results[1]
        assert all(isinstance(result, AuthenticationFailed) and result.retriable for result in results), (
            "who was known may come back for a while"
        )
        assert connection.closed


@on_a_loop
async def test_a_renewal_outlives_the_caller_that_began_it(at_once: None) -> None:
    go_on = asyncio.Event()
    kafka = sessions(1, 3_600_000)

    async def slow(request: Any) -> Any:
        if len(kafka.seen) == 3:  # the second SaslAuthenticate
            await go_on.wait()
        return await kafka(request)

    async with FakeBroker(slow) as broker, await connect(broker, login()) as connection:
        await overdue(connection)
        first = asyncio.create_task(connection.call(beat(1)))
        await until(lambda: len(kafka.seen) == 3)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(connection.call(beat(2)))
        await asyncio.sleep(0)
        go_on.set()
        assert code_of(await second) == 2
        assert kafka.seen == [*LOGGED_IN, *LOGGED_IN, 2]


@on_a_loop
async def test_a_request_waits_for_a_renewal_no_longer_than_for_its_answer(at_once: None) -> None:
    answers = iter([authenticated(lifetime_ms=1)])
    async with (
        FakeBroker(Kafka(lambda _: next(answers, None))) as broker,
        await connect(broker, login()) as connection,
    ):
        await overdue(connection)
        with pytest.raises(RequestTimedOut, match="Heartbeat waited 50 ms for the SASL session to be renewed"):
            await connection.call(beat(1), timeout_ms=50)
        assert connection.closed


@on_a_loop
async def test_who_waits_for_a_renewal_hears_that_the_connection_was_closed(at_once: None) -> None:
    answers = iter([authenticated(lifetime_ms=1)])
    async with (
        FakeBroker(Kafka(lambda _: next(answers, None))) as broker,
        await connect(broker, login()) as connection,
    ):
        await overdue(connection)
        waiting = asyncio.create_task(connection.call(beat(1)))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(Disconnected, match="was closed here"):
            await waiting


@on_a_loop
async def test_a_broker_that_hangs_up_instead_of_renewing(at_once: None) -> None:
    answers = iter([authenticated(lifetime_ms=1), HUNG_UP])
    async with FakeBroker(Kafka(lambda _: next(answers))) as broker, await connect(broker, login()) as connection:
        await overdue(connection)
        with pytest.raises(Disconnected):
            await connection.call(beat(1))
