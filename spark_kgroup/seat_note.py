"""The text that a seat writes beside its committed offsets: the executor that serves it, and the topic's id.

Kafka's OffsetCommit has room for a text of up to offset.metadata.max.bytes (4096) with each offset. Other clients write
their own texts there, or none. A seat writes a note beside one partition of each topic, and a mark beside the rest.
Both name the topic id: OffsetCommit names topics by name, and a topic may have been deleted and created again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_VERSION: Final = 1

_TEXT_CHARACTERS_MAX: Final = 255
"""Longest name of a host. With each character escaped, two of them, a member id and a prefix stay below 4096 bytes."""

_RUN_MAX: Final = 2**53 - 1
"""The largest integer that JSON numbers hold everywhere: a higher number is not that of a run."""

_TOPIC_CHARACTERS: Final = 8
"""How much of a topic's random id each mark has: enough to tell it from the id of an earlier topic of the same name."""

_NUMBER: Final = re.compile("[0-9]{1,9}")

_UUID_CHARACTERS: Final = 36
"""The coordinator names a static member `<instance id>-<uuid>` (ClassicGroup.generateMemberId)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Which application wrote a commit, and which of its runs and seats.

    Attributes:
        app: the prefix of its instance ids: two applications of one group cannot have the same.
        run: number of that run: higher than any that the group or the checkpoint knew of when it started, before it
            joined. Releases up to 0.1.0 wrote when it was started, in ms, which is a high number. None from an older
            release.
        process: mark of the run's process, which no other run with that number has. Empty from a release without it.
        seat: the number of the seat, None where it is not known.
    """

    app: str
    run: int | None = None
    process: str = ""
    seat: int | None = None

    def encode(self, topic_id: str = "") -> str:
        """The mark as text for Kafka, beside offsets of the topic with this id, which may be ""."""
        return _encode(_author_fields(self) | _topic_fields(topic_id))

    @staticmethod
    def of(text: str) -> Author | None:
        """The author of a mark or a note, or None for any other text, which is another client's."""
        note = _decode(text)
        named = _parse_seat(note.get("member"))
        if type(app := note.get("app")) is str:
            return Author(
                app=app,
                run=_number_in(note, "run"),
                process=process if type(process := note.get("process")) is str else "",
                # A member id that the client made itself (KIP-1082) names no seat, and a mark has no member id. The
                # field `seat` does then.
                seat=named[1] if named is not None and named[0] == app else _number_in(note, "seat"),
            )
        return Author(app=named[0], seat=named[1]) if named is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatNote:
    """The executor that served a seat when the seat committed.

    Attributes:
        member: the id of the member that the seat was then. The partition, or the seat, may have another by now.
        author: its application, or None from a release that did not write it.
        executor: Spark's id of the executor, "driver" in local mode, or None if no executor is known.
        host: the executor's.
        warm: whether the seat's own server reads there. If not, each task reads by itself.
        since_ms: since when that executor serves it (wall clock).
        at_ms: when this was written (wall clock).
        topic_id: of the offsets' topic, as text, which `encode` cuts, or "".
    """

    member: str
    at_ms: int
    author: Author | None = None
    executor: str | None = None
    host: str | None = None
    warm: bool | None = None
    since_ms: int | None = None
    topic_id: str = ""

    def encode(self) -> str:
        """As text for Kafka."""
        note: dict[str, Any] = {"member": self.member, "at": self.at_ms}
        if self.author is not None:
            note |= _author_fields(self.author)
        if self.executor is not None:
            note |= {"executor": self.executor[:_TEXT_CHARACTERS_MAX], "warm": self.warm, "since": self.since_ms}
        if self.host is not None:
            note |= {"host": self.host[:_TEXT_CHARACTERS_MAX]}
        return _encode(note | _topic_fields(self.topic_id))

    @staticmethod
    def decode(text: str) -> SeatNote | None:
        """The note that `encode` wrote, or None for any other text, which is a mark, or another client's."""
        note = _decode(text)
        fields = {"member": str, "at": int, "executor": str, "host": str, "warm": bool, "since": int}
        # The exact type, because `True` is an int, too.
        known = {name: note[name] for name, kind in fields.items() if type(note.get(name)) is kind}
        if not known.keys() >= {"member", "at"}:
            return None
        return SeatNote(
            member=known["member"],
            at_ms=known["at"],
            author=Author.of(text) if "app" in note else None,
            executor=known.get("executor"),
            host=known.get("host"),
            warm=known.get("warm"),
            since_ms=known.get("since"),
            topic_id=_topic_in(note),
        )


def topic_mark(topic_id: str) -> str:
    """The text beside offsets of the topic with this id, which names no author. Empty if there is no id."""
    return _encode(_topic_fields(topic_id)) if topic_id else ""


def is_of_topic(text: str, topic_id: str) -> bool | None:
    """Whether a seat's text says that its offset is of the topic with this id, or None if it names no topic id."""
    written = _topic_in(_decode(text))
    return written == topic_id[:_TOPIC_CHARACTERS] if written and topic_id else None


def _author_fields(author: Author) -> dict[str, Any]:
    fields = {"app": author.app, "run": author.run, "process": author.process or None, "seat": author.seat}
    return {name: value for name, value in fields.items() if value is not None}


def _topic_fields(topic_id: str) -> dict[str, Any]:
    return {"topic": topic_id[:_TOPIC_CHARACTERS]} if topic_id else {}


def _topic_in(note: Mapping[str, Any]) -> str:
    return topic if type(topic := note.get("topic")) is str else ""


def _parse_seat(member: object) -> tuple[str, int] | None:
    """The prefix and the number of the seat whose member a coordinator named so."""
    if not isinstance(member, str):
        return None
    prefix, _, number = member[: -_UUID_CHARACTERS - 1].rpartition("-")
    return (prefix, int(number)) if _NUMBER.fullmatch(number) else None


def _number_in(note: Mapping[str, Any], name: str) -> int | None:
    value = note.get(name)
    return value if type(value) is int and 0 <= value <= _RUN_MAX else None


def _encode(fields: Mapping[str, Any]) -> str:
    return json.dumps({"v": _VERSION, **fields}, separators=(",", ":"))


def _decode(text: str) -> Mapping[str, Any]:
    """The fields of a text of ours, none of any other."""
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):  # another client's text may be JSON of any depth
        return {}
    return note if isinstance(note, dict) and note.get("v") == _VERSION else {}
