"""A web server of files that notes its requests, breaks off in the middle of a file, or keeps its clients waiting."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Listens on 127.0.0.1.

    Args:
        files: path -> content of each file. The test may change it while the server runs.

    Attributes:
        url: the base of all paths.
        asked: the paths of all requests, in their order.
        breaks: paths whose content ends in its middle, and the connection with it.
        breaks_once: the same, for the first request alone.
        held: paths whose content does not come before `release`.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.asked: list[str] = []
        self.breaks: set[str] = set()
        self.breaks_once: set[str] = set()
        self.held: set[str] = set()
        self._released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.removeprefix("/")
                server.asked.append(path)
                content = files.get(path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if path in server.held:
                    server._released.wait()
                broken = path in server.breaks | server.breaks_once
                server.breaks_once.discard(path)
                self.wfile.write(content[: len(content) // 2] if broken else content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="file server")

    def release(self) -> None:
        """Let all content come."""
        self._released.set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serves until the end of the block."""
        self._thread.start()
        try:
            yield
        finally:
            self.release()
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
