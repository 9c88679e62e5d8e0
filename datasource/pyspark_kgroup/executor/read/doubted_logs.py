"""The logs that may lack what a range has still to read: when each is looked at, and what brokers have said of it.

Runs on: executor. No I/O.

One answer does not decide. A log that contradicts its range is looked at once a second, each time with another
consumer: a broker that is cut off goes on to answer as one that leads, and librdkafka believes the first broker that it
reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from spark_kgroup.limits import LOOK_AGAIN_MS
from spark_kgroup.model import TopicPartition

_LOOKS_AT_ONCE: Final = 100
"""How many logs are looked at in one round (ours): a look took 3 ms, so a round delays a poll by 0.3 s."""


@dataclass(slots=True)
class Contradiction:
    """Brokers say that a log does not go on at the position up to which it was read.

    Attributes:
        since_s: when the first broker said so.
        looks: how many answers have.
        brokers: the node ids of those that did, as far as they are known.
    """

    since_s: float
    looks: int = 0
    brokers: set[int] = field(default_factory=set)


class DoubtedLogs:
    """Partitions whose logs are to be looked at, and the contradictions that were found."""

    def __init__(self, clock_s: Callable[[], float], partitions: Collection[TopicPartition]) -> None:
        self._clock_s = clock_s
        self._doubted = set(partitions)
        self._contradictions: dict[TopicPartition, dict[int, Contradiction]] = {}  # by the bound of the sign
        self._misled: set[TopicPartition] = set()  # the answers about them were of no use
        self._looked_at_s: dict[TopicPartition, float] = {}
        self._ask_anew_at_s = math.inf

    def __contains__(self, partition: TopicPartition) -> bool:
        """Whether the log is looked at once a second, by one consumer after the other."""
        return partition in self._contradictions or partition in self._misled

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """There is a sign that these logs lack a part of their ranges."""
        self._doubted.update(partitions)

    def take_due(self, among: Collection[TopicPartition]) -> list[TopicPartition]:
        """The partitions `among` these to be looked at: each once for a sign of a loss, and once a second at most."""
        now_s = self._clock_s()
        again_s = now_s - LOOK_AGAIN_MS / 1000
        self._doubted.intersection_update(among)
        left = self._for_the_next_consumer() if self._ask_anew_at_s < math.inf else set()
        due = [each for each in self._doubted - left if self._looked_at_s.get(each, -math.inf) <= again_s]
        # A few at a time: records of other partitions are polled for between two rounds.
        taken = due[:_LOOKS_AT_ONCE]
        self._doubted.difference_update(taken)
        self._looked_at_s.update(dict.fromkeys(taken, now_s))
        return taken

    def take_renewal(self) -> bool:
        """Whether it is time for the next consumer. That one asks for the leaders of these logs anew."""
        if not self._for_the_next_consumer() or self._clock_s() < self._ask_anew_at_s:
            return False
        # One consumer for each look that is answered: a broker that is silent must not end reads of other logs.
        self._ask_anew_at_s = math.inf
        self._doubted |= self._for_the_next_consumer()
        self._misled.clear()
        return True

    def ask_anew(self, partition: TopicPartition) -> None:
        """An answer about this log was of no use: the next consumer is to ask again."""
        self._misled.add(partition)
        self._ask_anew_at_s = self._clock_s() + LOOK_AGAIN_MS / 1000

    def contradict(self, partition: TopicPartition, bound_ms: int) -> Contradiction:
        """A broker says that the log does not go on at its position.

        Each sign has a time of its own, since one broker's word is not a witness of what another one says.

        Args:
            partition: that of the log.
            bound_ms: how long the log is asked at most before this sign is a loss.
        """
        now_s = self._clock_s()
        self._ask_anew_at_s = now_s + LOOK_AGAIN_MS / 1000
        sign = self._contradictions.setdefault(partition, {}).setdefault(bound_ms, Contradiction(now_s))
        sign.looks += 1
        return sign

    def on_agreed(self, partition: TopicPartition) -> None:
        """A broker says that the log goes on at its position."""
        self._contradictions.pop(partition, None)

    def on_read_on(self, partition: TopicPartition) -> None:
        """The log was read beyond its position."""
        self.on_agreed(partition)
        self._misled.discard(partition)

    def _for_the_next_consumer(self) -> set[TopicPartition]:
        return self._contradictions.keys() | self._misled
