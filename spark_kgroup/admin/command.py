"""Where the `kgroup` command begins: what it takes beyond the library is an extra, which its error names."""

from __future__ import annotations

import sys
from typing import Final

_OF_THE_EXTRA: Final = {"typer", "rich", "javaproperties"}


def main() -> None:
    """Run the command line (`cli.main`), if what it takes is installed."""
    try:
        from spark_kgroup.admin import cli
    except ModuleNotFoundError as missing:
        if missing.name not in _OF_THE_EXTRA:
            raise
        extra = "pip install 'spark-kgroup[cli]'"
        sys.stderr.write(f"kgroup: {missing.name} is missing. Install the command line: {extra}\n")
        raise SystemExit(1) from None
    cli.main()
