"""The checks of `make chaos`: a sound run passes all of them, and each way to break a promise is caught by name."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest
from chaos.checks import spans, verdict
from chaos.evidence import (
    ApplicationEvidence,
    Batch,
    Commit,
    Delivered,
    Evidence,
    Expulsion,
    Failure,
    Join,
    PeerEvidence,
    Span,
)
from chaos.history_of import facts_of
from history import promises
from history.facts import ABORTED, ACKNOWLEDGED, History, Produced, Recreated
from history.promises import Violation

from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from spark_kgroup.model import TopicPartition

TP = TopicPartition("orders", 0)
READ_AGAIN = "records are read again only after a loss"
NOT_READ = ["no record is lost", "commits are not ahead"]
TOPICS = {"orders": Topic(topic_id="id", first_sight=1)}
MARKER = 9
"""An offset without a record: a transaction's marker."""


def value(offset: int) -> bytes:
    return f"record {offset}".encode()


def rows(offsets: Iterable[int]) -> list[Delivered]:
    return [Delivered(TP, offset, value(offset)) for offset in offsets if offset != MARKER]


def owned(first: int, position: int, *, seat: str = "main-0", generation: int = 1) -> Checkpoint:
    period = Period(topic_id="id", start=first, seat=seat, generation=generation)
    return Checkpoint(topics=TOPICS, owned={TP: Owned(period=period, position=position)})


def gone(lost: int | None = None) -> Checkpoint:
    return Checkpoint(topics=TOPICS, lost={} if lost is None else {TP: lost})


def batches(*ends: Checkpoint) -> list[Batch]:
    """One batch a second, the first planned at 1."""
    starts = [EMPTY, *ends]
    return [
        Batch(number=n, start=starts[n], end=end, wall_planned_at_s=n + 1.0, done=True) for n, end in enumerate(ends)
    ]


def main(*ends: Checkpoint, read: Iterable[int], **more: Any) -> ApplicationEvidence:
    return ApplicationEvidence(name="main", batches=batches(*ends), rows=rows(read), **more)


def sent(offset: int, fate: str) -> Produced:
    return Produced("ada", offset, *TP, value(offset).decode(), fate, 0.0)


def run(*applications: ApplicationEvidence, count: int = 20, **more: Any) -> Evidence:
    records = {offset: value(offset) for offset in range(count) if offset != MARKER}
    return Evidence(
        topics={TP: records},
        log_ends={TP: count},
        produced=[*map(sent, records, repeat(ACKNOWLEDGED)), sent(MARKER, ABORTED)],
        applications=applications,
        **{"commits": committed(count), **more},
    )


def committed(*offsets: int, wall_at_s: float = 100.0) -> list[Commit]:
    """Commits after all batches."""
    return [Commit(TP, offset, wall_at_s) for offset in offsets]


def judged(evidence: Evidence) -> dict[str, list[Violation]]:
    """Violations by the checks of the product's own books, and by the promises of records."""
    return verdict(evidence) | promises.verdict(History.of(facts_of(evidence)))


def broken(evidence: Evidence) -> list[str]:
    """The checks that fail, and the promises that were not kept."""
    return [name for name, violations in judged(evidence).items() if violations]


SOUND = run(main(owned(0, 8), owned(0, 20), read=range(20)))

EXPELLED = Expulsion(seat="main-0", wall_from_s=2.5, wall_to_s=2.5)
"""Between the second batch and the third."""


def lost_after_12(expulsions: list[Expulsion], third: Checkpoint, theirs: Iterable[int]) -> Evidence:
    """Main reads 0..7 and 8..11, then no longer owns the partition. Another consumer reads `theirs`."""
    ours = main(owned(0, 8), owned(0, 12), third, read=range(12), expulsions=expulsions)
    return run(ours, peers=[PeerEvidence(name="peer", rows=rows(theirs))])


def test_a_sound_run_keeps_every_promise() -> None:
    assert broken(SOUND) == []


