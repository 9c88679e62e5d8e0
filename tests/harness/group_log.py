"""A classic group as its coordinator wrote it to __consumer_offsets.

DescribeGroups does not tell a classic group's generation, so no tool that asks the coordinator can show it. The
coordinator's own log does: it writes a GroupMetadata record whenever the group comes to rest or a static member rejoins
(Kafka: GroupMetadataKey v2, GroupMetadataValue v0 to v3, of which 4.3 writes v3).
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kgroup.errors import EnvironmentProblem

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_TOPIC: Final = "__consumer_offsets"
_GROUP_METADATA_KEY: Final = 2
_VALUE_VERSION_MAX: Final = 3  # v4 would be in the flexible encoding
_WITH_STATE_TIMESTAMP: Final = 2
_READ_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The group after one change.

    Attributes:
        generation: rises by one with every rebalance.
        protocol: the selected assignor, None while the group is empty.
        leader: the leading member's id, None while the group is empty.
        members: how many it has.
        offset: the record's, in its partition of __consumer_offsets: two equal records at different offsets are two
            writes.
    """

    generation: int
    protocol: str | None
    leader: str | None
    members: int
    offset: int


def read_group_record(bootstrap_servers: str, group: str) -> GroupRecord | None:
    """The newest record of `group`, None if there is none or its tombstone is newer.

    Raises:
        EnvironmentProblem: the log could not be read to its end in time.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    # librdkafka's consumer must have a group id, though it joins no group here.
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "unused", "log_level": 0}
    reader = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    try:
        topic = reader.list_topics(_TOPIC, timeout=_READ_TIMEOUT_S).topics[_TOPIC]
        if not topic.partitions:
            return None  # no group has ever existed
        reader.assign([TopicPartition(_TOPIC, _java_hash(group) % len(topic.partitions), OFFSET_BEGINNING)])
        return _newest(reader, group)
    finally:
        reader.close()


def _newest(reader: Consumer, group: str) -> GroupRecord | None:
    from confluent_kafka import KafkaError

    newest: GroupRecord | None = None
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while time.monotonic() < deadline:
        for message in reader.consume(1000, timeout=_POLL_S):
            error, key, offset = message.error(), message.key(), message.offset()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return newest
            if error is None and isinstance(key, bytes) and offset is not None and _is_metadata_key(key, group):
                newest = decode_group_metadata(message.value(), offset)
    raise EnvironmentProblem(f"Could not read {_TOPIC} to its end in {_READ_TIMEOUT_S:.0f} s.")


def decode_group_metadata(value: bytes | str | None, offset: int) -> GroupRecord | None:
    """A GroupMetadataValue's head, or None for a tombstone.

    Raises:
        EnvironmentProblem: a version that this code does not know.
    """
    if not isinstance(value, bytes):
        return None
    version, length = struct.unpack_from(">hh", value)
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise EnvironmentProblem(
            f"{_TOPIC} holds a GroupMetadataValue v{version}, and at most v{_VALUE_VERSION_MAX} is known here."
        )
    at = 4 + length  # past the protocol type
    (generation,) = struct.unpack_from(">i", value, at)
    protocol, at = _nullable_string(value, at + 4)
    leader, at = _nullable_string(value, at)
    (members,) = struct.unpack_from(">i", value, at + (8 if version >= _WITH_STATE_TIMESTAMP else 0))
    return GroupRecord(generation=generation, protocol=protocol, leader=leader, members=members, offset=offset)


def _is_metadata_key(key: bytes, group: str) -> bool:
    version, length = struct.unpack_from(">hh", key)
    return version == _GROUP_METADATA_KEY and key[4 : 4 + length] == group.encode()


def _nullable_string(data: bytes, at: int) -> tuple[str | None, int]:
    """A string with its int16 length before it, and where it ends. A length of -1 stands for None."""
    (length,) = struct.unpack_from(">h", data, at)
    begin = at + 2
    return (None, begin) if length < 0 else (data[begin : begin + length].decode(), begin + length)


def _java_hash(group: str) -> int:
    """The absolute String.hashCode of `group` (GroupCoordinatorService.partitionFor: Utils.abs, not toPositive)."""
    code = 0
    units = group.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", units):
        code = (31 * code + unit) & 0xFFFFFFFF
    return abs(code - 0x1_0000_0000 if code >= 0x8000_0000 else code) & 0x7FFFFFFF
