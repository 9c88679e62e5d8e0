"""All records that a group's coordinator ever wrote of it, in order: the broker's own evidence.

The records lie in __consumer_offsets (Kafka: OffsetCommitKey v0 and v1, OffsetCommitValue. Group metadata as in
`group_log`). A commit that was refused left no record.
"""

import struct
from collections import defaultdict
from itertools import pairwise

from harness.group_log import GroupRecord, decode_group_metadata
from harness.kafka import messages, place_of

Commit = tuple[int, int]
"""(partition, offset): an acknowledged commit of a group with one topic."""

_OFFSET_COMMIT_KEYS = (0, 1)
_GROUP_METADATA_KEY = 2


def group_history(bootstrap: str, group: str) -> list[Commit | GroupRecord]:
    """Commits and changes of the group, in order. Tombstones are left out."""
    history: list[Commit | GroupRecord] = []
    for message in messages(bootstrap, "__consumer_offsets"):
        key, value = message.key(), message.value()
        assert key is not None
        version, length = struct.unpack_from(">hh", key)
        if key[4 : 4 + length] != group.encode() or value is None:
            continue
        if version in _OFFSET_COMMIT_KEYS:
            (partition,) = struct.unpack(">i", key[-4:])
            _, offset = struct.unpack_from(">hq", value)
            history.append((partition, offset))
        elif version == _GROUP_METADATA_KEY:
            record = decode_group_metadata(value, place_of(message)[1])
            assert record is not None
            history.append(record)
    return history


def commits(history: list[Commit | GroupRecord]) -> list[Commit]:
    """The commits alone."""
    return [entry for entry in history if isinstance(entry, tuple)]


def assert_never_rewound(history: list[Commit | GroupRecord]) -> None:
    """No committed offset ever fell."""
    by_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in commits(history):
        by_partition[partition].append(offset)
    assert by_partition
    for partition, offsets in by_partition.items():
        assert all(a <= b for a, b in pairwise(offsets)), f"partition {partition} was rewound: {offsets}"
