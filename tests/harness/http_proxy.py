"""An HTTP proxy as companies have it: CONNECT for https, absolute URIs for http."""

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from socket import create_connection, socket
from urllib.parse import urlsplit


class HttpProxy:
    """Listens on 127.0.0.1 and knows the ports of hosts that only this proxy can resolve.

    Args:
        hosts: name -> the port on 127.0.0.1 where it is.
        refusal: an HTTP status for every request, or None to serve them.

    Attributes:
        asked: each request line's method and target.
        authorizations: each request's Proxy-Authorization, or None.
    """

    def __init__(self, hosts: Mapping[str, int], refusal: int | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.authorizations: list[str | None] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                self._seen()
                if refusal:
                    self.send_error(refusal)
                    return
                with create_connection(("127.0.0.1", hosts[self.path.rpartition(":")[0]])) as endpoint:
                    self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    self._pump(endpoint)
                self.close_connection = True

            def do_POST(self) -> None:
                self._seen()
                url = urlsplit(self.path)
                assert url.hostname
                connection = http.client.HTTPConnection("127.0.0.1", hosts[url.hostname], timeout=30)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                forwarded = {k: v for k, v in self.headers.items() if not k.startswith("Proxy-")}
                connection.request("POST", f"{url.path}?{url.query}", body, forwarded)
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _seen(self) -> None:
                proxy.asked.append((self.command, self.path))
                proxy.authorizations.append(self.headers["Proxy-Authorization"])

            def _pump(self, endpoint: socket) -> None:
                both = {self.connection: endpoint, endpoint: self.connection}
                with suppress(OSError):
                    while True:
                        for ready in select(list(both), [], [], 30)[0]:
                            if not (data := ready.recv(65536)):
                                return
                            both[ready].sendall(data)

            def log_message(self, *_: object) -> None:
                """Log no request: a test's output is not its log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def http_proxy(hosts: Mapping[str, int], refusal: int | None = None) -> Iterator[HttpProxy]:
    """A proxy that serves until the end."""
    proxy = HttpProxy(hosts, refusal)
    serving = threading.Thread(target=proxy.server.serve_forever, args=(0.01,), name="http proxy")
    serving.start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
        serving.join(10)
