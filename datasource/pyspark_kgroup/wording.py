"""Errors and log lines in the words of this source: the settings of the group's side are options here.

Runs on: driver.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from spark_kgroup.errors import FencedInstanceId, KgroupError

LEVEL_VARIABLE: Final = "KGROUP_LOG_LEVEL"
"""Environment of the driver: the least grave log lines of a query that are shown, such as INFO."""

_OPTIONS: Final[Mapping[str, str]] = {
    "topics": "subscribe",
    "members": "members",
    "token": "tokenCallback",
}
"""Setting -> the option of our own for it. All further options have Kafka's names."""


def option_of(setting: str) -> str:
    """The name of the option for `setting`."""
    return _OPTIONS.get(setting) or (setting if setting.startswith("kafka.") else f"kafka.{setting}")


def name_options(error: KgroupError) -> None:
    """Put options in the message where it names settings."""
    error.name_settings(lambda setting: f"`{option_of(setting)}`" if setting in _OPTIONS else option_of(setting))


@contextmanager
def in_options_words() -> Iterator[None]:
    """Let errors that come from inside name options.

    Raises:
        KgroupError: as inside.
    """
    try:
        yield
    except FencedInstanceId as error:
        error.args = (_text_of_a_fenced_seat(error),)
        raise
    except KgroupError as error:
        name_options(error)
        raise


class _InOptionsWords(logging.Filter):
    """Changes the errors in a log line, and lets every line through."""

    def filter(self, record: logging.LogRecord) -> bool:
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, KgroupError):
                name_options(argument)
        return True


def log_in_options_words() -> Callable[[], None]:
    """Let log lines of the group's side name options. Call it AFTER its modules are imported, which make their loggers.

    Each logger needs the filter: that of a parent is not asked, and we have no handler, which users configure.

    Returns:
        A function that takes the filters off again.
    """
    wording = _InOptionsWords()
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("spark_kgroup.")]
    for each in loggers:
        each.addFilter(wording)

    def undo() -> None:
        for each in loggers:
            each.removeFilter(wording)

    return undo


def show_log(group: str) -> None:
    """Give this process's log lines, among Spark's, their time, level and group, unless logging is configured already.

    Without a handler Python shows the bare text of warnings alone. `LEVEL_VARIABLE` asks for more, or for less.
    """
    of_group = group.replace("%", "%%")
    form = f"%(asctime)s %(levelname)s kgroup, group {of_group}: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, datefmt="%y/%m/%d %H:%M:%S")  # as Spark's log4j2 has it
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL_VARIABLE, "").strip().upper())
    if level is not None:
        for package in ("spark_kgroup", "pyspark_kgroup"):
            logging.getLogger(package).setLevel(level)


def _text_of_a_fenced_seat(error: FencedInstanceId) -> str:
    return (
        f"Another process took the seat {error.instance_id!r} in group {error.group!r} (FENCED_INSTANCE_ID). "
        "Does a second reader run with the same group and instance id prefix: another query on the same load(), a "
        "second sink, a self-join? If each of the two wants every record, give each its own load() with its own "
        "`kafka.group.id`. If they are to share the records, so that each gets a part of them, give each its own "
        "`instanceIdPrefix`. Or is an old driver still alive, or only its stream reader (a process "
        "`python_streaming_source_runner` whose JVM is gone)? Stop it. The newest one keeps the seat."
    )
