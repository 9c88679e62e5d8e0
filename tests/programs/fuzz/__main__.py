"""`make fuzz FRAMES=1000000 SEED=7`: exits with 1 if a message had an effect that none may have."""

import argparse
import logging
import resource
import sys
from random import SystemRandom

from fuzz.run import Findings, run

ADDRESS_SPACE_BYTES = 2 << 30
"""The whole process needs a tenth of it: a message that makes it ask for more finds a MemoryError."""


def show(found: Findings) -> None:
    print(f"{found.messages:,} messages, {found.wrong.total()} wrong", flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make fuzz")
    arguments.add_argument("--frames", type=int, default=1_000_000)
    arguments.add_argument("--seed", type=int, default=None, help="the same messages again")
    given = arguments.parse_args()
    seed = SystemRandom().randrange(2**32) if given.seed is None else given.seed
    logging.disable(logging.CRITICAL)  # a warning for each hostile message is right, and too much here
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, resource.RLIM_INFINITY))
    print(f"{given.frames:,} messages, SEED={seed}", flush=True)
    found = run(given.frames, seed, show)
    for what, count in sorted(found.outcomes.items()):
        print(f"  {what:45} {count:>9,}")
    print(f"states of members: {', '.join(sorted(found.states))}")
    speed, rise = found.messages / found.seconds, found.memory_rise_bytes / (1 << 20)
    print(
        f"{found.messages:,} messages in {found.seconds:.0f} s ({speed:,.0f} a second), slowest {found.slowest_s:.3f} s"
    )
    print(f"memory {rise:+.1f} MiB, SEED={seed}")
    verdict = found.verdict()
    print("\n".join(verdict) or "every message was taken, or refused as it should be")
    return 1 if verdict else 0


if __name__ == "__main__":
    sys.exit(main())
