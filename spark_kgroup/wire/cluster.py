"""A cluster as a client sees it: its topics, their leaders and the ends of their logs. `groups` has its groups.

Every public call has a bound on all of it. Within that bound, a call that only asks (metadata, offsets, descriptions)
is tried again after retriable errors, with backoff and jitter. Connections are pooled, one per broker, and opened anew
when they ended. A session's own connection comes from `Coordinators.open`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from spark_kgroup.errors import BrokerError, RequestTimedOut, UnknownTopic, WireError
from spark_kgroup.limits import (
    API_TIMEOUT_MS,
    AUTHORIZATION_GRACE_MS,
    PARTITIONS_AT_ONCE_MAX,
    REPLACED_TOPICS_MAX,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MAX_MS,
    TOPIC_ABSENT_AFTER_MS,
    TOPIC_GONE_AFTER_MS,
    TOPIC_NAMES_KNOWN_MS,
    TOPIC_NAMES_MISSED_MS,
    TOPIC_PATIENCE_MS,
)
from spark_kgroup.model import ErrorCode, TopicDescription, TopicPartition
from spark_kgroup.peer_words import listed
from spark_kgroup.rights import RIGHTS_MISSING
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.brokers import Brokers, NotKnownYet, end_after
from spark_kgroup.wire.groups import Coordinators, Groups
from spark_kgroup.wire.listing import Errors, Found, OffsetListing
from spark_kgroup.wire.responses import (
    ClusterMetadata,
    ListedOffset,
    UnclearTopic,
    has_fewer_partitions,
    has_older_leaders,
    parse_metadata,
    take_listed,
    with_known_epochs,
)
from spark_kgroup.wire.security.settings import Plaintext, Security
from spark_kgroup.wire.witnesses import Denials, NamedLeader, NewIds, UnclearTopics, Witnesses

__all__ = ["Cluster", "ClusterMetadata", "KnownTopics", "ListedOffset", "Logs"]

log = logging.getLogger(__name__)

_NO_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""The error codes of a broker that knows no such topic."""


