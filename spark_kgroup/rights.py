"""Rights that this user had and has no more: how long that may pass. Pure."""

from __future__ import annotations

from typing import Final

from spark_kgroup.limits import AUTHORIZATION_GRACE_MS
from spark_kgroup.model import ErrorCode

RIGHTS_MISSING: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED})
"""The error codes with which brokers refuse a user a right."""


class Rights:
    """Whether a refusal may pass: a broker that starts may not have all ACLs yet, as it may not have all users.

    For a user that never had the right the refusal is final at once.

    Args:
        granted: whether the user is known to have had it already.
    """

    def __init__(self, *, granted: bool = False) -> None:
        self._granted = granted
        self._missing_since_ms: int | None = None

    def on_granted(self) -> None:
        """The broker has carried a request out: the rights are there."""
        self._granted, self._missing_since_ms = True, None

    def may_come_back(self, now_ms: int) -> bool:
        """Rights are missing now. Whether we had them, and they have been missing for less than the grace."""
        if not self._granted:
            return False
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        return now_ms - self._missing_since_ms < AUTHORIZATION_GRACE_MS
