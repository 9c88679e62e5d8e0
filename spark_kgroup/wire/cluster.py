"""A cluster as a client sees it: brokers, topics, leaders, coordinators, offsets.

Every public call has a deadline; within it, retriable errors are tried again after a backoff with jitter. Connections
are pooled, one per broker, and opened anew when they ended; a session's own connection comes from `open_coordinator`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from spark_kgroup.errors import BrokerError, ConnectionFailed, OptionError, RequestTimedOut, UnknownTopic, WireError
from spark_kgroup.limits import API_TIMEOUT_MS, REQUEST_TIMEOUT_MS
from spark_kgroup.model import DescribedGroup, DescribedMember, ErrorCode, TopicDescription, TopicPartition
from spark_kgroup.wire import messages
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.connection import Address, Connection
from spark_kgroup.wire.consumer_protocol import decode_assignment
from spark_kgroup.wire.messages import Request, Response
from spark_kgroup.wire.security import Plaintext, Security

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """What one Metadata response says.

    Attributes:
        brokers: by node id.
        topics: those asked for that exist and have no error.
        errors: topic -> error code of those asked for that have one.
        leaders: partition -> node id; absent while there is no leader.
    """

    brokers: Mapping[int, Address]
    topics: Mapping[str, TopicDescription]
    errors: Mapping[str, int]
    leaders: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """An offset as its partition's leader lists it; the epoch is -1 if the leader does not say."""

    offset: int
    leader_epoch: int


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Addresses from `host:port[,host:port]`; IPv6 as `[::1]:9092`.

    Raises:
        OptionError: it is not that.
    """
    addresses = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = entry.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
            raise OptionError(
                f"kafka.bootstrap.servers: {entry!r} is not HOST:PORT. Give one or more brokers, "
                "like 'broker-1:9092,broker-2:9092'."
            )
        addresses.append(Address(host, int(port)))
    if not addresses:
        raise OptionError("kafka.bootstrap.servers is empty. Give one or more brokers, like 'broker-1:9092'.")
    return tuple(addresses)


class Cluster:
    """A pooled client of one cluster. Belongs to one event loop; `close` it."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        security: Security | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        rng: Random | None = None,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._security = security or Plaintext()
        self._request_timeout_ms = request_timeout_ms
        self._rng = rng or Random()
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[str, Address] = {}
        self._pool: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Lock] = {}

    async def close(self) -> None:
        """Close every pooled connection."""
        pool, self._pool = self._pool, {}
        for connection in pool.values():
            await connection.close()

    # ----------------------------------------------------------------------------------------------- metadata

    async def metadata(self, topics: Iterable[str] | None, *, timeout_ms: int = API_TIMEOUT_MS) -> ClusterMetadata:
        """Fresh metadata of `topics` (None: all), from any broker. Unknown topics are in `errors`.

        Raises:
            ConnectionFailed: no broker can be reached.
            BrokerError: a topic's metadata has an error that retrying cannot mend.
        """
        request = messages.metadata(topics)

        async def attempt() -> ClusterMetadata:
            response = await self._any_broker(request)
            assert isinstance(response, messages.MetadataResponse)
            found = _metadata(response)
            waiting = [t for t, code in found.errors.items() if code == ErrorCode.LEADER_NOT_AVAILABLE]
            if waiting:
                raise BrokerError("Metadata", ErrorCode.LEADER_NOT_AVAILABLE, ", ".join(waiting))
            return found

        found = await self._retried(attempt, timeout_ms)
        self._brokers.update(found.brokers)
        self._leaders.update(found.leaders)
        return found

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: int = API_TIMEOUT_MS
    ) -> dict[TopicPartition, ListedOffset]:
        """Offsets by timestamp (`messages.LATEST`, `messages.EARLIEST`), each from its partition's leader.

        Args:
            wanted: partition -> timestamp in ms, or one of the two.
            isolation_level: 0 read_uncommitted, 1 read_committed (the end is then the last stable offset).
            timeout_ms: bound on all of it.

        Raises:
            UnknownTopic: a partition still does not exist when the time is up.
            WireError: leaders could not be found or reached in time.
        """
        found: dict[TopicPartition, ListedOffset] = {}

        async def attempt() -> dict[TopicPartition, ListedOffset]:
            missing = {tp: at for tp, at in wanted.items() if tp not in found}
            by_leader = await self._by_leader(missing)
            answers = await asyncio.gather(
                *(self._list_at(node, part, isolation_level) for node, part in by_leader.items()),
                return_exceptions=True,
            )
            for answer in answers:
                if isinstance(answer, dict):
                    found.update(answer)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            return found

        return await self._retried(attempt, timeout_ms)

    async def _by_leader(self, wanted: Mapping[TopicPartition, int]) -> dict[int, dict[TopicPartition, int]]:
        if not wanted.keys() <= self._leaders.keys():
            known = await self.metadata(sorted({tp.topic for tp in wanted}))
            for topic, code in known.errors.items():
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(f"Topic {topic!r} does not exist (any more).")
                raise BrokerError("Metadata", code, topic)
        grouped: dict[int, dict[TopicPartition, int]] = {}
        for tp, timestamp in wanted.items():
            leader = self._leaders.get(tp)
            if leader is None:
                raise BrokerError("ListOffsets", ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
            grouped.setdefault(leader, {})[tp] = timestamp
        return grouped

    async def _list_at(
        self, node: int, wanted: Mapping[TopicPartition, int], isolation_level: int
    ) -> dict[TopicPartition, ListedOffset]:
        try:
            response = await self._at(self._brokers[node], messages.list_offsets(wanted, isolation_level))
            assert isinstance(response, messages.ListOffsetsResponse)
            return _listed(response)
        except WireError:
            for tp in wanted:
                self._leaders.pop(tp, None)  # whoever leads them now, it is worth asking again
            raise

    # --------------------------------------------------------------------------------------------- coordinators

    async def open_coordinator(self, group: str) -> Connection:
        """A new connection of the caller's own to the group's coordinator; one attempt.

        Raises:
            WireError: not this time; `retriable` says whether trying again makes sense.
        """
        self._coordinators.pop(group, None)
        return await self._open(await self._coordinator(group))

    async def coordinator_call(self, group: str, request: Request) -> Response:
        """One request to the group's coordinator on a pooled connection.

        An answer with NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE, or an error, makes the next call look the
        coordinator up again; the caller decides whether to try again.
        """
        address = self._coordinators.get(group) or await self._coordinator(group)
        try:
            response = await self._at(address, request)
        except WireError:
            self._coordinators.pop(group, None)
            raise
        if _codes(response) & {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            self._coordinators.pop(group, None)
        return response

    async def _coordinator(self, group: str) -> Address:
        response = await self._any_broker(messages.find_coordinator(group))
        assert isinstance(response, messages.FindCoordinatorResponse)
        found = response.coordinators[0]
        if int(found.error_code) != ErrorCode.NONE:
            raise BrokerError("FindCoordinator", int(found.error_code), found.error_message)
        self._coordinators[group] = Address(found.host, found.port)
        return self._coordinators[group]

    async def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout_ms: int = API_TIMEOUT_MS
    ) -> dict[TopicPartition, int | None]:
        """The group's committed offset of each partition, None where there is none."""
        request = messages.offset_fetch(group, partitions)

        async def attempt() -> dict[TopicPartition, int | None]:
            response = await self.coordinator_call(group, request)
            assert isinstance(response, messages.OffsetFetchResponse)
            return _committed(response)

        return await self._retried(attempt, timeout_ms)

    async def describe_group(self, group: str, *, timeout_ms: int = API_TIMEOUT_MS) -> DescribedGroup:
        """The group with all its members; state "Dead" if there is none of that name."""

        async def attempt() -> DescribedGroup:
            response = await self.coordinator_call(group, messages.describe_groups(group))
            assert isinstance(response, messages.DescribeGroupsResponse)
            return _described(response)

        return await self._retried(attempt, timeout_ms)

    # ---------------------------------------------------------------------------------------------- connections

    async def _any_broker(self, request: Request) -> Response:
        """Ask the brokers we know, connected ones first, then the bootstrap list, until one answers."""
        known = [*self._pool, *self._brokers.values(), *self._bootstrap]
        refused: dict[Address, str] = {}
        for address in dict.fromkeys(known):
            try:
                return await self._at(address, request)
            except WireError as error:
                if not error.retriable and len(set(known)) == 1:
                    raise
                refused[address] = str(error)
        reasons = "; ".join(reason if str(a) in reason else f"{a}: {reason}" for a, reason in refused.items())
        raise ConnectionFailed(f"No broker could be reached. Check kafka.bootstrap.servers. Tried: {reasons}")

    async def _at(self, address: Address, request: Request) -> Response:
        lock = self._opening.setdefault(address, asyncio.Lock())
        async with lock:
            connection = self._pool.get(address)
            if connection is None or connection.closed:
                self._pool.pop(address, None)
                connection = await self._open(address)
                self._pool[address] = connection
        return await connection.call(request)

    async def _open(self, address: Address) -> Connection:
        return await Connection.open(
            address,
            client_id=self._client_id,
            security=self._security,
            request_timeout_ms=self._request_timeout_ms,
        )

    async def _retried(self, attempt: Callable[[], Awaitable[T]], timeout_ms: int) -> T:
        deadline_s = time.monotonic() + timeout_ms / 1000
        backoff = Backoff(self._rng)
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                    return await attempt()
            except TimeoutError:
                raise RequestTimedOut(f"The cluster did not answer within {timeout_ms} ms.") from None
            except WireError as error:
                wait_s = backoff.next_ms() / 1000
                if not error.retriable or time.monotonic() + wait_s > deadline_s:
                    raise
            await asyncio.sleep(wait_s)


# -------------------------------------------------------------------------------------------------- responses


def _metadata(response: messages.MetadataResponse) -> ClusterMetadata:
    good = [t for t in response.topics if int(t.error_code) == ErrorCode.NONE and t.name is not None]
    return ClusterMetadata(
        brokers={int(b.node_id): Address(b.host, b.port) for b in response.brokers},
        topics={
            str(t.name): TopicDescription(name=str(t.name), topic_id=t.topic_id, partition_count=len(t.partitions))
            for t in good
        },
        errors={str(t.name): int(t.error_code) for t in response.topics if int(t.error_code) != ErrorCode.NONE},
        leaders={
            TopicPartition(str(t.name), p.partition_index): int(p.leader_id)
            for t in good
            for p in t.partitions
            if p.leader_id >= 0
        },
    )


def _listed(response: messages.ListOffsetsResponse) -> dict[TopicPartition, ListedOffset]:
    found = {}
    for topic in response.topics:
        for p in topic.partitions:
            if int(p.error_code) != ErrorCode.NONE:
                raise BrokerError("ListOffsets", int(p.error_code), f"{topic.name}-{p.partition_index}")
            found[TopicPartition(topic.name, p.partition_index)] = ListedOffset(
                offset=p.offset, leader_epoch=p.leader_epoch
            )
    return found


def _committed(response: messages.OffsetFetchResponse) -> dict[TopicPartition, int | None]:
    (group,) = response.groups
    if int(group.error_code) != ErrorCode.NONE:
        raise BrokerError("OffsetFetch", int(group.error_code))
    found: dict[TopicPartition, int | None] = {}
    for topic in group.topics:
        for p in topic.partitions:
            if int(p.error_code) != ErrorCode.NONE:
                raise BrokerError("OffsetFetch", int(p.error_code), f"{topic.name}-{p.partition_index}")
            found[TopicPartition(topic.name, p.partition_index)] = (
                p.committed_offset if p.committed_offset >= 0 else None
            )
    return found


def _described(response: messages.DescribeGroupsResponse) -> DescribedGroup:
    (group,) = response.groups
    if int(group.error_code) not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise BrokerError("DescribeGroups", int(group.error_code))
    return DescribedGroup(
        group=group.group_id,
        state=group.group_state or "Dead",
        protocol=group.protocol_data,
        members=tuple(
            DescribedMember(
                member_id=m.member_id,
                instance_id=m.group_instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                assignment=decode_assignment(m.member_assignment),
            )
            for m in group.members
        ),
    )


def _codes(response: Response) -> set[int]:
    """Every error code that a coordinator's response may carry for the group as a whole."""
    match response:
        case messages.OffsetCommitResponse():
            return set(messages.offset_commit_errors(response).values())
        case messages.OffsetFetchResponse() | messages.DescribeGroupsResponse():
            return {int(group.error_code) for group in response.groups}
        case _:
            return set()
