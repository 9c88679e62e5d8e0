"""Where OAUTHBEARER tokens come from and how long one serves, against a real HTTP endpoint."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme
from harness.fake_broker import on_a_loop, until

from spark_kgroup.errors import AuthenticationFailed, OptionError
from spark_kgroup.limits import TOKEN_TIMEOUT_MS
from spark_kgroup.testing import unsecured_token
from spark_kgroup.wire.security import oauth
from spark_kgroup.wire.security.oauth import ClientCredentials, TokenCache
from spark_kgroup.wire.security.tokens import Token

SECRET = "client's secret"


def living(value: str = "t", lifetime_s: float = 100) -> Token:
    return Token(value, time.time() + lifetime_s)


class Provider:
    """Hands out a test's outcomes in order, the last one for ever: a token, or an error to raise."""

    def __init__(self, *outcomes: Token | BaseException) -> None:
        self.calls = 0
        self._outcomes = outcomes

    def __call__(self) -> Token:
        outcome = self._outcomes[min(self.calls, len(self._outcomes) - 1)]
        self.calls += 1
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


# ----------------------------------------------------------------------------------------------------- the cache


@on_a_loop
async def test_a_token_serves_until_most_of_its_life_is_over() -> None:
    """Kafka's sasl.login.refresh.window.factor: at 80 %."""
    now_s = 0.0
    provider = Provider(Token("first", 100), Token("second", 200))
    cache = TokenCache(provider, lambda: now_s)
    for age_s, value in ((0, "first"), (79, "first"), (81, "second")):
        now_s = age_s
        assert (await cache.token()).value == value
    assert provider.calls == 2


@on_a_loop
async def test_all_who_ask_at_once_share_one_fetch() -> None:
    go_on = threading.Event()
    provider = Provider(living("t"))

    def slow() -> Token:
        go_on.wait(10)
        return provider()

    cache = TokenCache(slow)
    asking = [asyncio.create_task(cache.token()) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.wait(asking[:1])
    go_on.set()
    assert {token.value for token in await asyncio.gather(*asking[1:])} == {"t"}
    assert provider.calls == 1


@on_a_loop
async def test_a_failed_fetch_raises_an_error_of_its_own_for_each_caller() -> None:
    cache = TokenCache(Provider(ConnectionError("no route")))
    results = await asyncio.gather(*(cache.token() for _ in range(3)), return_exceptions=True)
    assert {type(error) for error in results} == {AuthenticationFailed}
    assert "the token function failed with ConnectionError: no route" in str(results[0])
    assert all(isinstance(error, AuthenticationFailed) and error.retriable for error in results)
    assert len({id(error) for error in results}) == 3


@on_a_loop
async def test_a_token_function_that_exits_fails_at_once_for_who_waits() -> None:
    """A thread takes SystemExit as its end, without a message."""
    async with asyncio.timeout(TOKEN_TIMEOUT_MS / 1000 / 2):
        with pytest.raises(AuthenticationFailed, match="failed with SystemExit: 1"):
            await TokenCache(Provider(SystemExit(1))).token()


@on_a_loop
async def test_the_token_at_hand_serves_while_no_new_one_is_to_be_had(caplog: pytest.LogCaptureFixture) -> None:
    """Tried again after 10 s (sasl.login.retry.backoff.max.ms), and final when it has expired."""
    now_s = 0.0
    provider = Provider(Token("first", 100), ConnectionError("away"))
    cache = TokenCache(provider, lambda: now_s)
    for age_s, calls in ((0, 1), (85, 2), (90, 2), (96, 3)):
        now_s = age_s
        assert (await cache.token()).value == "first"
        assert provider.calls == calls
    assert "The token at hand serves until it expires" in caplog.text
    assert "first" not in caplog.text
    now_s = 107
    with pytest.raises(AuthenticationFailed, match="away"):
        await cache.token()


@on_a_loop
async def test_a_function_that_never_returns_does_not_hold_up_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "TOKEN_TIMEOUT_MS", 50)
    go_on = threading.Event()
    threads: list[threading.Thread] = []

    def stuck() -> Token:
        threads.append(threading.current_thread())
        go_on.wait(10)
        return living()

    cache = TokenCache(stuck)
    for calls in (1, 2):
        with pytest.raises(AuthenticationFailed, match="no token within 50 ms") as raised:
            await cache.token()
        assert raised.value.retriable
        assert len(threads) == calls, "the next one tries anew"
    assert all(thread.daemon for thread in threads), "the process may end"
    go_on.set()
    await until(lambda: not any(thread.is_alive() for thread in threads))


