"""What a seat writes beside its committed offsets: who serves it. Kafka keeps it, so whoever asks Kafka can know.

Kafka's OffsetCommit has room for a text of up to offset.metadata.max.bytes (4096) with each offset. Other clients write
what they like there, or nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_VERSION: Final = 1

_TEXT_CHARACTERS_MAX: Final = 255
"""Longest name of a host; with each character escaped, two of them and a member id stay below 4096 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatNote:
    """Who served a seat when it committed.

    Attributes:
        member: the id of the member that it was then; the partition, or the seat, may have another by now.
        executor: Spark's id of the executor, "driver" in local mode; None if no executor is known.
        host: the executor's.
        warm: whether the seat's own server reads there; else each task reads by itself.
        since_ms: since when that executor serves it (wall clock).
        at_ms: when this was written (wall clock).
    """

    member: str
    at_ms: int
    executor: str | None = None
    host: str | None = None
    warm: bool | None = None
    since_ms: int | None = None

    def encode(self) -> str:
        """As text for Kafka."""
        note: dict[str, Any] = {"v": _VERSION, "member": self.member, "at": self.at_ms}
        if self.executor is not None:
            note |= {"executor": self.executor[:_TEXT_CHARACTERS_MAX], "warm": self.warm, "since": self.since_ms}
        if self.host is not None:
            note |= {"host": self.host[:_TEXT_CHARACTERS_MAX]}
        return json.dumps(note, separators=(",", ":"))

    @staticmethod
    def decode(text: str) -> SeatNote | None:
        """What `encode` wrote; None for any other text, which is another client's."""
        try:
            note = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(note, dict) or note.get("v") != _VERSION:
            return None
        fields = {"member": str, "at": int, "executor": str, "host": str, "warm": bool, "since": int}
        known = {name: note[name] for name, kind in fields.items() if type(note.get(name)) is kind}
        if not known.keys() >= {"member", "at"}:
            return None
        return SeatNote(
            member=known["member"],
            at_ms=known["at"],
            executor=known.get("executor"),
            host=known.get("host"),
            warm=known.get("warm"),
            since_ms=known.get("since"),
        )