def test_a_hand_over_keeps_every_promise() -> None:
    assert broken(lost_after_12([], gone(), range(12, 20))) == []


def test_after_a_loss_the_one_unfinished_batch_may_be_read_again() -> None:
    assert broken(lost_after_12([EXPELLED], gone(lost=12), range(8, 20))) == []


def test_a_lost_partition_that_came_back_to_its_seat_may_be_read_again_too() -> None:
    back = owned(12, 20, generation=3)
    ours = main(owned(0, 8), owned(0, 12), back, read=range(20), expulsions=[EXPELLED])
    assert broken(run(ours, peers=[PeerEvidence(name="peer", rows=rows(range(8, 12)))])) == []


@pytest.mark.parametrize(
    ("third", "theirs", "kept"),
    [
        (owned(12, 12, generation=3), range(8, 20), True),
        (owned(12, 12, generation=3), range(7, 20), False),
        (owned(12, 16, generation=3), range(8, 20), False),
    ],
    ids=["it waits", "more than that batch", "it has gone on"],
)
def test_unacknowledged_records_may_be_read_again_until_the_next_period_goes_on(
    third: Checkpoint, theirs: Iterable[int], kept: bool
) -> None:
    """1. Main is back with its own position, and waits for the group to acknowledge it. 2. It is expelled then."""
    expelled = replace(EXPELLED, wall_from_s=3.5, wall_to_s=3.5)
    read = range(third.owned[TP].position)
    ours = main(owned(0, 8), owned(0, 12), third, gone(lost=len(read)), read=read, expulsions=[expelled])
    evidence = run(ours, peers=[PeerEvidence(name="peer", rows=rows(theirs))])
    assert broken(evidence) == ([] if kept else [READ_AGAIN])


@pytest.mark.parametrize(
    ("acknowledged", "wall_at_s", "theirs", "kept"),
    [
        (8, 2.4, range(8, 20), True),
        (12, 2.4, range(8, 20), False),
        (12, 2.6, range(8, 20), True),
        (10, 2.4, range(10, 20), True),
        (10, 2.4, range(8, 20), False),
    ],
    ids=["the batch before", "all", "by the next owner", "half of it, as agreed", "half of it, and more was read"],
)
def test_only_records_uncommitted_before_the_loss_may_be_read_again(
    acknowledged: int, wall_at_s: float, theirs: Iterable[int], kept: bool
) -> None:
    evidence = lost_after_12([EXPELLED], gone(lost=12), theirs)
    commits = [*committed(acknowledged, wall_at_s=wall_at_s), *committed(20)]
    assert broken(replace(evidence, commits=commits)) == ([] if kept else [READ_AGAIN])


@pytest.mark.parametrize("acknowledged", [16, 18])
def test_an_outage_long_before_the_loss_does_not_excuse_it(acknowledged: int) -> None:
    """Nine batches of two records, a second apart. The seat was cut off for a moment, and lost no partition by that."""
    cut_off = replace(EXPELLED, wall_from_s=1.5, wall_to_s=1.9)
    expelled = replace(EXPELLED, wall_from_s=9.5, wall_to_s=9.5)
    ends = [owned(0, position) for position in range(2, 20, 2)]
    ours = main(*ends, gone(lost=18), read=range(18), expulsions=[cut_off, expelled])
    commits = [*committed(acknowledged, wall_at_s=9.0), *committed(20)]
    evidence = run(ours, peers=[PeerEvidence(name="peer", rows=rows(range(16, 20)))], commits=commits)
    assert broken(evidence) == ([] if acknowledged == 16 else [READ_AGAIN])


def test_more_than_the_unfinished_batch_may_not_be_read_again() -> None:
    evidence = lost_after_12([EXPELLED], gone(lost=12), range(7, 20))
    assert broken(evidence) == [READ_AGAIN]
    (violation,) = judged(evidence)[READ_AGAIN]
    assert "7..7" in violation.what


