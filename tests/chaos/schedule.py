"""Which faults come, in which order: decided by the seed alone, before anything runs.

Six lanes run side by side, each one event after the other, so that faults of different kinds meet. Whatever must not
happen twice at once (two brokers down, say) is in one lane.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

MAIN_SESSION_S: Final = 20.0
"""Session timeout of the main query: a restart of Spark fits in, also on a busy machine."""

SECOND_SESSION_S: Final = 8.0
"""Session timeout of the second query: what it leaves behind is soon given away (the broker allows 6 s and more)."""


class Fault(Enum):
    """What can happen; the value is what is printed."""

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


PEER_FAULTS: Final = frozenset({Fault.PEER_JOINS, Fault.CONSUMER_PROTOCOL_PEER_JOINS, Fault.JAVA_PEER_JOINS})
"""Somebody else's consumer joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fault.

    Attributes:
        gap_s: quiet time since the lane's last event was over.
        lasts_s: until what was taken away is given back (restarted, resumed, left).
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
"""Fault -> how often in comparison to the lane's others, and how long it lasts."""

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
