"""The options of TLS and SASL: which belong together, the settings of each side, and that no secret is ever shown."""

import logging
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness.tokens import token_for

import pyspark_kgroup
from pyspark_kgroup.executor.native.connection_security import connection_security
from pyspark_kgroup.executor.read.consumer_security import usable_here
from pyspark_kgroup.offsets.checkpoint import EMPTY
from pyspark_kgroup.options.parser import SourceOptions, parse
from pyspark_kgroup.options.security import driver_settings
from pyspark_kgroup.options.security_rows import SECURITY
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.shared.redacted import Redacted
from pyspark_kgroup.shared.tickets import ReadSettings
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.errors import AuthenticationFailed, OptionError
from spark_kgroup.wire.security.oauth import ClientCredentials
from spark_kgroup.wire.security.settings import SecuritySettings

REQUIRED = {"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "subscribe": "t"}
HUSH = "hu$h-hu$h"
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
PASSWORD = {**SASL, "sasl.username": "ann", "sasl.password": HUSH}
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OIDC = {
    **OAUTH,
    "sasl.oauthbearer.token.endpoint.url": "http://idp/token",
    "sasl.oauthbearer.client.id": "spark",
    "sasl.oauthbearer.client.secret": HUSH,
}


def parsed(properties: dict[str, str], **ours: str) -> SourceOptions:
    return parse({**REQUIRED, **{f"kafka.{name}": value for name, value in properties.items()}, **ours})


def refusal(properties: dict[str, str], **ours: str) -> str:
    with pytest.raises(OptionError) as problem:
        parsed(properties, **ours)
    assert HUSH not in str(problem.value)
    return str(problem.value)


def settings(properties: dict[str, str], **ours: str) -> SecuritySettings:
    return driver_settings(parsed(properties, **ours).security)


# ----------------------------------------------------------------------------------- settings of each side


def test_plaintext_needs_no_setting_and_logs_no_warning() -> None:
    for properties in ({}, {"security.protocol": "plaintext"}):
        options = parsed(properties)
        assert options.security == {}
        assert driver_settings(options.security) == SecuritySettings()


def test_driver_and_executors_get_the_same_security_settings() -> None:
    given = {
        **PASSWORD,
        "ssl.ca.location": "/ca",
        "ssl.certificate.pem": "cert",
        "ssl.key.pem": "key",
        "ssl.key.password": " blanks belong to it ",
        "ssl.endpoint.identification.algorithm": "none",
        "enable.ssl.certificate.verification": "False",
    }
    options = parsed(given)
    config = options.consumer_config()
    assert {name: config[name] for name in given} == {**given, "enable.ssl.certificate.verification": "false"}
    assert driver_settings(options.security) == SecuritySettings(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        username="ann",
        password=HUSH,
        ca_location="/ca",
        certificate_pem="cert",
        key_pem="key",
        key_password=" blanks belong to it ",
        verify_hostname=False,
        verify_certificate=False,
    )


def test_librdkafka_takes_every_property_that_it_gets() -> None:
    """librdkafka checks its own names: it would refuse an unknown one when a consumer is made."""
    options = parsed({**PASSWORD, "enable.ssl.certificate.verification": "true", "fetch.min.bytes": "2"})
    assert options.passed_on == {"fetch.min.bytes": "2"}
    assert {f"kafka.{name}" for name in options.security} <= {row.name for row in SECURITY}


def test_client_credentials_for_the_driver() -> None:
    extra = {"sasl.oauthbearer.scope": "kafka", "sasl.oauthbearer.extensions": "a=1,b=x=y", "https.ca.pem": "pem"}
    for method in ({}, {"sasl.oauthbearer.method": "oidc"}):
        options = parsed({**OIDC, **extra, **method})
        assert options.security["sasl.oauthbearer.method"] == "oidc"
        assert driver_settings(options.security).token == ClientCredentials(
            endpoint="http://idp/token",
            client_id="spark",
            client_secret=HUSH,
            scope="kafka",
            extensions={"a": "1", "b": "x=y"},
            ca_pem="pem",
        )


def test_client_credentials_as_java_spells_them() -> None:
    package = "org.apache.kafka.common.security.oauthbearer"
    line = f'{package}.OAuthBearerLoginModule required clientId="spark" clientSecret="{HUSH}" scope="kafka";'
    java = {
        **OAUTH,
        "sasl.jaas.config": line,
        "sasl.oauthbearer.token.endpoint.url": "http://idp/token",
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
    }
    assert parsed(java).security == parsed({**OIDC, "sasl.oauthbearer.scope": "kafka"}).security


# ---------------------------------------------------------------------------------------- valid combinations


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("security.protocol", "TLS"),
        ("sasl.mechanism", "scram-sha-512"),
        ("sasl.mechanism", "GSSAPI"),
        ("ssl.endpoint.identification.algorithm", "yes"),
        ("enable.ssl.certificate.verification", "0"),
        ("sasl.oauthbearer.method", "jwt"),
        ("sasl.oauthbearer.extensions", "a"),
        ("ssl.ca.location", " "),
    ],
)
def test_a_value_out_of_range_is_named_with_its_condition(name: str, text: str) -> None:
    row = next(row for row in SECURITY if row.name == f"kafka.{name}")
    assert refusal({**PASSWORD, name: text}).startswith(f"Option {row.name} is {text!r}: it needs {row.range}")


