"""Security settings from librdkafka's properties: which values there are, and which properties belong together.

One table for all callers that take such properties: a value that is not understood is refused, and so is one without
effect. Neither in options nor in a file may `ssl.endpoint.identification.algorithm`=htps turn a check off, or a
password without SASL be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from os import PathLike
from typing import Final, NamedTuple, cast

from spark_kgroup.errors import OptionError
from spark_kgroup.wire.security.settings import MECHANISMS, PROTOCOLS, Mechanism, SecurityProtocol, SecuritySettings
from spark_kgroup.wire.security.tokens import TokenProvider

_PROTOCOL: Final = "security.protocol"
_MECHANISM: Final = "sasl.mechanism"
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
_VERIFICATION: Final = "enable.ssl.certificate.verification"
_OAUTH: Final = "sasl.oauthbearer"
_METHOD: Final = f"{_OAUTH}.method"
_LOGIN: Final = ("sasl.username", "sasl.password")
_OIDC: Final = tuple(f"{_OAUTH}.{name}" for name in ("token.endpoint.url", "client.id", "client.secret"))
_PROVIDER: Final = "token"
"""Stands for the function that returns tokens, which is no property."""

FOREIGN_MECHANISMS: Final = {
    "GSSAPI": "Kerberos is not supported. Use SCRAM, OAUTHBEARER or mTLS",
    "AWS_MSK_IAM": "it exists in Java only. Use OAUTHBEARER with a token function that calls AWS's "
    "aws-msk-iam-sasl-signer-python, or SCRAM",
}

# --------------------------------------------------------------------------------------------------------- the table


class Property(NamedTuple):
    """Which values a property may have.

    Attributes:
        values: as messages and tables name them.
        read: a text's value as librdkafka spells it. Raises ValueError, maybe with a reason, if the text is none.
        secret: its text is never shown, and blanks around it belong to it.
    """

    values: str
    read: Callable[[str], str]
    secret: bool = False


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            from difflib import get_close_matches  # only a mistake needs it

            near = get_close_matches(text, values, n=1)
            raise ValueError(f"did you mean {near[0]!r}?" if near else "")
        return text

    return read


def _protocol(text: str) -> str:
    return _one_of(*PROTOCOLS)(text.upper())


def _mechanism(text: str) -> str:
    if text in FOREIGN_MECHANISMS:
        raise ValueError(FOREIGN_MECHANISMS[text])
    return _one_of(*MECHANISMS)(text)


def _identification(text: str) -> str:
    return _one_of("https", "none")(text.lower() or "none")  # Java turns it off by an empty text


def _switch(text: str) -> str:
    return _one_of("true", "false")(text.lower())


def _extensions(text: str) -> str:
    for pair in text.split(","):
        if re.fullmatch(r"[A-Za-z]+=[^,]+", pair.strip()) is None:
            raise ValueError(f"{pair!r} is not NAME=VALUE")
    return text


PROPERTIES: Final[Mapping[str, Property]] = {
    _PROTOCOL: Property(", ".join(PROTOCOLS), _protocol),
    "ssl.ca.location": Property("a PEM file, or a directory as `openssl rehash` makes it", _text),
    "ssl.ca.pem": Property("certificates in PEM", _text),
    "ssl.certificate.location": Property("a PEM file", _text),
    "ssl.certificate.pem": Property("certificates in PEM", _text),
    "ssl.key.location": Property("a PEM file", _text),
    "ssl.key.pem": Property("a private key in PEM", _text, secret=True),
    "ssl.key.password": Property("a password", _text, secret=True),
    _IDENTIFICATION: Property("https or none", _identification),
    _VERIFICATION: Property("true or false", _switch),
    _MECHANISM: Property(" or ".join((", ".join(MECHANISMS[:-1]), MECHANISMS[-1])), _mechanism),
    "sasl.username": Property("a name", _text),
    "sasl.password": Property("a password", _text, secret=True),
    _METHOD: Property("oidc or default", _one_of("oidc", "default")),
    f"{_OAUTH}.token.endpoint.url": Property("an http or https URL", _text),
    f"{_OAUTH}.client.id": Property("a name", _text),
    f"{_OAUTH}.client.secret": Property("a secret", _text, secret=True),
    f"{_OAUTH}.scope": Property("a scope", _text),
    f"{_OAUTH}.extensions": Property("NAME=VALUE[,NAME=VALUE...], names of letters only", _extensions),
    "https.ca.location": Property("a PEM file or a directory", _text),
    "https.ca.pem": Property("certificates in PEM", _text),
    f"{_OAUTH}.config": Property("any text", _text, secret=True),
}
"""The properties that are understood, by librdkafka's names."""

