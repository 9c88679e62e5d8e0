"""Waits double up to a bound and are jittered (Kafka: ExponentialBackoff)."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from spark_kgroup.wire.backoff import Backoff

DOUBLING = [100, 200, 400, 800, 1_000, 1_000, 1_000]


@given(st.integers())
def test_waits_double_up_to_the_longest_within_a_fifth(seed: int) -> None:
    backoff = Backoff(Random(seed))
    for value in DOUBLING:
        assert 0.8 * value <= backoff.next_ms() <= 1.2 * value


def test_the_same_seed_waits_the_same() -> None:
    one, other = Backoff(Random(7)), Backoff(Random(7))
    assert [one.next_ms() for _ in DOUBLING] == [other.next_ms() for _ in DOUBLING]


def test_waits_differ_so_that_seats_do_not_come_back_in_step() -> None:
    rng = Random(7)
    assert len({Backoff(rng).next_ms() for _ in range(50)}) > 20


def test_the_first_and_the_longest_wait_can_be_chosen() -> None:
    backoff = Backoff(Random(7), first_ms=1_000, max_ms=3_000)
    for value in (1_000, 2_000, 3_000, 3_000):
        assert 0.8 * value <= backoff.next_ms() <= 1.2 * value
