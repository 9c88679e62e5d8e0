"""The targets of the messages. Each takes one message at a time and returns its outcome.

`take` returns a word for the statistics. It raises an error that no message may cause: one outside the tree, or
`Wrong`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, cast

from fuzz.frames import Maker
from pyspark_kgroup.driver.registry.peers import Peer, Peers
from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.executor.sidecar import sidecar, sidecar_query
from pyspark_kgroup.shared.channel import REGISTRY, Challenge, Frames, Message, _mac, frame, new_key
from pyspark_kgroup.shared.messages import parse
from spark_kgroup.admin.describe_command import as_object, join_answers
from spark_kgroup.assignors import assignor
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import KgroupError, WireError
from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember, MemberConfig, State
from spark_kgroup.member.member_ids import new_member_id
from spark_kgroup.model import ErrorCode, TopicDescription, TopicPartition
from spark_kgroup.runtime.translate import to_event, to_message
from spark_kgroup.seat_note import Author, SeatNote
from spark_kgroup.wire import messages, responses, schema
from spark_kgroup.wire.codec import decode_response, encode_request, read_correlation_id

T0 = TopicPartition("t", 0)
EFFECTS_MAX = 20
"""More effects of one event than this would be a storm: the most that the table of transitions gives is five."""


class Wrong(Exception):
    """A condition that must hold did not."""


class Answers:
    """The codec, and all that interprets a broker's answers for look-ups and `kgroup describe`."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._maker = Maker(rng)
        self._types = list(schema.API_OF)
        self._readers: dict[type, Callable[[Any], object]] = {
            schema.MetadataResponse: self._metadata,
            schema.ListOffsetsResponse: lambda response: responses.take_listed(response, [T0], {}),
            schema.OffsetFetchResponse: self._commits,
            schema.DescribeGroupsResponse: lambda response: self._describe(responses.parse_description(response)),
            schema.ConsumerGroupDescribeResponse: self._consumers,
            schema.ConsumerGroupDescribeResponseV0: self._consumers,
            schema.LeaveGroupResponse: responses.still_members,
            schema.DescribeConfigsResponse: responses.parse_config,
            schema.OffsetCommitResponse: messages.offset_commit_errors,
            schema.FindCoordinatorResponse: lambda response: responses.the_only(response.coordinators, "coordinator"),
        }

    def take(self) -> str:
        kind = self._rng.choice(self._types)
        raw = self._maker.response(kind, {})
        try:
            read_correlation_id(raw)
            self._interpret(decode_response(kind, raw))
        except KgroupError as error:
            return type(error).__name__
        return "interpreted"

    def _interpret(self, response: Any) -> None:
        responses.group_error_codes(response)
        for kind, reader in self._readers.items():
            if isinstance(response, kind):
                reader(response)

    def _commits(self, response: Any) -> None:
        for offset in responses.parse_committed(response, (), {}).values():
            if offset is not None:
                SeatNote.decode(offset.metadata)
                Author.of(offset.metadata)

    def _metadata(self, response: Any) -> None:
        for topic in responses.parse_metadata(response).topics.values():
            responses.has_fewer_partitions(topic, topic)

    def _consumers(self, response: Any) -> None:
        if (group := responses.parse_consumer_description(response)) is not None:
            self._describe(group)

    def _describe(self, group: Any) -> None:
        notes = {tp: self._maker._note() for member in group.members for tp in member.assignment}
        committed = {tp: responses.CommittedOffset(offset=5, metadata=note) for tp, note in notes.items()}
        as_object(join_answers(group, committed, {}))


