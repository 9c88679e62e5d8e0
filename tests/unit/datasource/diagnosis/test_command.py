"""`kgroup doctor --remote` says at once that no Spark Connect server listens."""

import socket

import pytest

from pyspark_kgroup.diagnosis import command
from pyspark_kgroup.diagnosis.command import examine
from spark_kgroup.errors import EnvironmentProblem


class Sessions:
    """Stands for Spark: no session comes about."""

    def __init__(self) -> None:
        self.remotes: list[str | None] = []

    def session(self, remote: str | None, _: object) -> None:
        self.remotes.append(remote)
        raise EnvironmentProblem("no session in a unit test")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    stand_in = Sessions()
    monkeypatch.setattr(command, "_session", stand_in.session)
    return stand_in


def look_at(remote: str | None) -> None:
    examine(remote=remote, settings={}, bootstrap_server=None, security={}, tasks=None)


@pytest.mark.parametrize("more", ["", "/;token=HUSH"], ids=["an address", "with a token"])
def test_a_server_that_does_not_listen_is_an_error_at_once(sessions: Sessions, more: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        EnvironmentProblem, match=rf"at 127\.0\.0\.1:{port} .*refused.*start it, or correct --remote"
    ) as problem:
        look_at(f"sc://127.0.0.1:{port}{more}")
    assert sessions.remotes == []
    assert "HUSH" not in str(problem.value)


def test_a_server_that_listens_and_one_that_is_started_here_are_left_to_spark(sessions: Sessions) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for remote in (f"sc://127.0.0.1:{server.getsockname()[1]}", "local[2]", None):
            with pytest.raises(EnvironmentProblem, match="no session in a unit test"):
                look_at(remote)
    assert len(sessions.remotes) == 3
