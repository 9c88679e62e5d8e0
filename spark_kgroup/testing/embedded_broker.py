"""A small broker in this process, which speaks Kafka's protocol: it starts in milliseconds, and needs no Java.

It is for development, tests and demos, and is no production broker (`spark_kgroup/broker/UNSUPPORTED.md`).
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar
from uuid import UUID, uuid4

from spark_kgroup.broker.broker_clock import Clock, RealClock
from spark_kgroup.broker.call import Call, HangUp
from spark_kgroup.broker.cluster import LOG_BYTES_MAX, Cluster
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.broker.served import SERVED, Served
from spark_kgroup.broker.server import LOOPBACK, Server
from spark_kgroup.coordinator import CoordinatorConfig
from spark_kgroup.errors import BrokerError, EnvironmentProblem, OptionError
from spark_kgroup.model import TopicPartition

T = TypeVar("T")

REQUESTS_MAX: Final = 10_000
REQUEST_BYTES_KEPT_MAX: Final = 64 * 2**20
"""The requests that are kept to look at: the last ones, so many and so large together."""

_START_TIMEOUT_S: Final = 30.0
"""A start takes 10 ms. A machine that needs longer than this for it is out of order."""


GROUP_CONFIG: Final = CoordinatorConfig(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=1_000)
"""For tests, which are not to wait. `ApacheKafka` has the same in its fixtures."""


class RecordedRequest(NamedTuple):
    """A request that the broker got.

    Attributes:
        api: Kafka's name of the API, such as "Fetch".
        version: of the API.
        client_id: from the header.
        node_id: the node that was asked.
        request: the fields, by Kafka's names (`spark_kgroup.wire.broker_schema`, `broker_group_schema`).
    """

    api: str
    version: int
    client_id: str
    node_id: int
    request: Any


Hook = Callable[[RecordedRequest], Any]
"""Called on the broker's thread with a request, before it is handled. It returns None to let it be handled, or the
response to send in its place (a class of `spark_kgroup.wire.broker_schema`). It may raise `HangUp`."""


class EmbeddedBroker:
    """A broker on a thread of its own. A context manager, whose methods may be called from any thread.

    Args:
        nodes: how many nodes the cluster has, each with a port of its own.
        racks: of each node; by default none has one.
        clock: by which records are stamped; a `VirtualClock` is turned by the test.
        auto_create_topics: whether a client that names a topic creates it (Kafka: auto.create.topics.enable).
        group_config: settings of all groups. By default no rebalance waits for further members, as
            `group.initial.rebalance.delay.ms` has it for 3 s in Kafka, and a session may be as short as 1 s.
        log_bytes_max: the size of all records, which are in memory. A Produce beyond it is refused.
        host: the address to listen on. Any other than a loopback address lets other machines read and write.

    Attributes:
        cluster: the state of topics and logs. Change it on the broker's thread alone, as this class's methods do.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        racks: Sequence[str | None] | None = None,
        clock: Clock | None = None,
        auto_create_topics: bool = False,
        group_config: CoordinatorConfig = GROUP_CONFIG,
        log_bytes_max: int = LOG_BYTES_MAX,
        host: str = LOOPBACK,
    ) -> None:
        self._racks = list(racks) if racks is not None else [None] * nodes
        if not self._racks or (racks is not None and len(self._racks) != nodes != 1):
            raise OptionError(
                f"`racks` names {len(self._racks)} racks, and `nodes` is {nodes}: name one for each node."
            )
        cluster_id = base64.urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        self.cluster = Cluster(
            cluster_id, new_topic_id=uuid4, auto_create=auto_create_topics, log_bytes_max=log_bytes_max
        )
        self._server = Server(
            self.cluster,
            clock=clock or RealClock(),
            group_config=group_config,
            host=host,
            intercept=self._intercept,
        )
        self._recorder = _Recorder()
        self._hooks: dict[str, Hook] = {}
        self._delay_ms = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------------------------------------ start, stop

    def start(self) -> None:
        """Listen.

        Raises:
            EnvironmentProblem: this machine does not let us.
        """
        if self._loop is not None:
            raise OptionError("The broker runs already.")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embedded broker", daemon=True)
        self._thread.start()
        try:
            self._run(self._server.start(self._racks))
        except OSError as error:
            self.stop()
            raise EnvironmentProblem(f"The embedded broker cannot listen here: {error}") from error

    def stop(self) -> None:
        """End all connections, and listen no more. Safe to call twice."""
        if self._loop is None or self._thread is None:
            return
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_TIMEOUT_S)
        self._loop.close()
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, "it was started"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_TIMEOUT_S)

    def _change(self, change: Callable[[], T]) -> T:
        """Change the cluster on the broker's thread, and wake the clients that wait for that."""

        def changed() -> T:
            result = change()
            self._server.wake()
            return result

        async def on_its_thread() -> T:
            return changed()

        try:
            # A hook is called on that thread.
            return changed() if threading.current_thread() is self._thread else self._run(on_its_thread())
        except Refused as refusal:
            raise BrokerError("The embedded broker", refusal.code, refusal.text) from None

    # ----------------------------------------------------------------------------------------------------- topics

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, as clients take them."""
        return ",".join(f"{node.host}:{node.port}" for node in self.cluster.nodes.values())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> UUID:
        """Create a topic, and return its id. By default each node has one replica, and leaders take turns.

        Raises:
            BrokerError: as Kafka refuses it: there is such a topic, or the name, a number or a setting is invalid.
        """
        factor = len(self._racks) if replication_factor is None else replication_factor
        create = self.cluster.create_topic
        return self._change(lambda: create(name, self.cluster.assign(partitions, factor), configs).topic_id)

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to `total` partitions.

        Raises:
            BrokerError: there is no such topic.
        """

        def grow() -> None:
            there = self.cluster.partition(topic, 0)
            found = self.cluster.topics[topic]
            count, factor = len(found.partitions), len(there.replicas)
            self.cluster.add_partitions(found, self.cluster.assign(total - count, factor, first=count))

        self._change(grow)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. One that is created with its name later has another id.

        Raises:
            BrokerError: there is no such topic.
        """

        def delete() -> None:
            self.cluster.partition(name, 0)
            self.cluster.delete_topic(self.cluster.topics[name])

        self._change(delete)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset.

        Raises:
            BrokerError: there is no such partition, or the log ends before that offset.
        """
        at = TopicPartition(topic, partition)
        self._change(lambda: self.cluster.delete_records(at, self.cluster.partition(*at), before))

    # ----------------------------------------------------------------------------------------------------- faults

    def elect_leader(self, topic: str, partition: int, node_id: int | None = None) -> None:
        """Begin another leader epoch, on another node if one is named.

        Raises:
            BrokerError: there is no such partition, or no replica on that node.
        """
        self._change(lambda: self.cluster.elect(TopicPartition(topic, partition), node_id))

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Lose the records from `offset` on, as after an unclean election.

        Raises:
            BrokerError: there is no such partition, or no such offset in its log.
        """
        self._change(lambda: self.cluster.truncate(TopicPartition(topic, partition), offset))

    def drop_connections(self) -> None:
        """End all connections. Clients may connect anew at once."""
        self._change(self._server.drop_connections)

    def delay(self, each_ms: int) -> None:
        """Hold back each answer for so long from now on."""
        self._delay_ms = each_ms

    def on(self, api: str, hook: Hook | None) -> None:
        """Call `hook` with each request of an API, such as "Fetch"; with None, no more.

        Raises:
            OptionError: the broker has no such API.
        """
        known = {served.layout.name for served in SERVED.values()}
        if api not in known:
            raise OptionError(f"The embedded broker has no API {api!r}. It has {', '.join(sorted(known))}.")
        if hook is None:
            self._hooks.pop(api, None)
        else:
            self._hooks[api] = hook

    @property
    def requests(self) -> list[RecordedRequest]:
        """The last requests in order of arrival, without ApiVersions: 10,000 of them, or 64 MiB."""
        return self._recorder.requests()

    async def _intercept(self, served: Served, request: Any, call: Call, size: int) -> Any:
        recorded = RecordedRequest(served.layout.name, call.version, call.client_id, call.node_id, request)
        self._recorder.add(recorded, size)
        if self._delay_ms:
            await asyncio.sleep(self._delay_ms / 1000)
        hook = self._hooks.get(recorded.api)
        return None if hook is None else hook(recorded)


class _Recorder:
    """The last requests."""

    def __init__(self) -> None:
        self._requests: deque[tuple[RecordedRequest, int]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, request: RecordedRequest, size: int) -> None:
        if request.api == "ApiVersions":
            return
        with self._lock:
            self._requests.append((request, size))
            self._bytes += size
            while len(self._requests) > REQUESTS_MAX or self._bytes > REQUEST_BYTES_KEPT_MAX:
                self._bytes -= self._requests.popleft()[1]

    def requests(self) -> list[RecordedRequest]:
        with self._lock:
            return [request for request, _ in self._requests]


__all__ = ["EmbeddedBroker", "HangUp", "Hook", "RecordedRequest"]
