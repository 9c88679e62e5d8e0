"""A real Apache Kafka on this machine: one or three nodes, gone without a trace when it is stopped."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from spark_kgroup.errors import EnvironmentProblem, OptionError
from spark_kgroup.testing import group_tool
from spark_kgroup.testing.class_archive import with_class_archive
from spark_kgroup.testing.free_ports import PortReservation
from spark_kgroup.testing.group_tool import GroupStateRow, MemberRow, PartitionRow
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import kafka_jars
from spark_kgroup.testing.kafka_node import START_TIMEOUT_S, Jvm, KafkaNode, PortTaken, random_uuid
from spark_kgroup.testing.kafka_release import KafkaRelease, kafka_version
from spark_kgroup.testing.listeners import SecureListener, scram_arguments
from spark_kgroup.testing.node_properties import Advertised, node_properties, own_port
from spark_kgroup.testing.watchdog import ProcessGuard

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import ClusterMetadata

_PORT_ATTEMPTS: Final = 3
"""Where reserved ports must be given back before a node can listen (not on Linux), another process may take them."""

_TOPIC_TIMEOUT_S: Final = 30.0
"""Creating a topic takes 0.1 s, and 30 s is Kafka's request.timeout.ms."""

_TOOL_TIMEOUT_S: Final = 60.0
"""A tool takes 1 to 2 s, most of it the start of its JVM."""

_PROBE_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 0.05

_BOOTSTRAP: Final = -1
"""librdkafka's id of a broker that it knows by its address alone."""

_QUIET = logging.getLogger("spark_kgroup.testing.librdkafka")
_QUIET.setLevel(logging.CRITICAL)  # a client that watches nodes come and go reports every failed connection


