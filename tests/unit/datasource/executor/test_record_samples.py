"""A sample of records ends early: after enough bytes, after some seconds, and by an error of the read."""

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.read import record_samples
from pyspark_kgroup.executor.read.record_samples import sample_sizes
from pyspark_kgroup.limits import SAMPLE_MS, SAMPLED_BYTES
from pyspark_kgroup.shared.arrow import arrow_schema
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings

RANGES = [OffsetRange("t", 0, 0, 200), OffsetRange("t", 1, 0, 200)]
SETTINGS = ReadSettings(consumer_config={}, fail_on_data_loss=False)


class Log:
    """Batches of one record each, and what the read was asked for. It takes `takes_s` for each."""

    def __init__(self, value: bytes, *, takes_s: float = 0.0, ends_after: int = 400) -> None:
        self.rows = [{"topic": "t", "partition": 0, "offset": 0, "value": value}]
        self.takes_s = takes_s
        self.ends_after = ends_after
        self.now_s = 50.0
        self.came = 0
        self.closed = False
        self.settings: ReadSettings | None = None

    def read(self, _: Sequence[OffsetRange], settings: ReadSettings, __: object) -> Iterator[pa.RecordBatch]:
        self.settings = settings
        try:
            while self.came < self.ends_after:
                self.now_s += self.takes_s
                self.came += 1
                yield pa.RecordBatch.from_pylist(self.rows, schema=arrow_schema(False))
            raise DataLoss("the log has other offsets")
        finally:
            self.closed = True

    def sample(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """How many rows the sample had."""
        monkeypatch.setattr(record_samples, "read_with_librdkafka", self.read)
        sizes = sample_sizes(RANGES, SETTINGS, lambda: self.now_s)
        assert self.closed
        return sum(size.rows for size in sizes)


def test_large_records_end_a_sample_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Log(bytes(SAMPLED_BYTES // 2)).sample(monkeypatch) == 4


def test_records_that_come_slowly_end_a_sample_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(b"x", takes_s=1)
    assert log.sample(monkeypatch) == SAMPLE_MS // 1000 + 1
    assert log.settings is not None
    assert log.settings.stall_timeout_ms == SAMPLE_MS


def test_a_loss_ends_a_sample_which_counts_so_far_and_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The read of the batch meets the loss as well, and acts on `failOnDataLoss`."""
    caplog.set_level(logging.INFO)
    log = Log(b"x", ends_after=3)
    assert log.sample(monkeypatch) == 3
    assert log.settings is not None
    assert log.settings.fail_on_data_loss, "else the sample would warn of a loss before the read"
    (told,) = caplog.records
    assert told.levelno == logging.INFO
    assert "the log has other offsets" in told.getMessage()
