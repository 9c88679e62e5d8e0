"""The results as tables and as JSON, and whether they keep our promises."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any, NamedTuple

from rich import box
from rich.console import Group
from rich.table import Table

from bench_seats.kills import AFTER_MS, BEFORE_MS
from bench_seats.placement import OURS, Kill, p99
from bench_seats.undisturbed import Served

UNNEEDED_MAX = 0.05
"""Of the partitions whose executor survived, the part that may have changed executor."""

AT_HOME_MIN = 0.98
"""Of all reads, undisturbed and warm, the part that the seat's own server serves on the same executor."""

BY_SERVER_MIN = 0.9
"""With fewer seats than executors: the part that it serves wherever it is."""


class Setup(NamedTuple):
    """The set-up of an undisturbed run.

    Attributes:
        cores: of each executor.
        maps: whether a Python function sees each row.
        seats: None for as many as there are cores in all.
    """

    cores: int
    maps: bool
    seats: int | None = None

    def __str__(self) -> str:
        cores = f"{self.cores} {'core' if self.cores == 1 else 'cores'}"
        seats = f", {self.seats} {'seat' if self.seats == 1 else 'seats'}" if self.seats is not None else ""
        return f"{cores}{seats}{', mapInPandas' if self.maps else ''}"


class Killed(NamedTuple):
    """Where executors were killed.

    Attributes:
        replaced: see `bench_seats.kills.REPLACED`.
    """

    replaced: str
    source: str


Kills = Mapping[Killed, Sequence[Kill]]
Undisturbed = Mapping[Setup, Served]


def summary(kills: Sequence[Kill]) -> dict[str, Any]:
    """The figures of one source under one kind of replacement."""
    survivors = sum(kill.partitions - kill.lost for kill in kills)
    unneeded = sum(kill.unneeded for kill in kills)
    latencies_ms = [each for kill in kills for each in kill.latencies_ms(BEFORE_MS, AFTER_MS)]
    return {
        "kills": len(kills),
        "partitions": sum(kill.partitions for kill in kills),
        "moved": sum(kill.moved for kill in kills),
        "least_possible": sum(kill.lost for kill in kills),
        "survivors": survivors,
        "unneeded": unneeded,
        "unneeded_share": unneeded / max(1, survivors),
        "batch_to_batch": sum(kill.batch_to_batch for kill in kills),
        "gap_median_s": median(kill.gap_s for kill in kills),
        "gap_max_s": max(kill.gap_s for kill in kills),
        "p99_ms": p99(latencies_ms),
        "connections_a_kill": fmean(kill.connections for kill in kills),
        "rebalances": sum(after - before for before, after in filter(None, (kill.generations for kill in kills))),
        "even_again": sum(kill.even for kill in kills),
    }


def kills_table(measured: Kills) -> Group:
    """One row for each source and kind of replacement."""
    window = f"{BEFORE_MS // 1000} s before to {AFTER_MS // 1000} s after"
    title = f"Executors killed: who reads a partition, settled before and settled after (p99 of records born {window})"
    table = _table(
        "replaced on",
        "source",
        "kills",
        "moved",
        "least possible",
        "survivors' moved",
        "batch to batch",
        "gap s (max)",
        "p99 s",
        "connections a kill",
        "rebalances",
        "even again",
    )
    for (replaced, source), kills in measured.items():
        sums = summary(kills)
        table.add_row(
            replaced,
            source,
            str(sums["kills"]),
            f"{sums['moved']} of {sums['partitions']} ({sums['moved'] / sums['partitions']:.0%})",
            str(sums["least_possible"]),
            f"{sums['unneeded']} of {sums['survivors']} ({sums['unneeded_share']:.0%})",
            str(sums["batch_to_batch"]),
            f"{sums['gap_median_s']:.1f} ({sums['gap_max_s']:.1f})",
            f"{sums['p99_ms'] / 1000:.1f}",
            f"{sums['connections_a_kill']:.0f}",
            str(sums["rebalances"]) if source == OURS else "-",
            f"{sums['even_again']} of {sums['kills']}",
        )
    return Group(title, table)


def undisturbed_table(measured: Undisturbed) -> Group:
    """One row for each set-up."""
    title = "Undisturbed: reads served by the seat's own server, and rows that were there when asked"
    table = _table(
        "executors",
        "batches",
        "reads",
        "at home",
        "network",
        "guest",
        "alone",
        "at home %",
        "by server %",
        "rows",
        "ready %",
        "batch ms",
    )
    for setup, each in measured.items():
        table.add_row(
            str(setup),
            str(each.batches),
            str(each.reads),
            *(str(count) for count in (each.at_home, each.network, each.guest, each.alone)),
            f"{each.home_share:.1%}",
            f"{each.server_share:.1%}",
            f"{each.rows:,}",
            f"{each.ready_share:.1%}",
            f"{each.batch_ms:.0f}",
        )
    return Group(title, table)


def missed(kills: Kills, undisturbed: Undisturbed) -> list[str]:
    """The promises that were not kept, in words."""
    found = []
    for (replaced, source), each in kills.items():
        if source != OURS:
            continue
        sums = summary(each)
        if sums["unneeded_share"] > UNNEEDED_MAX:
            found.append(f"{replaced}: {sums['unneeded_share']:.0%} of the survivors' partitions moved")
        if sums["even_again"] < sums["kills"]:
            found.append(f"{replaced}: uneven after {sums['kills'] - sums['even_again']} kills")
        if sums["rebalances"]:
            found.append(f"{replaced}: the group rebalanced {sums['rebalances']} times")
    for setup, served in undisturbed.items():
        if setup.seats is None and served.home_share < AT_HOME_MIN:
            found.append(f"{setup}: {served.home_share:.1%} of reads at home")
        if served.server_share < BY_SERVER_MIN:
            found.append(f"{setup}: {served.server_share:.1%} of reads by the seats' own servers")
    return found


def as_json(kills: Kills, undisturbed: Undisturbed) -> dict[str, Any]:
    """All figures, and for every kill each partition's reader in each batch."""
    return {
        "kills": [
            {**where._asdict(), **summary(each), "each": [_one(kill) for kill in each]} for where, each in kills.items()
        ],
        "undisturbed": [{**setup._asdict(), **asdict(each)} for setup, each in undisturbed.items()],
        "missed": missed(kills, undisturbed),
    }


def _one(kill: Kill) -> dict[str, Any]:
    names = ("victim", "killed_ms", "lost", "moved", "unneeded", "batch_to_batch", "gap_s", "even", "connections")
    figures = {name: getattr(kill, name) for name in names}
    batches = [
        {"at_ms": each.at_ms, "live": sorted(each.live), "placement": dict(each.placement)} for each in kill.batches
    ]
    return figures | {"generations": kill.generations, "batches": batches}


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("replaced on", "source", "executors") else "right")
    return table
