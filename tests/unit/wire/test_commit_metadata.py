"""What a seat writes beside its offsets, and what other clients write there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kgroup.wire.commit_metadata import SeatNote

WALL_MS = st.integers(0, 2**45)
NOTES = st.builds(
    SeatNote,
    member=st.text(min_size=1, max_size=249 + 37, alphabet="abc-0"),
    at_ms=WALL_MS,
    executor=st.text(max_size=300),
    host=st.text(max_size=300),
    warm=st.booleans(),
    since_ms=WALL_MS,
)


@given(NOTES)
def test_what_is_written_is_read_and_fits(note: SeatNote) -> None:
    text = note.encode()
    assert len(text) < 4096
    found = SeatNote.decode(text)
    assert found is not None
    assert (found.member, found.at_ms, found.since_ms, found.warm) == (
        note.member,
        note.at_ms,
        note.since_ms,
        note.warm,
    )
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
        "[" * 4096,
    ],
)
def test_the_words_of_others_are_nobodys_note(text: str) -> None:
    assert SeatNote.decode(text) is None


def test_a_field_of_another_kind_is_unknown() -> None:
    found = SeatNote.decode('{"v":1,"member":"s","at":1,"executor":7,"host":[],"warm":"yes","since":true}')
    assert found == SeatNote(member="s", at_ms=1)
