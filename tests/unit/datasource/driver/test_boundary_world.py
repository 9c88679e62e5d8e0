"""The boundary in a random world: a producer, another application, rebalances, losses, crashes, failing commits.

Each world has a seed, which a failure names. `KGROUP_SIMULATION_SEEDS=500` runs more of them.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from harness.fake_driver import Crash, Driver, dumps, loads
from harness.fake_group import OTHER, FakeGroup, Violation
from harness.fake_leaders import LAGS, SILENT

from pyspark_kgroup.errors import DataLoss
from spark_kgroup.model import TopicPartition

SEEDS = int(os.environ.get("KGROUP_SIMULATION_SEEDS", "60"))


class BoundaryWorld:
    """A random world around one driver, with checks of every step.

    The model (`FakeGroup`) refuses commits below the committed offset or for another member's partitions, and giving up
    twice.
    """

    def __init__(self, seed: int, *, losses: bool, leaders: bool = False) -> None:
        self.rng = random.Random(seed)
        self.group = FakeGroup({"t": self.rng.randint(1, 3), "u": 2}, seats=self.rng.randint(1, 3))
        self.losses = losses
        self.leaders = leaders
        self.driver = Driver(self.group, fail_on_data_loss=not leaders)
        self.history: list[str] = []
        self.outdated: dict[TopicPartition, int] = {}
        self.busy = False
        self.group.meanwhile = self.meanwhile
        self.group.commit_fate = self.commit_fate
        self.group.leaders.asks_old_first = lambda: self.rng.random() < 0.7

    def meanwhile(self) -> None:
        if not self.busy and self.rng.random() < 0.05:
            self.event()

    def commit_fate(self) -> str:
        """A commit for old seats while the group rebalances is tried once: it gets through, or records are reread."""
        if self.group.old and not self.losses:
            return "ok"
        return self.rng.choices(["ok", "lost", "unheard", "refused"], [20, 1, 1, 1])[0]

    def event(self) -> None:
        self.busy = True
        happens = self.any_event()
        self.history.append(happens.__name__)
        happens()
        self.busy = False

    def any_event(self) -> Callable[[], None]:
        happens = self.rng.choice([self.produce, self.other_reads, self.move, self.other_gives_up, self.spread])
        if self.losses and self.rng.random() < 0.2:
            happens = self.rng.choice([self.expel, self.notice, self.expel, self.expire_old])
        elif self.rng.random() < 0.03:
            happens = self.add_partition
        elif self.rng.random() < 0.06:
            happens = self.rng.choice([self.cut_off_a_leader, self.cut_off_a_leader, self.old_leaders_come_back])
        elif self.leaders and self.rng.random() < 0.3:
            happens = self.rng.choice(
                [self.leader_goes, self.leader_comes, self.transaction_begins, self.transactions_end]
            )
        return happens

    def any_partition(self) -> TopicPartition:
        return self.rng.choice(sorted(self.group.log))

    def produce(self) -> None:
        self.group.produce(self.any_partition(), self.rng.randint(1, 30))

    def other_reads(self) -> None:
        for tp in sorted(self.group.other):
            self.group.other_reads(tp, self.rng.randint(1, 20))

    def other_gives_up(self) -> None:
        self.group.other_gives_up()

    def move(self) -> None:
        self.group.move(self.any_partition(), self.rng.choice([*self.group.instance_ids, OTHER]))

    def spread(self) -> None:
        self.group.spread(self.rng.sample([*self.group.instance_ids, OTHER], len(self.group.instance_ids)))

    def add_partition(self) -> None:
        self.group.target[self.group.add_partition("t")] = self.group.instance_ids[0]
        self.group.rebalance()

    def leader_goes(self) -> None:
        self.group.out_of_reach[self.any_partition()] = lambda: True

    def leader_comes(self) -> None:
        self.group.out_of_reach.pop(self.any_partition(), None)

    def cut_off_a_leader(self) -> None:
        """A leader goes on answering as of now. One that is cut off already stays as it is."""
        tp = self.any_partition()
        if tp not in self.group.leaders.cut_off:
            self.group.cut_off_leader(tp, self.rng.choice([[], [], [SILENT], [LAGS], [LAGS, SILENT]]))

    def old_leaders_come_back(self) -> None:
        self.group.leaders.cut_off.clear()

    def transaction_begins(self) -> None:
        self.group.unstable.add(self.any_partition())

    def transactions_end(self) -> None:
        self.group.unstable.clear()

    def expel(self) -> None:
        name = self.rng.choice(self.group.instance_ids)
        self.group.expel(name)
        for tp in [tp for tp, member in self.group.target.items() if member == name]:
            self.group.target[tp] = self.rng.choice([*self.group.instance_ids, OTHER])
        self.group.rebalance()

    def expire_old(self) -> None:
        self.group.expire(set(self.group.old))

    def notice(self) -> None:
        for name, seat in self.group.seats.items():
            if self.group.is_expelled(seat):
                self.group.notice(name)

    def run(self, triggers: int) -> None:
        for _ in range(triggers):
            for _ in range(self.rng.randint(0, 3)):
                self.event()
            self.group.now_ms += self.rng.choice([1, 10, 100, 2_000])
            self.trigger()
            self.check()
        self.settle()

    def trigger(self) -> None:
        limit = self.rng.choice([None, 1, 7, 50])
        move = self.rng.random()
        if move < 0.1:
            self.history.append("unused")
            self.driver.ask(limit)
            return
        crash = self.rng.choice(["unplanned", "unread", "uncommitted"]) if move < 0.25 else ""
        self.history.append(f"trigger {crash}")
        try:
            self.driver.trigger(limit, crash)
        except Crash:
            self.come_back()
        if move > 0.97:
            self.come_back()

    def come_back(self) -> None:
        """The driver is dead for a while, and the world goes on."""
        self.history.append("dead")
        self.group.die()
        for _ in range(self.rng.randint(0, 3)):
            self.event()
        seats = self.rng.choice([None, self.rng.randint(1, 4)])
        if self.rng.random() < 0.2 and self.set_back():
            seats = None
        elif self.rng.random() < 0.3:
            self.group.subscribed = self.rng.choice([("t",), ("u",), ("t", "u")])
        self.history.append(f"back with {seats}, {self.group.subscribed}")
        self.driver.restart(seats)

    def set_back(self) -> bool:
        """Checkpoint and sink are restored to an earlier batch, if all records read since can be known to be ours.

        A partition that has another owner by now, or gets one before our first boundary, goes on where we had left it,
        and records that the other owner read in between are read again: no session ends here, and no seat. The same is
        true of a partition that an earlier restoring set back, and whose offset in the group is not set back yet.
        """
        if any(committed > self.covered(tp) for tp, committed in self.group.committed_now.items()):
            return False
        ends = [loads(text) for text in self.driver.planned[: self.driver.batches_done]]
        if not ends or self.group.rebalancing or self.group.old or self.losses:
            return False
        batches = self.rng.randrange(len(ends)) + 1
        owned = ends[batches - 1].owned
        since = {tp for batch, read in self.driver.sink.items() if batch >= batches for tp in read}
        theirs = self.group.other.keys() | {tp for tp, who in self.group.assigned.items() if who == OTHER}
        theirs |= {tp for tp, _, end in self.group.other_read if tp in owned and end > owned[tp].position}
        if not since <= owned.keys() - theirs:
            return False
        self.history.append(f"set back to {batches}")
        self.group.checkpoint_set_back = True
        self.outdated = dict(self.group.committed_now)
        self.driver.set_back(batches)
        return True

    # --------------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        assert not self.driver.boundary.logs.losses, "a record is called lost"
        for tp, spans in self.driver.rows.items():
            for (_, a), (b, _) in pairwise(spans):
                assert a <= b, f"{tp}: read twice in our own batches: {spans}"
        for tp, committed in self.group.committed_now.items():
            read = committed <= self.covered(tp) or committed == self.outdated.get(tp)
            assert read, f"{tp}: committed {committed} is read up to {self.covered(tp)} only"
        self.check_one_batch_is_exposed()
        if not self.losses:
            self.check_no_record_read_by_both()

    def check_one_batch_is_exposed(self) -> None:
        """Were membership lost now, the next owner would read again at most the range of one batch."""
        for tp, spans in self.driver.plans.items():
            unknown = [span for span in spans if span[1] > self.group.committed_now.get(tp, 0)]
            assert len(unknown) <= 1, f"{tp}: the group does not know of {unknown}"

    def covered(self, tp: TopicPartition) -> int:
        """The offset below which all records are in our completed batches, or were read by the other application."""
        others = [(a, b) for read, a, b in self.group.other_read if read == tp]
        end = 0
        for a, b in sorted(self.driver.rows.get(tp, []) + others):
            if a > end:
                break
            end = max(end, b)
        return end

    def check_no_record_read_by_both(self) -> None:
        """Partitions were handed over with consent, and a driver that died was back within its session."""
        for tp, a, b in self.group.other_read:
            for c, d in self.driver.plans.get(tp, []):
                both = range(max(a, c), min(b, d))
                # The one batch that could not be committed: nothing told the committed offset, which it begins at.
                excused = any((tp, at) in self.group.taken_unstable for at in range(c, d))
                assert not both or excused, f"{tp}: {(a, b)} of the other application is also in our {(c, d)}"

    def settle(self) -> None:
        """The world comes to rest: all partitions are ours, everything is read and the group knows it."""
        self.group.meanwhile = lambda: None
        self.group.commit_fate = lambda: "ok"
        self.group.out_of_reach.clear()
        self.group.unstable.clear()
        self.group.leaders.cut_off.clear()
        self.history.append("settle")
        self.notice()
        self.group.die()
        self.group.subscribed = ("t", "u")
        self.driver.restart()
        self.group.spread(list(self.group.instance_ids))
        for _ in range(3):
            self.group.other_gives_up()  # again, as a rebalance may have waited for old seats
            self.group.now_ms += 2_000
            self.driver.drain()
        self.check()
        ends = {tp: end for tp, (_, end) in self.group.log.items()}
        assert {tp: self.covered(tp) for tp in ends} == ends, "records were skipped"
        assert self.group.committed_now == ends
        assert set(self.driver.durable.owned) == set(ends)
        assert dumps(self.driver.ask()) == dumps(self.driver.durable)


@pytest.mark.parametrize(
    ("losses", "leaders"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["voluntary", "with losses", "leaders come and go", "leaders come and go, with losses"],
)
@pytest.mark.parametrize("first_seed", range(0, SEEDS, 40))
def test_random_worlds_keep_every_promise(first_seed: int, losses: bool, leaders: bool) -> None:
    for seed in range(first_seed, min(first_seed + 40, SEEDS)):
        world = BoundaryWorld(seed, losses=losses, leaders=leaders)
        try:
            world.run(triggers=25)
        except (AssertionError, Violation, DataLoss) as error:
            raise AssertionError(
                f"seed {seed}, losses={losses}, leaders={leaders}: {error}\n{world.history}"
            ) from error


HISTORIES = """
from test_boundary_world import BoundaryWorld
for seed in range(6):
    world = BoundaryWorld(seed, losses=True, leaders=True)
    world.run(triggers=25)
    print(world.history)
"""


def test_a_seed_repeats_its_world_whatever_seed_python_s_hashes_have() -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])

    def histories(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, "-c", HISTORIES], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert histories("0") == histories("1")
