"""``bootstrap.servers`` as people write it."""

import pytest

from spark_kgroup.errors import OptionError
from spark_kgroup.wire.address import Address, parse_bootstrap


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [Address("localhost", 9092)]),
        ("a-1.example.com:1,b_2:65535", [Address("a-1.example.com", 1), Address("b_2", 65535)]),
        (" a:1 , b:2 ,", [Address("a", 1), Address("b", 2)]),
        ("fully.qualified.:9092", [Address("fully.qualified.", 9092)]),
        ("10.0.0.1:9092", [Address("10.0.0.1", 9092)]),
        ("[::1]:9092", [Address("::1", 9092)]),
        ("[fe80::1%eth0]:9092".replace("eth0", "2"), [Address("fe80::1%2", 9092)]),
        ("[::ffff:10.0.0.1]:9092,b:2", [Address("::ffff:10.0.0.1", 9092), Address("b", 2)]),
    ],
)
def test_addresses_are_read(text: str, addresses: list[Address]) -> None:
    assert list(parse_bootstrap(text)) == addresses


@pytest.mark.parametrize(
    "entry",
    [
        "localhost",
        "localhost:",
        ":9092",
        "localhost:kafka",
        "localhost:0",
        "localhost:65536",
        "localhost:-1",
        "localhost:+1",
        "localhost:9092/",
        "PLAINTEXT://localhost:9092",
        "::1:9092",
        "[::1]",
        "[localhost:9092",
        "two words:9092",
        "a:1;b:2",
        "a..b:9092",
        ".:9092",
        "x" * 64 + ".example.com:9092",
        "[:::]:9092",
        "[::1%]:9092",
    ],
)
def test_a_malformed_entry_is_named_with_the_option_and_the_fix(entry: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_bootstrap(f"good:9092,{entry}")
    message = str(refused.value)
    assert message.startswith("`bootstrap.servers`: ")
    assert repr(entry) in message
    assert "'broker-1:9092,broker-2:9092'" in message


@pytest.mark.parametrize("text", ["", "  ", ",", " , ,"])
def test_no_entry_at_all_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=rf"`bootstrap\.servers` is '{text}': give one or more brokers"):
        parse_bootstrap(text)
