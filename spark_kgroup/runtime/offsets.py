"""Look-ups of offsets at the brokers: where logs begin and end, and the committed offsets of the group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from random import Random

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import BrokerError, WireError
from spark_kgroup.limits import COMMIT_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.wire import messages
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.cluster import Cluster, ListedOffset
from spark_kgroup.wire.listing import Answers, OffsetListing
from spark_kgroup.wire.responses import CommittedOffset

_NOT_AS_ASKED = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
"""A coordinator's errors for a member that it has in another epoch, or not at all (KIP-848)."""


class Offsets:
    """Look-ups of offsets for one group. Without partitions no broker is asked.

    Each raises `WireError` if brokers refuse us, and `committed` also if the coordinator does not answer in time.
    Partitions whose leader does not answer in time are in `Answers.unanswered`.

    Args:
        members: sorts partitions by the member of ours in whose name their committed offsets are asked for, None for no
            member's: only under the consumer protocol a coordinator checks the name.
        on_refused: called with a member that the coordinator has in another epoch, or not at all.

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
        self._listings: set[OffsetListing] = set()

    async def begin_ends(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> OffsetListing:
        """Begin to ask for one past the last readable offset of each partition (the last stable if `read_committed`).

        Each leader is asked until it answers, for `api_timeout_ms`.
        """
        return self._begin(dict.fromkeys(partitions, messages.LATEST), read_committed=read_committed)

    async def ends(
        self, partitions: Iterable[TopicPartition], patience_ms: int, *, read_committed: bool
    ) -> Answers[int]:
        """One past the last readable offset of each partition whose leader answers within `patience_ms`."""
        wanted = dict.fromkeys(partitions, messages.LATEST)
        return _offsets(await self._list(wanted, patience_ms, read_committed=read_committed))

    async def starts(self, partitions: Iterable[TopicPartition], patience_ms: int) -> Answers[int]:
        """The first offset that each partition still has whose leader answers within `patience_ms`."""
        wanted = dict.fromkeys(partitions, messages.EARLIEST)
        return _offsets(await self._list(wanted, patience_ms, read_committed=False))

    async def at(
        self, timestamps: Mapping[TopicPartition, int], patience_ms: int, *, read_committed: bool
    ) -> Answers[int]:
        """The first offset of each partition whose record is not older than its timestamp (ms).

        A partition that has none is in neither part of the answer, if its leader has answered within `patience_ms`.
        """
        listed = _offsets(await self._list(timestamps, patience_ms, read_committed=read_committed))
        return Answers({tp: offset for tp, offset in listed.found.items() if offset >= 0}, listed.unanswered)

    async def ranges(
        self, partitions: Iterable[TopicPartition], patience_ms: int, *, read_committed: bool
    ) -> Answers[tuple[int, int, int]]:
        """The first offset of each partition, one past the last readable one, and the epoch of the leader that said so.

        The epoch is -1 where the leader does not say. Only of partitions whose leaders answer within `patience_ms`.
        """
        wanted = tuple(partitions)
        starts, ends = await asyncio.gather(
            self._list(dict.fromkeys(wanted, messages.EARLIEST), patience_ms, read_committed=False),
            self._list(dict.fromkeys(wanted, messages.LATEST), patience_ms, read_committed=read_committed),
        )
        both = starts.found.keys() & ends.found.keys()
        return Answers(
            {tp: (starts.found[tp].offset, ends.found[tp].offset, ends.found[tp].leader_epoch) for tp in both},
            {**starts.unanswered, **ends.unanswered},
        )

    async def _list(
        self, wanted: Mapping[TopicPartition, int], patience_ms: int, *, read_committed: bool
    ) -> Answers[ListedOffset]:
        if not wanted:
            return Answers({}, {})
        listing = self._begin(wanted, read_committed=read_committed)
        try:
            return await listing.answers(patience_ms)
        finally:
            self._listings.discard(listing)
            await listing.close()

    def _begin(self, wanted: Mapping[TopicPartition, int], *, read_committed: bool) -> OffsetListing:
        # The caller of `begin_ends` need not close its listing, so it is kept for `close`.
        self._listings = {each for each in self._listings if not each.ended}
        listing = self._cluster.logs.begin_list_offsets(wanted, isolation_level=int(read_committed))
        self._listings.add(listing)
        return listing

    async def close(self) -> None:
        """End the listings that are still asking."""
        for listing in self._listings:
            await listing.close()

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The committed offset of each partition, with its metadata, or None where there is none."""
        return dict((await self._committed(partitions, None, timeout_ms)).found)

    async def committed_answers(
        self, partitions: Iterable[TopicPartition], patience_ms: int
    ) -> Answers[CommittedOffset | None]:
        """As `committed`, without partitions refused for `patience_ms` while the coordinator answers for the rest."""
        return await self._committed(partitions, patience_ms, None)

    async def _committed(
        self, partitions: Iterable[TopicPartition], patience_ms: int | None, timeout_ms: int | None
    ) -> Answers[CommittedOffset | None]:
        """Ask for each partition by the member that owns it.

        A member whose epoch has moved asks again in its newest one. A member that has lost its partitions meanwhile may
        not commit from these offsets on, so they may be asked for in no member's name.
        """
        left = set(partitions)
        found: dict[TopicPartition, CommittedOffset | None] = {}
        refused: dict[TopicPartition, WireError] = {}
        deadline_ms, backoff = monotonic_ms() + (timeout_ms or COMMIT_TIMEOUT_MS), Backoff(self._rng)
        while left:
            asked = self._members(sorted(left))
            answers = await asyncio.gather(
                *(self._fetch_committed(who, tps, patience_ms, timeout_ms) for who, tps in asked.items()),
                # If one member's epoch is stale, the answers for the other members count all the same.
                return_exceptions=True,
            )
            wait_ms = backoff.next_ms()
            for who, answer in zip(asked, answers, strict=True):
                if isinstance(answer, BaseException):
                    stale = isinstance(answer, BrokerError) and answer.code in _NOT_AS_ASKED and who is not None
                    if not stale or monotonic_ms() + wait_ms > deadline_ms:
                        raise answer
                    continue
                found |= answer.found
                refused |= answer.unanswered
            left -= found.keys() | refused.keys()
            if left:
                await asyncio.sleep(wait_ms / 1000)
        return Answers(found, refused)

    async def _fetch_committed(
        self,
        who: MemberIdentity | None,
        partitions: Iterable[TopicPartition],
        patience_ms: int | None,
        timeout_ms: int | None,
    ) -> Answers[CommittedOffset | None]:
        try:
            return await self._cluster.groups.committed_answers(
                self._group, partitions, patience_ms, timeout_ms=timeout_ms, who=who
            )
        except BrokerError as error:
            if who is not None and error.code in _NOT_AS_ASKED:
                self._on_refused(who, error.code)
            raise


def _offsets(listed: Answers[ListedOffset]) -> Answers[int]:
    return Answers({tp: found.offset for tp, found in listed.found.items()}, listed.unanswered)
