"""For any text of an option, the answer is one bounded OptionError that names it: never another exception."""

import random
from contextlib import suppress

import pytest

from pyspark_kgroup.options.parser import SourceOptions, parse
from pyspark_kgroup.options.refusals import REFUSED
from pyspark_kgroup.options.rows import OPTIONS
from spark_kgroup.errors import OptionError

REQUIRED = {"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "subscribe": "t"}
TOLD_CHARACTERS_MAX = 1500
"""An error is read by a person: a screen's worth."""


def refusal(**options: str) -> str:
    with pytest.raises(OptionError) as problem:
        parse(REQUIRED | options)
    assert len(str(problem.value)) < TOLD_CHARACTERS_MAX
    return str(problem.value)


def parsed(**options: str) -> SourceOptions:
    return parse(REQUIRED | options)


# -------------------------------------------------------------------- options that librdkafka's binding cannot take


@pytest.mark.parametrize(
    "name",
    [
        "kafka.error_cb",
        "kafka.stats_cb",
        "kafka.oauth_cb",
        "kafka.throttle_cb",
        "kafka.rebalance_cb",
        "kafka.log_cb",
        "kafka.on_commit",
        "kafka.logger",
        "kafka.default.topic.config",
        "kafka.opaque",
        "kafka.interceptors",
    ],
)
@pytest.mark.parametrize("text", ["", "1", "{}", "module:function"])
def test_a_property_that_needs_an_object_of_a_program_is_refused_by_name(name: str, text: str) -> None:
    assert name in refusal(**{name: text})


@pytest.mark.parametrize("odd", ["\ud800", "a\0b", "\udfff1"])
def test_text_that_cannot_be_handed_to_c_is_refused_before_it_is(odd: str) -> None:
    for option in OPTIONS:
        assert f"Option {option.name} " in refusal(**{option.name: odd})
    assert "Option kafka.client.rack " in refusal(**{"kafka.client.rack": odd})
    assert "'kafka." in refusal(**{f"kafka.{odd}": "1"})


@pytest.mark.parametrize(
    "text", ['{"t":' * 2000, "[" * 3000, '{"t":{"0":%s}}' % ("9" * 5000), '{"t":{"%s":5}}' % ("9" * 5000), "x" * 10**6]
)
def test_starting_offsets_that_are_deep_or_huge_are_refused_in_few_words(text: str) -> None:
    assert "Option startingOffsets " in refusal(startingOffsets=text)


def test_an_endless_option_is_refused_in_few_words() -> None:
    assert "unknown" in refusal(**{"x" * 10_000: "1"})
    assert "unknown" in refusal(**{"kafka." + "x" * 10_000: "1"})
    assert "kafka.fetch.min.bytes" in refusal(**{"kafka.fetch.min.bytes": "9" * 10_000})


def test_any_text_in_any_options_ends_in_options_or_an_option_error() -> None:
    choose = random.Random(11)
    names = [row.name for row in OPTIONS] + sorted(REFUSED)
    names += [
        "kafka." + other for other in ("debug", "x", "client.rack", "builtin.features", "log.queue", "ssl.engine.id")
    ]
    texts = ["", " ", "0", "-1", "9" * 30, "9" * 5000, "1e3", "١٢", "true", "earliest", "latest", "{}", "[]", "null"]
    texts += ['{"t":1}', '{"t":{"0":1e400}}', '{"t":{"0":NaN}}', '{"t":{"-1":5}}', '{"t":' * 2000, "t,t", ",", "a/b"]
    texts += ["\0", "\ud800", "é", "h:1", "h", "[::1]:1", "range", "sticky", "%s", "${x}", "\n", "https://[::1", "m:f"]
    for _ in range(4_000):
        given = {choose.choice(names): choose.choice(texts) for _ in range(choose.randrange(1, 4))}
        with suppress(OptionError):
            parse(REQUIRED | given)


# ----------------------------------------------------------------------------------------------- names and hints


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("topics", "`subscribe`"),
        ("streamName", "`subscribe`"),
        ("databricks.serviceCredential", "`tokenCallback`"),
        ("kafka.metric.reporters", "Java"),
        ("kafka.exclude.internal.topics", "Leave it out"),
        ("kafka.sasl.kerberos.principal", "SCRAM"),
    ],
)
def test_options_of_other_clients_are_refused_with_the_change_to_make(name: str, message: str) -> None:
    refused = refusal(**{name.lower(): "x"})
    assert f"Option {name} cannot be used with this source" in refused
    assert message in refused


