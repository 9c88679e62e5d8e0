"""Settings that a user may choose, refusals and their errors, TLS contexts, and errors that keep their attributes."""

import asyncio
import os
import ssl
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import trustme
from harness import kio_messages
from harness.fake_broker import NO_THROTTLE, FakeBroker, on_a_loop, until
from harness.secured import KEY_PASSWORD, Identity, identity
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kgroup.errors import AuthenticationFailed, BrokerError, ConnectionFailed, Disconnected, OptionError
from spark_kgroup.model import MemberIdentity
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.security import from_properties
from spark_kgroup.wire.security.from_properties import security_settings
from spark_kgroup.wire.security.oauth import ClientCredentials
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import Plaintext, SecuritySettings
from spark_kgroup.wire.security.tls import tls_failure
from spark_kgroup.wire.security.tokens import Token

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

SECRET = "hush-hush"


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def client(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return identity(ca.issue_cert("client@example.org"), tmp_path_factory.mktemp("client"), "client")


def tls(**more: Any) -> ssl.SSLContext:
    context = asyncio.run(load_security(SecuritySettings(protocol="SSL", **more)).ssl_context())
    assert context is not None
    return context


# -------------------------------------------------------------------------------------------------------- choices


def test_no_secret_is_shown() -> None:
    """Every text that may hold one: the fields that stay visible are listed here."""
    texts: dict[str, Any] = {field.name: f"{SECRET}-{field.name}" for field in fields(SecuritySettings)}
    shown = repr(SecuritySettings(**texts))
    visible = {"protocol", "mechanism", "username", "verify_certificate", "verify_hostname"}
    visible |= {"ca_location", "certificate_location", "key_location"}
    assert {field.name for field in fields(SecuritySettings) if f"{SECRET}-{field.name}" in shown} == visible


def test_plaintext_needs_no_setting() -> None:
    assert isinstance(load_security(SecuritySettings()), Plaintext)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"protocol": "TLS"}, r"`security\.protocol` is 'TLS': it needs PLAINTEXT, SSL"),
        ({"protocol": "SASL_SSL"}, r"`sasl\.mechanism` is missing: .* PLAIN, SCRAM-SHA-256"),
        ({"protocol": "SASL_SSL", "mechanism": "GSSAPI"}, r"`sasl\.mechanism` is 'GSSAPI'"),
        ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "password": SECRET}, r"`sasl\.username` is missing"),
        ({"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": "u"}, r"`sasl\.password` is missing"),
        (
            {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER"},
            r"A token function is missing: .* set `sasl\.oauthbearer\.method`=oidc",
        ),
        ({"protocol": "SSL", "ca_location": "/no/such.pem"}, r"`ssl\.ca\.location`: cannot read '/no/such\.pem'"),
        ({"protocol": "SSL", "ca_pem": "x"}, r"`ssl\.ca\.pem` holds no certificate in PEM form"),
        ({"protocol": "SSL", "ca_pem": ""}, r"`ssl\.ca\.pem` holds no certificate in PEM form"),
        ({"protocol": "SSL", "key_pem": SECRET}, r"`ssl\.key` is given without its certificate"),
        ({"protocol": "SSL", "certificate_pem": SECRET}, r"do not hold a certificate and its private key in PEM form"),
        ({"protocol": "SSL", "key_location": "/no/key"}, r"`ssl\.key\.location`: cannot read '/no/key'"),
    ],
)
def test_contradictory_or_incomplete_settings_are_refused_with_the_option_and_the_fix(
    chosen: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message) as error:
        load_security(SecuritySettings(**chosen))
    assert SECRET not in str(error.value)


def test_a_store_that_is_not_text_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store.p12"
    store.write_bytes(bytes(range(256)))
    with pytest.raises(OptionError, match=r"PEM form: .*openssl pkcs12 -in store\.p12 -nodes"):
        tls(certificate_location=str(store))
    with pytest.raises(OptionError, match=r"`ssl\.ca\.location` holds no certificate in PEM form"):
        tls(ca_location=str(store))


