"""Why a sidecar ends, as its last line in the log says."""

import asyncio
import os
import re
import socket
from pathlib import Path

import pytest

from pyspark_kgroup.executor.sidecar.sidecar import Sidecar
from pyspark_kgroup.shared.channel import frame, new_key
from pyspark_kgroup.shared.messages import AddQuery, CannotStart, QueryMessage, Ready, SidecarParameters
from pyspark_kgroup.shared.tickets import Executor

ANSWERS = [
    (b"", "The peer hung up"),
    (frame({"op": "welcome", "id": 1, "serves_others": False}), "does not answer to a heartbeat"),
    (frame({"op": "other", "id": 1}), "unknown type: 'other'"),
    (frame({"op": "homes", "id": 1}), "Homes has other fields"),
]


@pytest.fixture
def parameters(tmp_path: Path) -> SidecarParameters:
    folder = tmp_path / "place"
    folder.mkdir(mode=0o700)
    executor = Executor(key="here", executor_id="1", host="here", pid=os.getpid())
    return SidecarParameters(folder=str(folder), key=new_key(), executor=executor, host="")


def end_of(parameters: SidecarParameters, *answers: bytes) -> tuple[QueryMessage, str, bool]:
    """Start a sidecar with a query whose registry says this, and hangs up at an empty answer.

    Returns:
        The answer to the worker that started it, why the sidecar has ended, and whether its folder is left.
    """
    folder, answered = Path(parameters.folder), list[QueryMessage]()

    async def run(sidecar: Sidecar, ours: socket.socket, theirs: socket.socket) -> str:
        asked = AddQuery(query="q", prefetch_bytes=1, idle_ms=60_000, tells_sizes=False)
        running = asyncio.create_task(sidecar.run(asked, ours, answered.append))
        loop = asyncio.get_running_loop()
        for answer in answers:
            assert await loop.sock_recv(theirs, 4096), "its greeting, and then its first heartbeat"
            await loop.sock_sendall(theirs, answer)
            if not answer:
                theirs.close()
        return await asyncio.wait_for(running, 30)

    ours, theirs = socket.socketpair()
    jvm, jvm_lives = os.pipe()
    with ours, theirs, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        for each in (theirs, listener):
            each.setblocking(False)
        why = asyncio.run(run(Sidecar(parameters, listener, None, jvm), ours, theirs))
    os.close(jvm)
    os.close(jvm_lives)
    (answer,) = answered
    return answer, why, folder.exists()


@pytest.mark.parametrize(("answer", "reason"), ANSWERS)
def test_a_sidecar_ends_with_the_reason_why_the_registry_of_its_last_query_is_not_answered_any_more(
    parameters: SidecarParameters, answer: bytes, reason: str
) -> None:
    answered, why, left = end_of(parameters, frame({"op": "welcome", "id": 0, "serves_others": False}), answer)
    assert isinstance(answered, Ready)
    assert re.search(f"last query is over: its connection to the registry.+{re.escape(reason)}", why)
    assert not left, "it leaves nothing behind"


def test_a_query_whose_port_is_another_querys_by_now_is_not_served(parameters: SidecarParameters) -> None:
    refused = frame({"op": "refused", "reason": "This is the registry of another query.", "id": 0})
    answered, _, left = end_of(parameters, refused)
    assert isinstance(answered, CannotStart)
    assert answered.reason == "This is the registry of another query."
    assert not left
