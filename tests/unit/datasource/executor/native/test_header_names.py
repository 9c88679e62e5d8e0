"""Names of headers as Java's clients show them. The right-hand sides were printed by Java 17 for these bytes."""

import pytest

from pyspark_kgroup.executor.native.header_names import java_text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"", ""),
        (b"plain", "plain"),
        (b"a\0b", "a\0b"),
        ("grün €𝄞".encode(), "grün €𝄞"),
        (b"caf\xe9", "caf\ufffd"),
        (b"\xff\xfea\0", "\ufffd\ufffda\0"),
        (b"\xc0\xaf", "\ufffd\ufffd"),  # longer than it need be
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        (b"\xe1\x80A", "\ufffdA"),  # cut off: one mistake
        (b"\xf0\x9f\x92", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),  # beyond Unicode
        (b"\xed\xa0\x80", "\ufffd"),  # half of a surrogate pair: one mistake, where Python's own replacement sees three
        (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
        (b"\xed\xa0A", "\ufffdA"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xedA", "\ufffdA"),
        (b"\xed\x9fA", "\ufffdA"),
    ],
)
def test_a_name_that_is_not_utf8_is_replaced_as_by_java(name: bytes, text: str) -> None:
    assert java_text(name) == text
