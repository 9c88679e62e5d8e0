"""A read that gets no records says so long before it gives up: a whole batch waits with it."""

import logging

import pytest

from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.read.unread_ranges import UnreadRanges
from pyspark_kgroup.limits import READ_SILENCE_WARNED_MS
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.errors import WireError
from spark_kgroup.limits import NAMES_LISTED_MAX
from spark_kgroup.model import TopicPartition

SILENCE_S = READ_SILENCE_WARNED_MS // 1000


class Reading:
    """One read, on a clock of its own."""

    def __init__(self, stall_timeout_ms: int, partitions: int = 1) -> None:
        self._now_s = 1000.0
        settings = ReadSettings(consumer_config={}, stall_timeout_ms=stall_timeout_ms)
        ranges = [OffsetRange("t", number, 3, 8) for number in range(partitions)]
        reasons = {
            TopicPartition("t", number): FallbackToLibrdkafka(f"no leader of t-{number}")
            for number in range(partitions)
        }
        self.unread = UnreadRanges(ranges, settings, lambda: self._now_s, reasons if partitions > 1 else {})

    def wait(self, seconds: int) -> None:
        """No record comes for so long."""
        for _ in range(seconds):
            self._now_s += 1
            self.unread.move([])


def test_a_silent_read_warns_once_with_partition_position_and_bound(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(300_000)
    with caplog.at_level(logging.WARNING, logger="pyspark_kgroup"):
        reading.wait(SILENCE_S - 1)
        assert caplog.messages == []
        reading.wait(5 * SILENCE_S)
    (warning,) = caplog.messages
    assert f"No record has come for {SILENCE_S} s from t-0 (at 3 of 8)" in warning
    assert f"{300 - SILENCE_S} s more" in warning


def test_a_read_with_an_answer_again_may_warn_again(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(300_000)
    with caplog.at_level(logging.WARNING, logger="pyspark_kgroup"):
        for _ in range(2):
            reading.wait(SILENCE_S - 1)
            reading.unread.resume()
        assert caplog.messages == []
        for _ in range(2):
            reading.wait(SILENCE_S)
            reading.unread.resume()
    assert len(caplog.messages) == 2


def test_a_bound_that_is_shorter_than_the_warning_ends_in_the_error_alone(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(3_000)
    with pytest.raises(WireError, match=r"No record came for 3 s from t-0 \(at 3 of 8\)"):
        reading.wait(SILENCE_S)
    assert caplog.messages == []


def test_of_thousands_of_silent_partitions_a_few_are_named(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(20_000, partitions=2_500)
    with pytest.raises(
        WireError, match=r"t-1 \(at 3 of 8\), .+ and 2480 more\. .+no leader of t-1; .+ and 2480 more"
    ) as error:
        reading.wait(3 * SILENCE_S)
    assert max(len(str(error.value)), *map(len, caplog.messages)) < 100 * NAMES_LISTED_MAX
