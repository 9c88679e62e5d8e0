"""TLS: a context from librdkafka's properties, and errors that name these properties."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from spark_kgroup.errors import AuthenticationFailed, ConnectionFailed, OptionError, WireError
from spark_kgroup.wire.security.files import CredentialFiles, read_settled
from spark_kgroup.wire.security.settings import SecuritySettings

log = logging.getLogger(__name__)

_UNTRUSTED: Final = (
    "the broker's certificate is not from a CA that is trusted here: set `ssl.ca.location` (or `ssl.ca.pem`) "
    "to the CA that issued it"
)
_WRONG_HOST: Final = (
    "the broker's certificate is for another host: connect by a name that stands in it, issue it for this one, or turn "
    "the check off with `ssl.endpoint.identification.algorithm`=none"
)
_VERIFICATION: Final = {
    9: "the broker's certificate is not valid yet: check this machine's clock and the broker's certificate",
    10: "the broker's certificate has expired: renew it on the broker",
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    62: _WRONG_HOST,
    64: _WRONG_HOST,
}
"""OpenSSL's X509_V_ERR codes (x509_vfy.h)."""

_OUR_CERTIFICATE: Final = (
    "set `ssl.certificate.location` and `ssl.key.location` (or the .pem ones) to a certificate that the "
    "broker's truststore accepts"
)
_REQUIRED: Final = f"the broker requires a client certificate: {_OUR_CERTIFICATE}"
_NOT_ACCEPTED: Final = f"the broker does not accept our client certificate, or requires one: {_OUR_CERTIFICATE}"
_NO_TLS: Final = "the peer does not speak TLS: check `security.protocol` and the port"
_NO_COMMON: Final = "no TLS version or cipher in common: TLS 1.2 or newer is needed"
_REASONS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _REQUIRED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_ACCEPTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_ACCEPTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"our client certificate has expired: {_OUR_CERTIFICATE}",
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_ACCEPTED,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": f"{_NO_COMMON}; or {_NOT_ACCEPTED}",
    "TLSV1_ALERT_PROTOCOL_VERSION": _NO_COMMON,
    "UNSUPPORTED_PROTOCOL": _NO_COMMON,
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
}
"""OpenSSL's reasons -> our words. An alert is the broker's message about us."""


class RenewedContext:
    """The TLS context for new connections, made anew when the files that it was read from have changed.

    Where the new files do not fit together, the earlier context stays in use until they change again: a certificate
    may be renewed a moment before its key. Thread-safe.

    Args:
        files: the files that `make` reads.
        make: reads them and makes a context.
        patience_ms: how long the constructor may wait for files that are being renewed (`read_settled`).

    Raises:
        OptionError: `make` raised it in the constructor. Later the earlier context stays in use instead.
    """

    def __init__(self, files: CredentialFiles, make: Callable[[], ssl.SSLContext], patience_ms: int = 0) -> None:
        self.files = files
        self._make = make
        self._lock = threading.Lock()
        self._context = read_settled(files, make, patience_ms)

    def context(self) -> ssl.SSLContext:
        """The context to connect with now. Blocks while files are looked at, and read if they have changed."""
        with self._lock:
            if self.files.take_change():
                try:
                    self._context = self._make()
                    log.info("Certificates have changed, and are read again: %s.", self.files.describe())
                except OptionError as error:
                    log.warning("Certificates have changed, and the earlier ones stay in use: %s", error)
            return self._context


def renewed_context(settings: SecuritySettings, patience_ms: int = 0) -> RenewedContext:
    """The context of these settings, which is made anew when their files are renewed.

    Args:
        settings: they name the files.
        patience_ms: how long the call may block while files are being renewed.

    Raises:
        OptionError: as `client_context`.
    """
    locations = {
        **ca_locations(settings.ca_location, settings.ca_pem, "ssl.ca"),
        "`ssl.certificate.location`": settings.certificate_location,
        "`ssl.key.location`": settings.key_location,
    }
    files = CredentialFiles({name: path for name, path in locations.items() if path is not None})
    return RenewedContext(files, lambda: client_context(settings), patience_ms)


def ca_locations(location: str | None, pem: str | None, option: str) -> dict[str, str]:
    """Where `trust`, with the same arguments, reads certificate authorities from, by how an error names it."""
    if location is not None:
        return {f"`{option}.location`": location}
    if pem is not None:
        return {}
    system = ssl.get_default_verify_paths()
    places = {"this system's CA file": system.cafile, "this system's CA directory": system.capath}
    return {name: path for name, path in places.items() if path is not None}


