"""Gathers the evidence of a run: checkpoints, sinks, the topics, the coordinator's log, the brokers' own logs."""

import json
import re
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from harness.application import sink_files
from harness.kafka import messages, place_of
from history.facts import Warned

from chaos.evidence import ApplicationEvidence, Batch, Commit, Delivered, Expulsion, Join
from chaos.queries import Query
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from spark_kgroup.model import TopicPartition

_OFFSET_COMMIT_KEYS: Final = (0, 1)
_NOTE_BEGINS: Final = b'{"v":1,'
"""Beside an offset that a seat has committed (`seat_note`)."""

_REMOVED: Final = re.compile(
    r"^(?P<at>\S+ \S+),(?P<ms>\d+) .*(?:"
    r"Member (?P<member>\S+) in group (?P<group>\S+) has failed, removing it"
    r"|\[GroupId (?P<group_848>\S+)\] Member (?P<member_848>\S+) fenced from the group because)"
)
"""Kafka: GroupMetadataManager, a member's session is over, in a group of type classic or consumer."""

_SEAT_IN_MEMBER_ID: Final = re.compile(r"(?P<seat>\S+)-[0-9a-f]{8}-[0-9a-f-]{27}")
"""The member id of a static member that joined a classic group: its instance id and a UUID."""

_NAMED: Final = re.compile(
    r"Static member (?:(?P<member>\S+) )?with instance id (?P<seat>\S+) (?:re-)?joins the consumer group"
    r"(?:.* Created a new member (?P<successor>\S+) )?"
)
"""Kafka: GroupMetadataManager.getOrMaybeSubscribeStaticConsumerMember. A group of type consumer gives bare UUIDs."""


_CONVERTED: Final = re.compile(
    r"^(?P<at>\S+ \S+),(?P<ms>\d+) .*\[GroupId (?P<group>\S+)\] Converted the classic group to a consumer group"
)
"""Kafka: GroupMetadataManager.convertToConsumerGroup. The assignments of the last generation are taken over. A
partition that a cooperative member had been asked for, and claimed in its last join since it still read it, then has no
owner."""

_COMING_BACK: Final = re.compile(
    r"^(?P<at>\S+ \S+),(?P<ms>\d+) .*\[GroupId (?P<group>\S+)\] "
    r"Static member (?:\S+ )?with instance id (?P<seat>\S+) "
    r"(?P<does>cannot join|temporarily left|re-joins the consumer group using the consumer protocol)"
)
"""Kafka: GroupMetadataManager. A driver that is back finds its seat taken, releases it as that member, and joins."""

_TARGET: Final = re.compile(
    r"^(?P<at>\S+ \S+),(?P<ms>\d+) .*\[GroupId (?P<group>\S+)\] Computed a new target assignment for epoch"
)
"""Kafka: GroupMetadataManager.maybeUpdateTargetAssignment."""

_DESCRIBED_AGO_MAX_S: Final = 1.0
"""How long before its first join a driver may have looked which of its partitions the group wants for others."""

_TARGET_LATE_MAX_S: Final = 0.1
"""How much later than the line of the join the line of the target may be that the join was answered from."""

_JOINED: Final = re.compile(r"(?P<at>[0-9.]+) seat (?P<seat>\S+) joins the next generation: ")
"""`spark_kgroup.runtime.seats`, behind the time that `harness.stop_points` puts before a line."""


def application_evidence(query: Query, expulsions: Sequence[Expulsion]) -> ApplicationEvidence:
    """All that a query leaves in its folder. It must not run any more."""
    return ApplicationEvidence(
        name=query.name,
        batches=list(planned_batches(query.folder / "checkpoint")),
        rows=list(sunk(query.folder)),
        expulsions=[*expulsions, *query.expulsions()],
        failures=query.failures,
        joins=list(joins(query.folder / "members.log")),
        warnings=list(warnings(query.name, query.folder / "warnings.log")),
    )


def sunk(folder: Path) -> Iterator[Delivered]:
    """The rows of a query's sink, batch by batch, each file in its own order."""
    for file in sink_files(folder):
        for row in file.rows:
            place = TopicPartition(row.topic, row.partition)
            yield Delivered(place, row.offset, row.value, row.batch_id, file.path.name, file.wall_shown_at_s)


def warnings(query: str, log: Path) -> Iterator[Warned]:
    """Every warning of a query, as `harness.stop_points` keeps them: a time and one line."""
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        at, _, words = line.partition(" ")
        yield Warned(query, words, float(at))


def joins(log: Path) -> Iterator[Join]:
    """Every time that a seat joined anew while it ran, as its member logged it."""
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if (match := _JOINED.match(line)) is not None:
            yield Join(match["seat"], float(match["at"]))


def planned_batches(checkpoint: Path) -> Iterator[Batch]:
    """Every batch in Spark's offset log, by number."""
    start = EMPTY
    for path in _numbered(checkpoint / "offsets"):
        # The version, Spark's own metadata, and then one line for each source: there is one.
        end = Checkpoint.from_json(json.loads(path.read_text().splitlines()[2]))
        yield Batch(
            number=int(path.name),
            start=start,
            end=end,
            wall_planned_at_s=path.stat().st_mtime,
            done=(checkpoint / "commits" / path.name).exists(),
        )
        start = end


