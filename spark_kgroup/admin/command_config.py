"""`--command-config FILE`: how to connect and who to be, as Kafka's own tools and librdkafka's clients write it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from spark_kgroup.errors import OptionError
from spark_kgroup.wire.security import java_properties
from spark_kgroup.wire.security.from_properties import PROPERTIES, security_settings
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import Security

log = logging.getLogger(__name__)

HELP: Final = (
    "How to connect and who to be: a .properties file as Kafka's tools and librdkafka's clients have it. "
    "Properties that are not about security are ignored."
)

_PREFIX: Final = "kafka."
"""The prefix that these names have where they stand among options of an application. The file may have it, too."""

_UNDERSTOOD: Final = (*PROPERTIES, *sorted(java_properties.NAMES))

_ABOUT_SECURITY: Final = ("security.", "sasl.", "ssl.", "https.", "enable.ssl.")

_WITHOUT_EFFECT: Final = (
    "sasl.client.callback.handler.class",
    "sasl.kerberos.",
    "sasl.login.",
    "sasl.oauthbearer.clock.skew",
    "sasl.oauthbearer.jwks.",
    "security.providers",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
)
"""Of Java's TLS and SASL, properties that say neither how to connect nor who to be, or are about mechanisms not spoken
here."""

_LIKE: Final = 0.85
"""How much a name must look like one of security to be taken for a misspelt one (difflib's ratio): `secuirty.protocol`
has 0.94, and none of the 120 other names of librdkafka's and Java's has more than 0.73 (measured)."""

_SECRET: Final = re.compile(r"password|secret|pem|jaas|keystore\.key")
"""Values of which blanks are a part."""


def security_from(path: Path) -> Security:
    """The security settings that the file gives.

    It has Java's .properties format: escapes, continuation lines, `=` or `:` or a blank between name and value.

    Raises:
        OptionError: the file cannot be read, or is contradictory, incomplete or misspelt. The message shows no secret.
    """
    with _named(path):
        return load_security(security_settings(_properties(_parse(path))))


def properties_from(path: Path) -> dict[str, str]:
    """The properties of security that the file gives, under librdkafka's names.

    Raises:
        OptionError: as `security_from`, but for values, which are not looked at.
    """
    with _named(path):
        return _properties(_parse(path))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let errors name the file."""
    try:
        yield
    except OptionError as problem:
        raise OptionError(f"--command-config {str(path)!r}: {str(problem).removeprefix('Option ')}") from None


def _parse(path: Path) -> dict[str, str]:
    from javaproperties import InvalidUEscapeError, loads  # only --command-config needs this package

    try:
        return dict(loads(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"it cannot be read: {error}.") from None
    except InvalidUEscapeError:
        raise OptionError(r"it has a \u without four hexadecimal digits: a backslash is written \\ here.") from None


def _properties(given: Mapping[str, str]) -> dict[str, str]:
    """The file's properties under librdkafka's names.

    Raises:
        OptionError: a name of security is unknown, or has no counterpart here.
    """
    plain = {
        name.removeprefix(_PREFIX): value if _SECRET.search(name) else value.strip() for name, value in given.items()
    }
    for name in plain:
        _check_name(name)
    spelled = java_properties.translate(plain)
    return {name: value for name, value in spelled.items() if name in PROPERTIES}


def _check_name(name: str) -> None:
    if name in _UNDERSTOOD:
        return
    if name.startswith(_WITHOUT_EFFECT):
        log.debug("--command-config: %s has no effect here", name)
        return
    secure = name.startswith(_ABOUT_SECURITY)
    # A name of security is refused in any case: for the hint alone difflib's default likeness is enough.
    near = get_close_matches(name, _UNDERSTOOD, n=1, cutoff=0.6 if secure else _LIKE)
    if near:
        raise OptionError(f"{name} is unknown: did you mean {near[0]}?")
    if secure:
        raise OptionError(f"{name} is not understood here: leave it out if the cluster can be reached without it.")
    log.debug("--command-config: %s is not about security, and ignored", name)