def test_kerberos_and_aws_are_refused_with_the_mechanisms_to_use() -> None:
    assert "Kerberos is not supported" in refusal({**SASL, "sasl.mechanism": "GSSAPI"})
    assert "`tokenCallback` that calls AWS's aws-msk-iam-sasl-signer-python" in refusal(
        {**SASL, "sasl.mechanism": "AWS_MSK_IAM"}
    )


@pytest.mark.parametrize(
    ("properties", "missing"),
    [
        ({"security.protocol": "SASL_SSL"}, "`sasl.mechanism`"),
        (SASL, "`sasl.username`"),
        ({**SASL, "sasl.username": "ann"}, "`sasl.password`"),
        (OAUTH, "`tokenCallback`"),
        ({**OAUTH, "sasl.oauthbearer.method": "oidc"}, "`sasl.oauthbearer.token.endpoint.url`"),
        ({k: v for k, v in OIDC.items() if "secret" not in k}, "`sasl.oauthbearer.client.secret`"),
    ],
)
def test_a_missing_security_option_is_named(properties: dict[str, str], missing: str) -> None:
    message = refusal(properties)
    assert message.startswith(f"Option {missing} is missing: ")
    assert "needs it" in message


@pytest.mark.parametrize(
    ("properties", "name", "needed"),
    [
        (OAUTH | {"security.protocol": "SSL"}, "`sasl.mechanism`", "`security.protocol` to SASL_SSL or SASL_PLAINTEXT"),
        ({"ssl.ca.location": "/ca"}, "`ssl.ca.location`", "`security.protocol` to SASL_SSL or SSL"),
        ({"sasl.username": "ann"}, "`sasl.username`", "`security.protocol` to SASL_SSL or SASL_PLAINTEXT"),
        ({"security.protocol": "SSL", "sasl.password": HUSH}, "`sasl.password`", "`security.protocol`"),
        (
            {**PASSWORD, "security.protocol": "SASL_PLAINTEXT", "ssl.key.pem": HUSH},
            "`ssl.key.pem`",
            "`security.protocol` to SASL_SSL or SSL",
        ),
        ({**OIDC, "sasl.username": "ann"}, "`sasl.username`", "`sasl.mechanism` to PLAIN"),
        ({**PASSWORD, "sasl.oauthbearer.scope": "s"}, "`sasl.oauthbearer.scope`", "`sasl.mechanism`"),
        (
            {**OIDC, "sasl.oauthbearer.method": "default"},
            "`sasl.oauthbearer.token.endpoint.url`",
            "`sasl.oauthbearer.method`",
        ),
        ({**OIDC, "sasl.oauthbearer.config": HUSH}, "`sasl.oauthbearer.config`", "`sasl.oauthbearer.method`"),
    ],
)
def test_an_option_without_effect_is_an_error(properties: dict[str, str], name: str, needed: str) -> None:
    message = refusal(properties)
    assert message.startswith(f"Option {name} has no effect")
    assert f"set {needed}" in message


