"""The options of TLS and SASL, one row each, under librdkafka's names.

Runs on: driver. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark_kgroup.options.values import Option
from spark_kgroup.wire.security.from_properties import PROPERTIES

_PATH: Final = "a path that exists on the driver and on every executor"


def _row(
    name: str, effect: str, *, origin: str = "", default: str | None = None, shown: str = "none"
) -> Option[str | None]:
    """A property of librdkafka's: its values are the group side's (`from_properties`)."""
    setting = name.removeprefix("kafka.")
    row = PROPERTIES[setting]
    return Option(
        name=name,
        type="string",
        default=default,
        shown=default or shown,
        range=f"{_PATH}: {row.values}" if name.endswith(".location") else row.values,
        effect=effect,
        origin=origin or f"librdkafka's {setting}",
        read=row.read,
        acts="both",
        secret=row.secret,
    )


def _function(text: str) -> str:
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", text) is None:
        raise ValueError
    return text


PROTOCOL: Final = _row(
    "kafka.security.protocol",
    "Whether connections to brokers are encrypted (SSL: TLS 1.2 or newer) and authenticated (SASL).",
    origin="Kafka's security.protocol, PLAINTEXT",
    default="PLAINTEXT",
)
CA_LOCATION: Final = _row(
    "kafka.ssl.ca.location",
    "Certificate authorities that issue the brokers' certificates.",
    origin="librdkafka's ssl.ca.location; Kafka's ssl.truststore.location with ssl.truststore.type=PEM",
    shown="what the system trusts",
)
CA_PEM: Final = _row(
    "kafka.ssl.ca.pem",
    "The same as text: needs no file on any machine.",
    origin="librdkafka's ssl.ca.pem; Kafka's ssl.truststore.certificates",
)
CERTIFICATE_LOCATION: Final = _row(
    "kafka.ssl.certificate.location",
    "This client's certificate and its chain (mTLS).",
    origin="librdkafka's ssl.certificate.location; Kafka's ssl.keystore.location with ssl.keystore.type=PEM",
)
CERTIFICATE_PEM: Final = _row(
    "kafka.ssl.certificate.pem",
    "The same as text.",
    origin="librdkafka's ssl.certificate.pem; Kafka's ssl.keystore.certificate.chain",
)
KEY_LOCATION: Final = _row(
    "kafka.ssl.key.location",
    "The private key of this client's certificate.",
    origin="librdkafka's ssl.key.location; Kafka's ssl.keystore.location with ssl.keystore.type=PEM",
)
KEY_PEM: Final = _row(
    "kafka.ssl.key.pem",
    "The same as text. Encrypt it: Spark shows options in a query's plan (see Security).",
    origin="librdkafka's ssl.key.pem; Kafka's ssl.keystore.key",
)
KEY_PASSWORD: Final = _row(
    "kafka.ssl.key.password",
    "Opens an encrypted private key.",
    origin="Kafka's ssl.key.password",
)
IDENTIFICATION: Final = _row(
    "kafka.ssl.endpoint.identification.algorithm",
    "Whether a broker's certificate must name the host that was connected to.",
    origin="Kafka's ssl.endpoint.identification.algorithm, https",
    shown="https",
)
VERIFICATION: Final = _row(
    "kafka.enable.ssl.certificate.verification",
    "Whether brokers' certificates are checked at all. With false, anyone in between can read everything.",
    shown="true",
)
MECHANISM: Final = _row(
    "kafka.sasl.mechanism",
    "The SASL mechanism. Needed with SASL_PLAINTEXT and SASL_SSL.",
    origin="Kafka's sasl.mechanism, GSSAPI",
)
USERNAME: Final = _row(
    "kafka.sasl.username",
    "The user name for PLAIN or SCRAM.",
    origin="librdkafka's sasl.username; Kafka's sasl.jaas.config",
)
PASSWORD: Final = _row(
    "kafka.sasl.password",
    "The password.",
    origin="librdkafka's sasl.password; Kafka's sasl.jaas.config",
)
METHOD: Final = _row(
    "kafka.sasl.oauthbearer.method",
    "Where OAUTHBEARER's tokens come from: client credentials at a token endpoint, or tokenCallback.",
    shown="oidc if kafka.sasl.oauthbearer.token.endpoint.url is given",
)
ENDPOINT: Final = _row(
    "kafka.sasl.oauthbearer.token.endpoint.url",
    "OIDC: the token endpoint. The driver asks it, and so does each consumer that an executor starts.",
    origin="Kafka's sasl.oauthbearer.token.endpoint.url",
)
CLIENT_ID: Final = _row(
    "kafka.sasl.oauthbearer.client.id",
    "OIDC: the client.",
    origin="librdkafka's sasl.oauthbearer.client.id; Kafka's sasl.oauthbearer.client.credentials.client.id",
)
CLIENT_SECRET: Final = _row(
    "kafka.sasl.oauthbearer.client.secret",
    "OIDC: its secret.",
    origin="librdkafka's sasl.oauthbearer.client.secret; Kafka's sasl.oauthbearer.client.credentials.client.secret",
)
SCOPE: Final = _row(
    "kafka.sasl.oauthbearer.scope",
    "OIDC: the scope that the token is asked for.",
    origin="Kafka's sasl.oauthbearer.scope",
)
EXTENSIONS: Final = _row(
    "kafka.sasl.oauthbearer.extensions",
    "OIDC: sent to the broker beside the token, for instance `logicalCluster=lkc-1,identityPoolId=pool-1`.",
)
HTTPS_CA_LOCATION: Final = _row(
    "kafka.https.ca.location",
    "OIDC: certificate authorities for the token endpoint.",
    shown="what the system trusts",
)
HTTPS_CA_PEM: Final = _row(
    "kafka.https.ca.pem",
    "The same as text.",
)
TOKEN_CALLBACK: Final[Option[str | None]] = Option(
    name="tokenCallback",
    type="string",
    default=None,
    shown="none",
    range="MODULE:FUNCTION, importable on the driver and on every executor",
    effect="OAUTHBEARER: a function with the decorator `pyspark_kgroup.token_callback`; no other one is called. It "
    "gets kafka.sasl.oauthbearer.config, and returns (token, expiry in seconds since the epoch[, principal[, "
    "extensions]]). An executor that starts a consumer waits at least 1 s for it.",
    origin="ours; as confluent-kafka's oauth_cb",
    read=_function,
    acts="both",
)
TOKEN_CONFIG: Final = _row(
    "kafka.sasl.oauthbearer.config",
    "Handed to tokenCallback.",
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
