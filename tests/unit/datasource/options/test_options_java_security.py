"""Java's spellings of TLS and SASL: read as Kafka's JaasConfig reads them, or refused with the option to use."""

import pytest

from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.options.security import JAVA_NAMES, translate
from spark_kgroup.errors import OptionError

HUSH = "hu$h"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def jaas(text: str, mechanism: str = "PLAIN") -> dict[str, str]:
    result = translate({"kafka.sasl.jaas.config": text, "kafka.sasl.mechanism": mechanism})
    assert result.pop("kafka.sasl.mechanism") == mechanism
    return {name.removeprefix("kafka.sasl."): value for name, value in result.items()}


def refusal(given: dict[str, str]) -> str:
    with pytest.raises(OptionError) as problem:
        translate(given)
    assert HUSH not in str(problem.value)
    return str(problem.value)


# --------------------------------------------------------------------------------------------------- JAAS


@pytest.mark.parametrize(
    ("text", "username", "password"),
    [
        (f'{PLAIN} required username="ann" password="{HUSH}";', "ann", HUSH),
        (f'{PLAIN} required password="{HUSH}" username="ann" ;', "ann", HUSH),
        (f"{PLAIN} REQUIRED username='ann' password='{HUSH}';", "ann", HUSH),
        (f'kafkashaded.{PLAIN} required\n  username=ann\n  password="a b";\n', "ann", "a b"),
        (
            f'{PLAIN} required username="$ConnectionString" password="Endpoint=sb://x/;Key=a=";',
            "$ConnectionString",
            "Endpoint=sb://x/;Key=a=",
        ),
        (rf'{PLAIN} required username="a\"n\"n" password="back\\slash";', 'a"n"n', "back\\slash"),
        (rf'{PLAIN} required username="t\tab" password="\101\60\7";', "t\tab", "A0\a"),
        (
            f'{PLAIN} /* who */ required username="ann" // and\n password="//no /* comment */";',
            "ann",
            "//no /* comment */",
        ),
        (f"""{PLAIN} required username="o'neil" password='say "{HUSH}"';""", "o'neil", f'say "{HUSH}"'),
        (f'{PLAIN} required username="" password="ünï";', "", "ünï"),
    ],
)
def test_a_jaas_line_of_plain_is_read(text: str, username: str, password: str) -> None:
    assert jaas(text) == {"username": username, "password": password}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_jaas_line_of_scram_is_read(mechanism: str) -> None:
    assert jaas(f'{SCRAM} required username="ann" password="{HUSH}";', mechanism) == {
        "username": "ann",
        "password": HUSH,
    }


def test_a_jaas_line_of_client_credentials_is_read() -> None:
    text = f'{OAUTH} required clientId="spark" clientSecret="{HUSH}" scope="kafka" extension_logicalCluster="lkc-1";'
    assert jaas(text, "OAUTHBEARER") == {
        "oauthbearer.client.id": "spark",
        "oauthbearer.client.secret": HUSH,
        "oauthbearer.scope": "kafka",
        "oauthbearer.extensions": "logicalCluster=lkc-1",
    }
    assert jaas(f"{OAUTH} required;", "OAUTHBEARER") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it needs the shape"),
        (f'{PLAIN} required username="ann" password="{HUSH}"', "it needs the shape"),
        (f"{PLAIN};", "it needs the shape"),
        (f"{PLAIN} required username;", "it needs the shape"),
        (f"{PLAIN} required username=ann; {SCRAM} required;", "with one module"),
        (f'{PLAIN} username="ann" password="{HUSH}";', "it needs the shape"),
        (f"{PLAIN} needed username=ann;", "a control flag"),
        (f'{PLAIN} required password="{HUSH};', "a quote is not closed"),
        (f'{PLAIN} required password="two\nlines";', "a quote is not closed"),
        (f"{PLAIN} required password={HUSH}!;", "has none"),
        (f'{PLAIN} required username="ann" token="{HUSH}";', "sets token, which has no meaning here"),
        (f'{PLAIN} required extension_a="{HUSH}";', "sets extension_a"),
        (f'{SCRAM} required username="ann" password="{HUSH}";', "it must be SCRAM-SHA-256 or SCRAM-SHA-512"),
        (f"com.sun.security.auth.module.Krb5LoginModule required keyTab={HUSH.replace('$', '')};", "Kerberos"),
        ("software.amazon.msk.auth.iam.IAMLoginModule required;", "aws-msk-iam-sasl-signer-python"),
        ("com.example.MyLoginModule required;", "it must be one of PlainLoginModule"),
    ],
)
def test_a_jaas_line_that_cannot_be_read_is_refused_without_showing_it(text: str, why: str) -> None:
    message = refusal({"kafka.sasl.jaas.config": text, "kafka.sasl.mechanism": "PLAIN"})
    assert message.startswith("Option `sasl.jaas.config` ")
    assert why in message