@pytest.mark.parametrize("name", ["ssl.ca", "ssl.certificate", "ssl.key"])
def test_a_file_and_its_text_exclude_each_other(name: str) -> None:
    pairs = {"ssl.certificate.location": "/c", "ssl.key.location": "/k"}
    message = refusal({**PASSWORD, **pairs, f"{name}.location": "/file", f"{name}.pem": HUSH})
    assert message.startswith(f"Options `{name}.location` and `{name}.pem` say the same thing")


@pytest.mark.parametrize(("one", "other"), [("certificate", "key"), ("key", "certificate")])
@pytest.mark.parametrize("form", ["location", "pem"])
def test_a_client_certificate_and_its_key_come_together(one: str, other: str, form: str) -> None:
    message = refusal({"security.protocol": "SSL", f"ssl.{one}.{form}": HUSH})
    assert message.startswith(f"Option `ssl.{one}.{form}` needs `ssl.{other}.location` (or .pem)")


def test_an_unknown_security_option_never_reaches_the_executors_alone() -> None:
    assert "did you mean kafka.ssl.ca.location?" in refusal({**PASSWORD, "ssl.ca.locaton": "/ca"})
    assert "cannot be used" in refusal({**PASSWORD, "ssl.crl.location": "/crl"})
    assert "is unknown" in refusal({**OIDC, "sasl.oauthbearer.sub.claim.name": "librdkafka knows it"})


# -------------------------------------------------------------------------------------------------- secrets


def test_secrets_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    every = {**PASSWORD, "ssl.key.pem": HUSH, "ssl.key.password": HUSH, "ssl.certificate.pem": "c"}
    for properties, ours in (
        (every, {}),
        (OIDC, {}),
        ({**OAUTH, "sasl.oauthbearer.config": HUSH}, {"tokenCallback": "harness.tokens:token_for"}),
    ):
        options = parsed(properties, **ours)
        settings = ReadSettings(consumer_config=options.consumer_config())
        given = Redacted({f"kafka.{name}": value for name, value in properties.items()})
        shown = f"{options!r}{options.security}{settings!r}{driver_settings(options.security)!r}{given}"
        assert HUSH in str(dict(options.consumer_config()))
        assert HUSH not in shown
    assert HUSH not in caplog.text


def test_options_in_javas_spelling_are_hidden_too() -> None:
    given = {"kafka.sasl.jaas.config": HUSH, "kafka.ssl.keystore.key": HUSH, "kafka.ssl.keystore.password": HUSH}
    assert HUSH not in repr(Redacted(given))


def test_a_bad_secret_is_not_shown() -> None:
    message = refusal({**PASSWORD, "sasl.password": ""})
    assert message == "Option kafka.sasl.password is not valid: it needs a password."


# ------------------------------------------------------------------------------------------- token callback

TOKEN = "abc.def.ghi"


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module with a function. Returns the value for `tokenCallback`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def write(body: str) -> str:
        name = f"tokens_{len(names)}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(
            f"import time\nfrom pyspark_kgroup import token_callback\n@token_callback\ndef give(config):\n    {body}\n"
        )
        return f"{name}:give"

    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_token_callback_serves_both_sides(callback: Any) -> None:
    name = callback("return 'abc.' + config, time.time() + 60, 'ann', {'traceId': '1'}")
    options = parsed({**OAUTH, "sasl.oauthbearer.config": "def.ghi"}, tokenCallback=name)
    provider = driver_settings(options.security).token
    assert provider is not None
    token = provider()
    assert token.value == TOKEN
    assert token.extensions == {"traceId": "1"}
    assert 50 < token.wall_expires_at_s - time.time() <= 60

    travelled = pickle.loads(pickle.dumps(options.consumer_config()))
    oauth_cb = usable_here(travelled)["oauth_cb"]
    for _ in range(2):  # the token that was asked for beforehand, then a new one
        value, expiry, principal, extensions = oauth_cb("def.ghi")
        assert (value, principal, extensions) == (TOKEN, "ann", {"traceId": "1"})
        assert 50 < expiry - time.time() <= 60
    assert TOKEN not in repr(oauth_cb("def.ghi"))


