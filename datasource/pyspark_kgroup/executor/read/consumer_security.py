"""TLS and SASL of an executor's consumer: the part of its configuration that depends on this machine.

Runs on: executor.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from pyspark_kgroup.shared.token_callback import CALLBACK, Returned, call_in_time, import_function
from spark_kgroup.errors import AuthenticationFailed, OptionError
from spark_kgroup.wire.security.files import CredentialFiles

log = logging.getLogger(__name__)

_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "https.ca.location")

_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})

_OF_OPENSSL: Final = "SSL routines"
"""Words of OpenSSL's error queue that librdkafka repeats. It reports the same failed handshake under _SSL, and every
now and then as a connection that broke (_TRANSPORT, measured: once in some seconds)."""


def is_refusal(error: KafkaError) -> bool:
    """Whether a broker refuses us or we refuse the broker. librdkafka goes on trying."""
    return error.code() in _REFUSALS or (error.code() == KafkaError._TRANSPORT and _OF_OPENSSL in error.str())


def credential_files(config: Mapping[str, str]) -> CredentialFiles:
    """The files that librdkafka reads when it makes a consumer of `config`, and never again."""
    return CredentialFiles({f"kafka.{name}": config[name] for name in _FILES if name in config})


def usable_here(config: Mapping[str, str]) -> dict[str, Any]:
    """`config` for `confluent_kafka.Consumer` in this process. The token callback is called once.

    Raises:
        OptionError: a file is not on this machine, or the token callback cannot be imported here.
        AuthenticationFailed: the token callback gave no token.
    """
    for name in _FILES:
        if name in config and not os.access(config[name], os.R_OK):
            raise OptionError(
                f"Option kafka.{name}: {config[name]!r} cannot be read on {platform.node()}, where a Spark executor "
                f"runs. Put it there on every machine, or give its text in kafka.{name.replace('location', 'pem')}."
            )
    if CALLBACK not in config:
        return dict(config)
    return {**config, CALLBACK: _oauth_cb(config[CALLBACK], config.get("sasl.oauthbearer.config", ""))}


def _oauth_cb(name: str, config: str) -> Callable[[str], Returned]:
    """The function that confluent-kafka calls for tokens: when the consumer is made, then before the last one expires.

    The first token is asked for here, where an error reaches the user. librdkafka would only say that there was one.
    """
    function = import_function(name)
    first = [call_in_time(name, function, config)]

    def oauth_cb(text: str) -> Returned:
        try:
            return first.pop() if first else call_in_time(name, function, text)
        except AuthenticationFailed as error:
            log.warning("%s librdkafka asks again in 10 s.", error)
            raise

    return oauth_cb
