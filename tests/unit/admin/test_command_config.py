"""`--command-config` takes files of Java's and librdkafka's clients.

Errors name misspelt properties, and never a value.
"""

from pathlib import Path

import pytest

from spark_kgroup.admin.command_config import security_from
from spark_kgroup.errors import OptionError
from spark_kgroup.wire.security.secured import Secured
from spark_kgroup.wire.security.settings import Plaintext, Security

HUSH = "hu$h"


def read(tmp_path: Path, text: str) -> Security:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return security_from(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(OptionError) as problem:
        read(tmp_path, text)
    message = str(problem.value)
    assert message.startswith("--command-config '")
    assert "client.properties" in message
    assert HUSH not in message
    return message


FILES = {
    "librdkafka": f"""
        # as Confluent Cloud prints it
        bootstrap.servers=pkc-1.confluent.cloud:9092
        security.protocol=SASL_SSL
        sasl.mechanisms=PLAIN
        sasl.username=u
        sasl.password={HUSH}
        session.timeout.ms=45000
        client.id=ccloud-python-client
    """,
    "Java": f"""
        ! as Kafka's own tools take it
        bootstrap.servers = broker-1:9093
        security.protocol: SASL_SSL
        sasl.mechanism    SCRAM-SHA-512
        sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
            username="u" \\
            password="{HUSH}";
        ssl.endpoint.identification.algorithm=HTTPS
        ssl.enabled.protocols=TLSv1.2,TLSv1.3
        client.dns.lookup=use_all_dns_ips
        key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
        schema.registry.url=https://registry
    """,
    "OAuth": f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler
        sasl.oauthbearer.token.endpoint.url=https://idp.example/token
        sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \\
            clientId="u" clientSecret="{HUSH}" scope="kafka";
    """,
    "options of the source": f"""
        kafka.security.protocol=SASL_PLAINTEXT
        kafka.sasl.mechanism=PLAIN
        kafka.sasl.username=u
        kafka.sasl.password={HUSH}
    """,
}


@pytest.mark.parametrize("kind", FILES)
def test_property_files_of_kafkas_tools_and_of_librdkafka_are_understood(tmp_path: Path, kind: str) -> None:
    assert isinstance(read(tmp_path, FILES[kind]), Secured)


def test_a_file_without_security_is_a_plain_connection(tmp_path: Path) -> None:
    assert isinstance(read(tmp_path, "bootstrap.servers=a:1\ngroup.id=g\nauto.offset.reset=earliest\n"), Plaintext)


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("secuirty.protocol=SSL", "security.protocol"),
        (f"sasl.pasword={HUSH}", "sasl.password"),
        (f"sasl_password={HUSH}", "sasl.password"),
        ("sasl.mecanism=PLAIN", "sasl.mechanism"),
        ("ssl.truststore.loction=/ca.pem", "ssl.truststore.location"),
    ],
)
def test_a_misspelt_name_of_security_is_refused_with_the_nearest_one(tmp_path: Path, line: str, near: str) -> None:
    message = refusal(tmp_path, f"bootstrap.servers=a:1\n{line}\n")
    assert message.endswith(f"{line.partition('=')[0]} is unknown: did you mean {near}?")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"ssl.truststore.location=/ca.jks\nssl.truststore.password={HUSH}\n", "keytool"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\n", "it needs PLAIN, SCRAM"),
        ("security.protocol=SSL\nssl.endpoint.identification.algorithm=htps\n", "is 'htps': it needs https or none"),
        ("security.protocol=SSL\nenable.ssl.certificate.verification=maybe\n", "it needs true or false"),
        (
            f"sasl.mechanism=PLAIN\nsasl.username=u\nsasl.password={HUSH}\n",
            "`sasl.mechanism` has no effect, because `security.protocol` is PLAINTEXT",
        ),
        (f"sasl.jaas.config=com.example.IAMLoginModule required x={HUSH};\n", "aws-msk-iam-sasl-signer-python"),
        (f"sasl.password={HUSH}\\u12\n", "a backslash is written"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n", "`sasl.username` is missing"),
        ("ssl.quantum.safe=true\n", "ssl.quantum.safe is not understood"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_the_names_of_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    assert message in refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--command-config '.*absent': it cannot be read"):
        security_from(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    with pytest.raises(OptionError, match="it cannot be read"):
        security_from(tmp_path / "binary")


def test_blanks_belong_to_a_password_and_to_no_other_value(tmp_path: Path) -> None:
    plain = "security.protocol=SASL_PLAINTEXT \nsasl.mechanism=PLAIN \nsasl.username=u\n"
    assert isinstance(read(tmp_path, f"{plain}sasl.password= \\ \n"), Secured)
