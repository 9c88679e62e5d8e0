"""The options of TLS and SASL, one row each, under librdkafka's names.

Runs on: driver. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pyspark_kgroup.options.values import Option, non_empty, one_of
from spark_kgroup.wire.security.settings import MECHANISMS, PROTOCOLS

_PATH: Final = "a path that exists on the driver and on every executor"
_FOREIGN_MECHANISMS: Final = {
    "GSSAPI": "Kerberos is not supported; use SCRAM, OAUTHBEARER or mTLS",
    "AWS_MSK_IAM": "it exists in Java only; use OAUTHBEARER with a `tokenCallback` that calls AWS's "
    "aws-msk-iam-sasl-signer-python, or SCRAM",
}


def _row(
    name: str,
    values: str,
    effect: str,
    *,
    origin: str = "",
    default: str | None = None,
    shown: str = "none",
    read: Any = non_empty,
    secret: bool = False,
) -> Option[str | None]:
    return Option(
        name=name,
        type="string",
        default=default,
        shown=default or shown,
        range=values,
        effect=effect,
        origin=origin or f"librdkafka's {name.removeprefix('kafka.')}",
        read=read,
        acts="both",
        secret=secret,
    )


def _protocol(text: str) -> str:
    return one_of(*PROTOCOLS)(text.upper())


def _mechanism(text: str) -> str:
    if text in _FOREIGN_MECHANISMS:
        raise ValueError(_FOREIGN_MECHANISMS[text])
    return one_of(*MECHANISMS)(text)


def _identification(text: str) -> str:
    return one_of("https", "none")(text.lower() or "none")  # Java turns it off by an empty text


def _switch(text: str) -> str:
    return one_of("true", "false")(text.lower())


def _extensions(text: str) -> str:
    if re.fullmatch(r"[A-Za-z]+=[^,]+(,[A-Za-z]+=[^,]+)*", text) is None:
        raise ValueError
    return text


def _function(text: str) -> str:
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", text) is None:
        raise ValueError
    return text


PROTOCOL: Final = _row(
    "kafka.security.protocol",
    ", ".join(PROTOCOLS),
    "Whether connections to brokers are encrypted (SSL: TLS 1.2 or newer) and authenticated (SASL).",
    origin="Kafka's security.protocol, PLAINTEXT",
    default="PLAINTEXT",
    read=_protocol,
)
CA_LOCATION: Final = _row(
    "kafka.ssl.ca.location",
    f"{_PATH}: a PEM file, or a directory as `openssl rehash` makes it",
    "Certificate authorities that issue the brokers' certificates.",
    origin="librdkafka's ssl.ca.location; Kafka's ssl.truststore.location with ssl.truststore.type=PEM",
    shown="what the system trusts",
)
CA_PEM: Final = _row(
    "kafka.ssl.ca.pem",
    "certificates in PEM",
    "The same as text: needs no file on any machine.",
    origin="librdkafka's ssl.ca.pem; Kafka's ssl.truststore.certificates",
)
CERTIFICATE_LOCATION: Final = _row(
    "kafka.ssl.certificate.location",
    f"{_PATH}: a PEM file",
    "This client's certificate and its chain (mTLS).",
    origin="librdkafka's ssl.certificate.location; Kafka's ssl.keystore.location with ssl.keystore.type=PEM",
)
CERTIFICATE_PEM: Final = _row(
    "kafka.ssl.certificate.pem",
    "certificates in PEM",
    "The same as text.",
    origin="librdkafka's ssl.certificate.pem; Kafka's ssl.keystore.certificate.chain",
)
KEY_LOCATION: Final = _row(
    "kafka.ssl.key.location",
    f"{_PATH}: a PEM file",
    "The private key of this client's certificate.",
    origin="librdkafka's ssl.key.location; Kafka's ssl.keystore.location with ssl.keystore.type=PEM",
)
KEY_PEM: Final = _row(
    "kafka.ssl.key.pem",
    "a private key in PEM",
    "The same as text. Encrypt it: Spark shows options in a query's plan (see Security).",
    origin="librdkafka's ssl.key.pem; Kafka's ssl.keystore.key",
    secret=True,
)
KEY_PASSWORD: Final = _row(
    "kafka.ssl.key.password",
    "a password",
    "Opens an encrypted private key.",
    origin="Kafka's ssl.key.password",
    secret=True,
)
IDENTIFICATION: Final = _row(
    "kafka.ssl.endpoint.identification.algorithm",
    "https or none",
    "Whether a broker's certificate must name the host that was connected to.",
    origin="Kafka's ssl.endpoint.identification.algorithm, https",
    shown="https",
    read=_identification,
)
VERIFICATION: Final = _row(
    "kafka.enable.ssl.certificate.verification",
    "true or false",
    "Whether brokers' certificates are checked at all. With false, anyone in between can read everything.",
    shown="true",
    read=_switch,
)
MECHANISM: Final = _row(
    "kafka.sasl.mechanism",
    " or ".join((", ".join(MECHANISMS[:-1]), MECHANISMS[-1])),
    "The SASL mechanism; needed with SASL_PLAINTEXT and SASL_SSL.",
    origin="Kafka's sasl.mechanism, GSSAPI",
    read=_mechanism,
)
USERNAME: Final = _row(
    "kafka.sasl.username",
    "a name",
    "The user name for PLAIN or SCRAM.",
    origin="librdkafka's sasl.username; Kafka's sasl.jaas.config",
)
PASSWORD: Final = _row(
    "kafka.sasl.password",
    "a password",
    "The password.",
    origin="librdkafka's sasl.password; Kafka's sasl.jaas.config",
    secret=True,
)
METHOD: Final = _row(
    "kafka.sasl.oauthbearer.method",
    "oidc or default",
    "Where OAUTHBEARER's tokens come from: client credentials at a token endpoint, or tokenCallback.",
    shown="oidc if kafka.sasl.oauthbearer.token.endpoint.url is given",
    read=one_of("oidc", "default"),
)
ENDPOINT: Final = _row(
    "kafka.sasl.oauthbearer.token.endpoint.url",
    "an http or https URL",
    "OIDC: the token endpoint. The driver asks it, and so does each consumer that an executor starts.",
    origin="Kafka's sasl.oauthbearer.token.endpoint.url",
)
CLIENT_ID: Final = _row(
    "kafka.sasl.oauthbearer.client.id",
    "a name",
    "OIDC: the client.",
    origin="librdkafka's sasl.oauthbearer.client.id; Kafka's sasl.oauthbearer.client.credentials.client.id",
)
CLIENT_SECRET: Final = _row(
    "kafka.sasl.oauthbearer.client.secret",
    "a secret",
    "OIDC: its secret.",
    origin="librdkafka's sasl.oauthbearer.client.secret; Kafka's sasl.oauthbearer.client.credentials.client.secret",
    secret=True,
)
SCOPE: Final = _row(
    "kafka.sasl.oauthbearer.scope",
    "a scope",
    "OIDC: what the token is for.",
    origin="Kafka's sasl.oauthbearer.scope",
)
EXTENSIONS: Final = _row(
    "kafka.sasl.oauthbearer.extensions",
    "NAME=VALUE[,NAME=VALUE...], names of letters only",
    "OIDC: sent to the broker beside the token, for instance `logicalCluster=lkc-1,identityPoolId=pool-1`.",
    read=_extensions,
)
HTTPS_CA_LOCATION: Final = _row(
    "kafka.https.ca.location",
    f"{_PATH}: a PEM file or a directory",
    "OIDC: certificate authorities for the token endpoint.",
    shown="what the system trusts",
)
HTTPS_CA_PEM: Final = _row(
    "kafka.https.ca.pem",
    "certificates in PEM",
    "The same as text.",
)
TOKEN_CALLBACK: Final = _row(
    "tokenCallback",
    "MODULE:FUNCTION, importable on the driver and on every executor",
    "OAUTHBEARER: a function with the decorator `pyspark_kgroup.token_callback`; nothing else is called. It gets "
    "kafka.sasl.oauthbearer.config, and returns (token, expiry in seconds since the epoch[, principal[, "
    "extensions]]). An executor that starts a consumer waits at least 1 s for it.",
    origin="ours; as confluent-kafka's oauth_cb",
    read=_function,
)
TOKEN_CONFIG: Final = _row(
    "kafka.sasl.oauthbearer.config",
    "any text",
    "Handed to tokenCallback.",
    secret=True,
)

SECURITY: Final = (
    PROTOCOL,
    CA_LOCATION,
    CA_PEM,
    CERTIFICATE_LOCATION,
    CERTIFICATE_PEM,
    KEY_LOCATION,
    KEY_PEM,
    KEY_PASSWORD,
    IDENTIFICATION,
    VERIFICATION,
    MECHANISM,
    USERNAME,
    PASSWORD,
    METHOD,
    ENDPOINT,
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    EXTENSIONS,
    HTTPS_CA_LOCATION,
    HTTPS_CA_PEM,
    TOKEN_CALLBACK,
    TOKEN_CONFIG,
)
