"""The lane of the network: no process dies, but bytes do not arrive, come late, or are an old answer."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from chaos.cluster import Cluster
from chaos.faults import Lane, Say
from chaos.links import CLIENTS, Cut, Faults, cut_off
from chaos.schedule import Event, Fault

DELAY_S: Final = 0.7
"""Delay of each piece of a slow broker's answers: some requests take longer than their timeout of 5 s, most do not."""

_RESET_EVERY: Final = 5
"""One answer in so many ends in its midst."""

Break = Callable[[int, int, Sequence[int]], Faults]
"""(a broker, another one, all of them) -> the faults."""

BREAKS: Final[Mapping[Fault, Break]] = {
    Fault.CUT_OFF_BROKER: lambda node, _, nodes: Faults(cuts=cut_off(node, nodes)),
    Fault.MUTE_BROKER: lambda node, _, nodes: Faults(cuts=cut_off(node, nodes, hears=True)),
    Fault.LOSE_REQUESTS: lambda node, _, __: Faults(cuts=frozenset({Cut(CLIENTS, node, requests=True)})),
    Fault.LOSE_ANSWERS: lambda node, _, __: Faults(cuts=frozenset({Cut(CLIENTS, node, requests=False)})),
    Fault.SLOW_ANSWERS: lambda node, _, __: Faults(delays_s={node: DELAY_S}),
    Fault.RESET_ANSWERS: lambda node, _, __: Faults(reset_every={node: _RESET_EVERY}),
    # Leaders move away from the other one, and the first says that they are where they were.
    Fault.TWO_MINDS: lambda node, other, nodes: Faults(of_old=frozenset({node}), cuts=cut_off(other, nodes)),
}


class NetworkLane(Lane):
    """Faults between brokers, and between them and clients.

    Attributes:
        outages: (from, to) on the wall clock, in seconds: when a broker may have been out of reach.
    """

    name = "network"

    def __init__(self, events: Sequence[Event], say: Say, over: threading.Event, cluster: Cluster) -> None:
        super().__init__(events, say, over)
        self.outages: list[tuple[float, float]] = []
        self._cluster = cluster
        self._deeds = {**dict.fromkeys(BREAKS, self._break), Fault.RESET_CLIENTS: self._reset}

    def _break(self, event: Event) -> None:
        nodes = self._cluster.node_ids
        at = int(event.pick * len(nodes))
        node, other = nodes[at], nodes[(at + 1) % len(nodes)]
        self._say(f"{event.fault.value} (node {node}) for {event.lasts_s} s")
        began = time.time()
        self._cluster.links.fail(BREAKS[event.fault](node, other, nodes))
        self._leave_be(event.lasts_s)
        self._cluster.links.heal()
        self._cluster.kafka.await_ready()
        self.outages.append((began, time.time()))
        self._say("the network is whole")

    def _reset(self, event: Event) -> None:
        self._say(event.fault.value)
        self._cluster.links.reset_clients()
