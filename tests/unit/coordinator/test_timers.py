"""Timers as data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_kgroup.coordinator.contract import JoinTimer, SyncTimer, TimerKey
from spark_kgroup.coordinator.timers import Timers

KEYS = st.sampled_from([kind(name) for kind in (JoinTimer, SyncTimer) for name in ("g", "h")])


@given(st.lists(st.tuples(KEYS, st.none() | st.integers(0, 20))), st.integers(0, 20))
def test_the_last_word_on_each_timer_counts(words: list[tuple[TimerKey, int | None]], now_ms: int) -> None:
    timers, expected = Timers(), dict[TimerKey, int]()
    for key, at_ms in words:
        if at_ms is None:
            timers.cancel(key)
            expected.pop(key, None)
        else:
            timers.set(key, at_ms)
            expected[key] = at_ms
    assert timers.next_at_ms() == min(expected.values(), default=None)
    assert {key: timers.at_ms(key) for key in timers} == expected
    fired = []
    while (due := timers.take_due(now_ms)) is not None:
        fired.append(due)
        assert due not in timers
    assert sorted(map(repr, fired)) == sorted(repr(key) for key, at_ms in expected.items() if at_ms <= now_ms)
    assert [expected[key] for key in fired] == sorted(expected[key] for key in fired)
