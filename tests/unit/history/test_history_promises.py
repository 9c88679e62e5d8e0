"""The judge of a run's history: a sound history keeps every promise, and each planted violation is found by name."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from history.facts import (
    ABORTED,
    ACKNOWLEDGED,
    UNKNOWN,
    Committed,
    Ended,
    Exposed,
    History,
    Lasting,
    Left,
    LogEnd,
    Produced,
    Read,
    Recreated,
    Stored,
    Sunk,
    Warned,
)
from history.promises import Stretch, stretches, verdict

TOPIC = "orders"
COUNT = 20
MARKER = 9
"""An offset without a record: a transaction's marker."""

OFFSETS = [offset for offset in range(COUNT) if offset != MARKER]


def value(offset: int, life: str = "") -> str:
    return f"record {life}{offset}"


def produced(offsets: Iterable[int], fate: str = ACKNOWLEDGED, life: str = "") -> list[Produced]:
    """One record a second."""
    return [Produced("ada", offset, TOPIC, 0, value(offset, life), fate, 1.0 + offset) for offset in offsets]


def stored(offsets: Iterable[int], life: str = "") -> list[Stored]:
    return [Stored(TOPIC, 0, offset, value(offset, life)) for offset in offsets]


def sunk(offsets: Iterable[int], batch: int = 0, reader: str = "main", at: float | None = None) -> list[Sunk]:
    """Half a second after each was produced, unless all at once."""
    return [
        Sunk(reader, TOPIC, 0, offset, value(offset), batch, "part-0", 1.5 + offset if at is None else at)
        for offset in offsets
    ]


def read(offsets: Iterable[int], reader: str = "peer") -> list[Read]:
    return [Read(reader, TOPIC, 0, offset, value(offset), 1.5 + offset) for offset in offsets]


def commit(offset: int, at: float | None = None) -> Committed:
    return Committed(TOPIC, 0, offset, 1.0 + offset if at is None else at)


SOUND = History(
    produced=[*produced(OFFSETS), Produced("ada", 98, TOPIC, 0, "aborted", ABORTED, 30.0)],
    stored=stored(OFFSETS),
    sunk=[*sunk(OFFSETS[:8], 0), *sunk(OFFSETS[8:], 1)],
    committed=[commit(0), commit(8), commit(COUNT)],
    logend=[LogEnd(TOPIC, 0, COUNT)],
)


def broken(history: History) -> list[str]:
    """The promises that were not kept."""
    return [name for name, violations in verdict(history).items() if violations]


def test_a_sound_history_keeps_every_promise() -> None:
    assert broken(SOUND) == []


