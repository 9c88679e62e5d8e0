"""Who is in a group, and whom its coordinator refuses: what all models of a coordinator stand on."""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from spark_kgroup.model import ErrorCode, MemberIdentity


class Member(Protocol):
    """A member as its coordinator knows it."""

    @property
    def member_id(self) -> str: ...

    @property
    def instance_id(self) -> str | None: ...


M = TypeVar("M", bound=Member)


class GroupState(Generic[M]):
    """The members of one group, and the generation that was formed last.

    Attributes:
        members: by member id, in the order in which they joined; who replaces a static member takes its place.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, M] = {}

    def static(self, instance_id: str) -> M | None:
        """Who has the seat of this instance id."""
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def replace_static(self, old: M, new: M) -> None:
        """KIP-345: `new` has come with the instance id of `old`, which is fenced from now on."""
        # Same place in the order of members: Java's is a HashMap, so any order may be met.
        self.members = {(new.member_id if k == old.member_id else k): v for k, v in self.members.items()}
        self.members[new.member_id] = new

    def remove_static(self, instance_ids: Iterable[str]) -> None:
        """The group has no members of these names any more."""
        gone = set(instance_ids)
        self.members = {k: v for k, v in self.members.items() if v.instance_id not in gone}

    def refusal(self, who: MemberIdentity, *, check_generation: bool) -> int:
        """ClassicGroup.validateMember: the error code that a request of `who` meets."""
        if who.instance_id is not None:
            current = self.static(who.instance_id)
            if current is not None and current.member_id != who.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if who.member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if check_generation and who.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE
