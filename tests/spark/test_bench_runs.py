"""The bench itself: a hundredth of its records, both sources, and nothing left."""

import os
import subprocess
import sys
from pathlib import Path


def test_a_quick_bench_measures_both_sources_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--only", "large", "--only", "latency"]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],  # tests/: there are no product sources in it
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10,000 x 1 KB, kgroup, run 1" in done.stdout
    for heading in ("Throughput", "Latency", "Where the time goes"):
        assert heading in done.stdout
    assert list(tmp_path.iterdir()) == []
