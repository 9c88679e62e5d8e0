"""Errors in the words of a command: the rest of this package speaks of the options of `format("kgroup")`."""

from __future__ import annotations

import re
from typing import Final

_OPTIONS: Final = {
    "kafka.bootstrap.servers": "--bootstrap-server",
    "kafka.group.id": "--group",
    "kafka.session.timeout.ms": "--session-timeout-ms",
    "kafka.metadata.max.age.ms": "--metadata-max-age-ms",
    "kafka.partition.assignment.strategy": "--assignor",
    "instanceIdPrefix": "--instance-id",
    "subscribe": "--topics",
}

_OPTION: Final = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)" for name in _OPTIONS))
_PROPERTY: Final = re.compile(r"(?<![\w.])kafka\.(?=(?:security|sasl|ssl|https|enable\.ssl)\.)")


def in_command_terms(text: str) -> str:
    """`text` with a command's options in place of the source's; properties stand in the file of --command-config."""
    text = _OPTION.sub(lambda found: _OPTIONS[found[0]], text)
    said, count = _PROPERTY.subn("", text)
    if count and "--command-config" not in said:
        said = f"{said} (Properties stand in the file that --command-config names.)"
    return said
