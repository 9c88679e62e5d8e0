"""The example that runs a Spark standalone cluster, run as a user runs it."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.example import Example

from spark_kgroup.testing import ApacheKafka


@pytest.fixture
def example() -> Iterator[Example]:
    """In a folder with a short name: a Unix socket's address has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kgroup-", dir="/tmp") as folder:
        started = Example(Path(folder) / "tmp")
        yield started
        started.assert_nothing_is_left()


@pytest.mark.full
def test_every_seat_is_served_by_an_executor_of_the_cluster(
    example: Example, apache_kafka: ApacheKafka, group: str
) -> None:
    arguments = ["--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", group, "--group", group]
    code, output = example.run("standalone.py", *arguments, "--rows", "3000", "--rows-per-batch", "600")
    assert code == 0, output
    assert "equal to the last digit, over 3,000 rows" in output
    served = re.findall(rf"{group}-(\d) +(\d+) +(127\.0\.0\.[23]) .* yes", output)
    assert [seat for seat, *_ in served] == list("0123"), output
    assert {host for *_, host in served} == {"127.0.0.2", "127.0.0.3"}, output
