"""A story that a group goes through, whichever clients its members are of, and the checks of its outcome."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self

from harness.group_log import read_group_record
from harness.groups import stable_generation
from harness.members import all_pairs
from harness.mixed.clients import Client
from harness.waiting import wait_for
from spark_kgroup.model import DescribedGroup
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster

REST_TIMEOUT_S = 180
"""A session of 6 s and two rebalances. Most of it is for a busy machine that starts a process."""


class MixedGroup:
    """A group on a real Kafka. A context manager that leaves no process behind.

    Attributes:
        members: those that run, by name.
    """

    def __init__(self, kafka: ApacheKafka, name: str, topic: str, partitions: int, protocol: str) -> None:
        self.members: dict[str, Client] = {}
        self._kafka = kafka
        self._name = name
        self._topic = topic
        self._all = all_pairs(topic, partitions)
        self._protocol = protocol
        self._ever: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for client in self._ever:
            client.abandon()
        if error is not None:
            for client in self._ever:
                error.add_note(f"{client.kind}: {client.changes[-4:]} {client.log}")

    def join(self, name: str, kind: str, *, instance_id: str = "") -> None:
        where = (self._kafka.bootstrap_servers, self._name, self._topic)
        self.members[name] = client = Client(kind, *where, protocol=self._protocol, instance_id=instance_id)
        self._ever.append(client)

    def kill(self, name: str) -> None:
        self.members.pop(name).kill()

    def leave(self, name: str) -> None:
        self.members.pop(name).leave()

    def rest(self) -> None:
        """Wait until all partitions have one owner each, the shares are even, and the coordinator says the same."""
        wait_for(self._rests, f"{sorted(self.members)} to share {self._name}", REST_TIMEOUT_S, every_s=0.2)

    def _rests(self) -> bool:
        shares = [client.owned for client in self.members.values()]
        sizes = [len(share) for share in shares]
        if sum(sizes) != len(self._all) or frozenset().union(*shares) != self._all or max(sizes) - min(sizes) > 1:
            return False
        found = self._described()
        described = {frozenset((tp.topic, tp.partition) for tp in member.assignment) for member in found.members}
        return found.state == "Stable" and described == set(shares) and len(found.members) == len(shares)

    def _described(self) -> DescribedGroup:
        async def ask() -> DescribedGroup:
            cluster = Cluster(parse_bootstrap(self._kafka.bootstrap_servers), client_id="story")
            try:
                return await cluster.groups.describe(self._name)
            finally:
                await cluster.close()

        return asyncio.run(ask())

    @property
    def shares(self) -> dict[str, frozenset[tuple[str, int]]]:
        return {name: client.owned for name, client in self.members.items()}

    @property
    def generation(self) -> int:
        return stable_generation(self._kafka, self._name)

    def assert_led_by(self, kind: str) -> None:
        """A member of this client leads. A group of the consumer protocol has no leader."""
        if self._protocol == "consumer":
            return
        record = wait_for(
            lambda: read_group_record(self._kafka.bootstrap_servers, self._name), "the coordinator's record"
        )
        (leads,) = [m.client_id for m in self._described().members if m.member_id == record.leader]
        assert leads.startswith(kind), f"{leads} leads, and not {kind}"

    @property
    def moves(self) -> int:
        """How many partitions went from one living member to another, of all members there ever were."""
        return sum(client.given_up for client in self._ever)

    def assert_one_owner_at_a_time(self) -> None:
        """No partition had two owners at once, by the members' own reports. All members have ended."""
        spans = sorted((*span, client.kind) for client in self._ever for span in client.spans())
        assert {pair for pair, *_ in spans} == self._all
        for (pair, _, end_ms, one), (same, begin_ms, _, other) in pairwise(spans):
            assert pair != same or end_ms <= begin_ms, f"{one} and {other} owned {pair} for {end_ms - begin_ms} ms"


def coming_and_going(group: MixedGroup, kinds: Sequence[str]) -> int:
    """Members join one by one, are killed and come back one by one, and leave one by one.

    Args:
        kinds: the client of each member, in the order in which they join. The first member leads at first.

    Returns:
        How many partitions moved between living members.
    """
    names = [f"{index} {kind}" for index, kind in enumerate(kinds)]
    for name, kind in zip(names, kinds, strict=True):
        group.join(name, kind)
        group.rest()
    group.assert_led_by(kinds[0])
    for name, kind in zip(names, kinds, strict=True):
        group.kill(name)
        group.rest()
        group.join(name, kind)
        group.rest()
    for name in names[:-1]:
        group.leave(name)
        group.rest()
    group.leave(names[-1])
    group.assert_one_owner_at_a_time()
    return group.moves


def rolling_bounce(group: MixedGroup, kinds: Sequence[str]) -> None:
    """Static members, each killed and started again within its session: no partition moves, and no generation ends."""
    for kind in kinds:
        group.join(kind, kind, instance_id=kind)
        group.rest()
    shares, generation, moves = group.shares, group.generation, group.moves
    for kind in kinds:
        group.kill(kind)
        group.join(kind, kind, instance_id=kind)
        group.rest()
        assert group.shares == shares, f"the restart of {kind} moved partitions"
    assert (group.generation, group.moves) == (generation, moves)
