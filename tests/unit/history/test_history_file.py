"""The file of a run's history, and the program that judges it."""

import subprocess
import sys
from pathlib import Path

import pytest
from history import facts
from history.facts import Committed, Fact, History, Produced, Stored, load, write

ROOT = Path(__file__).parents[3]
FACTS: list[Fact] = [
    Produced("ada", 0, "orders", 0, "one ☃", facts.ACKNOWLEDGED, 1.25),
    Stored("orders", 0, 0, "one ☃"),
    facts.Sunk("main", "orders", 0, 0, "one ☃", 0, "part-0", 2.0),
    facts.Read("peer", "orders", 0, 0, "one ☃"),
    Committed("orders", 0, 1, 3.0),
    facts.Exposed("main", "orders", 0, 0, 1),
    facts.Recreated("orders", 4.0),
    facts.LogEnd("orders", 0, 1),
    facts.Ended("main", "two\nlines", None),
    facts.Warned("main", "waits", 4.0),
    facts.Lasting("a fault", ["waits"], [["orders", 0]], 1.0, 2.0, 3.0, 4.0),
    facts.Left("java"),
]


def test_every_kind_of_fact_is_kept(tmp_path: Path) -> None:
    assert {type(fact) for fact in FACTS} == set(facts.KINDS.values())
    write(tmp_path / "history.jsonl", FACTS)
    assert load(tmp_path / "history.jsonl") == History.of(FACTS)


@pytest.mark.parametrize("line", ["{", '{"fact": "Sunken"}', '{"fact": "Stored", "topic": "orders"}', "7"])
def test_a_line_that_is_no_fact_is_an_error_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write(path, FACTS[:2])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"history\.jsonl:3: no fact"):
        load(path)


def judged(path: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "history", str(path)]
    return subprocess.run(
        command, cwd=ROOT / "tests" / "programs", env={"PYTHONPATH": "."}, capture_output=True, text=True, check=False
    )


def test_the_program_says_by_its_exit_code_whether_a_promise_was_broken(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    sound = [f for f in FACTS if isinstance(f, Produced | Stored | facts.Sunk | Committed | facts.LogEnd)]
    write(path, sound)
    assert judged(path).returncode == 0
    write(path, [*sound, Committed("orders", 0, 0, 5.0)])
    found = judged(path)
    assert (found.returncode, "committed 1, then 0" in found.stdout) == (1, True)


def test_a_file_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    found = judged(tmp_path / "none")
    assert found.returncode == 2
    assert "Traceback" not in found.stderr


def test_the_judge_imports_no_module_of_the_product() -> None:
    for path in (ROOT / "tests" / "programs" / "history").glob("*.py"):
        assert not {"spark_kgroup", "pyspark_kgroup", "chaos", "harness"} & set(_imported(path)), path


def _imported(path: Path) -> list[str]:
    lines = (line.split() for line in path.read_text().splitlines())
    return [words[1].split(".")[0] for words in lines if words and words[0] in ("import", "from")]
