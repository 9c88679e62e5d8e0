"""server.properties of one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Advertised = Callable[[int, str, int], int]
"""(node id, name of a listener, port that it listens on) -> the port that clients and other nodes connect to."""


def own_port(_node_id: int, _listener: str, port: int) -> int:
    """No proxy stands before a node: clients and other nodes connect to the port on which it listens."""
    return port


def node_properties(
    node_id: int,
    host: str,
    port: int,
    controller_ports: Sequence[int],
    more: Mapping[str, str],
    secure: Mapping[str, tuple[str, int]] | None = None,
    advertised: Advertised = own_port,
    advertises_controllers: bool = True,
) -> dict[str, str]:
    """The properties of node `node_id` (from 1) of a cluster: a broker and a controller in one.

    Args:
        node_id: Kafka's node.id.
        host: every node's.
        port: for clients and other brokers.
        controller_ports: of every node, by node id: as many as there are nodes.
        more: adds to or overrides all these properties.
        secure: name -> (security protocol, port) of each further listener.
        advertised: the port under which clients and other nodes find a listener, the controllers' too.
        advertises_controllers: whether the release tells other controllers its own address.
    """
    secure = secure or {}
    ports = {"PLAINTEXT": port, **{name: secure_port for name, (_, secure_port) in secure.items()}}
    listened = ",".join(f"{name}://{host}:{own}" for name, own in ports.items())
    # A leader of the quorum tells its followers where it is. Without this they would get past a proxy (KIP-853).
    told = {**ports, "CONTROLLER": controller_ports[node_id - 1]} if advertises_controllers else ports
    shown = ",".join(f"{name}://{host}:{advertised(node_id, name, own)}" for name, own in told.items())
    protocols = "".join(f",{name}:{protocol}" for name, (protocol, _) in secure.items())
    replicas, replicas_min = str(len(controller_ports)), str(min(2, len(controller_ports)))
    voters = ",".join(
        f"{voter}@{host}:{advertised(voter, 'CONTROLLER', voter_port)}"
        for voter, voter_port in enumerate(controller_ports, start=1)
    )
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "broker.rack": f"rack-{node_id}",
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listened},CONTROLLER://{host}:{controller_ports[node_id - 1]}",
        "advertised.listeners": shown,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}",
        "auto.create.topics.enable": "false",  # a misspelt topic is an error
        "offsets.topic.num.partitions": "4",  # default 50: slower to create, to load, and to move
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": replicas_min,
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": replicas_min,
        "log.retention.hours": "-1",  # default 7 days, by the timestamps that a test gives its records
        "group.initial.rebalance.delay.ms": "0",  # default 3 s, spent by every test that makes a group
        "group.max.session.timeout.ms": "1800000",
        # 2 s and 9 s by default: a node that was killed may come back only when its old registration has expired.
        "broker.heartbeat.interval.ms": "1000",
        "broker.session.timeout.ms": "4000",
        "log.cleaner.dedupe.buffer.size": "16777216",  # default 128 MiB: a quarter of a node's heap
        **more,
    }
