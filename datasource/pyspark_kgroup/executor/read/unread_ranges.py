"""The ranges that a read by librdkafka has not ended: their positions, and what its consumers have said of them.

Runs on: executor. Makes no consumer, and asks no broker: `range_reader` does.

A range is done as soon as no record below its end is left to come. Its last offsets need not be records (transaction
markers, aborted or compacted data), so there are three signs of that: a record at or past the end of the range, an end
of the log there, or the consumer's position, which librdkafka also moves past offsets that it never shows. A log that
lacks a part of the range is not waited for: its leader is asked for the offsets that the log has (`data_loss`). A first
offset beyond the position counts after five looks, an end below it after `END_BELOW_MS`, too. A topic or partition that
brokers do not know counts as deleted if two of them, or all that the cluster has, do not know it for `UNKNOWN_FOR_MS`,
or one does not for `TOPIC_GONE_AFTER_MS`. Until then consumer after consumer asks for the leader anew (`doubted_logs`).
"""

from __future__ import annotations

import logging
import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, cast

import pyarrow as pa
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as AssignedPartition

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka, MalformedBatch
from pyspark_kgroup.executor.native.fetched_log import UnknownTopicId
from pyspark_kgroup.executor.read.consumer_security import credential_files, is_refusal
from pyspark_kgroup.executor.read.doubted_logs import Contradiction, DoubtedLogs
from pyspark_kgroup.limits import BEGINS_BEHIND_MS, END_BELOW_MS, READ_SILENCE_WARNED_MS, UNKNOWN_FOR_MS
from pyspark_kgroup.offsets.data_loss import WAYS_OUT, LogRange, Loss, deleted, out_of_log, recreated
from pyspark_kgroup.shared.arrow import before, last_offsets
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.errors import AuthenticationFailed, BrokerError, KgroupError, WireError
from spark_kgroup.limits import AUTHENTICATION_GRACE_MS, AUTHORIZATION_GRACE_MS, NAMES_LISTED_MAX, TOPIC_GONE_AFTER_MS
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.peer_words import listed, printable_words
from spark_kgroup.rights import Rights

log = logging.getLogger(__name__)

ToBatch = Callable[[Sequence[Message]], pa.RecordBatch]

LOG_LOOK_S: Final = 5.0
"""How long to wait for a log's first and end offset before looking again. Measured: 1 ms."""

_OUT_OF_LOG: Final = frozenset(
    {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}
)
"""librdkafka stops to fetch a partition whose log does not have the position, because we forbid it to jump."""

_READS_MAX: Final = 3
"""How often a record batch with a wrong checksum is read until that is an error (ours): bytes that change on the way
mostly come right the second time."""

_NOT_DECOMPRESSED: Final = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED})
"""Errors of a record batch. librdkafka would report them once, and wait."""

_UNKNOWN_MAGIC: Final = "Unsupported Message(Set) MagicByte"
"""A text of `_NOT_IMPLEMENTED`. Behind a batch with a wrong checksum librdkafka 2.16 may go on to parse where no batch
begins (seen with one flipped bit)."""

_IDLE_LOOK_S: Final = 5.0
"""How long no record may come until a log is looked at, and the time between two looks (ours): librdkafka is silent
about a topic that it may not see."""

_LOOKS_MIN: Final = 5
"""How many looks must find a log too short or absent, however long they take (ours): each asks a broker of its own
choice, and Spark may keep a read waiting for minutes between two of them."""

UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID.value,
    }
)
"""Errors of librdkafka and of brokers by which a topic or partition is absent, so far as one of them knows."""


def partition_of(partition: AssignedPartition) -> TopicPartition:
    """The partition that an object of librdkafka's, which also has an offset, is about."""
    return TopicPartition(partition.topic, partition.partition)


def _partition(message: Message) -> TopicPartition:
    return TopicPartition(cast("str", message.topic()), cast("int", message.partition()))


def _offset(message: Message) -> int:
    return cast("int", message.offset())


