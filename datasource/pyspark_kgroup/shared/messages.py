"""The messages between the processes of an application: every type, its sender and receiver, and one parser for all.

Runs on: both. Pure.

    sender       receiver         message               answer
    worker       new sidecar      SidecarParameters     Ready | CannotStart
    worker       sidecar          AddQuery              Ready | CannotStart    with a socket to the query's registry
    worker       sidecar          Read                  ReadFromServer | ReadDirectly | NothingLeft | Refused
    worker       sidecar          Read, Hung            UnknownQuery    if it does not serve the query
    worker       sidecar          Hung                  -
    worker       sidecar          Served                -       when it has read directly
    worker       registry         Hello, then Bind      Welcome, then Bound | NothingLeft | Refused
    worker       registry         Served                -       when it has read
    worker       home's sidecar   ReadAtHome            ReadFromServer | ReadDirectly    from another executor
    worker       any sidecar      as to the registry    as of the registry: the worker cannot reach that itself
    listener     registry         Durable               -       in the user's own process
    sidecar      registry         Hello                 Welcome
    sidecar      registry         Heartbeat             Homes
    sidecar      registry         Bind                  Bound | NothingLeft | Refused
    sidecar      registry         Served                -       a worker's, or for its seats' servers
    sidecar      registry         Resting               -       when a seat's server cannot fetch
    sidecar      seats' process   StartSeatServer       -       with the sockets of a seat's new server
    sidecar      seat's server    Serve                 Finished | WorkerGone       with the worker's socket
    seat's server  sidecar        CannotFetch           -       at any time, before it ends

A message travels as a JSON object: `op` names its type, and it has exactly the fields of that type, by their own names.
Only `id` may be beside them: the sender chooses it, and the registry's answer has it too, since a sidecar asks for
several workers at once. Only processes of one version of this package talk to each other (a handshake with another
fails, see `channel`), so this table may change with any version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args, get_type_hints

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.shared.tickets import Executor, Leader, OffsetRange, Position, Reader, SidecarAddress, TopicSize

JsonObject = dict[str, Any]

_INTEGER_MAX: Final = 2**63 - 1
"""The largest offset of Kafka's, which has 64 bits. No other number here is larger."""

_OP_SHOWN_MAX: Final = 40
"""Characters of an unknown `op` in an error: it may be megabytes."""


