"""Homes in a random world: Spark's scheduler, executors that are killed and replaced, tasks that fail, are copied, or
run again.

Each world has a seed, which a failure names. `KGROUP_SIMULATION_SEEDS=500` runs more of them.
"""

import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from pyspark_kgroup.driver.registry import seat_bindings as seats_module
from pyspark_kgroup.driver.registry.seat_bindings import Binding, Home, Part, Scan, SeatBindings, make_parts
from pyspark_kgroup.shared.tickets import Executor, Mode

SEEDS = os.environ.get("KGROUP_SIMULATION_SEEDS")

Task = tuple[int, int]
"""Scan id and ticket."""


@dataclass
class Shape:
    """How large a world is, and how often its events happen.

    Attributes:
        data: probability that a seat has data in a batch.
        trouble: probability of a failed task, a speculative copy or a stage retry at a step of a job.
        pieces: into how many pieces a seat's share is divided at most.
    """

    seats: int
    executors: int
    cores: int
    data: float = 1.0
    trouble: float = 0.0
    pieces: int = 1


@dataclass
class Job:
    """One Spark job over a batch.

    Attributes:
        read: for each scan, how often each piece's data has arrived: a task that did not finish does not count.
    """

    waiting: list[Task]
    running: list[tuple[Task, Executor, Binding | None]] = field(default_factory=list)
    done: dict[Task, Part | None] = field(default_factory=dict)

    def read(self, scan: Scan) -> Counter[Part]:
        return Counter(part for (number, _), part in self.done.items() if number == scan.scan_id and part is not None)


