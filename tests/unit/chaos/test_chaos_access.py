"""The certificates of `make chaos`: which of them a broker accepts."""

import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from chaos.access import MAIN, MTLS, SECOND, Access
from confluent_kafka.admin import ResourceType


def accepted(access: Access, folder: Path) -> bool:
    """Whether the second query's files open a TLS connection to the listener's certificate."""
    (listener,) = [listener for listener in access.listeners if listener.name == MTLS]
    (folder / "broker.pem").write_text((listener.certificate_pem or "") + (listener.key_pem or ""))
    broker = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=listener.client_ca_pem)
    broker.verify_mode = ssl.CERT_REQUIRED
    broker.load_cert_chain(folder / "broker.pem")
    options = access.options(SECOND)
    client = ssl.create_default_context(cafile=options["kafka.ssl.ca.location"])
    client.load_cert_chain(options["kafka.ssl.certificate.location"], options["kafka.ssl.key.location"])
    to_client, to_broker = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_broker, server_hostname="127.0.0.1"),
        broker.wrap_bio(to_broker, to_client, server_side=True),
    ]
    try:
        for _ in range(4):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLError:
        return False
    return ends[1].version() is not None


@pytest.mark.parametrize(
    ("deeds", "expected"),
    [
        ([], True),
        ([Access.renew_certificate], True),
        ([Access.spoil_certificate], False),
        ([Access.spoil_certificate, Access.renew_certificate], True),
    ],
    ids=["as made", "renewed", "foreign", "renewed after that"],
)
def test_brokers_accept_a_renewed_certificate_and_no_foreign_one(
    deeds: list[Callable[[Access], None]], expected: bool, tmp_path: Path
) -> None:
    access = Access(tmp_path / "access")
    for deed in deeds:
        deed(access)
    assert accepted(access, tmp_path) is expected


def test_a_renewed_certificate_is_another_one(tmp_path: Path) -> None:
    access = Access(tmp_path)
    before = (tmp_path / "client.pem").read_bytes()
    access.renew_certificate()
    assert (tmp_path / "client.pem").read_bytes() != before


def test_the_main_query_logs_in_and_the_second_shows_a_certificate(tmp_path: Path) -> None:
    access = Access(tmp_path)
    assert access.options(MAIN)["kafka.sasl.username"] in access.users
    assert "kafka.sasl.username" not in access.options(SECOND)
    assert access.rights("chaos", ["orders"]) == [(ResourceType.GROUP, "chaos"), (ResourceType.TOPIC, "orders")]