PLANTED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an acknowledged record is not in the log": (
        {"produced": [*SOUND.produced, Produced("ada", 99, TOPIC, 0, "gone", ACKNOWLEDGED, 40.0)]},
        ["acknowledged records are stored"],
    ),
    "an aborted record is in the log": (
        {"produced": [*produced(OFFSETS[:-1]), *produced(OFFSETS[-1:], ABORTED)]},
        ["acknowledged records are stored"],
    ),
    "a record is in the log twice": (
        {
            "stored": [*SOUND.stored, Stored(TOPIC, 0, COUNT, value(19))],
            "sunk": [*SOUND.sunk, Sunk("main", TOPIC, 0, COUNT, value(19), 2, "part-0", 22.0)],
            "committed": [*SOUND.committed, commit(COUNT + 1, 23.0)],
            "logend": [LogEnd(TOPIC, 0, COUNT + 1)],
        },
        ["acknowledged records are stored"],
    ),
    "two records are in the log twice, and each of their four places is read": (
        {
            "stored": [*SOUND.stored, *[Stored(TOPIC, 0, COUNT + at, value(18 + at)) for at in (0, 1)]],
            "sunk": [
                *SOUND.sunk,
                *[Sunk("main", TOPIC, 0, COUNT + at, value(18 + at), 2, "part-0", 22.0) for at in (0, 1)],
            ],
            "committed": [*SOUND.committed, commit(COUNT + 2, 23.0)],
            "logend": [LogEnd(TOPIC, 0, COUNT + 2)],
        },
        ["acknowledged records are stored", "records are stored as sent"],
    ),
    "no producer sent what is in the log": (
        {"produced": produced(OFFSETS[:-1])},
        ["records are stored as sent"],
    ),
    "the log holds two records of one producer in another order": (
        {"produced": [*produced(OFFSETS[2:]), *[r._replace(number=1 - r.number) for r in produced([0, 1])]]},
        ["records are stored as sent"],
    ),
    "a row is no record": (
        {"sunk": [*SOUND.sunk, Sunk("main", TOPIC, 0, MARKER, "aborted", 2, "part-0", 25.0)]},
        ["rows are records"],
    ),
    "a row has another value": (
        {"sunk": [Sunk("main", TOPIC, 0, 0, "other", 0, "part-0", 1.5), *SOUND.sunk]},
        ["rows are records"],
    ),
    "a row is at another place": (
        {"sunk": [*SOUND.sunk, Sunk("main", TOPIC, 0, 4, value(19), 2, "part-0", 25.0)]},
        ["rows are records"],
    ),
    "a batch is sunk twice": (
        {"sunk": [*SOUND.sunk, *sunk(OFFSETS[8:], 1, at=25.0)]},
        ["no record is sunk twice", "rows are in order"],
    ),
    "one record is in two batches": (
        {"sunk": [*SOUND.sunk, *sunk([5], 2, at=25.0)]},
        ["no record is sunk twice", "rows are in order"],
    ),
    "a file is not in the log's order": (
        {"sunk": [*sunk([1, 0, *OFFSETS[2:8]], 0), *sunk(OFFSETS[8:], 1)]},
        ["rows are in order"],
    ),
    "a batch holds earlier records than the one before": (
        {"sunk": [*sunk(OFFSETS[8:], 0), *sunk(OFFSETS[:8], 1)]},
        ["rows are in order"],
    ),
    "a record is read by no member": (
        {"sunk": [row for row in SOUND.sunk if row.offset != 5]},
        ["no record is lost", "commits are not ahead"],
    ),
    "the last record is read by no member, and not committed": (
        {"sunk": SOUND.sunk[:-1], "committed": [commit(0), commit(8), commit(COUNT - 1)]},
        ["no record is lost", "lag is zero"],
    ),
    "two queries sink one record": (
        {"sunk": [*SOUND.sunk, *sunk([5], 0, "second")]},
        ["records are read again only after a loss"],
    ),
    "a consumer reads again what a query keeps": (
        {"read": read([5])},
        ["records are read again only after a loss"],
    ),
    "more is read again than was lost": (
        {"read": read([5, 6]), "exposed": [Exposed("main", TOPIC, 0, 6, 8)]},
        ["records are read again only after a loss"],
    ),
    "the group's offset goes back": (
        {"committed": [commit(0), commit(12), commit(8, 14.0), commit(COUNT)]},
        ["commits never go back"],
    ),
    "a commit comes before the sink": (
        {"committed": [commit(0), commit(8, 5.0), commit(COUNT)]},
        ["commits are not ahead"],
    ),
    "the group is behind": ({"committed": [commit(8)]}, ["lag is zero"]),
    "the group has no commit": ({"committed": []}, ["lag is zero"]),
    "a query died": ({"ended": [Ended("main", "ended by itself", 5.0)]}, ["members live"]),
    "a process is left": ({"left": [Left("java kafka.Kafka")]}, ["no process is left"]),
}


@pytest.mark.parametrize(("changed", "promises"), PLANTED.values(), ids=PLANTED)
def test_each_planted_violation_is_found(changed: dict[str, Any], promises: list[str]) -> None:
    assert broken(replace(SOUND, **changed)) == promises


@pytest.mark.parametrize(
    "changed",
    [
        {"read": read([5, 6, 7]), "exposed": [Exposed("main", TOPIC, 0, 5, 8)]},
        {"read": read([5, 6, 7]), "exposed": [Exposed("peer", TOPIC, 0, 5, 8)]},
        {"produced": [*SOUND.produced, Produced("ada", 99, TOPIC, 0, "lost answer", UNKNOWN)]},
        {"produced": produced(OFFSETS, UNKNOWN)},
        {"sunk": [row._replace(wall_at_s=None) for row in SOUND.sunk]},
        {"sunk": [row._replace(file=f"part-{row.offset % 2}") for row in SOUND.sunk]},
    ],
    ids=[
        "what a query lost is read again",
        "what a consumer lost was read by a query",
        "a record of unknown fate is not stored",
        "records of unknown fate are stored",
        "times are not known",
        "a batch is in two files",
    ],
)
def test_a_deed_that_promises_allow_is_no_violation(changed: dict[str, Any]) -> None:
    assert broken(replace(SOUND, **changed)) == []


