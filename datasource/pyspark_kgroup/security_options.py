"""Who we are for the brokers, and how they are reached: the options of TLS and SASL, for both sides.

Runs on: driver. No I/O: files are read, and functions imported, by `security_settings` when a query starts.

The driver's sessions and the executors' consumers get the same: librdkafka's properties. Executors hand them to
librdkafka; for the driver `security_settings` makes of them what `spark_kgroup` uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from pyspark_kgroup import security_rows as rows
from pyspark_kgroup.java_security import translated
from pyspark_kgroup.option_values import Option
from pyspark_kgroup.token_callback import CALLBACK, token_provider
from spark_kgroup.errors import OptionError
from spark_kgroup.wire.oauth import ClientCredentials, TokenProvider
from spark_kgroup.wire.sasl import Mechanism
from spark_kgroup.wire.security import SecurityProtocol, SecuritySettings

Row = Option[str | None]

_OIDC: Final = (rows.ENDPOINT, rows.CLIENT_ID, rows.CLIENT_SECRET)
_OAUTH: Final = "kafka.sasl.oauthbearer."

_MEANINGLESS_UNLESS: Final[tuple[tuple[tuple[str, ...], Row, tuple[str, ...]], ...]] = (
    (("kafka.ssl.", "kafka.enable.ssl."), rows.PROTOCOL, ("SASL_SSL", "SSL")),
    (("kafka.sasl.", "kafka.https.", rows.TOKEN_CALLBACK.name), rows.PROTOCOL, ("SASL_SSL", "SASL_PLAINTEXT")),
    (
        (rows.USERNAME.name, rows.PASSWORD.name),
        rows.MECHANISM,
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    ),
    ((_OAUTH, "kafka.https.", rows.TOKEN_CALLBACK.name), rows.MECHANISM, ("OAUTHBEARER",)),
    (
        (*(row.name for row in _OIDC), rows.SCOPE.name, rows.EXTENSIONS.name, "kafka.https."),
        rows.METHOD,
        ("oidc",),
    ),
    ((rows.TOKEN_CALLBACK.name, rows.TOKEN_CONFIG.name), rows.METHOD, ("default",)),
)
"""(how options begin, the option that makes use of them, with which values)."""

_NEEDED: Final[tuple[tuple[Row, tuple[str, ...], tuple[Row, ...]], ...]] = (
    (rows.PROTOCOL, ("SASL_SSL", "SASL_PLAINTEXT"), (rows.MECHANISM,)),
    (rows.MECHANISM, ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), (rows.USERNAME, rows.PASSWORD)),
    (rows.METHOD, ("oidc",), _OIDC),
    (rows.METHOD, ("default",), (rows.TOKEN_CALLBACK,)),
)
"""(an option, some of its values, which options they need)."""


def parse_security(given: Mapping[str, str]) -> dict[str, str]:
    """How to connect, as librdkafka's properties and `CALLBACK`; empty for PLAINTEXT.

    Args:
        given: options, names in lower case, in librdkafka's or Java's spelling; others are left alone.

    Raises:
        OptionError: something is missing, out of range, without effect, contradictory, or has no counterpart here.
    """
    spelled = translated(given)
    values = {row.name: row.value(spelled) for row in rows.SECURITY}
    if values[rows.MECHANISM.name] == "OAUTHBEARER" and values[rows.METHOD.name] is None:
        values[rows.METHOD.name] = "oidc" if values[rows.ENDPOINT.name] else "default"
    _check_effects([row.name for row in rows.SECURITY if row.name.lower() in spelled], values)
    for row, some, needed in _NEEDED:
        for missing in (each for each in needed if values[row.name] in some and values[each.name] is None):
            raise OptionError(
                f"Option {missing.name} is missing: {row.name}={values[row.name]} needs it. {missing.effect} "
                f"It needs {missing.range}."
            )
    if values[rows.PROTOCOL.name] == "PLAINTEXT":
        return {}
    return {_property(name): value for name, value in values.items() if value is not None}


def _check_effects(given: list[str], values: Mapping[str, str | None]) -> None:
    for beginnings, row, some in _MEANINGLESS_UNLESS:
        for name in given:
            if name.startswith(beginnings) and values[row.name] not in some:
                raise OptionError(
                    f"Option {name} has no effect, because {row.name} is {values[row.name] or 'not given'}: set "
                    f"{row.name} to {' or '.join(some)}, or leave {name} out."
                )


def _property(name: str) -> str:
    return CALLBACK if name == rows.TOKEN_CALLBACK.name else name.removeprefix("kafka.")


# ---------------------------------------------------------------------------------------------- the driver


def security_settings(properties: Mapping[str, str]) -> SecuritySettings:
    """What the driver's sessions use, from what `parse_security` returned.

    Raises:
        OptionError: the token callback cannot be imported, or the token endpoint's URL or CA is not usable.
    """
    said = properties.get
    return SecuritySettings(
        protocol=cast("SecurityProtocol", said("security.protocol", "PLAINTEXT")),
        ca_location=said("ssl.ca.location"),
        ca_pem=said("ssl.ca.pem"),
        certificate_location=said("ssl.certificate.location"),
        certificate_pem=said("ssl.certificate.pem"),
        key_location=said("ssl.key.location"),
        key_pem=said("ssl.key.pem"),
        key_password=said("ssl.key.password"),
        verify_certificate=said("enable.ssl.certificate.verification", "true") == "true",
        verify_hostname=said("ssl.endpoint.identification.algorithm", "https") == "https",
        mechanism=cast("Mechanism | None", said("sasl.mechanism")),
        username=said("sasl.username"),
        password=said("sasl.password"),
        token=_token_provider(properties),
    )


def _token_provider(properties: Mapping[str, str]) -> TokenProvider | None:
    said = properties.get
    if CALLBACK in properties:
        return token_provider(properties[CALLBACK], said("sasl.oauthbearer.config", ""))
    if said("sasl.oauthbearer.method") != "oidc":
        return None
    return ClientCredentials(
        endpoint=properties["sasl.oauthbearer.token.endpoint.url"],
        client_id=properties["sasl.oauthbearer.client.id"],
        client_secret=properties["sasl.oauthbearer.client.secret"],
        scope=said("sasl.oauthbearer.scope"),
        extensions=_pairs(said("sasl.oauthbearer.extensions", "")),
        ca_location=said("https.ca.location"),
        ca_pem=said("https.ca.pem"),
    )


def _pairs(text: str) -> dict[str, str]:
    """`NAME=VALUE,NAME=VALUE` as the row has checked it."""
    return dict(pair.split("=", 1) for pair in text.split(",")) if text else {}
