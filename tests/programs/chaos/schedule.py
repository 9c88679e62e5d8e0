"""Which faults come, in which order: decided by the seed alone, before any process starts.

Lanes run side by side, each one event after the other, so that faults of different kinds meet. Faults that must not
come twice at once (two brokers down, say) are in one lane.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

MAIN_SESSION_S: Final = 20.0
"""Session timeout of the main query: a restart of Spark fits in, also on a busy machine."""

SECOND_SESSION_S: Final = 8.0
"""Session timeout of the second query: its partitions are soon given away (the broker allows 6 s and more)."""


class Fault(Enum):
    """All faults. The value is printed."""

    KILL_DRIVER = "SIGKILL the driver and all its processes"
    RESTART_DRIVER = "stop the query in good order and start it again"
    PAUSE_DRIVER = "SIGSTOP the driver and all its processes"
    KILL_WORKER = "SIGKILL a Python worker"
    KILL_READER = "SIGKILL the stream reader"
    SECOND_JOINS = "the second query joins"
    PEER_JOINS = "a librdkafka consumer joins"
    CONSUMER_PROTOCOL_PEER_JOINS = "a librdkafka consumer with group.protocol=consumer joins"
    JAVA_PEER_JOINS = "a Java consumer joins"
    KILL_BROKER = "SIGKILL a broker"
    PAUSE_BROKER = "SIGSTOP a broker"
    ROLL_BROKERS = "restart the brokers one after the other"
    KILL_ALL_BROKERS = "SIGKILL all brokers"
    ADD_PARTITIONS = "add a partition"
    CUT_OFF_BROKER = "cut a broker off from the others; it goes on answering clients"
    MUTE_BROKER = "a broker hears the others, and they do not hear it"
    LOSE_REQUESTS = "what clients send to a broker does not arrive"
    LOSE_ANSWERS = "what a broker answers to clients does not arrive"
    SLOW_ANSWERS = "what a broker answers to clients comes late"
    RESET_ANSWERS = "a broker's answers end in their midst with a reset"
    RESET_CLIENTS = "reset every connection of a client"
    FILL_DISK = "a broker's disk is full"
    REVOKE_RIGHT = "take a right away from the main query, and give it back"
    OTHER_PASSWORD = "change the main query's password, and change it back"
    RENEW_CERTIFICATE = "renew the second query's certificate, and reset every connection"
    FOREIGN_CERTIFICATE = "put a certificate in the second query's place that no broker knows"
    QUOTAS = "limit the main query by quotas"
    REASSIGN = "make other replicas the leaders, the group's coordinator too"
    RECREATE_TOPIC = "recreate a topic, once all of it was read"
    JUMP_CLOCK = "the clock of the main query's host jumps, and back"
    TWO_MINDS = "a broker answers Metadata as before, while another one is cut off and leaders move"


PEER_FAULTS: Final = frozenset({Fault.PEER_JOINS, Fault.CONSUMER_PROTOCOL_PEER_JOINS, Fault.JAVA_PEER_JOINS})
"""Faults in which a consumer of another client joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fault.

    Attributes:
        gap_s: quiet time since the lane's last event was over.
        lasts_s: until the fault is healed (restarted, resumed, left).
        pick: which one of several (brokers, workers, topics), from 0 to 1.
        harsh: how a query that joined goes again: by SIGKILL, or in good order.
        early: whether it comes even if its query has not done a batch since it was started.
    """

    fault: Fault
    gap_s: float
    lasts_s: float
    pick: float
    harsh: bool
    early: bool


Duration = Callable[[Random], float]


def _between(least_s: float, most_s: float) -> Duration:
    return lambda random: random.uniform(least_s, most_s)


def _around_the_session(session_s: float) -> Duration:
    """Mostly well within the session, sometimes well beyond it."""
    return lambda random: random.choice(
        [random.uniform(0, session_s / 4), random.uniform(0, session_s / 4), random.uniform(1.2, 1.6) * session_s]
    )


_INSTANT: Final = _between(0, 0)

Odds = Mapping[Fault, tuple[int, Duration]]
"""Fault -> how often in comparison to the lane's other faults, and how long it lasts."""