class KnownTopics:
    """The topics and leaders that brokers have told of, and how much of what they tell is believed. No I/O.

    Args:
        witnesses: the order in which brokers are asked.
        topic_ids: topic -> the id that an earlier process of this application knew last.
        now_s: the clock.

    Attributes:
        topics: name -> the topic, as a broker described it last.
        leaders: partition -> node id. A partition is absent while its leader is not known.
    """

    def __init__(
        self,
        witnesses: Witnesses,
        topic_ids: Mapping[str, UUID] = MappingProxyType({}),
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topics: dict[str, TopicDescription] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self._internal: set[str] = set()
        self._witnesses = witnesses
        self._ids_before: Final = topic_ids
        self._now_s = now_s
        self._replaced: dict[UUID | None, None] = {}
        self._new_ids = NewIds()
        self._denials = Denials()
        self._unclear = UnclearTopics()
        self._told_by: dict[str, Address] = {}
        """Topic -> the broker whose metadata were the last about it, its leaders included."""
        self._described_by: dict[str, int | None] = {}
        """Topic -> the node id, if it is known, of the broker that described the topic last."""

    def hear(
        self, found: ClusterMetadata, witness: Address, node: int | None, *, named: bool, alone: bool = False
    ) -> ClusterMetadata:
        """Remember the metadata of the broker at `witness`, whose id is `node`, if that is known.

        Each topic is taken for itself: an error that may pass, unless it denies the topic, leaves open whether this
        topic exists, and a broker that knows less of one topic may be right about the others. If topics were not
        `named`, such errors leave them out, but for LEADER_NOT_AVAILABLE: that topic is being created. A broker that is
        `alone` in its cluster is believed at once where it names a new topic id: no second broker can confirm it.

        Returns:
            `found` with its unclear topics. A topic of which the broker knows less is in no other part of it.
        """
        waited_for = ErrorCode.may_pass if named else {ErrorCode.LEADER_NOT_AVAILABLE}.__contains__
        errors = {
            topic: BrokerError("Metadata", code, topic)
            for topic, code in found.errors.items()
            if waited_for(code) and code not in _NO_TOPIC
        }
        now_s = self._now_s()
        # Before `_believe`, which would make this answer the knowledge that it is compared with.
        behind = self._behind(found)
        unconfirmed = set() if alone else self._unconfirmed(found, node, now_s) - behind
        why = dict.fromkeys(behind, "knows less than another did")
        why |= dict.fromkeys(unconfirmed, "is so far the only one that says it was created again")
        for topic, reason in why.items():
            message = f"this broker {reason}: {topic}"
            errors[topic] = BrokerError("Metadata", ErrorCode.LEADER_NOT_AVAILABLE, message)
        found = _without(why.keys(), found)
        self._believe(found, witness)
        self._described_by.update(dict.fromkeys(found.topics, node))
        for topic, code in found.errors.items():
            if code in _NO_TOPIC:
                self._denials.add(topic, node, now_s)
        self._unclear.forget({*found.topics, *(t for t, code in found.errors.items() if code in _NO_TOPIC)})
        for topic in {*errors, *(t for t, code in found.errors.items() if code not in _NO_TOPIC)}:
            self._unclear.add(topic, now_s)
        return replace(found, unclear={t: UnclearTopic(error, self._unclear.since_s(t)) for t, error in errors.items()})

    def _behind(self, found: ClusterMetadata) -> set[str]:
        """The topics of which this broker knows less than another did, and has not heard of a change yet.

        No topic ever loses partitions, no leader's epoch goes back, and no topic id comes back. To believe it would
        make the leader of a group rebalance twice, or a reader go back to where a log ended at a leader that was cut
        off, or take a topic for a third one.
        """
        return {
            name
            for name, topic in found.topics.items()
            if has_fewer_partitions(topic, known := self.topics.get(name))
            or has_older_leaders(topic, known)
            or topic.topic_id in self._replaced
        }

    def _unconfirmed(self, found: ClusterMetadata, node: int | None, now_s: float) -> set[str]:
        """The topics that this broker names under another id than the known one, which no second witness confirms yet.

        1. A broker is cut off. 2. A topic is created anew. 3. This process starts, and learns the new id from another
        broker. 4. The broker that is cut off is asked. The id that it names is new to this process, and older.
        """
        unconfirmed = set()
        for name, topic in found.topics.items():
            # Without topic ids a topic that was created anew cannot be told from the old one.
            if (known := self._known_id(name)) is None:
                continue
            if topic.topic_id == known:
                self._new_ids.contradict(name, node)
            elif topic.topic_id not in self._replaced:
                # A start, which is to end soon, waits as for a topic that one broker denies.
                alone_for_ms = TOPIC_GONE_AFTER_MS if name in self.topics else TOPIC_ABSENT_AFTER_MS
                if not self._new_ids.suffice(name, topic.topic_id, node, now_s, alone_for_ms):
                    unconfirmed.add(name)
        return unconfirmed

    def _known_id(self, topic: str) -> UUID | None:
        return self.topics[topic].topic_id if topic in self.topics else self._ids_before.get(topic)

    def _believe(self, found: ClusterMetadata, witness: Address) -> None:
        for name, topic in found.topics.items():
            if (old := self._known_id(name)) not in (None, topic.topic_id):
                self._replaced[old] = None
                self._new_ids.forget(name)
        while len(self._replaced) > REPLACED_TOPICS_MAX:
            # The oldest one: a dict keeps the order of insertion.
            del self._replaced[next(iter(self._replaced))]
        self.topics.update({n: with_known_epochs(t, self.topics.get(n)) for n, t in found.topics.items()})
        self._internal |= found.internal
        # A partition for which the answer names no leader has lost its old one, too.
        self.leaders = {tp: leader for tp, leader in self.leaders.items() if tp.topic not in found.topics}
        self.leaders.update(found.leaders)
        self._told_by.update(dict.fromkeys([*found.topics, *found.errors], witness))
        self._denials.forget(found.topics.keys())

    def check_unclear(self, found: ClusterMetadata, patience_ms: int | None) -> None:
        """Raise the error of unclear topics that the others of a look wait for (`Cluster.metadata`)."""
        waiting = [found.unclear[t].error for t in sorted(found.unclear) if self._is_waited_for(t, patience_ms)]
        if waiting:
            code = waiting[0].code
            # With a patience, `with_last_seen` warns of the topic, so the retries need not.
            kind = BrokerError if patience_ms is None else NotKnownYet
            raise kind("Metadata", code, listed([str(error.message) for error in waiting if error.code == code]))

    def check_denied(self, found: ClusterMetadata, absent_after_ms: int, patience_ms: int | None) -> None:
        """The same of topics that are denied, or refused, and do not count as unknown yet."""
        denied = {
            topic: code
            for topic, code in found.errors.items()
            if topic not in found.unclear
            and not self.is_gone(topic, code, absent_after_ms)
            # A denial is waited for regardless of the patience: only more denials, or an answer, decide it.
            and (code in _NO_TOPIC or self._is_waited_for(topic, patience_ms))
        }
        if not denied:
            return
        self.doubt(denied)
        told = patience_ms is not None and not _NO_TOPIC & set(denied.values())
        kind = BrokerError if self.topics.keys() & denied and not told else NotKnownYet
        error = kind("Metadata", denied[min(denied)], listed(sorted(denied)))
        # The topic does not count as unknown yet, so a later answer may differ from this one.
        error.retriable = True
        raise error

    def errors_in(self, found: ClusterMetadata) -> dict[str, WireError]:
        """The error of each topic in `found`. It is retriable while the topic does not count as unknown."""
        errors: dict[str, WireError] = {}
        for topic, code in found.errors.items():
            errors[topic] = BrokerError("Metadata", code, topic)
            if code not in _NO_TOPIC:  # which is retriable anyway
                errors[topic].retriable |= not self.is_gone(topic, code, 0)
        return errors | {topic: unclear.error for topic, unclear in found.unclear.items()}

    def _is_waited_for(self, topic: str, patience_ms: int | None) -> bool:
        return patience_ms is None or (self._now_s() - self._unclear.since_s(topic)) * 1000 < patience_ms

    def with_last_seen(self, found: ClusterMetadata) -> ClusterMetadata:
        """`found`, with each topic of which brokers do not say what it is as they described it last, if they did."""
        missing = {t for t, code in found.errors.items() if code not in _NO_TOPIC and not self.is_gone(t, code, 0)}
        missing |= found.unclear.keys()
        seen = {t: self.topics[t] for t in missing & self.topics.keys() if not self.is_denied(t)}
        for topic in sorted(missing):
            if self._unclear.tell(topic):
                unclear = found.unclear.get(topic)
                why = unclear.error if unclear else BrokerError("Metadata", found.errors[topic], topic)
                left = "taken to be as it was" if topic in seen else "left out"
                log.warning(
                    "Brokers do not describe topic %r now (%s), so it is %s. Other topics are not affected.",
                    topic,
                    why,
                    left,
                )
        internal = found.internal | (self._internal & seen.keys())
        return replace(found, topics={**found.topics, **seen}, internal=internal)

    def is_replaced(self, topic_id: UUID) -> bool:
        """Whether a topic of this id was there, and has another id by now."""
        return topic_id in self._replaced

    def is_gone(self, topic: str, code: int, absent_after_ms: int) -> bool:
        """Whether a topic that was answered with `code` counts as unknown by now."""
        if code in _NO_TOPIC:
            patience_ms = TOPIC_GONE_AFTER_MS if topic in self.topics else absent_after_ms
            return self._denials.suffice(topic, patience_ms)
        patience_ms = AUTHORIZATION_GRACE_MS if code in RIGHTS_MISSING else TOPIC_GONE_AFTER_MS
        # Patience is for topics that were there before. The first refusal of any other one is final.
        return topic not in self.topics or (self._now_s() - self._unclear.since_s(topic)) * 1000 >= patience_ms

    def is_denied(self, topic: str) -> bool:
        """Whether two brokers deny `topic`, or it has been denied for `TOPIC_GONE_AFTER_MS`."""
        return self._denials.suffice(topic, TOPIC_GONE_AFTER_MS)

    def are_gone(self, topics: Set[str], began_s: float) -> bool:
        """Whether one of `topics`, of which partitions have been denied since `began_s`, counts as unknown by now."""
        denied_ms = (self._now_s() - began_s) * 1000
        known = topics & self.topics.keys()
        if any(self.is_denied(topic) for topic in known):
            return True
        if denied_ms < (TOPIC_GONE_AFTER_MS if known else TOPIC_ABSENT_AFTER_MS):
            return False
        self._denials.believe(topics)  # `Cluster.metadata` waits no more
        return True

    def doubt(self, topics: Iterable[str]) -> None:
        """The last metadata about these topics were of no use: the next question goes to another broker."""
        for told_by in {self._told_by[topic] for topic in topics if topic in self._told_by}:
            self._witnesses.doubt(told_by)

    def named_leader(self, tp: TopicPartition) -> NamedLeader | None:
        """The leader of a partition, as the last description of its topic names it, if it came from a known broker."""
        named_by, leader = self._described_by.get(tp.topic), self.leaders.get(tp)
        if named_by is None or leader is None:
            return None
        return NamedLeader(named_by, leader, self.topics[tp.topic].leader_epochs.get(tp.partition, -1))

    def forget_leader(self, tp: TopicPartition, node: int) -> None:
        """This node does not lead the partition, if it was thought to."""
        if self.leaders.get(tp) == node:
            del self.leaders[tp]


class Logs:
    """Offsets of partitions' logs, each asked of the partition's leader.

    Args:
        brokers: to ask.
        known: topics and leaders.
        look_up: asks a broker once for metadata of some topics, or raises a `WireError`. `known` learns of them.
    """

    def __init__(
        self, brokers: Brokers, known: KnownTopics, look_up: Callable[[Sequence[str]], Awaitable[ClusterMetadata]]
    ) -> None:
        self._brokers = brokers
        self._retries = brokers.retries
        self._known = known
        self._look_up = look_up

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: int | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        """Offsets by timestamp (`messages.LATEST`, `messages.EARLIEST`), each from its partition's leader.

        Args:
            wanted: partition -> timestamp in ms, or one of the two.
            isolation_level: 0 read_uncommitted, 1 read_committed (the end is then the last stable offset).
            timeout_ms: bound on all of it.

        Returns:
            An entry for each partition in `wanted`.

        Raises:
            UnknownTopic: two brokers deny a topic that was there, or a partition still does not exist after
                `TOPIC_GONE_AFTER_MS` (`TOPIC_ABSENT_AFTER_MS`, if its topic was never seen), or when the time is up.
            WireError: leaders could not be found or reached in time.
        """
        found: dict[TopicPartition, ListedOffset] = {}
        began_s = time.monotonic()

        async def attempt() -> dict[TopicPartition, ListedOffset]:
            try:
                return await self._list_missing(wanted, isolation_level, found)
            except BrokerError as error:
                topics = {tp.topic for tp in wanted.keys() - found.keys()}
                if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._known.are_gone(topics, began_s):
                    raise _unknown(error) from error
                raise

        try:
            return await self._retries.run(attempt, timeout_ms, "ListOffsets")
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise _unknown(error) from error

    def begin_list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: int | None = None
    ) -> OffsetListing:
        """As `list_offsets`, but each partition is answered when its own leader answers. Close the listing.

        A partition counts as unknown before the time is up only if brokers' metadata deny its topic.
        """

        async def list_at(node: int, part: Mapping[TopicPartition, int], found: Found, errors: Errors) -> None:
            await self._list_at(node, part, isolation_level, found, errors)

        timeout_ms = timeout_ms or self._retries.api_timeout_ms
        return OffsetListing(wanted, self._by_leader, list_at, self._check_listed, self._retries.backoff(), timeout_ms)

    async def ask_another_broker(
        self, partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, tuple[NamedLeader, ...]]:
        """Look the leaders of `partitions` up once more, at another broker than the one that named them.

        If that broker names a newer leader, later questions go to that one. No answer is no error.

        Returns:
            For each partition the leader as it was named before, and as it is named now. A broker whose node id is not
            known, or which knows less of a topic than another did, is no witness.
        """
        topics = sorted({tp.topic for tp in partitions})
        before = {tp: self._known.named_leader(tp) for tp in partitions}
        self._known.doubt(topics)
        try:
            async with end_after(timeout_ms):
                await self._look_up(topics)
        except WireError as error:
            log.debug("No other broker has named the leaders of %s: %s", listed(topics), error)
        named = {tp: (before[tp], self._known.named_leader(tp)) for tp in partitions}
        return {tp: tuple(each for each in both if each is not None) for tp, both in named.items()}

    def _check_listed(self, found: Found, errors: Errors) -> None:
        """Raise an error that no further question about offsets can mend."""
        for error in errors.values():
            self._retries.be_patient(error, "ListOffsets")
            if not error.retriable:
                raise error
        refused = [error for error in errors.values() if isinstance(error, BrokerError)]
        for error in refused:
            denied = error.api == "Metadata" and error.code in _NO_TOPIC
            if denied and self._known.is_denied(str(error.message)):
                raise _unknown(error)
        if found and not any(error.code in RIGHTS_MISSING for error in refused):
            self._retries.rights_to("ListOffsets").on_granted()

    async def _by_leader(
        self, wanted: Mapping[TopicPartition, int], errors: dict[TopicPartition, WireError]
    ) -> dict[int, dict[TopicPartition, int]]:
        """`wanted` by the node that leads each. For a partition without a leader `errors` gets the reason."""
        lacking = wanted.keys() - self._known.leaders.keys()
        told: Mapping[str, WireError] = {}
        unclear: Collection[str] = ()
        if lacking:
            try:
                found = await self._look_up(sorted({tp.topic for tp in lacking}))
                told, unclear = self._known.errors_in(found), found.unclear
            except WireError as error:
                errors.update(dict.fromkeys(lacking - self._known.leaders.keys(), error))
                lacking = set()
        for tp in sorted(lacking - self._known.leaders.keys()):
            absent = tp.topic in self._known.topics and tp.partition >= self._known.topics[tp.topic].partition_count
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if absent else ErrorCode.LEADER_NOT_AVAILABLE
            errors[tp] = told.get(tp.topic) or BrokerError("ListOffsets", code, str(tp))
            if tp.topic not in unclear:  # else the broker that answered is doubted, which may not be that one
                self._known.doubt([tp.topic])
        grouped: dict[int, dict[TopicPartition, int]] = {}
        for tp, timestamp in wanted.items():
            if tp in self._known.leaders:
                grouped.setdefault(self._known.leaders[tp], {})[tp] = timestamp
        return grouped

    async def _list_missing(
        self, wanted: Mapping[TopicPartition, int], isolation_level: int, found: dict[TopicPartition, ListedOffset]
    ) -> dict[TopicPartition, ListedOffset]:
        """`found`, completed to all of `wanted`. Each leader is asked once, whether or not another one answers.

        Raises:
            WireError: that of one partition. An error that no further attempt can mend goes first.
        """
        missing = {tp: at for tp, at in wanted.items() if tp not in found}
        errors: dict[TopicPartition, WireError] = {}
        by_leader = await self._by_leader(missing, errors)
        await asyncio.gather(
            *(self._list_at(node, part, isolation_level, found, errors) for node, part in by_leader.items())
        )
        if errors:
            raise next((e for e in errors.values() if not e.retriable), next(iter(errors.values())))
        return found

    async def _list_at(
        self,
        node: int,
        wanted: Mapping[TopicPartition, int],
        isolation_level: int,
        found: dict[TopicPartition, ListedOffset],
        errors: dict[TopicPartition, WireError],
    ) -> None:
        """Ask one leader. `found` gets its offsets, `errors` the reasons for the rest, whose leader is forgotten."""
        address = self._brokers.nodes.get(node)
        # Set in advance, because the caller may cancel this call, and each partition needs an error then, too.
        errors |= dict.fromkeys(wanted, RequestTimedOut(f"{address or f'Broker {node}'} has not answered ListOffsets."))
        try:
            if address is None:
                raise BrokerError("ListOffsets", ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node} is not known")
            epochs = {tp: self._known.topics[tp.topic].leader_epochs.get(tp.partition, -1) for tp in wanted}
            response = await self._brokers.connections.ask(
                address, messages.list_offsets(wanted, isolation_level, epochs)
            )
            assert isinstance(response, schema.ListOffsetsResponse)
            errors |= take_listed(response, wanted, found)
        except WireError as error:
            errors |= dict.fromkeys(wanted, error)
        finally:
            # After a cancellation, too: the next attempt is to look for another leader than a silent one.
            unanswered = wanted.keys() - found.keys()
            for tp in wanted.keys() - unanswered:
                errors.pop(tp, None)
            for tp in unanswered:
                self._known.forget_leader(tp, node)
            self._known.doubt({tp.topic for tp in unanswered})


