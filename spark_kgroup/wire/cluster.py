"""A cluster as a client sees it: brokers, topics, leaders, coordinators, offsets.

Every public call has a bound on all of it. Within that bound, a call that only asks (metadata, offsets, descriptions)
is tried again after retriable errors, with backoff and jitter. A call that acts (`open_coordinator`,
`coordinator_call`) is tried once, because its caller knows whether it still wants it. Connections are pooled, one per
broker, and opened anew when they ended. A session's own connection comes from `open_coordinator`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from spark_kgroup.errors import (
    BrokerError,
    ConnectionFailed,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedApi,
    WireError,
)
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
)
from spark_kgroup.model import DescribedGroup, ErrorCode, MemberIdentity, TopicDescription, TopicPartition
from spark_kgroup.peer_words import words_of
from spark_kgroup.rights import RIGHTS_MISSING
from spark_kgroup.wire import messages
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.brokers import ENDS_AT_S, Brokers, NotKnownYet, end_after
from spark_kgroup.wire.committed import CommittedLookUp
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.listing import Answers, Errors, Found, OffsetListing
from spark_kgroup.wire.messages import Request, Response
from spark_kgroup.wire.responses import (
    ClusterMetadata,
    CommittedOffset,
    ListedOffset,
    config_of,
    consumer_description_of,
    description_of,
    group_error_codes,
    has_fewer_partitions,
    has_older_leaders,
    metadata_of,
    still_members,
    take_listed,
    the_only,
    with_known_epochs,
)
from spark_kgroup.wire.security.settings import Plaintext, Security
from spark_kgroup.wire.witnesses import Denials

__all__ = ["Cluster", "ClusterMetadata", "CommittedOffset", "ListedOffset"]

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")


_NO_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""The error codes of a broker that knows no such topic."""


class _Coordinator(NamedTuple):
    """The address of a group's coordinator, and of the broker that named it."""

    address: Address
    told_by: Address


class _Names(NamedTuple):
    """Topic ids to names, as a broker knew them at `asked_at_s` or later."""

    names: Mapping[UUID, str]
    asked_at_s: float


