"""Security settings from librdkafka's properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from spark_kgroup.errors import OptionError
from spark_kgroup.wire.security.settings import NEEDED, Mechanism, SecurityProtocol, SecuritySettings
from spark_kgroup.wire.security.tokens import TokenProvider

_OAUTH: Final = "sasl.oauthbearer"
_OIDC: Final = NEEDED[f"{_OAUTH}.method"]["oidc"]

SECURITY_PROPERTIES: Final = (
    "security.protocol",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    f"{_OAUTH}.method",
    *_OIDC,
    f"{_OAUTH}.scope",
    f"{_OAUTH}.extensions",
    "https.ca.location",
    "https.ca.pem",
)
"""What is understood, by librdkafka's names."""


def security_settings(properties: Mapping[str, str], token: TokenProvider | None = None) -> SecuritySettings:
    """How to connect and who to be.

    Args:
        properties: by librdkafka's names; others than `SECURITY_PROPERTIES` are left alone.
        token: for OAUTHBEARER, unless sasl.oauthbearer.method=oidc says where tokens come from.

    Raises:
        OptionError: OIDC without all that it needs.
    """
    setting = properties.get
    oidc = setting(f"{_OAUTH}.method") == "oidc"
    return SecuritySettings(
        protocol=cast("SecurityProtocol", setting("security.protocol", "PLAINTEXT").upper()),
        ca_location=setting("ssl.ca.location"),
        ca_pem=setting("ssl.ca.pem"),
        certificate_location=setting("ssl.certificate.location"),
        certificate_pem=setting("ssl.certificate.pem"),
        key_location=setting("ssl.key.location"),
        key_pem=setting("ssl.key.pem"),
        key_password=setting("ssl.key.password"),
        verify_certificate=setting("enable.ssl.certificate.verification", "true") != "false",
        verify_hostname=setting("ssl.endpoint.identification.algorithm", "https") == "https",
        mechanism=cast("Mechanism | None", setting("sasl.mechanism")),
        username=setting("sasl.username"),
        password=setting("sasl.password"),
        token=_client_credentials(properties) if oidc else token,
    )


def _client_credentials(properties: Mapping[str, str]) -> TokenProvider:
    # Imported here: it brings asyncio and an HTTP client with it, which most never need.
    from spark_kgroup.wire.security.oauth import ClientCredentials

    for name in _OIDC:
        if not properties.get(name):
            raise OptionError(f"`{name}` is missing: `{_OAUTH}.method`=oidc needs it.")
    endpoint, client_id, client_secret = (properties[name] for name in _OIDC)
    extensions = properties.get(f"{_OAUTH}.extensions", "")
    return ClientCredentials(
        endpoint=endpoint,
        client_id=client_id,
        client_secret=client_secret,
        scope=properties.get(f"{_OAUTH}.scope"),
        extensions=dict(_pair(text) for text in extensions.split(",") if text),
        ca_location=properties.get("https.ca.location"),
        ca_pem=properties.get("https.ca.pem"),
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.strip().partition("=")
    if not equals:
        raise OptionError(f"`{_OAUTH}.extensions`: {text!r} is not NAME=VALUE.")
    return name, value
