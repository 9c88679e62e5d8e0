"""Carries the schedule out: each lane in a thread of its own, one event after the other."""

import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from chaos.java_peer import JavaPeer
from chaos.peers import Peer
from chaos.queries import Query
from chaos.schedule import PEER_FAULTS, Event, Fault
from chaos.strands import Strand
from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.kafka_node import KafkaNode

Say = Callable[[str, str], None]
"""Takes a lane's name and one line."""

AnyPeer = Peer | JavaPeer

_LOOK_EVERY_S = 1.0
_TURN_TIMEOUT_S = 60.0


class Lane:
    """One thread of events. A lane heals its fault before its next event, and before it ends."""

    name = ""

    def __init__(self, events: Sequence[Event], say: Say, over: threading.Event) -> None:
        self._events = events
        self._say_for = say
        self._over = over
        self._strand = Strand(f"lane {self.name}", self._run_to_the_end)
        self._deeds: dict[Fault, Callable[[Event], None]] = {}

    def start(self) -> None:
        self._strand.start()

    def failure(self, timeout_s: float) -> str | None:
        """Wait for its end, which comes soon once the run is over. Returns the failure of the world itself, if any."""
        return self._strand.failure(timeout_s)

    def _run_to_the_end(self) -> None:
        for event in self._events:
            if not self._watch_for(event.gap_s) or not (event.early or self._watch_until(self._ready)):
                break
            self._deeds[event.fault](event)
        while self._watch_for(_LOOK_EVERY_S):
            pass

    def _say(self, line: str) -> None:
        self._say_for(self.name, line)

    def _watch_for(self, seconds: float) -> bool:
        """Let time pass, and look after the lane's query or peer. False as soon as the run is over."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0 and not self._over.is_set():
            self._look_after()
            self._over.wait(min(left_s, _LOOK_EVERY_S))
        return not self._over.is_set()

    def _look_after(self) -> None:
        """Called about every second while no fault of the lane is on."""

    def _ready(self) -> bool:
        """Whether the target of events has come to work again since the last one."""
        return True

    def _watch_until(self, condition: Callable[[], bool]) -> bool:
        """Look after the query or peer until `condition` holds, for a minute at most.

        False as soon as the run is over.
        """
        deadline = time.monotonic() + _TURN_TIMEOUT_S
        while not condition() and time.monotonic() < deadline and self._watch_for(_LOOK_EVERY_S):
            pass
        return not self._over.is_set()

    def _leave_be(self, seconds: float) -> None:
        """Let time pass while a fault is on. It is cut short when the run is over."""
        self._over.wait(seconds)


class MainLane(Lane):
    """The faults of the main query."""

    name = "main"

    def __init__(self, events: Sequence[Event], say: Say, over: threading.Event, query: Query) -> None:
        super().__init__(events, say, over)
        self._query = query
        self._deeds = {
            Fault.KILL_DRIVER: self._kill,
            Fault.RESTART_DRIVER: self._restart,
            Fault.PAUSE_DRIVER: self._pause,
            Fault.KILL_WORKER: self._kill_worker,
            Fault.KILL_READER: self._kill_reader,
        }

    def _look_after(self) -> None:
        if (failure := self._query.revive()) is not None:
            self._say(f"[red]{failure}")

    def _ready(self) -> bool:
        return self._query.at_work

    def _kill(self, event: Event) -> None:
        self._say(f"{event.fault.value}, back after {event.lasts_s} s")
        self._query.kill()
        self._leave_be(event.lasts_s)
        self._query.start()

    def _restart(self, event: Event) -> None:
        self._say(f"{event.fault.value} after {event.lasts_s} s")
        self._query.stop()
        self._leave_be(event.lasts_s)
        self._query.start()

    def _pause(self, event: Event) -> None:
        self._say(f"{event.fault.value} for {event.lasts_s} s")
        self._query.pause()
        self._leave_be(event.lasts_s)
        self._query.resume()

    def _kill_worker(self, event: Event) -> None:
        found = self._query.kill_worker(event.pick)
        self._say(event.fault.value if found else f"{event.fault.value}: there is none")

    def _kill_reader(self, event: Event) -> None:
        found = self._query.kill_reader()
        self._say(event.fault.value if found else f"{event.fault.value}: there is none")


class SecondLane(Lane):
    """Another query of the group comes and goes."""

    name = "second"

    def __init__(self, events: Sequence[Event], say: Say, over: threading.Event, query: Query) -> None:
        super().__init__(events, say, over)
        self._query = query
        self._deeds = {Fault.SECOND_JOINS: self._join}

    def _look_after(self) -> None:
        if (failure := self._query.revive()) is not None:
            self._say(f"[red]{failure}")

    def _join(self, event: Event) -> None:
        how = "by SIGKILL" if event.harsh else "in good order"
        self._say(f"{event.fault.value} for {event.lasts_s} s, then goes {how}")
        self._query.start()
        if not event.early:
            self._watch_until(lambda: self._query.at_work)
        self._watch_for(event.lasts_s)
        self._query.kill() if event.harsh else self._query.stop()
        self._say(f"gone {how}")


class PeerLane(Lane):
    """Plain consumers of one kind come and go, one at a time."""

    def __init__(
        self, name: str, events: Sequence[Event], say: Say, over: threading.Event, new_peer: Callable[[str], AnyPeer]
    ) -> None:
        self.name = name
        super().__init__(events, say, over)
        self.peers: list[AnyPeer] = []
        self._new_peer = new_peer
        self._deeds = dict.fromkeys(PEER_FAULTS, self._join)

    def _join(self, event: Event) -> None:
        self._say(f"{event.fault.value} for {event.lasts_s} s")
        peer = self._new_peer(f"{self.name} {len(self.peers) + 1}")
        self.peers.append(peer)
        peer.start()
        if not event.early:
            self._watch_until(lambda: bool(peer.rows))
        self._watch_for(event.lasts_s)
        how = "left in good order" if peer.leave() else "told to leave, and its client still waits"
        self._say(f"{how}, {len(peer.rows):,} rows read")


class ClusterLane(Lane):
    """The faults of the brokers, and partitions added to their topics.

    Attributes:
        outages: (from, to) on the wall clock, in seconds: when a broker was away.
    """

    name = "cluster"

    def __init__(
        self, events: Sequence[Event], say: Say, over: threading.Event, kafka: ApacheKafka, partitions: dict[str, int]
    ) -> None:
        super().__init__(events, say, over)
        self.outages: list[tuple[float, float]] = []
        self._kafka = kafka
        self._partitions = partitions
        self._deeds = {
            Fault.KILL_BROKER: self._kill,
            Fault.PAUSE_BROKER: self._pause,
            Fault.ROLL_BROKERS: self._roll,
            Fault.KILL_ALL_BROKERS: self._kill_all,
            Fault.ADD_PARTITIONS: self._add_partitions,
            Fault.FILL_DISK: self._fill_disk,
        }

    def _one(self, event: Event) -> KafkaNode:
        return self._kafka.nodes[int(event.pick * len(self._kafka.nodes))]

    @contextmanager
    def _outage(self) -> Iterator[None]:
        begin = time.time()
        yield
        self._kafka.await_ready()
        self.outages.append((begin, time.time()))
        self._say("all brokers are back")

    def _kill(self, event: Event) -> None:
        node = self._one(event)
        self._say(f"{event.fault.value} (node {node.node_id}), back after {event.lasts_s} s")
        with self._outage():
            node.kill()
            self._leave_be(event.lasts_s)
            node.restart()

    def _pause(self, event: Event) -> None:
        node = self._one(event)
        self._say(f"{event.fault.value} (node {node.node_id}) for {event.lasts_s} s")
        with self._outage():
            node.pause()
            self._leave_be(event.lasts_s)
            node.resume()

    def _fill_disk(self, event: Event) -> None:
        """No file of the broker can grow (setrlimit(2), RLIMIT_FSIZE): it ends when it must write."""
        node = self._one(event)
        self._say(f"{event.fault.value} (node {node.node_id}), back after {event.lasts_s} s")
        with self._outage():
            _, most = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (1, most))
            self._leave_be(event.lasts_s)
            node.kill()
            node.restart()

    def _roll(self, event: Event) -> None:
        self._say(event.fault.value)
        with self._outage():
            for node in self._kafka.nodes:
                node.restart()
                self._kafka.await_ready()
                self._leave_be(event.lasts_s)

    def _kill_all(self, event: Event) -> None:
        self._say(f"{event.fault.value}, back after {event.lasts_s} s")
        with self._outage():
            for node in self._kafka.nodes:
                node.kill()
            self._leave_be(event.lasts_s)
            with ThreadPoolExecutor(len(self._kafka.nodes)) as pool:  # one alone has no quorum to start with
                list(pool.map(KafkaNode.restart, self._kafka.nodes))

    def _add_partitions(self, event: Event) -> None:
        topic = sorted(self._partitions)[int(event.pick * len(self._partitions))]
        total = self._partitions[topic] + 1
        self._say(f"{event.fault.value}: {topic} has {total} now")
        try:
            self._kafka.add_partitions(topic, total)
        except EnvironmentProblem as problem:  # asked for while the controller moves: no promise of ours
            self._say(f"the cluster did not: {problem}")
        else:
            self._partitions[topic] = total
