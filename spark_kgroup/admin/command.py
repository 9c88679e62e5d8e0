"""Where the `kgroup` command begins: its packages beyond the library's are an extra, which the error names."""

from __future__ import annotations

import signal
import sys
from typing import Final

_OF_THE_EXTRA: Final = {"typer", "rich", "javaproperties"}


def main() -> None:
    """Run the command line (`cli.main`), if the packages of the extra are installed.

    Until a subcommand handles Ctrl-C, in the half second of the imports above all, it ends the process as SIGTERM does:
    silently, with 128 + 2 in a shell. A process that was started to ignore it has no handler here, and goes on.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from spark_kgroup.admin import cli
    except ModuleNotFoundError as missing:
        if missing.name not in _OF_THE_EXTRA:
            raise
        extra = "pip install 'spark-kgroup[cli]'"
        sys.stderr.write(f"kgroup: {missing.name} is missing. Install the command line: {extra}\n")
        raise SystemExit(1) from None
    cli.main()
