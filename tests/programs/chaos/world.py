"""The cluster, its topics, the queries, producers and peers of one run."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final, Self

from harness.waiting import wait_for
from harness.wrong_clock import WrongClock
from history.facts import Lasting

from chaos import collect
from chaos.access import MAIN, MTLS, SASL, SECOND, Access
from chaos.cluster import Cluster
from chaos.evidence import ApplicationEvidence, Evidence, Expulsion
from chaos.faults import AnyPeer, ClusterLane, Lane, MainLane, PeerLane, Say, SecondLane
from chaos.java_peer import JavaPeer
from chaos.lasting import OPERATORS, STALL_S, UNREACHABLE, end, lasts_s, leave_change_on, leave_on, named_s
from chaos.network import NetworkLane
from chaos.operators import OperatorLane
from chaos.peers import Peer
from chaos.producers import Producing
from chaos.queries import Query
from chaos.schedule import MAIN_SESSION_S, SECOND_SESSION_S, Event, Fault, schedule
from chaos.visits import VISITS, VISITS_PARTITIONS, Visits
from spark_kgroup.errors import WireError
from spark_kgroup.model import CLASSIC, CONSUMER, TopicPartition
from spark_kgroup.wire import messages
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster as WireCluster

GROUP: Final = "chaos"
MARKER: Final = "KGROUP_CHAOS_RUN"
"""A variable in the environment of each process that a run starts."""

_TOPICS: Final = {"orders": 4, "clicks": 3}
_CONSUMER_PROPERTIES: Final = {
    "group.consumer.session.timeout.ms": str(int(MAIN_SESSION_S * 1000)),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
"""Settings that brokers decide under the consumer protocol, and options under the classic one."""
_FIRST_BATCH_TIMEOUT_S: Final = 300.0
_DRAIN_TIMEOUT_S: Final = 240.0
_LANE_END_TIMEOUT_S: Final = 400.0
_END_TIMEOUT_S: Final = 15.0
_CAUGHT_UP: Final = 1_000
"""Records that the group may be behind when a lasting fault begins: a third of one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The parameters of a run.

    Attributes:
        small: whether queries run without Spark.
        protocol: the main query's.
        member_ids: which side makes those of classic queries.
        min_partitions: tasks of a batch, which divide seats' shares.
        reader: the option `reader` of the queries.
        lanes: names of the lanes that play.
        lasting: the fault that is left on at the end, or None.
    """

    seed: int
    minutes: float
    small: bool
    protocol: str
    member_ids: str
    min_partitions: int | None
    reader: str
    lanes: Collection[str]
    lasting: Fault | None


class ChaosWorld:
    """Everything of one run. A context manager that leaves no process.

    Attributes:
        failures: those of the world itself, not of the product under test.
    """

    def __init__(self, folder: Path, run: Run, say: Say) -> None:
        self.folder = folder
        self.failures: list[str] = []
        self.partitions = dict(_TOPICS)
        self._say = say
        self._run = run
        self._lasting: list[Lasting] = []
        self._marker = f"{MARKER}={folder.name}"
        os.environ[MARKER] = folder.name
        self._over = threading.Event()
        self._access = Access(folder / "access") if "operator" in run.lanes else None
        properties = _CONSUMER_PROPERTIES if run.protocol == CONSUMER else {}
        self.cluster = Cluster(folder / "kafka", properties, self._access)
        self.kafka = self.cluster.kafka

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self.cluster)
            for topic, partitions in self.partitions.items():
                self.kafka.create_topic(topic, partitions)
            self._visits = Visits(self.kafka, self._run.seed) if self._access is not None else None
            if self._visits is not None:
                self._visits.begin()
            self._cast()
            self._entered = entered.pop_all()
        return self

    def _cast(self) -> None:
        """Make all queries, producers and lanes, and start none yet."""
        server, clients_server = self.cluster.server, self.cluster.server_of()
        self._clock = WrongClock(self.folder / "clock")
        self.main = self._query(MAIN, 3, MAIN_SESSION_S, self._run.protocol, self._clock)
        self.second = self._query(SECOND, 2, SECOND_SESSION_S, CLASSIC)
        self.producers = [
            Producing(name, server, self.partitions, self._run.seed, transactional=name != "plain")
            for name in ("ada", "bob", "plain")
        ]
        topics = list(_TOPICS)
        self._peers = [
            self._peer_lane("peers", lambda name: Peer(name, clients_server, GROUP, topics)),
            self._peer_lane("848", lambda name: Peer(name, clients_server, GROUP, topics, consumer_protocol=True)),
            self._peer_lane("java", lambda name: JavaPeer(name, clients_server, GROUP, topics, self.folder / name)),
        ]
        self._cluster = ClusterLane(self._events("cluster"), self._say, self._over, self.kafka, self.partitions)
        self._network = NetworkLane(self._events("network"), self._say, self._over, self.cluster)
        self._lanes: list[Lane] = [
            MainLane(self._events("main"), self._say, self._over, self.main),
            SecondLane(self._events("second"), self._say, self._over, self.second),
            *self._peers,
            self._cluster,
            self._network,
            *self._operators(),
        ]

    def _operators(self) -> Iterator[Lane]:
        if self._access is None or self._visits is None:
            return
        topics = [*_TOPICS, VISITS]
        self._access.give(self.kafka.admin, self._access.rights(GROUP, topics))
        yield OperatorLane(
            self._events("operator"),
            self._say,
            self._over,
            cluster=self.cluster,
            access=self._access,
            rights=(GROUP, topics),
            visits=self._visits,
            clock=self._clock,
            folder=self.folder,
            is_read=self._is_read,
        )

    def _peer_lane(self, name: str, new_peer: Callable[[str], AnyPeer]) -> PeerLane:
        return PeerLane(name, self._events(name), self._say, self._over, new_peer)

    def _query(
        self, name: str, members: int, session_s: float, protocol: str, clock: WrongClock | None = None
    ) -> Query:
        read = self._read(members, name) | _speaking(protocol, session_s)
        if protocol == CLASSIC:
            read["memberIds"] = self._run.member_ids
        if self._run.lasting in UNREACHABLE:
            read["kafka.default.api.timeout.ms"] = str(int(STALL_S * 1000))
        if self._run.min_partitions is not None:
            read["minPartitions"] = str(self._run.min_partitions)
        read["reader"] = self._run.reader
        return Query(self.folder / name, name, read, session_s, small=self._run.small, clock=clock)

    def _read(self, members: int, name: str) -> dict[str, str]:
        """Options of a query's stream, and of its user."""
        if self._access is None:
            return _read(self.cluster.server_of(), list(_TOPICS), members, name)
        server = self.cluster.server_of(SASL if name == MAIN else MTLS)
        # A topic that was recreated has lost records, as far as a query can know that did not see it empty.
        read = _read(server, [*_TOPICS, VISITS], members, name) | {"failOnDataLoss": "false"}
        return read | self._access.options(name)

    def _events(self, lane: str) -> Sequence[Event]:
        return schedule(lane, self._run.seed, self._run.minutes) if lane in self._run.lanes else ()

    def __exit__(self, *_: object) -> None:
        """End everything, in any state."""
        self._over.set()
        for producer in self._all_producers:
            producer.stop()
        for producer in self._all_producers:
            producer.failure(_END_TIMEOUT_S)
        for lane in self._lanes:
            lane.failure(_END_TIMEOUT_S)  # all have ended, unless this run was broken off
        for peer in (peer for lane in self._peers for peer in lane.peers):
            peer.abandon()
        for query in (self.main, self.second):
            query.abandon()
        self._entered.close()

    def run(self, look: Callable[[], None]) -> None:
        """Start all, let the lanes run for the minutes asked for, and heal. `look` is called now and then."""
        self.main.start()
        for producer in self.producers:
            producer.start()
        wait_for(self._main_is_at_work, "the main query's first batch", _FIRST_BATCH_TIMEOUT_S, every_s=1)
        for lane in self._lanes:
            lane.start()
        deadline = time.monotonic() + self._run.minutes * 60
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, 10))
            look()
        self._over.set()
        self._say("world", "the lanes heal what they broke, and end")
        self.failures += [failure for lane in self._lanes if (failure := lane.failure(_LANE_END_TIMEOUT_S)) is not None]

    def leave_one_fault_on(self, look: Callable[[], None]) -> None:
        """Let one fault last, while records go on to come. Heal it after that."""
        # A cluster that did not say that it has added a partition may have added it.
        topics = self.kafka.admin.list_topics(timeout=30).topics
        self.partitions.update({topic: len(topics[topic].partitions) for topic in self.partitions})
        if (fault := self._run.lasting) is None:
            return
        wait_for(self._main_is_at_work, "the main query to be at work again", _FIRST_BATCH_TIMEOUT_S, every_s=1)
        wait_for(lambda: self._main_is_at_work() and self._lag() < _CAUGHT_UP, "it to catch up", _DRAIN_TIMEOUT_S, 1)
        try:
            self._lasting.append(self._leave_on(fault, lambda: self._watch(lasts_s(fault), look)))
        finally:
            end(self.cluster)
        self._say("lasting", "healed")

    def _leave_on(self, fault: Fault, watch: Callable[[], None]) -> Lasting:
        if fault not in OPERATORS:
            self._say("lasting", f"{fault.value}, for good")
            return leave_on(fault, self.cluster, GROUP, list(_TOPICS), watch)
        operator = next(lane for lane in self._lanes if isinstance(lane, OperatorLane))
        partitions = [TopicPartition(topic, p) for topic, count in self.partitions.items() for p in range(count)]
        change = operator.lasting(fault)
        self._say("lasting", f"{change.name}, for good")
        return leave_change_on(change, named_s(fault), partitions, watch)

    def _watch(self, seconds: float, look: Callable[[], None]) -> None:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, 10))
            self._main_is_at_work()
            look()

    def _lag(self) -> float:
        """How far the group is behind. It is infinite as long as the cluster does not say."""
        return sum(log_end - max(committed, 0) if log_end else inf for committed, log_end in self._behind().values())

    def drain(self) -> None:
        """End the producers, and wait until the group stands at the end of every partition."""
        for producer in self._all_producers:
            producer.stop()
        self.failures += [failure for producer in self._all_producers if (failure := producer.failure()) is not None]
        self._say("world", f"producers have ended after {self.sent:,} records; the main query drains")
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        while (behind := self._behind()) and time.monotonic() < deadline:
            self._main_is_at_work()
            time.sleep(2)
        if behind:
            self._say("world", f"[red]not drained: {behind}")
        self.main.stop()

    def _main_is_at_work(self) -> bool:
        if (failure := self.main.revive()) is not None:
            self._say("main", f"[red]{failure}")
        return self.main.at_work

    @property
    def _all_producers(self) -> list[Producing]:
        return [*self.producers, *(self._visits.producers if self._visits is not None else ())]

    @property
    def _counts(self) -> dict[str, int]:
        """Topic -> how many partitions it has now."""
        return self.partitions | (dict(VISITS_PARTITIONS) if self._visits is not None else {})

    @property
    def sent(self) -> int:
        return sum(producer.sent for producer in self._all_producers)

    def _behind(self) -> dict[str, tuple[int, int]]:
        """Partition -> (committed, log end), where they differ.

        An error -> (0, 0) as long as the cluster does not say.
        """
        try:
            return {name: pair for name, pair in self._positions().items() if pair[0] != pair[1]}
        except WireError as problem:
            return {str(problem): (0, 0)}

    def _is_read(self, topic: str, records: int) -> bool:
        """As `is_read`. A cluster that does not answer is no sign of that."""
        try:
            positions = self._positions()
        except WireError:
            return False
        return is_read(positions, topic, records)

    def _positions(self) -> dict[str, tuple[int, int]]:
        """Partition -> (committed, log end).

        Raises:
            WireError: the cluster does not say, or not in time.
        """
        partitions = [TopicPartition(topic, p) for topic, count in self._counts.items() for p in range(count)]
        return asyncio.run(_positions(self.kafka.bootstrap_servers, partitions))

    def evidence(self) -> Evidence:
        """Read all evidence, stop the cluster, and look for processes that are left."""
        server = self.cluster.server
        topics: dict[TopicPartition, dict[int, bytes]] = {}
        for topic in self._counts:
            topics |= collect.committed_records(server, topic)
        partitions = [TopicPartition(topic, p) for topic, count in self._counts.items() for p in range(count)]
        ends = collect.log_ends(server, partitions)
        commits = collect.group_commits(server, GROUP)
        self.kafka.stop()
        return Evidence(
            topics=topics,
            log_ends=ends,
            produced=[record for producer in self._all_producers for record in producer.produced],
            applications=self._applications(),
            peers=[peer.evidence for lane in self._peers for peer in lane.peers],
            commits=commits,
            processes_left=self._processes_left(),
            lasting=self._lasting,
            earlier=self._visits.earlier if self._visits is not None else (),
            recreated=self._visits.recreated if self._visits is not None else (),
        )

    def _applications(self) -> list[ApplicationEvidence]:
        logs = [path for node in (1, 2, 3) if (path := self.folder / f"kafka/node-{node}/server.log").exists()]
        removed = collect.expulsions_by_brokers(logs, GROUP)
        converted_at_s = collect.conversions(logs, GROUP)
        given_away = collect.given_away_at_a_return(logs, GROUP)
        return [
            collect.application_evidence(
                query, [*removed, *given_away, *self._cut_off(query), *_claims_forgotten(query, converted_at_s)]
            )
            for query in (self.main, self.second)
        ]

    def _cut_off(self, query: Query) -> list[Expulsion]:
        """A coordinator was away for a whole session: seats give up partitions that they cannot be sure of."""
        return [
            Expulsion(seat=seat, wall_from_s=begin + query.silence_s, wall_to_s=over + query.session_s)
            for begin, over in self._outages
            if over - begin >= query.silence_s
            for seat in query.seats
        ]

    @property
    def _outages(self) -> Sequence[tuple[float, float]]:
        lasting = [(fault.wall_at_s, time.time()) for fault in self._lasting if fault.words]
        return [*self._cluster.outages, *self._network.outages, *lasting]

    def _processes_left(self) -> list[str]:
        """Command lines of processes that have not ended in time. They are killed now."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while (left := self._started_by_us()) and time.monotonic() < deadline:
            time.sleep(0.5)
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        return [command[:200] for _, command in left]

    def _started_by_us(self) -> list[tuple[int, str]]:
        return collect.processes_with(self._marker)


def _claims_forgotten(query: Query, converted_at_s: Sequence[float]) -> list[Expulsion]:
    """A converted group gives away partitions that a seat was asked for, still read, and claimed."""
    return [
        Expulsion(seat=seat, wall_from_s=at_s, wall_to_s=at_s, given_away=True)
        for at_s in converted_at_s
        for seat in query.seats
    ]


def _speaking(protocol: str, session_s: float) -> dict[str, str]:
    """Options of the group protocol. Under the consumer protocol the timeouts are the brokers' settings."""
    if protocol == CONSUMER:
        return {"kafka.group.protocol": CONSUMER}
    return {"kafka.session.timeout.ms": str(int(session_s * 1000)), "kafka.heartbeat.interval.ms": "1000"}