@pytest.mark.parametrize("name", ["no_such_module_here:give", "json:no_such_function", "json:__name__"])
def test_a_token_callback_that_cannot_be_imported_is_named(name: str) -> None:
    properties = parsed(OAUTH, tokenCallback=name).security
    for side in (driver_settings, usable_here):
        with pytest.raises(OptionError, match=f"Option tokenCallback: {name} "):
            side(properties)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:getoutput",
        "subprocess:Popen",
        "builtins:exec",
        "pathlib:Path",
        "unittest.mock:call",
        "harness.custom_assignors:FirstTakesAll",
        "harness.tokens:unsecured_token",
    ],
)
def test_a_function_that_does_not_say_that_it_is_a_token_callback_is_never_called(name: str, tmp_path: Path) -> None:
    """Else a user who may write options, as in a view of SQL, might run a command by a function that takes a text."""
    made = tmp_path / "made"
    gadget = {**OAUTH, "sasl.oauthbearer.config": f"touch {made}"}
    properties = parsed(gadget, tokenCallback=name).security
    for side in (driver_settings, usable_here, connection_security):
        with pytest.raises(OptionError, match=f"tokenCallback: {name} does not say .* put @token_callback before it"):
            side(properties)
    assert not made.exists()


def test_the_decorator_leaves_a_function_as_it_is() -> None:
    assert pyspark_kgroup.token_callback(token_for) is token_for
    assert pyspark_kgroup.__all__ == ["DefaultSource", "doctor", "python", "register", "token_callback"]


@pytest.mark.parametrize("text", ["give", "a b:c", "a:", ":a", "a.b.c", "../a:b", "a:b:c"])
def test_a_token_callback_needs_the_shape_module_function(text: str) -> None:
    assert f"Option tokenCallback is {text!r}: it needs MODULE:FUNCTION" in refusal(OAUTH, tokenCallback=text)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"return '{TOKEN}'", "returned str: it must return"),
        ("return None", "returned NoneType"),
        (f"return ('{TOKEN}', 'soon')", r"returned \(str, str\)"),
        ("return ('', time.time() + 60)", r"returned \(str, float\)"),
        (f"return ('{TOKEN}', time.time() + 60, 'ann', {{'a': 1}})", r"returned \(str, float, str, dict\)"),
        (f"return ('{TOKEN}', 3600)", "is new, and expired .* the expiry is given in seconds since the epoch"),
        ("raise KeyError('vault')", "failed with KeyError: 'vault'"),
    ],
)
def test_a_token_callback_that_returns_nonsense_is_an_error_without_its_token(
    callback: Any, body: str, why: str
) -> None:
    properties = parsed(OAUTH, tokenCallback=callback(body)).security
    provider = driver_settings(properties).token
    assert provider is not None
    for side in (provider, lambda: usable_here(properties)):
        with pytest.raises(
            AuthenticationFailed, match=f"tokenCallback tokens_0:give {why}|tokens_0:give {why}"
        ) as raised:
            side()
        assert TOKEN not in str(raised.value)


# ------------------------------------------------------------------------------------------- files elsewhere


def test_a_file_that_an_executor_lacks_is_named_with_the_way_out(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(OptionError, match=r"kafka\.ssl\.ca\.location: .*cannot be read on .*kafka\.ssl\.ca\.pem"):
        usable_here(parsed({**PASSWORD, "ssl.ca.location": missing}).consumer_config())
    Path(missing).write_text("there")
    assert usable_here(parsed({**PASSWORD, "ssl.ca.location": missing}).consumer_config())["ssl.ca.location"] == missing


def test_a_file_that_the_driver_lacks_is_named_by_the_first_call(tmp_path: Path) -> None:
    given = {f"kafka.{name}": value for name, value in PASSWORD.items()}
    options = {**REQUIRED, **given, "kafka.ssl.ca.location": str(tmp_path / "none.pem")}
    reader = KgroupStreamReader(options, spark_schema(COLUMNS))
    with pytest.raises(OptionError, match=r"`ssl\.ca\.location`"):
        reader.latestOffset(EMPTY.to_json())
