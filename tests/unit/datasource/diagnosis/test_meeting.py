"""The tasks of an examination meet at the driver, and try each other, the driver and the brokers."""

import socket
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kgroup.diagnosis import host_facts, meeting
from pyspark_kgroup.diagnosis.meeting import Meeting, Place, Reach, reach
from pyspark_kgroup.shared.channel import connect


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def reached_by(place: Place, executors: Sequence[str]) -> list[Reach]:
    with ThreadPoolExecutor(len(executors)) as pool:
        return list(pool.map(lambda executor: reach(place, executor, []), executors))


def test_each_task_reaches_the_driver_and_one_task_of_each_other_executor() -> None:
    with Meeting(4, "127.0.0.1") as meeting_place:
        reached = reached_by(meeting_place.place, ["a", "a", "b", "c"])
    assert [each.driver_error for each in reached] == [""] * 4
    assert [(each.peers, each.peer_errors) for each in reached] == [(2, [])] * 4
    assert all(abs(each.clock_ahead_ms) < 5_000 for each in reached)


def test_tasks_that_find_no_slot_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_GATHER_S", 0.2)
    with Meeting(9, "127.0.0.1") as meeting_place:
        (alone,) = reached_by(meeting_place.place, ["a"])
    assert (alone.driver_error, alone.peers) == ("", 0)


def test_a_task_that_ends_at_once_is_told_as_not_reached_by_its_peers() -> None:
    with Meeting(2, "127.0.0.1") as meeting_place:
        place = meeting_place.place
        channel = connect((place.host, place.port), place.key, meeting.NAME)
        channel.send({"executor": "gone", "port": closed_port()})
        channel.receive(10)
        (reached,) = reached_by(place, ["a"])
        channel.close()
    assert (reached.driver_error, reached.peers, len(reached.peer_errors)) == ("", 1, 1)


def test_a_driver_that_is_not_reached_is_told_with_its_address() -> None:
    port = closed_port()
    reached = reach(Place(host="127.0.0.1", port=port, key=b"k" * 32), "a", [])
    assert reached.driver_error.startswith(f"127.0.0.1:{port}: ")


def test_a_task_without_the_key_hears_of_no_peer() -> None:
    with Meeting(1, "127.0.0.1") as meeting_place:
        reached = reach(replace(meeting_place.place, key=b"x" * 32), "a", [])
    assert "key" in reached.driver_error
    assert reached.peers == 0


def test_a_broker_that_is_not_reached_is_named() -> None:
    port = closed_port()
    with socket.create_server(("127.0.0.1", 0)) as broker:
        reached = reach(None, "a", [("127.0.0.1", port), broker.getsockname()[:2]])
    (error,) = reached.broker_errors
    assert error.startswith(f"127.0.0.1:{port}: ")


def test_facts_of_this_process_are_told() -> None:
    facts = host_facts.look()
    assert facts.pyspark_compiled
    assert (facts.folder_error, facts.jvm_above) == ("", False)
    assert facts.cpus >= 1


def test_a_module_in_an_archive_of_sources_counts_as_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("of_an_archive.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "modules.zip"))
    assert not host_facts._is_compiled("of_an_archive")
