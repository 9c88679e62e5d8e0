"""`make differential CASES=200000 SEED=7`: exits with 1 if an assignor of ours is not as good as Java's."""

import argparse
import sys
import time
from pathlib import Path
from random import SystemRandom

from differential.cases import case
from differential.compare import compare
from differential.java import java_answers

SHOWN_MAX = 20


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make differential")
    arguments.add_argument("--cases", type=int, default=200_000)
    arguments.add_argument("--seed", type=int, default=None, help="the first one; each case has the next")
    arguments.add_argument("--write", type=Path, default=None, help="list the cases with more moves in this file")
    given = arguments.parse_args()
    seed = SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"{given.cases:,} cases, SEED={seed}", flush=True)
    began = time.monotonic()
    found = compare(java_answers(map(case, range(seed, seed + given.cases))))
    for what, count in sorted(found.counts.items()):
        print(f"  {what:60} {count:>9,}")
    print(f"moved by ours {found.moved_by_ours:,}, by Java's {found.moved_by_java:,}")
    print(f"far from their owners {found.far_in_ours:,}, Java's {found.far_in_java:,}")
    if given.write:
        given.write.write_text("\n".join(found.exceptions()) + "\n")
    print(f"more moves than Java's: {len(found.more_moves):,}")
    print(f"WRONG: {len(found.wrong):,}")
    for at, words in found.wrong[:SHOWN_MAX]:
        print(f"  seed {at.seed}, {at.assignor}: {words}")
    print(f"{time.monotonic() - began:.0f} s, SEED={seed}")
    return 1 if found.wrong or found.moved_by_ours > found.moved_by_java else 0


if __name__ == "__main__":
    sys.exit(main())
