"""A false broker or token endpoint writes no line of its own into an error of ours (CWE-117)."""

import http.client
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from harness import kio_messages
from harness.fake_broker import NO_THROTTLE, FakeBroker, on_a_loop
from harness.fake_cluster import BrokerWorld, ends_with, in_a_world
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.primitive import i32, i32Timedelta, i64Timedelta

from spark_kgroup.errors import AuthenticationFailed, ConnectionFailed, WireError
from spark_kgroup.limits import PEER_WORDS_CHARS_MAX
from spark_kgroup.member.consumer_contract import ConsumerHeartbeatRequest
from spark_kgroup.model import ErrorCode, MemberIdentity
from spark_kgroup.runtime import consumer_calls
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.security import oauth
from spark_kgroup.wire.security.mechanisms import oauthbearer
from spark_kgroup.wire.security.oauth import ClientCredentials
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import SecuritySettings
from spark_kgroup.wire.security.tokens import Token

FORGED = "no.\n2026-11-25 03:00:00 ERROR spark: all is lost \x1b[31m" + "A" * 10_000
CHARS_MAX = PEER_WORDS_CHARS_MAX + 300
"""With our own words."""


def assert_harmless(error: BaseException) -> None:
    assert "ERROR spark: all is lost ?[31mAAA" in str(error), "it is told"
    assert str(error).isprintable()
    assert len(str(error)) < CHARS_MAX


LOOK_UPS: dict[str, Callable[[Cluster], Awaitable[object]]] = {
    "FindCoordinator": lambda cluster: cluster.coordinators.find("g"),
    "ConsumerGroupDescribe": lambda cluster: cluster.groups.describe("g"),
    "DescribeConfigs": lambda cluster: cluster.groups.config("g", "consumer.session.timeout.ms"),
}


@pytest.mark.parametrize("api", LOOK_UPS)
def test_the_message_beside_an_error_code_is_a_part_of_our_error(api: str) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.words, world.group_type = FORGED, "consumer"
        world.first[api] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
        cluster = world.cluster()
        with pytest.raises(WireError, match=api) as error:
            await LOOK_UPS[api](cluster)
        assert_harmless(error.value)
        await cluster.close()

    scenario()


@pytest.mark.parametrize("group_type", ["classic", "consumer"])
def test_the_state_of_a_group_is_a_part_of_our_sentence(group_type: str) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.state, world.group_type = FORGED, group_type
        cluster = world.cluster()
        state = (await cluster.groups.describe("g")).state
        assert state.isprintable()
        assert state.startswith("no. 2026")
        await cluster.close()

    scenario()


@in_a_world()
async def test_the_id_of_another_cluster_is_a_part_of_our_error(world: BrokerWorld) -> None:
    world.cluster_id = "ours"
    cluster = world.cluster()
    await cluster.metadata(["a"])
    world.cluster_id = FORGED
    with ends_with(ConnectionFailed, "of another cluster") as error:
        await cluster.metadata(["a"], timeout_ms=3_000)
    assert_harmless(error.value)
    await cluster.close()


def test_the_reason_of_a_refused_heartbeat_is_a_part_of_our_error() -> None:
    asked = ConsumerHeartbeatRequest(identity=MemberIdentity(instance_id=None, member_id="m", generation=0), full=True)
    answer = kio_messages.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=KioErrorCode.invalid_request,
        error_message=FORGED,
        member_id=None,
        member_epoch=i32(0),
        heartbeat_interval=i32Timedelta.parse(timedelta(0)),
        assignment=None,
    )
    message = consumer_calls._to_event(asked, kio_messages.as_ours(answer)).message
    assert message.isprintable()
    assert 0 < len(message) < CHARS_MAX


# ---------------------------------------------------------------------------------------------------------- logins


def sasl(request: Any, *, mechanisms: tuple[str, ...] = ()) -> Any:
    """Answers the handshake with UNSUPPORTED_SASL_MECHANISM if there are mechanisms, and refuses the login."""
    if hasattr(request, "mechanism"):
        return kio_messages.SaslHandshakeResponse(
            error_code=KioErrorCode(33 if mechanisms else 0), mechanisms=mechanisms
        )
    return kio_messages.SaslAuthenticateResponse(
        error_code=KioErrorCode(58),
        error_message=FORGED,
        auth_bytes=b"",
        session_lifetime=i64Timedelta.parse(timedelta(0)),
    )


@pytest.mark.parametrize(
    "refusal", [sasl, lambda request: sasl(request, mechanisms=(FORGED,))], ids=["login", "mechanisms"]
)
def test_the_reason_of_a_refused_login_is_a_part_of_our_error(refusal: Callable[[Any], Any]) -> None:
    security = load_security(SecuritySettings(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="p"))

    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker(refusal) as broker:
            with pytest.raises(AuthenticationFailed) as error:
                await Connection.open(broker.address, client_id="test", security=security)
            assert_harmless(error.value)

    scenario()


def test_the_reason_of_a_refused_token_is_a_part_of_our_error() -> None:
    exchange = oauthbearer(Token("t", 4e9))
    next(exchange)
    assert exchange.send(FORGED.encode()) == b"\x01"
    with pytest.raises(AuthenticationFailed) as error:
        exchange.send(b"")
    assert_harmless(error.value)


def test_the_answer_of_a_token_endpoint_is_a_part_of_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ClientCredentials(endpoint="http://127.0.0.1/t", client_id="me", client_secret="secret")
    body = json.dumps({"error": FORGED}).encode()
    monkeypatch.setattr(oauth, "post", lambda *_, **__: (400, body))
    with pytest.raises(AuthenticationFailed, match="HTTP 400") as refused:
        ask()
    assert_harmless(refused.value)

    def no_http(*_: object, **__: object) -> None:
        raise http.client.BadStatusLine(FORGED)

    monkeypatch.setattr(oauth, "post", no_http)
    with pytest.raises(AuthenticationFailed, match="cannot be asked") as failed:
        ask()
    assert_harmless(failed.value)
