"""One group of a real `GroupCoordinator`, asked with the requests of members: the coordinator of all simulations.

Real members talk to it in the members' world (`simulated_world`), scripted ones in `FakeGroup`. `runtime.translate`
makes the messages, as in real sessions. A fail-over is another coordinator that starts from the records.

While a seat changes its member id, the group is of type consumer, which the coordinator does not coordinate: meanwhile
a `ModelConversion` has it, whose last record is where the next coordinator starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from types import MappingProxyType
from typing import Any

from harness.model_conversion import ConvertedMember, ModelConversion, Reply, Response
from spark_kgroup.coordinator import (
    Answer,
    Append,
    CoordinatorConfig,
    Effect,
    GroupCoordinator,
    Received,
    Record,
    Token,
)
from spark_kgroup.coordinator.classic_group import ClassicGroup, ClassicMember
from spark_kgroup.coordinator.state import State
from spark_kgroup.member import contract
from spark_kgroup.member.config import MemberConfig
from spark_kgroup.model import INT_MAX, ErrorCode, MemberIdentity, Subscription, TopicPartition
from spark_kgroup.runtime.translate import to_event, to_message
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.consumer_protocol import decode_assignment, decode_subscription, encode_assignment

GROUP = "g"
decoded_assignment = lru_cache(maxsize=4096)(decode_assignment)
decoded_subscription = lru_cache(maxsize=4096)(decode_subscription)


@dataclass
class Participation:
    """For the checkers: the last generation that was formed with a join of a member, and the last one without."""

    took_part_in: int = -1
    missed: int = -1


class Member:
    """A member of the coordinator, its bytes as values."""

    def __init__(self, member: ClassicMember, participation: Participation) -> None:
        self._member = member
        self.member_id = member.member_id
        self.instance_id = member.instance_id
        self.took_part_in, self.missed = participation.took_part_in, participation.missed

    @property
    def joined(self) -> bool:
        """Whether its JoinGroup is parked."""
        return self._member.parked_join is not None

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """Its partitions. A test may give and take some without the members' knowledge."""
        return decoded_assignment(self._member.assignment)

    @assignment.setter
    def assignment(self, partitions: frozenset[TopicPartition]) -> None:
        self._member.assignment = encode_assignment(partitions)

    def subscription(self, protocol: str) -> Subscription:
        return decoded_subscription(self._member.metadata(protocol))


@dataclass(frozen=True)
class Asked:
    """A request that is not answered yet."""

    request: contract.Request
    reply: Reply