@pytest.mark.parametrize(
    ("password", "problem"),
    [(None, "is missing, but the key is encrypted"), ("wrong", "does not open the key")],
)
def test_an_encrypted_key_needs_its_password_and_never_asks_the_terminal(
    client: Identity, password: str | None, problem: str
) -> None:
    pair = {"certificate_pem": client.certificate_pem, "key_pem": client.encrypted_key_pem}
    with pytest.raises(OptionError, match=rf"`ssl\.key\.password` {problem}"):
        tls(**pair, key_password=password)
    tls(**pair, key_password=KEY_PASSWORD)


def test_a_key_must_fit_its_certificate(ca: trustme.CA, client: Identity, tmp_path: Path) -> None:
    other = identity(ca.issue_cert("other@example.org"), tmp_path, "other")
    with pytest.raises(OptionError, match=r"`ssl\.key\.pem` is not the key of `ssl\.certificate\.pem`"):
        tls(certificate_pem=client.certificate_pem, key_pem=other.key_pem)


def test_certificate_and_key_may_stand_in_one_file(client: Identity, tmp_path: Path) -> None:
    """As in Java's PEM key stores. No copy stays in the folder for temporary files."""
    (tmp_path / "both.pem").write_text(client.key_pem + client.certificate_pem)
    tls(certificate_location=str(tmp_path / "both.pem"))


