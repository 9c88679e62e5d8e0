"""The counts that a full run reads from its targets' output, and the page that it makes of them."""

from full_run.results import Result, counted, page

OUTPUT = """\
.venv/bin/pytest tests/kafka
tests/kafka/test_member_command.py ...F..                                [ 50%]
E       AssertionError: 3 failed in the first round
=========================== short test summary info ============================
SKIPPED [1] tests/kafka/test_racks.py:12: no such device
FAILED tests/kafka/test_member_command.py::test_leave[a b] - AssertionError: what - ever
ERROR tests/kafka/test_racks.py::test_racks - EnvironmentProblem: died
=== 1 failed, 15 passed, 1 skipped, 2 warnings, 1 error in 123.45s (0:02:03) ===
.venv/bin/pytest -q tests/spec
FAILED tests/spec/test_kip.py::test_sentence
1 failed, 99 passed in 5.01s
"""


def test_tests_are_counted_over_all_runs_of_pytest_and_failures_named() -> None:
    counts, failures = counted(OUTPUT.splitlines(keepends=True))
    assert counts == {"passed": 114, "failed": 3, "skipped": 1}
    assert failures == (
        "tests/kafka/test_member_command.py::test_leave[a b]",
        "tests/kafka/test_racks.py::test_racks",
        "tests/spec/test_kip.py::test_sentence",
    )


def test_the_page_has_a_row_for_each_target_and_then_the_failures() -> None:
    results = [
        Result("test-kafka-3.2.3", "failed", 1234.4, {"passed": 1000, "failed": 1, "skipped": 0}, ("a.py::test_b",)),
        Result("simulate SEEDS=9"),
    ]
    assert page("On a machine.", results) == (
        "# Last full run\n\nOn a machine.\n\n"
        "| target | outcome | passed | failed | skipped | seconds |\n|---|---|--:|--:|--:|--:|\n"
        "| `test-kafka-3.2.3` | failed | 1,000 | 1 | 0 | 1,234 |\n"
        "| `simulate SEEDS=9` | not run | 0 | 0 | 0 | 0 |\n\n"
        "Failed:\n\n- `test-kafka-3.2.3`: `a.py::test_b`\n"
    )


def test_the_page_of_a_run_without_failures_ends_with_its_table() -> None:
    assert page("On a machine.", [Result("test", "passed")]).endswith("| `test` | passed | 0 | 0 | 0 | 0 |\n")
