"""Traces of a query's earlier runs, in its checkpoint and beside the group's committed offsets."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kgroup.offsets.adoption import Writer
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from pyspark_kgroup.offsets.earlier_runs import EarlierRuns, earlier_runs
from spark_kgroup.model import TopicPartition
from spark_kgroup.seat_note import Author, SeatNote

UUID = "6f1c2f0e-6a3b-4c59-8f5e-3a1f6f4f2b10"
WRITTEN = Checkpoint(
    topics={"t": Topic(topic_id="x", first_sight=3)},
    owned={
        TopicPartition("t", index): Owned(
            period=Period(topic_id="x", start=0, seat=f"job-{index}", generation=3), position=9
        )
        for index in range(2)
    },
    group="g",
    app="job",
    run=5,
)


def found(checkpoint: Checkpoint, *texts: str) -> EarlierRuns:
    return earlier_runs(checkpoint, texts, group="g", app="job")


@pytest.mark.parametrize(
    ("checkpoint", "texts", "expected"),
    [
        (EMPTY, [], EarlierRuns()),
        (EMPTY, ["", "by hand", Author(app="blue", run=9, seat=1).encode()], EarlierRuns()),
        (EMPTY, [Author(app="job").encode()], EarlierRuns()),
        (EMPTY, [Author(app="job", run=7, seat=4).encode()], EarlierRuns(last=7, seats=frozenset({"job-4"}))),
        (WRITTEN, [], EarlierRuns(last=5, seats=frozenset({"job-0", "job-1"}))),
        (replace(WRITTEN, group="another"), [], EarlierRuns(last=5)),
        (replace(WRITTEN, app="blue"), [], EarlierRuns(last=5)),
        (replace(WRITTEN, run=0, app=""), [], EarlierRuns(seats=frozenset({"job-0", "job-1"}))),
        (
            WRITTEN,
            [Author(app="job", run=7, seat=4).encode(), Author(app="job", run=6, seat=1).encode()],
            EarlierRuns(last=7, seats=frozenset({"job-0", "job-1", "job-4"})),
        ),
        (
            EMPTY,
            [SeatNote(member=f"job-2-{UUID}", at_ms=1).encode(), Author(app="job", run=1_700_000_000_000).encode()],
            EarlierRuns(last=1_700_000_000_000, seats=frozenset({"job-2"})),
        ),
    ],
    ids=[
        "nothing",
        "of others",
        "of an older release",
        "of a run",
        "of the checkpoint",
        "of another group's checkpoint",
        "of another prefix's checkpoint",
        "of an older release's checkpoint",
        "of both",
        "of the last release",
    ],
)
def test_earlier_runs_are_known_by_the_texts_beside_their_offsets(
    checkpoint: Checkpoint, texts: list[str], expected: EarlierRuns
) -> None:
    assert found(checkpoint, *texts) == expected


RUNS = st.integers(0, 50) | st.integers(1_600_000_000_000, 1_800_000_000_000)
"""Numbers of runs, or the time of a run's start in ms since the epoch, which some releases wrote instead."""


@given(
    st.lists(st.builds(Author, app=st.just("job"), run=st.none() | RUNS, process=st.sampled_from(["", "a", "b"]))),
    st.integers(0, 50),
)
def test_a_run_is_newer_than_all_that_it_finds_and_two_that_find_the_same_are_after_each_other(
    before: list[Author], in_checkpoint: int
) -> None:
    last = found(replace(WRITTEN, run=in_checkpoint), *(author.encode() for author in before)).last
    one, another = (Author(app="job", run=last + 1, process=process) for process in ("one", "another"))
    assert {Writer.of(author.encode(), one) for author in before} <= {Writer.US}
    assert Writer.of(replace(one, seat=3).encode(), one) is Writer.US
    assert Writer.of(another.encode(), one) is Writer.of(one.encode(), another) is Writer.SUCCESSOR