def test_a_private_key_is_in_no_file_of_ours(client: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed would leave it behind. On Linux there is no folder needed at all."""
    pair = {"certificate_pem": client.certificate_pem, "key_pem": client.key_pem}
    descriptors = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    tls(**pair)
    assert sorted(os.listdir("/proc/self/fd")) == descriptors
    (tmp_path / "absent").mkdir()
    monkeypatch.delattr(os, "memfd_create")  # as elsewhere
    tls(**pair)
    assert list((tmp_path / "absent").iterdir()) == []


def test_certificates_and_host_names_are_checked_as_the_options_say(ca: trustme.CA, tmp_path: Path) -> None:
    pem = ca.cert_pem.bytes().decode()
    strict = tls(ca_pem=f"# of Ørsted & Søn\n{pem}")
    assert strict.minimum_version == ssl.TLSVersion.TLSv1_2
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert strict.cert_store_stats()["x509_ca"] == 1, "that CA and no other"
    any_host = tls(ca_pem=pem, verify_hostname=False)
    assert (any_host.verify_mode, any_host.check_hostname) == (ssl.CERT_REQUIRED, False)
    blind = tls(verify_certificate=False)
    assert (blind.verify_mode, blind.check_hostname) == (ssl.CERT_NONE, False)
    assert tls(ca_location=str(tmp_path)).cert_store_stats()["x509_ca"] == 0, "a directory is read when it is needed"


# ---------------------------------------------------------------------------------------------- librdkafka's names


@pytest.mark.parametrize("form", [".location", ".pem"])
def test_librdkafka_s_properties_make_settings(form: str) -> None:
    text = {
        name: f"value of {name}"
        for name in from_properties.PROPERTIES
        if name.startswith(("ssl.", "sasl.")) and not name.startswith(("ssl.endpoint", "sasl.mech", "sasl.oauth"))
        if name.endswith(form) or not name.endswith((".pem", ".location"))
    }
    settings = security_settings(
        {
            **text,
            "security.protocol": "sasl_ssl",
            "enable.ssl.certificate.verification": "False",
            "ssl.endpoint.identification.algorithm": "none",
            "sasl.mechanism": "PLAIN",
            "client.id": "x",
        }
    )
    assert settings.protocol == "SASL_SSL"
    assert (settings.verify_certificate, settings.verify_hostname) == (False, False)
    assert settings.key_password == "value of ssl.key.password"
    assert {getattr(settings, field.name) for field in fields(settings)} >= set(text.values())


def test_oidc_makes_a_token_provider() -> None:
    oauth = "sasl.oauthbearer"
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        f"{oauth}.method": "oidc",
        f"{oauth}.token.endpoint.url": "https://idp.example/token",
        f"{oauth}.client.id": "me",
        f"{oauth}.client.secret": SECRET,
        f"{oauth}.scope": "read",
        f"{oauth}.extensions": "a=1,b=x=y",
    }
    provider = security_settings(given).token
    assert isinstance(provider, ClientCredentials)
    assert provider.client_secret == SECRET
    assert provider.extensions == {"a": "1", "b": "x=y"}
    for name in list(given)[3:6]:
        with pytest.raises(OptionError, match=rf"`{name}` is missing"):
            security_settings({key: value for key, value in given.items() if key != name})
    with pytest.raises(OptionError, match="'a' is not NAME=VALUE"):
        security_settings({**given, f"{oauth}.extensions": "a"})


LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": SECRET}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl.endpoint.identification.algorithm": "htps"}, r"`ssl\..*` is 'htps': it needs https or none .*'https'\?"),
        ({"ssl.endpoint.identification.algorithm": "true"}, "it needs https or none"),
        ({"enable.ssl.certificate.verification": "maybe"}, "is 'maybe': it needs true or false"),
        ({"enable.ssl.certificate.verification": "0"}, "it needs true or false"),
        ({"security.protocol": "TLS"}, "it needs PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl.mechanism": "SCRAM-SHA-521"}, "did you mean 'SCRAM-SHA-512'"),
        ({"ssl.ca.location": ""}, "it needs a PEM file"),
        ({"ssl.key.password": ""}, r"`ssl\.key\.password` is not valid"),
        ({"ssl.ca.pem": "x", "ssl.ca.location": "/y"}, "say the same thing"),
        ({"ssl.certificate.location": "/x"}, r"needs `ssl\.key\.location` \(or \.pem\)"),
        ({"ssl.key.pem": SECRET}, r"needs `ssl\.certificate\.location`"),
        (LOGIN, r"`sasl\.mechanism` has no effect, because `security\.protocol` is SSL: set .* to SASL_SSL"),
        ({**LOGIN, "security.protocol": "PLAINTEXT"}, "has no effect, because `security.protocol` is PLAINTEXT"),
        ({"security.protocol": "PLAINTEXT", "ssl.ca.location": "/x"}, r"`ssl\.ca\.location` has no effect"),
        ({"security.protocol": "SASL_SSL"}, r"`sasl\.mechanism` is missing"),
        ({**LOGIN, "security.protocol": "SASL_SSL", "sasl.oauthbearer.scope": "s"}, "has no effect.*OAUTHBEARER"),
    ],
)
def test_a_property_that_would_be_forgotten_or_misread_is_refused(given: dict[str, str], message: str) -> None:
    """Else a typing mistake turns a check off, and a login without its protocol is never made."""
    with pytest.raises(OptionError, match=message) as error:
        security_settings({"security.protocol": "SSL", **given})
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("text", "checked"), [("https", True), (" HTTPS ", True), ("none", False), ("NONE", False), ("", False)]
)
def test_the_host_name_is_checked_unless_it_is_turned_off_as_clients_do(text: str, checked: bool) -> None:
    given = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": text}
    assert security_settings(given).verify_hostname is checked
    assert security_settings({"security.protocol": "SSL"}).verify_hostname


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"username": "u", "password": SECRET}, "`sasl.username` has no effect, because `security.protocol` is PLAINT"),
        ({"protocol": "SSL", "mechanism": "PLAIN"}, "`sasl.mechanism` has no effect"),
        ({"protocol": "SSL", "token": lambda: Token(SECRET, 1.0)}, "The token function has no effect"),
        ({"verify_hostname": False}, "`ssl.endpoint.identification.algorithm` has no effect"),
        ({"verify_certificate": False}, "`enable.ssl.certificate.verification` has no effect"),
        ({"ca_location": "/ca.pem"}, "`ssl.ca.location` has no effect"),
        ({"protocol": "ssl"}, "`security.protocol` is 'ssl'"),
        ({"protocol": 7}, "`security.protocol` is '7'"),
        ({"mechanism": 7}, "`sasl.mechanism` is of type int: it needs PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHB"),
        ({"username": ["u"]}, "`sasl.username` is of type list: it needs a name, as a text."),
        ({"password": SECRET.encode()}, "`sasl.password` is of type bytes: it needs a password, as a text."),
        ({"ca_location": True}, "`ssl.ca.location` is of type bool: it needs a PEM file"),
        ({"certificate_pem": SECRET.encode()}, "`ssl.certificate.pem` is of type bytes"),
        ({"key_pem": {"key": SECRET}}, "`ssl.key.pem` is of type dict: it needs a private key in PEM, as a text."),
        (
            {"verify_hostname": "none"},
            "`ssl.endpoint.identification.algorithm` is of type str: `verify_hostname` needs",
        ),
        ({"verify_certificate": 0}, "`enable.ssl.certificate.verification` is of type int: `verify_certificate` needs"),
        ({"token": SECRET}, "The token function is of type str: `token` needs a function that returns a Token."),
    ],
)
def test_settings_of_a_program_are_held_to_the_same(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace(".", r"\.")) as error:
        load_security(SecuritySettings(**chosen))
    assert SECRET not in str(error.value)


# ------------------------------------------------------------------------------------------------- errors of TLS


def failure(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] told by OpenSSL")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "kind", "message"),
    [
        (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            AuthenticationFailed,
            "requires a client certificate: set `ssl.cert",
        ),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", AuthenticationFailed, "our client certificate has expired"),
        ("TLSV1_ALERT_UNKNOWN_CA", AuthenticationFailed, "does not accept our client certificate"),
        ("WRONG_VERSION_NUMBER", AuthenticationFailed, "does not speak TLS: check `security.protocol`"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", AuthenticationFailed, "TLS 1.2 or newer is needed"),
        ("UNEXPECTED_EOF_WHILE_READING", ConnectionFailed, "TLS failed: UNEXPECTED_EOF_WHILE_READING"),
    ],
)
def test_openssl_s_reasons_in_our_words(reason: str, kind: type[Exception], message: str) -> None:
    error = tls_failure("broker-1:9093", failure(reason))
    assert type(error) is kind
    assert str(error).startswith("broker-1:9093: ")
    assert message in str(error)
    assert error.retriable is (kind is ConnectionFailed)


def code_of(response: schema.Response) -> int:
    assert isinstance(response, schema.HeartbeatResponse)
    return response.error_code


@on_a_loop
async def test_requests_and_answers_go_through_tls(ca: trustme.CA) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(server)
    security = load_security(SecuritySettings(protocol="SSL", ca_pem=ca.cert_pem.bytes().decode()))
    large = "x" * 1_000_000

    def answer(request: Any) -> Any:
        assert request.member_id == large
        return kio_messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode(27))

    beat = messages.heartbeat("g", MemberIdentity(instance_id=None, member_id=large))
    async with FakeBroker(answer, tls=server) as broker:
        async with await Connection.open(broker.address, client_id="t", security=security) as connection:
            answers = await asyncio.gather(*(connection.call(beat) for _ in range(5)))
            assert {code_of(answer) for answer in answers} == {27}
        other = load_security(SecuritySettings(protocol="SSL"))
        with pytest.raises(AuthenticationFailed, match=r"set `ssl\.ca\.location`"):
            await Connection.open(broker.address, client_id="t", security=other)
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})  # the server's half of that handshake


@on_a_loop
async def test_a_listener_that_never_answers_our_hello_is_given_up_in_time() -> None:
    """No broker's TLS: a server that accepts and waits."""
    done = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        address = Address(*server.sockets[0].getsockname())
        security = load_security(SecuritySettings(protocol="SSL"))
        with pytest.raises(ConnectionFailed, match="did not finish a TLS handshake within 2000 ms"):
            # The files of certificates are looked at within the same bound, which takes a while on a busy machine.
            await Connection.open(address, client_id="t", security=security, connect_timeout_ms=2_000)
        done.set()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


def test_an_error_for_one_more_caller_keeps_its_fields() -> None:
    refused = BrokerError("Heartbeat", 25, "who?")
    passing = AuthenticationFailed("not yet", retriable=True)
    for error in (refused, passing, Disconnected("gone")):
        again = error.again()
        assert again is not error
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
    assert (refused.again().code, passing.again().retriable) == (25, True)


def test_a_token_s_value_is_not_shown() -> None:
    assert SECRET not in repr(Token(SECRET, 1.0))
