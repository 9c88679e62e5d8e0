"""Listeners that authenticate clients or encrypt: TLS, client certificates, SASL. The plain one stays beside them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from spark_kgroup.errors import EnvironmentProblem

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The mechanisms of a SASL listener. OAUTHBEARER trusts unsigned tokens, as `unsecured_token` makes them."""

_MODULES: Final = "org.apache.kafka.common.security"
_SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SCRAM_ITERATIONS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureListener:
    """One more listener of every node.

    Attributes:
        name: Kafka's listener name in upper case, such as "SASL_SSL".
        certificate_pem: the broker's certificate chain, or None for no TLS.
        key_pem: its private key, PKCS#8 without a password.
        client_ca_pem: the CA that signs clients' certificates.
        client_auth: Kafka's ssl.client.auth. A client's user name is the CN of its certificate.
        sasl: whether clients must log in, by any of `MECHANISMS`.
        session_ms: after this long a client must log in anew (connections.max.reauth.ms), or 0 for never.

    Raises:
        EnvironmentProblem: the key has another form, with which a node would die without naming the reason.
    """

    name: str
    certificate_pem: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    client_ca_pem: str | None = None
    client_auth: Literal["none", "requested", "required"] = "none"
    sasl: bool = False
    session_ms: int = 0

    def __post_init__(self) -> None:
        if self.certificate_pem and "-----BEGIN PRIVATE KEY-----" not in (self.key_pem or ""):
            raise EnvironmentProblem(
                f"The key of listener {self.name} is not PKCS#8 without a password (BEGIN PRIVATE KEY). Kafka takes no "
                "other form: convert it with `openssl pkcs8 -topk8 -nocrypt`."
            )

    @property
    def protocol(self) -> str:
        """Kafka's security protocol."""
        tls = "SSL" if self.certificate_pem else "PLAINTEXT"
        return f"SASL_{tls}" if self.sasl else tls

    def properties(self, users: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """The listener's broker properties, for these users with their passwords."""
        prefix = f"listener.name.{self.name.lower()}."
        if self.certificate_pem:
            yield f"{prefix}ssl.keystore.type", "PEM"
            yield f"{prefix}ssl.keystore.certificate.chain", self.certificate_pem
            yield f"{prefix}ssl.keystore.key", self.key_pem or ""
            yield f"{prefix}ssl.client.auth", self.client_auth
            yield f"{prefix}ssl.principal.mapping.rules", "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT"
        if self.client_ca_pem:
            yield f"{prefix}ssl.truststore.type", "PEM"
            yield f"{prefix}ssl.truststore.certificates", self.client_ca_pem
        if self.sasl:
            yield f"{prefix}sasl.enabled.mechanisms", ",".join(MECHANISMS)
            for mechanism in MECHANISMS:
                yield f"{prefix}{mechanism.lower()}.sasl.jaas.config", _jaas(mechanism, users)
                yield f"{prefix}{mechanism.lower()}.connections.max.reauth.ms", str(self.session_ms)


def _jaas(mechanism: str, users: Mapping[str, str]) -> str:
    match mechanism:
        case "PLAIN":
            options = "".join(f" user_{name}={_quote(password)}" for name, password in users.items())
            return f"{_MODULES}.plain.PlainLoginModule required{options};"
        case "OAUTHBEARER":
            return f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        case _:
            return f"{_MODULES}.scram.ScramLoginModule required;"


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def scram_arguments(users: Mapping[str, str]) -> list[str]:
    """Arguments of Kafka's storage tool that make `users` known for SCRAM (KIP-900).

    Passwords go salted and hashed: the tool's own syntax does not allow all of them.
    """
    arguments = []
    for name, password in users.items():
        for mechanism, algorithm in _SCRAM_HASHES.items():
            salt = os.urandom(16)
            salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, _SCRAM_ITERATIONS)
            fields = {
                "name": name,
                "salt": base64.b64encode(salt).decode(),
                "iterations": str(_SCRAM_ITERATIONS),
                "saltedpassword": base64.b64encode(salted).decode(),
            }
            arguments += ["--add-scram", f"{mechanism}=[{','.join(f'{k}={v}' for k, v in fields.items())}]"]
    return arguments


def unsecured_token(user: str, lifetime_s: float = 3600) -> str:
    """An OAUTHBEARER token for `user`: a JWT without a signature (RFC 7519, section 6)."""
    now_s = time.time()
    claims = {"sub": user, "iat": now_s, "exp": now_s + lifetime_s}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), ""])
