"""What a sidecar hears when its registry, or the worker that starts it, is gone."""

import asyncio
import socket
import subprocess
import sys

import pytest

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.executor.sidecar.sidecar_link import Link, RegistryLink
from pyspark_kgroup.shared.messages import Hello
from pyspark_kgroup.shared.tickets import Executor


def test_a_question_ends_with_its_connection_and_is_not_called_unanswered() -> None:
    async def ask_and_hang_up(ours: socket.socket, theirs: socket.socket) -> None:
        registry = RegistryLink(Link(ours, trusted=True))
        hearing = asyncio.create_task(registry.hear())
        executor = Executor(key="here", executor_id="1", host="here", pid=1)
        asking = asyncio.create_task(registry.ask(Hello(query="q", executor=executor, sidecar=True)))
        assert await asyncio.get_running_loop().sock_recv(theirs, 4096), "the question"
        theirs.close()
        with pytest.raises(ChannelEnded, match="hung up"):
            await asking
        with pytest.raises(ChannelEnded, match="hung up"):
            await hearing

    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        asyncio.run(ask_and_hang_up(ours, theirs))


def test_a_sidecar_whose_worker_dies_while_it_starts_ends_without_a_word() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "pyspark_kgroup.executor.sidecar.sidecar"]
        starting = subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        ours.close()
        theirs.close()
        said, _ = starting.communicate(timeout=120)
    assert (starting.returncode, said) == (0, "")
