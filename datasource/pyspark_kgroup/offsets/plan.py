"""The ranges that a micro-batch reads: decided by its two offsets alone, on every replay, even with other owners.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from pyspark_kgroup.limits import RECORD_BYTES_UNKNOWN
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from spark_kgroup.model import TopicDescription, TopicPartition

Ranges = dict[TopicPartition, tuple[int, int]]
"""Partition -> (first offset, one past the last)."""


class Limit(NamedTuple):
    """The most that one batch may take, None for any number.

    Attributes:
        offsets: of all partitions together (`maxOffsetsPerTrigger`).
        size_bytes: of their records, by the sizes that are known of each topic (`maxBytesPerTrigger`).
    """

    offsets: int | None = None
    size_bytes: int | None = None


NO_LIMIT: Final = Limit()


def ranges_by_seat(start: Checkpoint, end: Checkpoint) -> dict[str, Ranges]:
    """The ranges between `start` and `end`, by the instance id of the seat that owned the partitions.

    For each partition in `end`: from where `start` stands if both are the same ownership period, else from where the
    period in `end` began. Seats without data are absent.

    Raises:
        AssertionError: `end` lies before `start` within one period: a bug, never a user's fault.
    """
    plan: dict[str, Ranges] = {}
    for partition, owned in sorted(end.owned.items()):
        before = start.owned.get(partition)
        first = before.position if before is not None and before.period == owned.period else owned.period.start
        assert owned.position >= first, f"{partition} would run backwards: {first} to {owned.position}"
        if owned.position > first:
            plan.setdefault(owned.period.seat, {})[partition] = (first, owned.position)
    return plan


def positions_by_seat(
    end: Checkpoint, topics: Mapping[str, TopicDescription]
) -> dict[str, list[tuple[TopicPartition, int, str]]]:
    """The partitions that each seat owns at `end`: (partition, where the next batch will begin, the log's tag).

    Records fetched under another tag may not be those that the log has now: the topic was created anew, or the
    partition has another leader (KIP-320), which after an unclean election may have other records at the same offsets.
    `topics` are those that brokers show now. An epoch that they do not tell is not in the tag.
    """
    owned: dict[str, list[tuple[TopicPartition, int, str]]] = {}
    for at, held in sorted(end.owned.items()):
        epoch = topics[at.topic].leader_epochs.get(at.partition) if at.topic in topics else None
        tag = end.topics[at.topic].topic_id + ("" if epoch is None else f"/{epoch}")
        owned.setdefault(held.period.seat, []).append((at, held.position, tag))
    return owned


def apply_limit(
    available: Mapping[TopicPartition, tuple[int, int]], limit: int | None, after: TopicPartition | None = None
) -> dict[TopicPartition, int]:
    """End offsets that take at most `limit` offsets in all, shared in proportion to what each partition has.

    Each partition that has offsets takes at least one: a long backlog in one partition must not hold up a single
    record in another (Spark's KafkaMicroBatchStream.rateLimit rounds small shares up likewise). If there is no room for
    that, `limit` partitions take one each, in turn.

    Args:
        available: partition -> (position, end offset), position <= end offset.
        limit: offsets for the whole batch (Spark's maxOffsetsPerTrigger), at least 1, or None to take all.
        after: the partition that had the last turn, or None if that is not known.

    Returns:
        Partition -> new position. If `limit` cuts, exactly `limit` offsets are taken.
    """
    sizes = {tp: end - position for tp, (position, end) in available.items() if end > position}
    if limit is None or sum(sizes.values()) <= limit:
        return {tp: end for tp, (_, end) in available.items()}
    if len(sizes) > limit:
        turn = set(_turns(available, sizes, after)[:limit])
        return {tp: position + (tp in turn) for tp, (position, _) in available.items()}
    spare = limit - len(sizes)
    rest = {tp: size - 1 for tp, size in sizes.items()}
    total = sum(rest.values())
    shares = {tp: 1 + size * spare // total for tp, size in rest.items()}
    # Offsets that rounding left over go to the largest remainders.
    by_remainder = sorted(rest, key=lambda tp: (-(rest[tp] * spare % total), tp))
    for tp in by_remainder[: limit - sum(shares.values())]:
        shares[tp] += 1
    return {tp: position + shares.get(tp, 0) for tp, (position, _) in available.items()}


def apply_limit_in_bytes(
    available: Mapping[TopicPartition, tuple[int, int]],
    limit: int | None,
    record_bytes: Callable[[str], float | None],
    after: TopicPartition | None = None,
) -> dict[TopicPartition, int]:
    """End offsets that take at most `limit` bytes in all, shared as `apply_limit` shares offsets.

    A batch takes one record at least, however large. In a topic of which no record was read yet, each record counts as
    large as brokers allow by default. Only one of its partitions, in turn, takes part: it is enough to know better.

    Args:
        available: as of `apply_limit`.
        limit: bytes for the whole batch, at least 1, or None to take all.
        record_bytes: the bytes of a topic's record, or None if they are not known.
        after: as of `apply_limit`.

    Returns:
        Partition -> new position.
    """
    counts = {tp: end - position for tp, (position, end) in available.items() if end > position}
    known = {topic: record_bytes(topic) for topic in {tp.topic for tp in counts}}
    one = {tp: known[tp.topic] or RECORD_BYTES_UNKNOWN for tp in counts}
    if limit is None or sum(counts[tp] * one[tp] for tp in counts) <= limit:
        return {tp: end for tp, (_, end) in available.items()}
    # Reversed, so that of each topic the partition that is first in turn remains.
    probed = {tp.topic: tp for tp in reversed(_turns(available, counts, after)) if known[tp.topic] is None}
    counts = {tp: count for tp, count in counts.items() if probed.get(tp.topic, tp) == tp}
    one = {tp: one[tp] for tp in counts}
    spare = limit - sum(one.values())
    if spare >= 0:
        rest = {tp: (counts[tp] - 1) * one[tp] for tp in counts}
        total = sum(rest.values()) or 1  # 0: each partition that takes part has one record
        shares = {tp: min(counts[tp], 1 + int(size * spare / total / one[tp])) for tp, size in rest.items()}
        return {tp: position + shares.get(tp, 0) for tp, (position, _) in available.items()}
    turn: set[TopicPartition] = set()
    left: float = limit
    for tp in _turns(available, counts, after):
        if turn and one[tp] > left:
            break
        turn.add(tp)
        left -= one[tp]
    return {tp: position + (tp in turn) for tp, (position, _) in available.items()}


def _turns(
    available: Mapping[TopicPartition, tuple[int, int]],
    with_data: Iterable[TopicPartition],
    after: TopicPartition | None,
) -> list[TopicPartition]:
    """The partitions with data in the order of their turns, for a batch without room for a record of each."""
    order = in_turn(with_data, after)
    # A query that came back does not remember the last turn. The sum of all positions grows with each such batch, by as
    # many records as it takes, so the sum says whose turn it is. If each restart began with the first partition, the
    # last one would starve.
    first = 0 if after is not None else sum(position for position, _ in available.values()) % len(order)
    return order[first:] + order[:first]


def in_turn(partitions: Iterable[TopicPartition], after: TopicPartition | None) -> list[TopicPartition]:
    """`partitions` in order, from the first behind `after` on, and round."""
    return sorted(partitions, key=lambda tp: (after is not None and tp <= after, tp))