def _numbered(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []
    return sorted(found, key=lambda path: int(path.name))


def committed_records(bootstrap: str, topic: str) -> dict[TopicPartition, dict[int, bytes]]:
    """The records that a read_committed reader finds: partition -> offset -> value."""
    found: dict[TopicPartition, dict[int, bytes]] = {}
    for message in messages(bootstrap, topic):
        (partition, offset), value = place_of(message), message.value()
        assert value is not None, "chaos writes no tombstones"
        found.setdefault(TopicPartition(topic, partition), {})[offset] = value
    return found


def log_ends(bootstrap: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """One past the last offset of each partition, markers included."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
    try:
        return {tp: consumer.get_watermark_offsets(KafkaPartition(*tp), timeout=30)[1] for tp in partitions}
    finally:
        consumer.close()


def group_commits(bootstrap: str, group: str) -> list[Commit]:
    """Every offset commit of the group, in order."""
    found = []
    for message in messages(bootstrap, "__consumer_offsets"):
        key = message.key()
        assert key is not None, "a compacted topic"
        if (commit := commit_of(group, key, message.value(), message.timestamp()[1] / 1000)) is not None:
            found.append(commit)
    return found


def commit_of(group: str, key: bytes, value: bytes | None, wall_at_s: float) -> Commit | None:
    """A record of the group's log, or None if it is no commit of this group (OffsetCommitKey, OffsetCommitValue).

    Args:
        value: of the record, or None for the deletion of an offset.
    """
    version, length = struct.unpack_from(">hh", key)
    at = 4 + length
    if version not in _OFFSET_COMMIT_KEYS or key[4:at].decode() != group or value is None:
        return None
    (topic_length,) = struct.unpack_from(">h", key, at)
    topic = key[at + 2 : at + 2 + topic_length].decode()
    (partition,) = struct.unpack_from(">i", key, at + 2 + topic_length)
    _, offset = struct.unpack_from(">hq", value)
    return Commit(TopicPartition(topic, partition), offset, wall_at_s, by_us=_NOTE_BEGINS in value)


def expulsions_by_brokers(logs: Sequence[Path], group: str) -> list[Expulsion]:
    """Which seats the coordinators removed, and when, by their own logs."""
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    seats = {match["member"] or match["successor"]: match["seat"] for line in lines if (match := _NAMED.search(line))}
    found = []
    for line in lines:
        if (match := _REMOVED.match(line)) is None or group not in match.group("group", "group_848"):
            continue
        member = match["member"] or match["member_848"]
        in_id = _SEAT_IN_MEMBER_ID.fullmatch(member)
        if seat := in_id["seat"] if in_id else seats.get(member):
            wall_at_s = _wall_at_s(match)
            found.append(Expulsion(seat=seat, wall_from_s=wall_at_s, wall_to_s=wall_at_s))
    return found


def conversions(logs: Sequence[Path], group: str) -> list[float]:
    """When the coordinators converted the group to type consumer (wall clock, in seconds)."""
    lines = (line for log in logs for line in log.read_text(errors="replace").splitlines())
    return [_wall_at_s(match) for line in lines if (match := _CONVERTED.match(line)) and match["group"] == group]


def given_away_at_a_return(logs: Sequence[Path], group: str) -> list[Expulsion]:
    """Targets that the coordinator made in the moments in which seats came back (docs/explain/promises.md).

    A driver looks once which of its partitions the group wants for others, and keeps those until their batch is done.
    What a target takes after this look, and before the join, is another member's at once.
    """
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    found = [match for line in lines if (match := _TARGET.match(line)) and match["group"] == group]
    targets_at_s = [_wall_at_s(match) for match in found]
    return [
        Expulsion(seat=seat, wall_from_s=at_s, wall_to_s=at_s, given_away=True)
        for seat, began_at_s, joined_at_s in _returns(lines, group)
        for at_s in targets_at_s
        if began_at_s - _DESCRIBED_AGO_MAX_S <= at_s <= joined_at_s + _TARGET_LATE_MAX_S
    ]


def _returns(lines: Sequence[str], group: str) -> Iterator[tuple[str, float, float]]:
    """(seat, when it first asked to join, when it had joined) of each seat that came back, on the wall clock."""
    began_at_s: dict[str, float] = {}
    for line in lines:
        if (match := _COMING_BACK.match(line)) is None or match["group"] != group:
            continue
        at_s, seat = _wall_at_s(match), match["seat"]
        if match["does"].startswith("re-joins"):
            yield seat, began_at_s.pop(seat, at_s), at_s
        else:
            began_at_s.setdefault(seat, at_s)


def _wall_at_s(match: re.Match[str]) -> float:
    return time.mktime(time.strptime(match["at"], "%Y-%m-%d %H:%M:%S")) + int(match["ms"]) / 1000


def processes_with(marker: str) -> list[tuple[int, str]]:
    """(pid, command line) of every process whose environment has `marker`, but for this one and the dead."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and marker.encode() in (process / "environ").read_bytes():
                found.append((int(process.name), (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except OSError:
            continue  # it has ended, or is another user's
    return found