class Members:
    """A member machine behind the codec, as a session runs it: its requests are answered with these messages.

    Most answers are plausible, so that it gets into every state. A member that ended is followed by another.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._maker = Maker(rng)
        self._topics = {name: TopicDescription(name=name, topic_id=None, partition_count=3) for name in ("t", "t0")}
        self.members = 0
        self.states: set[State] = set()
        self._start()

    def take(self) -> str:
        while not self._asked:
            self._let_happen()
        asked = self._asked.pop(self._rng.randrange(len(self._asked)))
        message = self._message_for(asked)
        encode_request(message, 7, "fuzz")
        raw = self._maker.response(type(message), self._plausible(), whole=0.85)
        try:
            event = self._event_of(asked, decode_response(type(message), raw))
        except WireError as error:
            self._refuse(asked, error)
            return type(error).__name__
        self._handle(event)
        return self._machine.state.name.lower()

    def _message_for(self, asked: contract.Request | contract.LookAtSeat) -> schema.Request:
        match asked:
            case contract.LookAtSeat():
                return messages.describe_groups("g")
            case contract.LeaveRequest(identity=who, reason=reason):
                return messages.leave_group("g", [who], reason)
            case _:
                return to_message(asked, self._machine.config)

    def _event_of(self, asked: contract.Request | contract.LookAtSeat, response: Any) -> contract.Event:
        match asked:
            case contract.LookAtSeat():
                ids = ["", *(member.member_id for member in responses.parse_description(response).members)]
                return contract.SeatSeen(member_id=self._rng.choice(ids))
            case contract.LeaveRequest():
                return contract.LeaveResponse(
                    request=asked, error=next(iter(responses.still_members(response).values()), 0)
                )
            case _:
                return to_event(asked, response)

    def _refuse(self, asked: contract.Request | contract.LookAtSeat, error: WireError) -> None:
        """As a session does: a request over the pool tells no more, any other ends its connection or the member."""
        if isinstance(asked, contract.LeaveRequest):
            self._handle(contract.LeaveResponse(request=asked, error=ErrorCode.NETWORK_EXCEPTION))
        elif not isinstance(asked, contract.LookAtSeat):
            self._asked.clear()
            self._handle(contract.ConnectionLost(reason=str(error)) if error.retriable else contract.Close())

    def _start(self) -> None:
        self.members += 1
        static, name = self._rng.random() < 0.7, self._rng.choice(("cooperative-sticky", "range"))
        config = MemberConfig(
            group="g",
            instance_id="s-0" if static else None,
            topics=("t",),
            assignors=(assignor(name),),
            own_id=new_member_id(self._rng.randbytes) if self._rng.random() < 0.5 else "",
        )
        self._machine = ClassicMember(config, jitter=self._rng.random)
        self._now_ms = 0
        self._asked: list[contract.Request | contract.LookAtSeat] = []
        self._handle(contract.Join())

    def _plausible(self) -> Mapping[str, Any]:
        own_id = self._machine.identity.member_id or "m"
        return {
            "error_code": 0,
            "member_id": own_id,
            "leader": self._rng.choice((own_id, own_id, "other")),
            "generation_id": self._machine.identity.generation + 1,
            "protocol_type": "consumer",
            "protocol_name": self._machine.config.assignors[0].name,
            "skip_assignment": 0,
        }

    def _let_happen(self) -> None:
        """An event that comes to a member without an answer: time, boundaries, refused commits, the end."""
        machine, chance = self._machine, self._rng.random()
        if machine.state is State.CLOSED:
            self._start()
        elif chance < 0.1 and machine.to_give_up:
            self._handle(contract.GaveUp(partitions=machine.to_give_up))
        elif chance < 0.15:
            self._handle(contract.RejoinWanted(reason="fuzz"))
        elif chance < 0.2:
            self._handle(contract.MembershipRefused(identity=machine.identity, error=ErrorCode.ILLEGAL_GENERATION))
        elif chance < 0.21:
            self._handle(contract.Leave(reason="fuzz"))
        elif chance < 0.4:
            self._handle(contract.Rename())
        elif (wakeup_at_ms := machine.next_wakeup_at_ms()) is not None:
            self._now_ms = max(self._now_ms, wakeup_at_ms)
            self._handle(contract.Tick())
        elif machine.state is not State.REVOKING:
            raise Wrong(f"a member in {machine.state} waits for nothing")

    def _handle(self, event: contract.Event) -> None:
        """Hand the machine an event, and carry out its effects, as a session does."""
        events = [event]
        while events:
            effects = self._machine.handle(events.pop(0), self._now_ms)
            self.states.add(self._machine.state)
            if len(effects) > EFFECTS_MAX:
                raise Wrong(f"{len(effects)} effects of one event")
            for effect in effects:
                events += self._carried_out(effect)

    def _carried_out(self, effect: contract.Effect) -> list[contract.Event]:
        match effect:
            case contract.Send(request=request):
                self._asked.append(request)
            case contract.Look(heartbeat=contract.HeartbeatRequest() as heartbeat):
                self._asked.append(heartbeat)
            case contract.LookAtSeat():
                self._asked.append(effect)
            case contract.Connect():
                self._asked.clear()
                return [contract.Connected()]
            case contract.ComputeAssignment(generation=generation, assignor=name, members=members):
                assigned = assignor(name).assign(members, self._topics)
                computed = tuple(sorted(assigned.items()))
                return [contract.AssignmentComputed(generation=generation, assignments=computed)]
        return []


class _Transport:
    """Stands for a connection's transport: remembers the bytes that were written, and whether it was ended."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.ended = False

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def abort(self) -> None:
        self.ended = True


