"""The facts of a run that can be known from outside, by kind, and the file that keeps them.

The file has one JSON object on each line. `fact` says its kind, the rest are the fields. Times are seconds of one wall
clock. A fact without a known time has None. Facts of one kind stand in the order in which they happened.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

ACKNOWLEDGED: Final = "acknowledged"
ABORTED: Final = "aborted"
UNKNOWN: Final = "unknown"
"""The fate of a record as its producer knows it in the end. An unknown one may be stored or not."""


class Produced(NamedTuple):
    """A producer sent a record.

    Attributes:
        number: how many its producer had sent before.
        value: no two records of a run have the same.
        fate: ACKNOWLEDGED, ABORTED or UNKNOWN.
        wall_at_s: when its fate was known.
    """

    producer: str
    number: int
    topic: str
    partition: int
    value: str
    fate: str
    wall_at_s: float | None = None


class Stored(NamedTuple):
    """A read_committed reader outside the group found a record. A recreated topic's earlier records come first."""

    topic: str
    partition: int
    offset: int
    value: str


class Sunk(NamedTuple):
    """A query's sink holds a row.

    Attributes:
        batch: number of the micro-batch that wrote it.
        file: name of the file that holds it, in the order of its rows.
        wall_at_s: when the sink showed it.
    """

    reader: str
    topic: str
    partition: int
    offset: int
    value: str
    batch: int
    file: str
    wall_at_s: float | None = None


class Read(NamedTuple):
    """A consumer of another client, in the same group, handed a record on."""

    reader: str
    topic: str
    partition: int
    offset: int
    value: str
    wall_at_s: float | None = None


class Committed(NamedTuple):
    """The coordinator wrote down an offset of the group.

    Attributes:
        by_us: whether a member of this source made the commit. Other clients' commits are theirs to order.
    """

    topic: str
    partition: int
    offset: int
    wall_at_s: float
    by_us: bool = True


class Exposed(NamedTuple):
    """A reader lost its membership before the group knew that it had read `first` <= offset < `end`."""

    reader: str
    topic: str
    partition: int
    first: int
    end: int


class Recreated(NamedTuple):
    """An operator deleted a topic and made it again: its offsets begin anew."""

    topic: str
    wall_at_s: float


class LogEnd(NamedTuple):
    """One past the last offset of a partition, at the end of the run."""

    topic: str
    partition: int
    offset: int


class Ended(NamedTuple):
    """A query or consumer ended, and no fault was aimed at it."""

    reader: str
    words: str
    wall_at_s: float | None = None


class Warned(NamedTuple):
    """A query logged a warning."""

    reader: str
    words: str
    wall_at_s: float


class Lasting(NamedTuple):
    """One fault was left on from here to the end.

    Attributes:
        fault: its name.
        words: one of them stands in each warning or error that names it.
        spared: [topic, partition] of those that it does not touch.
        goes_on_s: records of spared partitions are read so soon after they were produced.
        named_s: a query that cannot go on ends, or warns, so soon, with one of the words.
        until_s: the end of the time that was watched.
    """

    fault: str
    words: list[str]
    spared: list[list[Any]]
    goes_on_s: float
    named_s: float
    wall_at_s: float
    until_s: float


class Left(NamedTuple):
    """A process outlived the run."""

    command: str


Fact = Produced | Stored | Sunk | Read | Committed | Exposed | Recreated | LogEnd | Ended | Warned | Lasting | Left

KINDS: Final[Mapping[str, type[Fact]]] = {
    kind.__name__: kind
    for kind in (Produced, Stored, Sunk, Read, Committed, Exposed, Recreated, LogEnd, Ended, Warned, Lasting, Left)
}


@dataclass(slots=True)
class History:
    """All facts of a run, by kind."""

    produced: list[Produced] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    sunk: list[Sunk] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    exposed: list[Exposed] = field(default_factory=list)
    recreated: list[Recreated] = field(default_factory=list)
    logend: list[LogEnd] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    warned: list[Warned] = field(default_factory=list)
    lasting: list[Lasting] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> "History":
        history = cls()
        for fact in facts:
            getattr(history, type(fact).__name__.lower()).append(fact)
        return history

    @property
    def deliveries(self) -> Iterator[Sunk | Read]:
        """All that any member of the group handed on."""
        yield from self.sunk
        yield from self.read


def write(path: Path, facts: Iterable[Fact]) -> None:
    """Keep `facts` in a file, in their order."""
    with path.open("w") as file:
        for fact in facts:
            print(json.dumps({"fact": type(fact).__name__, **fact._asdict()}), file=file)


def load(path: Path) -> History:
    """Read a file that `write` has written.

    Raises:
        ValueError: a line is no fact. Its number is in the message.
    """
    with path.open() as file:
        return History.of(_fact(line, f"{path}:{number}") for number, line in enumerate(file, start=1))


def _fact(line: str, where: str) -> Fact:
    try:
        fields = json.loads(line)
        return KINDS[fields.pop("fact")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{where}: no fact: {line.strip()[:120]!r} ({problem!r})") from problem