class OneGroup:
    """The group, by name "g". Requests come with the instant. Replies go out at once, or when unparked.

    Attributes:
        committed: the offsets that the coordinator took. A test may change them.
    """

    def __init__(self, *, initial_delay_ms: int = 500) -> None:
        self.committed: dict[TopicPartition, int] = {}
        self._config = CoordinatorConfig(
            group_initial_rebalance_delay_ms=initial_delay_ms,
            group_min_session_timeout_ms=1,
            group_max_session_timeout_ms=INT_MAX,
        )
        self._records: list[Record] = []
        self._ids = count(1)
        self._tokens = count(1)
        self._asked: dict[Token, Asked] = {}
        self._participation: dict[str, Participation] = {}
        self._persisted: dict[str, Participation] = {}
        self._seen = 0
        self._conversion: ModelConversion | None = None
        self._coordinator = self._start(0)

    def _start(self, now_ms: int) -> GroupCoordinator:
        coordinator = GroupCoordinator(self._config, new_id=lambda: f"{next(self._ids):03}")
        for record in self._records:
            coordinator.apply(record)
        coordinator.start(now_ms)
        self._groups = coordinator.groups
        return coordinator

    # ------------------------------------------------------------------------------------------------- requests

    def receive(self, request: contract.Request, config: MemberConfig, reply: Reply, now_ms: int) -> None:
        """Take one request."""
        if self._conversion is not None:
            self._conversion.receive(request, config, reply, now_ms)
            self._end_conversion(now_ms)
        elif isinstance(request, contract.RenameRequest):
            self._convert(request, reply, now_ms)
        else:
            self._ask(self._message(request, config), Asked(request, reply), now_ms)

    def _message(self, request: contract.Request, config: MemberConfig) -> schema.Request:
        if isinstance(request, contract.LeaveRequest):
            return messages.leave_group(GROUP, [request.identity], request.reason)
        return to_message(request, config)

    def _ask(self, message: schema.Request, asked: Asked, now_ms: int) -> None:
        token = next(self._tokens)
        self._asked[token] = asked
        self._carry_out(self._coordinator.receive(Received(message, 9, "dynamic", "/simulated", token), now_ms))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        answers: list[tuple[Asked, schema.Response]] = []
        before = len(self._records)
        for effect in effects:
            match effect:
                case Append(records=records):
                    self._records += records
                case Answer(token=token, response=response):
                    answers.append((self._asked.pop(token), response))
                case _:
                    del self._asked[effect.token]
        events = [(asked.reply, _as_event(asked.request, response)) for asked, response in answers]
        self._note_participation([event for _, event in events if isinstance(event, contract.JoinResponse)])
        if len(self._records) > before:
            self._persisted = {key: replace(each) for key, each in self._participation.items()}
        for reply, event in events:
            reply(event)

    def commit(
        self, identity: MemberIdentity, now_ms: int, offsets: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> int:
        """Commit under `identity`, and return the error code."""
        if self._conversion is not None:
            error = self._conversion.refusal_of_commit(identity)
        else:
            heard: list[schema.Response] = []
            message = messages.offset_commit(GROUP, identity, offsets or {TopicPartition("orders", 0): 0})
            for effect in self._coordinator.receive(Received(message, 8, "dynamic", "/simulated", 0), now_ms):
                match effect:
                    case Append(records=records):
                        self._records += records
                    case Answer(response=response):
                        heard.append(response)
            (response,) = heard
            assert isinstance(response, schema.OffsetCommitResponse)
            (error,) = set(messages.offset_commit_errors(response).values())
        if not error:
            self.committed.update(offsets)
        return error

    # ----------------------------------------------------------------------------------------------------- time

    def next_wakeup_at_ms(self) -> int | None:
        """The next deadline, at which `tick` is due."""
        if self._conversion is not None:
            return self._conversion.next_wakeup_at_ms()
        return self._coordinator.next_wakeup_at_ms()

    def tick(self, now_ms: int) -> None:
        """Carry out the deadlines that are due."""
        if self._conversion is not None:
            self._conversion.tick(now_ms)
            self._end_conversion(now_ms)
        else:
            self._carry_out(self._coordinator.tick(now_ms))

    def fail_over(self, now_ms: int) -> None:
        """Another broker takes the group over: unpersisted state is lost, and every session starts again."""
        self._asked.clear()
        if self._conversion is not None:
            self._conversion.begin_sessions(now_ms)  # all of it is persisted at once
            return
        self._participation = {key: replace(each) for key, each in self._persisted.items()}
        self._coordinator = self._start(now_ms)
        self._seen = self.generation

    # ---------------------------------------------------------------------------------------------- to look at

    @property
    def _group(self) -> ClassicGroup | None:
        return self._groups.get(GROUP)

    @property
    def members(self) -> Mapping[str, Member | ConvertedMember]:
        """By member id, in the order in which they joined. The replacement of a static member takes its place."""
        if self._conversion is not None:
            return self._conversion.members
        group = self._group
        if group is None:
            return {}
        return {key: Member(member, self._participation_of(member)) for key, member in group.members.items()}

    @property
    def generation(self) -> int:
        """The one that was formed last."""
        if self._conversion is not None:
            return self._conversion.generation
        return self._group.generation if self._group is not None else 0

    @property
    def phase(self) -> State:
        """The group's state. A group of type consumer counts as STABLE: no request waits."""
        if self._conversion is not None:
            return State.STABLE
        return self._group.state if self._group is not None else State.EMPTY

    @property
    def awaits_syncs(self) -> bool:
        """Whether the group rebalances once the time to sync is over.

        A SyncGroup may be awaited that never comes, of a member id that a static member had before it came back.
        """
        return self._conversion is None and self._group is not None and bool(self._group.pending_syncs)

    @property
    def protocol(self) -> str:
        """The assignor that the group agreed on, empty if it has none."""
        if self._conversion is not None:
            return self._conversion.protocol
        return (self._group.protocol if self._group is not None else None) or ""

    @property
    def renaming(self) -> frozenset[str]:
        """Member ids that a RenameRequest brought and no JoinGroup has had yet: the group is of type consumer."""
        return frozenset(self._conversion.renaming) if self._conversion is not None else frozenset()

    def static(self, instance_id: str) -> Member | ConvertedMember | None:
        """The member with this instance id."""
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def member_id_of(self, instance_id: str | None) -> str:
        """The member id that has a static seat, as DescribeGroups shows it, or an empty string."""
        member = self.static(instance_id) if instance_id is not None else None
        return member.member_id if member is not None else ""

    def remove_static(self, instance_ids: Iterable[str], now_ms: int) -> None:
        """Remove the members with these instance ids.

        A rebalance that goes on no longer waits for them. If none goes on, none begins: the remaining members hear of
        the removal when they next ask, which a real coordinator does not wait for.
        """
        gone = [MemberIdentity(instance_id=name) for name in instance_ids if self.static(name) is not None]
        group = self._group
        if not gone or group is None:
            return
        if group.state is State.PREPARING_REBALANCE:
            left: list[Response] = []
            leave = contract.LeaveRequest(identity=gone[0], reason="removed by the test")
            self._ask(messages.leave_group(GROUP, gone, leave.reason), Asked(leave, left.append), now_ms)
            return
        for who in gone:
            group.remove(group.seats[who.instance_id or ""])

    # ------------------------------------------------------------------------------------------- participation

    def _participation_of(self, member: ClassicMember) -> Participation:
        return self._participation.setdefault(member.instance_id or member.member_id, Participation())

    def _note_participation(self, joined: Sequence[contract.JoinResponse]) -> None:
        """Who took part in a generation that was formed just now. The replacement of a member at rest does, too."""
        group = self._group
        if group is None:
            return
        formed = group.generation > self._seen
        if not formed and not joined:
            return
        ids = {each.member_id for each in joined if each.error == ErrorCode.NONE}
        replaced = {each.member_id for each in joined if not each.error and not each.request.identity.member_id}
        self._seen = group.generation
        for member in group.members.values():
            each = self._participation_of(member)
            if member.member_id in (ids if formed else replaced):
                each.took_part_in = group.generation
            elif formed:
                each.missed = group.generation

    # ----------------------------------------------------------------------------------------------- conversion

    def _convert(self, request: contract.RenameRequest, reply: Reply, now_ms: int) -> None:
        """GroupMetadataManager.convertToConsumerGroup: parked requests are to be sent again."""
        group = self._group
        if group is None or self.static(request.identity.instance_id or "") is None or not group.generation:
            reply(contract.RenameResponse(request=request, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        conversion = ModelConversion(group, self._participation_of, self._ids, now_ms)
        for effect in self._coordinator.resign(now_ms):
            assert isinstance(effect, Answer)
            asked = self._asked.pop(effect.token)
            event: Any = _as_event(asked.request, effect.response)
            asked.reply(replace(event, error=ErrorCode.REBALANCE_IN_PROGRESS))
        self._conversion = conversion
        conversion.receive(request, None, reply, now_ms)

    def _end_conversion(self, now_ms: int) -> None:
        """Once no member is left to be renamed, the group is a classic one again, in the generation of its epoch.

        A member whose leaving is the reason leaves the classic group, which rebalances (convertToClassicGroup).
        """
        conversion = self._conversion
        if conversion is None or conversion.renaming:
            return
        self._conversion = None
        self._records = [conversion.record(now_ms)]
        self._participation = {
            m.instance_id or m.member_id: Participation(m.took_part_in, m.missed) for m in conversion.members.values()
        }
        self._persisted = {key: replace(each) for key, each in self._participation.items()}
        self._seen = conversion.generation
        self._coordinator = self._start(now_ms)
        assert self._group is not None
        for key, member in self._group.members.items():
            member.protocols = conversion.protocols_of(key)  # a record has those of the chosen protocol alone
        if conversion.leaves is not None:
            left: list[Response] = []
            leave = contract.LeaveRequest(
                identity=MemberIdentity(instance_id=None, member_id=conversion.leaves), reason="a conversion"
            )
            self._ask(messages.leave_group(GROUP, [leave.identity], ""), Asked(leave, left.append), now_ms)


def _as_event(request: contract.Request, response: schema.Response) -> Response:
    if isinstance(request, contract.LeaveRequest):
        assert isinstance(response, schema.LeaveGroupResponse)
        error = next((m.error_code for m in response.members if m.error_code), response.error_code)
        return contract.LeaveResponse(request=request, error=error)
    event: Any = to_event(request, response)
    return event  # type: ignore[no-any-return]
