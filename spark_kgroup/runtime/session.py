"""One member in real time: runs its machine, and has other classes carry out what the machine asks for.

A parked JoinGroup blocks all requests behind it on its connection, so each member under the classic protocol has one to
itself (`classic_work`), and commits go another way (`group`). The consumer protocol parks no request
(`consumer_calls`). All of a session runs on one event loop, and is not thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, assert_never
from uuid import UUID

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import GroupRejected, KgroupError, WireError
from spark_kgroup.limits import HEARTBEAT_INTERVAL_MS
from spark_kgroup.member import contract
from spark_kgroup.member.config import ConsumerMemberConfig
from spark_kgroup.member.consumer_contract import Ask, ConsumerHeartbeatRequest, ResolveTopics, Unanswered
from spark_kgroup.member.consumer_contract import Effect as ConsumerEffect
from spark_kgroup.member.consumer_contract import Event as ConsumerEvent
from spark_kgroup.member.machine import Config
from spark_kgroup.model import UNKNOWN_MEMBER_ID, ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.runtime.classic_work import ClassicCalls, Leading, Waiting
from spark_kgroup.runtime.machines import make_machine
from spark_kgroup.runtime.neighbours import Neighbours
from spark_kgroup.tasks import TaskSet
from spark_kgroup.wire.cluster import Cluster

if TYPE_CHECKING:
    from spark_kgroup.runtime.consumer_calls import ConsumerCalls

log = logging.getLogger(__name__)

_TICK: Final = contract.Tick()

_TOGETHER_MS: Final = 250
"""Heartbeats of many seats that are due within this time are sent at one moment, so that they share a packet (ours:
late by at most a tenth of the wait)."""

Observer = Callable[["Session", contract.Notice], None]
"""Called with every notice, in order, on the event loop. Must not block."""


class Session:
    """Runs one machine, of either protocol, until it ends.

    Attributes:
        owned_since: the partitions held, each with the identity under which its ownership began: another identity means
            that ownership was interrupted, even within one generation.
        snapshot: topic -> partition count for which the group has owners, as this leader knows, or None if it did not
            assign.
        waiting: why it waits: for a connection to the coordinator, for metadata to assign, or for the end of a refusal.
        tasks: of its calls. A failure of one ends the member.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        observer: Observer,
        rng: Random,
        neighbours: Neighbours | None = None,
        rack: Callable[[], str | None] = lambda: None,
        match_now: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        neighbours = neighbours or Neighbours({}, HEARTBEAT_INTERVAL_MS)
        self.machine = make_machine(config, rng, lambda: neighbours.hear_for(self))
        self.owned_since: Mapping[TopicPartition, MemberIdentity] = MappingProxyType({})
        self.snapshot: Mapping[str, int] | None = None
        self.failure: BaseException | None = None
        self.waiting = Waiting(lambda: self.name)
        self.tasks = TaskSet(self.fail)
        self._observer = observer
        self._match_now = match_now
        self._events: asyncio.Queue[contract.Event | ConsumerEvent] = asyncio.Queue()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_for_ms: int | None = None
        """The machine's timer for which `_alarm` is set."""
        self._classic_calls = ClassicCalls(self, cluster, rng, neighbours, rack, match_now)
        self._leading = Leading(self, cluster, rng)
        self._consumer_calls: ConsumerCalls | None = None
        if isinstance(config, ConsumerMemberConfig):
            # Imported here: a start need not load modules that it does not use.
            from spark_kgroup.runtime.consumer_calls import ConsumerCalls

            self._consumer_calls = ConsumerCalls(lambda: self.machine.config, cluster, rng, rack)

    @property
    def config(self) -> Config:
        """How this member presents itself."""
        return self.machine.config

    @property
    def name(self) -> str:
        """As log lines name it."""
        return f"{self.config.group}/{self.config.instance_id or self.machine.identity.member_id or 'new member'}"

    def post(self, event: contract.Event | ConsumerEvent) -> None:
        """Hand the machine an event, which is taken in turn."""
        self._events.put_nowait(event)

    async def run(self) -> None:
        """Run until the machine ends (left, closed, failed). Then the connection is closed too."""
        self.post(contract.Join())
        try:
            while not self.machine.ended:
                self._set_alarm()
                event = await self._events.get()
                try:
                    # Timers first: after a pause longer than the session, no event may act on the old membership.
                    self._take(_TICK)
                    if event is not _TICK:
                        self._take(event)
                except Exception as bug:  # noqa: BLE001 - of the machine, or of an observer: told, or it falls silent
                    # Another `fail` would post `Close`, which may raise again, and so on without an end.
                    if self.failure is not None:
                        break
                    self.fail(bug)
        finally:
            await self._stop()

    def _set_alarm(self) -> None:
        """Have the machine woken at its next timer. A heartbeat that is far away may be late, with other seats'.

        A machine in touch with its coordinator has a heartbeat to send before any deadline.
        """
        at_ms = self.machine.next_wakeup_at_ms()
        if at_ms == self._alarm_for_ms:
            return
        self._stop_alarm()
        if at_ms is None:
            return
        self._alarm_for_ms = at_ms
        now_ms = monotonic_ms()
        waits = at_ms - now_ms >= 10 * _TOGETHER_MS and self.machine.in_touch(now_ms)
        late_ms = -at_ms % _TOGETHER_MS if waits else 0
        self._alarm = asyncio.get_running_loop().call_at((at_ms + late_ms) / 1000, self._wake)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._alarm_for_ms = None

    def _wake(self) -> None:
        self._alarm = self._alarm_for_ms = None
        self.post(_TICK)

    def _take(self, event: contract.Event | ConsumerEvent) -> None:
        if isinstance(event, contract.GaveUp):
            self._forget(event.partitions)  # BEFORE the effects: it may be owned anew
        for effect in self.machine.handle(event, monotonic_ms()):
            self._carry_out(effect)

    def _carry_out(self, effect: contract.Effect | ConsumerEffect) -> None:
        if isinstance(effect, contract.Connect):
            self._classic_calls.reconnect(effect.reason)
        elif isinstance(effect, contract.Work | Ask | ResolveTopics):
            self.tasks.begin(self._do(effect))
        else:
            self._note(effect)
            self._observer(self, effect)

    def _do(self, work: contract.Work | Ask | ResolveTopics) -> Coroutine[Any, Any, None]:
        match work:
            case contract.Send(request=request):
                calls = self._classic_calls
                return calls.leave(request) if isinstance(request, contract.LeaveRequest) else calls.send(request)
            case contract.Look(heartbeat=heartbeat):
                return self._classic_calls.probe_coordinator(heartbeat)
            case contract.LookAtSeat():
                return self._classic_calls.look_at_seat()
            case contract.ComputeAssignment():
                return self._leading.lead(work)
            case Ask(request=heartbeat):
                return self._ask(heartbeat)
            case ResolveTopics(topic_ids=topic_ids):
                return self._resolve(topic_ids)
            case _:
                assert_never(work)

    def _note(self, notice: contract.Notice) -> None:
        """Keep the state that the views and the metadata watch ask for. The observer is called after that."""
        match notice:
            case contract.Joined():
                self.snapshot = None  # it was of an earlier generation: a new one's leader takes its own
            case contract.Assigned(added=added):
                self.owned_since = MappingProxyType({**self.owned_since, **dict.fromkeys(added, notice.identity)})
            case contract.Lost(partitions=partitions):
                self._forget(partitions)
            case contract.Failed(error=error):
                self.failure = _failure_of(error)
            case contract.GiveUpAll() | contract.Rejoining() | contract.Left():
                pass  # revoked partitions are owned until they are given up
            case _:
                assert_never(notice)

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        self.owned_since = MappingProxyType({tp: who for tp, who in self.owned_since.items() if tp not in partitions})

    async def _ask(self, request: ConsumerHeartbeatRequest) -> None:
        assert self._consumer_calls is not None, "a machine of the classic protocol asks for no such heartbeat"
        try:
            answer = await self._consumer_calls.heartbeat(request)
        except WireError as error:
            self.fail(error)
            return
        if isinstance(answer, Unanswered):
            self.waiting.begin(f"is not connected: {answer.reason}")
        elif answer.error != ErrorCode.NONE:
            self.waiting.begin(f"is refused: a heartbeat is answered with {ErrorCode.name_of(answer.error)}")
        else:
            self.waiting.end()
        self.post(answer)

    async def _resolve(self, topic_ids: frozenset[UUID]) -> None:
        assert self._consumer_calls is not None, "a machine of the classic protocol gets names, and no ids"
        answer = await self._consumer_calls.resolve_topic_names(topic_ids)
        # Brokers match the pattern, too, and may have assigned a topic that is younger than our last look.
        if self._match_now is not None and answer is not None and len(answer.names) < len(topic_ids):
            await self._match_now()
            answer = await self._consumer_calls.resolve_topic_names(topic_ids)
        if answer is not None:
            self.post(answer)

    def fail(self, error: BaseException) -> None:
        """End this member, with an error that names it, unless it has ended.

        A dynamic one leaves (`member.actions`). A failure on its way out ends it at once.
        """
        if self.failure is not None or self.machine.ended:
            self.post(contract.Close())
            return
        lost = self.machine.owned
        rejected = self.rejected(error)
        self.failure = _failure_of(rejected)
        # No process comes back for a dynamic member, and its group would wait until its session is over.
        leaves = self.config.instance_id is None and self.machine.identity.member_id != UNKNOWN_MEMBER_ID
        try:
            self._take(contract.Leave(reason="the member failed") if leaves else contract.Close())
            self.post(contract.Tick())  # wakes `run`
        except Exception:
            log.debug("%s: it does not end by itself either", self.name, exc_info=True)
            self.post(contract.Close())
        # `Lost` first, so that the application has ended its work on the partitions when it hears of the failure.
        if lost:
            self._observer(self, contract.Lost(partitions=lost, reason=str(error)))
        self._observer(self, contract.Failed(error=rejected))

    def rejected(self, error: BaseException) -> GroupRejected:
        """`error` as one that names and ends this member."""
        who = f"Member {self.config.instance_id!r}" if self.config.instance_id else "A dynamic member"
        if isinstance(error, KgroupError):
            cause = f"{str(error).rstrip('.')}. Start it again when that is mended."
        else:
            cause = f"a bug of spark-kgroup, {error!r}. Please report it with the traceback in the log. Start again."
            log.error("%s: a bug of spark-kgroup. Please report it.", self.name, exc_info=error)
        rejected = GroupRejected(f"{who} of group {self.config.group!r} cannot go on: {cause}")
        rejected.__cause__ = error
        return rejected

    async def _stop(self) -> None:
        self._stop_alarm()
        try:
            await self.tasks.end()
        finally:  # 1. A session stops by itself. 2. The group is closed, and cancels it. Its socket must go
            await self._classic_calls.close()


def _failure_of(ended: KgroupError) -> KgroupError:
    """The error that `Group.view` raises. Callers choose by its kind, the cause's, and its text names the member."""
    cause = ended.__cause__
    return cause.reworded(str(ended)) if isinstance(cause, KgroupError) else ended
