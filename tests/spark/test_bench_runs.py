"""The bench itself: a hundredth of its records, both sources, and nothing left."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def test_a_quick_bench_measures_both_sources_and_leaves_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:  # a short path: sockets have their place in it
        done = subprocess.run(
            [sys.executable, "-m", "bench", "--quick", "--only", "large", "--only", "latency"],
            cwd=Path(__file__).parents[1],  # tests/: there are no product sources in it
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "10,000 x 1 KB, kgroup, run 1" in done.stdout
        for heading in ("Throughput", "Latency", "Where the time goes"):
            assert heading in done.stdout
        assert os.listdir(folder) == []