def test_an_unknown_kafka_name_without_a_near_one_is_refused_as_no_property_of_librdkafka() -> None:
    message = refusal(**{"kafka.zzz": "1"})
    assert message.startswith("Option kafka.zzz is unknown: ")
    assert "librdkafka" in message
    assert "CONFIGURATION.md" in message


def test_another_unknown_name_without_a_near_one_is_refused_with_our_own_names() -> None:
    message = refusal(zzz="1")
    assert all(option.name in message for option in OPTIONS if not option.name.startswith("kafka."))
    assert len(message) < 560


def test_a_bound_between_two_properties_is_named_by_their_options_with_a_value_that_fits() -> None:
    message = refusal(**{"kafka.fetch.max.bytes": "500000"})
    assert "kafka.fetch.max.bytes" in message
    assert "`kafka.message.max.bytes`" in message
    assert "1000000" in message
    assert parsed(**{"kafka.fetch.max.bytes": "1000000"})
    message = refusal(**{"kafka.receive.message.max.bytes": "50000"})
    assert "52429312" in message
    assert parsed(**{"kafka.receive.message.max.bytes": "52429312"})


# ---------------------------------------------------------------------------------------------- Java's class names


@pytest.mark.parametrize(
    "package", ["org.apache.kafka.clients.consumer.", "kafkashaded.org.apache.kafka.clients.consumer."]
)
def test_the_class_names_of_javas_assignors_are_understood(package: str) -> None:
    ours = {"CooperativeSticky": "cooperative-sticky", "Range": "range", "RoundRobin": "roundrobin", "Sticky": "sticky"}
    text = ",".join(f"{package}{name}Assignor" for name in ours)
    assert parsed(**{"kafka.partition.assignment.strategy": text}).assignors == tuple(ours.values())


def test_an_unknown_assignor_of_javas_package_is_refused_by_name() -> None:
    message = refusal(**{"kafka.partition.assignment.strategy": "org.apache.kafka.clients.consumer.StickyestAssignor"})
    assert "StickyestAssignor is not among them" in message
    assert "cooperative-sticky" in message


def test_an_assignor_of_ones_own_is_named_by_module_and_class() -> None:
    text = "cooperative-sticky, my.assignors:Nearest"
    assert parsed(**{"kafka.partition.assignment.strategy": text}).assignors == (
        "cooperative-sticky",
        "my.assignors:Nearest",
    )
    assert "unknown" in refusal(**{"kafka.partition.assignment.strategy": "my assignors:Nearest"})


def test_an_assignor_of_a_third_package_is_refused() -> None:
    assert "unknown" in refusal(**{"kafka.partition.assignment.strategy": "com.example.RangeAssignor"})


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
        "kafkashaded.org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    ],
)
def test_the_login_handler_that_is_used_anyway_is_allowed_in_every_spelling_of_kafka(name: str) -> None:
    assert parsed(**{"kafka.sasl.login.callback.handler.class": name}).passed_on == {}


def test_msk_iam_as_aws_prints_it_is_answered_with_the_way_out_first() -> None:
    message = refusal(
        **{
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "AWS_MSK_IAM",
            "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
            "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        }
    )
    assert "aws-msk-iam-sasl-signer-python" in message
    assert "tokenCallback" in message


def test_kerberos_is_refused_with_the_mechanisms_to_use_instead() -> None:
    message = refusal(**{"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"})
    assert "SCRAM, OAUTHBEARER or mTLS" in message