def _whole(messages: Sequence[Message]) -> list[Message]:
    """The records among `messages`, without those that follow a damaged batch of their partition."""
    damaged: set[TopicPartition] = set()
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            if not damaged or _partition(message) not in damaged:
                records.append(message)
        elif error.code() == KafkaError._BAD_MSG:
            damaged.add(_partition(message))
    return records


def _denied(error: KafkaError, partition: TopicPartition | None) -> KgroupError | None:
    """The error for the user if `error` says that a right is missing, else None."""
    if error.code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return BrokerError(
            "Fetch", error.code(), str(partition) if partition is not None else printable_words(error.str())
        )
    return None


class UnreadRanges:
    """The ranges that are not done, since when no record has come, and what was said of them.

    Attributes:
        open: the ranges that are not done, by partition.
        files: the certificates that consumers read.
        cluster: the id of the driver's cluster, or "" if it is not known.
        doubted: the logs that may lack a part of their range.
    """

    def __init__(
        self,
        ranges: Sequence[OffsetRange],
        settings: ReadSettings,
        clock_s: Callable[[], float],
        reasons: Mapping[TopicPartition, FallbackToLibrdkafka] = MappingProxyType({}),
        quiet_since_s: float | None = None,
    ) -> None:
        self.open = {TopicPartition(r.topic, r.partition): r for r in ranges if r.start_offset < r.end_offset}
        self._ends = {partition: r.end_offset for partition, r in self.open.items()}
        self._positions = {partition: r.start_offset for partition, r in self.open.items()}
        self._handed_out = dict(self._positions)
        self.cluster = settings.cluster
        self.files = credential_files(settings.consumer_config)
        self._clock_s = clock_s
        self._stall_timeout_s = settings.stall_timeout_ms / 1000
        self._reasons = dict(reasons)
        self._last_error = ""
        self._denied: dict[str, KgroupError] = {}  # by topic, "" where librdkafka names none
        self._rights = defaultdict[str, Rights](partial(Rights, granted=settings.may_read))
        self._fail_on_data_loss = settings.fail_on_data_loss
        self.doubted = DoubtedLogs(
            clock_s, [partition for partition, reason in reasons.items() if isinstance(reason, UnknownTopicId)]
        )
        self._stopped: set[TopicPartition] = set()
        self._damaged: set[TopicPartition] = set()
        self._read_at: dict[TopicPartition, tuple[int, int]] = {}  # position, and how often it was damaged
        self._told = Counter[str]()
        self._turn = 0
        self.resume()
        # Both readers have one deadline, so this one has only the time that the native reader left.
        if quiet_since_s is not None:
            self._deadline_s = quiet_since_s + self._stall_timeout_s

    def resume(self) -> None:
        """Records came, or Spark was busy with a batch: the time without records starts again."""
        self._deadline_s = self._clock_s() + self._stall_timeout_s
        self._warns_at_s: float | None = self._clock_s() + READ_SILENCE_WARNED_MS / 1000
        self._refused_at_s: float | None = None
        self._look_at_s = self._clock_s() + _IDLE_LOOK_S
        self._elsewhere = ""  # that a broker of another cluster has answered
        self._looks: dict[TopicPartition, str] = {}  # the ranges of logs from which no record comes

    def positions(self) -> dict[TopicPartition, int]:
        """Where to go on with the ranges that are not done."""
        return {partition: self._positions[partition] for partition in self.open}

    def not_handed_out(self) -> list[TopicPartition]:
        """Partitions whose position has moved since Spark had the last batch."""
        return [partition for partition, position in self._positions.items() if position > self._handed_out[partition]]

    def on_handed_out(self) -> None:
        """Spark has had all records before the positions."""
        self._handed_out = dict(self._positions)

    def give_up(self, topic: str, planned_id: str, id_: str, pending: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Skip what is left of a topic that was created again, with what has come since Spark had the last batch.

        Returns:
            `pending` without its records, which may be of the later topic.

        Raises:
            DataLoss: `fail_on_data_loss` is set.
        """
        for partition in [partition for partition in self._ends if partition.topic == topic]:
            position, end = self._handed_out[partition], self._ends[partition]
            if position < end:
                self._skip_loss(recreated(partition, position, end, planned_id, id_), end)
                pending = [before(batch, partition, position) for batch in pending]
        return list(pending)

    def take_renewal(self) -> bool:
        """Whether another consumer is to go on.

        Certificates have changed here, while a broker and the consumer refuse each other. Or a log ends below its
        position, or is absent, and another broker is to say who leads it. Or a right is missing, and may be back.
        """
        return self.doubted.take_renewal() or (self._refused_at_s is not None and self.files.take_change())

    def begin_anew(self) -> None:
        """Another consumer goes on, from the positions: the broker that refused the last one may accept it."""
        self._refused_at_s = None
        self._denied.clear()
        self._stopped.clear()

    def on_not_renewed(self) -> None:
        """No other consumer could be made: another one is to look for the rights that are missing."""
        if self._denied:
            for each in self.open:
                self.doubted.ask_anew(each)

    def on_error(self, error: KafkaError, partition: TopicPartition | None = None) -> None:
        """Remember an error of librdkafka's, which tries again by itself, although some errors will not pass.

        It is about `partition`, if librdkafka names one.

        This method does not raise, since librdkafka calls it in the midst of `poll`.
        """
        if is_refusal(error):
            self._refused_at_s = self._refused_at_s or self._clock_s()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # says less than the errors before it
        else:
            # A broker that has gone away may accept us when it is back: it is waited for as any other is.
            self._refused_at_s = None
        denied = _denied(error, partition)
        if not self._last_error:  # the first of this read: if the read fails, its error names the last one
            bounds_s = [self._stall_timeout_s]
            if is_refusal(error):
                bounds_s.append(AUTHENTICATION_GRACE_MS / 1000)
            elif denied is not None:
                bounds_s.append(AUTHORIZATION_GRACE_MS / 1000)
            log.warning("%s. Trying again, for %.0f s at most.", printable_words(error.str()), min(bounds_s))
        self._last_error = printable_words(error.str())
        topic = "" if partition is None else partition.topic
        if denied is not None and topic not in self._denied:
            self._denied[topic] = denied
            for each in self.open if partition is None else [partition]:
                self.doubted.ask_anew(each)  # librdkafka looks again after minutes only
        if error.code() in UNKNOWN:  # for topic.metadata.propagation.max.ms by now. librdkafka names no partition
            self.doubted.add(self.open.keys())

    def accept(self, messages: list[Message], to_batch: ToBatch) -> pa.RecordBatch | None:
        """The records among `messages` that lie within the ranges. Closes the ranges that they end.

        Returns:
            A batch, possibly without rows, or None if there are only errors among `messages`.

        Raises:
            KgroupError: one of the messages says that a range cannot be read.
        """
        errors: list[tuple[Message, KafkaError]] = []
        records = messages
        if any(map(Message.error, messages)):
            errors = [(message, error) for message in messages if (error := message.error()) is not None]
            records = _whole(messages)
        batch = to_batch(records) if records else None
        if batch is not None:
            last = last_offsets(batch)
            for partition, offset in last.items():
                if offset >= self._ends[partition]:
                    batch = before(batch, partition, self._ends[partition])
            self._advance({partition: offset + 1 for partition, offset in last.items()})
        # AFTER the positions have moved past the records before it: a damaged batch is read again from there.
        for message, error in errors:
            self._heed(message, error)
        self._check(waiting=batch is None or not batch.num_rows)
        return batch

    def move(self, positions: Sequence[AssignedPartition]) -> None:
        """Take over the consumer's positions. Those that it does not know are negative.

        Raises:
            KgroupError: a range cannot be read, or no position has moved for too long.
        """
        self._advance({partition_of(position): position.offset for position in positions})
        self._check(waiting=True)

    def _advance(self, positions: Mapping[TopicPartition, int]) -> None:
        for partition, position in positions.items():
            if position > self._positions[partition]:
                self._positions[partition] = position
                self._reasons.pop(partition, None)  # it was about records that are read by now
                self.doubted.on_read_on(partition)
                for topic in ("", partition.topic):
                    self._rights[topic].on_granted()
                    self._denied.pop(topic, None)
                self.resume()
            if position >= self._ends[partition]:
                self.open.pop(partition, None)

    def _heed(self, message: Message, error: KafkaError) -> None:
        """Act on an error event of the consumer for one partition."""
        partition = _partition(message)
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._advance({partition: _offset(message)})
            if partition in self.open:
                self.doubted.add([partition])  # the log ends below the range, or its leader is not up to date yet
        elif partition not in self.open:
            return
        elif code in _OUT_OF_LOG:
            self.doubted.add([partition])
            self._stopped.add(partition)
        elif code == KafkaError._BAD_MSG or partition in self._damaged or _UNKNOWN_MAGIC in error.str():
            self._on_damaged(partition, error)
        elif code in _NOT_DECOMPRESSED:
            raise self._unreadable(partition, error.str())
        else:
            self.on_error(error, partition)

    def _records_from(self, partition: TopicPartition) -> str:
        return f"{partition} has records from offset {self._positions[partition]} on"

    def _unreadable(self, partition: TopicPartition, why: str) -> WireError:
        """The error for a batch whose checksum is right."""
        if isinstance(self._reasons.get(partition), MalformedBatch):
            advice = (
                "As its checksum is right, its producer wrote it so, and no consumer can read it: pass over it with a "
                "fresh checkpoint and startingOffsets, or delete the records up to the next batch "
                "(kafka-delete-records.sh) and set failOnDataLoss=false."
            )
        else:
            advice = (
                "They are not damaged, for their checksum is right. Our own reader reads more than librdkafka: "
                "read with reader=native. Where librdkafka has to read, a batch may become more than it takes at once: "
                "set kafka.receive.message.max.bytes=1000000000."
            )
        return WireError(
            f"{self._records_from(partition)} that librdkafka cannot read: {why}.{self._native_reasons()} {advice}"
        )

    def _on_damaged(self, partition: TopicPartition, error: KafkaError) -> None:
        """Have a batch read again whose checksum is wrong or which makes no sense: librdkafka would go on behind it."""
        if partition in self._damaged:
            return  # librdkafka has fetched it twice before it was told to go back: it is not read again yet
        position = self._positions[partition]
        at, reads = self._read_at.get(partition, (position, 0))
        reads = reads + 1 if at == position else 1
        if reads >= _READS_MAX:
            raise WireError(
                f"{self._records_from(partition)} that cannot be read: {error.str()}, {reads} times in a row. Their "
                "bytes have changed on the way to this machine, or on the broker's disk. First start the query again. "
                "If that does not help, another replica may have them whole: make it the partition's leader. Only if "
                "all replicas are damaged, give them up: delete the records up to the next batch "
                "(kafka-delete-records.sh), and set failOnDataLoss=false."
            )
        log.warning("%s that cannot be read: %s. Reading them again.", self._records_from(partition), error.str())
        self._read_at[partition] = position, reads
        self._damaged.add(partition)

    def take_damaged(self) -> dict[TopicPartition, int]:
        """The partitions to be read again, and from where."""
        taken, self._damaged = self._damaged, set()
        return {partition: self._positions[partition] for partition in taken if partition in self.open}

    def take_idle(self) -> TopicPartition | None:
        """A partition whose log is to be looked at, since no record comes from any. Each has its turn."""
        if not self.open or self._clock_s() < self._look_at_s:
            return None
        self._look_at_s = self._clock_s() + _IDLE_LOOK_S
        self._turn += 1
        chosen = list(self.open)[self._turn % len(self.open)]
        # A log that is asked for once a second anyway: one broker's answer must not count twice.
        return None if chosen in self.doubted else chosen

    def on_idle_look_failed(self, partition: TopicPartition, error: KafkaError) -> None:
        """The log could not be looked at. One answer does not decide whether it is gone."""
        # Codes above 0 are brokers' answers. A code of librdkafka's own says less than an earlier error.
        if error.code() > 0 or not self._last_error:
            self.on_error(error, partition)

    def on_idle_look(self, partition: TopicPartition, log_range: LogRange) -> None:
        """The log has these offsets, and none of their records comes.

        Raises:
            WireError: it was looked at before, and the native reader could not decode its records either.
        """
        if partition in self._looks and isinstance(self._reasons.get(partition), MalformedBatch):
            raise self._unreadable(partition, f"it gives no record of it, and {log_range}")
        self._looks[partition] = str(log_range)

    def on_look_failed(self, partition: TopicPartition, error: KafkaError) -> None:
        """The log could not be looked at, and is looked at again: with another consumer, if a leader denied it.

        Raises:
            KgroupError: this user may not see it, or no record has come for too long.
        """
        if error.code() in UNKNOWN:
            self.doubted.ask_anew(partition)
        else:
            self.doubted.add([partition])
        self.on_error(error, partition)
        self._check(waiting=True)

    def on_another_cluster(self, partition: TopicPartition, error: KafkaError) -> None:
        """A broker of another cluster answered a look: another consumer is to find one of the driver's cluster.

        Raises:
            WireError: no record has come for too long.
        """
        self.doubted.ask_anew(partition)
        if not self._elsewhere:
            log.warning("%s", error.str())
        self._elsewhere = error.str()
        self._check(waiting=True)

    def on_unknown(self, partition: TopicPartition, broker: int, of: int) -> None:
        """A broker does not know the partition. One answer does not decide whether it is gone.

        Args:
            partition: an open one.
            broker: the broker's node id, or -1 if it is not known.
            of: how many brokers the cluster has, as this one says.

        Raises:
            DataLoss: it is gone, and `fail_on_data_loss` is set.
            WireError: no record has come for too long.
        """
        said = self._contradict(partition, "the partition does not exist", TOPIC_GONE_AFTER_MS)
        if broker >= 0:
            said.brokers.add(broker)
        lasts_ms = (self._clock_s() - said.since_s) * 1000
        # Not two alone: in its first moments a topic is not known to all brokers.
        by_enough = len(said.brokers) >= max(1, min(2, of)) and lasts_ms >= UNKNOWN_FOR_MS
        if said.looks < _LOOKS_MIN or not (by_enough or lasts_ms >= TOPIC_GONE_AFTER_MS):
            self._check(waiting=True)
            return
        self._skip_loss(deleted(partition, self._positions[partition], self._ends[partition]), self._ends[partition])

    def compare(self, partition: TopicPartition, log_range: LogRange) -> int | None:
        """Skip the part of the range that the log lacks.

        Returns:
            Where the consumer must go on, or None if it does so by itself.

        Raises:
            DataLoss: the log lacks a part of the range, and `fail_on_data_loss` is set.
        """
        position, end = self._positions[partition], self._ends[partition]
        nearest = log_range.nearest(position)
        if nearest > position:
            # A broker that is cut off may have a log of an earlier topic of this name.
            said = self._contradict(partition, log_range, BEGINS_BEHIND_MS)
            if said.looks < _LOOKS_MIN:
                self._check(waiting=True)
                return None
            self._skip_loss(out_of_log(partition, position, end, log_range), nearest)
        elif nearest == log_range.end_offset:  # and the range is open: it ends further
            said = self._contradict(partition, log_range, END_BELOW_MS)
            if said.looks < _LOOKS_MIN or self._clock_s() - said.since_s < END_BELOW_MS / 1000:
                self._check(waiting=True)
                return None
            self._skip_loss(out_of_log(partition, position, end, log_range), end)
        else:
            self.doubted.on_agreed(partition)
        stopped = partition in self._stopped
        self._stopped.discard(partition)
        return nearest if partition in self.open and (stopped or nearest > position) else None

    def _contradict(self, partition: TopicPartition, said: LogRange | str, bound_ms: int) -> Contradiction:
        """A broker says that the log does not go on at the position, for which it is asked for `bound_ms` at most."""
        sign = self.doubted.contradict(partition, bound_ms)
        if sign.looks == 1:
            # Else a query with a small default.api.timeout.ms would fail at each start, without a word of the loss.
            self._deadline_s = max(self._deadline_s, sign.since_s + bound_ms / 1000 + 2 * LOG_LOOK_S)
            self._warn(
                "asking again",
                f"{partition} is to be read from offset {self._positions[partition]} to {self._ends[partition] - 1}, "
                f"but {said}: asking again for {bound_ms // 1000} s at most before that is a loss.",
            )
        return sign

    def _warn(self, kind: str, text: str) -> None:
        """Warn of one partition, unless as many had such a warning as are listed: a topic may have 10,000 of them."""
        self._told[kind] += 1
        if self._told[kind] <= NAMES_LISTED_MAX:
            log.warning("%s", text)

    def tell_rest(self) -> None:
        """Say of how many partitions no warning was given, at the end of the read."""
        for kind, count in self._told.items():
            if count > NAMES_LISTED_MAX:
                log.warning("%s: the same of %d more partitions.", kind.capitalize(), count - NAMES_LISTED_MAX)

    def _skip_loss(self, loss: Loss, goes_on_at: int) -> None:
        if self._fail_on_data_loss:
            raise DataLoss(f"{loss} {WAYS_OUT}")
        self._warn("data loss", f"Data loss: {loss} Skipping to offset {goes_on_at}.")
        self._advance({loss.partition: goes_on_at})

    def _refusal(self, lasted_s: float) -> str:
        here = self.files.describe()
        return (
            f"A broker and this executor do not accept each other ({self._last_error}), for {lasted_s:.0f} s now, and "
            f"the driver was accepted when it connected.{self._native_reasons()} Either the files and names in the "
            "options of TLS and SASL differ between machines, or one has changed since (a certificate, a CA, "
            "`kafka.sasl.password` or the cluster's users), or a certificate has expired."
            f"{f' On {platform.node()} {here}.' if here else ''}"
        )

    def _check(self, waiting: bool) -> None:
        for topic, denied in self._denied.items():
            if not self._rights[topic].may_come_back(int(self._clock_s() * 1000)):
                raise denied
        if not waiting or not self.open:
            return
        if self._refused_at_s is not None and self._clock_s() > self._refused_at_s + AUTHENTICATION_GRACE_MS / 1000:
            raise AuthenticationFailed(self._refusal(self._clock_s() - self._refused_at_s))
        if self._clock_s() < self._deadline_s:
            self._warn_of_silence()
            return
        if self._denied:
            raise next(iter(self._denied.values()))
        raise WireError(f"No record came for {self._stall_timeout_s:.0f} s from {self._silent()} {self._advice()}")

    def _warn_of_silence(self) -> None:
        """Warn once for each silence: the whole batch waits for this read, and no other log line says why."""
        if self._warns_at_s is None or self._clock_s() < self._warns_at_s:
            return
        self._warns_at_s = None
        log.warning(
            "No record has come for %d s from %s The batch waits for it, for %.0f s more at most.",
            READ_SILENCE_WARNED_MS // 1000,
            self._silent(),
            self._deadline_s - self._clock_s(),
        )

    def _silent(self) -> str:
        """The partitions from which no record comes, with the reasons of both readers."""
        left = listed(
            [f"{partition} (at {self._positions[partition]} of {r.end_offset})" for partition, r in self.open.items()]
        )
        last = f" librdkafka said last: {self._last_error}." if self._last_error else ""
        last += f" {self._elsewhere}" if self._elsewhere else ""
        return f"{left}.{self._native_reasons()}{last}"

    def _native_reasons(self) -> str:
        """Why the native reader has left the ranges that are open."""
        distinct = dict.fromkeys(
            self._reasons[partition].reason for partition in self.open if partition in self._reasons
        )
        return f" Our own reader said before: {listed(list(distinct), between='; ')}." if distinct else ""

    def _advice(self) -> str:
        looks = listed([f"of {partition} {seen}" for partition, seen in self._looks.items() if partition in self.open])
        if not looks:
            return (
                "Executors must reach every broker under the address that it advertises (the broker's "
                "advertised.listeners)."
            )
        return (
            f"Brokers can be reached, and {looks}: librdkafka makes no records of it. Our own reader reads some "
            "batches that librdkafka does not: read with reader=native."
        )
