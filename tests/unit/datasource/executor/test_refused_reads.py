"""How long librdkafka may try in vain before a read fails, and its errors' meanings. The rest is tested on Kafka."""

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as Assigned

from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka, MalformedBatch
from pyspark_kgroup.executor.read.unread_ranges import UnreadRanges
from pyspark_kgroup.offsets.data_loss import LogRange
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.errors import AuthenticationFailed, BrokerError, WireError
from spark_kgroup.limits import AUTHENTICATION_GRACE_MS, AUTHORIZATION_GRACE_MS
from spark_kgroup.model import ErrorCode, TopicPartition

EXPIRED = "ssl://b:1/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed"
BROKEN = (
    "ssl://b:1/bootstrap: error:0A000086:SSL routines::certificate verify failed (after 2ms in state SSL_HANDSHAKE)"
)
AWAY = "ssl://b:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused"


def read_of(*errors: tuple[int, str]) -> None:
    """A read that hears of each of these errors once a second, again and again."""
    now_s = [1000.0]
    unread = UnreadRanges([OffsetRange("t", 0, 0, 1)], ReadSettings(consumer_config={}), lambda: now_s[0])
    while now_s[0] <= 1000 + AUTHENTICATION_GRACE_MS / 1000 + 1:
        for error in errors:
            unread.on_error(KafkaError(*error))
        unread.move([])
        now_s[0] += 1


def test_a_certificate_that_is_refused_ends_a_read_although_some_attempts_look_like_a_broken_connection() -> None:
    with pytest.raises(
        AuthenticationFailed, match=f"for {AUTHENTICATION_GRACE_MS // 1000 + 1} s now.*a certificate has exp"
    ):
        read_of((KafkaError._SSL, EXPIRED), (KafkaError._TRANSPORT, BROKEN), (KafkaError._ALL_BROKERS_DOWN, "1/1 down"))


def test_a_login_that_the_driver_has_is_refused_to_an_executor_for_as_long_as_a_login_that_was_accepted() -> None:
    """docs/operate/security.md: what was accepted before may be refused for 60 s before it fails."""
    with pytest.raises(AuthenticationFailed, match=r"for 61 s now, and the driver was accepted.*kafka\.sasl\.password"):
        read_of((KafkaError._AUTHENTICATION, "Authentication failed during SCRAM-SHA-512"))


@pytest.mark.parametrize(
    ("code", "bound_s"),
    [
        (KafkaError._AUTHENTICATION, AUTHENTICATION_GRACE_MS // 1000),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AUTHORIZATION_GRACE_MS // 1000),
        (KafkaError._TRANSPORT, 300),
    ],
)
def test_the_first_warning_of_a_read_names_the_bound_of_its_error(
    code: int, bound_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ReadSettings(consumer_config={}, stall_timeout_ms=300_000)
    UnreadRanges([OffsetRange("t", 0, 0, 1)], settings, lambda: 0.0).on_error(KafkaError(code))
    assert f"Trying again, for {bound_s} s at most" in caplog.text


def test_a_broker_that_goes_away_after_a_refusal_is_waited_for() -> None:
    read_of((KafkaError._SSL, EXPIRED), (KafkaError._TRANSPORT, AWAY))


def test_a_damaged_batch_that_was_fetched_twice_before_it_is_read_again_counts_as_one_read() -> None:
    damaged = Message(topic="t", partition=0, error=KafkaError(KafkaError._BAD_MSG, "CRC"))
    unread = UnreadRanges([OffsetRange("t", 0, 0, 1)], ReadSettings(consumer_config={}), lambda: 0.0)
    for _ in range(2):
        unread.accept([damaged] * 3, to_batch=lambda *_: None)
        assert unread.take_damaged() == {TopicPartition("t", 0): 0}
    with pytest.raises(WireError, match="3 times in a row"):
        unread.accept([damaged], to_batch=lambda *_: None)


def test_bytes_behind_a_damaged_batch_that_librdkafka_takes_for_a_batch_are_read_again_too() -> None:
    """One bit was flipped. librdkafka told of the checksum, and then of a batch at a place that is none of a batch."""
    damaged = Message(topic="t", partition=0, error=KafkaError(KafkaError._BAD_MSG, "CRC"))
    magic = "Unsupported Message(Set) MagicByte 12 at offset 897959288925861888"
    behind = Message(topic="t", partition=0, error=KafkaError(KafkaError._NOT_IMPLEMENTED, magic))
    unread = UnreadRanges([OffsetRange("t", 0, 0, 1)], ReadSettings(consumer_config={}), lambda: 0.0)
    unread.accept([damaged, behind], to_batch=lambda *_: None)
    assert unread.take_damaged() == {TopicPartition("t", 0): 0}
    unread.accept([behind], to_batch=lambda *_: None)
    with pytest.raises(WireError, match="3 times in a row"):
        unread.accept([damaged], to_batch=lambda *_: None) if unread.take_damaged() else None


# ---------------------------------------------------------------------------------------- reasons of our own reader

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Stalled:
    """A read that gets no records. Our own reader left it 20 s after the last record came."""

    def __init__(self, *, may_read: bool = False, **reasons: FallbackToLibrdkafka) -> None:
        self.now_s = 1_000.0
        reasons_by_partition = {TopicPartition("t", int(number[1:])): reason for number, reason in reasons.items()}
        ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 10)]
        how = ReadSettings(consumer_config={}, stall_timeout_ms=60_000, may_read=may_read)
        self.unread = UnreadRanges(ranges, how, lambda: self.now_s, reasons_by_partition, 980.0)

    def end(self) -> str:
        while True:
            try:
                self.unread.move([])
            except WireError as error:
                return str(error)
            self.now_s += 1


