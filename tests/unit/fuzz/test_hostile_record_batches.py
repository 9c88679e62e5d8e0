"""A short run of the native decoder's fuzzer with sanitizers, and whether it would notice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom

import pytest
from fuzz import native
from fuzz.native import run

Spoil = Callable[[str, str], None]
Program = tuple[Path, str]

ANSWERS = 200_000
"""One second of CPU. The rarest outcome is met 550 times."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The fuzzer of the decoder as it is."""
    return native.compiled(tmp_path_factory.mktemp("fuzzer"))


@pytest.mark.parametrize("seed", [7, SystemRandom().randrange(2**32)], ids=["the same as ever", "a new one"])
def test_mutated_fetch_answers_are_decoded_or_refused(program: Program, seed: int) -> None:
    print(f"again: make fuzz RECORD_BATCHES={ANSWERS} SEED={seed}")
    found = run(seed, ANSWERS, program=program)
    print(f"watched: {found.sanitizers}")
    assert found.failure == ""
    assert found.sanitizers.startswith("address and") == (shutil.which("cc") is not None)
    statuses = {name: count for name, count in found.counts.items() if name != "rows"}
    assert sum(statuses.values()) == ANSWERS
    assert len(statuses) == 5
    assert min(statuses.values()) > ANSWERS / 1000, "each outcome is met often"
    assert statuses["good"] > ANSWERS / 4
    assert found.counts["rows"] > ANSWERS


def test_the_same_seed_makes_the_same_answers(program: Program) -> None:
    assert run(3, 5_000, program=program) == run(3, 5_000, program=program)


@pytest.fixture
def spoil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spoil:
    def spoiled(right: str, wrong: str) -> None:
        source = (native.NATIVE / "records.c").read_text()
        assert source.count(right) == 1
        (tmp_path / "records.c").write_text(source.replace(right, wrong))
        monkeypatch.setattr(native, "NATIVE", tmp_path)
        monkeypatch.setattr(native, "OPTIMIZED", "-O0")  # the run ends early, and takes less time than the compiler

    return spoiled


BOUNDS = {
    "of bytes behind their length": ("*length > from->end - from->at) return 0;", "0) return 0;"),
    "of a record": ("return *length <= rest->end - rest->at ? GOOD : b->more ? CUT : MALFORMED;", "return GOOD;"),
    "of a short varint": ("from->end - at >= 2 && ", ""),
    "of a long varint": ("shift < 64 && at < end;", "shift < 64;"),
    "of a batch": ("if (size > w->size - w->at) break;", ""),
    "of a batch's head": ("if (size < RECORDS_AT) return MALFORMED;", ""),
    "of a control record": ("length > record.end - record.at) return MALFORMED;", "0) return MALFORMED;"),
    "of a column": ("size > column->data_bytes - used || ", ""),
}

OVERFLOWS = {
    "of a timestamp": ("__builtin_mul_overflow(ms, 1000, us) ? FAR_TIMESTAMP : GOOD", "(*us = ms * 1000, GOOD)"),
    "of an offset": ("base > INT64_MAX - 1 - last_delta || ", ""),
}

LAWS = {
    "the range": ("if (r->offset >= start) return timestamp", "return timestamp"),
    "the order of offsets": ("delta <= p->previous_delta || ", ""),
    "the count of values": ("with.values += r.value_length >= 0;", "with.values += r.value_length > 0;"),
}


@pytest.mark.parametrize(("right", "wrong"), BOUNDS.values(), ids=BOUNDS)
def test_a_bound_that_is_not_checked_is_found(spoil: Spoil, right: str, wrong: str) -> None:
    spoil(right, wrong)
    found = run(7, ANSWERS)
    assert found.failure or not found.sanitizers.startswith("address"), "zig alone does not watch addresses"


@pytest.mark.parametrize(("right", "wrong"), [*OVERFLOWS.values(), *LAWS.values()], ids=[*OVERFLOWS, *LAWS])
def test_an_overflow_and_a_broken_law_are_found(spoil: Spoil, right: str, wrong: str) -> None:
    spoil(right, wrong)
    assert "SEED=7" in run(7, ANSWERS).failure


# Without `cc`, zig: it has no address sanitizer, but the laws, overflows, and a crash are found.


@pytest.fixture
def no_cc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "CC", ("a compiler that nobody has",))
    monkeypatch.setattr(native, "OPTIMIZED", "-O0")  # as in `spoil`: zig makes its library once for each


@pytest.mark.full  # zig compiles its libraries at first: more than a minute of CPU
@pytest.mark.usefixtures("no_cc")
def test_zig_stands_in_where_there_is_no_cc() -> None:
    found = run(7, ANSWERS // 10)
    assert found.sanitizers.startswith("undefined behaviour alone")
    assert found.failure == ""
    assert found.counts["rows"] > ANSWERS / 10


@pytest.mark.full
@pytest.mark.usefixtures("no_cc")
@pytest.mark.parametrize(("right", "wrong"), [*OVERFLOWS.values(), *LAWS.values()], ids=[*OVERFLOWS, *LAWS])
def test_zig_finds_an_overflow_and_a_broken_law(spoil: Spoil, right: str, wrong: str) -> None:
    spoil(right, wrong)
    assert "SEED=7" in run(7, ANSWERS // 10).failure


@pytest.mark.full
@pytest.mark.usefixtures("no_cc")
def test_a_crash_names_its_answer_where_addresses_are_not_watched(spoil: Spoil) -> None:
    spoil(*BOUNDS["of bytes behind their length"])
    assert "SEED=7" in run(7, ANSWERS).failure
