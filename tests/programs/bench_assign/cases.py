"""The groups that are assigned: topics, members, their subscriptions, and the members that leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, NamedTuple


class Subscriptions(StrEnum):
    """The subscriptions of a group's members."""

    EQUAL = "equal"
    """Every member to all topics."""

    HALVES = "halves"
    """Every member to a random half of the topics."""

    ONE_LACKS_ONE = "one lacks one"
    """The first member to all but the last topic, the other members to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One group: assigned when it is new, and once more when `leavers` of its members have left.

    Attributes:
        partitions: of each topic.
    """

    name: str
    topics: int
    partitions: int
    members: int
    leavers: int
    subscriptions: Subscriptions = Subscriptions.EQUAL

    def __str__(self) -> str:
        return f"{self.topics * self.partitions:,} x {self.members:,}, {self.subscriptions}"

    def wanted(self) -> list[list[int]]:
        """For each member, the numbers of its topics."""
        everything, random = range(self.topics), Random(1)
        match self.subscriptions:
            case Subscriptions.EQUAL:
                return [list(everything)] * self.members
            case Subscriptions.HALVES:
                return [sorted(random.sample(everything, self.topics // 2)) for _ in range(self.members)]
            case Subscriptions.ONE_LACKS_ONE:
                return [list(everything[:-1]), *[list(everything)] * (self.members - 1)]

    def leaves(self, member: int) -> bool:
        """Whether this member leaves: they are spread over the group."""
        return member % (self.members // self.leavers) == 1


CASES = (
    Case(name="uniform", topics=100, partitions=1_000, members=1_000, leavers=50),
    Case(name="million", topics=100, partitions=10_000, members=2_000, leavers=50),
    Case(
        name="one-lacks-one",
        topics=800,
        partitions=10,
        members=100,
        leavers=5,
        subscriptions=Subscriptions.ONE_LACKS_ONE,
    ),
    Case(name="halves", topics=100, partitions=1_000, members=1_000, leavers=50, subscriptions=Subscriptions.HALVES),
)


class Run(NamedTuple):
    """One run of an assignor: seconds of CPU of the thread that assigns, and figures of the assignment.

    Attributes:
        spread: least and most partitions of a member, after some have left.
        moved: partitions that left a member that stayed.
    """

    fresh_s: float
    left_s: float
    spread: tuple[int, int]
    moved: int

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds for a new group, and when some members have left."""
        return self.fresh_s, self.left_s

    @classmethod
    def of(cls, printed: dict[str, Any]) -> "Run":
        """The run that a program printed as JSON."""
        return cls(printed["fresh_s"], printed["left_s"], (printed["least"], printed["most"]), printed["moved"])


class Measured(NamedTuple):
    """Runs of one case in one process, the first one cold, and the peak memory of the process."""

    runs: Sequence[Run]
    peak_mib: int