@pytest.mark.parametrize(
    ("expulsions", "third"),
    [
        ([], gone(lost=12)),
        ([EXPELLED], gone()),
        ([replace(EXPELLED, seat="main-1")], gone(lost=12)),
        ([replace(EXPELLED, wall_from_s=3.5, wall_to_s=9.0)], gone(lost=12)),
        ([], owned(12, 12, generation=3)),
    ],
    ids=["never expelled", "handed over", "another seat", "expelled later", "held, in a new generation"],
)
def test_without_a_loss_no_record_is_read_twice(expulsions: list[Expulsion], third: Checkpoint) -> None:
    assert broken(lost_after_12(expulsions, third, range(8, 20))) == [READ_AGAIN]


def test_a_peer_that_lost_its_membership_may_have_its_uncommitted_records_read_again() -> None:
    ours = main(owned(8, 20), read=range(8, 20))
    peer = PeerEvidence(name="peer", rows=rows(range(12)), exposed=[Span(TP, 8, 12)])
    assert broken(run(ours, peers=[peer])) == []
    assert broken(run(ours, peers=[replace(peer, exposed=[Span(TP, 9, 12)])])) == [READ_AGAIN]


def test_a_commit_of_a_topics_earlier_life_does_not_count_in_its_next_one() -> None:
    """Committed up to 15 there, it would say that offsets 8..11 were no longer unfinished when they were lost."""
    earlier = {offset: f"earlier {offset}".encode() for offset in range(15)}
    read = [Delivered(TP, offset, record) for offset, record in earlier.items()]
    lost = lost_after_12([EXPELLED], gone(lost=12), range(8, 20))
    peer = PeerEvidence(name="peer", rows=[*read, *rows(range(8, 20))])
    commits = [*committed(15, wall_at_s=0.2), *committed(20)]
    sent_earlier = [Produced("eve", n, *TP, record.decode(), ACKNOWLEDGED, 0.0) for n, record in earlier.items()]
    produced = [*sent_earlier, *lost.produced]
    again = replace(lost, peers=[peer], commits=commits, produced=produced, earlier=[{TP: earlier}])
    assert broken(replace(again, recreated=[Recreated(TP.topic, 0.5)])) == []
    assert READ_AGAIN in broken(replace(again, recreated=[Recreated(TP.topic, 2.7)]))


def test_two_losers_may_have_read_records_that_a_third_one_keeps_but_not_records_that_two_keep() -> None:
    first = main(owned(0, 8), owned(0, 12), gone(lost=12), read=range(12), expulsions=[EXPELLED])
    loser = PeerEvidence(name="loser", rows=rows(range(8, 12)), exposed=[Span(TP, 8, 12)])
    keeper = PeerEvidence(name="keeper", rows=rows(range(8, 20)))
    assert broken(run(first, peers=[loser, keeper])) == []
    assert broken(run(first, peers=[loser, keeper, replace(keeper, name="other")])) == [READ_AGAIN]


