"""The coordinators of groups, and what they are asked of a group: its members, settings and committed offsets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from spark_kgroup.errors import BrokerError, ConnectionFailed, UnsupportedApi, WireError
from spark_kgroup.limits import OFFSETS_LEFT_OUT_MS
from spark_kgroup.model import DescribedGroup, ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.peer_words import printable_words
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.brokers import Brokers, end_after
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.listing import Answers
from spark_kgroup.wire.responses import (
    CommittedOffset,
    LeftOut,
    group_error_codes,
    parse_committed,
    parse_config,
    parse_consumer_description,
    parse_description,
    still_members,
    the_only,
)
from spark_kgroup.wire.schema import Request, Response

log = logging.getLogger(__name__)


class _Coordinator(NamedTuple):
    """The address of a group's coordinator, and of the broker that named it."""

    address: Address
    told_by: Address


class Coordinators:
    """The coordinators of groups: each is looked up when it is needed, asked, and forgotten when it was of no use.

    A call that acts (`open`, `call`) is tried once, because its caller knows whether it still wants it.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._retries = brokers.retries
        self._known: dict[str, _Coordinator] = {}

    async def open(self, group: str, *, lost: Address | None = None, timeout_ms: int | None = None) -> Connection:
        """A new connection of the caller's own to the group's coordinator, in one attempt.

        Args:
            group: its id.
            lost: the address of the caller's last connection, which ended, or whose broker does not coordinate the
                group (any more).
            timeout_ms: bound on all of it.

        Raises:
            WireError: the attempt failed. `retriable` says whether trying again makes sense.
        """
        known = self._known.pop(group, None)
        if known is not None and known.address == lost:
            self._brokers.witnesses.doubt(known.told_by)
        with self._doubting(group):
            async with end_after(timeout_ms or self._retries.api_timeout_ms):
                address = await self._named(group)
                return await self._brokers.connections.open_own(address)

    async def find(self, group: str, *, known: Address | None = None, timeout_ms: int | None = None) -> Address:
        """The address of the group's coordinator, as a broker that can be reached names it, in one attempt.

        If it is not the `known` one, another broker is asked too, and its answer counts.

        Raises:
            WireError: no broker named one.
        """
        async with end_after(timeout_ms or self._retries.api_timeout_ms):
            address = await self._named(group)
            if known is None or address == known:
                return address
            self._forget(group)
            return await self._named(group)

    async def call(self, group: str, request: Request, *, timeout_ms: int | None = None) -> Response:
        """One request to the group's coordinator on a pooled connection.

        An answer with NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE, or an error, makes the next call look the
        coordinator up again. The caller decides whether to try again.

        Raises:
            WireError: no answer. The request may have been carried out, unless it was never sent.
        """
        with self._doubting(group):
            async with end_after(timeout_ms or self._retries.api_timeout_ms):
                known = self._known.get(group)
                address = known.address if known is not None else await self._named(group)
                response = await self._brokers.connections.ask(address, request)
        if group_error_codes(response) & {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            self._forget(group)
        return response

    async def config(self, group: str, name: str, *, timeout_ms: int | None = None) -> str | None:
        """A setting of the broker that coordinates the group, None if it has none of that name.

        Raises:
            WireError: the coordinator did not tell it in time, or this user may not see it.
        """

        async def attempt() -> str | None:
            with self._doubting(group):
                address = await self._named(group)
                node_id = next((node for node, known in self._brokers.nodes.items() if known == address), None)
                if node_id is None:
                    raise ConnectionFailed(f"No metadata yet of the broker at {address}.")
                response = await self._brokers.connections.ask(address, messages.broker_config(node_id, name))
                assert isinstance(response, schema.DescribeConfigsResponse)
                return parse_config(response)

        return await self._retries.run(attempt, timeout_ms)

    async def speaks(self, group: str, api_key: int, version: int, *, timeout_ms: int | None = None) -> bool:
        """Whether the broker that coordinates the group knows this version of an API.

        Raises:
            WireError: it could not be reached in time.
        """

        async def attempt() -> bool:
            with self._doubting(group):
                address = await self._named(group)
                return await self._brokers.connections.speaks(address, api_key, version)

        return await self._retries.run(attempt, timeout_ms)

    @contextmanager
    def _doubting(self, group: str) -> Iterator[None]:
        """Forget the coordinator if the block fails: its requests may go to a broker that coordinates it no more."""
        try:
            yield
        except UnsupportedApi:
            # The broker that named it is not doubted: it named a coordinator, which merely lacks the API.
            self._known.pop(group, None)
            raise
        except WireError:
            self._forget(group)
            raise

    def _forget(self, group: str) -> None:
        """Forget a coordinator that was of no use. The next look-up asks another broker than the one that named it."""
        if (known := self._known.pop(group, None)) is not None:
            self._brokers.witnesses.doubt(known.told_by)

    async def _named(self, group: str) -> Address:
        """Look the coordinator up. All callers meanwhile share the look-up: all seats lose it at the same moment."""
        return await self._brokers.shared.join_or_start(("coordinator", group), lambda: self._look_up(group))

    async def _look_up(self, group: str) -> Address:
        witness, response = await self._brokers.ask_any(messages.find_coordinator(group))
        assert isinstance(response, schema.FindCoordinatorResponse)
        found = the_only(response.coordinators, "coordinator")
        if int(found.error_code) != ErrorCode.NONE:
            self._brokers.witnesses.doubt(witness)
            words = printable_words(found.error_message) or f"group {group!r}"
            error = BrokerError("FindCoordinator", int(found.error_code), words)
            self._retries.be_patient(error, error.api)
            raise error
        self._retries.rights_to("FindCoordinator").on_granted()
        self._known[group] = _Coordinator(Address(found.host, found.port), witness)
        return self._known[group].address


class Groups:
    """Groups' members, types, settings and committed offsets, and the removal of members.

    Each call is tried again after errors that may pass.
    """

    def __init__(self, brokers: Brokers, coordinators: Coordinators) -> None:
        self._brokers = brokers
        self._coordinators = coordinators
        self._retries = brokers.retries

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
        look_up = CommittedLookUp(partial(self._coordinators.call, group), requests, wanted, patience_ms)
        return Answers(await self._retries.run(look_up.attempt, timeout_ms, "OffsetFetch"), look_up.refused)

    async def all_committed(
        self, group: str, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """All committed offsets of the group, with the text that its consumers wrote beside each.

        Raises:
            WireError: the coordinator could not be found, or gave no whole answer, in time.
        """
        found = (await self.committed_answers(group, None, None, timeout_ms=timeout_ms)).found
        return {tp: committed for tp, committed in found.items() if committed is not None}

    async def describe(self, group: str, *, timeout_ms: int | None = None) -> DescribedGroup:
        """The group with all its members, classic or of type consumer, in state "Dead" if there is none of that name.

        Raises:
            WireError: the coordinator could not be found, or gave no whole answer, in time.
        """

        async def classic() -> DescribedGroup:
            response = await self._coordinators.call(group, messages.describe_groups(group))
            assert isinstance(response, schema.DescribeGroupsResponse)
            # Beside the event loop: 1,000 members with 100 partitions each take a second.
            return await asyncio.to_thread(parse_description, response)

        async def attempt() -> DescribedGroup:
            found = await classic()
            if found.state != "Dead":
                return found
            # Once more, for brokers convert a group whenever a member of the other protocol comes or goes.
            return await self._describe_of_type_consumer(group) or await classic()

        return await self._retries.run(attempt, timeout_ms, "DescribeGroups")

    async def _describe_of_type_consumer(self, group: str) -> DescribedGroup | None:
        """A group of type consumer (KIP-848), or None if it is not one, or its coordinator has no such groups."""
        for request in messages.consumer_group_describe(group):
            try:
                response = await self._coordinators.call(group, request)
            except UnsupportedApi:
                continue
            assert isinstance(response, schema.ConsumerGroupDescribeResponse | schema.ConsumerGroupDescribeResponseV0)
            try:
                described = await asyncio.to_thread(parse_consumer_description, response)
            except BrokerError as error:
                self._retries.be_patient(error, error.api)
                raise
            if described is not None:
                self._retries.rights_to("ConsumerGroupDescribe").on_granted()
            return described
        return None

    async def fetch_type(self, group: str, *, timeout_ms: int | None = None) -> str | None:
        """The type of a group (Kafka: GroupType) in small letters, or None if there is no group or no type is told.

        Raises:
            WireError: the coordinator could not be found, or gave no whole answer, in time.
        """

        async def attempt() -> str | None:
            try:
                response = await self._coordinators.call(group, messages.list_groups())
            except UnsupportedApi:  # before Kafka 3.8 there were no types to tell apart
                return None
            assert isinstance(response, schema.ListGroupsResponse)
            if int(response.error_code) != ErrorCode.NONE:
                raise BrokerError("ListGroups", int(response.error_code))
            return next((listed.group_type.lower() for listed in response.groups if listed.group_id == group), None)

        return await self._retries.run(attempt, timeout_ms)

    async def config(self, group: str, name: str, *, timeout_ms: int | None = None) -> str | None:
        """A setting of a group as it is in effect, None if there is none of that name.

        Raises:
            WireError: no broker told it in time, or this user may not see it, or brokers know no settings of groups.
        """

        async def attempt() -> str | None:
            witness, response = await self._brokers.ask_any(messages.group_config(group, name))
            assert isinstance(response, schema.DescribeConfigsResponse)
            try:
                return parse_config(response)
            except BrokerError:
                self._brokers.witnesses.doubt(witness)
                raise

        return await self._retries.run(attempt, timeout_ms)

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
            response = await self._coordinators.call(group, messages.leave_group(group, members, reason))
            assert isinstance(response, schema.LeaveGroupResponse)
            return still_members(response)

        return await self._retries.run(attempt, timeout_ms)


class CommittedLookUp:
    """One look-up of committed offsets, repeated while the coordinator leaves partitions unanswered. No I/O.

    Args:
        call: asks the group's coordinator.
        requests: in the versions to try.
        wanted: which partitions, None for all.
        patience_ms: how long partitions may be refused before the look-up ends without them, or None for as long as
            there is another attempt.

    Attributes:
        refused: partitions for which the coordinator gave an error instead of a committed offset -> that error.
    """

    def __init__(
        self,
        call: Callable[[Request], Awaitable[Response]],
        requests: Sequence[Request],
        wanted: Sequence[TopicPartition] | None,
        patience_ms: int | None,
    ) -> None:
        self._call = call
        self._requests = requests
        self._wanted = wanted or ()
        self._patience_ms = patience_ms
        self._open_since_s: float | None = None
        self.refused: dict[TopicPartition, WireError] = {}

    async def attempt(self) -> dict[TopicPartition, CommittedOffset | None]:
        """The committed offset of each partition that is not `refused`, or None where the group has none.

        Raises:
            WireError: the coordinator did not answer, or not for all partitions. A retriable one may pass.
        """
        try:
            response = await self._call(self._requests[0])
        except UnsupportedApi:  # a broker too old to check the member: ask without it
            response = await self._call(self._requests[-1])
        assert isinstance(response, schema.OffsetFetchResponse)
        # Each attempt asks for all partitions again.
        self.refused.clear()
        try:
            found = parse_committed(response, self._wanted, self.refused)
        except LeftOut as error:
            if self._open_for_ms() < OFFSETS_LEFT_OUT_MS:
                raise
            log.warning("%s They are taken for partitions without a committed offset.", error)
            found = {**error.found, **dict.fromkeys(error.missing)}
        # A final error goes before one that may pass, for which the look-up would be repeated in vain.
        final = next((error for error in self.refused.values() if not error.retriable), None)
        if final is not None:
            raise final
        if self.refused and (self._patience_ms is None or self._open_for_ms() < self._patience_ms):
            raise next(iter(self.refused.values()))
        return found

    def _open_for_ms(self) -> float:
        self._open_since_s = self._open_since_s or time.monotonic()
        return (time.monotonic() - self._open_since_s) * 1000