_NEEDED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    _PROTOCOL: dict.fromkeys(("SASL_SSL", "SASL_PLAINTEXT"), (_MECHANISM,)),
    _MECHANISM: dict.fromkeys(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), _LOGIN),
    _METHOD: {"oidc": _OIDC, "default": (_PROVIDER,)},
}
"""A setting -> some of its values -> the settings that each cannot do without."""

_USED_BY: Final[tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...]] = (
    (("ssl.", "enable.ssl."), _PROTOCOL, ("SASL_SSL", "SSL")),
    (("sasl.", "https.", _PROVIDER), _PROTOCOL, ("SASL_SSL", "SASL_PLAINTEXT")),
    (_LOGIN, _MECHANISM, tuple(_NEEDED[_MECHANISM])),
    ((f"{_OAUTH}.", "https.", _PROVIDER), _MECHANISM, ("OAUTHBEARER",)),
    ((*_OIDC, f"{_OAUTH}.scope", f"{_OAUTH}.extensions", "https."), _METHOD, ("oidc",)),
    ((_PROVIDER, f"{_OAUTH}.config"), _METHOD, ("default",)),
)
"""(beginnings of names, the setting that decides whether those settings have an effect, with which of its values)."""

_PAIR: Final = ("ssl.certificate", "ssl.key")
_FILE_OR_TEXT: Final = ("ssl.ca", *_PAIR, "https.ca")


# ------------------------------------------------------------------------------------------------------------ reading


def read_properties(given: Mapping[str, str], *, has_token: bool = False) -> dict[str, str]:
    """The values of the security properties among `given`, completed with defaults.

    Args:
        given: by librdkafka's names. Properties that are not in `PROPERTIES` are left alone.
        has_token: whether a function returns tokens.

    Raises:
        OptionError: one is out of range, missing, without effect, or contradicts another. No message shows a secret.
    """
    values = {name: _read(name, given[name]) for name in PROPERTIES if name in given}
    values.setdefault(_PROTOCOL, "PLAINTEXT")
    if values.get(_MECHANISM) == "OAUTHBEARER":
        values.setdefault(_METHOD, "oidc" if _OIDC[0] in values else "default")
    _check_effects(
        [name for name in (*PROPERTIES, _PROVIDER) if name in given or (has_token and name == _PROVIDER)], values
    )
    _check_needs(values, has_token=has_token)
    _check_pairs(values)
    return values


def security_settings(properties: Mapping[str, str], token: TokenProvider | None = None) -> SecuritySettings:
    """How to connect and who to be.

    Args:
        properties: by librdkafka's names. Properties that are not in `PROPERTIES` are left alone.
        token: for OAUTHBEARER, unless sasl.oauthbearer.method=oidc says where tokens come from.

    Raises:
        OptionError: as `read_properties`.
    """
    values = read_properties(properties, has_token=token is not None)
    setting = values.get
    return SecuritySettings(
        protocol=cast("SecurityProtocol", values[_PROTOCOL]),
        ca_location=setting("ssl.ca.location"),
        ca_pem=setting("ssl.ca.pem"),
        certificate_location=setting("ssl.certificate.location"),
        certificate_pem=setting("ssl.certificate.pem"),
        key_location=setting("ssl.key.location"),
        key_pem=setting("ssl.key.pem"),
        key_password=setting("ssl.key.password"),
        verify_certificate=setting(_VERIFICATION) != "false",
        verify_hostname=setting(_IDENTIFICATION) != "none",
        mechanism=cast("Mechanism | None", setting(_MECHANISM)),
        username=setting("sasl.username"),
        password=setting("sasl.password"),
        token=_client_credentials(values) if setting(_METHOD) == "oidc" else token,
    )


_FIELDS: Final = {
    "ca_location": "ssl.ca.location",
    "ca_pem": "ssl.ca.pem",
    "certificate_location": "ssl.certificate.location",
    "certificate_pem": "ssl.certificate.pem",
    "key_location": "ssl.key.location",
    "key_pem": "ssl.key.pem",
    "key_password": "ssl.key.password",
    "mechanism": _MECHANISM,
    "username": "sasl.username",
    "password": "sasl.password",
}


def check_settings(settings: SecuritySettings) -> None:
    """Apply the checks for properties to settings that a program has made.

    Raises:
        OptionError: protocol or mechanism is unknown, or a setting is missing, without effect or of a wrong type.
    """
    _check_types(settings)
    chosen = {name: cast("str | None", getattr(settings, field)) for field, name in _FIELDS.items()}
    values = {_PROTOCOL: str(settings.protocol), **{name: value for name, value in chosen.items() if value}}
    for name in (_PROTOCOL, _MECHANISM):
        if name in values and _read(name, values[name]) != values[name]:
            raise _out_of_range(name, values[name], "")
    values |= {} if settings.verify_certificate else {_VERIFICATION: "false"}
    values |= {} if settings.verify_hostname else {_IDENTIFICATION: "none"}
    given = [*values, *([_PROVIDER] if settings.token is not None else [])]
    if settings.mechanism == "OAUTHBEARER":
        values[_METHOD] = "default"
    _check_effects(given, values)
    _check_needs(values, has_token=settings.token is not None)


