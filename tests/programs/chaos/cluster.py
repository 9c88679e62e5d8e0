"""The cluster of a run: three brokers behind proxies, so that its network can be broken.

Clients under test connect to the listener CLIENTS, brokers to each other by REPLICATION and CONTROLLER: all by way of
`Links`. Clients that watch the run (producers, the admin client, readers of the evidence) use the plain listener, which
has no proxy before it.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from chaos.access import MTLS, SASL, SERVER_PROPERTIES, Access
from chaos.links import Links
from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing import ApacheKafka, SecureListener

CLIENTS: Final = "CLIENTS"
_REPLICATION: Final = "REPLICATION"
_CONTROLLER: Final = "CONTROLLER"
_DIRECT: Final = "PLAINTEXT"
_SERVER_PROPERTIES: Final = {
    "inter.broker.listener.name": _REPLICATION,
    "min.insync.replicas": "2",
    # Default 60 s. On a busy machine all brokers together may take longer to come back, and then end themselves.
    "initial.broker.registration.timeout.ms": "300000",
}


class Cluster:
    """Three brokers and the proxies before them, as a context manager."""

    def __init__(self, folder: Path, server_properties: Mapping[str, str], access: Access | None = None) -> None:
        self.links = Links(self._pids, between_nodes=[_REPLICATION, _CONTROLLER], tls=[MTLS])
        if access is not None:
            server_properties = {**server_properties, **SERVER_PROPERTIES}
        self.kafka = ApacheKafka(
            nodes=3,
            data_dir=folder,
            server_properties={**_SERVER_PROPERTIES, **server_properties},
            listeners=[
                *(SecureListener(name=name) for name in (CLIENTS, _REPLICATION)),
                *(access.listeners if access is not None else ()),
            ],
            users=access.users if access is not None else None,
            advertised=self._advertised,
        )
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self.links)
            entered.callback(self.kafka.stop)
            self.kafka.start()
            self._entered = entered.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def _pids(self) -> Mapping[int, int]:
        found = {}
        for node in self.kafka.nodes:
            try:
                found[node.node_id] = node.pid
            except EnvironmentProblem:  # it is down
                continue
        return found

    def _advertised(self, node: int, listener: str, port: int) -> int:
        return port if listener == _DIRECT else self.links.port_before(node, listener, port)

    @property
    def server(self) -> str:
        """Bootstrap servers for clients that watch the run."""
        return self.kafka.bootstrap_servers

    def server_of(self, listener: str = CLIENTS) -> str:
        """Bootstrap servers for clients under test."""
        return self.links.bootstrap(listener)

    @property
    def node_ids(self) -> list[int]:
        return [node.node_id for node in self.kafka.nodes]

    def addresses(self, node: int) -> list[str]:
        """HOST:PORT by which clients know a broker, at each of their listeners."""
        at = self.node_ids.index(node)
        return [servers.split(",")[at] for name in (CLIENTS, SASL, MTLS) if (servers := self.server_of(name))]
