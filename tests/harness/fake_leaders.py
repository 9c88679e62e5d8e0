"""Leaders of a `FakeGroup`'s partitions that are cut off and go on answering, and whether our client still asks them.

It hears of a newer leader as `wire.cluster` does: from the next broker that it asks, and never goes back. A new process
knows no epoch, and may ask the old leader first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spark_kgroup.limits import WITNESS_MAX_AGE_MS
from spark_kgroup.model import TopicDescription, TopicPartition
from spark_kgroup.wire.witnesses import NamedLeader

OLD: Final = 0
SECOND: Final = 1
NEW: Final = 2
"""The brokers, by node id: the old leader, one that leads no partition here, and the leader since then."""

SILENT, LAGS = "silent", "lags"


@dataclass
class OldLeader:
    """A leader as of the moment when it was cut off.

    Attributes:
        log: where its log begins and ends.
        told_since_ms: since when our client has heard no other broker.
        words: what the next brokers say that are asked who leads: `SILENT`, or `LAGS` for the old leader. Later ones
            name the new leader.
    """

    epoch: int
    log: tuple[int, int]
    told_since_ms: int
    words: list[str] = field(default_factory=list)


class FakeLeaders:
    """The leader of each partition that our client asks.

    Attributes:
        cut_off: partition -> its old leader, which goes on answering.
        asks_old_first: whether the first broker that a new process asks is the old leader of a partition.
    """

    def __init__(self) -> None:
        self.cut_off: dict[TopicPartition, OldLeader] = {}
        self.asks_old_first: Callable[[], bool] = lambda: True
        self._heard: dict[TopicPartition, int] = {}
        """The newest epoch that our client has heard of."""

    def old(self, tp: TopicPartition) -> OldLeader | None:
        """The old leader, if our client still asks it."""
        old = self.cut_off.get(tp)
        return old if old is not None and self._heard.get(tp, -1) <= old.epoch else None

    def hear(self, tp: TopicPartition, epoch: int) -> None:
        """Our client hears of this epoch."""
        self._heard[tp] = max(epoch, self._heard.get(tp, -1))

    def begin_process(self, epoch: Callable[[TopicPartition], int], now_ms: int) -> None:
        """Our client is a new one."""
        self._heard.clear()
        for tp, old in self.cut_off.items():
            old.told_since_ms = now_ms
            if not self.asks_old_first():
                self.hear(tp, epoch(tp))

    def look_up(self, topics: Mapping[str, TopicDescription], now_ms: int) -> dict[str, TopicDescription]:
        """`topics` as our client sees them: with the epochs of old leaders, until another broker has its turn."""
        seen = dict(topics)
        for tp in self.cut_off:
            if tp.topic not in seen or (old := self.old(tp)) is None:
                continue
            if now_ms - old.told_since_ms > WITNESS_MAX_AGE_MS:
                self.hear(tp, seen[tp.topic].leader_epochs[tp.partition])
            else:
                topic = seen[tp.topic]
                epochs = {**topic.leader_epochs, tp.partition: old.epoch}
                seen[tp.topic] = replace(topic, leader_epochs=epochs)
        return seen

    def ask_another_broker(self, tp: TopicPartition, epoch: int) -> tuple[NamedLeader, NamedLeader]:
        """The leader as our client knows it, and as the next broker names it. The present one leads in `epoch`."""
        if (old := self.old(tp)) is None:
            now = NamedLeader(NEW, leader=NEW, epoch=epoch)
            return now, now._replace(named_by=SECOND)
        before = NamedLeader(OLD, leader=OLD, epoch=old.epoch)
        word = old.words.pop(0) if old.words else ""
        if word == SILENT:
            return before, before
        if word == LAGS:
            return before, before._replace(named_by=SECOND)
        self.hear(tp, epoch)
        return before, NamedLeader(NEW, leader=NEW, epoch=epoch)