class SeatWorld:
    """Spark around the registry's bookkeeping, with checks of every step."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.rng = random.Random(seed)
        self.shape = shape
        self.names = [f"s-{k}" for k in range(shape.seats)]
        self.seats = SeatBindings(self.names)
        self.now_ms = 0
        self.batch = 0
        self.started = 0
        self.executors: list[Executor] = []
        self.unnoticed: list[str] = []
        self.reads = Counter[bool]()
        self.all_reported = False
        self.meanwhile: Callable[[], None] = lambda: None
        for _ in range(shape.executors):
            self.start_executor()

    # ------------------------------------------------------------------------------------------------ executors

    def start_executor(self) -> None:
        """A new process. Its sidecar says hello before its first task asks."""
        self.started += 1
        name = str(self.started)
        self.executors.append(Executor(key=f"key {name}", executor_id=name, host="h", pid=self.started))
        self.seats.on_sidecar_joined(self.executors[-1], self.now_ms)

    def kill(self, *, noticed: bool = True) -> Executor:
        """Some executor dies. The seats that it was home to are free as soon as that is noticed."""
        victim = self.rng.choice(self.executors)
        self.executors.remove(victim)
        self.unnoticed.append(victim.key)
        if noticed:
            self.notice()
        return victim

    def replace_sidecar(self) -> None:
        """It crashed, or was idle. The next worker starts another. The end of the first may be noticed after that."""
        executor = self.rng.choice(self.executors)
        events: list[Callable[[], None]] = [lambda: self.seats.on_sidecar_gone(executor.key)]
        events.insert(self.rng.randrange(2), lambda: self.seats.on_sidecar_joined(executor, self.now_ms))
        for event in events:
            event()

    def notice(self) -> None:
        for key in self.unnoticed:
            self.seats.on_sidecar_gone(key)
        self.unnoticed.clear()

    # ------------------------------------------------------------------------------------------------ batches

    def run_batch(self, *, limit: bool = False) -> None:
        """Plan the batch's scans and run one or two jobs over it.

        Args:
            limit: the sink is satisfied before all tasks have run.
        """
        self.batch += 1
        seats = [name for name in self.names if self.rng.random() < self.shape.data]
        with_data = [name for name in seats for _ in range(self.rng.randint(1, self.shape.pieces))]
        scans = [self.plan(with_data) for _ in range(1 + (self.rng.random() < self.shape.trouble))]
        tasks = [(scan.scan_id, ticket) for scan in scans for ticket in range(len(scan.tickets))]
        asked: set[Task] = set()
        for _ in range(1 + (self.rng.random() < self.shape.trouble)):
            job = Job(waiting=list(tasks))
            self.run(job, asked, tasks_max=self.rng.randrange(len(tasks) + 1) if limit else len(tasks))
            if not limit:
                for scan in scans:
                    once = Counter(make_parts(with_data))
                    assert job.read(scan) == once, "each piece exactly once in each scan of each job"
        if tasks:
            self.all_reported = asked == set(tasks)

    def plan(self, with_data: list[str]) -> Scan:
        scan = self.seats.plan(f"batch {self.batch}", with_data)
        assert scan.mode is (Mode.LATE if self.all_reported else Mode.FIXED)
        if not self.all_reported:
            assert scan.tickets == tuple(with_data)
            return scan
        count = len(scan.tickets)
        assert scan.tickets == (None,) * count
        divided = len(set(with_data)) < len(with_data)
        at_most = len(self.names) if len(with_data) > 1 and not divided else len(with_data)
        assert len(with_data) <= count <= at_most
        homes = self.seats.homes.living()
        to_read = Counter(homes[seat].executor.key for seat in with_data if seat in homes)
        for_each = max(to_read.values(), default=0) + 1
        assert count in (at_most, len(with_data)) or count in [live * for_each for live in self.live()]
        return scan

    def live(self) -> range:
        """How many executors the bookkeeping may count: the end of one may show in the tickets that it misses."""
        return range(max(1, len(self.executors)), len(self.executors) + len(self.unnoticed) + 1)

    def run(self, job: Job, asked: set[Task], tasks_max: int) -> None:
        """Until enough tasks are done, one thing after another happens to one task or executor."""
        self.offer(job)
        while len(job.done) < tasks_max:
            self.now_ms += 1
            self.meanwhile()
            self.fail_tasks_of_the_dead(job)
            if self.rng.random() < self.shape.trouble:
                self.rng.choice([self.fail, self.speculate, self.run_again])(job)
            self.step(job, asked)
            self.offer(job)

    def offer(self, job: Job) -> None:
        """TaskSchedulerImpl.resourceOffers: executors in random order, one task each in turn while cores are free."""
        free = {one.key: self.shape.cores - sum(who == one for _, who, _ in job.running) for one in self.executors}
        while job.waiting and any(cores > 0 for cores in free.values()):
            for one in self.rng.sample(self.executors, len(self.executors)):
                if job.waiting and free[one.key] > 0:
                    job.running.append((job.waiting.pop(0), one, None))
                    free[one.key] -= 1

    def step(self, job: Job, asked: set[Task]) -> None:
        """Some running task asks for a seat to read, or is done."""
        if not job.running:
            return
        index = self.rng.randrange(len(job.running))
        task, who, binding = job.running[index]
        if binding is None:
            job.running[index] = (task, who, self.bind(task, who))
            asked.add(task)
        else:
            del job.running[index]
            part = Part(binding.seat, binding.piece) if binding.seat is not None else None
            assert job.done.setdefault(task, part) == part, "a ticket is never rebound"

    def bind(self, task: Task, who: Executor) -> Binding:
        alone = self.rng.random() < self.shape.trouble  # this worker cannot reach its executor's sidecar
        before = self.seats.homes.living()
        binding = self.seats.bind(*task, replace(who, has_sidecar=not alone), self.now_ms)
        after = self.seats.homes.living()
        if binding.seat is not None:
            self.reads[binding.at_home] += 1
            assert binding.at_home == (not alone and after[binding.seat].executor == who)
        self.check_moves(before, after, who)
        return binding

    def check_moves(self, before: Mapping[str, Home], after: Mapping[str, Home], who: Executor) -> None:
        """A home that lives moves only to an executor below its even share, from one above it."""
        held = Counter(home.executor.key for home in before.values())
        for seat, home in before.items():
            if after[seat].executor != home.executor:
                assert after[seat].executor == who
                shares = [len(self.names) / live for live in self.live()]
                assert any(held[who.key] < share < held[home.executor.key] for share in shares)

    # ------------------------------------------------------------------------------------------------ trouble

    def fail_tasks_of_the_dead(self, job: Job) -> None:
        lost = [run for run in job.running if run[1] not in self.executors]
        job.running = [run for run in job.running if run[1] in self.executors]
        job.waiting += [task for task, _, _ in lost if task not in job.done]

    def fail(self, job: Job) -> None:
        if job.running:
            task, _, _ = job.running.pop(self.rng.randrange(len(job.running)))
            job.waiting.append(task)

    def speculate(self, job: Job) -> None:
        """A copy of a running task on some executor. The first of both to finish counts."""
        if job.running:
            task, _, _ = self.rng.choice(job.running)
            job.running.append((task, self.rng.choice(self.executors), None))

    def run_again(self, job: Job) -> None:
        """A shuffle fetch failed: a task that was done runs again."""
        if job.done:
            task = self.rng.choice(sorted(job.done))
            job.running.append((task, self.rng.choice(self.executors), None))

    # ------------------------------------------------------------------------------------------------ observations

    def homes(self) -> dict[str, Executor]:
        return {seat: home.executor for seat, home in self.seats.homes.living().items()}

    def spread(self) -> int:
        """Seats that the fullest executor has more than the emptiest."""
        held = Counter(executor.key for executor in self.homes().values())
        counts = [held[executor.key] for executor in self.executors]
        return max(counts) - min(counts)

    def settle(self, batches: int = 20) -> None:
        """Let `batches` pass. All seats have a home afterwards, spread evenly."""
        for _ in range(batches):
            self.run_batch()
        assert set(self.homes()) == set(self.names)
        assert self.spread() <= 1


def shape_of(rng: random.Random) -> Shape:
    return Shape(seats=rng.randint(1, 16), executors=rng.randint(1, 5), cores=rng.randint(1, 4))


@pytest.mark.parametrize("seed", range(int(SEEDS or 60)))
def test_each_seat_is_read_once_per_scan_in_random_worlds(seed: int) -> None:
    """Kills, replacements, vanished hosts, crashed sidecars, retries, copies, second jobs, limits, seats without data,
    divided shares: each piece of a scan is read exactly once, and living executors' seats move only for the spread."""
    rng = random.Random(f"shape {seed}")
    shape = shape_of(rng)
    shape.data, shape.trouble = rng.choice([1.0, 0.7, 0.2]), rng.choice([0.0, 0.05, 0.3])
    shape.pieces = rng.choice([1, 1, 2, 5])
    world = SeatWorld(seed, shape)

    def meanwhile() -> None:
        if world.rng.random() < 0.02:
            world.rng.choice([world.start_executor, world.notice, world.replace_sidecar])()
        if world.rng.random() < 0.02 and len(world.executors) > 1:
            world.kill(noticed=world.rng.random() < 0.7)

    world.meanwhile = meanwhile
    for _ in range(30):
        world.run_batch(limit=world.rng.random() < 0.1)
    world.meanwhile = lambda: None
    world.notice()
    shape.data, shape.trouble = 1.0, 0.0
    world.settle()