def test_a_line_without_a_mechanism_is_javas_default_and_does_not_fit() -> None:
    message = refusal({"kafka.sasl.jaas.config": f'{PLAIN} required username="ann" password="{HUSH}";'})
    assert "`sasl.mechanism` is GSSAPI" in message
    assert "must be PLAIN" in message


# ------------------------------------------------------------------------------------------------- stores


def test_pem_stores_in_files() -> None:
    given = {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "pem",
        "kafka.ssl.keystore.location": "/client.pem",
        "kafka.ssl.key.password": HUSH,
    }
    assert translate(given) == {
        "kafka.ssl.ca.location": "/ca.pem",
        "kafka.ssl.certificate.location": "/client.pem",
        "kafka.ssl.key.location": "/client.pem",
        "kafka.ssl.key.password": HUSH,
    }


def test_pem_stores_given_as_text_become_the_pem_options() -> None:
    given = {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "ca",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "chain",
        "kafka.ssl.keystore.key": "key",
    }
    assert translate(given) == {
        "kafka.ssl.ca.pem": "ca",
        "kafka.ssl.certificate.pem": "chain",
        "kafka.ssl.key.pem": "key",
    }


@pytest.mark.parametrize("kind", [None, "JKS", "PKCS12"])
@pytest.mark.parametrize(
    ("store", "instead"),
    [
        ("truststore", "keytool -list -rfc -keystore STORE > ca.pem`, and set `ssl.ca.location`"),
        ("keystore", "openssl pkcs12 -in STORE -out client.pem"),
    ],
)
def test_other_stores_are_refused_with_the_type_to_use(kind: str | None, store: str, instead: str) -> None:
    store_type = {} if kind is None else {f"kafka.ssl.{store}.type": kind}
    message = refusal({f"kafka.ssl.{store}.location": "/store", f"kafka.ssl.{store}.password": HUSH, **store_type})
    assert f"is about a {kind or 'JKS'} store" in message
    assert instead in message


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_a_jks_store_with_its_password_is_refused_with_the_option_to_use(store: str) -> None:
    given = {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.group.id": "g",
        "subscribe": "t",
        "kafka.security.protocol": "SSL",
        f"kafka.ssl.{store}.location": "/store",
        f"kafka.ssl.{store}.password": HUSH,
    }
    with pytest.raises(OptionError, match=r"is about a JKS store.*export it with") as problem:
        parse(given)
    assert HUSH not in str(problem.value)


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_a_pem_store_has_no_password(store: str) -> None:
    message = refusal({f"kafka.ssl.{store}.type": "PEM", f"kafka.ssl.{store}.password": HUSH})
    assert f"Option `ssl.{store}.password`" in message
    assert "`ssl.key.password`" in message


# -------------------------------------------------------------------------------------------- both spellings

JAVA = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "/ca.pem"}


def test_both_spellings_may_agree_and_must_not_contradict() -> None:
    assert translate({**JAVA, "kafka.ssl.ca.location": "/ca.pem"}) == {"kafka.ssl.ca.location": "/ca.pem"}
    message = refusal({**JAVA, "kafka.ssl.ca.location": "/other.pem"})
    assert "`ssl.truststore.location` contradicts `ssl.ca.location`" in message

    line = f'{PLAIN} required username="ann" password="{HUSH}";'
    text = refusal({"kafka.sasl.jaas.config": line, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.password": f"{HUSH}2"})
    assert "`sasl.jaas.config` contradicts `sasl.password`" in text
    assert "contradicts `sasl.mechanism`" in refusal(
        {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.mechanisms": "SCRAM-SHA-256"}
    )


def test_an_alias_becomes_the_option_that_it_stands_for() -> None:
    given = {
        "kafka.sasl.mechanisms": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.client.credentials.client.id": "spark",
        "kafka.sasl.oauthbearer.client.credentials.client.secret": HUSH,
    }
    assert translate(given) == {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.client.id": "spark",
        "kafka.sasl.oauthbearer.client.secret": HUSH,
    }


def test_other_options_are_left_alone() -> None:
    given = {"subscribe": "t", "kafka.ssl.ca.pem": "ca", "kafka.group.id": "g"}
    assert translate(given) == given
    assert not JAVA_NAMES & given.keys()
