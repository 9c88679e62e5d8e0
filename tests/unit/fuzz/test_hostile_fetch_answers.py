"""A short run of mutated answers to Fetch through fetcher and decoder, and whether it would notice."""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable
from ctypes import CDLL
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest
from fuzz import fetch_run, fetches
from fuzz.fetch_drafts import AnswerDraft, PartitionDraft, TopicDraft
from fuzz.fetch_process import read
from fuzz.fetch_run import run
from harness.fetch_broker import SCHEMAS, TOPIC_ID, partition, response
from kio.serial import entity_reader

import hatch_build
from pyspark_kgroup.executor.native import decode, fetch_messages, library
from pyspark_kgroup.executor.native.fetcher import Fetcher

ANSWERS = 2_000
"""Of a seed that is new in each run. Each outcome is met often enough for the bounds below with any seed."""

ANSWERS_AS_EVER = 1_400
"""Of the seed that is the same in each run, so that the same outcomes are met."""

REFUSALS = {
    "a batch does not have the checksum that it names",
    "an answer that ends in the middle of a field",
    "the header of a record batch makes no sense",
    "the broker answered request # where # was due",
    "a batch is not as Kafka writes it",
}


@pytest.mark.parametrize(
    ("seed", "answers"),
    [(7, ANSWERS_AS_EVER), (SystemRandom().randrange(2**32), ANSWERS)],
    ids=["the same as ever", "a new one"],
)
def test_mutated_fetch_answers_are_read_as_they_were_written_or_refused(seed: int, answers: int) -> None:
    print(f"again: make fuzz ANSWERS={answers} SEED={seed}")
    found = run(seed, answers)
    assert found.verdict() == []
    assert found.messages == found.outcomes.total() == answers
    assert found.outcomes["whole: read"] > answers / 20
    assert found.outcomes["mutated: rows as written"] > answers / 20
    assert found.outcomes["mutated: rows that were moved"] > answers / 500
    assert found.outcomes.keys() >= {f"refused: {reason}" for reason in REFUSALS}


def test_an_answer_is_the_same_alone_and_among_other_answers_in_one_process_and_in_three() -> None:
    together = run(3, 120, processes=3).outcomes
    assert together == read(3, range(120)).outcomes
    assert together == read(3, range(40, 120)).outcomes + read(3, range(40)).outcomes


@pytest.mark.parametrize("version", sorted(SCHEMAS))
def test_a_draft_is_an_answer_as_kio_reads_it(version: int) -> None:
    aborted = [(7, 3), (8, 9)]
    parts = [PartitionDraft(0, [bytearray(b"some"), bytearray(b"more")], aborted, preferred=2), PartitionDraft(1, None)]
    name = b"t" if version == 12 else TOPIC_ID.bytes
    draft = AnswerDraft(version, 5, [TopicDraft(name, parts)], throttle_ms=9)
    expected = response(
        {
            "t" if version == 12 else TOPIC_ID: [
                partition(0, b"somemore", version=version, aborted=((7, 3), (8, 9)), preferred=2),
                partition(1, None, version=version),  # type: ignore[arg-type]
            ]
        },
        version=version,
        throttle_ms=9,
    )
    body = draft.body()
    assert entity_reader(type(expected))(body, 0) == (expected, len(body))
    assert bytes(draft.frame()) == (9 - 4 + len(body)).to_bytes(4) + b"\0\0\0\5\0" + body


# Code that is broken on purpose must be found: else a run without findings is no proof.

Break = tuple[Any, str, str, str]

PYTHON: dict[str, Break] = {
    "the end of the records": (fetch_messages, "read_batch_headers", "if batch_end > len(records):", "if False:"),
    "what was asked for": (
        Fetcher,
        "_take_answer",
        "under_way.pop((one.topic, one.partition), None)",
        "next(iter(under_way.values()))",
    ),
    "the error of a partition": (Fetcher, "_take", "if fetched.error:", "if False:"),
    "the position": (fetch_messages, "read_batch_headers", "if at and next_offset <= position:", "if False:"),
    "the largest offset": (fetch_messages, "read_batch_headers", "< _OFFSET_MAX - last_delta", "< 2 * _OFFSET_MAX"),
    "the order of aborted transactions": (decode, "_walk", "key=lambda transaction: transaction[1]", "reverse=True"),
}

C = {
    "the checksum": ("return BAD_CHECKSUM;", ";"),
    "the range": ("if (r->offset >= start) return timestamp", "return timestamp"),
    "aborted transactions": ("*aborted = attributes & TRANSACTIONAL;", "*aborted = 0;"),
    "the order of offsets": ("delta <= p->previous_delta || ", ""),
}


def is_found() -> bool:
    """Whether a run notices: it is not read to its end then."""
    return any(read(7, range(first, first + 250)).verdict() for first in range(0, 5 * ANSWERS, 250))


@pytest.mark.parametrize(("owner", "name", "right", "wrong"), PYTHON.values(), ids=PYTHON)
def test_a_check_of_an_answer_that_is_missing_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, right: str, wrong: str
) -> None:
    function: Any = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) == 1
    names = dict(function.__globals__)
    flags = __future__.annotations.compiler_flag
    exec(compile(source.replace(right, wrong), function.__code__.co_filename, "exec", flags), names)
    monkeypatch.setattr(owner, name, names[name])
    assert is_found()


@pytest.fixture
def spoil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    def spoiled(right: str, wrong: str) -> None:
        source = (Path(library.__file__).parent / "records.c").read_text()
        assert source.count(right) == 1
        copy = tmp_path / hatch_build.NATIVE / "records.c"
        copy.parent.mkdir(parents=True)
        copy.write_text(source.replace(right, wrong))
        binary = CDLL(str(hatch_build.compile_here(tmp_path)))
        monkeypatch.setattr(fetches, "built_decoder", lambda: binary)

    return spoiled


@pytest.mark.parametrize(("right", "wrong"), C.values(), ids=C)
def test_a_check_of_the_decoder_that_is_missing_is_found(
    spoil: Callable[[str, str], None], right: str, wrong: str
) -> None:
    spoil(right, wrong)
    assert is_found()


BEGIN = "import os, signal, sys; from pathlib import Path; from fuzz.mark import Mark; "
BEGIN += "mark = Mark(Path(sys.argv[5])); mark.begin(); mark.begin(); mark.begin(); "


@pytest.mark.parametrize(
    ("ending", "finding"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "1 x the process ended with SIGSEGV, first with message 12"),
        ("signal.pause()", "1 x more than 2.0 s, first with message 12"),
    ],
    ids=["a crash", "a hang"],
)
def test_a_crash_and_a_hang_are_found_with_the_number_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, ending: str, finding: str
) -> None:
    monkeypatch.setattr(fetch_run, "ANSWER_TIMEOUT_S", 2.0)
    assert run(7, 100, first=10, command=[sys.executable, "-c", BEGIN + ending]).verdict() == [finding]
