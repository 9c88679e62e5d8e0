"""How Kafka's Java clients spell TLS and SASL, in librdkafka's names.

Pure.

`sasl.jaas.config` is translated for PLAIN, SCRAM and OAUTHBEARER, and so are key and trust stores in PEM (KIP-651).
A property without a counterpart is refused, and the error names the one to use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from spark_kgroup.errors import OptionError

JAAS: Final = "sasl.jaas.config"
_OIDC: Final = "sasl.oauthbearer."

_RENAMED: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    f"{_OIDC}client.credentials.client.id": f"{_OIDC}client.id",
    f"{_OIDC}client.credentials.client.secret": f"{_OIDC}client.secret",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""One name for another, same value: aliases of librdkafka and of Kafka 4.1 (KIP-1139), and PEM stores."""

_KEY_STORE: Final = "ssl.keystore.location"

_STORE_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")

_TO_PEM: Final = {
    "truststore": "export it with `keytool -list -rfc -keystore STORE > ca.pem`, and set `ssl.ca.location` to that "
    "file or `ssl.ca.pem` to its text",
    "keystore": "export it with `openssl pkcs12 -in STORE -out client.pem` (a JKS store first becomes PKCS12 by "
    "`keytool -importkeystore`), and set both `ssl.certificate.location` and `ssl.key.location` to that file",
}


class _Module(NamedTuple):
    """A login module: the mechanisms that it serves, and the names of its options here."""

    mechanisms: tuple[str, ...]
    options: Mapping[str, str]


_USER: Final = {"username": "sasl.username", "password": "sasl.password"}

_MODULES: Final = {
    "PlainLoginModule": _Module(("PLAIN",), _USER),
    "ScramLoginModule": _Module(("SCRAM-SHA-256", "SCRAM-SHA-512"), _USER),
    "OAuthBearerLoginModule": _Module(
        ("OAUTHBEARER",),
        {"clientId": f"{_OIDC}client.id", "clientSecret": f"{_OIDC}client.secret", "scope": f"{_OIDC}scope"},
    ),
}
"""By the class's own name: distributions move the package (`kafkashaded.org.apache.kafka...`)."""

_FOREIGN_MODULES: Final = {
    "Krb5LoginModule": "Kerberos is not spoken here. Use SCRAM, OAUTHBEARER or mTLS",
    "IAMLoginModule": "AWS_MSK_IAM exists in Java only. Use SCRAM, or OAUTHBEARER with a token function that calls "
    "AWS's aws-msk-iam-sasl-signer-python",
}


_STORE_PASSWORDS: Final = ("ssl.truststore.password", "ssl.keystore.password")

NAMES: Final = frozenset({JAAS, _KEY_STORE, *_STORE_TYPES, *_STORE_PASSWORDS, *_RENAMED})
"""The options that are translated here, or refused with the name of the one to use."""


def translate(given: Mapping[str, str]) -> dict[str, str]:
    """`given` in librdkafka's names.

    Args:
        given: properties by name.

    Raises:
        OptionError: a property has no counterpart, cannot be read, or is given in both spellings with different values.
    """
    _check_stores(given)
    result = {name: value for name, value in given.items() if name not in NAMES}
    for origin, name, value in _translations(given):
        if result.setdefault(name, value) != value:
            raise OptionError(f"Option `{origin}` contradicts `{name}`: both say the same thing. Keep one of them.")
    return result


def _translations(given: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(the option it comes from, librdkafka's name, value)."""
    for origin, name in _RENAMED.items():
        if origin in given:
            yield origin, name, given[origin]
    if _KEY_STORE in given:  # one file with the certificate, its chain and the key
        yield _KEY_STORE, "ssl.certificate.location", given[_KEY_STORE]
        yield _KEY_STORE, "ssl.key.location", given[_KEY_STORE]
    if JAAS in given:
        mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "GSSAPI")).strip()
        for name, value in _credentials(given[JAAS], mechanism).items():
            yield JAAS, name, value


# ------------------------------------------------------------------------------------------------- stores