def second_life(sunk_again: Iterable[int]) -> History:
    """The topic was recreated at second 40, and 3 records were sent to it."""
    in_it = [Sunk("main", TOPIC, 0, offset, value(offset, "new "), 2, "part-0", 42.0) for offset in sunk_again]
    return replace(
        SOUND,
        produced=[*SOUND.produced, *[r._replace(producer="bob") for r in produced(range(3), life="new ")]],
        stored=[*SOUND.stored, *stored(range(3), "new ")],
        sunk=[*SOUND.sunk, *in_it],
        recreated=[Recreated(TOPIC, 40.0)],
        committed=[*SOUND.committed, commit(0, 41.0), commit(3, 43.0)],
        logend=[LogEnd(TOPIC, 0, 3)],
    )


def test_a_recreated_topic_begins_anew() -> None:
    assert broken(second_life(range(3))) == []


def test_another_client_may_commit_out_of_order() -> None:
    committed = [commit(0), commit(12), commit(8, 14.0)._replace(by_us=False), commit(COUNT)]
    assert broken(replace(SOUND, committed=committed)) == []


def test_a_loss_in_the_second_life_of_a_topic_is_found() -> None:
    assert broken(second_life([0, 2])) == ["no record is lost", "commits are not ahead"]


def test_the_first_life_s_offset_in_the_second_life_is_found() -> None:
    history = second_life(range(3))
    assert broken(replace(history, committed=[*history.committed[:-1], commit(20, 42.5), commit(3, 43.0)])) == [
        "commits never go back",
        "commits are not ahead",
    ]


# --------------------------------------------------------------------------------------------------------- liveness

LASTING = Lasting(
    fault="broker 2 is cut off",
    words=["broker 2"],
    spared=[[TOPIC, 0]],
    goes_on_s=3.0,
    named_s=5.0,
    wall_at_s=5.0,
    until_s=24.0,
)
"""Of COUNT records, one a second, those from 5.0 to 20.0 are watched."""


def lasting(read_to: int, *, fault: Lasting = LASTING, **more: Any) -> History:
    """From record `read_to` on no record is read, and the run is over: there is no lag to speak of."""
    rows = [row for row in SOUND.sunk if row.offset < read_to]
    done = [record for record in SOUND.stored if record.offset < read_to]
    return replace(SOUND, sunk=rows, stored=done, committed=[commit(read_to)], logend=[], lasting=[fault], **more)


OF_LIVENESS = ("the rest goes on", "a lasting fault is named", "members live")


def liveness(history: History) -> list[str]:
    return [name for name in broken(history) if name in OF_LIVENESS]


def test_under_a_lasting_fault_spared_partitions_are_read_on() -> None:
    assert liveness(lasting(COUNT)) == []


def test_a_spared_partition_that_stops_is_found() -> None:
    assert liveness(lasting(10)) == ["the rest goes on", "a lasting fault is named"]


def test_a_spared_partition_that_is_late_is_found() -> None:
    late = [row._replace(wall_at_s=row.offset + 4.5) for row in SOUND.sunk]
    assert liveness(replace(lasting(COUNT), sunk=late)) == ["the rest goes on"]


@pytest.mark.parametrize(
    ("until_s", "needs_what_is_broken", "kept"),
    [(12.0, True, True), (12.0, False, False), (23.0, True, True), (23.0, False, False)],
    ids=["held up by a range of it", "held up by nothing", "held up to the end by a range of it", "silent to the end"],
)
def test_a_batch_that_the_fault_found_under_way_may_wait_for_the_broken_partition(
    until_s: float, needs_what_is_broken: bool, kept: bool
) -> None:
    """Record 4 is produced when the fault begins."""
    held = [offset for offset in OFFSETS if offset >= 4 and offset + 1.5 <= until_s]
    rows = [*sunk(OFFSETS[:4], 0), *sunk(held, 1, at=until_s), *sunk(OFFSETS[4 + len(held) :], 2)]
    if needs_what_is_broken:
        rows.append(Sunk("main", TOPIC, 1, 0, "of a broken partition", 1, "part-1", until_s))
    history = replace(lasting(COUNT, warned=[Warned("main", "waiting for broker 2", 9.0)]), sunk=rows)
    assert liveness(history) == ([] if kept else ["the rest goes on"])


