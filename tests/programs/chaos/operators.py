"""The lane of the operator: changes that people make to a healthy cluster, and take back again."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from harness.wrong_clock import WrongClock

from chaos.access import MAIN, Access
from chaos.cluster import Cluster
from chaos.faults import Lane, Say
from chaos.lasting import Change
from chaos.schedule import Event, Fault
from chaos.visits import VISITS, Visits
from spark_kgroup.errors import EnvironmentProblem

_QUOTAS: Final = {"consumer_byte_rate": 20_000, "request_percentage": 2}
"""Quotas of one broker for the main query: about the rate of production, and a fiftieth of one thread."""

_MOVED: Final = ("orders", "clicks", "__consumer_offsets")
"""Topics whose leaders are moved: with the last one, the group's coordinator."""


_CLOCKS_S: Final = (-86_400, -3_600, -30, 30, 3_600, 86_400)
"""How far ahead a clock jumps: an hour or a day, as by a wrong time zone or date, or to correct a drift."""

_LASTING_CLOCK_S: Final = 3_600

_TIMEOUT_S: Final = 180.0
"""Time to take a change back, since brokers may be away."""


class OperatorLane(Lane):
    """The changes by operators.

    Args:
        clock: that of the main query's host.
        folder: for the files of Kafka's tools.
        is_read: whether the group has read all of a topic, which has at least so many records.
    """

    name = "operator"

    def __init__(
        self,
        events: Sequence[Event],
        say: Say,
        over: threading.Event,
        *,
        cluster: Cluster,
        access: Access,
        rights: tuple[str, Sequence[str]],
        visits: Visits,
        clock: WrongClock,
        folder: Path,
        is_read: Callable[[str, int], bool],
    ) -> None:
        super().__init__(events, say, over)
        self._cluster = cluster
        self._access = access
        self._rights = access.rights(*rights)
        self._visits = visits
        self._clock = clock
        self._folder = folder
        self._is_read = is_read
        self._deeds = {
            Fault.REVOKE_RIGHT: self._revoke,
            Fault.OTHER_PASSWORD: self._change_password,
            Fault.RENEW_CERTIFICATE: self._renew_certificate,
            Fault.FOREIGN_CERTIFICATE: self._spoil_certificate,
            Fault.QUOTAS: self._limit,
            Fault.REASSIGN: self._reassign,
            Fault.RECREATE_TOPIC: self._recreate,
            Fault.JUMP_CLOCK: self._jump,
        }

    def _until_done(self, what: str, deed: Callable[[], object]) -> None:
        """Repeat a deed that must be done while the cluster says that it cannot now, within `_TIMEOUT_S`."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                deed()
                return
            except (KafkaException, EnvironmentProblem, TimeoutError) as problem:
                self._say(f"the cluster did not {what}: {str(problem)[:200] or type(problem).__name__}")
                if time.monotonic() > deadline:
                    raise
                self._over.wait(1)

    def lasting(self, fault: Fault) -> Change:
        """A change that is left on: a right to read a topic, the password, or an hour."""
        kafka, access = self._cluster.kafka, self._access
        match fault:
            case Fault.REVOKE_RIGHT:
                right = self._rights[1]
                return Change(
                    f"{MAIN} may not read {right[1]}",
                    lambda: self._until_done("take the right", lambda: access.take(kafka.admin, [right])),
                    lambda: self._until_done("give it back", lambda: access.give(kafka.admin, [right], (MAIN,))),
                    ["grant READ on"],
                )
            case Fault.OTHER_PASSWORD:

                def begin() -> None:
                    self._until_done("change it", lambda: access.change_password(kafka.admin, back=False))
                    self._cluster.links.reset_clients()

                return Change(
                    f"{MAIN} has another password",
                    begin,
                    lambda: self._until_done("change it back", lambda: access.change_password(kafka.admin, back=True)),
                    ["sasl.password"],
                )
            case Fault.JUMP_CLOCK:
                return Change(
                    f"the clock of {MAIN} is {_LASTING_CLOCK_S} s ahead",
                    lambda: self._clock.jump(_LASTING_CLOCK_S),
                    lambda: self._clock.jump(0),
                    [],
                )
        raise ValueError(f"no operator leaves {fault} on")

    def _revoke(self, event: Event) -> None:
        right = self._rights[int(event.pick * len(self._rights))]
        self._say(f"{event.fault.value} ({right[0].name.lower()} {right[1]}) for {event.lasts_s} s")
        admin = self._cluster.kafka
        self._until_done("take the right", lambda: self._access.take(admin.admin, [right]))
        self._leave_be(event.lasts_s)
        self._until_done("give the right back", lambda: self._access.give(admin.admin, [right], (MAIN,)))
        self._say("the right is back")

    def _change_password(self, event: Event) -> None:
        self._say(f"{event.fault.value} for {event.lasts_s} s, and every connection is reset")
        kafka = self._cluster.kafka
        self._until_done("change it", lambda: self._access.change_password(kafka.admin, back=False))
        self._cluster.links.reset_clients()
        self._leave_be(event.lasts_s)
        self._until_done("change it back", lambda: self._access.change_password(kafka.admin, back=True))
        self._say("the password is the old one")

    def _renew_certificate(self, event: Event) -> None:
        self._say(event.fault.value)
        self._access.renew_certificate()
        self._cluster.links.reset_clients()

    def _spoil_certificate(self, event: Event) -> None:
        self._say(f"{event.fault.value} for {event.lasts_s} s, and every connection is reset")
        self._access.spoil_certificate()
        self._cluster.links.reset_clients()
        self._leave_be(event.lasts_s)
        self._access.renew_certificate()
        self._say("the certificate is renewed")

    def _limit(self, event: Event) -> None:
        self._say(f"{event.fault.value} for {event.lasts_s} s: {_QUOTAS}")
        self._until_done(
            "set quotas", lambda: self._configure("--add-config", [f"{k}={v}" for k, v in _QUOTAS.items()])
        )
        self._leave_be(event.lasts_s)
        self._until_done("remove quotas", lambda: self._configure("--delete-config", list(_QUOTAS)))
        self._say("no quotas any more")

    def _configure(self, how: str, values: Sequence[str]) -> None:
        of_main = ("--entity-type", "users", "--entity-name", MAIN)
        server = ("--bootstrap-server", self._cluster.server)
        self._cluster.kafka.tool("kafka.admin.ConfigCommand", *server, "--alter", how, ",".join(values), *of_main)

    def _reassign(self, event: Event) -> None:
        self._say(event.fault.value)
        self._until_done("reassign partitions", lambda: self._rotate_replicas(1 + int(event.pick * 2)))

    def _rotate_replicas(self, by: int) -> None:
        """Each partition's next replica is its preferred leader from now on, and its leader."""
        topics = self._cluster.kafka.admin.list_topics(timeout=10).topics
        moved = [
            {"topic": name, "partition": p, "replicas": [*m.replicas[by:], *m.replicas[:by]]}
            for name in _MOVED
            for p, m in topics[name].partitions.items()
        ]
        plan = self._folder / "reassignment.json"
        plan.write_text(json.dumps({"version": 1, "partitions": moved}))
        tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        server = ("--bootstrap-server", self._cluster.server)
        self._cluster.kafka.tool(tool, *server, "--execute", "--reassignment-json-file", str(plan))
        every = [TopicPartition(str(each["topic"]), int(str(each["partition"]))) for each in moved]
        self._cluster.kafka.admin.elect_leaders(ElectionType.PREFERRED, every).result(30)

    def _jump(self, event: Event) -> None:
        ahead_s = _CLOCKS_S[int(event.pick * len(_CLOCKS_S))]
        self._say(f"{event.fault.value} ({ahead_s:+} s) after {event.lasts_s} s")
        self._clock.jump(ahead_s)
        self._leave_be(event.lasts_s)
        self._clock.jump(0)
        self._say("the clock is right again")

    def _recreate(self, event: Event) -> None:
        self._say(event.fault.value)
        done = self._visits.recreate(lambda records: self._is_read(VISITS, records))
        self._say("it is there again" if done else "it was not read in time, and is left as it is")
