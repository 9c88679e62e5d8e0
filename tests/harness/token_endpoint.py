"""A token endpoint as an identity provider has it, for OIDC client credentials (RFC 6749, section 4.4)."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from spark_kgroup.testing import unsecured_token


@contextmanager
def token_endpoint(client_id: str, client_secret: str, *, lifetime_s: float = 3600) -> Iterator[str]:
    """Yields its URL. It gives the client a token in the client's own name, and refuses all other clients."""
    expected = "Basic " + base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            if self.headers["Authorization"] != expected:
                self._answer(401, {"error": "invalid_client"})
            elif form.get("grant_type") != ["client_credentials"]:
                self._answer(400, {"error": "unsupported_grant_type"})
            else:
                token = unsecured_token(client_id, lifetime_s)
                self._answer(200, {"access_token": token, "expires_in": lifetime_s, "token_type": "Bearer"})

        def _answer(self, status: int, body: dict[str, object]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log no request: a test's output is not its log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,), name="token endpoint")
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            serving.join(10)
