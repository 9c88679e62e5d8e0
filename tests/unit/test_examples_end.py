"""How an example ends when Ctrl-C comes while PySpark waits for the JVM."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

INTERRUPTED = """
import signal, socket, threading
from py4j.clientserver import JavaClient, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayProperty, PythonProxyPool
from terminal import as_program

jvm = socket.create_server(("127.0.0.1", 0))
connections = []

def interrupt():
    connections.append(jvm.accept()[0])
    connections[0].recv(100)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
properties = GatewayProperty(False, PythonProxyPool())
client = JavaClient(JavaParameters(port=jvm.getsockname()[1]), PythonParameters(), properties)
try:
    with as_program():
        client.send_command("a command that is not answered\\n")
except BaseException as end:
    print(repr(end), end.exit_code)
"""


def test_ctrl_c_while_pyspark_waits_for_the_jvm_ends_an_example_without_a_traceback() -> None:
    """py4j logs such a Ctrl-C with its traceback before it raises it again."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=EXAMPLES, capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("Stopped.\nExit(130) 130\n", "")
