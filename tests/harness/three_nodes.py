"""A cluster of three nodes for tests of several files, one after the other: a start takes 5 s of CPU time.

A test asks for the fixture `three_nodes`, and may kill and pause nodes: the next test gets the cluster whole again. If
the next test does not ask for it, the cluster is stopped: idle, it takes 0.1 s of CPU time a second.

Tests that share it need the same `pytest.mark.xdist_group`, or each process of a run starts one (`handing_out`).
"""

import pytest

from spark_kgroup.testing import ApacheKafka

FIXTURE = "three_nodes"

_PROPERTIES = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # For tests of retention: the cluster looks for expired records all the time.
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
}


class ThreeNodes:
    """The cluster of this process, started when a test asks for it."""

    def __init__(self) -> None:
        self._kafka: ApacheKafka | None = None

    def whole(self) -> ApacheKafka:
        """The cluster: its three nodes run and see each other, and all replicas are in sync."""
        if self._kafka is None:
            self._kafka = ApacheKafka(3, server_properties=_PROPERTIES, jvm_options=["-Xmx300m"])
            self._kafka.start()
        for node in self._kafka.nodes:
            if not node.running:
                node.restart()
            elif not node.answers:
                node.resume()
        self._kafka.await_ready()
        self._kafka.await_in_sync()
        return self._kafka

    def after(self, nextitem: pytest.Item | None) -> None:
        """Stop the cluster, unless the next test asks for it."""
        if self._kafka is not None and FIXTURE not in getattr(nextitem, "fixturenames", ()):
            kafka, self._kafka = self._kafka, None
            kafka.stop()
