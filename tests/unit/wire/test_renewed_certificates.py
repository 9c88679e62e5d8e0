"""Certificates, keys and CAs are renewed on disk while a client runs: connections follow, without a restart."""

import asyncio
import logging
import os
import re
import ssl
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trustme
from harness.fake_broker import FakeBroker, on_a_loop, until
from harness.secured import chain_of, key_of
from harness.waiting import wait_for

from spark_kgroup.errors import AuthenticationFailed, OptionError, WireError
from spark_kgroup.threads import in_a_thread
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.security import secured
from spark_kgroup.wire.security.files import CredentialFiles
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import Security, SecuritySettings
from spark_kgroup.wire.security.tls import renewed_context

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


class Files:
    """The files that a client reads, as an operator writes them."""

    def __init__(self, folder: Path) -> None:
        self.ca = folder / "ca.pem"
        self.certificate = folder / "client.pem"
        self.key = folder / "client.key"

    def trust(self, *cas: trustme.CA) -> None:
        replace(self.ca, "".join(ca.cert_pem.bytes().decode() for ca in cas))

    def identify(self, cert: trustme.LeafCert) -> None:
        replace(self.certificate, chain_of(cert))
        replace(self.key, key_of(cert))

    def settings(self, *, with_certificate: bool = False) -> SecuritySettings:
        pair: dict[str, Any] = {"certificate_location": str(self.certificate), "key_location": str(self.key)}
        return SecuritySettings(protocol="SSL", ca_location=str(self.ca), **pair if with_certificate else {})


def replace(path: Path, text: str) -> None:
    """Replace a file by a rename: it is another file then."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def next_ca() -> trustme.CA:
    return trustme.CA()


def server_of(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def connect(broker: FakeBroker, security: Security) -> None:
    await (await Connection.open(broker.address, client_id="t", security=security)).close()


async def refusal_of(broker: FakeBroker, security: Security) -> AuthenticationFailed:
    with pytest.raises(AuthenticationFailed) as raised:
        await connect(broker, security)
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task(), *broker._serving})
    return raised.value


# -------------------------------------------------------------------------------------------------- new connections


@on_a_loop
async def test_a_new_connection_trusts_the_ca_that_is_on_disk_by_then(
    files: Files, ca: trustme.CA, next_ca: trustme.CA
) -> None:
    """librdkafka 2868: brokers restart with certificates of the CA that the client's file has had for long."""
    files.trust(ca)
    security = load_security(files.settings())
    server = server_of(ca)
    async with FakeBroker(tls=server) as broker:
        await connect(broker, security)
        files.trust(ca, next_ca)
        next_ca.issue_cert("127.0.0.1").configure_cert(server)
        await connect(broker, security)


@on_a_loop
async def test_a_new_connection_shows_the_certificate_that_is_on_disk_by_then(
    files: Files, ca: trustme.CA, next_ca: trustme.CA
) -> None:
    files.trust(ca)
    files.identify(ca.issue_cert("client@example.org"))
    security = load_security(files.settings(with_certificate=True))
    server = server_of(ca)
    server.verify_mode = ssl.CERT_REQUIRED
    ca.configure_trust(server)
    async with FakeBroker(tls=server) as broker:
        await connect(broker, security)
        files.identify(next_ca.issue_cert("client@example.org"))
        with pytest.raises(WireError):  # the new one is shown, and this server hangs up without a reason
            await connect(broker, security)
        next_ca.configure_trust(server)
        await connect(broker, security)


@pytest.mark.parametrize("copied", [False, True])
def test_a_read_that_begins_between_a_certificate_and_its_key_waits_for_the_key(
    files: Files, ca: trustme.CA, caplog: pytest.LogCaptureFixture, copied: bool
) -> None:
    files.trust(ca)
    files.identify(ca.issue_cert("client@example.org"))
    renewed = ca.issue_cert("client@example.org")
    replace(files.certificate, chain_of(renewed))
    if copied:  # with the time at which it was made elsewhere
        for path in (files.ca, files.certificate, files.key):
            os.utime(path, (0, time.time() - 3_600))
    begun = in_a_thread(lambda: renewed_context(files.settings(with_certificate=True), 60_000), "read")
    wait_for(lambda: "Certificates have just changed, and are read again" in caplog.text, "the pair to be refused")
    replace(files.key, key_of(renewed))
    assert begun.result(30).context()


def test_a_pair_that_has_not_fitted_for_long_is_an_error_at_once(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.trust(ca)
    files.identify(ca.issue_cert("client@example.org"))
    replace(files.key, key_of(ca.issue_cert("client@example.org")))
    an_hour_later_ns = time.time_ns() + 3_600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: an_hour_later_ns)
    began_s = time.monotonic()
    with pytest.raises(OptionError, match=r"`ssl\.key\.location` is not the key of `ssl\.certificate\.location`"):
        renewed_context(files.settings(with_certificate=True), 600_000)
    assert time.monotonic() < began_s + 300


