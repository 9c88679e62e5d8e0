"""Errors in the words of this source: what the group's side calls a setting is an option here.

Runs on: driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from spark_kgroup.errors import FencedInstanceId, KgroupError

_OPTIONS: Final[Mapping[str, str]] = {
    "topics": "`subscribe`",
    "members": "`members`",
    "token": "`tokenCallback`",
}
"""The options of our own; all others have Kafka's names."""


def option_of(setting: str) -> str:
    """The option that sets it."""
    return _OPTIONS.get(setting) or f"kafka.{setting}"


@contextmanager
def in_options_words() -> Iterator[None]:
    """Let errors that come from inside name options.

    Raises:
        KgroupError: as inside.
    """
    try:
        yield
    except FencedInstanceId as error:
        error.args = (_fenced(error),)
        raise
    except KgroupError as error:
        error.name_settings(option_of)
        raise


def _fenced(error: FencedInstanceId) -> str:
    return (
        f"Another process took the seat {error.instance_id!r} in group {error.group!r} (FENCED_INSTANCE_ID). "
        "Either a second query or reader runs with the same group and instance id prefix: give each query its own "
        "`instanceIdPrefix`; a self-join, or two load()s in one query, are two readers that want every record "
        "each: give each load() its own `kafka.group.id`. Or an old driver is still alive, or only its stream "
        "reader (a process `python_streaming_source_runner` whose JVM is gone): stop it; the newest one keeps the "
        "seat."
    )