def test_a_batch_that_was_under_way_excuses_no_silence_after_it() -> None:
    rows = [*sunk(OFFSETS[:4], 0), *sunk([4], 1, at=7.0), Sunk("main", TOPIC, 1, 0, "broken", 1, "part-1", 7.0)]
    history = replace(lasting(COUNT, warned=[Warned("main", "waiting for broker 2", 9.0)]), sunk=rows)
    assert liveness(history) == ["the rest goes on"]


def test_a_spared_partition_without_records_does_not_show_that_the_rest_goes_on() -> None:
    assert liveness(lasting(COUNT, fault=LASTING._replace(spared=[[TOPIC, 0], [TOPIC, 1]]))) == ["the rest goes on"]


@pytest.mark.parametrize(
    ("warned", "kept"),
    [
        ([Warned("main", "waiting for broker 2", 9.0)], True),
        ([Warned("main", "waiting for broker 2", 11.0)], False),
        ([Warned("main", "waiting for broker 2", 4.0)], False),
        ([Warned("main", "waiting for broker 1", 9.0)], False),
    ],
    ids=["named in time", "too late", "before it began", "of another broker"],
)
def test_a_lasting_fault_that_keeps_records_back_is_named_in_time(warned: list[Warned], kept: bool) -> None:
    history = lasting(10, fault=LASTING._replace(spared=[]), warned=warned)
    assert liveness(history) == ([] if kept else ["a lasting fault is named"])


@pytest.mark.parametrize(
    ("ended", "kept"),
    [
        (Ended("main", "no answer from broker 2 for 4 s", 9.0), True),
        (Ended("main", "no answer from broker 2 for 4 s", 11.0), False),
        (Ended("main", "division by zero", 9.0), False),
        (Ended("main", "no answer from broker 2 for 4 s", None), False),
    ],
    ids=["named in time", "too late", "by something else", "unknown when"],
)
def test_an_end_under_a_lasting_fault_names_it_in_time(ended: Ended, kept: bool) -> None:
    assert liveness(lasting(10, ended=[ended])) == (
        [] if kept else ["members live", "the rest goes on", "a lasting fault is named"]
    )


@pytest.mark.parametrize(
    ("again", "kept"),
    [
        (Ended("main", "no answer from broker 2 for 4 s", 20.0), True),
        (Ended("main", "no answer from broker 2 for 4 s", 26.0), True),
        (Ended("main", "no answer from broker 2 for 4 s", 30.0), False),
        (Ended("main", "division by zero", 20.0), False),
        (Ended("second", "no answer from broker 2 for 4 s", 20.0), False),
    ],
    ids=["while it lasts", "begun while it lasted", "long after it", "by something else", "for the first time"],
)
def test_a_query_that_was_started_again_may_end_again_while_the_fault_lasts(again: Ended, kept: bool) -> None:
    first = Ended("main", "no answer from broker 2 for 4 s", 9.0)
    assert liveness(lasting(10, ended=[first, again])) == ([] if kept else ["members live"])


@pytest.mark.parametrize(("reader", "kept"), [("main", True), ("second", False)])
def test_a_query_that_has_warned_of_a_lasting_fault_in_time_may_end_by_it_later(reader: str, kept: bool) -> None:
    ended = [Ended("main", "no answer from broker 2 for 4 s", 20.0)]
    history = lasting(COUNT, ended=ended, warned=[Warned(reader, "waiting for broker 2", 9.0)])
    assert liveness(history) == ([] if kept else ["members live"])


def test_stretches_bridge_a_transactions_marker() -> None:
    log = (TOPIC, 0)
    assert stretches([(log, 3), (log, 4), (log, 6), (log, 9)]) == [Stretch(log, 3, 6), Stretch(log, 9, 9)]
