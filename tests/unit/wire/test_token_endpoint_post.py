"""Asking a token endpoint: one bound on all of it, and through the proxy that libcurl would take."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
from harness.fake_broker import on_a_loop, until
from harness.http_proxy import http_proxy
from harness.names import resolving, swallowing

from spark_kgroup.errors import AuthenticationFailed
from spark_kgroup.wire.security import oauth
from spark_kgroup.wire.security.oauth import ClientCredentials, TokenCache
from spark_kgroup.wire.security.post import proxy_for
from spark_kgroup.wire.security.tokens import Token

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

ANSWER = json.dumps({"access_token": "abc", "expires_in": 300}).encode()


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def credentials(url: str, **more: Any) -> ClientCredentials:
    return ClientCredentials(endpoint=url, client_id="me", client_secret="s3cret", **more)


# ---------------------------------------------------------------------------------------- one bound on all of it


def trickle(peer: socket.socket, start: bytes, more: bytes = b"x") -> None:
    """Say `start`, and then one byte after the other until the client is gone."""
    peer.sendall(start)
    peer.settimeout(0.02)
    while True:
        with suppress(TimeoutError):
            if peer.recv(65536) == b"":
                return
            continue
        peer.sendall(more)


def say_nothing(peer: socket.socket) -> None:
    trickle(peer, b"", b"")


TRICKLES = {
    "body": lambda peer: trickle(peer, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"),
    "chunked body": lambda peer: trickle(peer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n"),
    "headers": lambda peer: trickle(peer, b"HTTP/1.1 200 OK\r\nX-Long: "),
    "nothing": say_nothing,
}


@contextmanager
def answering(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[threading.Thread]]]:
    """HOST:PORT, and a thread for each connection that has not ended."""
    threads: list[threading.Thread] = []

    def served(peer: socket.socket) -> None:
        with peer, suppress(ConnectionError):
            serve(peer)

    def accept() -> None:
        with suppress(OSError):
            while True:
                thread = threading.Thread(target=served, args=(listener.accept()[0],))
                threads.append(thread)
                thread.start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", threads
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10)
            for thread in threads:
                thread.join(10)
            assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("how", TRICKLES)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_endpoint_that_trickles_is_given_up_in_time_and_no_connection_is_left(
    how: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth, "TOKEN_POST_TIMEOUT_MS", 1_200)

    @on_a_loop
    async def scenario() -> None:
        with answering(TRICKLES[how]) as (where, connections):
            cache = TokenCache(credentials(f"{scheme}://{where}/token"))

            def asked_after(attempts: int) -> bool:
                return len(connections) > attempts

            for attempt in range(2):
                with pytest.raises(AuthenticationFailed) as raised:
                    await cache.token()
                assert raised.value.retriable
                if scheme == "http" or how == "nothing":
                    assert "cannot be asked: no whole answer within 1200 ms" in str(raised.value)
                await until(partial(asked_after, attempt))
            await until(lambda: not any(thread.is_alive() for thread in connections))
            await until(lambda: not any(thread.name == "kgroup token" for thread in threading.enumerate()))

    scenario()


def test_an_endpoint_whose_name_or_address_is_silent_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "TOKEN_POST_TIMEOUT_MS", 100)
    refusal = pytest.raises(AuthenticationFailed, match=r"cannot be asked: the name 'idp\.test' was not resolved")
    with resolving(monkeypatch, {"idp.test": threading.Event()}), refusal:
        credentials("https://idp.test/token")()
    with swallowing("127.0.0.2") as port, pytest.raises(AuthenticationFailed, match="no connection was accepted"):
        credentials(f"https://127.0.0.2:{port}/token")()


@on_a_loop
async def test_functions_that_never_return_take_so_many_threads_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "TOKEN_TIMEOUT_MS", 20)
    monkeypatch.setattr(oauth, "TOKEN_CALLS_MAX", 3)
    go_on, called = threading.Event(), []

    def stuck() -> Token:
        called.append(threading.current_thread())
        go_on.wait(60)
        return Token("t", time.time() + 100)

    cache = TokenCache(stuck)
    for _ in range(3):
        with pytest.raises(AuthenticationFailed, match="no token within 20 ms"):
            await cache.token()
    for _ in range(3):
        with pytest.raises(AuthenticationFailed, match="3 calls of the token function have not returned") as raised:
            await cache.token()
        assert raised.value.retriable
    assert len(called) == 3
    go_on.set()
    await until(lambda: not any(thread.is_alive() for thread in called))
    monkeypatch.setattr(oauth, "TOKEN_TIMEOUT_MS", 10_000)
    assert (await cache.token()).value == "t"


# -------------------------------------------------------------------------------------------------------- proxies


@contextmanager
def endpoint(tls: SSLContext | None = None) -> Iterator[tuple[int, list[dict[str, str]]]]:
    """An endpoint's port on 127.0.0.1, and the headers of each request."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(dict(self.headers))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, *_: object) -> None:
            """Log no request."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield server.server_port, seen
        finally:
            server.shutdown()
            serving.join(10)


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(ca: trustme.CA) -> SSLContext:
    context = SSLContext(PROTOCOL_TLS_SERVER)
    ca.issue_cert("idp.test").configure_cert(context)
    return context


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
def test_an_https_endpoint_is_asked_through_the_proxy_and_its_certificate_is_checked(
    variable: str, ca: trustme.CA, server_tls: SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    with endpoint(server_tls) as (port, seen), http_proxy({"idp.test": port, "other.test": port}) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        assert credentials("https://idp.test/token", ca_location=str(tmp_path / "ca.pem"))().value == "abc"
        assert credentials("https://idp.test:8443/token", ca_pem=ca.cert_pem.bytes().decode())().value == "abc"
        assert proxy.asked == [("CONNECT", "idp.test:443"), ("CONNECT", "idp.test:8443")]
        assert [headers["Host"] for headers in seen] == ["idp.test", "idp.test:8443"]
        with pytest.raises(AuthenticationFailed, match=r"not trusted here .*Set `https\.ca\.location`"):
            credentials("https://idp.test/token")()
        other_name = credentials("https://other.test/token", ca_location=str(tmp_path / "ca.pem"))
        with pytest.raises(AuthenticationFailed, match=r"not trusted here .*[Hh]ostname mismatch"):
            other_name()
        assert len(seen) == 2


def test_an_endpoint_s_new_certificate_is_trusted_as_soon_as_its_ca_is_on_disk(
    ca: trustme.CA, server_tls: SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client asks for tokens for as long as a program runs."""
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    with endpoint(server_tls) as (port, _), http_proxy({"idp.test": port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        asked = credentials("https://idp.test/token", ca_location=str(tmp_path / "ca.pem"))
        assert asked().value == "abc"
        next_ca = trustme.CA()
        next_ca.issue_cert("idp.test").configure_cert(server_tls)
        with pytest.raises(AuthenticationFailed, match="not trusted here"):
            asked()
        next_ca.cert_pem.write_to_path(tmp_path / "ca.pem")
        assert asked().value == "abc"


def test_an_http_endpoint_is_asked_through_the_proxy_with_its_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint() as (port, seen), http_proxy({"idp.test": port}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://m%65:p%40ss@"))
        assert credentials("http://idp.test/token?tenant=7")().value == "abc"
        assert proxy.asked == [("POST", "http://idp.test:80/token?tenant=7")]
        assert proxy.authorizations == ["Basic bWU6cEBzcw=="]  # me:p@ss
        assert "Proxy-Authorization" not in seen[0]


def test_the_proxy_s_password_is_sent_to_the_proxy_alone(
    ca: trustme.CA, server_tls: SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with endpoint(server_tls) as (port, seen), http_proxy({"idp.test": port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("http://", "me:pw@"))
        assert credentials("https://idp.test/token", ca_pem=ca.cert_pem.bytes().decode())().value == "abc"
        assert proxy.authorizations == ["Basic bWU6cHc="]
        assert "Proxy-Authorization" not in seen[0]


def test_a_proxy_that_refuses_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_proxy({}, refusal=407) as proxy:
        where = proxy.url.removeprefix("http://")
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:hidden@{where}")
        message = rf"cannot be asked: the proxy {where} \(HTTPS_PROXY\) answered HTTP 407 to CONNECT idp\.test:443\."
        with pytest.raises(AuthenticationFailed, match=message) as refused:
            credentials("https://idp.test/token")()
    assert "hidden" not in str(refused.value)


def test_a_silent_proxy_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "TOKEN_POST_TIMEOUT_MS", 1_500)
    with answering(say_nothing) as (where, _):
        monkeypatch.setenv("HTTPS_PROXY", where)
        with pytest.raises(AuthenticationFailed, match="no whole answer within 1500 ms"):
            credentials("https://idp.test/token")()


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        ("https://idp.test/", {}, None),
        ("https://idp.test/", {"HTTPS_PROXY": "http://p:3128"}, ("p", 3128)),
        ("https://idp.test/", {"HTTPS_PROXY": "p:3128/"}, ("p", 3128)),
        ("https://idp.test/", {"HTTPS_PROXY": "p"}, ("p", 1080)),
        ("https://idp.test/", {"HTTPS_PROXY": "http://[::1]:3128"}, ("::1", 3128)),
        ("https://idp.test/", {"HTTPS_PROXY": "p:1", "https_proxy": "q:2"}, ("q", 2)),
        ("https://idp.test/", {"HTTPS_PROXY": "", "ALL_PROXY": "q:2"}, ("q", 2)),
        ("https://idp.test/", {"http_proxy": "p:1"}, None),
        ("http://idp.test/", {"http_proxy": "p:1"}, ("p", 1)),
        ("http://idp.test/", {"HTTP_PROXY": "p:1"}, None),
        ("http://idp.test/", {"HTTPS_PROXY": "p:1"}, None),
        ("https://idp.test/", {"ALL_PROXY": "p:1", "NO_PROXY": "*"}, None),
        ("https://idp.test/", {"ALL_PROXY": "p:1", "NO_PROXY": "a,idp.test"}, None),
        ("https://idp.test/", {"ALL_PROXY": "p:1", "no_proxy": "a .TEST"}, None),
        ("https://idp.test/", {"ALL_PROXY": "p:1", "NO_PROXY": "dp.test"}, ("p", 1)),
        ("https://10.1.2.3/", {"ALL_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8"}, None),
        ("https://10.1.2.3/", {"ALL_PROXY": "p:1", "NO_PROXY": "10.2.0.0/16,10.1.2.4"}, ("p", 1)),
        ("https://[::1]/", {"ALL_PROXY": "p:1", "NO_PROXY": "::1"}, None),
    ],
)
def test_the_proxy_is_the_one_that_libcurl_takes(
    url: str, environment: dict[str, str], expected: tuple[str, int] | None
) -> None:
    """curl(1), section ENVIRONMENT: lower case first. HTTP_PROXY is not read, since it may be a request's header."""
    proxy = proxy_for(urlsplit(url), environment)
    assert (proxy and (proxy.host, proxy.port)) == expected


@pytest.mark.parametrize("value", ["socks5://p:1", "https://p:1", "http://", "http://p:99999"])
def test_a_proxy_of_another_kind_is_an_error_that_names_the_variable(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(
        AuthenticationFailed, match="cannot be asked: the environment variable HTTPS_PROXY names no HTTP"
    ):
        credentials("https://idp.test/token")()