class ApacheKafka:
    """A cluster as a context manager. `start` and `stop` do the same by hand, and may be repeated.

    Attributes:
        release: of Apache Kafka.

    Args:
        nodes: 1 or 3, each a broker and a controller, in a rack of its own: rack-1, rack-2, rack-3.
        data_dir: kept after `stop` and used again by the next start, or None for a temporary one.
        port: of node 1, followed by those of nodes 2 and 3, or None for free ports.
        version: of Apache Kafka, 3.2.0 or later, or None for $KGROUP_KAFKA_VERSION, else 4.3.1.
        server_properties: broker configuration that adds to or overrides what is set here.
        host: the address that is listened on and advertised.
        jvm_options: of every node, such as "-Xmx1g", or "-XX:TieredStopAtLevel=4" to measure a node's throughput: nodes
            start faster and run slower by default.
        listeners: beside the plain one, on free ports (see `bootstrap_of`).
        users: name -> password, for listeners with SASL (PLAIN, and from Kafka 3.5 on SCRAM).
        advertised: (node id, listener's name, its port) -> the port that clients and other nodes are told, such as a
            proxy's. It is asked for the plain listener (PLAINTEXT), for those of `listeners`, and for the controllers'
            (CONTROLLER).

    Raises:
        OptionError: another number of nodes, a port out of range, or an older version.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        data_dir: str | Path | None = None,
        port: int | None = None,
        version: str | None = None,
        server_properties: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        jvm_options: Sequence[str] = (),
        listeners: Sequence[SecureListener] = (),
        users: Mapping[str, str] | None = None,
        advertised: Advertised = own_port,
    ) -> None:
        if nodes not in (1, 3):
            raise OptionError(f"nodes is {nodes}: 1 or 3 nodes can be run.")
        if port is not None and not 0 < port <= 65536 - nodes:
            raise OptionError(f"port is {port}: {nodes} node(s) need ports from 1 to 65535.")
        self.nodes: tuple[KafkaNode, ...] = ()
        self._node_count = nodes
        self._data_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._port = port
        self.release = KafkaRelease(version or kafka_version())
        self._server_properties = dict(server_properties or {})
        self._host = host
        self._jvm_options = tuple(jvm_options)
        self._listeners = tuple(listeners)
        self._users = dict(users or {})
        self._advertised = advertised
        self._temporary: Path | None = None
        self._lock_file: int | None = None
        self._guard: ProcessGuard | None = None
        self._jvm: Jvm | None = None
        self._ports: PortReservation | None = None
        self._secure_ports: PortReservation | None = None
        self._admin: AdminClient | None = None
        self._interruptions = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every node, separated by commas."""
        return ",".join(f"{self._host}:{node.port}" for node in self.nodes)

    def bootstrap_of(self, listener: str) -> str:
        """HOST:PORT of every node at the secure listener of that name."""
        return ",".join(f"{self._host}:{self._secure_listeners(node.node_id)[listener][1]}" for node in self.nodes)

    def _secure_listeners(self, node_id: int) -> dict[str, tuple[str, int]]:
        """Name -> (security protocol, port) of a node's secure listeners."""
        ports = self._secure_ports.ports if self._secure_ports else ()
        own = ports[(node_id - 1) * len(self._listeners) :]
        # `own` goes on with the ports of the nodes after this one.
        return {each.name: (each.protocol, port) for each, port in zip(self._listeners, own, strict=False)}

    @property
    def admin(self) -> AdminClient:
        """An admin client of this cluster, and another one after a node was ended or paused.

        librdkafka's may stick to a node that is gone: requests were seen to time out after 30 s with two nodes left.
        """
        interruptions = sum(node.interruptions for node in self.nodes)
        if self._admin is None or interruptions != self._interruptions:
            self._interruptions = interruptions
            self._admin = self._client(self.bootstrap_servers)
        return self._admin

    @staticmethod
    def _client(servers: str) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(
            {"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 500}, logger=_QUIET
        )

    def start(self) -> None:
        """Start every node, and return once the cluster answers.

        Raises:
            EnvironmentProblem: no Java, no jars, a port that is taken, a data directory in use, a node that died.
        """
        if self.nodes:
            return
        java = find_java()
        jars = kafka_jars(self.release.version)
        try:
            root = self._open_data_dir()
            self._guard = ProcessGuard(self._temporary, [self._lock_file] if self._lock_file is not None else [])
            self._jvm = with_class_archive(
                Jvm(java, self.release, jars[0].parent, self._guard, node_options=self._jvm_options)
            )
            self._launch(root, self._jvm)
            self.await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process and remove the temporary directory. A directory of the caller's is kept.

        Nodes whose data is kept are asked to end (SIGTERM). Nodes with temporary data are simply killed.
        """
        self._admin = None
        try:
            # All are asked before the first is awaited: a node that has lost its quorum does not end by itself.
            for node in self.nodes:
                if self._temporary is None:
                    node.request_stop()
                else:
                    node.kill()
            for node in self.nodes:
                node.await_stopped()
        finally:
            self._release()

    def await_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every running node has started, has a controller, and shows all of them.

        Each is asked itself: some may know of a node earlier than the rest, and a client that hears from one that does
        not know it gives up the requests that it has sent to that node (librdkafka: _DESTROY_BROKER).

        Raises:
            EnvironmentProblem: a node died, or this was not so in time.
        """
        deadline = time.monotonic() + timeout_s
        running = [node for node in self.nodes if node.running]
        for node in running:
            node.await_started(max(0.0, deadline - time.monotonic()))
        wanted = {node.node_id for node in running}
        for node in [node for node in running if node.answers]:
            while not _shows(self._fetch_metadata(node), wanted):
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(
                        f"Kafka node {node.node_id} did not show the nodes {sorted(wanted)} in {timeout_s:.0f} s."
                    )
                time.sleep(_POLL_S)

    def await_in_sync(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every partition has all its replicas on running nodes in sync (Kafka: ISR).

        A node that has come back shows all nodes before its replicas have caught up. If the next node ends in between,
        a partition may have no leader until that node is back: measured, 0.4 s on an idle machine.

        Raises:
            EnvironmentProblem: this was not so in time.
        """
        running = {node.node_id for node in self.nodes if node.answers}
        self._await_metadata(lambda metadata: _in_sync(metadata, running), "shows replicas out of sync", timeout_s)

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, and return once every node knows all its leaders. By default each node has one replica.

        Raises:
            EnvironmentProblem: the broker refused, or was not done in time.
        """
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication_factor or self._node_count,
            config=dict(configs or {}),
        )
        self._await_done(self.admin.create_topics([topic])[name], f"create topic {name}")
        self._await_leaders(name, partitions)

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to `total` partitions, and return once every node knows all leaders.

        Raises:
            EnvironmentProblem: the broker refused, or was not done in time.
        """
        from confluent_kafka.cimpl import NewPartitions

        future = self.admin.create_partitions([NewPartitions(topic, total)])[topic]
        self._await_done(future, f"add partitions to {topic}")
        self._await_leaders(topic, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and return once no node names it. A node may go on naming it after the deletion is confirmed.

        Raises:
            EnvironmentProblem: the broker refused, or was not done in time.
        """
        self._await_done(self.admin.delete_topics([name])[name], f"delete topic {name}")
        self._await_metadata(
            lambda metadata: name not in metadata.topics, f"still names topic {name}, which was deleted,"
        )

    def tool(self, main_class: str, *arguments: str, timeout_s: float = _TOOL_TIMEOUT_S) -> str:
        """Run one of Kafka's own command-line classes, and return its standard output.

        Args:
            main_class: such as "org.apache.kafka.tools.GetOffsetShell".
            arguments: its command line. The caller gives `--bootstrap-server` in it.
            timeout_s: it is killed after this long.

        Raises:
            EnvironmentProblem: it failed, or took too long.
        """
        if self._jvm is None:
            raise EnvironmentProblem("Apache Kafka is not running: start it before its tools.")
        return self._jvm.tool(main_class, arguments, timeout_s)

    def describe_group(self, group: str) -> list[PartitionRow]:
        """The group's partitions, as Kafka's own group tool shows them. Empty for a group that does not exist.

        Runs the tool twice (2 s): the table of offsets names members by id, that of members their instance ids.
        """
        members = self._group_tool(group, "--members")
        return group_tool.parse_offsets(self._group_tool(group, "--offsets"), members)

    def describe_members(self, group: str) -> list[MemberRow]:
        """The group's members, as Kafka's own group tool shows them. Empty for a group that does not exist."""
        members = group_tool.parse_members(self._group_tool(group, "--members", "--verbose"))
        if self.release.shows_topics_of_members:
            return members
        return group_tool.with_owned(members, self._group_tool(group, "--offsets"))

    def describe_group_state(self, group: str) -> GroupStateRow:
        """The group as a whole, as Kafka's own group tool shows it.

        Raises:
            EnvironmentProblem: there is no such group.
        """
        return group_tool.parse_state(self._group_tool(group, "--state", "--verbose"))

    def _group_tool(self, group: str, *arguments: str) -> str:
        server = ("--bootstrap-server", self.bootstrap_servers)
        return self.tool(self.release.group_tool, *server, "--describe", "--group", group, *arguments)

    def _open_data_dir(self) -> Path:
        """The cluster's directory, locked if it is the caller's."""
        if self._data_dir is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="kgroup-kafka-"))
            return self._temporary
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(self._data_dir / "lock", os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise EnvironmentProblem(
                f"Another Apache Kafka runs on {self._data_dir}: stop it, or choose another data directory."
            ) from problem
        except OSError as problem:
            raise EnvironmentProblem(
                f"Cannot use the data directory {self._data_dir}: {problem.strerror}."
            ) from problem
        return self._data_dir

    def _launch(self, root: Path, jvm: Jvm) -> None:
        cluster_id = self._cluster_id(root)
        more = {name: value for each in self._listeners for name, value in each.properties(self._users)}
        more |= self._server_properties
        scram = scram_arguments(self._users) if self.release.has_scram_users else []
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._ports = PortReservation(self._host, 2 * self._node_count, self._port)
            self._secure_ports = PortReservation(self._host, len(self._listeners) * self._node_count)
            ports = self._ports.ports
            clients, controllers = ports[: self._node_count], ports[self._node_count :]
            self.nodes = tuple(
                KafkaNode(node_id, root / f"node-{node_id}", port) for node_id, port in enumerate(clients, start=1)
            )
            for node in self.nodes:
                secure = self._secure_listeners(node.node_id)
                node.configure(
                    node_properties(
                        node.node_id,
                        self._host,
                        node.port,
                        controllers,
                        more,
                        secure,
                        self._advertised,
                        self.release.advertises_controllers,
                    )
                )
                node.format(jvm, cluster_id, scram)
            self._ports.hand_over()
            self._secure_ports.hand_over()
            # All are launched before the first is awaited: a quorum of three needs two of them.
            try:
                for node in self.nodes:
                    node.launch(jvm)
                for node in self.nodes:
                    node.await_started()
                return
            except PortTaken:
                # A port that the caller named has no substitute.
                if self._port is not None or attempt == _PORT_ATTEMPTS:
                    raise
                for node in self.nodes:
                    node.kill()
                self._ports.close()
                self._secure_ports.close()

    def _cluster_id(self, root: Path) -> str:
        """Kafka's cluster id: a new one, or that of the data already there."""
        path = root / "cluster.json"
        if path.exists():
            known = json.loads(path.read_text())
            if known["nodes"] != self._node_count:
                raise EnvironmentProblem(
                    f"{root} holds the data of {known['nodes']} node(s), not {self._node_count}: "
                    "run as many, or choose another data directory."
                )
            return str(known["cluster_id"])
        cluster_id = random_uuid()
        # A start that is killed in the midst of writing leaves no half of a file under the name that counts.
        unfinished = root / "cluster.json.new"
        unfinished.write_text(json.dumps({"cluster_id": cluster_id, "nodes": self._node_count}))
        unfinished.rename(path)
        return cluster_id

    def _fetch_metadata(self, node: KafkaNode) -> ClusterMetadata | None:
        """A node's metadata of the cluster now, or None if that node does not answer.

        A new client knows that node alone, and asks it on its own account. The request made here may then go to another
        node. Measured with three nodes: a third of the answers were another's.
        """
        from confluent_kafka import KafkaException

        try:
            metadata = self._client(f"{self._host}:{node.port}").list_topics(timeout=_PROBE_TIMEOUT_S)
            return metadata if metadata.orig_broker_id in (node.node_id, _BOOTSTRAP) else None
        except KafkaException:
            return None

    def _await_leaders(self, topic: str, partitions: int) -> None:
        """Wait until each node shows leaders for all of `partitions`."""
        self._await_metadata(
            lambda metadata: _has_leaders(metadata, topic, partitions), f"knows no leaders of topic {topic}"
        )

    def _await_metadata(
        self, is_wanted: Callable[[ClusterMetadata], bool], otherwise: str, timeout_s: float = _TOPIC_TIMEOUT_S
    ) -> None:
        """Wait until each node's metadata is as wanted. `otherwise` says in the error what a node does instead.

        Not all of them know of a change at once: "It may take several seconds after CreateTopics returns success for
        all the brokers to become aware that the topic has been created" (Java's Admin.createTopics).
        """
        deadline = time.monotonic() + timeout_s
        for node in [node for node in self.nodes if node.answers]:
            while (metadata := self._fetch_metadata(node)) is None or not is_wanted(metadata):
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(f"Node {node.node_id} {otherwise} after {timeout_s:.0f} s.")
                time.sleep(_POLL_S)

    @staticmethod
    def _await_done(future: Future[None], deed: str) -> None:
        from confluent_kafka import KafkaException

        try:
            future.result(timeout=_TOPIC_TIMEOUT_S)
        except (KafkaException, TimeoutError) as problem:
            raise EnvironmentProblem(f"Could not {deed}: {problem}") from problem

    def _release(self) -> None:
        """Give back all but the caller's data: the watchdog, the ports, the lock, the temporary directory."""
        self.nodes = ()
        self._jvm = None
        # The nodes end first: until then they use the ports, the lock and the directory.
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        for ports in filter(None, (self._ports, self._secure_ports)):
            ports.close()
        self._ports = self._secure_ports = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def _shows(metadata: ClusterMetadata | None, node_ids: set[int]) -> bool:
    return metadata is not None and metadata.controller_id >= 0 and node_ids <= set(metadata.brokers)


def _in_sync(metadata: ClusterMetadata, node_ids: set[int]) -> bool:
    partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
    return all(node_ids & set(partition.replicas) <= set(partition.isrs) for partition in partitions)


def _has_leaders(metadata: ClusterMetadata, topic: str, partitions: int) -> bool:
    described = metadata.topics.get(topic)
    leaders = [partition.leader for partition in described.partitions.values()] if described is not None else []
    return len(leaders) == partitions and min(leaders) >= 0