class ListedTopics(NamedTuple):
    """The topics of a cluster.

    Attributes:
        agreed: name -> topic, of those that two brokers list, or the only one that answers.
        doubtful: names that one of two brokers lists alone.
    """

    agreed: Mapping[str, TopicDescription]
    doubtful: frozenset[str]


class _Told(NamedTuple):
    """Metadata, the address of the broker that told them, and its node id if it is known."""

    witness: Address
    node: int | None
    found: ClusterMetadata


class _Names(NamedTuple):
    """Topic ids to names, as a broker knew them at `asked_at_s` or later."""

    names: Mapping[UUID, str]
    asked_at_s: float


class Cluster:
    """A client of one cluster: its metadata, and the parts that share its connections.

    It belongs to one event loop, and must be closed.

    Args:
        topic_ids: see `KnownTopics`. All other arguments: see `Brokers`.

    Attributes:
        brokers: the cluster's, with the connections to them.
        logs: where partitions begin and end, by timestamp.
        coordinators: of groups, and calls to them.
        groups: members, settings and committed offsets.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        security: Security | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        api_timeout_ms: int = API_TIMEOUT_MS,
        rng: Random | None = None,
        alive: Callable[[], bool] = lambda: True,
        cluster_id: str | None = None,
        topic_ids: Mapping[str, UUID] = MappingProxyType({}),
    ) -> None:
        self.brokers = Brokers(
            bootstrap,
            client_id=client_id,
            security=security or Plaintext(),
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            rng=rng or Random(),
            alive=alive,
            cluster_id=cluster_id,
        )
        self._known = KnownTopics(self.brokers.witnesses, topic_ids)
        self.logs = Logs(self.brokers, self._known, self._look_up)
        self.coordinators = Coordinators(self.brokers)
        self.groups = Groups(self.brokers, self.coordinators)
        self._names: dict[tuple[str, ...], _Names] = {}

    async def close(self) -> None:
        """Close every pooled connection. Calls that still wait raise `Disconnected`. Safe to call twice."""
        await self.brokers.close()

    async def metadata(
        self,
        topics: Iterable[str] | None,
        *,
        timeout_ms: int | None = None,
        absent_after_ms: int = TOPIC_ABSENT_AFTER_MS,
        patience_ms: int | None = None,
    ) -> ClusterMetadata:
        """Fresh metadata of `topics` (None: all), from any broker. Unknown topics are in `errors`.

        A topic that was there before is unknown when two brokers deny it, or one for `TOPIC_GONE_AFTER_MS`: otherwise a
        single broker that lags behind would make the leader of a group revoke its partitions from all members.

        Args:
            topics: names.
            timeout_ms: bound on all of it.
            absent_after_ms: how long one broker alone must deny a topic that no broker has known yet until it counts as
                unknown. 0 is for a person who looks, and can look again: any decision needs more than one denial.
            patience_ms: how long a topic may be unclear (`ClusterMetadata.unclear`), or refused that was there before,
                until the others do not wait for it any more. It is then in `topics` as brokers described it last, if
                they have, beside its error. None for as long as the call lasts.

        Raises:
            ConnectionFailed: no broker can be reached.
            WireError: no broker gave a whole answer in time.
        """
        wanted = None if topics is None else sorted(set(topics))
        ends_at_s = time.monotonic() + (timeout_ms or self.brokers.retries.api_timeout_ms) / 1000

        async def attempt() -> ClusterMetadata:
            found = await self._look_up(wanted)
            self._known.check_unclear(found, patience_ms)
            # With no time for another attempt a denial is an answer: it says more than a timeout would.
            if time.monotonic() + RETRY_BACKOFF_MAX_MS / 1000 < ends_at_s:
                self._known.check_denied(found, absent_after_ms, patience_ms)
            return found if patience_ms is None else self._known.with_last_seen(found)

        return await self.brokers.retries.run(attempt, timeout_ms)

    async def list_topics(self, *, timeout_ms: int | None = None) -> ListedTopics:
        """All topics but the internal ones, as two brokers list them, if there is another one that answers.

        A broker that is cut off lacks the topics that were created since, and lists those that were deleted since.

        Args:
            timeout_ms: bound on the first list. Another broker's is waited for for `TOPIC_PATIENCE_MS` at most.

        Raises:
            WireError: as `metadata`.
        """

        async def attempt() -> _Told:
            told = await self._ask(None)
            self._known.check_unclear(told.found, None)
            return told

        told = [await self.brokers.retries.run(attempt, timeout_ms)]
        try:
            async with end_after(TOPIC_PATIENCE_MS):
                # One that answered at a bootstrap address, often an alias, has no node id, and may answer once more.
                for _ in range(len(self.brokers.nodes)):
                    if len({each.node for each in told} - {None}) >= min(2, len(self.brokers.nodes)):
                        break
                    self.brokers.witnesses.doubt(told[-1].witness)
                    told.append(await self._ask(None))
        except WireError as error:
            log.debug("No other broker has listed its topics: %s", error)
        internal = frozenset().union(*(each.found.internal for each in told))
        lists = [each.found.topics.keys() - internal for each in told]
        agreed = set.intersection(*lists)
        newest = told[-1].found.topics
        return ListedTopics({name: newest[name] for name in agreed}, frozenset(set.union(*lists) - agreed))

    def doubt(self, topics: Iterable[str]) -> None:
        """The last metadata about `topics` contradict what a group's members have: ask another broker next."""
        self._known.doubt(topics)

    async def resolve_topic_names(
        self, topic_ids: Set[UUID], topics: Iterable[str], *, timeout_ms: int
    ) -> Mapping[UUID, str]:
        """The names of `topic_ids`, as far as these are ids of `topics`: from the last answer while it is young enough.

        All seats of a process hear new ids within the same moments, and one answer about many partitions is long.

        Raises:
            WireError: as `metadata`.
        """
        key = tuple(sorted(set(topics)))
        if (found := self._names.get(key)) is not None:
            max_age_ms = TOPIC_NAMES_KNOWN_MS if topic_ids <= found.names.keys() else TOPIC_NAMES_MISSED_MS
            found = found if time.monotonic() - found.asked_at_s <= max_age_ms / 1000 else None
        if found is None:
            found = await self.brokers.shared.join_or_start(
                ("names", key), lambda: self._ask_for_names(key, timeout_ms)
            )
        if not topic_ids <= found.names.keys():
            # The coordinator knows these ids. A broker that is cut off would lack them in each answer.
            self._known.doubt(key)
        # The answer at hand may be older than the news that a topic was created anew.
        return {each: found.names[each] for each in topic_ids & found.names.keys() if not self._known.is_replaced(each)}

    async def _ask_for_names(self, topics: tuple[str, ...], timeout_ms: int) -> _Names:
        asked_at_s = time.monotonic()
        metadata = await self.metadata(topics, timeout_ms=timeout_ms, patience_ms=TOPIC_PATIENCE_MS)
        found = _Names({t.topic_id: t.name for t in metadata.topics.values() if t.topic_id is not None}, asked_at_s)
        # The newest answer alone: under a pattern the topics of the key change, and old answers would pile up.
        self._names = {topics: found}
        return found

    async def _look_up(self, topics: Sequence[str] | None) -> ClusterMetadata:
        return (await self._ask(topics)).found

    async def _ask(self, topics: Sequence[str] | None) -> _Told:
        """Metadata of `topics` (None: all) as one broker tells them, in one attempt, and believed."""
        witness, response = await self.brokers.ask_any(messages.metadata(topics))
        assert isinstance(response, schema.MetadataResponse)
        await self.brokers.check_answer(witness, response)
        large = sum(len(topic.partitions) for topic in response.topics) > PARTITIONS_AT_ONCE_MAX
        found = await asyncio.to_thread(parse_metadata, response) if large else parse_metadata(response)
        nodes = found.brokers or self.brokers.nodes
        node = next((node for node, address in nodes.items() if address == witness), None)
        # Of those that were known before, one may be away, and know better.
        alone = len({*nodes.values(), *self.brokers.nodes.values()}) == 1
        found = self._known.hear(found, witness, node, named=topics is not None, alone=alone)
        if found.unclear:
            self.brokers.witnesses.doubt(witness)
        # A broker that knows less of a topic may not know all brokers either, so those that we know stay.
        knows_less = bool(found.unclear.keys() - found.errors.keys())
        self.brokers.nodes = {**nodes, **self.brokers.nodes} if knows_less else nodes
        return _Told(witness, node, found)


def _without(behind: Set[str], found: ClusterMetadata) -> ClusterMetadata:
    """`found` without the topics of which the broker that answered is `behind`."""
    if not behind:
        return found
    return replace(
        found,
        topics={name: topic for name, topic in found.topics.items() if name not in behind},
        leaders={tp: leader for tp, leader in found.leaders.items() if tp.topic not in behind},
    )


def _unknown(error: BrokerError) -> UnknownTopic:
    return UnknownTopic(f"{error.message} does not exist (any more), or this user may not see it.")
