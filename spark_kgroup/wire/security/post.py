"""One HTTP POST with a bound on all of it, through the proxy that the environment names.

`http.client` bounds each read alone, so a server that sends one byte a second holds a thread for days: here a timer
ends the connection. Proxies are chosen as libcurl chooses them, and so librdkafka: an application that uses both
clients reaches its endpoint from both, or from neither.
"""

from __future__ import annotations

import base64
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from spark_kgroup.wire import names

_PORTS: Final = {"http": 80, "https": 443}
_PROXY_PORT: Final = 1080
"""libcurl's default for a proxy (CURLOPT_PROXY)."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        variable: the environment variable that names it.
        authorization: value of the header Proxy-Authorization, if the variable names a user.
    """

    variable: str
    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port} ({self.variable})"

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the proxy alone, never for the endpoint."""
        return {"Proxy-Authorization": self.authorization} if self.authorization else {}


def proxy_for(url: SplitResult, environment: Mapping[str, str] | None = None) -> Proxy | None:
    """The proxy through which libcurl would ask `url`, or None (curl's manual, ENVIRONMENT).

    Raises:
        OSError: a proxy is named that is not of the kind spoken here.
    """
    known = os.environ if environment is None else environment
    direct = known.get("no_proxy") or known.get("NO_PROXY", "")
    if any(_is_meant(url.hostname or "", rule) for rule in direct.replace(",", " ").split()):
        return None
    # Not HTTP_PROXY: a web server (CGI) sets it to the value of a request's header `Proxy`.
    variables = [f"{url.scheme}_proxy", *(["HTTPS_PROXY"] if url.scheme == "https" else []), "all_proxy", "ALL_PROXY"]
    variable = next((name for name in variables if known.get(name)), None)
    return _proxy(variable, known[variable]) if variable else None


def _is_meant(host: str, rule: str) -> bool:
    """Whether a rule of NO_PROXY means `host`: `*`, a domain with all below it, an address, or a network of them."""
    name = rule.strip(".").lower()
    if rule == "*" or host == name or host.endswith(f".{name}"):
        return True
    try:
        return ip_address(host) in ip_network(rule, strict=False)
    except ValueError:  # either is a name
        return False


def _proxy(variable: str, value: str) -> Proxy:
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname, parts.port or _PROXY_PORT
    except ValueError:  # brackets that do not match, or a port that is none
        host = None
    if not host or parts.scheme != "http":
        raise OSError(f"the environment variable {variable} names no HTTP proxy: give http://HOST:PORT")
    authorization = None
    if parts.username is not None:
        who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(who.encode()).decode()
    return Proxy(variable, host, port, authorization)


def post(
    url: SplitResult,
    body: str,
    headers: Mapping[str, str],
    *,
    context: ssl.SSLContext | None,
    timeout_ms: int,
    bytes_max: int,
) -> tuple[int, bytes]:
    """Status and body of the answer. Blocks. Redirects are not followed.

    Args:
        url: its scheme and host have been checked.
        body: in ASCII.
        headers: without Host and Content-Length.
        context: for https.
        timeout_ms: bound on all of it, names and proxy included.
        bytes_max: the rest of a longer body is left unread.

    Raises:
        OSError: no server could be reached, or not in time.
        http.client.HTTPException: the answer is not HTTP.
    """
    assert url.hostname
    proxy = proxy_for(url)
    ends_at_s = time.monotonic() + timeout_ms / 1000
    host, port = url.hostname, url.port or _PORTS[url.scheme]
    stream = names.connect(*((proxy.host, proxy.port) if proxy else (host, port)), timeout_ms / 1000)
    stream.setblocking(True)  # the timer alone says when it is too late
    with closing(stream), _end_at(ends_at_s, stream, timeout_ms):
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        if proxy and context:
            _tunnel(stream, proxy, host, port)
        elif proxy:
            path = f"http://{_authority(host, port)}{path}"
            headers = {**headers, **proxy.headers}
        connection = (
            http.client.HTTPSConnection(host, port, context=context)
            if context
            else http.client.HTTPConnection(host, port)
        )
        with closing(context.wrap_socket(stream, server_hostname=host) if context else stream) as secured:
            connection.sock = secured
            connection.request("POST", path, body, {**headers, "Connection": "close"})
            with connection.getresponse() as response:
                return response.status, response.read(bytes_max)


@contextmanager
def _end_at(ends_at_s: float, stream: socket.socket, timeout_ms: int) -> Iterator[None]:
    """End `stream` at `ends_at_s`, in the midst of any read or write on it, and raise TimeoutError then."""
    overdue = threading.Event()
    handle = stream.dup()  # TLS takes over the descriptor

    def end() -> None:
        overdue.set()
        with suppress(OSError):  # it has ended by itself
            handle.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, ends_at_s - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    late = f"no whole answer within {timeout_ms} ms"
    try:
        yield
    except (OSError, http.client.HTTPException):
        if overdue.is_set():
            raise TimeoutError(late) from None
        raise
    finally:
        timer.cancel()
        timer.join()
        handle.close()
    if overdue.is_set():  # the bytes that were read by then look like a short answer
        raise TimeoutError(late)


def _tunnel(stream: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """Let the proxy connect us with the endpoint (RFC 9110, section 9.3.6)."""
    target = _authority(host, port)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *(f"{k}: {v}" for k, v in proxy.headers.items()), "", ""]
    stream.sendall("\r\n".join(lines).encode("ascii"))
    with http.client.HTTPResponse(stream, method="CONNECT") as answer:
        answer.begin()
        if answer.status != http.HTTPStatus.OK:
            raise OSError(f"{proxy} answered HTTP {answer.status} to CONNECT {target}")


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
