"""Jars whose bytes are known beforehand, downloaded with pooch: no Java, no PySpark, no jar trusted on first use.

How the repository is reached (proxy, trusted certificates) is the affair of requests, which pooch uses: HTTPS_PROXY,
NO_PROXY, REQUESTS_CA_BUNDLE.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.progress import download_progress
from spark_kgroup.threads import in_a_thread

REPOSITORY: Final = "KGROUP_MAVEN_REPOSITORY"
"""The environment variable that names a repository instead of Maven Central."""

_MAVEN_CENTRAL: Final = "https://repo1.maven.org/maven2"

_AT_ONCE: Final = 4
"""Downloads at a time. Measured for the 47 jars of Kafka: 3.8 s one by one, 2.3 s with 4, no less with 8."""

_CONNECT_TIMEOUT_S: Final = 10.0
"""For each address of a host. A connection to Maven Central takes 0.1 s."""

_READ_TIMEOUT_S: Final = 20.0
"""Between two bytes of one jar."""

_SILENCE_MAX_S: Final = 60.0
"""Longer than two attempts take to fail on a silent host. It adds a bound on looking the host up."""

_FETCH_TIMEOUT_S: Final = 900.0
"""For 45 MB, a line of 50 KB/s. The jars that have come until then are kept, and the next fetch goes on from there."""

_LOOK_S: Final = 0.1
"""How often progress is shown."""

_CHUNK_BYTES: Final = 65_536
"""pooch's own 1 KiB costs a system call each."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


class Pin(NamedTuple):
    """A jar that is taken only as it is.

    Attributes:
        place: its path in a Maven repository, of which the last part is the name of the jar.
    """

    sha256: str
    size_bytes: int
    place: str

    @property
    def jar(self) -> str:
        """The jar's file name."""
        return self.place.rpartition("/")[2]


def read_pins(file: Path) -> list[Pin]:
    """The pins that `write_pins` has written."""
    rows = (line.split() for line in file.read_text().splitlines() if not line.startswith("#"))
    return [Pin(sha256, int(size_bytes), place) for sha256, size_bytes, place in rows]


def write_pins(file: Path, repository: Path) -> None:
    """Pin every jar in a folder that is laid out as a Maven repository."""
    pins = [
        Pin(compute_sha256(jar), jar.stat().st_size, jar.relative_to(repository).as_posix())
        for jar in sorted(repository.rglob("*.jar"), key=lambda jar: jar.name)
    ]
    lines = [f"{pin.sha256} {pin.size_bytes:>8} {pin.place}\n" for pin in pins]
    file.write_text("# SHA-256, bytes, place in a Maven repository; `make lock` writes this file.\n" + "".join(lines))


def compute_sha256(jar: Path) -> str:
    """The hash of a file, in hexadecimal digits."""
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(pins: Sequence[Pin], into: Path, name: str, repository: str | None) -> None:
    """Leave in `into` exactly the jars that are pinned. Those that are there and fit are kept.

    Args:
        pins: the jars to download.
        into: a folder, which need not exist.
        name: of the set, for messages.
        repository: URL of a Maven repository (https, http or file), None for Maven Central.

    Raises:
        EnvironmentProblem: pooch is not installed, or the repository cannot be reached, lacks a jar, or gives another
            one.
        OSError: `into` cannot be written.
    """
    into.mkdir(parents=True, exist_ok=True)
    for left_over in {path.name for path in into.iterdir()} - {pin.jar for pin in pins}:
        (into / left_over).unlink()
    fetch = _fetcher(pins, into, (repository or _MAVEN_CENTRAL).rstrip("/"))
    left = [pin.jar for pin in sorted(pins, key=lambda pin: pin.size_bytes)]  # taken from its end: the largest first
    try:
        with _silent_pooch(), download_progress(name, sum(pin.size_bytes for pin in pins)) as show:
            workers = [in_a_thread(lambda: _fetch_all(left, fetch), f"fetch {name}") for _ in range(_AT_ONCE)]
            errors = _await_end(workers, left, into, show)
            if errors:
                raise _as_told(errors, name, repository)
    finally:
        left.clear()  # a thread that is still under way, after Ctrl-C, begins no further jar