def _check_stores(given: Mapping[str, str]) -> None:
    for store, remedy in _TO_PEM.items():
        about = f"ssl.{store}."
        names = sorted(name for name in given if name.startswith(about))
        kind = given.get(f"{about}type", "JKS").strip().upper()
        if names and kind != "PEM":
            raise OptionError(
                f"Option `{names[0]}` is about a {kind} store (`{about}type`, default JKS): only PEM can be read here. "
                f"Either it is PEM: set `{about}type`=PEM. Or {remedy}."
            )
        if f"{about}password" in given:
            raise OptionError(
                f"Option `{about}password`: a PEM store has no password, only its key may have one. Leave it out, and "
                "set `ssl.key.password` if the key is encrypted."
            )


# --------------------------------------------------------------------------------------------------- JAAS

_TOKEN: Final = re.compile(
    r"""
    (?:\s+|//[^\n]*|/\*.*?\*/)*                     # blanks and comments
    (?:
        (?P<quote>["'])(?P<quoted>(?:[^\\\n]|\\.)*?)(?P=quote)
      | (?P<word>[\w.$-]+)
      | (?P<sign>[=;])
      | (?P<end>\Z)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
"""Java's StreamTokenizer as Kafka sets it up (JaasConfig)."""

_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


def _credentials(jaas: str, mechanism: str) -> dict[str, str]:
    """The options in a login module's line, under librdkafka's names.

    Raises:
        OptionError: it cannot be read, or its module is none of ours, or does not fit the mechanism. Shows no values.
    """
    module, options = _parse_jaas(jaas)
    name = module.rpartition(".")[2]
    if name in _FOREIGN_MODULES:
        raise OptionError(f"Option `{JAAS}` has the login module {name}: {_FOREIGN_MODULES[name]}.")
    if name not in _MODULES:
        raise OptionError(f"Option `{JAAS}` has the login module {module!r}: it must be one of {', '.join(_MODULES)}.")
    if mechanism not in _MODULES[name].mechanisms:
        raise OptionError(
            f"Option `{JAAS}` has the login module {name}, and `sasl.mechanism` is {mechanism} (default GSSAPI): "
            f"with this module it must be {' or '.join(_MODULES[name].mechanisms)}."
        )
    return dict(_named_here(options, _MODULES[name].options))


def _named_here(options: Mapping[str, str], known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    extensions = []
    for key, value in options.items():
        if key in known:
            yield known[key], value
        elif key.startswith("extension_") and known is not _USER:
            extensions.append(f"{key.removeprefix('extension_')}={value}")
        else:
            raise OptionError(f"Option `{JAAS}` sets {key}, which has no meaning here: there are {', '.join(known)}.")
    if extensions:
        yield f"{_OIDC}extensions", ",".join(extensions)


def _parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """`MODULE required key="value" ...;` -> (module, options).

    Raises:
        OptionError: the text is not of that shape.
    """
    tokens = list(_tokens(text))
    shape = "".join(sign or "w" for sign, _ in tokens)
    if re.fullmatch(r"ww(w=w)*;", shape) is None:
        raise _misread('it needs the shape `MODULE required key="value" ...;`, with one module')
    words = [word for sign, word in tokens if not sign]
    module, flag, *pairs = words
    if flag.lower() not in {"required", "requisite", "sufficient", "optional"}:
        raise _misread("a control flag, mostly `required`, follows the module")
    return module, dict(zip(pairs[::2], pairs[1::2], strict=True))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """(sign, "") for `=` and `;`, ("", word) for a word or a quoted text."""
    at = 0
    while True:
        found = _TOKEN.match(text, at)
        if found is None:
            raise _misread("a quote is not closed, or a value with special characters has none")
        if found["end"] is not None:
            return
        at = found.end()
        if found["sign"]:
            yield found["sign"], ""
        elif found["quote"]:
            yield "", _ESCAPE.sub(_unescape, found["quoted"])
        else:
            yield "", found["word"]


def _unescape(escape: re.Match[str]) -> str:
    sign = escape[1]
    return chr(int(sign, 8)) if sign.isdigit() and sign < "8" else _CONTROL.get(sign, sign)


def _misread(why: str) -> OptionError:
    return OptionError(f"Option `{JAAS}` cannot be read: {why}. (Its text is not shown: it holds a secret.)")
