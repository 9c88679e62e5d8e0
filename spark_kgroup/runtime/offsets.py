"""What brokers say of offsets: where logs begin and end, and what the group has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from random import Random

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import BrokerError
from spark_kgroup.limits import COMMIT_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.wire import messages
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.cluster import Cluster, ListedOffset
from spark_kgroup.wire.responses import CommittedOffset

_NOT_AS_ASKED = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
"""What a coordinator says of a member that it has in another epoch, or not at all (KIP-848)."""


class Offsets:
    """Look-ups of offsets for one group. Without partitions no broker is asked.

    Each raises `WireError` if brokers do not answer in time, or refuse us.

    Args:
        members: which of our members each partition's committed offset is asked for by, None for by nobody of the
            group: only under the consumer protocol a coordinator checks who asks.
        on_refused: is told of a member that the coordinator does not have as it was named.

    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        rng: Random,
        members: Callable[[Iterable[TopicPartition]], Mapping[MemberIdentity | None, list[TopicPartition]]],
        on_refused: Callable[[MemberIdentity, int], None],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._rng = rng
        self._members = members
        self._on_refused = on_refused

    async def ends(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> dict[TopicPartition, int]:
        """One past the last readable offset of each partition (the last stable offset if `read_committed`)."""
        listed = await self._list(partitions, messages.LATEST, read_committed=read_committed)
        return {tp: found.offset for tp, found in listed.items()}

    async def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        listed = await self._list(partitions, messages.EARLIEST, read_committed=False)
        return {tp: found.offset for tp, found in listed.items()}

    async def at(self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool) -> dict[TopicPartition, int]:
        """The first offset of each partition whose record is not older than its timestamp (ms); absent if none is."""
        if not timestamps:
            return {}
        listed = await self._cluster.list_offsets(timestamps, isolation_level=int(read_committed))
        return {tp: found.offset for tp, found in listed.items() if found.offset >= 0}

    async def ranges(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> dict[TopicPartition, tuple[int, int, int]]:
        """The first offset of each partition, one past the last readable one, and the epoch of the leader that said so.

        The epoch is -1 where the leader does not say.
        """
        wanted = tuple(partitions)
        starts, ends = await asyncio.gather(
            self._list(wanted, messages.EARLIEST, read_committed=False),
            self._list(wanted, messages.LATEST, read_committed=read_committed),
        )
        return {tp: (starts[tp].offset, ends[tp].offset, ends[tp].leader_epoch) for tp in wanted}

    async def _list(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool
    ) -> Mapping[TopicPartition, ListedOffset]:
        wanted = dict.fromkeys(partitions, timestamp)
        return await self._cluster.list_offsets(wanted, isolation_level=int(read_committed)) if wanted else {}

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed for each partition, with what was written beside it; None where nothing is.

        A member whose epoch has moved asks again in its newest one. One that has lost its partitions meanwhile may not
        commit what it starts from here, so anybody may ask for it.
        """
        left = set(partitions)
        found: dict[TopicPartition, CommittedOffset | None] = {}
        deadline_ms, backoff = monotonic_ms() + (timeout_ms or COMMIT_TIMEOUT_MS), Backoff(self._rng)
        while left:
            asked = self._members(sorted(left))
            answers = await asyncio.gather(
                *(self._committed_of(who, tps, timeout_ms) for who, tps in asked.items()), return_exceptions=True
            )
            wait_ms = backoff.next_ms()
            for who, answer in zip(asked, answers, strict=True):
                if isinstance(answer, BaseException):
                    stale = isinstance(answer, BrokerError) and answer.code in _NOT_AS_ASKED and who is not None
                    if not stale or monotonic_ms() + wait_ms > deadline_ms:
                        raise answer
                    continue
                found |= answer
            left -= found.keys()
            if left:
                await asyncio.sleep(wait_ms / 1000)
        return found

    async def _committed_of(
        self, who: MemberIdentity | None, partitions: Iterable[TopicPartition], timeout_ms: int | None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        try:
            return await self._cluster.committed_offsets(self._group, partitions, timeout_ms=timeout_ms, who=who)
        except BrokerError as error:
            if who is not None and error.code in _NOT_AS_ASKED:
                self._on_refused(who, error.code)
            raise
