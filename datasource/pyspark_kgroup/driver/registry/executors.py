"""What a query knows of its executors, through its registry. A query without a registry knows nothing of them.

Runs on: driver, in the stream-reader process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark_kgroup.driver.registry.reporting import Counts
from pyspark_kgroup.driver.registry.seat_bindings import Home, Scan
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.plan import NO_LIMIT
from pyspark_kgroup.options.parser import SourceOptions
from pyspark_kgroup.shared.tickets import Mode, OffsetRange, Position, RegistryAccess, SidecarAddress, TopicSize

if TYPE_CHECKING:
    from pyspark_kgroup.driver.registry.registry import Registry
    from pyspark_kgroup.driver.registry.server import RegistryServer
    from pyspark_kgroup.shared.application_key import ApplicationKey

_LOOPBACK: Final = "127.0.0.1"
"""Where the registry listens if the query stays on this host, so that no other host can reach it."""


class Executors:
    """The executors of one query. Without a registry, nothing is known of them, and tickets are bound when planned.

    Spark's thread uses it. The group's thread asks it for homes and racks alone, when seats join and commit.

    Args:
        options: of the query.
        bounded: under AvailableNow.
        on_durable: called with the digest of a batch's end when Spark's commit log has the batch.
    """

    def __init__(self, options: SourceOptions, *, bounded: bool, on_durable: Callable[[str], None]) -> None:
        self._options = options
        self._bounded = bounded
        self._on_durable = on_durable
        self._registry: Registry | None = None
        self._server: RegistryServer | None = None
        self._key: ApplicationKey | None = None

    def start(
        self, seats: Sequence[str], remembered: Mapping[str, int], *, on_spark: bool, on_this_host: Callable[[], bool]
    ) -> bool:
        """Start the registry that executors ask which seat to read, and its server.

        Under AvailableNow without a limit one batch reads all: a sidecar would take longer to start than it saves. On
        Windows a sidecar cannot run.

        Args:
            seats: their instance ids.
            remembered: topic -> bytes of its records, as an earlier run has seen them.
            on_spark: whether this process is a stream reader of Spark's, beside others of its application.
            on_this_host: tells whether the query stays on this host.

        Returns:
            Whether there is a registry: not if executors are not to fetch ahead.
        """
        one_batch = self._bounded and self._options.limit == NO_LIMIT
        if not self._options.prefetch_bytes or one_batch or os.name == "nt":
            return False
        # Imported while the seats join: that takes 16 ms (measured).
        from pyspark_kgroup.driver.registry.registry import Registry
        from pyspark_kgroup.driver.registry.requests import Requests
        from pyspark_kgroup.driver.registry.server import RegistryServer
        from pyspark_kgroup.shared.application_key import hold_key, key_folder
        from pyspark_kgroup.shared.token_callback import CALLBACK

        if on_spark and CALLBACK not in self._options.consumer_config():
            folder = key_folder(os.getppid())  # with a callback, its module may be on the path of our workers alone
            self._key = hold_key(folder) if folder is not None else None
        here = self._options.registry_host is None and on_this_host()
        registry = Registry(seats, homes_serve_others=self._options.homes_serve_others)
        registry.sizes.remember(remembered)
        server = RegistryServer(
            Requests(registry, on_durable=self._on_durable),
            key=self._key.value if self._key is not None else None,
            bind_host=_LOOPBACK if here else "",
            port=self._options.registry_port,
        )
        server.start()
        self._registry, self._server = registry, server
        return True

    def stop(self) -> None:
        """End the registry and its server. Executors' sidecars see that and end, too."""
        if self._server is not None:
            self._server.close()
            self._registry = self._server = None

    def release_key(self) -> None:
        """Let the application's key go with its last stream reader. Safe to call twice."""
        if self._key is not None:
            self._key.release()

    def resize(self, seats: Sequence[str]) -> None:
        """The query holds these seats from now on."""
        if self._registry is not None:
            self._registry.resize(seats)

    def slots(self) -> int:
        """How many tasks all executors together run at once, as far as they are known."""
        return self._registry.slots() if self._registry is not None else 0

    def is_untouched(self) -> bool:
        """Whether the last batch has tickets, and no executor has asked for any of them."""
        return self._registry is not None and self._registry.is_untouched()

    def homes(self) -> Mapping[str, Home]:
        """Seat -> its home, for seats that have a living one."""
        registry = self._registry  # once: the group's thread asks, too, and Spark's may stop the registry meanwhile
        return registry.homes() if registry is not None else {}

    def home(self, seat: str | None) -> Home | None:
        """The seat's living home."""
        registry = self._registry  # as in `homes`
        return registry.home(seat) if registry is not None and seat is not None else None

    def rack_of(self, seat: str | None) -> str | None:
        """The rack where a seat reads: its home's, or `client.rack` until it has a home that knows its rack."""
        home = self.home(seat)
        return (home.executor.rack if home is not None else "") or self._options.passed_on.get("client.rack") or None

    def record_bytes(self, topic: str) -> float | None:
        """The size of the topic's records, as they were read last, or None if none were."""
        return self._registry.sizes.of(topic) if self._registry is not None else None

    def add_sizes(self, read: Iterable[TopicSize]) -> None:
        """Take the sizes of records that the driver has read."""
        if self._registry is not None:
            self._registry.sizes.add(read)

    def sizes_to_remember(self, end: Checkpoint) -> Mapping[str, int]:
        """The sizes that the checkpoint takes along: topic -> bytes of a record. Empty without `maxBytesPerTrigger`."""
        if self._registry is None or self._options.limit.size_bytes is None:
            return {}
        return self._registry.sizes.to_remember(end.topics)

    def counts(self) -> Counts:
        """Totals of reads since the query was started."""
        return self._registry.counts() if self._registry is not None else Counts()

    def was_reached(self) -> bool:
        """Whether an executor has shown the key to the registry's server."""
        return self._server is not None and self._server.counts().accepted > 0

    def reader(self) -> Mapping[str, Any]:
        """Where the user's own process finds this reader (`listener`), as progress shows it. Empty if it cannot."""
        if self._registry is None or self._server is None or self._key is None:
            return {}
        where = {"port": self._server.port, "query": self._registry.query}
        return {"reader": {"folder": str(self._key.folder), **where}}

    def plan(
        self, batch: str, reads: Mapping[str, Sequence[Sequence[OffsetRange]]], owned: Mapping[str, Sequence[Position]]
    ) -> Scan:
        """The scan of a batch, in which each ticket is bound to a seat now, or when a task asks the registry."""
        if self._registry is not None:
            return self._registry.plan(batch, reads, owned)
        return Scan(scan_id=0, mode=Mode.FIXED, tickets=tuple(seat for seat in sorted(reads) for _ in reads[seat]))

    def sidecars(self) -> tuple[SidecarAddress, ...]:
        """The sidecars that a task asks which cannot reach the registry."""
        return self._registry.sidecars() if self._registry is not None else ()

    def access(self) -> RegistryAccess | None:
        """Where and how a task reaches the registry, or None if it has all that it needs."""
        if self._registry is None or self._server is None:
            return None
        return RegistryAccess(
            host=self._options.registry_host or self._server.bind_host or None,
            port=self._server.port,
            key=self._server.key,
            query=self._registry.query,
            prefetch_bytes=self._options.prefetch_bytes,
            tells_sizes=self._options.limit.size_bytes is not None,
        )
