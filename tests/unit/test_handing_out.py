"""pytest-xdist keeps tests together that share a fixture of their module: this shows it with the pytest that we run."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import harness

TESTS = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def dear():
    with pathlib.Path({made!r}).open("a") as file:
        file.write(f"{{__name__}} {{os.getpid()}}\\n")

@pytest.mark.parametrize("number", range(4))
def test_with_it(dear, number):
    pass
"""


def test_a_fixture_of_a_module_is_made_in_one_of_the_processes_that_share_the_tests(tmp_path: Path) -> None:
    tests = Path(harness.__file__).parent.parent
    (tmp_path / "conftest.py").write_text((tests / "conftest.py").read_text())
    made = tmp_path / "made"
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(TESTS.format(made=str(made)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
    )
    assert done.returncode == 0, done.stdout
    makers = defaultdict(list)
    for line in made.read_text().splitlines():
        module, pid = line.split()
        makers[module].append(pid)
    assert {module: len(pids) for module, pids in makers.items()} == {"test_a": 1, "test_b": 1}
    assert "test_a.py::test_with_it[0]@together-test_a" in done.stdout