@on_a_loop
async def test_who_gives_an_old_call_up_leaves_the_new_one_to_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A and B wait for a call that never returns. 2. A gives up. 3. C has a new one made. 4. B gives up."""
    go_on, calls = threading.Event(), count(1)

    def stuck() -> Token:
        next(calls)
        go_on.wait(10)
        return living()

    cache = TokenCache(stuck)

    async def ask(timeout_ms: int) -> asyncio.Task[Token]:
        monkeypatch.setattr(oauth, "TOKEN_TIMEOUT_MS", timeout_ms)
        asked = asyncio.create_task(cache.token())
        await asyncio.sleep(0)  # it waits
        return asked

    a, b = await ask(50), await ask(300)
    await asyncio.wait([a])
    c = await ask(10_000)
    await asyncio.wait([b])
    d = await ask(10_000)
    go_on.set()
    assert await c == await d
    assert next(calls) == 3, "two calls were made"
    for given_up in (a, b):
        assert isinstance(given_up.exception(), AuthenticationFailed)


@on_a_loop
async def test_a_new_token_that_no_clock_can_have_seen_expire_is_no_token() -> None:
    with pytest.raises(AuthenticationFailed, match="and that the expiry is given in seconds since the epoch"):
        await TokenCache(Provider(Token("t", 3_600))).token()


def test_a_new_token_is_left_to_the_broker_where_the_clock_is_an_hour_ahead(caplog: pytest.LogCaptureFixture) -> None:
    @on_a_loop
    async def scenario() -> None:
        tokens = Provider(*(Token(name, time.time() + 600) for name in "ab"))
        now_s = [time.time() + 3_600]
        cache = TokenCache(tokens, lambda: now_s[0])
        assert [(await cache.token()).value for _ in range(2)] == ["a", "a"]
        now_s[0] += 60
        assert (await cache.token()).value == "b", "soon there is another one"

    scenario()
    assert re.search(r"is new, and expired \d+ s ago by this machine's clock\. Check the clock", caplog.text)


# ------------------------------------------------------------------------------------------- client credentials

Answer = tuple[int, dict[str, str], bytes]


class Endpoint:
    """Answers each POST with a test's answer, and keeps the requests."""

    def __init__(self, answer: Callable[[], Answer], tls: SSLContext | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        asked = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked.append((self.path, dict(self.headers), parse_qs(form)))
                status, headers, body = answer()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log no request."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}/realms/r/token?tenant=7"


@contextmanager
def answering(answer: Callable[[], Answer] | Answer, tls: SSLContext | None = None) -> Iterator[Endpoint]:
    endpoint = Endpoint(answer if callable(answer) else lambda: answer, tls)
    thread = threading.Thread(target=endpoint.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.server.shutdown()
        thread.join(10)
        endpoint.server.server_close()


def reply(body: Any, status: int = 200, **headers: str) -> Answer:
    return status, headers, body if isinstance(body, bytes) else json.dumps(body).encode()


def credentials(url: str, **more: Any) -> ClientCredentials:
    return ClientCredentials(endpoint=url, client_id="me", client_secret=SECRET, **more)


def test_client_credentials_are_posted_as_rfc_6749_says() -> None:
    with answering(reply({"access_token": "abc", "expires_in": 300, "token_type": "Bearer"})) as endpoint:
        token = credentials(endpoint.url, scope="kafka read", extensions={"logicalCluster": "lkc"})()
    assert token.value == "abc"
    assert 290 < token.wall_expires_at_s - time.time() <= 300
    assert token.extensions == {"logicalCluster": "lkc"}
    ((path, headers, form),) = endpoint.requests
    assert path == "/realms/r/token?tenant=7"
    assert headers["Authorization"] == "Basic bWU6Y2xpZW50J3Mgc2VjcmV0"  # me:client's secret
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}


def test_without_expires_in_the_token_itself_says_when_it_expires() -> None:
    jwt = unsecured_token("me", 500)
    with answering(reply({"access_token": jwt})) as endpoint:
        token = credentials(endpoint.url)()
    assert 490 < token.wall_expires_at_s - time.time() <= 500


@pytest.mark.parametrize(
    ("answer", "retriable", "message"),
    [
        (
            reply({"error": "invalid_client", "error_description": "no such"}, 401),
            False,
            "HTTP 401: invalid_client: no",
        ),
        (reply({"error": "invalid_scope"}, 400), False, "HTTP 400: invalid_scope. Client 'me'. Check `sasl.oauth"),
        (reply(b"<html>", 403), False, "HTTP 403. Client 'me'"),
        (reply(b"oops", 503), True, "HTTP 503"),
        (reply(["error"], 500), True, "HTTP 500"),
        (reply(b"", 302, Location="http://127.0.0.1:9/elsewhere"), True, "HTTP 302"),
        (reply(b"no json"), False, "answered with no token and expiry"),
        (reply({"access_token": "opaque"}), False, "answered with no token and expiry"),
        (reply({"access_token": "a.b.c"}), False, "answered with no token and expiry"),
        (reply({"expires_in": 3}), False, "answered with no token and expiry"),
        (reply({"access_token": "t", "expires_in": "soon"}), False, "answered with no token and expiry"),
        (reply([1]), False, "answered with no token and expiry"),
    ],
)
def test_an_endpoint_s_answer_without_a_token_is_an_error_that_shows_no_secret(
    answer: Answer, retriable: bool, message: str
) -> None:
    with answering(answer) as endpoint:
        with pytest.raises(AuthenticationFailed, match=message) as error:
            credentials(endpoint.url)()
        assert len(endpoint.requests) == 1, "the secret is for this host only"
    assert error.value.retriable is retriable
    assert endpoint.url.split("?")[0] in str(error.value)
    assert SECRET not in str(error.value)


def test_an_endpoint_that_cannot_be_reached_may_come_back() -> None:
    with answering(reply({})) as endpoint:
        url = endpoint.url
    with pytest.raises(AuthenticationFailed, match=r"cannot be asked: .*refused") as raised:
        credentials(url)()
    assert raised.value.retriable


def test_an_endpoint_s_certificate_is_checked(tmp_path: Path) -> None:
    ca = trustme.CA()
    server = SSLContext(PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(server)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    with answering(reply({"access_token": "abc", "expires_in": 300}), tls=server) as endpoint:
        assert credentials(endpoint.url, ca_location=str(tmp_path / "ca.pem"))().value == "abc"
        assert credentials(endpoint.url, ca_pem=ca.cert_pem.bytes().decode())().value == "abc"
        with pytest.raises(AuthenticationFailed, match=r"not trusted here .*Set `https\.ca\.location`") as raised:
            credentials(endpoint.url)()
    assert not raised.value.retriable


@pytest.mark.parametrize(
    "url",
    ["", "idp.example/token", "ftp://idp/token", "https:///token", "http://idp:99999/token", "https://a..b/token"],
)
def test_an_endpoint_that_is_no_url(url: str) -> None:
    with pytest.raises(OptionError, match=r"`sasl\.oauthbearer\.token\.endpoint\.url` is not http"):
        credentials(url)


def test_no_secret_is_shown() -> None:
    shown = repr(credentials("https://user:pw@idp.example/token?key=k", ca_pem=None)) + repr(living("t0ken"))
    assert SECRET not in shown
    assert "t0ken" not in shown
    assert "pw" not in shown
