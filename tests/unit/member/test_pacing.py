"""How long a member waits: the first wait, and the failures that make waits longer."""

from __future__ import annotations

from spark_kgroup.member.pacing import Pacing

INTERVAL_MS = 1_000


def wait_after_a_vain_join_ms(pacing: Pacing) -> int:
    """How long REBALANCE_IN_PROGRESS is no reason to join, after one more join without a change."""
    pacing.on_synced(vain=True, now_ms=0)
    return next(at_ms for at_ms in range(0, 100_000, 100) if pacing.rejoins_at_once(at_ms))


def test_a_member_whose_joins_have_no_effect_waits_longer_after_each_of_them() -> None:
    pacing = Pacing(INTERVAL_MS, jitter=lambda: 0.0)
    assert pacing.rejoins_at_once(0)
    assert [wait_after_a_vain_join_ms(pacing) for _ in range(3)] == [2_000, 4_000, 8_000]


def test_a_member_whose_join_had_an_effect_may_join_at_once_again() -> None:
    pacing = Pacing(INTERVAL_MS, jitter=lambda: 0.0)
    wait_after_a_vain_join_ms(pacing)
    pacing.on_synced(vain=False, now_ms=0)
    assert pacing.rejoins_at_once(0)
    assert wait_after_a_vain_join_ms(pacing) == 2_000


def test_a_new_membership_does_not_wait_for_the_vain_joins_of_the_last_one() -> None:
    pacing = Pacing(INTERVAL_MS, jitter=lambda: 0.0)
    for _ in range(5):
        wait_after_a_vain_join_ms(pacing)
    pacing.on_membership_over()
    assert wait_after_a_vain_join_ms(pacing) == 2_000
