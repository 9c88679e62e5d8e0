"""Why a sidecar ends, as its last line in the log says."""

import asyncio
import os
import re
import socket
from pathlib import Path

import pytest

from pyspark_kgroup.executor.sidecar import Sidecar
from pyspark_kgroup.shared.channel import frame, new_key
from pyspark_kgroup.shared.messages import SidecarParameters
from pyspark_kgroup.shared.tickets import Executor

ANSWERS = [
    (b"", "The peer hung up"),
    (frame({"op": "welcome", "id": 0}), "does not answer to a heartbeat"),
    (frame({"op": "other", "id": 0}), "unknown type: 'other'"),
    (frame({"op": "homes", "id": 0}), "Homes has other fields"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize(("answer", "reason"), ANSWERS)
def test_a_sidecar_ends_with_the_reason_why_its_registry_is_not_heard_any_more(
    folder: Path, answer: bytes, reason: str
) -> None:
    parameters = SidecarParameters(
        folder=str(folder),
        key=new_key(),
        registry_host="127.0.0.1",
        registry_port=1,
        executor=Executor(key="here", executor_id="1", host="here", pid=os.getpid()),
        prefetch_bytes=1,
        idle_ms=60_000,
    )

    async def ended(registry: socket.socket, sidecar: Sidecar) -> str:
        running = asyncio.create_task(sidecar.run())
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(registry, 4096), "its first heartbeat"
        await loop.sock_sendall(registry, answer)
        if not answer:
            registry.close()
        return await asyncio.wait_for(running, 30)

    ours, theirs = socket.socketpair()
    jvm, jvm_lives = os.pipe()
    with ours, theirs, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        for each in (ours, theirs, listener):
            each.setblocking(False)
        why = asyncio.run(ended(theirs, Sidecar(parameters, ours, listener, None, jvm)))
    os.close(jvm)
    os.close(jvm_lives)
    assert re.search(f"connection to the registry.+{re.escape(reason)}", why)
    assert not folder.exists(), "it leaves nothing behind"
