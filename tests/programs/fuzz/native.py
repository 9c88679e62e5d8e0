"""Mutated Fetch answers through the native decoder, with sanitizers: `make fuzz`, and a short run among the unit tests.

The program is `records_fuzz.c`. With `cc` it watches addresses and undefined behaviour. zig, which stands in where
there is no `cc`, has the second alone. The same seed makes the same answers.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory

from harness.record_batches import Batch, Record, in_transaction, marker

NATIVE = Path(__file__).parents[3] / "datasource" / "pyspark_kgroup" / "executor" / "native"
PROGRAM = Path(__file__).with_name("records_fuzz.c")

OPTIMIZED = "-O1"
WATCHED = ("-g", "-std=c11", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
CC = ("cc", "-fsanitize=address,undefined")
ZIG = (sys.executable, "-m", "ziglang", "cc", "-fsanitize=undefined")


@dataclass(frozen=True)
class Outcome:
    """The result of a run: all is right if `failure` is empty."""

    sanitizers: str
    counts: dict[str, int]
    failure: str


def answers() -> Iterator[bytes]:
    """The seeds of the mutations: each feature of the format, in few bytes."""
    plain = [Record(n, b"k%d" % n, b"v" * (3 * n)) for n in range(6)]
    odd = [
        Record(0, None, None),
        Record(3, b"", b"", ((b"h", b"1"), (b"h", None), (b"", b""))),
        Record(4, b"k" * 70, b"v" * 200, (("ü".encode(), b"\xff"),), timestamp_ms=-1),
        Record(9, None, b"v", timestamp_ms=2**40),
    ]
    first, second = Batch(plain), Batch(odd)
    yield first.encoded()
    yield second.encoded()
    yield replace(second, append_time_ms=1_700_000_000_000, leader_epoch=4, last_offset=20).encoded()
    yield Batch([Record(n, None, b"") for n in range(100)]).encoded()
    yield b"".join(Batch([Record(n, b"k", b"v", ((b"h", b"v"),) * (n % 3))]).encoded() for n in range(30))
    # The caller decompresses the payload of a batch: here it is taken as it is.
    yield replace(first, codec="lz4", payload=first.encoded()[61:]).encoded() + Batch([Record(8)]).encoded()
    yield Batch([], base_offset=0, last_offset=9).encoded() + Batch([Record(10)]).encoded()
    yield b"".join(
        in_transaction(Batch([Record(3 * n), Record(3 * n + 1)]), 6 + n % 4).encoded()
        + marker(3 * n + 2, 6 + n % 4, commit=n % 3 == 0)
        for n in range(12)
    )


def compiled(folder: Path) -> tuple[Path, str]:
    """The program, and the errors that it watches for."""
    target = folder / "records_fuzz"
    rest = [OPTIMIZED, *WATCHED, f"-I{NATIVE}", "-o", str(target), str(PROGRAM)]
    if shutil.which(CC[0]) and subprocess.run([*CC, *rest], capture_output=True, timeout=300).returncode == 0:
        return target, "address and undefined behaviour"
    subprocess.run([*ZIG, *rest], check=True, timeout=300)
    return target, "undefined behaviour alone: there is no cc with an address sanitizer"


def run(seed: int, count: int, first: int = 0, program: tuple[Path, str] | None = None) -> Outcome:
    """`count` answers of `seed`, from answer `first` on, through `program` as `compiled` gives it, or a new one."""
    with TemporaryDirectory() as folder:
        executable, sanitizers = program or compiled(Path(folder))
        seeds = Path(folder, "seeds")
        seeds.write_bytes(b"".join(struct.pack(">i", len(answer)) + answer for answer in answers()))
        command = [str(executable), str(seeds), str(seed), str(first), str(count)]
        environment = os.environ | {"ASAN_OPTIONS": "abort_on_error=1", "UBSAN_OPTIONS": "abort_on_error=1"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    counts = {name: int(number) for name, number in re.findall(r"([a-z][a-z ]*) (\d+)", done.stdout)}
    return Outcome(
        sanitizers, counts, "" if done.returncode == 0 else done.stderr[-4000:] or f"exit code {done.returncode}"
    )


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make fuzz")
    arguments.add_argument("--answers", type=int, default=1_000_000)
    arguments.add_argument("--first", type=int, default=0, help="the number of the first answer: that of a finding")
    arguments.add_argument("--seed", type=int, default=None, help="the same answers again")
    given = arguments.parse_args()
    seed = SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"{given.answers:,} Fetch answers through the native decoder, SEED={seed}", flush=True)
    found = run(seed, given.answers, given.first)
    print(f"watched: {found.sanitizers}")
    print(", ".join(f"{name} {count:,}" for name, count in found.counts.items()))
    print(found.failure or "every answer was decoded, or refused as it should be")
    return 1 if found.failure else 0


if __name__ == "__main__":
    sys.exit(main())
