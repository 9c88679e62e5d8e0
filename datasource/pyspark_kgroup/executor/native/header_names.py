"""Names of headers that are not UTF-8, as Java's clients, and so `format("kafka")`, show them.

Runs on: executor. Pure.
"""

from __future__ import annotations

import codecs
from typing import Final

_AS_JAVA: Final = "pyspark_kgroup.as_java"


def java_text(name: bytes) -> str:
    """`name` as Java's `new String(name, UTF_8)` has it (Kafka: Utils.utf8): U+FFFD for bytes that are not UTF-8."""
    return name.decode("utf-8", _AS_JAVA)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Replace as Python does, except for a surrogate in UTF-8, whole or cut off: one U+FFFD as in Java, not three."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, end = error.object, error.end
    if data[error.start] == 0xED:  # every surrogate begins with it (U+D800 to U+DFFF)
        end = error.start + 1
        while end < min(len(data), error.start + 3) and data[end] & 0xC0 == 0x80:
            end += 1
    return "\ufffd", end


codecs.register_error(_AS_JAVA, _replaced)
