"""One query on one executor: what the executor's workers share when they ask a sidecar or the query's registry.

Runs on: executor, in Spark's Python workers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark_kgroup.executor.sidecar_dir import RecentFailures, SidecarDir, find_sidecar_dir
from pyspark_kgroup.shared.tickets import Executor, RegistryAccess

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorQuery:
    """One query on one executor.

    Attributes:
        executor: the executor whose worker this process is.
        access: where the query's registry is, and the terms on which a sidecar serves the query.
        place: where the executor's sidecar is on disk, or None if this platform has no place for it.
        failures: of the executor's workers, with this query.
    """

    executor: Executor
    access: RegistryAccess
    place: SidecarDir | None
    failures: RecentFailures

    @classmethod
    def of(cls, executor: Executor, access: RegistryAccess) -> ExecutorQuery:
        """The query with this registry, on `executor`. No process is asked."""
        try:
            place = find_sidecar_dir(executor, access.key)
        except OSError as problem:
            log.debug("there is no place for a sidecar: %s", problem)
            place = None
        return cls(executor=executor, access=access, place=place, failures=RecentFailures(place, access.query))
