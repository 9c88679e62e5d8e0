"""How long a member waits before it sends the next heartbeat, retry or rejoin. Kafka's intervals and backoffs.

::

    heartbeat   interval * (1 - HEARTBEAT_JITTER * j)                                    j in [0, 1), anew each time
    retry       min(RETRY_BACKOFF * 2^n, RETRY_BACKOFF_MAX) * (1 ± RETRY_BACKOFF_JITTER)    n retries went before it
    rejoin      min(interval * 2^n, REJOIN_BACKOFF_MAX)                             n vain joins went before it
    again       0, 0, then as retry                                                 sent away since a heartbeat was good

Jitter makes a heartbeat earlier, never later.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kgroup.limits import (
    HEARTBEAT_JITTER,
    REJOIN_BACKOFF_MAX_MS,
    RETRY_BACKOFF_JITTER,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)

_DOUBLINGS_MAX = 16
"""Any wait is at its maximum by then. It keeps the shift below small."""


_AT_ONCE = 2
"""A group that rebalances sends members away once or twice, and waits for them."""


class Pacing:
    """The waits of one member. Each grows while its request goes on failing.

    Args:
        heartbeat_interval_ms: between two heartbeats, and the first wait before a rejoin.
        jitter: gives a number in [0, 1), so that the members of a group do not all ask at once.

    """

    def __init__(self, heartbeat_interval_ms: int, jitter: Callable[[], float]) -> None:
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._jitter = jitter
        self._retries = 0
        self._vain_joins = 0
        """How many joins in a row changed neither generation nor assignment."""
        self._patient_until_ms = 0
        self._sent_away = 0
        """How often in a row it was sent away from the group, or to another generation, before it was confirmed."""

    def heartbeat_ms(self, interval_ms: int | None = None) -> int:
        """The wait until the next heartbeat or look: at most `interval_ms`, by default the configured interval."""
        longest_ms = self._heartbeat_interval_ms if interval_ms is None else interval_ms
        return int(longest_ms * (1 - HEARTBEAT_JITTER * self._jitter()))

    def retry_ms(self) -> int:
        """The wait before a refused request is retried, doubled each time in a row (Kafka: ExponentialBackoff)."""
        self._retries += 1
        return self._backoff_ms(self._retries - 1)

    def _backoff_ms(self, doublings: int) -> int:
        wait_ms = min(RETRY_BACKOFF_MS << min(doublings, _DOUBLINGS_MAX), RETRY_BACKOFF_MAX_MS)
        return int(wait_ms * (1 + RETRY_BACKOFF_JITTER * (2 * self._jitter() - 1)))

    def again_ms(self) -> int:
        """The wait until a member that was sent away joins again: none unless it was sent away `_AT_ONCE` times before.

        Kafka's clients do not wait, and a coordinator that sends them away each time is asked 900 times a second
        (KAFKA-13891, KAFKA-10233).
        """
        self._sent_away += 1
        return self._backoff_ms(self._sent_away - _AT_ONCE - 1) if self._sent_away > _AT_ONCE else 0

    def on_confirmed(self) -> None:
        """The coordinator has answered a heartbeat: this is a member, and need not rejoin."""
        self._sent_away = 0

    def rejoin_ms(self, doublings: int) -> int:
        """The wait before the next join: an interval, doubled `doublings` times, up to a maximum."""
        return min(self._heartbeat_interval_ms << min(doublings, _DOUBLINGS_MAX), REJOIN_BACKOFF_MAX_MS)

    def on_answered(self) -> None:
        """The coordinator has carried out a request: retries begin anew."""
        self._retries = 0

    def on_synced(self, *, vain: bool, now_ms: int) -> None:
        """A generation is complete: retries begin anew, and after a `vain` join, without a change, the next one waits.

        Kafka answers each heartbeat of a classic member in a group of type consumer with REBALANCE_IN_PROGRESS as long
        as the member has not given up its revoked partitions
        (GroupMetadataManager.classicGroupHeartbeatToConsumerGroup). The application gives them up between two pieces of
        work.
        """
        self.on_answered()
        self._vain_joins = self._vain_joins + 1 if vain else 0
        self._patient_until_ms = now_ms + self.rejoin_ms(self._vain_joins) if vain else 0

    def rejoins_at_once(self, now_ms: int) -> bool:
        """Whether REBALANCE_IN_PROGRESS is a reason to join now, and not at a later heartbeat."""
        return now_ms >= self._patient_until_ms

    def on_membership_over(self) -> None:
        """Forget the vain joins of the last membership: they do not count in the next one."""
        # `_sent_away` stays: with the end of a membership the member was sent away once more.
        self._vain_joins = 0
