"""The one clock that waits and ages are measured by."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Milliseconds on a clock that goes on while the process is stopped, so that a SIGSTOP shows as silence."""
    return time.monotonic_ns() // 1_000_000