def test_both_readers_have_one_deadline() -> None:
    stalled = Stalled()
    stalled.end()
    assert stalled.now_s == 980 + 60


def test_the_reason_of_our_own_reader_for_leaving_a_range_is_in_the_error() -> None:
    message = Stalled(
        p0=FallbackToLibrdkafka("t-0: OFFSET_OUT_OF_RANGE"), p1=FallbackToLibrdkafka("b:9092 did not answer in time")
    ).end()
    assert "Our own reader said before: t-0: OFFSET_OUT_OF_RANGE; b:9092 did not answer in time." in message
    assert "advertised.listeners" in message
    assert "Our own reader" not in Stalled().end()


def test_logs_without_records_are_looked_at_now_and_then_each_in_turn() -> None:
    stalled = Stalled()
    looks = []
    for _ in range(20):
        stalled.now_s += 1
        if (idle := stalled.unread.take_idle()) is not None:
            looks.append((stalled.now_s, idle))
    assert [at - 1_000 for at, _ in looks] == [5, 10, 15, 20]
    assert {idle for _, idle in looks} == {T0, T1}


def test_brokers_that_can_be_reached_are_not_blamed_on_the_network() -> None:
    stalled = Stalled()
    stalled.unread.on_idle_look(T0, LogRange(0, 200))
    message = stalled.end()
    assert "of t-0 the log has 0 to 199: librdkafka makes no records of it" in message
    assert "reader=native" in message
    assert "advertised.listeners" not in message


def test_a_topic_that_a_look_finds_forbidden_ends_the_read_at_once() -> None:
    stalled = Stalled()
    stalled.unread.on_idle_look_failed(T0, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED: t-0: grant READ on the topic"):
        stalled.unread.move([])


DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_a_right_that_was_there_before_is_asked_for_again_by_one_consumer_after_the_other() -> None:
    """librdkafka itself looks again only after minutes."""
    stalled = Stalled(may_read=True)
    for _ in range(5):
        stalled.unread.on_error(DENIED, T0)
        stalled.unread.move([])
        assert not stalled.unread.take_renewal()
        stalled.now_s += 1
        stalled.unread.on_error(DENIED, T0)
        assert stalled.unread.take_renewal()
        stalled.unread.begin_anew()
    assert "TOPIC_AUTHORIZATION_FAILED: t-0: grant READ on the topic" not in stalled.end()


def test_a_right_that_stays_missing_ends_the_read_by_its_name() -> None:
    stalled = Stalled(may_read=True)
    stalled.unread.on_error(DENIED, T0)
    assert "TOPIC_AUTHORIZATION_FAILED: t-0: grant READ on the topic" in stalled.end()
    assert stalled.now_s == 980 + 60  # by the deadline of the read, which is the earlier one


def test_records_of_another_topic_do_not_show_that_a_topic_may_be_read() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("u", 0, 0, 10)]
    unread = UnreadRanges(ranges, ReadSettings(consumer_config={}), lambda: 0.0)
    unread.move([Assigned("u", 0, 5)])
    unread.on_error(DENIED, T0)
    with pytest.raises(BrokerError, match="t-0: grant READ on the topic"):
        unread.move([Assigned("u", 0, 6)])


def test_records_of_a_topic_show_that_it_may_be_read() -> None:
    stalled = Stalled()
    stalled.unread.move([Assigned("t", 0, 5)])
    stalled.unread.on_error(DENIED, T1)
    stalled.unread.move([])


def test_a_look_that_fails_here_is_no_reason_to_doubt_the_range() -> None:
    stalled = Stalled()
    stalled.unread.on_error(KafkaError(KafkaError._TRANSPORT, AWAY))
    stalled.unread.on_idle_look_failed(T0, KafkaError(KafkaError._TIMED_OUT))
    assert stalled.unread.doubted.take_due(stalled.unread.open) == []
    assert f"librdkafka said last: {AWAY}" in stalled.end()


def test_a_batch_of_which_neither_reader_makes_records_is_final_at_the_second_look() -> None:
    stalled = Stalled(p0=MalformedBatch("a batch is not as Kafka writes it"))
    stalled.unread.on_idle_look(T0, LogRange(0, 200))
    stalled.unread.on_idle_look(T1, LogRange(0, 200))
    stalled.unread.on_idle_look(T1, LogRange(0, 200))
    with pytest.raises(
        WireError, match=r"t-0 has records from offset 0 on .* not as Kafka writes it\. .* its producer"
    ):
        stalled.unread.on_idle_look(T0, LogRange(0, 200))