LANES: Final[Mapping[str, tuple[Duration, Odds]]] = {
    "main": (
        _between(4, 14),
        {
            Fault.KILL_DRIVER: (4, _around_the_session(MAIN_SESSION_S)),
            Fault.RESTART_DRIVER: (1, _between(0, 3)),
            Fault.PAUSE_DRIVER: (3, _around_the_session(MAIN_SESSION_S)),
            Fault.KILL_WORKER: (3, _INSTANT),
            Fault.KILL_READER: (2, _INSTANT),
        },
    ),
    "second": (_between(5, 25), {Fault.SECOND_JOINS: (1, _between(25, 70))}),
    "peers": (_between(2, 20), {Fault.PEER_JOINS: (1, _between(5, 25))}),
    "848": (_between(5, 25), {Fault.CONSUMER_PROTOCOL_PEER_JOINS: (1, _between(15, 45))}),
    "java": (_between(5, 25), {Fault.JAVA_PEER_JOINS: (1, _between(15, 45))}),
    "cluster": (
        _between(6, 20),
        {
            Fault.KILL_BROKER: (4, _between(1, 12)),
            Fault.PAUSE_BROKER: (3, _between(1, 15)),
            Fault.ROLL_BROKERS: (1, _between(1, 2)),
            Fault.KILL_ALL_BROKERS: (1, _between(0, 6)),
            Fault.ADD_PARTITIONS: (2, _INSTANT),
            Fault.FILL_DISK: (1, _between(3, 12)),
        },
    ),
    "operator": (
        _between(4, 14),
        {
            # A right or a login that was good may be refused for a minute (README).
            Fault.REVOKE_RIGHT: (3, _between(3, 25)),
            Fault.OTHER_PASSWORD: (2, _between(3, 25)),
            Fault.RENEW_CERTIFICATE: (2, _INSTANT),
            Fault.FOREIGN_CERTIFICATE: (2, _between(3, 25)),
            Fault.QUOTAS: (2, _between(5, 20)),
            Fault.REASSIGN: (3, _INSTANT),
            Fault.RECREATE_TOPIC: (2, _INSTANT),
            Fault.JUMP_CLOCK: (2, _between(5, 40)),
        },
    ),
    "network": (
        _between(4, 14),
        {
            Fault.CUT_OFF_BROKER: (4, _between(5, 25)),
            Fault.MUTE_BROKER: (1, _between(5, 20)),
            Fault.LOSE_REQUESTS: (2, _between(2, 15)),
            Fault.LOSE_ANSWERS: (3, _between(2, 15)),
            Fault.SLOW_ANSWERS: (2, _between(5, 20)),
            Fault.RESET_ANSWERS: (3, _between(3, 15)),
            Fault.RESET_CLIENTS: (1, _INSTANT),
            Fault.TWO_MINDS: (3, _between(8, 25)),
        },
    ),
}


def schedule(lane: str, seed: int, minutes: float) -> Sequence[Event]:
    """The lane's events, a few more than there will be time for."""
    random = Random(f"{seed} {lane}")
    gap, odds = LANES[lane]
    faults = list(odds)
    weights = [weight for weight, _ in odds.values()]
    events: list[Event] = []
    seconds = 0.0
    while seconds < minutes * 60:
        fault = random.choices(faults, weights)[0]
        event = Event(
            fault=fault,
            gap_s=round(gap(random), 1),
            lasts_s=round(odds[fault][1](random), 1),
            pick=random.random(),
            harsh=random.random() < 0.5,
            early=random.random() < 0.3,
        )
        seconds += event.gap_s + event.lasts_s
        events.append(event)
    return events
