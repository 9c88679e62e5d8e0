"""The parts of a query that all steps of its boundaries work with.

Runs on: driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark_kgroup.driver.boundary.group_port import GroupPort
from pyspark_kgroup.driver.boundary.ledger import Ledger
from pyspark_kgroup.options.parser import SourceOptions
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.seat_note import Author


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryContext:
    """What stays the same from one boundary of a query to the next.

    Attributes:
        group: the query's seats in the group.
        options: the query's.
        ledger: the partitions that the seats own, and how far each was read.
        us: the author that this run writes beside its commits.
        clock: in milliseconds, and it goes on while the process is stopped.
    """

    group: GroupPort
    options: SourceOptions
    ledger: Ledger
    us: Author
    clock: Callable[[], int]

    @classmethod
    def of(
        cls,
        group: GroupPort,
        options: SourceOptions,
        us: Author | None = None,
        clock: Callable[[], int] = monotonic_ms,
    ) -> BoundaryContext:
        """The context of a query that owns no partition yet.

        Args:
            group: the query's seats in the group.
            options: the query's.
            us: the author that this run writes beside its commits, or None to write the application's prefix alone.
            clock: as the attribute.
        """
        us = us or Author(app=options.instance_id_prefix)
        return cls(group=group, options=options, ledger=Ledger(options.subscription), us=us, clock=clock)
