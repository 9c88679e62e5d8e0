"""Our identity for the brokers, and how they are reached: the options of TLS and SASL, for driver and executors.

Runs on: driver. Options are parsed without I/O. When a query starts, `driver_settings` imports the token callback.

The driver's sessions and the executors' consumers get the same: librdkafka's properties. Executors hand them to
librdkafka. For the driver `driver_settings` turns them into the settings of `spark_kgroup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kgroup.options import security_rows as rows
from pyspark_kgroup.shared.token_callback import CALLBACK, token_provider
from spark_kgroup.errors import OptionError
from spark_kgroup.wire.security import java_properties
from spark_kgroup.wire.security.from_properties import read_properties, security_settings
from spark_kgroup.wire.security.settings import SecuritySettings

_PREFIX: Final = "kafka."

JAVA_NAMES: Final = frozenset(f"{_PREFIX}{name}" for name in java_properties.NAMES)
"""Java's spellings that are translated, or refused with the name of the option to use."""


def translate(given: Mapping[str, str]) -> dict[str, str]:
    """`given` (names in lower case) with librdkafka's names in place of Java's.

    Raises:
        OptionError: an option has no counterpart, cannot be read, or is given in both spellings with different values.
    """
    others = {name: value for name, value in given.items() if not name.startswith(_PREFIX)}
    properties = {name.removeprefix(_PREFIX): given[name] for name in given.keys() - others.keys()}
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
            if given[spelling].strip().upper() == "AWS_MSK_IAM":
                raise OptionError(
                    f"Option {spelling} is {given[spelling]!r}: it exists in Java only. Use OAUTHBEARER with a "
                    f"`{rows.TOKEN_CALLBACK.name}` that calls AWS's aws-msk-iam-sasl-signer-python, or SCRAM."
                )
            rows.MECHANISM.value({rows.MECHANISM.name: given[spelling]})


def parse_security(given: Mapping[str, str]) -> dict[str, str]:
    """How to connect, as librdkafka's properties and `CALLBACK`. Empty for PLAINTEXT.

    Args:
        given: options, names in lower case, in librdkafka's or Java's spelling. Those not about security are ignored.

    Raises:
        OptionError: an option is missing, out of range, without effect, contradictory, or has no counterpart here.
    """
    spelled = translate(given)
    values = {row.name: value for row in rows.SECURITY if (value := row.value(spelled)) is not None}
    callback = values.pop(rows.TOKEN_CALLBACK.name, None)
    if callback is None and _needs_callback(values):
        raise OptionError(
            f"Option `{rows.TOKEN_CALLBACK.name}` is missing: {rows.MECHANISM.name}=OAUTHBEARER needs it. Or take "
            f"tokens from a token endpoint: set {rows.METHOD.name}=oidc, with its URL and client."
        )
    properties = {name.removeprefix(_PREFIX): value for name, value in values.items()}
    checked = read_properties(properties, has_token=callback is not None)
    if checked["security.protocol"] == "PLAINTEXT":
        return {}
    return checked if callback is None else {**checked, CALLBACK: callback}


def _needs_callback(values: Mapping[str, str]) -> bool:
    """Whether tokens come from a function, and not from a token endpoint."""
    logs_in = values.get(rows.PROTOCOL.name, "").startswith("SASL_")
    from_endpoint = values.get(rows.METHOD.name) == "oidc" or rows.ENDPOINT.name in values
    return logs_in and values.get(rows.MECHANISM.name) == "OAUTHBEARER" and not from_endpoint


# ---------------------------------------------------------------------------------------------- the driver


def driver_settings(properties: Mapping[str, str]) -> SecuritySettings:
    """The security of the driver's sessions, from the result of `parse_security`.

    Raises:
        OptionError: the token callback cannot be imported, or the token endpoint's URL or CA cannot be used.
    """
    name = properties.get(CALLBACK)
    token = token_provider(name, properties.get("sasl.oauthbearer.config", "")) if name else None
    return security_settings(properties, token)