def _read(server: str, topics: Sequence[str], members: int, prefix: str) -> dict[str, str]:
    """Options of a query's stream."""
    return {
        "kafka.bootstrap.servers": server,
        "kafka.group.id": GROUP,
        "subscribe": ",".join(topics),
        "members": str(members),
        "instanceIdPrefix": prefix,
        "startingOffsets": "committed",
        "maxOffsetsPerTrigger": "3000",
        "kafka.auto.offset.reset": "earliest",
        "kafka.isolation.level": "read_committed",
        "kafka.metadata.max.age.ms": "2000",
        "kafka.request.timeout.ms": "5000",
    }


def is_read(positions: Mapping[str, tuple[int, int]], topic: str, records: int) -> bool:
    """Whether a group has committed all of a topic with at least so many records.

    Producers know how many that are. A broker that names an earlier end is not believed.

    Args:
        positions: partition -> (committed, log end).
    """
    of_topic = [pair for name, pair in positions.items() if name.rpartition("-")[0] == topic]
    return all(at == end for at, end in of_topic) and sum(end for _, end in of_topic) >= records


async def _positions(bootstrap_servers: str, partitions: Sequence[TopicPartition]) -> dict[str, tuple[int, int]]:
    """By the engine's own client: librdkafka's admin client crashes the process if brokers vanish while it asks."""
    wire = WireCluster(parse_bootstrap(bootstrap_servers), client_id="chaos", api_timeout_ms=10_000)
    try:
        committed = await wire.groups.committed_offsets(GROUP, partitions)
        ends = await wire.logs.list_offsets(dict.fromkeys(partitions, messages.LATEST))
    finally:
        await wire.close()
    return {
        f"{tp.topic}-{tp.partition}": (found.offset if (found := committed[tp]) is not None else -1, ends[tp].offset)
        for tp in partitions
    }
