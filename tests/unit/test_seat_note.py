"""The note that a seat writes beside its offsets, and the metadata that other clients write there."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kgroup.seat_note import Author, SeatNote, is_of_topic, topic_mark

WALL_MS = st.integers(0, 2**45)
PREFIXES = st.text(min_size=1, max_size=249, alphabet="abc-_.0")
AUTHORS = st.builds(
    Author,
    app=PREFIXES,
    run=st.none() | st.integers(0, 2**53 - 1),
    process=st.sampled_from(["", "0f3a9c17"]),
    seat=st.none() | st.integers(0, 9_999),
)
UUID = "6f1c2f0e-6a3b-4c59-8f5e-3a1f6f4f2b10"
NOTES = st.builds(
    SeatNote,
    member=st.text(min_size=1, max_size=249 + 37, alphabet="abc-0"),
    at_ms=WALL_MS,
    author=AUTHORS,
    executor=st.text(max_size=300),
    host=st.text(max_size=300),
    warm=st.booleans(),
    since_ms=WALL_MS,
)


@given(NOTES)
def test_a_note_is_read_as_it_was_written_and_fits_beside_an_offset(note: SeatNote) -> None:
    text = note.encode()
    assert len(text) < 4096
    found = SeatNote.decode(text)
    assert found is not None
    assert (found.member, found.at_ms, found.author, found.since_ms, found.warm) == (
        note.member,
        note.at_ms,
        note.author,
        note.since_ms,
        note.warm,
    )
    assert Author.of(text) == note.author
    assert (found.executor, found.host) == ((note.executor or "")[:255], (note.host or "")[:255])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "by hand",
        "7",
        "[]",
        "{}",
        '{"v":2,"member":"s","at":1}',
        '{"v":1,"at":1}',
        '{"v":1,"member":7,"at":1}',
        '{"v":1,"app":7,"at":1}',
        '{"v":2,"app":"orders"}',
        "[" * 4096,
    ],
)
def test_texts_of_other_clients_are_neither_a_note_nor_a_mark(text: str) -> None:
    assert SeatNote.decode(text) is None
    assert Author.of(text) is None


@given(AUTHORS)
def test_a_mark_names_its_writer_and_no_seat(author: Author) -> None:
    mark = author.encode()
    assert len(mark) < 512
    assert Author.of(mark) == author
    assert SeatNote.decode(mark) is None


@given(AUTHORS, NOTES)
def test_marks_and_notes_say_of_which_topic_their_offset_is(author: Author, note: SeatNote) -> None:
    for text in (author.encode(UUID), replace(note, topic_id=UUID).encode()):
        assert is_of_topic(text, UUID) is True
        assert is_of_topic(text, UUID.replace("6f1c2f0e", "6f1c2f0f")) is False
        assert is_of_topic(text, "") is None, "this cluster has no topic ids (any more)"
        assert Author.of(text) == Author.of(author.encode() if text == author.encode(UUID) else note.encode())
    for text in (author.encode(), note.encode(), "by hand", ""):
        assert is_of_topic(text, UUID) is None


def test_a_mark_of_a_topic_names_its_id_and_no_author() -> None:
    assert is_of_topic(topic_mark(UUID), UUID) is True
    assert Author.of(topic_mark(UUID)) is None
    assert SeatNote.decode(topic_mark(UUID)) is None
    assert topic_mark("") == "", "a cluster without topic ids"


@given(PREFIXES)
def test_a_note_of_an_older_release_names_its_application_by_the_member_id(prefix: str) -> None:
    note = SeatNote(member=f"{prefix}-12-{UUID}", at_ms=1).encode()
    assert Author.of(note) == Author(app=prefix, seat=12)


@pytest.mark.parametrize("member", [f"consumer-one-{UUID}", UUID, "", "orders-0"])
def test_a_member_that_is_no_seat_belongs_to_no_application_of_ours(member: str) -> None:
    assert Author.of(SeatNote(member=member, at_ms=1).encode()) is None


def test_a_note_of_the_last_release_names_its_seat_by_the_member_id_and_its_run_by_when_it_was_started() -> None:
    note = json.dumps({"v": 1, "member": f"orders-12-{UUID}", "at": 1, "app": "orders", "run": 1_700_000_000_000})
    assert Author.of(note) == Author(app="orders", run=1_700_000_000_000, seat=12)


@pytest.mark.parametrize("run", [-1, 2**53, 2**70, 1.5, True, "7", None, []])
def test_a_run_that_is_no_number_of_a_run_is_unknown(run: object) -> None:
    assert Author.of(json.dumps({"v": 1, "app": "orders", "run": run})) == Author(app="orders")


def test_a_field_of_another_kind_is_unknown() -> None:
    found = SeatNote.decode('{"v":1,"member":"s","at":1,"executor":7,"host":[],"warm":"yes","since":true}')
    assert found == SeatNote(member="s", at_ms=1)
