"""Spark's placement of tasks on many executors, and where the seats are read then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from random import Random

from bench_scale.measured import Placement
from pyspark_kgroup.driver.registry.seat_bindings import SeatBindings
from pyspark_kgroup.shared.tickets import Executor

_BATCHES = 60
_WARM_UP = 20
"""Batches until homes are spread."""


def simulate(executors: int, cores: int, seats: int, part_with_data: float, seed: int) -> Placement:
    """Batches of one query, each placed as Spark does.

    TaskSchedulerImpl.resourceOffers shuffles the executors and gives each a task in turn while it has a free core.
    """
    random = Random(seed)
    everybody = [Executor(key=f"host-{n}:1:1", executor_id=str(n), host=f"host-{n}", pid=1) for n in range(executors)]
    bookkeeping = SeatBindings([f"seat-{n}" for n in range(seats)])
    for one in everybody:
        bookkeeping.on_sidecar_joined(one, 0)
    names = [f"seat-{n}" for n in range(seats)]
    with_data = max(1, round(seats * part_with_data))
    counted, tasks, cpu_s = Counter[bool](), 0, 0.0
    for batch in range(_WARM_UP + _BATCHES):
        chosen = names if batch == 0 else sorted(random.sample(names, with_data))
        placed = _placed(everybody, cores, random)
        began_s = time.process_time()
        scan = bookkeeping.plan(str(batch), chosen)
        took = [next(placed) for _ in scan.tickets]
        bound = [bookkeeping.bind(scan.scan_id, ticket, who, 0) for ticket, who in enumerate(took)]
        if batch >= _WARM_UP:
            cpu_s += time.process_time() - began_s
            tasks += len(scan.tickets)
            counted.update(each.at_home for each in bound if each.seat is not None)
    return Placement(
        executors=executors,
        cores=cores,
        seats=seats,
        with_data=with_data,
        tasks=tasks / _BATCHES,
        at_home=counted[True] / counted.total(),
        network=counted[False] / counted.total(),  # every seat has a home by then, and each serves other executors
        cpu_ms=1_000 * cpu_s / _BATCHES,
    )


def _placed(executors: list[Executor], cores: int, random: Random) -> Iterator[Executor]:
    """The executor of one task after the other. When all cores are taken, those that end first have the next."""
    while True:
        order = random.sample(executors, len(executors))
        for _ in range(cores):
            yield from order