# ------------------------------------------------------------------------------------------ to and from the registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Names the worker or sidecar that has connected.

    Attributes:
        query: whose registry is meant (`RegistryAccess.query`).
        sidecar: whether this is the executor's sidecar, which serves the query as long as the connection lasts.
        address: where workers of other executors reach this sidecar, or None if they cannot.
    """

    op: ClassVar[str] = "hello"
    query: str
    executor: Executor
    sidecar: bool
    address: SidecarAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to `Hello`.

    Attributes:
        serves_others: whether the sidecar that greets is to serve workers of other executors
            (`recordsBetweenExecutors`).
    """

    op: ClassVar[str] = "welcome"
    serves_others: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The sidecar lives."""

    op: ClassVar[str] = "heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Homes:
    """The answer to `Heartbeat`: the seats whose home is the sidecar's executor. Servers of other seats may end."""

    op: ClassVar[str] = "homes"
    seats: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Asks which ranges a ticket reads, for a worker of `executor`.

    Attributes:
        for_guest: the worker is another executor's, and `executor` is the seat's home, which gets no task by that.
    """

    op: ClassVar[str] = "bind"
    scan: int
    ticket: int
    executor: Executor
    for_guest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The ranges that a ticket reads, and of which seat.

    Attributes:
        at_home: whether the seat's server on the asking executor is to read: that executor is the seat's home, and the
            ranges are all of the seat's share or its first piece.
        ranges: of the seat's partitions.
        owned: all partitions that the seat owns at the end of the batch, and where the next batch will begin in them.
            Empty where no server is to read.
        home: the sidecar that serves the seat to workers of other executors, or None if none does, or none should.
    """

    op: ClassVar[str] = "bound"
    seat: str
    at_home: bool
    ranges: tuple[OffsetRange, ...]
    owned: tuple[Position, ...]
    home: SidecarAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingLeft:
    """Other tickets of the scan read all of its ranges: this one reads none."""

    op: ClassVar[str] = "nothing-left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The ticket's batch is over, or there is no such ticket."""

    op: ClassVar[str] = "refused"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A seat was read.

    Attributes:
        by: the seat's own server, for a worker beside it or over the network, or a worker that read directly.
        rows: rows of the read.
        ready: how many of them a server had fetched before it was asked.
        sizes: how large they were, if that is asked for, of at most `SIZES_TOLD_MAX` topics.
    """

    op: ClassVar[str] = "served"
    seat: str
    by: Literal["server", "network", "worker"]
    rows: int
    ready: int
    sizes: tuple[TopicSize, ...]

    def __post_init__(self) -> None:
        _check_rows(self.rows, self.ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """The server of a seat with its home here has ended, as it cannot fetch: workers read the seat directly now."""

    op: ClassVar[str] = "resting"
    seat: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """A batch is in Spark's commit log.

    Attributes:
        query: as `RegistryAccess.query`.
        end: where it ended (`Checkpoint.digest`).
    """

    op: ClassVar[str] = "durable"
    query: str
    end: str


# ------------------------------------------------------------------------------------ between a worker and its sidecar


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarParameters:
    """All that a new sidecar has to know. It comes over the sidecar's standard input.

    Attributes:
        folder: where it is to be found (`sidecar_dir.SidecarDir`).
        key: the application's secret.
        host: where workers of other executors are to reach it, or "" if they are not.
    """

    op: ClassVar[str] = "start"
    folder: str
    key: bytes = field(repr=False)
    executor: Executor
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddQuery:
    """Asks a sidecar to serve one more query. A byte follows, with a socket that has shown the key to its registry.

    Attributes:
        query: as `RegistryAccess.query`.
        prefetch_bytes: how much the query's seats may hold ahead of the next batch here, in all.
        idle_ms: how long it is served without a read.
        tells_sizes: as `RegistryAccess.tells_sizes`.
    """

    op: ClassVar[str] = "add-query"
    query: str
    prefetch_bytes: int
    idle_ms: int
    tells_sizes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The sidecar listens, or serves the query."""

    op: ClassVar[str] = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotStart:
    """The sidecar ends before it has begun, or does not serve the query."""

    op: ClassVar[str] = "cannot-start"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownQuery:
    """The sidecar does not serve the query, or not any more."""

    op: ClassVar[str] = "unknown-query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Asks which ranges a ticket reads, and has the seat's server read them if the seat has its home here.

    Attributes:
        config: librdkafka's configuration, for a server that is yet to start. May hold secrets.
        reader: with which reader.
        headers: whether batches have the column `headers`.
        timestamps: whether the column `timestamp` is used.
    """

    op: ClassVar[str] = "read"
    query: str
    scan: int
    ticket: int
    config: Mapping[str, str] = field(repr=False)
    reader: Reader
    headers: bool
    timestamps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAtHome:
    """Asks the sidecar of a seat's home to serve a ticket's ranges, for a worker of another executor.

    No configuration goes with it, since that may hold secrets: the home reads as it does for its own workers.
    """

    op: ClassVar[str] = "read-at-home"
    query: str
    scan: int
    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFromServer:
    """The seat's server sends these ranges, over this same connection (`seat_server`)."""

    op: ClassVar[str] = "read-from-server"
    seat: str
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDirectly:
    """The worker has to read these ranges elsewhere.

    Attributes:
        home: as `Bound.home`. Without one, the worker reads over connections of its own.
    """

    op: ClassVar[str] = "read-directly"
    seat: str
    ranges: tuple[OffsetRange, ...]
    home: SidecarAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """The seat's server hangs: it lives and does not send. The sidecar ends its process."""

    op: ClassVar[str] = "hung"
    query: str
    seat: str