@on_a_loop
async def test_a_certificate_without_its_key_yet_leaves_the_earlier_pair_in_use(
    files: Files, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """Operators write one file after the other, and some truncate a file before they write it."""
    renewed = ca.issue_cert("client@example.org")
    files.trust(ca)
    files.identify(ca.issue_cert("client@example.org"))
    security = load_security(files.settings(with_certificate=True))
    server = server_of(ca)
    server.verify_mode = ssl.CERT_REQUIRED
    ca.configure_trust(server)
    async with FakeBroker(tls=server) as broker:
        for change in (
            lambda: replace(files.certificate, chain_of(renewed)),
            lambda: files.key.write_text(""),
            files.key.unlink,
            lambda: files.ca.write_text(""),
        ):
            change()
            await connect(broker, security)
            await connect(broker, security)
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 4, "one for each change, not for each connection"
        # Where another test of this process has begun a query, log lines name settings as options.
        named = r"`?(kafka\.)?ssl\.key\.location`? is not the key of `?(kafka\.)?ssl\.certificate\.location"
        assert re.search(f"the earlier ones stay in use: {named}", warnings[0])
        files.trust(ca)
        files.identify(renewed)
        caplog.set_level(logging.INFO)
        await connect(broker, security)
        assert "Certificates have changed, and are read again" in caplog.records[-1].getMessage()


@on_a_loop
async def test_files_that_stay_as_they_are_are_read_once(files: Files, ca: trustme.CA) -> None:
    files.trust(ca)
    security = load_security(files.settings())
    assert await security.ssl_context() is await security.ssl_context()
    by_text = load_security(SecuritySettings(protocol="SSL", ca_pem=files.ca.read_text()))
    assert await by_text.ssl_context() is await by_text.ssl_context()


@on_a_loop
async def test_the_system_s_cas_are_looked_at_too(
    files: Files, ca: trustme.CA, next_ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image or its administrator updates them (update-ca-certificates)."""
    files.trust(ca)
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    security = load_security(SecuritySettings(protocol="SSL"))
    async with FakeBroker(tls=server_of(next_ca)) as broker:
        assert not (await refusal_of(broker, security)).retriable
        files.trust(next_ca)
        await connect(broker, security)


def test_links_and_folders_are_seen_to_change(tmp_path: Path) -> None:
    """Kubernetes replaces a link to the folder with the files (AtomicWriter). `openssl rehash` adds links."""
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ca.pem").write_text("same size")
    (tmp_path / "data").symlink_to("one")
    linked = CredentialFiles({"ca": str(tmp_path / "data" / "ca.pem")})
    folder = CredentialFiles({"ca": str(tmp_path / "two")})
    assert not linked.take_change()
    assert not folder.take_change()
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(tmp_path / "data")
    (tmp_path / "two" / "1234.0").write_text("one more")
    for changed in (linked, folder):
        assert changed.have_changed()
        assert changed.take_change()
        assert not changed.take_change()


# ---------------------------------------------------------------------------------------------------------- refusals


@on_a_loop
async def test_a_refusal_at_first_contact_is_final_unless_files_have_changed_meanwhile(
    files: Files, ca: trustme.CA, next_ca: trustme.CA
) -> None:
    files.trust(ca)
    security = load_security(files.settings())
    async with FakeBroker(tls=server_of(next_ca)) as broker:
        refusal = await refusal_of(broker, security)
        assert not refusal.retriable
        assert "before" not in str(refusal)
        await security.ssl_context()
        files.trust(next_ca)  # while that context is being used
        late = AuthenticationFailed("refused")
        assert security.on_tls_refused(broker.address, late).retriable
        assert not late.retriable, "an error stays as it was made"
        await connect(broker, security)


@on_a_loop
async def test_a_broker_that_was_accepted_may_be_refused_for_a_while_and_the_error_says_since_when(
    files: Files, ca: trustme.CA, next_ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's new certificate may be there before the CA that issued it."""
    files.trust(ca)
    os.utime(files.ca, (0, 0))
    security = load_security(files.settings())
    server = server_of(ca)
    async with FakeBroker(tls=server) as broker:
        await connect(broker, security)
        next_ca.issue_cert("127.0.0.1").configure_cert(server)
        first = await refusal_of(broker, security)
        assert first.retriable
        shown = re.fullmatch(
            rf"{broker.address}: the broker's certificate is not from a CA that is trusted here: .* The cluster "
            r"accepted this client before, last at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC; with 127\.0\.0\.1:\d+ it has "
            r"failed for 0 s\. .*\. On this machine `ssl\.ca\.location` \('.*ca\.pem'\) was last changed at "
            r"1970-01-01 00:00:00 UTC\.",
            str(first),
        )
        assert shown, first
        monkeypatch.setattr(secured, "AUTHENTICATION_GRACE_MS", 0)
        assert not (await refusal_of(broker, security)).retriable
        files.trust(ca, next_ca)
        await connect(broker, security)
        files.trust(ca)
        monkeypatch.undo()
        assert (await refusal_of(broker, security)).retriable, "it has been accepted since"


def test_each_broker_has_its_own_time_and_a_later_refusal_begins_anew(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    files.trust(ca)
    security = load_security(files.settings())

    def is_final(address: str, at_s: float) -> bool:
        now_s[0] = at_s
        return not security.on_tls_refused(address, AuthenticationFailed("refused")).retriable

    async def unused(_: object) -> NoReturn:
        raise AssertionError("TLS alone sends nothing")

    assert is_final("a", 1000)
    asyncio.run(security.authenticate("a", unused))
    assert [is_final("a", at_s) for at_s in (1000, 1030, 1059, 1060)] == [False, False, False, True]
    assert not is_final("b", 1060), "another broker may take longer"
    assert not is_final("a", 5000), "nobody has asked it for an hour: it restarts once more"