def client_context(settings: SecuritySettings) -> ssl.SSLContext:
    """TLS 1.2 or newer, with the CAs, the client certificate and the checks that `settings` ask for.

    Raises:
        OptionError: a file cannot be read, a text is no PEM, or a key does not fit its certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The order matters: the ssl module refuses CERT_NONE while host names are checked.
    context.check_hostname = settings.verify_hostname and settings.verify_certificate
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify_certificate else ssl.CERT_NONE
    trust(context, settings.ca_location, settings.ca_pem, "ssl.ca")
    _identify(context, settings)
    return context


def trust(context: ssl.SSLContext, location: str | None, pem: str | None, option: str) -> None:
    """Add certificate authorities: those at `location`, those in `pem`, or else those that this system trusts.

    Args:
        context: gets them.
        location: a PEM file, or a directory of them under their hashes.
        pem: the same as text.
        option: ssl.ca or https.ca, for error messages.

    Raises:
        OptionError: they cannot be read.
    """
    if location is None and pem is None:
        context.load_default_certs()
        return
    if location is not None and Path(location).is_dir():
        context.load_verify_locations(capath=location)
        return
    name = f"`{option}.pem`" if location is None else f"`{option}.location`"
    text = _text(location, pem, option) or ""
    try:
        # Letters beyond ASCII can only be in comments, and bundles of CAs have such.
        context.load_verify_locations(cadata=text.encode("ascii", "replace").decode())
    except (ssl.SSLError, ValueError):  # ValueError: empty
        raise OptionError(f"{name} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----).") from None


def _identify(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    """Present this client's certificate, if it has one."""
    certificate = _text(settings.certificate_location, settings.certificate_pem, "ssl.certificate")
    key = _text(settings.key_location, settings.key_pem, "ssl.key")
    if certificate is None:
        if key is not None:
            raise OptionError("`ssl.key` is given without its certificate: set `ssl.certificate.location` too.")
        return
    asked = []

    def password() -> str:  # without it, OpenSSL would ask the terminal
        asked.append(True)
        return settings.key_password or ""

    with _as_file(f"{key or ''}\n{certificate}") as path:
        try:
            context.load_cert_chain(path, password=password)
        except (ssl.SSLError, ValueError) as error:
            names = (
                f"ssl.certificate.{'pem' if settings.certificate_location is None else 'location'}",
                f"ssl.key.{'pem' if settings.key_location is None else 'location'}",
            )
            raise OptionError(
                _key_problem(error, names, asked=bool(asked), given=bool(settings.key_password))
            ) from None


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path to `text`, since the ssl module loads from files only: to a file in memory on Linux."""
    try:
        descriptor = os.memfd_create("kgroup-tls")
    except (AttributeError, OSError):
        # For this user alone and gone at once, unless this process is killed in between.
        with TemporaryDirectory(prefix="kgroup-tls-") as folder:
            path = Path(folder, "client.pem")
            path.write_text(text)
            yield str(path)
        return
    with open(descriptor, "w") as file:
        file.write(text)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def _key_problem(error: Exception, names: tuple[str, str], *, asked: bool, given: bool) -> str:
    certificate, key = names
    if asked:
        problem = "does not open the key" if given else "is missing, but the key is encrypted"
        return f"`ssl.key.password` {problem} (`ssl.key.location` or .pem)."
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"`{key}` is not the key of `{certificate}`: give the pair."
    return (
        f"`{certificate}` and `{key}` do not hold a certificate and its private key in PEM form: give both, "
        "or a file that holds both. A PKCS12 store becomes PEM by `openssl pkcs12 -in store.p12 -nodes`."
    )


def _text(location: str | None, pem: str | None, option: str) -> str | None:
    return pem if location is None else _read(location, option)


def _read(location: str, option: str) -> str:
    try:
        return Path(location).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise OptionError(
            f"`{option}.location`: cannot read {location!r} on this machine: {error.strerror}. Put the file there, or "
            f"give its text in `{option}.pem`."
        ) from None


def tls_failure(address: object, error: ssl.SSLError) -> WireError:
    """An error of the ssl module as ours, retriable unless it is about certificates or protocols."""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = _VERIFICATION.get(error.verify_code, "the broker's certificate was not accepted: check it")
        return AuthenticationFailed(f"{address}: {problem}. ({error.verify_message})")
    reason = error.reason or ""
    if reason in _REASONS:
        return AuthenticationFailed(f"{address}: {_REASONS[reason]}. ({reason})")
    return ConnectionFailed(f"{address}: TLS failed: {reason or error}. Does this listener speak TLS?")