def _fetcher(pins: Sequence[Pin], into: Path, repository: str) -> Callable[[str], object]:
    """A function that fetches the jar of the name it is given."""
    try:
        import pooch

        # BEFORE the threads that fetch: where several import it at once, Python may find a deadlock among its modules.
        import_module("requests")
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            "Fetching jars needs pooch, which is not installed: pip install 'spark-kgroup[testing]'."
        ) from None
    store = pooch.create(
        path=into,
        base_url=repository,
        registry={pin.jar: pin.sha256 for pin in pins},
        urls={pin.jar: f"{repository}/{pin.place}" for pin in pins},
        retry_if_failed=1,
    )
    over_http = pooch.HTTPDownloader(chunk_size=_CHUNK_BYTES, timeout=(_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S))
    downloader = _copy if repository.startswith("file:") else over_http
    return lambda jar: store.fetch(jar, downloader=downloader)


def _copy(url: str, output_file: str, _: object) -> None:
    """A downloader for pooch, of a repository on this machine."""
    from requests import RequestException

    try:
        shutil.copyfile(url2pathname(urlsplit(url).path), output_file)
    except OSError as problem:
        raise RequestException(str(problem)) from problem


def _fetch_all(left: list[str], fetch: Callable[[str], object]) -> None:
    """The work of each thread: fetch one of the jars that are left, until none is."""
    while True:
        # Another thread may take the last jar between a look at the list and this.
        try:
            jar = left.pop()
        except IndexError:
            return
        fetch(jar)


def _await_end(
    workers: Sequence[Future[None]], left: list[str], into: Path, show: Callable[[int], None]
) -> list[BaseException]:
    """The errors of the threads, or none if all jars are there. After an error only jars under way are awaited."""
    from requests import Timeout

    began_at_s = grew_at_s = time.monotonic()
    seen_bytes = -1
    while True:
        ended, running = wait(workers, _LOOK_S)
        has_bytes, now_s = _bytes_in(into), time.monotonic()
        show(has_bytes)
        errors = [error for worker in ended if (error := worker.exception())]
        if errors:
            left.clear()
        if not running:
            return errors
        if has_bytes != seen_bytes:
            seen_bytes, grew_at_s = has_bytes, now_s
        if now_s > grew_at_s + _SILENCE_MAX_S:
            return [*errors, Timeout(f"no byte came for {_SILENCE_MAX_S:.0f} s")]
        if now_s > began_at_s + _FETCH_TIMEOUT_S:
            return [*errors, Timeout(f"it takes longer than {_FETCH_TIMEOUT_S:.0f} s")]


def _as_told(errors: Sequence[BaseException], name: str, repository: str | None) -> BaseException:
    """One error for all of them. An error of this machine, such as a full disk, stays as it is."""
    from requests import RequestException

    place = repository or "Maven Central"
    unreached = [error for error in errors if isinstance(error, RequestException)]  # some are ValueErrors, too
    refused = [error for error in errors if isinstance(error, ValueError) and not isinstance(error, RequestException)]
    if refused:
        differences = "\n  ".join(str(error).partition(". ")[0] for error in refused)
        message = (
            f"{place} gives other jars of {name} than this version was tested with, and none of those was kept. "
            f"Ask the operator of that repository, or name another in {REPOSITORY}.\n  {differences}"
        )
    elif unreached:
        message = (
            f"Could not fetch the jars of {name} (2 attempts). Check that this machine reaches {place} "
            f"(HTTPS_PROXY for a proxy, REQUESTS_CA_BUNDLE for certificates), or name a mirror in {REPOSITORY}. "
            f"Complete jars are kept for the next start.\n  {unreached[0]}"
        )
    else:
        return errors[0]
    return EnvironmentProblem(without_credentials(message))


def without_credentials(text: str) -> str:
    """Text without the user and password that a URL in it may have."""
    return _CREDENTIALS.sub("", text)


def _bytes_in(folder: Path) -> int:
    """Bytes of whole and of unfinished jars. A jar that gets its name at this moment may be missing."""
    sizes = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            sizes += path.stat().st_size
    return sizes


@contextmanager
def _silent_pooch() -> Iterator[None]:
    """Progress is shown here: pooch's own logger tells of each file."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
