"""The soak tells a leak from noise."""

from random import Random

import pytest
from harness.processes import Use
from soak.__main__ import MOMENTS, leaks

BATCHES = 1_500


def moments(
    *, bytes_a_batch: int = 0, files_a_batch: float = 0, threads: int = 5, scatter_kib: int = 300
) -> list[tuple[int, Use]]:
    """A process that fills its caches in the first fifth of the run, and then grows as the arguments say."""
    rng = Random(7)
    found = []
    for moment in range(1, MOMENTS + 1):
        batches = BATCHES * moment // MOMENTS
        caches = min(moment, MOMENTS // 5) * 5_000
        rss = 100_000 + caches + bytes_a_batch * batches // 1024 + rng.randint(-scatter_kib, scatter_kib)
        files = 30 + int(files_a_batch * batches)
        found.append((batches, Use(rss=rss, peak=rss, files=files, sockets=10, threads=threads + moment % 2)))
    return found


@pytest.mark.parametrize("scatter_kib", [0, 300, 5_000])
def test_caches_and_scatter_are_no_leak(scatter_kib: int) -> None:
    assert leaks("worker", moments(scatter_kib=scatter_kib)) == []


def test_memory_that_every_batch_keeps_is_a_leak() -> None:
    assert len(leaks("worker", moments(bytes_a_batch=6_000))) == 1
    assert len(leaks("worker", moments(bytes_a_batch=20_000, scatter_kib=2_000))) == 1


def test_a_file_that_every_hundredth_batch_keeps_is_a_leak() -> None:
    assert leaks("reader", moments(files_a_batch=0.01)) == ["reader: files 33 -> 45"]