# ------------------------------------------------------------------------------ between a sidecar and a seat's server


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSeatServer:
    """Let one more seat have its server in this process. The sidecar's socket and the query's share are attached.

    The other fields are those of `Read`.
    """

    op: ClassVar[str] = "host"
    seat: str
    config: Mapping[str, str] = field(repr=False)
    headers: bool
    timestamps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Send `ranges` to the worker whose socket is attached. The fields are those of `Bound` and `AddQuery`."""

    op: ClassVar[str] = "serve"
    ranges: tuple[OffsetRange, ...]
    owned: tuple[Position, ...]
    tells_sizes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """All was sent. The fields are those of `Served`."""

    op: ClassVar[str] = "finished"
    rows: int
    ready: int
    sizes: tuple[TopicSize, ...]

    def __post_init__(self) -> None:
        _check_rows(self.rows, self.ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """The worker did not take all rows. The reader of the rest counts those."""

    op: ClassVar[str] = "worker-gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotFetch:
    """The server cannot fetch what its seat owns, and ends: workers read the seat directly for a while.

    Attributes:
        reason: for the log.
        lasting: the next server would end for the same reason.
    """

    op: ClassVar[str] = "cannot-fetch"
    reason: str
    lasting: bool


QueryMessage = (
    Hello
    | Welcome
    | Heartbeat
    | Homes
    | Bind
    | Bound
    | NothingLeft
    | Refused
    | Served
    | Resting
    | Durable
    | SidecarParameters
    | AddQuery
    | Ready
    | CannotStart
    | UnknownQuery
    | Read
    | ReadAtHome
    | ReadFromServer
    | ReadDirectly
    | Hung
    | StartSeatServer
    | Serve
    | Finished
    | WorkerGone
    | CannotFetch
)

_TYPES: Final[Mapping[str, type[QueryMessage]]] = {type_.op: type_ for type_ in get_args(QueryMessage)}


def _check_rows(rows: int, ready: int) -> None:
    if not 0 <= ready <= rows:
        raise ValueError("more rows were ready than were read, or fewer than none")


# ---------------------------------------------------------------------------------------------------------- as JSON


def to_json(message: QueryMessage) -> JsonObject:
    """`message` as it travels."""
    return {"op": message.op, **_encode_fields(message)}


def parse(raw: Mapping[str, Any]) -> QueryMessage:
    """Turn a JSON object into the message that it encodes.

    Raises:
        ChannelEnded: `op` names no type of `QueryMessage`, or a field is missing, unknown, of another type, or not
            valid. No peer of this version sends such a message, so the caller ends the connection.
    """
    op = raw.get("op")
    type_ = _TYPES.get(op) if isinstance(op, str) else None
    if type_ is None:
        raise ChannelEnded(f"The peer sent a message of an unknown type: {str(op)[:_OP_SHOWN_MAX]!r}.")
    return _read_fields(type_, {name: value for name, value in raw.items() if name not in ("op", "id")})


def _encode_fields(value: Any) -> JsonObject:
    return {name: _to_json_value(getattr(value, name)) for name in (one.name for one in fields(value))}


def _to_json_value(value: Any) -> Any:
    """`value` as `json` takes it, which writes tuples as lists."""
    if is_dataclass(value):
        return _encode_fields(value)
    return value.hex() if isinstance(value, bytes) else value


T = TypeVar("T")


def _read_fields(type_: type[T], raw: Mapping[str, object]) -> T:
    types = _FIELD_TYPES[type_]
    if raw.keys() != types.keys():
        raise ChannelEnded(f"The peer's {type_.__name__} has other fields than it should.")
    try:
        return type_(**{name: _READERS[types[name]](value) for name, value in raw.items()})
    except ValueError as problem:
        raise ChannelEnded(f"A field of the peer's {type_.__name__} is not valid: {problem}.") from None


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("no boolean")
    return value


def _integer(value: object) -> int:
    # To Python a bool is an int. JSON's true is no number.
    if not isinstance(value, int) or isinstance(value, bool) or not -_INTEGER_MAX <= value <= _INTEGER_MAX:
        raise ValueError("no integer of 64 bits")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no string")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("no list")
    return value


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _one_of(*names: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in names:
            raise ValueError(f"none of {names}")
        return _string(value)

    return read


def _range(value: object) -> OffsetRange:
    match value:
        case [topic, partition, start_offset, end_offset, leader, topic_id]:
            offsets = _integer(start_offset), _integer(end_offset)
            return OffsetRange(_string(topic), _integer(partition), *offsets, _leader(leader), _string(topic_id))
    raise ValueError("no range")


def _leader(value: object) -> Leader | None:
    match value:
        case None:
            return None
        case [node_id, host, port, epoch, topic_id]:
            return Leader(_integer(node_id), _string(host), _integer(port), _integer(epoch), _string(topic_id))
    raise ValueError("no leader")


def _executor(value: object) -> Executor:
    executor = _read_fields(Executor, _object(value))
    if not (executor.key + executor.executor_id + executor.host).isprintable():  # they stand in log lines
        raise ValueError("no names of an executor")
    return executor


def _address(value: object) -> SidecarAddress | None:
    match value:
        case None:
            return None
        case [host, port, executor]:
            return SidecarAddress(_string(host), _integer(port), _string(executor))
    raise ValueError("no address")


def _topic_size(value: object) -> TopicSize:
    match value:
        case [topic, rows, size_bytes]:
            size = TopicSize(_string(topic), _integer(rows), _integer(size_bytes))
            if size.rows >= 0 and size.size_bytes >= 0:
                return size
    raise ValueError("no size")


def _position(value: object) -> Position:
    match value:
        case [topic, partition, offset, tag, leader]:
            at = _string(topic), _integer(partition), _integer(offset)
            return Position(*at, _string(tag), _leader(leader))
    raise ValueError("no position")


_READERS: Final[Mapping[object, Callable[[object], object]]] = {
    bool: _boolean,
    int: _integer,
    str: _string,
    bytes: lambda value: bytes.fromhex(_string(value)),
    Executor: _executor,
    Mapping[str, str]: lambda value: {name: _string(text) for name, text in _object(value).items()},
    Literal["server", "network", "worker"]: _one_of("server", "network", "worker"),
    Reader: _one_of("native", "librdkafka"),
    SidecarAddress | None: _address,
    tuple[str, ...]: lambda value: tuple(map(_string, _list(value))),
    tuple[OffsetRange, ...]: lambda value: tuple(map(_range, _list(value))),
    tuple[Position, ...]: lambda value: tuple(map(_position, _list(value))),
    tuple[TopicSize, ...]: lambda value: tuple(map(_topic_size, _list(value))),
}
"""A field's type -> the function that makes a value of that type out of JSON, or raises ValueError."""

_FIELD_TYPES: Final[Mapping[type, Mapping[str, object]]] = {
    type_: {one.name: get_type_hints(type_)[one.name] for one in fields(type_)}
    for type_ in (*_TYPES.values(), Executor)
}