@pytest.mark.parametrize("seed", range(int(SEEDS or 16)))
def test_after_a_kill_and_a_replacement_exactly_the_lost_executors_seats_have_moved(seed: int) -> None:
    """One kill in 20 batches, in the middle of one. A replacement of the same size comes some batches later, or in the
    same batch. Tasks fail, are copied and run again."""
    shape = shape_of(random.Random(f"shape {seed}"))
    shape.executors, shape.pieces = max(2, shape.executors), 1 + 3 * (seed % 2)
    world = SeatWorld(seed, shape)
    world.settle()
    for _ in range(6):
        shape.trouble = world.rng.choice([0.0, 0.1])
        before = world.homes()
        victims: list[Executor] = []
        kill_at_ms = world.now_ms + world.rng.randrange(2 * shape.seats)
        replace_at_ms = kill_at_ms + world.rng.randrange(10 * shape.seats)

        def meanwhile(
            victims: list[Executor] = victims, kill_at_ms: int = kill_at_ms, replace_at_ms: int = replace_at_ms
        ) -> None:
            if not victims and world.now_ms >= kill_at_ms:
                victims.append(world.kill())
            if len(world.executors) < shape.executors and world.now_ms >= replace_at_ms:
                world.start_executor()

        world.meanwhile = meanwhile
        world.settle()
        assert victims
        assert len(world.executors) == shape.executors
        after = world.homes()
        moved = {seat for seat in world.names if after[seat] != before[seat]}
        assert moved == {seat for seat, home in before.items() if home == victims[0]}


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("executors", [1, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_undisturbed_every_read_is_at_home_once_warm(executors: int, cores: int, seed: int) -> None:
    """With a seat for each core, and also again after a kill and a replacement."""
    world = SeatWorld(seed, Shape(seats=executors * cores, executors=executors, cores=cores))
    for _ in range(2):
        world.settle(5)
        world.reads.clear()
        world.settle(20)
        assert world.reads == {True: 20 * len(world.names)}
        world.kill()
        world.start_executor()


def test_memory_is_bounded_over_10_000_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor is replaced every 50 batches. The whole state, pickled, does not grow but for longer numbers."""
    monkeypatch.setattr(seats_module, "PAST_RANGES_MAX", 0)  # the bound of ranges that past batches leave
    world = SeatWorld(1, Shape(seats=3, executors=3, cores=1))
    sizes: list[int] = []
    for _ in range(200):
        world.settle(50)
        sizes.append(len(pickle.dumps(world.seats)))
        world.kill()
        world.start_executor()
    print("bytes pickled, every 1,000 batches:", sizes[::20])
    assert max(sizes) < sizes[0] + 100
