"""One look-up of a group's committed offsets: repeated while its coordinator leaves partitions unanswered. No I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from spark_kgroup.errors import UnsupportedApi, WireError
from spark_kgroup.limits import OFFSETS_LEFT_OUT_MS
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire import messages
from spark_kgroup.wire.messages import Request, Response
from spark_kgroup.wire.responses import CommittedOffset, LeftOut, committed_of

log = logging.getLogger(__name__)


class CommittedLookUp:
    """The attempts of one look-up.

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
        assert isinstance(response, messages.OffsetFetchResponse | messages.OffsetFetchResponseV9)
        self.refused.clear()
        try:
            found = committed_of(response, self._wanted, self.refused)
        except LeftOut as error:
            if self._open_for_ms() < OFFSETS_LEFT_OUT_MS:
                raise
            log.warning("%s Nothing is committed there, as its coordinator understands it.", error)
            found = {**error.found, **dict.fromkeys(error.missing)}
        final = next((error for error in self.refused.values() if not error.retriable), None)
        if final is not None:
            raise final
        if self.refused and (self._patience_ms is None or self._open_for_ms() < self._patience_ms):
            raise next(iter(self.refused.values()))
        return found

    def _open_for_ms(self) -> float:
        self._open_since_s = self._open_since_s or time.monotonic()
        return (time.monotonic() - self._open_since_s) * 1000
