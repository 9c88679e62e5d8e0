"""How long librdkafka may try in vain before a read fails, and what its errors mean. The rest is tested on Kafka."""

import pytest
from confluent_kafka import KafkaError

from pyspark_kgroup.executor.range_reader import _Unread
from pyspark_kgroup.shared.tickets import Range, ReadSettings
from spark_kgroup.errors import AuthenticationFailed
from spark_kgroup.limits import STARTUP_TIMEOUT_MS

EXPIRED = "ssl://b:1/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed"
BROKEN = (
    "ssl://b:1/bootstrap: error:0A000086:SSL routines::certificate verify failed (after 2ms in state SSL_HANDSHAKE)"
)
AWAY = "ssl://b:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused"


def read_of(*errors: tuple[int, str]) -> None:
    """One that hears of each of these once a second, again and again."""
    now_s = [1000.0]
    unread = _Unread([Range("t", 0, 0, 1)], ReadSettings(consumer_config={}), lambda: now_s[0])
    while now_s[0] <= 1000 + STARTUP_TIMEOUT_MS / 1000 + 1:
        for error in errors:
            unread.on_error(KafkaError(*error))
        unread.move([])
        now_s[0] += 1


def test_a_certificate_that_is_refused_ends_a_read_although_some_attempts_look_like_a_broken_connection() -> None:
    with pytest.raises(
        AuthenticationFailed, match=f"for {STARTUP_TIMEOUT_MS // 1000 + 1} s now.*a certificate has exp"
    ):
        read_of((KafkaError._SSL, EXPIRED), (KafkaError._TRANSPORT, BROKEN), (KafkaError._ALL_BROKERS_DOWN, "1/1 down"))


def test_a_broker_that_goes_away_after_a_refusal_is_waited_for() -> None:
    read_of((KafkaError._SSL, EXPIRED), (KafkaError._TRANSPORT, AWAY))
