"""Who we are for the brokers, and how they are reached: the options of TLS and SASL, for both sides.

Runs on: driver. Options are parsed without I/O; when a query starts, `driver_settings` imports the token callback.

The driver's sessions and the executors' consumers get the same: librdkafka's properties. Executors hand them to
librdkafka; for the driver `driver_settings` makes of them what `spark_kgroup` uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kgroup.options import security_rows as rows
from pyspark_kgroup.options.values import Option
from pyspark_kgroup.shared.token_callback import CALLBACK, token_provider
from pyspark_kgroup.wording import in_options_words, option_of
from spark_kgroup.errors import OptionError
from spark_kgroup.wire.security import java_properties
from spark_kgroup.wire.security.from_properties import security_settings
from spark_kgroup.wire.security.settings import NEEDED, SecuritySettings

Row = Option[str | None]

_BY_NAME: Final = {row.name: row for row in rows.SECURITY}
_OAUTH: Final = "kafka.sasl.oauthbearer."

_MEANINGLESS_UNLESS: Final[tuple[tuple[tuple[str, ...], Row, tuple[str, ...]], ...]] = (
    (("kafka.ssl.", "kafka.enable.ssl."), rows.PROTOCOL, ("SASL_SSL", "SSL")),
    (("kafka.sasl.", "kafka.https.", rows.TOKEN_CALLBACK.name), rows.PROTOCOL, ("SASL_SSL", "SASL_PLAINTEXT")),
    ((rows.USERNAME.name, rows.PASSWORD.name), rows.MECHANISM, tuple(NEEDED["sasl.mechanism"])),
    ((_OAUTH, "kafka.https.", rows.TOKEN_CALLBACK.name), rows.MECHANISM, ("OAUTHBEARER",)),
    (
        (
            *map(option_of, NEEDED["sasl.oauthbearer.method"]["oidc"]),
            rows.SCOPE.name,
            rows.EXTENSIONS.name,
            "kafka.https.",
        ),
        rows.METHOD,
        ("oidc",),
    ),
    ((rows.TOKEN_CALLBACK.name, rows.TOKEN_CONFIG.name), rows.METHOD, ("default",)),
)
"""(how options begin, the option that makes use of them, with which values)."""

_CERTIFICATE: Final = (rows.CERTIFICATE_LOCATION, rows.CERTIFICATE_PEM)
_KEY: Final = (rows.KEY_LOCATION, rows.KEY_PEM)
_EITHER: Final = ((rows.CA_LOCATION, rows.CA_PEM), _CERTIFICATE, _KEY, (rows.HTTPS_CA_LOCATION, rows.HTTPS_CA_PEM))
"""A file, or its text: with both, librdkafka and the driver would each choose for itself."""


_PREFIX: Final = "kafka."

JAVA_NAMES: Final = frozenset(f"{_PREFIX}{name}" for name in java_properties.NAMES)
"""Java's spellings that are translated, or refused with what to use."""


def translate(given: Mapping[str, str]) -> dict[str, str]:
    """`given` (names in lower case) with librdkafka's names in place of Java's.

    Raises:
        OptionError: something has no counterpart, cannot be read, or is said in both spellings and differently.
    """
    others = {name: value for name, value in given.items() if not name.startswith(_PREFIX)}
    properties = {name.removeprefix(_PREFIX): given[name] for name in given.keys() - others.keys()}
    with in_options_words():
        spelled = java_properties.translate(properties)
    return others | {f"{_PREFIX}{name}": value for name, value in spelled.items()}


def check_mechanism(given: Mapping[str, str]) -> None:
    """Check that `given` (names in lower case) asks for no mechanism that is not supported.

    To be called first: the options that belong to such a mechanism would each be refused for another reason.

    Raises:
        OptionError: it does.
    """
    for spelling in (rows.MECHANISM.name, "kafka.sasl.mechanisms"):
        if spelling in given:
            rows.MECHANISM.value({rows.MECHANISM.name: given[spelling]})


def parse_security(given: Mapping[str, str]) -> dict[str, str]:
    """How to connect, as librdkafka's properties and `CALLBACK`; empty for PLAINTEXT.

    Args:
        given: options, names in lower case, in librdkafka's or Java's spelling; others are left alone.

    Raises:
        OptionError: something is missing, out of range, without effect, contradictory, or has no counterpart here.
    """
    spelled = translate(given)
    values = {row.name: row.value(spelled) for row in rows.SECURITY}
    if values[rows.MECHANISM.name] == "OAUTHBEARER" and values[rows.METHOD.name] is None:
        values[rows.METHOD.name] = "oidc" if values[rows.ENDPOINT.name] else "default"
    _check_effects([row.name for row in rows.SECURITY if row.name.lower() in spelled], values)
    _check_needs(values)
    _check_pairs(values)
    if values[rows.PROTOCOL.name] == "PLAINTEXT":
        return {}
    return {_property(name): value for name, value in values.items() if value is not None}


def _check_effects(given: list[str], values: Mapping[str, str | None]) -> None:
    for beginnings, row, needed in _MEANINGLESS_UNLESS:
        for name in given:
            if name.startswith(beginnings) and values[row.name] not in needed:
                raise OptionError(
                    f"Option {name} has no effect, because {row.name} is {values[row.name] or 'not given'}: set "
                    f"{row.name} to {' or '.join(needed)}, or leave {name} out."
                )


def _check_needs(values: Mapping[str, str | None]) -> None:
    for setting, needs in NEEDED.items():
        name = option_of(setting)
        for missing in (_BY_NAME[option_of(needed)] for needed in needs.get(values[name] or "", ())):
            if values[missing.name] is None:
                raise OptionError(
                    f"Option {missing.name} is missing: {name}={values[name]} needs it. {missing.effect} "
                    f"It needs {missing.range}."
                )


def _check_pairs(values: Mapping[str, str | None]) -> None:
    for file, text in _EITHER:
        if values[file.name] is not None and values[text.name] is not None:
            raise OptionError(f"Options {file.name} and {text.name} say the same thing: keep one of them.")
    for one, other in ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE)):
        given = [row.name for row in one if values[row.name] is not None]
        if given and all(values[row.name] is None for row in other):
            raise OptionError(
                f"Option {given[0]} needs {other[0].name} (or .pem): a client certificate and its key come together. "
                "One PEM file may hold both: name it twice."
            )


def _property(name: str) -> str:
    return CALLBACK if name == rows.TOKEN_CALLBACK.name else name.removeprefix("kafka.")


# ---------------------------------------------------------------------------------------------- the driver


def driver_settings(properties: Mapping[str, str]) -> SecuritySettings:
    """What the driver's sessions use, from what `parse_security` returned.

    Raises:
        OptionError: the token callback cannot be imported, or the token endpoint's URL or CA cannot be used.
    """
    name = properties.get(CALLBACK)
    token = token_provider(name, properties.get("sasl.oauthbearer.config", "")) if name else None
    with in_options_words():
        return security_settings(properties, token)
