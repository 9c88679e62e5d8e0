"""The settings of topics, with Kafka's defaults (TopicConfig, LogConfig). Pure.

All are kept and described. The broker acts on `max.message.bytes`, `message.timestamp.type`,
`message.timestamp.after.max.ms` and, when records are to be deleted, on `cleanup.policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
"""Types, by the numbers of DescribeConfigs (DescribeConfigsResponse.ConfigType)."""

MAX_MESSAGE_BYTES: Final = "max.message.bytes"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
TIMESTAMP_AFTER_MAX: Final = "message.timestamp.after.max.ms"
CLEANUP_POLICY: Final = "cleanup.policy"

_LONG_MAX: Final = 2**63 - 1


class Setting(NamedTuple):
    """One setting of a topic.

    Attributes:
        kind: its type, by its number.
        default: Kafka's, as text.
        least: of a number.
        most: of a number.
        allowed: of a text or a list, all of its values. Empty if any number is allowed.
    """

    kind: int
    default: str
    least: float = 0
    most: float = _LONG_MAX
    allowed: tuple[str, ...] = ()


_INT_MAX: Final = 2**31 - 1

SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        CLEANUP_POLICY: Setting(LIST, "delete", allowed=("delete", "compact")),
        "compression.type": Setting(
            STRING, "producer", allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
        ),
        "delete.retention.ms": Setting(LONG, "86400000"),
        "file.delete.delay.ms": Setting(LONG, "60000"),
        "flush.messages": Setting(LONG, str(_LONG_MAX), 1),
        "flush.ms": Setting(LONG, str(_LONG_MAX)),
        "index.interval.bytes": Setting(INT, "4096", most=_INT_MAX),
        "max.compaction.lag.ms": Setting(LONG, str(_LONG_MAX), 1),
        MAX_MESSAGE_BYTES: Setting(INT, "1048588", most=_INT_MAX),
        TIMESTAMP_AFTER_MAX: Setting(LONG, "3600000"),
        "message.timestamp.before.max.ms": Setting(LONG, str(_LONG_MAX)),
        TIMESTAMP_TYPE: Setting(STRING, "CreateTime", allowed=("CreateTime", "LogAppendTime")),
        "min.cleanable.dirty.ratio": Setting(DOUBLE, "0.5", most=1),
        "min.compaction.lag.ms": Setting(LONG, "0"),
        "min.insync.replicas": Setting(INT, "1", 1, _INT_MAX),
        "preallocate": Setting(BOOLEAN, "false", allowed=("true", "false")),
        "retention.bytes": Setting(LONG, "-1", -_LONG_MAX),
        "retention.ms": Setting(LONG, "604800000", -1),
        "segment.bytes": Setting(INT, "1073741824", 14, _INT_MAX),
        "segment.index.bytes": Setting(INT, "10485760", 4, _INT_MAX),
        "segment.jitter.ms": Setting(LONG, "0"),
        "segment.ms": Setting(LONG, "604800000", 1),
        "unclean.leader.election.enable": Setting(BOOLEAN, "false", allowed=("true", "false")),
    }
)
"""Name -> setting."""


def check(name: str, text: str | None) -> None:
    """Check a value that a client sets.

    Raises:
        Refused: there is no such setting, or it has no such value.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if text is None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
    if not _is_valid(setting, text):
        raise Refused(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}")


def _is_valid(setting: Setting, text: str) -> bool:
    if setting.allowed:
        values = text.split(",") if setting.kind == LIST else [text]
        return all(value.strip() in setting.allowed for value in values)
    try:
        number = float(text) if setting.kind == DOUBLE else int(text)
    except ValueError:
        return False
    return setting.least <= number <= setting.most


def value_of(changed: Mapping[str, str], name: str) -> str:
    """A topic's value of a setting: the one that was set, or the default."""
    return changed.get(name, SETTINGS[name].default)
