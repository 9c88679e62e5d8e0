"""The log lines of a query have a time, a level and a group, as far as logging is not configured already."""

import os
import re
import subprocess
import sys

import pytest

LOGGING = """
import logging, sys
from pyspark_kgroup.query_log import show_log
if sys.argv[1:] == ["configured"]:
    logging.basicConfig(format="ours: %(message)s")
show_log("100%s of it")
logging.getLogger("spark_kgroup.wire").warning("a warning with %d words", 4)
logging.getLogger("pyspark_kgroup.driver").info("seats join")
logging.getLogger("py4j").info("not ours")
"""


@pytest.mark.parametrize(
    ("given", "level", "lines"),
    [
        ((), "", ["WARNING kgroup, group 100%s of it: a warning with 4 words"]),
        ((), "nonsense", ["WARNING kgroup, group 100%s of it: a warning with 4 words"]),
        (
            (),
            "info",
            [
                "WARNING kgroup, group 100%s of it: a warning with 4 words",
                "INFO kgroup, group 100%s of it: seats join",
            ],
        ),
        ((), "error", []),
        (("configured",), "", ["ours: a warning with 4 words"]),
    ],
)
def test_log_lines_of_a_stream_reader_say_when_how_grave_and_of_which_group(
    given: tuple[str, ...], level: str, lines: list[str]
) -> None:
    command = [sys.executable, "-c", LOGGING, *given]
    environment = {**os.environ, "KGROUP_LOG_LEVEL": level}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    shown = done.stderr.splitlines()
    if not given:
        assert all(re.match(r"[0-9]{2}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} ", line) for line in shown)
        shown = [line[18:] for line in shown]
    assert shown == lines
