"""`--command-config FILE`: how to connect and who to be, one librdkafka property a line (Kafka's tools call it so)."""

from __future__ import annotations

from pathlib import Path

from spark_kgroup.errors import OptionError
from spark_kgroup.wire.properties import SECURITY_PROPERTIES, security_settings
from spark_kgroup.wire.security import Security, secured


def security_from(path: Path) -> Security:
    """What the file says; `NAME=VALUE` a line, `#` begins a comment.

    Raises:
        OptionError: it cannot be read, or holds something else; a line's value is never told.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--command-config: cannot read {str(path)!r}: {error}.") from None
    properties: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        name = name.strip().removeprefix("kafka.")
        if not equals or name not in SECURITY_PROPERTIES:
            raise OptionError(
                f"--command-config: line {number} of {str(path)!r} is not NAME=VALUE with one of these names "
                f"(librdkafka's): {', '.join(SECURITY_PROPERTIES)}."
            )
        properties[name] = value.strip()
    return secured(security_settings(properties))
