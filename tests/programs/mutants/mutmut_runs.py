"""mutmut at work: one folder for each room under `.build/mutants`, where mutants and their results stay between runs.

mutmut names a mutant by the path of its module from the folder it runs in, and knows a test's by the module's dotted
name. So a room's folder has both packages side by side, as links to their sources.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Collection
from contextlib import chdir
from pathlib import Path
from time import monotonic
from typing import IO

from mutmut.configuration import reset_config
from mutmut.mutation.file_mutation import MutatedFile, mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import (
    get_mutant_name,
    mangled_name_from_mutant_name,
    orig_function_and_class_names_from_key,
)

from mutants.rooms import PACKAGES, ROOT, Room, source_of
from mutants.verdict import Mutant, difference, is_wording

FOLDER = ROOT / ".build" / "mutants"
PROGRESS = re.compile(r"\d+/\d+ ")
PROGRESS_EVERY_S = 10
SPINNER = re.compile("[\u2800-\u28ff]")
LINES_SHOWN_OF_AN_ERROR = 60
WALL_S_MIN, WALL_TIMES = 60, 10
"""A mutant has ten times what its tests take without it, and ten minutes more: the machine may be busy with other work.
Loops end by the CPU they use."""


def prepare(room: Room, *, fresh: bool) -> Path:
    """Make the folder that mutmut expects. Results of another configuration are forgotten, as mutmut does."""
    folder = FOLDER / room.name
    configuration = (ROOT / "pyproject.toml").read_text() + _configuration(room)
    same = (folder / "pyproject.toml").is_file() and (folder / "pyproject.toml").read_text() == configuration
    if fresh or not same:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(configuration)
        for name, source in {**PACKAGES, "tests": ROOT / "tests"}.items():
            (folder / name).symlink_to(source)
    for copy in [path for name in (*PACKAGES, "tests") for path in (folder / "mutants" / name).rglob("*.py")]:
        if not (folder / copy.relative_to(folder / "mutants")).exists():
            copy.unlink()  # mutmut copies new files, and leaves those that are gone
    return folder


def _configuration(room: Room) -> str:
    plugins = ["-p", "mutants.limits", "-p", "no:cacheprovider"]
    without = [f"--deselect={test}" for test in room.without]
    return textwrap.dedent(f"""
        [tool.mutmut]
        source_paths = {list(PACKAGES)}
        only_mutate = {list(room.modules)}
        pytest_add_cli_args_test_selection = {list(room.tests)}
        pytest_add_cli_args = {plugins + without}
        timeout_constant = {WALL_S_MIN}.0
        timeout_multiplier = {WALL_TIMES}.0
        track_dependencies = false
        use_git_change_detection = false
        on_dependency_change = "ignore"
    """)


def mutants_of(room: Room, folder: Path) -> tuple[list[Mutant], int]:
    """All mutants of the room's modules in a fixed order, and how many were left out: they change sentences only."""
    found, sentences_only = [], 0
    with chdir(folder):  # mutmut reads its configuration here
        reset_config()
        for module in room.modules:
            mutated = mutate_file_contents(module, source_of(module).read_text())
            lines = mutated.code.splitlines()
            for name in mutated.mutant_names:
                function = mangled_name_from_mutant_name(name)
                before = _code(mutated, lines, f"{function}__mutmut_orig", function)
                after = _code(mutated, lines, name, function)
                if is_wording(before, after):
                    sentences_only += 1
                else:
                    full_name, where = get_mutant_name(Path(module), name), _where(module, name)
                    found.append(Mutant(full_name, where, difference(before, after)))
    return found, sentences_only


def _code(mutated: MutatedFile, lines: list[str], name: str, function: str) -> str:
    span = mutated.line_span_by_function_name[name]
    return textwrap.dedent("\n".join(lines[span.start - 1 : span.end])).replace(name, function)


def _where(module: str, name: str) -> str:
    function, owner = orig_function_and_class_names_from_key(name)
    return ".".join(part for part in (Path(module).stem, owner, function) if part)


def outcomes_of(room: Room, folder: Path) -> dict[str, str]:
    """Mutant -> its outcome in mutmut's words, of each that has been tried."""
    outcomes = {}
    for module in room.modules:
        results = folder / "mutants" / f"{module}.meta"
        if results.exists():
            exit_codes = json.loads(results.read_text())["exit_code_by_key"]
            outcomes.update({n: status_by_exit_code[code] for n, code in exit_codes.items() if code is not None})
    return outcomes


def run(folder: Path, names: Collection[str], jobs: int, cpu_s_max: int) -> None:
    """Try these mutants, and print how far mutmut is.

    Raises:
        subprocess.CalledProcessError: a test fails without any mutant, for one.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests" / "programs")]),
        "PYTHONUNBUFFERED": "1",
        "HYPOTHESIS_PROFILE": "few",
        "KGROUP_SIMULATION_SEEDS": "20",
        "KGROUP_MUTANT_CPU_S_MAX": str(cpu_s_max),
    }
    command = [str(Path(sys.executable).parent / "mutmut"), "run", "--max-children", str(jobs), *names]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as mutmut:
        assert mutmut.stdout is not None
        last_lines = _pass_on(mutmut.stdout)
    if mutmut.returncode != 0:
        print(*last_lines, sep="\n")
        raise subprocess.CalledProcessError(mutmut.returncode, command[:2])


def _pass_on(output: IO[str]) -> list[str]:
    """Print a line now and then, where mutmut turns a spinner. Returns its last lines, which may be an error."""
    last_lines: deque[str] = deque(maxlen=LINES_SHOWN_OF_AN_ERROR)
    printed_at_s = 0.0
    for line in output:  # universal newlines: a carriage return ends one, too
        text = SPINNER.sub("", line).strip()
        if text and text not in last_lines:
            last_lines.append(text)
            if PROGRESS.match(text) and monotonic() - printed_at_s > PROGRESS_EVERY_S:
                printed_at_s = monotonic()
                print(f"  {text}", flush=True)
    return list(last_lines)