class Cluster(Brokers):
    """A pooled client of one cluster. Belongs to one event loop, and must be closed."""

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
    ) -> None:
        super().__init__(
            bootstrap,
            client_id=client_id,
            security=security or Plaintext(),
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            rng=rng or Random(),
            alive=alive,
        )
        self._topics: dict[str, TopicDescription] = {}
        self._replaced: dict[UUID | None, None] = {}
        self._denials = Denials()
        self._leaders: dict[TopicPartition, int] = {}
        self._told_by: dict[str, Address] = {}
        """Topic -> the broker whose metadata were the last about it, its leaders included."""
        self._coordinators: dict[str, _Coordinator] = {}
        self._looking_up: dict[str, asyncio.Task[Address]] = {}
        self._naming: dict[tuple[str, ...], asyncio.Task[_Names]] = {}
        self._names: dict[tuple[str, ...], _Names] = {}

    async def close(self) -> None:
        """Close every pooled connection. Calls that still wait raise `Disconnected`. Safe to call twice."""
        await self._close([*self._looking_up.values(), *self._naming.values()])

    # ----------------------------------------------------------------------------------------------- metadata

    async def metadata(
        self, topics: Iterable[str] | None, *, timeout_ms: int | None = None, absent_after_ms: int = 0
    ) -> ClusterMetadata:
        """Fresh metadata of `topics` (None: all), from any broker. Unknown topics are in `errors`.

        A topic that was there before is unknown when two brokers deny it, or one for `TOPIC_GONE_AFTER_MS`: otherwise a
        single broker that lags behind would make the leader of a group revoke its partitions from all members.

        Args:
            topics: names.
            timeout_ms: bound on all of it.
            absent_after_ms: how long one broker alone must deny a topic that no broker has known yet until it counts as
                unknown.

        Raises:
            ConnectionFailed: no broker can be reached.
            WireError: no broker gave a whole answer in time.
        """
        wanted = None if topics is None else sorted(set(topics))
        ends_at_s = time.monotonic() + (timeout_ms or self._api_timeout_ms) / 1000

        async def attempt() -> ClusterMetadata:
            found = await self._metadata_once(wanted)
            denied = [t for t, code in found.errors.items() if not self._is_gone(t, code, absent_after_ms)]
            if denied and time.monotonic() + RETRY_BACKOFF_MAX_MS / 1000 < ends_at_s:
                self._doubt(denied)
                kind = BrokerError if self._topics.keys() & denied else NotKnownYet
                error = kind("Metadata", found.errors[min(denied)], ", ".join(sorted(denied)))
                error.retriable = True
                raise error
            return found

        return await self._retry(attempt, timeout_ms)

    async def names_of(self, topic_ids: Set[UUID], topics: Iterable[str], *, timeout_ms: int) -> Mapping[UUID, str]:
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
            found = await self._join_or_start(self._naming, key, lambda: self._ask_for_names(key, timeout_ms))
        return {each: found.names[each] for each in topic_ids & found.names.keys() if each not in self._replaced}

    async def _ask_for_names(self, topics: tuple[str, ...], timeout_ms: int) -> _Names:
        asked_at_s = time.monotonic()
        described = (await self.metadata(topics, timeout_ms=timeout_ms)).topics.values()
        found = _Names({t.topic_id: t.name for t in described if t.topic_id is not None}, asked_at_s)
        self._names = {topics: found}
        return found

    async def reach(self) -> None:
        """Ask every broker that is known once, until one answers: for a person who waits, and can try again.

        Raises:
            ConnectionFailed: no broker can be reached.
            WireError: the peer that answered is no broker, or refuses us.
        """
        async with end_after(self._api_timeout_ms):
            await self._any_broker(messages.metadata(()))

    async def _metadata_once(self, topics: Sequence[str] | None) -> ClusterMetadata:
        witness, response = await self._any_broker(messages.metadata(topics))
        assert isinstance(response, messages.MetadataResponse)
        await self._check_answer(witness, response)
        large = sum(len(topic.partitions) for topic in response.topics) > PARTITIONS_AT_ONCE_MAX
        found = await asyncio.to_thread(metadata_of, response) if large else metadata_of(response)
        try:
            self._believe(found, named=topics is not None)
        except BrokerError:
            self._witnesses.doubt(witness)
            raise
        self._told_by.update(dict.fromkeys([*found.topics, *found.errors], witness))
        self._denials.forget(found.topics.keys())
        node = next((node for node, address in self._brokers.items() if address == witness), None)
        for topic, code in found.errors.items():
            self._denials.add(topic, node if code in _NO_TOPIC else None, time.monotonic())
        return found

    def _is_gone(self, topic: str, code: int, absent_after_ms: int) -> bool:
        """Whether a topic that was answered with `code` counts as unknown by now."""
        if topic in self._topics:
            patience_ms = AUTHORIZATION_GRACE_MS if code in RIGHTS_MISSING else TOPIC_GONE_AFTER_MS
            return self._denials.suffice(topic, patience_ms)
        return code not in _NO_TOPIC or self._denials.suffice(topic, absent_after_ms)

    def _believe(self, found: ClusterMetadata, *, named: bool) -> None:
        """Remember a broker's metadata.

        A topic's error that may pass is raised, unless it denies the topic: it leaves open whether the topic exists. If
        topics were not `named`, only LEADER_NOT_AVAILABLE is raised: one topic must not keep all the rest waiting.

        Raises:
            BrokerError: the broker does not know a topic's state yet, or knows less than another broker did.
        """
        waited_for = ErrorCode.may_pass if named else {ErrorCode.LEADER_NOT_AVAILABLE}.__contains__
        waiting = {t: code for t, code in found.errors.items() if waited_for(code) and code not in _NO_TOPIC}
        if waiting:
            code = waiting[min(waiting)]
            raise BrokerError("Metadata", code, ", ".join(sorted(t for t in waiting if waiting[t] == code)))
        behind = sorted(
            name
            for name, topic in found.topics.items()
            if has_fewer_partitions(topic, known := self._topics.get(name))
            or has_older_leaders(topic, known)
            or topic.topic_id in self._replaced
        )
        if behind:
            # No topic ever loses partitions, no leader's epoch goes back, and no topic id comes back: this broker has
            # not heard of the change yet. To believe it would make the leader of a group rebalance twice, or a reader
            # go back to where a log ended at a leader that was cut off, or take a topic for a third one.
            message = f"this broker knows less than another did: {', '.join(behind)}"
            raise BrokerError("Metadata", ErrorCode.LEADER_NOT_AVAILABLE, message)
        self._brokers = found.brokers or self._brokers
        before = {name: self._topics[name].topic_id for name in found.topics.keys() & self._topics.keys()}
        for name, old in before.items():
            if old not in (None, found.topics[name].topic_id):
                self._replaced[old] = None
        while len(self._replaced) > REPLACED_TOPICS_MAX:
            del self._replaced[next(iter(self._replaced))]
        self._topics.update({n: with_known_epochs(t, self._topics.get(n)) for n, t in found.topics.items()})
        self._leaders = {tp: node for tp, node in self._leaders.items() if tp.topic not in found.topics}
        self._leaders.update(found.leaders)

    def _doubt(self, topics: Iterable[str]) -> None:
        """The last metadata about these topics were of no use: the next question goes to another broker."""
        for told_by in {self._told_by[topic] for topic in topics if topic in self._told_by}:
            self._witnesses.doubt(told_by)

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
                if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._are_gone(topics, began_s):
                    raise _unknown(error) from error
                raise

        try:
            return await self._retry(attempt, timeout_ms, "ListOffsets")
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise _unknown(error) from error

    def _are_gone(self, topics: Set[str], began_s: float) -> bool:
        """Whether one of `topics`, of which partitions have been denied since `began_s`, counts as unknown by now."""
        denied_ms = (time.monotonic() - began_s) * 1000
        known = topics & self._topics.keys()
        if any(self._denials.suffice(topic, TOPIC_GONE_AFTER_MS) for topic in known):
            return True
        if denied_ms < (TOPIC_GONE_AFTER_MS if known else TOPIC_ABSENT_AFTER_MS):
            return False
        self._denials.believe(topics)  # `metadata` waits no more
        return True

    def begin_list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: int | None = None
    ) -> OffsetListing:
        """As `list_offsets`, but each partition is answered when its own leader answers. Close the listing.

        A partition counts as unknown before the time is up only if brokers' metadata deny its topic.
        """

        async def list_at(node: int, part: Mapping[TopicPartition, int], found: Found, errors: Errors) -> None:
            await self._list_at(node, part, isolation_level, found, errors)

        backoff = Backoff(self._rng)
        timeout_ms = timeout_ms or self._api_timeout_ms
        return OffsetListing(wanted, self._by_leader, list_at, self._check_listed, backoff, timeout_ms)

    def _check_listed(self, found: Found, errors: Errors) -> None:
        """Raise an error that no further question about offsets can mend."""
        for error in errors.values():
            self._be_patient(error, "ListOffsets")
            if not error.retriable:
                raise error
        refused = [error for error in errors.values() if isinstance(error, BrokerError)]
        for error in refused:
            denied = error.api == "Metadata" and error.code in _NO_TOPIC
            if denied and self._denials.suffice(str(error.message), TOPIC_GONE_AFTER_MS):
                raise _unknown(error)
        if found and not any(error.code in RIGHTS_MISSING for error in refused):
            self._rights_to("ListOffsets").on_granted()

    async def _by_leader(
        self, wanted: Mapping[TopicPartition, int], errors: dict[TopicPartition, WireError]
    ) -> dict[int, dict[TopicPartition, int]]:
        """`wanted` by the node that leads each. For a partition without a leader `errors` gets the reason."""
        lacking = wanted.keys() - self._leaders.keys()
        denied: Mapping[str, int] = {}
        if lacking:
            try:
                denied = (await self._metadata_once(sorted({tp.topic for tp in lacking}))).errors
            except WireError as error:
                errors.update(dict.fromkeys(lacking - self._leaders.keys(), error))
                lacking = set()
        for tp in sorted(lacking - self._leaders.keys()):
            absent = tp.topic in self._topics and tp.partition >= self._topics[tp.topic].partition_count
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if absent else ErrorCode.LEADER_NOT_AVAILABLE
            no_leader, no_topic = BrokerError("ListOffsets", code, str(tp)), denied.get(tp.topic)
            errors[tp] = no_leader if no_topic is None else BrokerError("Metadata", no_topic, tp.topic)
            self._doubt([tp.topic])
        grouped: dict[int, dict[TopicPartition, int]] = {}
        for tp, timestamp in wanted.items():
            if tp in self._leaders:
                grouped.setdefault(self._leaders[tp], {})[tp] = timestamp
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
        address = self._brokers.get(node)
        errors |= dict.fromkeys(wanted, RequestTimedOut(f"{address or f'Broker {node}'} has not answered ListOffsets."))
        try:
            if address is None:
                raise BrokerError("ListOffsets", ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node} is not known")
            epochs = {tp: self._topics[tp.topic].leader_epochs.get(tp.partition, -1) for tp in wanted}
            response = await self._at(address, messages.list_offsets(wanted, isolation_level, epochs))
            assert isinstance(response, messages.ListOffsetsResponse)
            errors |= take_listed(response, wanted, found)
        except WireError as error:
            errors |= dict.fromkeys(wanted, error)
        finally:
            unanswered = wanted.keys() - found.keys()
            for tp in wanted.keys() - unanswered:
                errors.pop(tp, None)
            for tp in unanswered:
                if self._leaders.get(tp) == node:
                    del self._leaders[tp]
            self._doubt({tp.topic for tp in unanswered})

    # --------------------------------------------------------------------------------------------- coordinators

    async def open_coordinator(
        self, group: str, *, lost: Address | None = None, timeout_ms: int | None = None
    ) -> Connection:
        """A new connection of the caller's own to the group's coordinator, in one attempt.

        Args:
            group: its id.
            lost: the address of the caller's last connection, which ended, or whose broker does not coordinate the
                group (any more).
            timeout_ms: bound on all of it.

        Raises:
            WireError: the attempt failed. `retriable` says whether trying again makes sense.
        """
        known = self._coordinators.pop(group, None)
        if known is not None and known.address == lost:
            self._witnesses.doubt(known.told_by)
        with self._doubting_coordinator(group):
            async with end_after(timeout_ms or self._api_timeout_ms):
                address = await self._coordinator(group)
                self._pace.check_in_time(address, ENDS_AT_S.get())
                return await self._open(address)

    async def coordinator(self, group: str, *, known: Address | None = None, timeout_ms: int | None = None) -> Address:
        """The address of the group's coordinator, as a broker that can be reached names it, in one attempt.

        If it is not the `known` one, another broker is asked too, and its answer counts.

        Raises:
            WireError: no broker named one.
        """
        async with end_after(timeout_ms or self._api_timeout_ms):
            address = await self._coordinator(group)
            if known is None or address == known:
                return address
            self._forget_coordinator(group)
            return await self._coordinator(group)

    async def coordinator_call(self, group: str, request: Request, *, timeout_ms: int | None = None) -> Response:
        """One request to the group's coordinator on a pooled connection.

        An answer with NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE, or an error, makes the next call look the
        coordinator up again. The caller decides whether to try again.

        Raises:
            WireError: no answer. The request may have been carried out, unless it was never sent.
        """
        with self._doubting_coordinator(group):
            async with end_after(timeout_ms or self._api_timeout_ms):
                known = self._coordinators.get(group)
                address = known.address if known is not None else await self._coordinator(group)
                response = await self._at(address, request)
        if group_error_codes(response) & {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            self._forget_coordinator(group)
        return response

    @contextmanager
    def _doubting_coordinator(self, group: str) -> Iterator[None]:
        """Forget the coordinator if the block fails: its requests may go to a broker that coordinates it no more."""
        try:
            yield
        except UnsupportedApi:
            self._coordinators.pop(group, None)
            raise
        except WireError:
            self._forget_coordinator(group)
            raise

    def _forget_coordinator(self, group: str) -> None:
        """Forget a coordinator that was of no use. The next look-up asks another broker than the one that named it."""
        if (known := self._coordinators.pop(group, None)) is not None:
            self._witnesses.doubt(known.told_by)

    async def _coordinator(self, group: str) -> Address:
        """Look the coordinator up. All callers meanwhile share the look-up: all seats lose it at the same moment."""
        return await self._join_or_start(self._looking_up, group, lambda: self._look_up(group))

    async def _look_up(self, group: str) -> Address:
        witness, response = await self._any_broker(messages.find_coordinator(group))
        assert isinstance(response, messages.FindCoordinatorResponse)
        found = the_only(response.coordinators, "coordinator")
        if int(found.error_code) != ErrorCode.NONE:
            self._witnesses.doubt(witness)
            words = words_of(found.error_message) or f"group {group!r}"
            error = BrokerError("FindCoordinator", int(found.error_code), words)
            self._be_patient(error, error.api)
            raise error
        self._rights_to("FindCoordinator").on_granted()
        self._coordinators[group] = _Coordinator(Address(found.host, found.port), witness)
        return self._coordinators[group].address

    async def committed_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        *,
        timeout_ms: int | None = None,
        who: MemberIdentity | None = None,
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The committed offset of each partition with its metadata, or None where the group has committed none.

        `who` is the member under the consumer protocol that asks. A broker too old to check it is asked without it.

        Raises:
            WireError: the coordinator could not be found, gave no whole answer in time, or does not have `who`.
        """
        return dict((await self.committed_answers(group, partitions, None, timeout_ms=timeout_ms, who=who)).found)

    async def committed_answers(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None,
        patience_ms: int | None,
        *,
        timeout_ms: int | None = None,
        who: MemberIdentity | None = None,
    ) -> Answers[CommittedOffset | None]:
        """As `committed_offsets` (None: all that the group has), without partitions refused for `patience_ms`.

        Raises:
            WireError: as there.
        """
        wanted = None if partitions is None else sorted(set(partitions))
        requests: list[Request] = [messages.offset_fetch(group, wanted)]
        if who is not None and wanted is not None:
            requests.insert(0, messages.offset_fetch_of_member(group, who, wanted))
        look_up = CommittedLookUp(partial(self.coordinator_call, group), requests, wanted, patience_ms)
        return Answers(await self._retry(look_up.attempt, timeout_ms, "OffsetFetch"), look_up.refused)

    async def all_committed(
        self, group: str, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """All committed offsets of the group, with the text that its consumers wrote beside each.

        Raises:
            WireError: the coordinator could not be found, or gave no whole answer, in time.
        """
        found = (await self.committed_answers(group, None, None, timeout_ms=timeout_ms)).found
        return {tp: committed for tp, committed in found.items() if committed is not None}

    async def describe_group(self, group: str, *, timeout_ms: int | None = None) -> DescribedGroup:
        """The group with all its members, classic or of type consumer, in state "Dead" if there is none of that name.

        Raises:
            WireError: the coordinator could not be found, or gave no whole answer, in time.
        """

        async def classic() -> DescribedGroup:
            response = await self.coordinator_call(group, messages.describe_groups(group))
            assert isinstance(response, messages.DescribeGroupsResponse)
            # Beside the event loop: 1,000 members with 100 partitions each take a second.
            return await asyncio.to_thread(description_of, response)

        async def attempt() -> DescribedGroup:
            found = await classic()
            if found.state != "Dead":
                return found
            # Once more, for brokers convert a group whenever a member of the other protocol comes or goes.
            return await self._describe_consumer_group(group) or await classic()

        return await self._retry(attempt, timeout_ms, "DescribeGroups")

    async def _describe_consumer_group(self, group: str) -> DescribedGroup | None:
        """A group of type consumer (KIP-848), or None if it is not one, or its coordinator has no such groups."""
        for request in messages.consumer_group_describe(group):
            try:
                response = await self.coordinator_call(group, request)
            except UnsupportedApi:
                continue
            assert isinstance(
                response, messages.ConsumerGroupDescribeResponse | messages.ConsumerGroupDescribeResponseV0
            )
            return await asyncio.to_thread(consumer_description_of, response)
        return None

    async def group_type(self, group: str, *, timeout_ms: int | None = None) -> str | None:
        """The type of a group (Kafka: GroupType) in small letters, or None if there is no group or no type is told.

        Raises:
            WireError: the coordinator could not be found, or gave no whole answer, in time.
        """

        async def attempt() -> str | None:
            try:
                response = await self.coordinator_call(group, messages.list_groups())
            except UnsupportedApi:  # before Kafka 3.8 there were no types to tell apart
                return None
            assert isinstance(response, messages.ListGroupsResponse)
            if int(response.error_code) != ErrorCode.NONE:
                raise BrokerError("ListGroups", int(response.error_code))
            return next((listed.group_type.lower() for listed in response.groups if listed.group_id == group), None)

        return await self._retry(attempt, timeout_ms)

    async def group_config(self, group: str, name: str, *, timeout_ms: int | None = None) -> str | None:
        """A setting of a group as it is in effect, None if there is none of that name.

        Raises:
            WireError: no broker told it in time, or this user may not see it, or brokers know no settings of groups.
        """

        async def attempt() -> str | None:
            witness, response = await self._any_broker(messages.group_config(group, name))
            assert isinstance(response, messages.DescribeConfigsResponse)
            try:
                return config_of(response)
            except BrokerError:
                self._witnesses.doubt(witness)
                raise

        return await self._retry(attempt, timeout_ms)

    async def coordinator_config(self, group: str, name: str, *, timeout_ms: int | None = None) -> str | None:
        """A setting of the broker that coordinates the group, None if it has none of that name.

        Raises:
            WireError: the coordinator did not tell it in time, or this user may not see it.
        """

        async def attempt() -> str | None:
            with self._doubting_coordinator(group):
                address = await self._coordinator(group)
                node_id = next((node for node, known in self._brokers.items() if known == address), None)
                if node_id is None:
                    raise ConnectionFailed(f"No metadata yet of the broker at {address}.")
                response = await self._at(address, messages.broker_config(node_id, name))
                assert isinstance(response, messages.DescribeConfigsResponse)
                return config_of(response)

        return await self._retry(attempt, timeout_ms)

    async def coordinator_speaks(
        self, group: str, api_key: int, version: int, *, timeout_ms: int | None = None
    ) -> bool:
        """Whether the broker that coordinates the group knows this version of an API.

        Raises:
            WireError: it could not be reached in time.
        """

        async def attempt() -> bool:
            with self._doubting_coordinator(group):
                address = await self._coordinator(group)
                return (self._pool.get(address) or await self._open_pooled(address)).speaks(api_key, version)

        return await self._retry(attempt, timeout_ms)

    async def remove_members(
        self, group: str, members: Sequence[MemberIdentity], reason: str, *, timeout_ms: int | None = None
    ) -> dict[str, int]:
        """Take members out of the group (KIP-345). Tried again like a question: a removed member cannot go twice.

        Returns:
            Instance id, or else member id -> error code, of those that are still in the group.

        Raises:
            WireError: the coordinator did not answer in time. The members may be gone.
        """

        async def attempt() -> dict[str, int]:
            response = await self.coordinator_call(group, messages.leave_group(group, members, reason))
            assert isinstance(response, messages.LeaveGroupResponse)
            return still_members(response)

        return await self._retry(attempt, timeout_ms)


def _unknown(error: BrokerError) -> UnknownTopic:
    return UnknownTopic(f"{error.message} does not exist (any more), or this user may not see it.")
