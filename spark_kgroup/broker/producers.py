"""Idempotent producers of one partition (KIP-98): which batch is next, and which one came before. Pure.

Source: Kafka's ProducerStateManager, ProducerStateEntry and ProducerAppendInfo, without transactions.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spark_kgroup.broker.batches import NO_PRODUCER, Batch
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode

BATCHES_REMEMBERED: Final = 5
"""Batches of a producer that are recognised when they come again (ProducerStateEntry.NUM_BATCHES_TO_RETAIN): as many
as a producer may have in flight."""

PRODUCERS_MAX: Final = 10_000
"""Producers that one partition remembers. Kafka forgets them by age (producer.id.expiration.ms, 1 day), and here the
one goes that has been silent for longest. A producer that is forgotten may go on with any sequence number."""


class Place(NamedTuple):
    """Where a batch is in the log.

    Attributes:
        base_offset: the offset of its first record.
        append_time_ms: the timestamp that the append gave its records, or -1 if they have their own. Of a batch that
            came again it is the largest timestamp in either case, as in Kafka (UnifiedLog.append).
    """

    base_offset: int
    append_time_ms: int


@dataclass(slots=True)
class _Producer:
    """One producer: its epoch, and the sequence numbers and places of its last batches."""

    epoch: int
    batches: deque[tuple[int, int, Place]] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))


class Producers:
    """The producers that have written to one partition."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def duplicate_of(self, batch: Batch) -> Place | None:
        """Where the batch is that `batch` repeats, or None (ProducerStateEntry.findDuplicateBatch)."""
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            return None
        sought = batch.base_sequence, batch.last_sequence
        return next((place for first, last, place in producer.batches if (first, last) == sought), None)

    def check(self, batch: Batch) -> None:
        """Check whether `batch` is its producer's next one (ProducerAppendInfo.checkProducerEpoch, checkSequence).

        Raises:
            Refused: it is of an older epoch, or batches before it are missing.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return  # unknown, or forgotten: any sequence number
        if batch.producer_epoch < producer.epoch:
            text = f"producer {batch.producer_id} has epoch {producer.epoch}, and this batch {batch.producer_epoch}"
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        _, last, _ = producer.batches[-1]
        expected = 0 if batch.producer_epoch > producer.epoch else (last + 1) % 2**31
        if batch.base_sequence != expected:
            text = f"producer {batch.producer_id} sent sequence {batch.base_sequence}, and {expected} is next"
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)

    def appended(self, batch: Batch) -> None:
        """Remember a batch AFTER it was appended. It has its place in the log."""
        if batch.producer_id == NO_PRODUCER:
            return
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = self._producers[batch.producer_id] = _Producer(batch.producer_epoch)
        place = Place(batch.base_offset, batch.max_timestamp_ms)
        producer.batches.append((batch.base_sequence, batch.last_sequence, place))
        self._producers.move_to_end(batch.producer_id)
        if len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)