class Channels:
    """The registry behind its frames: unauthenticated peers, and peers that hold the key but talk nonsense.

    Beside them an honest sidecar stays connected: no other peer's message may end its connection, or its responses.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._maker = Maker(rng)
        registry = Registry(["s-0", "s-1"])
        registry.query = "q"
        self._peers = Peers(Requests(registry), key=new_key(), clock=monotonic_ms)
        self._honest, self._honest_transport = self._admit()
        self._say(self._honest, self._hello("honest", None))
        self._honest_transport.sent.clear()
        self._peer: Peer | None = None

    def take(self) -> str:
        if self._peer is None or self._transport.ended:
            self._meet()
        assert self._peer is not None
        values = self._rng.choice(self._requests())
        raw = self._maker.message(values)
        if self._rng.random() < 0.2:
            return self._to_the_sidecar(raw)
        for part in self._cut(raw):
            if not self._transport.ended:
                self._peer.data_received(part)
        if self._rng.random() < 0.05:
            self._transport.ended = True
        if self._transport.ended:
            self._peer.connection_lost(None)
        self._ask_the_honest()
        return "connection ended" if self._transport.ended else "heard"

    def _requests(self) -> list[Message]:
        return [
            {"op": "heartbeat", "id": 1},
            {"op": "bind", "scan": 1, "ticket": 0, "executor": self._executor("e"), "for_guest": False, "id": 2},
            {"op": "served", "seat": "s-0", "by": "server", "rows": 5, "ready": 1, "sizes": [["t", 5, 99]]},
            {"op": "served", "seat": "s-0", "by": "worker", "rows": 5, "ready": 0, "sizes": []},
            {"op": "resting", "seat": "s-0"},
            {
                "op": "serve",
                "ranges": [["t", 0, 1, 2, [1, "b", 9092, 5, "0a"]]],
                "owned": [["t", 0, 2, "tag"]],
                "tells_sizes": True,
            },
            {"op": "homes", "seats": ["s-0"]},
            self._hello("e", None),
            self._hello("e", ["h", 7078, "e"]),
            {"op": "hung", "query": "q", "seat": "s-0"},
            {"op": "read-at-home", "query": "q", "scan": 1, "ticket": 0},
            {"op": "add-query", "query": "q", "prefetch_bytes": 1, "idle_ms": 1, "tells_sizes": False},
            {"op": "host", "seat": "s-0", "config": {}, "reader": "native", "headers": False, "timestamps": True},
            {
                "op": "read",
                "query": "q",
                "scan": 1,
                "ticket": 0,
                "config": {"a": "b"},
                "reader": "native",
                "headers": False,
            },
            {"nonce": "00" * 32, "mac": "00" * 32},
        ]

    def _hello(self, key: str, address: list[Any] | None) -> Message:
        return {"op": "hello", "query": "q", "executor": self._executor(key), "sidecar": True, "address": address}

    def _executor(self, key: str) -> Message:
        fields = {"key": key, "executor_id": "1", "host": "h", "pid": 1, "has_sidecar": True, "rack": "", "cores": 4}
        return {name: self._maker._odd_json(value) for name, value in fields.items()} if key != "honest" else fields

    def _meet(self) -> None:
        if self._rng.random() < 0.7:
            self._peer, self._transport = self._admit()
        else:
            self._peer, self._transport = self._connect()

    def _connect(self) -> tuple[Peer, _Transport]:
        peer, transport = Peer(self._peers), _Transport()
        peer.connection_made(cast("asyncio.BaseTransport", transport))
        return peer, transport

    def _admit(self) -> tuple[Peer, _Transport]:
        peer, transport = self._connect()
        nonce = bytes.fromhex(self._only(transport)["nonce"])
        proof = _mac(self._peers.key, "client", REGISTRY, nonce, bytes(32)).hex()
        self._say(peer, {"nonce": bytes(32).hex(), "mac": proof})
        if transport.ended:
            raise Wrong("a peer with the key was turned away")
        transport.sent.clear()
        return peer, transport

    def _ask_the_honest(self) -> None:
        self._say(self._honest, {"op": "heartbeat", "id": 9})
        if self._honest_transport.ended or self._only(self._honest_transport).get("id") != 9:
            raise Wrong("another peer's message ended the connection of an honest one")

    @staticmethod
    def _only(transport: _Transport) -> Message:
        frames = Frames()
        frames.trust(1 << 20)
        frames.feed(b"".join(transport.sent))
        transport.sent.clear()
        message = frames.next()
        assert message is not None
        return message

    @staticmethod
    def _say(peer: Peer, message: Message) -> None:
        peer.data_received(frame(message))

    def _cut(self, raw: bytes) -> list[bytes]:
        at = self._rng.randrange(len(raw) + 1)
        return [part for part in (raw[:at], raw[at:]) if part]

    def _to_the_sidecar(self, raw: bytes) -> str:
        """A sidecar's reaction to a worker's message, and to its proof of the key."""
        frames = Frames()
        try:
            frames.feed(raw)
            message = frames.next()
            if message is None:
                return "waits for more"
            what = self._rng.choice((self._request, self._account, Challenge(b"k" * 32, "sidecar").answer))
            what(message)
        except (ChannelEnded, KeyRefused):
            return "connection ended"
        return "heard"

    @staticmethod
    def _request(message: Message) -> None:
        sidecar.expect_request(parse(message))

    @staticmethod
    def _account(message: Message) -> None:
        sidecar_query.expect_served(parse(message), "s-0")
