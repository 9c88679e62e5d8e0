"""The records of a coordinator: all that a restart knows. Kafka keeps the same in `__consumer_offsets`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedMember:
    """One member of a group at rest (GroupMetadataValue.MemberMetadata).

    Attributes:
        metadata: the member's bytes for the group's protocol. Those for other protocols are not kept.
        assignment: the leader's bytes for this member.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """A group with its members, or without any (GroupMetadataValue).

    Attributes:
        protocol_type: "consumer" of consumers, empty for a group that no member has joined yet.
        protocol: the assignor that the members agreed on, None without members.
        leader: a member id, None without members.
        since_ms: when the group came to its state.
    """

    group: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[PersistedMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRemoved:
    """The group is no more (a tombstone of GroupMetadataKey)."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitted:
    """A committed offset (OffsetCommitValue). It makes a group without members if there is none.

    Attributes:
        leader_epoch: of the record before the offset, -1 if the client did not say it.
        metadata: the client's text.
    """

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRemoved:
    """A committed offset is no more (a tombstone of OffsetCommitKey)."""

    group: str
    topic: str
    partition: int


Record = GroupMetadata | GroupRemoved | OffsetCommitted | OffsetRemoved
