"""TLS, SASL and ACLs on a real Kafka that asks for them.

Every way in joins, commits and is seen. Every refusal is one clear error within a bound.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from ssl import SSLContext
from typing import Any
from uuid import uuid4

import pytest
import trustme
from confluent_kafka.admin import AclOperation
from harness.fake_broker import on_a_loop, until
from harness.kafka import produce
from harness.members import MemberProcess
from harness.offsets import offsets_alone
from harness.secured import ALICE, BOB, KEY_PASSWORD, PASSWORDS, SHORT_SESSION_MS, TLS_CLIENT, Identity, SecuredKafka
from harness.token_endpoint import token_endpoint

from spark_kgroup.errors import AuthenticationFailed, BrokerError, GroupRejected, KgroupError, UnknownTopic, WireError
from spark_kgroup.member import contract
from spark_kgroup.model import MemberIdentity, Subscription, TopicPartition
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, ProtocolSettings
from spark_kgroup.testing import unsecured_token
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.consumer_protocol import encode_assignment, encode_subscription
from spark_kgroup.wire.security.oauth import ClientCredentials
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import Security, SecuritySettings, Send
from spark_kgroup.wire.security.tokens import Token

pytestmark = [pytest.mark.filterwarnings("error::ResourceWarning"), pytest.mark.xdist_group("together-secured_kafka")]

SECRETS = [*PASSWORDS.values(), "wrong one", "PRIVATE KEY"]
START_BOUND_S = 20
"""STARTUP_TIMEOUT_MS and a little, since a machine under load is slow."""


@pytest.fixture
def topic(secured_kafka: SecuredKafka) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    secured_kafka.kafka.create_topic(name, partitions=8)
    return name


@pytest.fixture
def group(topic: str) -> str:
    return f"of-{topic}"


def allowed(kafka: SecuredKafka, topic: str, group: str, *users: str) -> None:
    for user in users:
        kafka.allow(user, AclOperation.READ, topic=topic)
        kafka.allow(user, AclOperation.READ, group=group)


def login(kafka: SecuredKafka, mechanism: str = "SCRAM-SHA-512", **more: Any) -> SecuritySettings:
    who = {} if mechanism == "OAUTHBEARER" else {"username": ALICE, "password": PASSWORDS[ALICE]}
    settings = {"protocol": "SASL_SSL", "mechanism": mechanism, "ca_pem": kafka.ca_pem, **who, **more}
    return SecuritySettings(**settings)


def tokens(user: str = ALICE, lifetime_s: float = 3600) -> Callable[[], Token]:
    return lambda: Token(unsecured_token(user, lifetime_s), time.time() + lifetime_s)


def seat(
    kafka: SecuredKafka, listener: str, security: Security, topic: str, group: str, instance_id: str | None
) -> Group:
    """One seat that gives up at once the partitions that the group asks back."""
    settings = GroupSettings(
        bootstrap=parse_bootstrap(kafka.bootstrap(listener)),
        group=group,
        topics=(topic,),
        instance_ids=(instance_id,),
        client=ClientSettings(security=security),
        # A Kafka that restarts beside other tests may take longer than 30 s, and the seat shall outlive that.
        protocol=ProtocolSettings(session_timeout_ms=120_000, rebalance_timeout_ms=30_000, heartbeat_interval_ms=200),
    )

    def give_up(session: Session, effect: contract.Effect) -> None:
        if isinstance(effect, contract.Assigned) and effect.revoked:
            session.post(contract.GaveUp(partitions=effect.revoked))

    return Group(settings, observer=give_up)


def cluster_at(kafka: SecuredKafka, listener: str, settings: SecuritySettings) -> Cluster:
    bootstrap = kafka.bootstrap(listener) if listener else kafka.kafka.bootstrap_servers
    return Cluster(parse_bootstrap(bootstrap), client_id="test", security=load_security(settings))


async def owning(group: Group, partitions: int) -> list[TopicPartition]:
    view = await group.wait_until(
        lambda view: view.settled and len(view.seats[0].owned_since) == partitions, timeout_ms=60_000
    )
    assert len(view.seats[0].owned_since) == partitions, view
    return sorted(view.seats[0].owned_since)


def at_rest_with_one_each(groups: Iterable[Group]) -> bool:
    """Whether all are in one generation, which is not the case while one of them is still to join."""
    views = [group.view() for group in groups]
    seats = [seat for view in views for seat in view.seats]
    own_one = all(view.settled for view in views) and all(len(seat.owned_since) == 1 for seat in seats)
    return own_one and len({seat.identity.generation for seat in seats}) == 1


# -------------------------------------------------------------------------------------------------------- ways in


def ways(kafka: SecuredKafka, endpoint: str) -> Iterator[tuple[str, str, SecuritySettings]]:
    """(name, listener, settings)."""
    me = kafka.client
    tls = SecuritySettings(protocol="SSL", ca_location=kafka.ca_location)
    yield "tls", "SSL", tls
    yield (
        "mtls",
        "MTLS",
        SecuritySettings(
            protocol="SSL",
            ca_location=kafka.ca_location,
            certificate_location=me.certificate_location,
            key_location=me.key_location,
        ),
    )
    yield (
        "mtls-text",
        "MTLS",
        SecuritySettings(
            protocol="SSL",
            ca_pem=kafka.ca_pem,
            certificate_pem=me.certificate_pem,
            key_pem=me.encrypted_key_pem,
            key_password=KEY_PASSWORD,
        ),
    )
    yield "plain", "SASL_SSL", login(kafka, "PLAIN")
    yield "scram-256", "SASL_PLAINTEXT", login(kafka, "SCRAM-SHA-256", protocol="SASL_PLAINTEXT", ca_pem=None)
    yield "scram-512", "SASL_SSL", login(kafka, "SCRAM-SHA-512")
    yield "token", "SASL_SSL", login(kafka, "OAUTHBEARER", token=tokens())
    oidc = ClientCredentials(endpoint=endpoint, client_id=ALICE, client_secret=PASSWORDS[ALICE], extensions={"k": "v"})
    yield "oidc", "SASL_SSL", login(kafka, "OAUTHBEARER", token=oidc)


def test_every_way_in_joins_the_group_commits_and_is_seen_by_kafkas_tool(
    secured_kafka: SecuredKafka, topic: str, group: str
) -> None:
    """READ on the topic and on the group is all that is granted."""
    allowed(secured_kafka, topic, group, ALICE, TLS_CLIENT)
    produce(secured_kafka.kafka.bootstrap_servers, topic, 8, partitions=8)

    @on_a_loop
    async def scenario(endpoint: str) -> None:
        seats = {
            name: seat(secured_kafka, listener, load_security(settings), topic, group, name)
            for name, listener, settings in ways(secured_kafka, endpoint)
        }
        assert len(seats) == 8
        try:
            await asyncio.gather(*(each.start() for each in seats.values()))
            await until(lambda: at_rest_with_one_each(seats.values()))
            for name, each in seats.items():
                (mine,) = await owning(each, 1)
                assert await each.commits.commit(each.view().seats[0].identity, {mine: 1}) == {mine}, name
                assert offsets_alone(await each.offsets.committed([mine])) == {mine: 1}
                assert (await each.describe()).group == group
                assert (await each.offsets.ends([mine], 30_000, read_committed=True)).found == {mine: 1}
            rows = await asyncio.to_thread(secured_kafka.kafka.describe_group, group)
        finally:
            await asyncio.gather(*(each.close() for each in seats.values()))
        assert {row.instance_id for row in rows} == seats.keys()
        assert {row.partition: row.lag for row in rows} == dict.fromkeys(range(8), 0)

    with token_endpoint(ALICE, PASSWORDS[ALICE]) as endpoint:
        scenario(endpoint)


PROPERTIES = {
    "librdkafka": """
        # librdkafka's names
        bootstrap.servers=elsewhere:9092
        security.protocol=SASL_SSL
        ssl.ca.location = {ca}
        sasl.mechanisms=SCRAM-SHA-256
        sasl.username={user}
        sasl.password={password}
    """,
    "Java": """
        ! as Kafka's own tools read it
        bootstrap.servers=elsewhere:9092
        key.deserializer: org.apache.kafka.common.serialization.StringDeserializer
        security.protocol SASL_SSL
        ssl.truststore.type=PEM
        ssl.truststore.location={ca}
        sasl.mechanism=SCRAM-SHA-256
        sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
            username="{user}" \\
            password="{password}";
    """,
}


@pytest.mark.parametrize("kind", PROPERTIES)
def test_a_member_process_joins_by_a_properties_file(
    secured_kafka: SecuredKafka, topic: str, group: str, tmp_path: Path, kind: str
) -> None:
    allowed(secured_kafka, topic, group, ALICE)
    config = tmp_path / "client.properties"

    def write(password: str) -> None:
        in_jaas = password.replace("\\", "\\\\").replace('"', '\\"') if kind == "Java" else password
        escaped = in_jaas.replace("\\", "\\\\")  # in a .properties file a backslash is two
        config.write_text(PROPERTIES[kind].format(ca=secured_kafka.ca_location, user=ALICE, password=escaped))

    write(PASSWORDS[ALICE])
    bootstrap = secured_kafka.bootstrap("SASL_SSL")
    with MemberProcess(bootstrap, group, topic, "seat-0", "--command-config", str(config)) as member:
        member.wait_for_owned(8)
    write("wrong one")
    with MemberProcess(bootstrap, group, topic, "seat-0", "--command-config", str(config)) as member:
        assert member.end() == 1
    assert f"refused SCRAM-SHA-256 for user {ALICE!r}" in member.stderr
    assert "wrong one" not in member.stderr


# ------------------------------------------------------------------------------------------------ re-authentication


class Counted:
    """A `Security` that counts: TLS contexts, one for each connection, logins, and those that succeeded."""

    def __init__(self, security: Security) -> None:
        self.connections = 0
        self.logins = 0
        self.let_in = 0
        self._security = security

    async def ssl_context(self) -> SSLContext | None:
        self.connections += 1
        return await self._security.ssl_context()

    def on_tls_refused(self, address: object, refusal: AuthenticationFailed) -> AuthenticationFailed:
        return self._security.on_tls_refused(address, refusal)

    async def authenticate(self, address: object, send: Send) -> int:
        self.logins += 1
        lifetime_ms = await self._security.authenticate(address, send)
        self.let_in += 1
        return lifetime_ms

    @property
    def renewals(self) -> int:
        return self.logins - self.connections


def logged_in_since(security: Counted, before: int, _: object) -> bool:
    return security.logins > before


@on_a_loop
async def test_sessions_are_renewed_without_a_new_connection_or_generation(
    secured_kafka: SecuredKafka, topic: str, group: str
) -> None:
    """KIP-368. One listener ends sessions early. On the other they end with the token."""
    allowed(secured_kafka, topic, group, ALICE)
    made = count(1)
    fresh = tokens(lifetime_s=4)
    by_token = login(secured_kafka, "OAUTHBEARER", token=lambda: next(made) and fresh())
    securities = [Counted(load_security(login(secured_kafka))), Counted(load_security(by_token))]
    seats = [
        seat(secured_kafka, listener, security, topic, group, f"seat-{index}")
        for index, (listener, security) in enumerate(zip(["SHORT", "SASL_SSL"], securities, strict=True))
    ]
    try:
        await asyncio.gather(*(each.start() for each in seats))
        await asyncio.gather(*(owning(each, 4) for each in seats))
        identities = [each.view().seats[0].identity for each in seats]
        connections = [security.connections for security in securities]
        for each, security in zip(seats, securities, strict=True):
            while security.renewals < 3:
                before = security.logins
                # a heartbeat renews the session's connection, a look-up the pooled one
                await each.wait_until(partial(logged_in_since, security, before), timeout_ms=200)
                await each.describe()
        assert [each.view().seats[0].identity for each in seats] == identities
        assert [security.connections for security in securities] == connections
        assert next(made) > 2, "each renewal has a token that lives"
    finally:
        await asyncio.gather(*(each.close() for each in seats))


@on_a_loop
async def test_a_join_that_is_parked_beyond_its_session_is_answered_and_goes_on(
    secured_kafka: SecuredKafka, topic: str, group: str
) -> None:
    """The join waits 5 s for a member that does not come back. Sessions end after 3.5 s."""
    allowed(secured_kafka, topic, group, ALICE)
    cluster = cluster_at(secured_kafka, "SHORT", login(secured_kafka))
    protocols = [("range", encode_subscription(Subscription(topics=(topic,))))]

    async def join(connection: Connection, who: MemberIdentity) -> schema.JoinGroupResponse:
        timeouts = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 5_000}
        response = await connection.call(messages.join_group(group, who, protocols, reason="a test", **timeouts))
        assert isinstance(response, schema.JoinGroupResponse)
        return response

    async def joined(connection: Connection) -> MemberIdentity:
        asked = await join(connection, MemberIdentity(instance_id=None))  # MEMBER_ID_REQUIRED (KIP-394)
        answer = await join(connection, MemberIdentity(instance_id=None, member_id=asked.member_id))
        assert answer.error_code == 0
        who = MemberIdentity(instance_id=None, member_id=answer.member_id, generation=answer.generation_id)
        shares = [(who.member_id, encode_assignment(frozenset()))]
        synced = await connection.call(messages.sync_group(group, who, "range", shares))
        assert isinstance(synced, schema.SyncGroupResponse)
        assert synced.error_code == 0
        return who

    async with await patiently(lambda: cluster.coordinators.open(group)) as first:
        await joined(first)
        async with await cluster.coordinators.open(group) as second:
            began_s = time.monotonic()
            who = await joined(second)
            assert time.monotonic() - began_s > SHORT_SESSION_MS / 1000 + 1, "it was parked beyond its session"
            beat = await second.call(messages.heartbeat(group, who))
            assert isinstance(beat, schema.HeartbeatResponse)
            assert beat.error_code == 0
    await cluster.close()


async def patiently(attempt: Callable[[], Any]) -> Any:
    """A new cluster makes its coordinators first."""
    for _ in range(300):
        try:
            return await attempt()
        except WireError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.1)
    return await attempt()


@on_a_loop
@pytest.mark.full
async def test_a_seat_survives_a_broker_that_restarts_while_there_are_no_tokens(
    secured_kafka: SecuredKafka, topic: str, group: str
) -> None:
    allowed(secured_kafka, topic, group, ALICE)
    there, refused = True, 0

    def fetch() -> Token:
        nonlocal refused
        if there:
            return tokens(lifetime_s=3)()
        refused += 1
        raise ConnectionError("the token endpoint is away")

    security = Counted(load_security(login(secured_kafka, "OAUTHBEARER", token=fetch)))
    each = seat(secured_kafka, "SASL_SSL", security, topic, group, "seat-0")
    try:
        await each.start()
        await owning(each, 8)
        identity = each.view().seats[0].identity
        (node,) = secured_kafka.kafka.nodes
        there = False
        await asyncio.to_thread(node.restart)
        await until(lambda: refused >= 3)
        assert each.view(), "a seat that failed would raise"
        there, let_in = True, security.let_in
        await until(lambda: security.let_in >= let_in + 2)  # the seat's connection and a pooled one
        assert (await each.describe()).members[0].member_id == identity.member_id
        assert each.view().seats[0].identity == identity
    finally:
        await each.close()


# --------------------------------------------------------------------------------------------------------- refusals

Case = tuple[str, Callable[[SecuredKafka], SecuritySettings], str]


def tls(**more: Any) -> Callable[[SecuredKafka], SecuritySettings]:
    return lambda kafka: SecuritySettings(**{"protocol": "SSL", "ca_pem": kafka.ca_pem, **more})


def with_other_ca(kafka: SecuredKafka) -> SecuritySettings:
    him = kafka.other_ca_client
    return tls(certificate_pem=him.certificate_pem, key_pem=him.key_pem)(kafka)


def wrong(mechanism: str) -> Callable[[SecuredKafka], SecuritySettings]:
    return lambda kafka: login(kafka, mechanism, password="wrong one")


REFUSALS: list[Case] = [
    ("EXPIRED", tls(), "the broker's certificate has expired: renew it on the broker"),
    ("WRONG_HOST", tls(), "for another host: .*`ssl.endpoint.identification.algorithm`=none"),
    ("OTHER_CA", tls(), "not from a CA that is trusted here: set `ssl.ca.location`"),
    ("SSL", tls(ca_pem=None), "not from a CA that is trusted here: set `ssl.ca.location`"),
    ("MTLS", tls(), "client certificate.*: set `ssl.certificate.location` and `ssl.key.location`"),
    ("MTLS", with_other_ca, "does not accept our client certificate.*: set `ssl.certificate.location`"),
    ("SASL_SSL", wrong("PLAIN"), "refused PLAIN for user 'alice': .*Check `sasl.username` and `sasl.password`"),
    ("SASL_SSL", wrong("SCRAM-SHA-256"), "refused SCRAM-SHA-256 for user 'alice': .*Check `sasl.username`"),
    ("SASL_SSL", wrong("SCRAM-SHA-512"), "refused SCRAM-SHA-512 for user 'alice': .*Check `sasl.username`"),
    (
        "SASL_SSL",
        lambda kafka: login(kafka, "OAUTHBEARER", token=lambda: Token("no.jwt.", time.time() + 60)),
        "refused OAUTHBEARER for our token: .*Check the token function, or `sasl.oauthbearer",
    ),
    ("SSL", login, "is a listener without SASL: check `security.protocol`"),
]


@pytest.mark.parametrize(("listener", "settings", "message"), REFUSALS, ids=[f"{c[0]}: {c[2][:30]}" for c in REFUSALS])
def test_a_refusal_is_one_clear_error_at_once(
    secured_kafka: SecuredKafka, listener: str, settings: Callable[[SecuredKafka], SecuritySettings], message: str
) -> None:
    error = failure_of(secured_kafka, listener, load_security(settings(secured_kafka)))
    assert isinstance(error, AuthenticationFailed)
    assert not error.retriable
    assert_tells(error, message)


@on_a_loop
async def test_a_ca_and_a_client_certificate_are_renewed_on_disk_without_a_restart(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    """A refusal is retriable for a client that was accepted before. Kafka refuses our certificate in a TLS alert."""
    location = {name: tmp_path / name for name in ("ca", "certificate", "key")}
    theirs, ours = secured_kafka.other_ca_client, secured_kafka.client

    def write(ca: str, certificate: Identity) -> None:
        location["ca"].write_text(ca)
        location["certificate"].write_text(certificate.certificate_pem)
        location["key"].write_text(certificate.key_pem)

    write(secured_kafka.ca_pem, ours)
    security = load_security(
        SecuritySettings(
            protocol="SSL",
            ca_location=str(location["ca"]),
            certificate_location=str(location["certificate"]),
            key_location=str(location["key"]),
        )
    )

    async def connect() -> None:
        (address,) = parse_bootstrap(secured_kafka.bootstrap("MTLS"))
        await (await Connection.open(address, client_id="test", security=security)).close()

    await connect()
    for problem, ca, certificate in (
        ("not from a CA that is trusted here", trustme.CA().cert_pem.bytes().decode(), ours),
        ("does not accept our client certificate", secured_kafka.ca_pem, theirs),
    ):
        write(ca, certificate)
        with pytest.raises(AuthenticationFailed, match=f"{problem}.* accepted this client before") as refused:
            await connect()
        assert refused.value.retriable
        write(secured_kafka.ca_pem, ours)
        await connect()


def test_the_host_name_check_and_all_checks_can_be_turned_off(secured_kafka: SecuredKafka) -> None:
    @on_a_loop
    async def scenario(listener: str, settings: SecuritySettings) -> None:
        cluster = cluster_at(secured_kafka, listener, settings)
        assert (await cluster.metadata([])).brokers
        await cluster.close()

    scenario("WRONG_HOST", tls(verify_hostname=False)(secured_kafka))
    scenario("EXPIRED", tls(ca_pem=None, verify_certificate=False)(secured_kafka))


WRONG_PROTOCOLS: list[Case] = [
    ("", tls(), "closed the connection in the TLS handshake: does this listener speak TLS"),
    ("SASL_PLAINTEXT", lambda _: SecuritySettings(), "does this listener expect SASL .`security.protocol`"),
    ("SASL_SSL", tls(), "does this listener expect SASL .`security.protocol`"),
    ("SSL", lambda _: SecuritySettings(), "is it a TLS or HTTP port. See `security.protocol`"),
]


def test_a_wrong_security_protocol_is_named_within_the_bound(secured_kafka: SecuredKafka) -> None:
    """All at once: most of them may be a broker that is just starting, so they are tried until the bound."""

    async def asked(listener: str, settings: SecuritySettings) -> WireError:
        cluster = cluster_at(secured_kafka, listener, settings)
        with pytest.raises(WireError) as error:
            await cluster.metadata([], timeout_ms=2_000)
        await cluster.close()
        return error.value

    @on_a_loop
    async def scenario() -> None:
        begun = [asked(listener, settings(secured_kafka)) for listener, settings, _ in WRONG_PROTOCOLS]
        for error, (_, _, message) in zip(await asyncio.gather(*begun), WRONG_PROTOCOLS, strict=True):
            assert_tells(error, message)

    scenario()


def test_a_user_without_permission_reads_which_operation_to_grant(
    secured_kafka: SecuredKafka, topic: str, group: str
) -> None:
    bob = load_security(login(secured_kafka, username=BOB, password=PASSWORDS[BOB]))
    error = failure_of(secured_kafka, "SASL_SSL", bob, topic, group)
    assert isinstance(error, UnknownTopic)
    assert_tells(error, f"may not see topic '{topic}': grant READ on it")
    secured_kafka.allow(BOB, AclOperation.DESCRIBE, topic=topic)
    error = failure_of(secured_kafka, "SASL_SSL", bob, topic, group)
    assert isinstance(error, BrokerError), "the coordinator may not even be asked for"
    assert_tells(error, f"GROUP_AUTHORIZATION_FAILED: group '{group}': grant READ on the group to this user")
    secured_kafka.allow(BOB, AclOperation.DESCRIBE, group=group)
    error = failure_of(secured_kafka, "SASL_SSL", bob, topic, group)
    assert isinstance(error, GroupRejected)
    assert_tells(error, "grant READ on the group to this user")
    secured_kafka.allow(BOB, AclOperation.READ, group=group)
    error = failure_of(secured_kafka, "SASL_SSL", bob, topic, group)
    assert isinstance(error, BrokerError), "the group is joined, the commit refused"
    refused = (
        f"OffsetCommit failed with TOPIC_AUTHORIZATION_FAILED: topic '{topic}': grant READ on the topic to this user"
    )
    assert_tells(error, refused)


def failure_of(
    kafka: SecuredKafka, listener: str, security: Security, topic: str = "any", group: str = "any"
) -> KgroupError:
    errors = []

    @on_a_loop
    async def scenario() -> None:
        errors.append(await attempt(kafka, listener, security, topic, group))

    scenario()
    return errors[0]


async def attempt(
    kafka: SecuredKafka, listener: str, security: Security, topic: str = "any", group: str = "any"
) -> KgroupError:
    """The error with which starting a seat, or its first commit, ends."""
    each = seat(kafka, listener, security, topic, group, "seat-0")
    began_s = time.monotonic()
    try:
        await each.start()
        (mine, *_) = await owning(each, 8)
        await each.commits.commit(each.view().seats[0].identity, {mine: 0})
    except KgroupError as error:
        assert time.monotonic() - began_s < START_BOUND_S
        return error
    finally:
        await each.close()
    raise AssertionError("it was not refused")


def assert_tells(error: KgroupError, message: str) -> None:
    text = f"{error} {error!r} {error.__cause__!r}"
    assert not [secret for secret in SECRETS if secret in text]
    with pytest.raises(KgroupError, match=message):
        raise error
