"""What brokers say of offsets: where logs begin and end, and what the group has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from spark_kgroup.model import TopicPartition
from spark_kgroup.wire import messages
from spark_kgroup.wire.cluster import Cluster, ListedOffset
from spark_kgroup.wire.responses import CommittedOffset


class Offsets:
    """Look-ups of offsets for one group. Without partitions no broker is asked.

    Each raises `WireError` if brokers do not answer in time, or refuse us.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    async def ends(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> dict[TopicPartition, int]:
        """One past the last readable offset of each partition (the last stable offset if `read_committed`)."""
        return await self._list(partitions, messages.LATEST, read_committed=read_committed)

    async def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return await self._list(partitions, messages.EARLIEST, read_committed=False)

    async def ranges(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset of each partition, and one past the last readable one."""
        wanted = tuple(partitions)
        starts, ends = await asyncio.gather(self.starts(wanted), self.ends(wanted, read_committed=read_committed))
        return {tp: (starts[tp], ends[tp]) for tp in wanted}

    async def _list(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, timestamp)
        if not wanted:
            return {}
        listed: Mapping[TopicPartition, ListedOffset] = await self._cluster.list_offsets(
            wanted, isolation_level=int(read_committed)
        )
        return {tp: found.offset for tp, found in listed.items()}

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed for each partition, with what was written beside it; None where nothing is."""
        wanted = sorted(partitions)
        if not wanted:
            return {}
        return await self._cluster.committed_offsets(self._group, wanted, timeout_ms=timeout_ms)
