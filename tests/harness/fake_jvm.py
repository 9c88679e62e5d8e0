"""Spark's JVM as a stream reader sees it, without Spark: starts the real reader process, and asks it as Spark does.

A program. The reader's options as JSON are its argument. It writes the reader's pid and then one line for each answer.
Each line that it reads is a start offset to call `latestOffset` with. When its input ends, the query is stopped. Killed
with SIGKILL, it is a JVM that died alone.
Sources: PythonStreamingSourceRunner, PythonWorkerFactory.createSimpleWorker and python_streaming_source_runner.py.
"""

import json
import os
import pickle
import secrets
import socket
import struct
import subprocess
import sys
import threading
from typing import IO, cast

from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.source import DefaultSource

READER = "pyspark.sql.streaming.python_streaming_source_runner"
LATEST_OFFSET = 890
EXCEPTION_THROWN = -2
ALL_AVAILABLE = {"_type": "ReadAllAvailable"}


def start_reader(listener: socket.socket, secret: str) -> subprocess.Popen[bytes]:
    """The reader's process, as PythonWorkerFactory starts it."""
    port = str(listener.getsockname()[1])
    variables = {"PYTHON_WORKER_FACTORY_PORT": port, "PYTHON_WORKER_FACTORY_SECRET": secret}
    return subprocess.Popen([sys.executable, "-P", "-m", READER], env={**os.environ, **variables}, stdout=sys.stderr)


def send_text(pipe: IO[bytes], text: str) -> None:
    send_bytes(pipe, text.encode())


def send_bytes(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(struct.pack(">i", len(data)) + data)


def read_int(pipe: IO[bytes]) -> int:
    (number,) = struct.unpack(">i", pipe.read(4))
    return int(number)


def introduce(pipe: IO[bytes], secret: str, options: dict[str, str]) -> int:
    """Authenticate the reader and send it the source's options. Returns its pid."""
    assert pipe.read(read_int(pipe)).decode() == secret
    send_text(pipe, "ok")
    pipe.flush()
    pid = read_int(pipe)
    send_text(pipe, "{}.{}".format(*sys.version_info[:2]))
    send_text(pipe, os.getcwd())  # Spark's folder of files
    pipe.write(struct.pack(">i", 0))
    send_bytes(pipe, pickle.dumps(DefaultSource(options)))
    send_text(pipe, spark_schema(COLUMNS).json())
    pipe.write(struct.pack(">i", 10_000))
    pipe.flush()
    assert read_int(pipe) == 0
    return pid


def latest_offset(pipe: IO[bytes], start: object) -> str:
    pipe.write(struct.pack(">i", LATEST_OFFSET))
    send_text(pipe, json.dumps(start))
    send_text(pipe, json.dumps(ALL_AVAILABLE))
    pipe.flush()
    length = read_int(pipe)
    if length == EXCEPTION_THROWN:
        return json.dumps({"error": pipe.read(read_int(pipe)).decode()})
    return pipe.read(length).decode()


def answer(pipe: IO[bytes], start: object) -> None:
    print(latest_offset(pipe, start), flush=True)


def main(options: dict[str, str]) -> None:
    secret = secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = start_reader(listener, secret)
        accepted, _ = listener.accept()
    pipe = cast("IO[bytes]", accepted.makefile("rwb"))
    print(introduce(pipe, secret, options), flush=True)
    for line in sys.stdin:
        answering = threading.Thread(target=answer, args=(pipe, json.loads(line)), daemon=True)
        answering.start()
    reader.terminate()
    accepted.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