# ------------------------------------------------------------------------------------------------------------- checks


def _check_types(settings: SecuritySettings) -> None:
    """Refuse what a program without a type checker may have given. A path is as good as a text that names a file."""
    for field, name in _FIELDS.items():
        value, types = getattr(settings, field), (str, PathLike) if field.endswith("_location") else (str,)
        if value is not None and not isinstance(value, types):
            raise OptionError(f"Option `{name}` {_of_type(value)}: it needs {PROPERTIES[name].values}, as a text.")
    for field, name in (("verify_certificate", _VERIFICATION), ("verify_hostname", _IDENTIFICATION)):
        if not isinstance(value := getattr(settings, field), bool):
            raise OptionError(f"Option `{name}` {_of_type(value)}: `{field}` needs True or False.")
    if settings.token is not None and not callable(settings.token):
        raise OptionError(
            f"The token function {_of_type(settings.token)}: `token` needs a function that returns a Token."
        )


def _of_type(value: object) -> str:
    # Never its text: a certificate in PEM may have its private key beside it.
    return f"is of type {type(value).__name__}"


def _read(name: str, text: str) -> str:
    row = PROPERTIES[name]
    try:
        return row.read(text if row.secret else text.strip())
    except ValueError as problem:
        raise _out_of_range(name, text, str(problem)) from None


def _out_of_range(name: str, text: str, reason: str) -> OptionError:
    row = PROPERTIES[name]
    shown = "not valid" if row.secret else repr(text)
    return OptionError(f"Option `{name}` is {shown}: it needs {row.values}{f' ({reason})' if reason else ''}.")


def _check_effects(given: Collection[str], values: Mapping[str, str]) -> None:
    for beginnings, setting, needed in _USED_BY:
        for name in given:
            if name.startswith(beginnings) and values.get(setting) not in needed:
                what = "The token function" if name == _PROVIDER else f"Option `{name}`"
                raise OptionError(
                    f"{what} has no effect, because `{setting}` is {values.get(setting, 'not given')}: set "
                    f"`{setting}` to {' or '.join(needed)}, or leave it out."
                )


def _check_needs(values: Mapping[str, str], *, has_token: bool) -> None:
    for setting, needs in _NEEDED.items():
        for needed in needs.get(values.get(setting, ""), ()):
            if has_token if needed == _PROVIDER else needed in values:
                continue
            if needed == _PROVIDER:
                raise OptionError(
                    f"A token function is missing: `{setting}`={values[setting]} needs one. Or take tokens from a "
                    f"token endpoint: set `{_METHOD}`=oidc, with its URL and client."
                )
            raise OptionError(
                f"Option `{needed}` is missing: `{setting}`={values[setting]} needs it. It needs "
                f"{PROPERTIES[needed].values}."
            )


def _check_pairs(values: Mapping[str, str]) -> None:
    for name in _FILE_OR_TEXT:  # with both, each client would choose for itself
        if f"{name}.location" in values and f"{name}.pem" in values:
            raise OptionError(f"Options `{name}.location` and `{name}.pem` say the same thing: keep one of them.")
    for one, other in (_PAIR, _PAIR[::-1]):
        given = [name for name in (f"{one}.location", f"{one}.pem") if name in values]
        if given and f"{other}.location" not in values and f"{other}.pem" not in values:
            raise OptionError(
                f"Option `{given[0]}` needs `{other}.location` (or .pem): a client certificate and its key come "
                "together. One PEM file may hold both: name it twice."
            )


def _client_credentials(values: Mapping[str, str]) -> TokenProvider:
    # Imported here: it brings asyncio and an HTTP client with it, which most applications never need.
    from spark_kgroup.wire.security.oauth import ClientCredentials

    endpoint, client_id, client_secret = (values[name] for name in _OIDC)
    extensions = (pair.strip().partition("=") for pair in values.get(f"{_OAUTH}.extensions", "").split(",") if pair)
    return ClientCredentials(
        endpoint=endpoint,
        client_id=client_id,
        client_secret=client_secret,
        scope=values.get(f"{_OAUTH}.scope"),
        extensions={name: value for name, _, value in extensions},
        ca_location=values.get("https.ca.location"),
        ca_pem=values.get("https.ca.pem"),
    )
