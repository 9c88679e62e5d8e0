"""The settings of a coordinator, with Kafka's names and defaults (GroupCoordinatorConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_kgroup.model import INT_MAX

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member may be parked in a rebalance before it is taken for gone: it sends no heartbeats yet, and its
broker cannot see that its connection ended (GroupCoordinatorConfig.CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Settings of all groups.

    Attributes:
        group_initial_rebalance_delay_ms: how long an empty group waits for further members (KIP-134).
        group_min_session_timeout_ms, group_max_session_timeout_ms: bounds of a member's session timeout.
        group_max_size: members of one group at most.
        offset_metadata_max_bytes: longest text beside a committed offset. Kafka counts its characters.
        offsets_retention_minutes: how long offsets outlive their group's last member, or their commit.
        offsets_retention_check_interval_ms: how often expired offsets are looked for.
    """

    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = INT_MAX
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 600_000

    @property
    def offsets_retention_ms(self) -> int:
        """The retention time in the unit of `now_ms`."""
        return self.offsets_retention_minutes * 60_000
