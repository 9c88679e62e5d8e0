"""The driver's half of one batch read: which offsets there are to read, as tickets for tasks. It joins no group.

Runs on: driver, in the process in which Spark plans a query.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pyspark_kgroup.driver.batch.leaders import make_ranges
from pyspark_kgroup.driver.batch.timestamps import check_without_record
from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import END_BELOW_ASKED_MS, END_BELOW_MS, LEADER_PATIENCE_MS
from pyspark_kgroup.offsets.data_loss import LogRange, out_of_log, warnings_of
from pyspark_kgroup.offsets.offset_spec import AtTimestamp, OffsetSpec
from pyspark_kgroup.offsets.pieces import OffsetInterval, pieces
from pyspark_kgroup.options.batch_options import BatchOptions
from pyspark_kgroup.options.cluster import cluster_of
from pyspark_kgroup.options.offset_bound import LATEST, OffsetBound, check_order, warnings_of_seconds
from pyspark_kgroup.options.values import join
from pyspark_kgroup.shared.tickets import Mode, SeatRanges, TicketPayload
from spark_kgroup.errors import OptionError, RequestTimedOut, UnknownTopic, WireError
from spark_kgroup.limits import STARTUP_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, TopicDescription, TopicPartition
from spark_kgroup.peer_words import listed
from spark_kgroup.topic_pattern import TopicPattern
from spark_kgroup.wire import messages
from spark_kgroup.wire.cluster import Cluster

log = logging.getLogger(__name__)


def plan_batch(options: BatchOptions) -> list[TicketPayload]:
    """One ticket for each task of the read, none if no offsets are to be read.

    Raises:
        OptionError: topics or logs are not as the options say.
        UnknownTopic: a topic does not exist.
        DataLoss: the read starts where the log does not begin any more, and that is an error (`failOnDataLoss`).
        WireError: brokers cannot be reached, refuse us, or do not answer in time.
    """
    return asyncio.run(_plan(options))


async def _plan(options: BatchOptions) -> list[TicketPayload]:
    cluster = cluster_of(options)
    try:
        read = _BatchRead(cluster, options)
        return await read.plan()
    finally:
        await cluster.close()


class _BatchRead:
    """One read, as brokers see the topics now."""

    def __init__(self, cluster: Cluster, options: BatchOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._awaited: set[TopicPartition] = set()  # no answer came for them at first
        self._left_out: set[TopicPartition] = set()  # nor later, and that is no error

    async def plan(self) -> list[TicketPayload]:
        """See `plan_batch`."""
        options = self._options
        for warning in warnings_of_seconds([options.starting_offsets, options.ending_offsets]):
            log.warning("%s", warning)
        topics = await self._topics()
        # Else an advertised address that leads nowhere would show only when the requests below have timed out.
        await self._cluster.brokers.reach_advertised(timeout_ms=STARTUP_TIMEOUT_MS)
        every = [tp for topic in topics.values() for tp in topic.partitions]
        options.starting_offsets.check(every)
        options.ending_offsets.check(every)
        check_order(options.starting_offsets, options.ending_offsets, every)
        ends = await self._ends(every)
        spans = await self._spans(ends) if ends else {}
        settings = replace(options.read_settings(), cluster=self._cluster.brokers.connections.cluster_id or "")
        return [
            TicketPayload(
                scan_id=0,
                ticket=number,
                mode=Mode.FIXED,
                reads=SeatRanges(seat="", ranges=make_ranges(piece, topics)),
                settings=settings,
                registry=None,
            )
            for number, piece in enumerate(pieces(spans, options.min_partitions, options.max_records_per_partition))
        ]

    async def _topics(self) -> Mapping[str, TopicDescription]:
        subscription = self._options.subscription
        if subscription.pattern is not None:
            return await self._matching(subscription.pattern)
        seen = await self._cluster.metadata(subscription.topics, timeout_ms=STARTUP_TIMEOUT_MS)
        missing = [name for name in subscription.topics if name not in seen.topics]
        hidden = [name for name in missing if seen.errors.get(name) == ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        if hidden:
            raise UnknownTopic(
                f"This user may not see topic {listed(hidden, repr)}: grant READ on it, or correct the option "
                "`subscribe`."
            )
        if missing:
            raise UnknownTopic(
                f"Topic {listed(missing, repr)} does not exist on this cluster, or this user may not see it: "
                "create it, or correct the option `subscribe`."
            )
        return seen.topics

    async def _matching(self, pattern: TopicPattern) -> Mapping[str, TopicDescription]:
        listed_topics = await self._cluster.list_topics(timeout_ms=STARTUP_TIMEOUT_MS)
        chosen = pattern.select(listed_topics.agreed.keys() | listed_topics.doubtful, time.thread_time)
        if not chosen:
            log.warning("No topic that this user may see matches %r.", pattern.java)
        topics = {name: topic for name, topic in listed_topics.agreed.items() if name in chosen}
        if doubtful := listed_topics.doubtful.intersection(chosen):
            topics |= (await self._cluster.metadata(doubtful, timeout_ms=STARTUP_TIMEOUT_MS)).topics
        if missing := [name for name in chosen if name not in topics]:
            log.warning(
                "One broker lists topic %s, and another one does not: it was deleted just now, or this user may not "
                "see it any more. It is not read.",
                listed(missing, repr),
            )
        return topics

    # ----------------------------------------------------------------------------------------------- offsets

    async def _ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where the logs end, of the partitions that are read."""
        if not partitions:
            return {}
        # A leader that was cut off from its cluster answers, too: by its word a read up to `latest` would end early.
        if len(self._cluster.brokers.nodes) > 1:
            await self._cluster.logs.ask_another_broker(partitions, LEADER_PATIENCE_MS)
        return await self._list(dict.fromkeys(partitions, messages.LATEST))

    async def _spans(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInterval]:
        """The offsets to read of each partition, by options."""
        committed = await self._committed(ends)  # first: a group at work may commit beyond listed ends
        logs, readable = await self._logs(self._left(ends), committed)
        committed = {tp: offset for tp, offset in committed.items() if tp in logs}
        starts, stops = await asyncio.gather(self._starts(logs, readable, committed), self._stops(logs, readable))
        left = self._left(logs)
        self._check_found({tp: starts[tp] for tp in left}, stops, readable)
        return {tp: OffsetInterval(starts[tp], stops[tp]) for tp in left}

    def _left(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that are read, in order."""
        return sorted(set(partitions) - self._left_out)

    async def _logs(
        self, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, LogRange], dict[TopicPartition, int]]:
        """The logs, and their readable ends.

        A leader whose log ends below an offset that the read begins or ends at may have been cut off before that offset
        was written. It is looked up at other brokers for `END_BELOW_MS`, if there are any.
        """
        logs, readable = await self._list_logs(partitions)
        needed = self._needed(partitions, committed)
        deadline_s = time.monotonic() + END_BELOW_MS / 1000
        waits = False
        while (short := [tp for tp in self._left(logs) if needed.get(tp, 0) > logs[tp].end_offset]) and (
            len(self._cluster.brokers.nodes) > 1 and time.monotonic() < deadline_s
        ):
            if not waits:
                log.warning(
                    "%s is to be read at offset %d, but its log ends at %d, by the word of one leader: other brokers "
                    "are asked for its leader for %d s at most.",
                    short[0],
                    needed[short[0]],
                    logs[short[0]].end_offset,
                    END_BELOW_MS // 1000,
                )
            else:
                await asyncio.sleep(END_BELOW_ASKED_MS / 1000)
            waits = True
            await self._cluster.logs.ask_another_broker(short, LEADER_PATIENCE_MS)
            logs_again, readable_again = await self._list_logs(short)
            logs |= logs_again
            readable |= readable_again
        return {tp: logs[tp] for tp in self._left(logs)}, readable

    async def _list_logs(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, LogRange], dict[TopicPartition, int]]:
        firsts, ends, readable = await asyncio.gather(
            self._list(dict.fromkeys(partitions, messages.EARLIEST)),
            self._list(dict.fromkeys(partitions, messages.LATEST)),
            self._list(dict.fromkeys(partitions, messages.LATEST), int(self._options.read_committed)),
        )
        # `max`, since the two are listed apart, and retention may have removed all records up to a newer end.
        logs = {tp: LogRange(firsts[tp], max(firsts[tp], ends[tp])) for tp in self._left(partitions)}
        return logs, readable

    def _needed(
        self, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The furthest offset that options or the group name for each partition."""
        options = self._options
        places = [self._places(bound, partitions) for bound in (options.starting_offsets, options.ending_offsets)]
        found = dict(committed)
        for tp, place in (item for each in places for item in each.items()):
            if isinstance(place, int):
                found[tp] = max(found.get(tp, 0), place)
        return found

    def _check_found(
        self,
        starts: Mapping[TopicPartition, int],
        stops: Mapping[TopicPartition, int],
        readable: Mapping[TopicPartition, int],
    ) -> None:
        """Check the order of start and end where one is an offset and the other a timestamp, looked up by now."""
        start, end = self._options.starting_offsets, self._options.ending_offsets
        if start.committed:
            return
        mixed = [
            tp for tp in sorted(starts) if {type(start.offset_of(tp)), type(end.offset_of(tp))} == {int, AtTimestamp}
        ]
        found = [tp for tp in mixed if stops[tp] < readable[tp]]  # else no record was found, and it ends with the log
        if wrong := [f"{tp}: {starts[tp]} to {stops[tp]}" for tp in found if starts[tp] > stops[tp]]:
            raise OptionError(
                f"Option {end.option} lies before {start.option} in {join(wrong)}: a read ends behind its start."
            )

    async def _list(
        self, timestamps: Mapping[TopicPartition, int], isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        """The offsets at these timestamps (ListOffsets).

        A partition without an answer is an error in the end, or left out of the read (`failOnDataLoss`).

        Raises:
            RequestTimedOut: no leader answers for a partition, and that is an error.
            WireError: brokers refuse the question.
        """
        timeout_ms = self._options.api_timeout_ms
        listing = self._cluster.logs.begin_list_offsets(
            timestamps, isolation_level=isolation_level, timeout_ms=timeout_ms
        )
        try:
            answers = await listing.answers(LEADER_PATIENCE_MS)
            if answers.unanswered:
                if news := {tp: why for tp, why in answers.unanswered.items() if tp not in self._awaited}:
                    log.warning("This read waits for a leader of %s", _unanswered(news, timeout_ms))
                self._awaited |= news.keys()
                answers = await listing.answers(timeout_ms)
        finally:
            await listing.close()
        if answers.unanswered:
            which = _unanswered(answers.unanswered, timeout_ms)
            if self._options.fail_on_data_loss:
                raise RequestTimedOut(
                    f"No leader has answered for {which} Bring its broker back (kafka-topics.sh --describe "
                    "--unavailable-partitions shows which), or set failOnDataLoss=false to read without it."
                )
            self._leave_out(answers.unanswered, timeout_ms)
        return {tp: found.offset for tp, found in answers.found.items()}

    def _leave_out(self, why: Mapping[TopicPartition, WireError], waited_ms: int) -> None:
        if news := {tp: error for tp, error in why.items() if tp not in self._left_out}:
            log.warning("No record is read of %s", _unanswered(news, waited_ms))
            self._left_out |= news.keys()

    async def _committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's committed offsets, if the read starts there. One that the coordinator refuses is as in `_list`.

        Raises:
            WireError: it refuses one, and that is an error, or it does not answer.
        """
        group = self._options.group_id
        if not self._options.starting_offsets.committed or group is None:
            return {}
        timeout_ms = self._options.api_timeout_ms
        half_ms = timeout_ms // 2  # the other half is for a coordinator that does not answer
        patience_ms = None if self._options.fail_on_data_loss else half_ms
        answers = await self._cluster.groups.committed_answers(group, partitions, patience_ms, timeout_ms=timeout_ms)
        self._leave_out(answers.unanswered, half_ms)
        return {tp: each.offset for tp, each in answers.found.items() if each is not None}

    async def _starts(
        self,
        logs: Mapping[TopicPartition, LogRange],
        readable: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        start = self._options.starting_offsets
        given = {tp: place for tp, place in self._places(start, logs).items() if isinstance(place, int)}
        self._check_beyond(start, given, logs)
        asked = {**given, **committed}
        nearest = {tp: logs[tp].nearest(offset) for tp, offset in asked.items()}
        self._report_losses({tp: offset for tp, offset in asked.items() if nearest[tp] != offset}, logs)
        rest = {tp: log_range for tp, log_range in logs.items() if tp not in asked}
        return {**await self._looked_up(start, rest, readable), **nearest}

    async def _stops(
        self, logs: Mapping[TopicPartition, LogRange], readable: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        end = self._options.ending_offsets
        given = {tp: place for tp, place in self._places(end, logs).items() if isinstance(place, int)}
        self._check_beyond(end, given, logs)
        self._check_settled(given, readable)
        rest = {tp: log_range for tp, log_range in logs.items() if tp not in given}
        return {**await self._looked_up(end, rest, readable), **given}

    @staticmethod
    def _places(
        bound: OffsetBound, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | OffsetSpec | AtTimestamp]:
        return {tp: bound.offset_of(tp) for tp in partitions}

    async def _looked_up(
        self,
        bound: OffsetBound,
        logs: Mapping[TopicPartition, LogRange],
        readable: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """The offsets of those starts or ends that are not numbers."""
        places = self._places(bound, logs)
        timestamps = {tp: place for tp, place in places.items() if isinstance(place, AtTimestamp)}
        found = await self._at({tp: timestamp.ms for tp, timestamp in timestamps.items()})
        without = {tp: at for tp, at in timestamps.items() if tp not in found and tp not in self._left_out}
        check_without_record(bound, without)
        edges = {tp: logs[tp].first_offset if places[tp] is OffsetSpec.EARLIEST else readable[tp] for tp in logs}
        return {**edges, **found}

    async def _at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offset whose record is not older, for partitions that have one."""
        if not timestamps:
            return {}
        found = await self._list(timestamps, int(self._options.read_committed))
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    # ------------------------------------------------------------------------------------------- what is wrong

    @staticmethod
    def _check_beyond(
        bound: OffsetBound, given: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, LogRange]
    ) -> None:
        beyond = [tp for tp in sorted(given) if given[tp] > logs[tp].end_offset]
        if beyond:
            shown = join([f"{tp}: {given[tp]} (ends at {logs[tp].end_offset})" for tp in beyond])
            latest = f", or {LATEST} for latest" if bound.may_be_latest else ""
            raise OptionError(
                f"Option {bound.option} lies beyond the end of {shown}: give an offset that exists{latest}."
            )

    def _check_settled(self, given: Mapping[TopicPartition, int], readable: Mapping[TopicPartition, int]) -> None:
        """Check that the ends are not behind open transactions, where read_committed cannot read."""
        open_at = [tp for tp in sorted(given) if given[tp] > readable[tp]]
        if self._options.read_committed and open_at:
            shown = join([f"{tp}: {given[tp]} (open since {readable[tp]})" for tp in open_at])
            raise OptionError(
                f"Option {self._options.ending_offsets.option} lies behind transactions that are still open: {shown}. "
                f"Try again when they have ended, or give {LATEST} for what can be read now."
            )

    def _report_losses(self, asked: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, LogRange]) -> None:
        losses = [out_of_log(tp, position, None, logs[tp]) for tp, position in sorted(asked.items())]
        if losses and self._options.fail_on_data_loss:
            tp = losses[0].partition
            remedy = (
                "To read the records that are left, set failOnDataLoss=false, or start where the log begins."
                if asked[tp] < logs[tp].first_offset
                else "Start at earliest, or set the group's offsets anew (kafka-consumer-groups --reset-offsets)."
            )
            raise DataLoss(f"{losses[0]} {remedy}")
        for text in warnings_of(losses):
            log.warning("%s", text)


def _unanswered(why: Mapping[TopicPartition, WireError], timeout_ms: int) -> str:
    """For users: the partitions without an answer, how long one was or is awaited, and the first partition's error."""
    first = min(why)
    return f"{join(sorted(why))} (for {timeout_ms / 1000:g} s, kafka.default.api.timeout.ms): {why[first]}."