def test_a_batch_that_was_not_begun_may_be_missing_but_not_half_of_it() -> None:
    planned = batches(owned(0, 8), owned(0, 12))
    left = [planned[0], replace(planned[1], done=False)]
    application = replace(main(read=range(8)), batches=left)
    peer = PeerEvidence(name="peer", rows=rows(range(8, 20)))
    assert broken(run(application, peers=[peer])) == []
    half = replace(application, rows=rows(range(10)), expulsions=[EXPELLED])
    assert broken(run(half, peers=[peer])) == ["a batch delivers what was planned"]
    done = replace(application, batches=planned)
    assert broken(run(done, peers=[peer])) == ["a batch delivers what was planned"]


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (run(main(owned(0, 20), read=[*range(20), 5])), ["no record is sunk twice", "rows are in order"]),
        (
            run(main(owned(0, 20), read=range(1, 20))),
            ["a batch delivers what was planned", *NOT_READ],
        ),
        (run(main(owned(1, 20), read=range(1, 20))), NOT_READ),
        (run(main(owned(0, 19), read=range(20))), ["a batch delivers what was planned"]),
        (
            run(main(owned(0, 8), owned(7, 20, generation=2), read=range(20))),
            ["ranges do not overlap"],
        ),
        (
            run(main(owned(0, 8), gone(), owned(0, 8), owned(0, 20), read=range(20))),
            ["ranges do not overlap", "ranges are contiguous within a period"],
        ),
        (
            run(replace(SOUND.applications[0], batches=SOUND.applications[0].batches[1:])),
            ["a batch delivers what was planned"],
        ),
        (replace(SOUND, commits=committed(12, 8, 20)), ["commits never go back"]),
        (replace(SOUND, commits=committed(12)), ["lag is zero"]),
        (replace(SOUND, commits=[]), ["lag is zero"]),
        (replace(SOUND, processes_left=["java"]), ["no process is left"]),
        (run(replace(SOUND.applications[0], failures=[Failure("ended by itself")])), ["members live"]),
        (replace(SOUND, peers=[PeerEvidence(name="peer", rows=[], failures=[Failure("died")])]), ["members live"]),
        (
            replace(SOUND, produced=[*SOUND.produced, sent(99, ACKNOWLEDGED)]),
            ["acknowledged records are stored"],
        ),
        (
            replace(SOUND, produced=[r._replace(fate=ABORTED) if r.number == 3 else r for r in SOUND.produced]),
            ["acknowledged records are stored"],
        ),
    ],
    ids=[
        "delivered twice",
        "not delivered",
        "never planned by anybody",
        "delivered and not planned",
        "two periods overlap",
        "a period comes back",
        "the first batch is missing",
        "rewound",
        "behind",
        "never committed",
        "a process is left",
        "a query died",
        "a peer died",
        "a record is lost in the log",
        "an aborted record is in the log",
    ],
)
def test_each_broken_promise_is_caught(evidence: Evidence, expected: list[str]) -> None:
    assert broken(evidence) == expected


def test_an_aborted_record_that_was_delivered_is_caught() -> None:
    application = replace(SOUND.applications[0], rows=[*rows(range(20)), Delivered(TP, MARKER, value(MARKER))])
    assert broken(run(application)) == ["a batch delivers what was planned", "rows are records"]


def test_a_record_with_another_value_is_caught() -> None:
    application = replace(SOUND.applications[0], rows=[Delivered(TP, 0, b"other"), *rows(range(1, 20))])
    assert broken(run(application)) == ["rows are records", *NOT_READ]


def test_a_batch_that_does_not_start_where_the_last_ended_is_caught() -> None:
    first, second = batches(owned(0, 8), owned(0, 20))
    moved = replace(second, start=owned(0, 8, generation=2), end=owned(0, 20, generation=2))
    application = replace(SOUND.applications[0], batches=[first, moved])
    assert broken(run(application)) == ["ranges are contiguous within a period"]


def test_spans_bridge_a_transactions_marker() -> None:
    assert spans([(TP, 3), (TP, 4), (TP, 6), (TP, 9)]) == [Span(TP, 3, 7), Span(TP, 9, 10)]


@pytest.mark.parametrize(
    ("joins", "kept"),
    [
        ([Join("main-0", second) for second in range(300)], True),
        ([Join(f"main-{seat}", 0.5 * seat) for seat in range(200)], True),
        ([Join("main-0", 100 + 0.5 * number) for number in range(100)], False),
    ],
    ids=["one a second", "each of many seats once", "two a second"],
)
def test_a_seat_that_joins_more_than_once_a_second_for_a_minute_is_caught(joins: list[Join], kept: bool) -> None:
    evidence = run(replace(SOUND.applications[0], joins=joins))
    assert broken(evidence) == ([] if kept else ["joins are bounded"])
