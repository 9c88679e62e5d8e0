"""Tables that commands print."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from spark_kgroup.peer_words import printable

_NUMERIC: Final = ("partition", "position", "end", "lag", "epoch", "round", "now", "then", "keeps", "gives up", "gets")


def table(*columns: str) -> Table:
    """An empty table. Columns of numbers are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.upper(), no_wrap=True, justify="right" if column in _NUMERIC else "left")
    return made


def add_row(to: Table, *cells: object) -> None:
    """One line, with "-" for None."""
    to.add_row(*("-" if cell is None else printable(str(cell)) for cell in cells))


def write(written: Table) -> None:
    """As wide as it is: a terminal wraps lines better than cells are cut, and a pipe needs neither."""
    console = Console(highlight=False, markup=False, emoji=False)
    # Measured as if the terminal were wide enough for any row: else the width of the terminal bounds the result.
    needed = Measurement.get(console, console.options.update(width=10_000), written).maximum
    console.width = max(console.width, needed)
    console.print(written, crop=False)
