"""A seat server's fetches ahead over connections of its own, and when it leaves them to librdkafka."""

from collections.abc import Callable, Iterator, Mapping
from ctypes import CDLL
from typing import Any

import pytest
from harness.fetch_broker import FetchBroker, answering, partition, wanted
from harness.record_batches import TRANSACTIONAL, Batch, Record, marker
from harness.waiting import wait_for

from pyspark_kgroup.executor.native import fetched_log
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.sidecar import prefetcher
from pyspark_kgroup.executor.sidecar.prefetch_buffer import PrefetchBuffer
from pyspark_kgroup.executor.sidecar.prefetcher import Prefetcher
from pyspark_kgroup.limits import (
    FETCH_BUSY_BYTES_MIN,
    FETCH_BYTES_MAX,
    FETCH_BYTES_MIN,
    FETCH_IDLE_WAIT_MS,
    PREFETCH_BYTES_MIN,
)
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.model import TopicPartition

P0, P1 = (TopicPartition("t", number) for number in range(2))
PLENTY = 64 * 1024 * 1024


class Seat:
    """A seat's spans and the prefetcher that fills them. Rows are taken as offsets."""

    def __init__(self, library: CDLL, share: int = PLENTY, *, read_committed: bool = False) -> None:
        self.ahead = PrefetchBuffer()
        settings = FetchSettings.of({"isolation.level": "read_committed"} if read_committed else {})
        parts = (self.ahead, lambda: share, library, settings, ConnectionSecurity())
        self.prefetcher = Prefetcher(*parts, include_headers=False)
        self.waits = 0  # how often a read had to fetch

    def begin(self, leader: Leader | None, *partitions: TopicPartition, offset: int = 0) -> None:
        for tp in partitions:
            self.ahead.begin(tp, offset)
        self.prefetcher.begin(dict.fromkeys(partitions, leader))

    def fetch_ahead_until(self, condition: Callable[[], bool], what: str) -> None:
        def condition_after_one_look() -> bool:
            self.prefetcher.prefetch()
            self.prefetcher.take()
            return condition()

        wait_for(condition_after_one_look, what, every_s=0.001)

    def read(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[int]]:
        """Read as a seat's server does. Returns the offsets of each partition in their order."""
        self.prefetcher.flush()
        found: dict[TopicPartition, list[int]] = {tp: [] for tp in ends}

        def take() -> bool:
            for batch in self.ahead.take(ends):
                for number, offset in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True):
                    found[TopicPartition("t", number)].append(offset)
            unread = {tp: end for tp, end in ends.items() if self.ahead.next_offset(tp) < end}
            if unread:
                self.waits += 1
                self.prefetcher.fetch(unread)
            return not unread

        wait_for(take, "all to be read", every_s=0)
        return found


@pytest.fixture
def seat(library: CDLL) -> Iterator[Seat]:
    seat = Seat(library)
    yield seat
    seat.prefetcher.close()


def log(first: int, count: int = 10, size: int = 10, **more: Any) -> bytes:
    return Batch([Record(offset, None, b"v" * size) for offset in range(first, first + count)], **more).encoded()


def up_to(end: int, count: int = 10, size: int = 10) -> Callable[[int, int], bytes]:
    """Logs that end at `end`."""
    return lambda _, offset: log(offset, count, size) if offset < end else b""


def asked_at(broker: FetchBroker, tp: TopicPartition) -> list[int]:
    """The offsets of `tp` that were asked for, in order."""
    return [at for request in broker.fetches for _, number, at in wanted(request) if number == tp.partition]


# ------------------------------------------------------------------------------------------------------------- ahead


def test_all_that_logs_have_is_there_before_a_read_asks_for_it(seat: Seat) -> None:
    with FetchBroker(answering(up_to(50))) as broker:
        seat.begin(broker.leader(), P0, P1)
        seat.fetch_ahead_until(lambda: {50} <= set(asked_at(broker, P0)) & set(asked_at(broker, P1)), "both logs' ends")
        assert seat.read({P0: 50, P1: 30}) == {P0: list(range(50)), P1: list(range(30))}
        assert seat.read({P1: 50}) == {P1: list(range(30, 50))}
    assert seat.waits == 0
    assert seat.ahead.bytes == 0


def test_small_answers_wait_undecoded_and_become_one_batch(seat: Seat) -> None:
    with FetchBroker(answering(up_to(200))) as broker:
        seat.begin(broker.leader(), P0)
        seat.fetch_ahead_until(lambda: 200 in asked_at(broker, P0), "the end of the log")
        assert seat.ahead.bytes == 0
        seat.prefetcher.flush()
        (batch,) = seat.ahead.take({P0: 200})
    assert batch["offset"].to_pylist() == list(range(200))


def test_long_lists_of_aborted_transactions_do_not_wait_undecoded(library: CDLL) -> None:
    """Else a broker could list other transactions with each record, and the lists that wait would have no bound."""

    def say(number: int, offset: int) -> object:
        listed = tuple((producer, 0) for producer in range(100 * offset, 100 * offset + 200))
        return partition(number, log(offset) if offset < 200 else b"", aborted=listed)

    seat = Seat(library, read_committed=True)
    with FetchBroker(answering(say)) as broker:
        seat.begin(broker.leader(), P0)
        seat.fetch_ahead_until(lambda: 200 in asked_at(broker, P0), "the end of the log")
        assert seat.ahead.bytes > 0
        assert seat.read({P0: 200}) == {P0: list(range(200))}
    seat.prefetcher.close()


def test_transactions_that_were_aborted_in_successive_answers_are_not_shown(library: CDLL) -> None:
    """Each answer has one batch of the transaction, or its marker."""
    logs = {
        0: log(0, 5, attributes=TRANSACTIONAL, producer_id=7),
        5: log(5, 5, attributes=TRANSACTIONAL, producer_id=8),
        10: log(10, 5, attributes=TRANSACTIONAL, producer_id=7),
        15: marker(15, 7, commit=False),
        16: marker(16, 8, commit=True),
        17: log(17, 3),
    }

    def say(number: int, offset: int) -> object:
        return partition(number, logs.get(offset, b""), aborted=((7, 0),) if offset < 16 else ())

    seat = Seat(library, read_committed=True)
    with FetchBroker(answering(say)) as broker:
        seat.begin(broker.leader(), P0)
        seat.fetch_ahead_until(lambda: 20 in asked_at(broker, P0), "the end of the log")
        assert seat.read({P0: 20}) == {P0: [5, 6, 7, 8, 9, 17, 18, 19]}
    seat.prefetcher.close()


def test_long_polls_wait_for_many_records_while_they_flow_and_for_one_when_they_have_ceased(seat: Seat) -> None:
    with FetchBroker(answering(up_to(20))) as broker:
        seat.begin(broker.leader(), P0)
        seat.fetch_ahead_until(lambda: len(broker.fetches) >= 4, "polls of a log that has ceased to grow")
        asked = [(request.min_bytes, request.max_wait.total_seconds() * 1000) for request in broker.fetches[:4]]
    assert [bytes_min for bytes_min, _ in asked[1:]] == [FETCH_BUSY_BYTES_MIN, FETCH_BUSY_BYTES_MIN, 1]
    assert asked[3][1] == FETCH_IDLE_WAIT_MS


# -------------------------------------------------------------------------------------------------------------- room


def test_no_more_is_asked_for_than_there_is_room(library: CDLL) -> None:
    """The log has no end: only the bound stops the fetches."""
    seat = Seat(library, share=PREFETCH_BYTES_MIN)
    with FetchBroker(answering(lambda _, offset: log(offset, 100, 1_000))) as broker:
        seat.begin(broker.leader(), P0, P1)
        seat.fetch_ahead_until(
            lambda: not seat.prefetcher.connections() and seat.ahead.bytes > 0, "nothing more to be asked for"
        )
        seat.prefetcher.flush()
        assert PREFETCH_BYTES_MIN / 2 < seat.ahead.bytes < PREFETCH_BYTES_MIN + 300_000, "one answer more, at most"
        sizes = [request.max_bytes for request in broker.fetches]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == PREFETCH_BYTES_MIN
        assert sizes[-1] >= FETCH_BYTES_MIN
    seat.prefetcher.close()


def test_a_read_goes_on_without_room_and_keeps_no_record_beyond_its_end(library: CDLL) -> None:
    seat = Seat(library, share=PREFETCH_BYTES_MIN)
    with FetchBroker(answering(lambda n, offset: log(offset, 100, 1_000) if n or offset < 3_000 else b"")) as broker:
        seat.begin(broker.leader(), P1)
        seat.fetch_ahead_until(lambda: not seat.prefetcher.connections() and seat.ahead.bytes > 0, "no room to be left")
        seat.prefetcher.flush()
        full = seat.ahead.bytes
        seat.begin(broker.leader(), P0)
        assert seat.read({P0: 2_050}) == {P0: list(range(2_050))}
        assert seat.ahead.bytes == full
        assert max(request.max_bytes for request in broker.fetches) == FETCH_BYTES_MAX
        assert seat.read({P0: 2_950}) == {P0: list(range(2_050, 2_950))}
        last = asked_at(broker, P0)
        assert last == sorted(last), "what was cut is asked for again from where it was cut"
        have = seat.ahead.next_offset(P1)
        assert seat.read({P1: have + 10}) == {P1: list(range(have + 10))}
        assert seat.read({P0: 3_000}) == {P0: list(range(2_950, 3_000))}
    seat.prefetcher.close()


def test_records_that_decompress_to_more_than_the_room_are_fetched_in_parts(
    library: CDLL,
) -> None:
    """300 MB of records, compressed to 18 KB."""
    whole = [
        Batch([Record(n, None, bytes(1_000_000)) for n in range(k, k + 10)], "zstd").encoded()
        for k in range(0, 300, 10)
    ]
    seat = Seat(library, share=PREFETCH_BYTES_MIN)
    with FetchBroker(answering(lambda _, at: b"".join(whole[at // 10 :]))) as broker:
        seat.begin(broker.leader(), P0)
        assert seat.read({P0: 300}) == {P0: list(range(300))}
        asked = [at for at in asked_at(broker, P0) if at < 300]
        assert asked == sorted(asked)
        assert len(asked) == 5, "64 MiB each time"
    seat.prefetcher.close()


def compressed_log(offset: int, size: int) -> bytes:
    """From an offset to the end of its group of 200 records, 10 to a batch: 1 MB in a few hundred bytes a batch."""
    end = offset // 200 * 200 + 200
    return b"".join(
        Batch([Record(n, None, bytes(size)) for n in range(k, min(k + 10, end))], "zstd").encoded()
        for k in range(offset, end, 10)
    )


def test_waiting_records_that_decompress_to_more_than_the_room_are_fetched_again_later(library: CDLL) -> None:
    """40 partitions of 2 MB each, in some KB."""
    share, all_of_them = 8 * PREFETCH_BYTES_MIN, [TopicPartition("t", number) for number in range(40)]
    seat = Seat(library, share=share)
    logs = {at: compressed_log(at, 10_000) for at in range(200)}
    with FetchBroker(answering(lambda _, at: logs.get(at, b""))) as broker:
        seat.begin(broker.leader(), *all_of_them)
        seat.fetch_ahead_until(lambda: all(200 in asked_at(broker, tp) for tp in all_of_them), "all to wait")
        assert seat.ahead.bytes == 0
        seat.prefetcher.flush()
        assert share - FETCH_BYTES_MAX < seat.ahead.bytes <= share + FETCH_BYTES_MAX
        assert seat.read(dict.fromkeys(all_of_them, 200)) == {tp: list(range(200)) for tp in all_of_them}
        assert seat.ahead.bytes == 0
    seat.prefetcher.close()


def test_a_large_answer_that_decompresses_to_more_than_the_room_is_kept_as_far_as_there_is_room(
    library: CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 MB, which are decoded between two reads as if they had not been worth the wait."""
    monkeypatch.setattr(prefetcher, "FETCH_UNDECODED_BYTES_MAX", 1)
    seat = Seat(library, share=PREFETCH_BYTES_MIN)
    logs = {at: compressed_log(at, 100_000) for at in range(200)}
    with FetchBroker(answering(lambda _, at: logs.get(at, b""))) as broker:
        seat.begin(broker.leader(), P0)
        seat.fetch_ahead_until(lambda: not seat.prefetcher.connections() and seat.ahead.bytes > 0, "no room to be left")
        assert PREFETCH_BYTES_MIN <= seat.ahead.bytes <= PREFETCH_BYTES_MIN + FETCH_BYTES_MAX
        assert seat.read({P0: 200}) == {P0: list(range(200))}
    seat.prefetcher.close()


def test_a_read_keeps_without_room_no_record_of_partitions_that_it_does_not_want(library: CDLL) -> None:
    """The first answer of the read has both: 20 MB each."""
    seat = Seat(library, share=PREFETCH_BYTES_MIN)
    logs = {at: compressed_log(at, 100_000) for at in range(200)}
    with FetchBroker(answering(lambda _, at: logs.get(at, b""))) as broker:
        seat.begin(broker.leader(), P0, P1)
        assert seat.read({P0: 200}) == {P0: list(range(200))}
        assert seat.ahead.bytes <= PREFETCH_BYTES_MIN + FETCH_BYTES_MAX
        assert seat.read({P1: 200}) == {P1: list(range(200))}
    seat.prefetcher.close()


def test_a_read_of_many_partitions_makes_no_more_of_one_answer_than_the_decoder_may(
    library: CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 partitions of 2 MB each, 4 MB at a time. Answers that are not decoded are fetched again."""
    monkeypatch.setattr(prefetcher, "DECODED_BYTES_MAX", 2 * FETCH_BYTES_MAX)
    all_of_them = [TopicPartition("t", number) for number in range(10)]
    seat = Seat(library, share=0)
    logs = {at: compressed_log(at, 10_000) for at in range(200)}
    most = 0
    with FetchBroker(answering(lambda _, at: logs.get(at, b""))) as broker:
        seat.begin(broker.leader(), *all_of_them)
        ends = dict.fromkeys(all_of_them, 200)
        while ends:
            seat.prefetcher.fetch(ends)
            most = max(most, seat.ahead.bytes)
            seat.ahead.take(ends)
            ends = {tp: end for tp, end in ends.items() if seat.ahead.next_offset(tp) < end}
    assert FETCH_BYTES_MAX < most <= 3 * FETCH_BYTES_MAX
    seat.prefetcher.close()


# ------------------------------------------------------------------------------------------------ leaders, connections


def last_wanted(broker: FetchBroker, tp: TopicPartition) -> tuple[int, int, int]:
    """Offset, leader epoch and epoch of the last batch in the last request for `tp`."""
    return next(
        (one.fetch_offset, one.current_leader_epoch, one.last_fetched_epoch)
        for request in reversed(broker.fetches)
        for topic in request.topics
        for one in topic.partitions
        if one.partition == tp.partition
    )


def test_a_new_leader_hears_of_which_epoch_the_last_batch_was(seat: Seat) -> None:
    """So it can tell that its log is another one (KIP-320)."""
    with FetchBroker(answering(lambda _, at: log(at, leader_epoch=5) if at < 20 else b"")) as broker:
        seat.begin(broker.leader(epoch=5), P0)
        seat.fetch_ahead_until(lambda: 20 in asked_at(broker, P0), "the end of the log")
        assert last_wanted(broker, P0) == (20, 5, 5)
        seat.prefetcher.flush()
        seat.prefetcher.begin({P0: broker.leader(epoch=6)})
        seat.fetch_ahead_until(lambda: last_wanted(broker, P0)[1] == 6, "the new leader to be asked")
        assert last_wanted(broker, P0) == (20, 6, 5)


def test_a_partition_that_waited_for_room_is_asked_for_with_the_epoch_of_its_last_batch(library: CDLL) -> None:
    seat = Seat(library, share=PREFETCH_BYTES_MIN)
    with FetchBroker(answering(lambda _, at: log(at, 100, 10_000, leader_epoch=5) if at < 3_000 else b"")) as broker:
        seat.begin(broker.leader(epoch=5), P0, P1)
        seat.fetch_ahead_until(lambda: not seat.prefetcher.connections() and seat.ahead.bytes > 0, "no room to be left")
        have = seat.ahead.next_offset(P1)
        assert have > 0
        assert len(seat.read({P0: 3_000})[P0]) == 3_000
        seat.read({P1: have + 1})
        asked = [
            one.last_fetched_epoch
            for request in broker.fetches
            for topic in request.topics
            for one in topic.partitions
            if one.partition == 1 and one.fetch_offset >= have
        ]
        assert set(asked) == {5}
    seat.prefetcher.close()


def test_a_partition_that_begins_anew_is_asked_for_without_an_epoch(seat: Seat) -> None:
    """It may be another log at the same offset."""
    with FetchBroker(answering(lambda _, at: log(at, leader_epoch=5) if at < 20 else b"")) as broker:
        seat.begin(broker.leader(epoch=5), P0)
        seat.fetch_ahead_until(lambda: 20 in asked_at(broker, P0), "the end of the log")
        seat.prefetcher.flush()
        seat.prefetcher.end([P0])
        seat.begin(broker.leader(epoch=6), P0, offset=20)
        seat.fetch_ahead_until(lambda: last_wanted(broker, P0)[1] == 6, "it to be asked for anew")
        assert last_wanted(broker, P0) == (20, 6, -1)


def test_another_leader_is_asked_from_where_the_span_ends(seat: Seat) -> None:
    with FetchBroker(answering(up_to(20))) as old, FetchBroker(answering(up_to(40))) as new:
        seat.begin(old.leader(1), P0)
        seat.fetch_ahead_until(lambda: 20 in asked_at(old, P0), "the old leader's end")
        seat.prefetcher.flush()
        seat.prefetcher.begin({P0: new.leader(2, epoch=6)})
        assert seat.read({P0: 40}) == {P0: list(range(40))}
        assert asked_at(new, P0)[0] == 20


def test_a_partition_without_a_known_leader_is_unusual_only_when_it_is_read(seat: Seat) -> None:
    with FetchBroker(answering(up_to(20))) as broker:
        seat.begin(None, P1)
        seat.begin(broker.leader(), P0)
        assert seat.read({P0: 20}) == {P0: list(range(20))}
        with pytest.raises(FallbackToLibrdkafka, match="who leads t-1"):
            seat.read({P1: 1})


def test_partitions_of_a_broker_that_is_gone_are_unusual_when_the_rest_of_a_read_is_there(seat: Seat) -> None:
    """Between reads no partition is unusual, and a new leader is asked as soon as the driver has heard of it."""
    with FetchBroker(answering(up_to(20))) as broker, FetchBroker(answering(up_to(20))) as new:
        with FetchBroker(answering(up_to(20))) as old:
            gone = old.leader(2)
        seat.begin(broker.leader(1), P0)
        seat.begin(gone, P1)
        seat.fetch_ahead_until(lambda: 20 in asked_at(broker, P0), "the end of the log that can be read")
        with pytest.raises(FallbackToLibrdkafka, match="refused"):
            seat.read({P0: 20, P1: 20})
        assert (seat.ahead.next_offset(P0), seat.ahead.next_offset(P1)) == (20, 0)
        seat.prefetcher.begin({P0: broker.leader(1), P1: new.leader(3, epoch=6)})
        assert seat.read({P1: 20}) == {P1: list(range(20))}


def test_a_connection_that_ends_between_requests_is_opened_anew(library: CDLL) -> None:
    seat = Seat(library, share=PREFETCH_BYTES_MIN)
    with FetchBroker(answering(lambda _, offset: log(offset, 100, 1_000))) as broker:
        seat.begin(broker.leader(), P0)
        seat.fetch_ahead_until(lambda: not seat.prefetcher.connections() and seat.ahead.bytes > 0, "no room to be left")
        broker.hang_up()
        have = seat.ahead.next_offset(P0)
        assert seat.read({P0: have + 500}) == {P0: list(range(have + 500))}
        assert broker.fake.connections == 2
    seat.prefetcher.close()


# ----------------------------------------------------------------------------------------- what is left to librdkafka


def fetch_until_refused(seat: Seat, end: int) -> FallbackToLibrdkafka:
    """The reason why a read of `P0` up to `end` cannot go on natively."""
    with pytest.raises(FallbackToLibrdkafka) as refused:
        wait_for(lambda: seat.prefetcher.fetch({P0: end}), "a refusal", every_s=0)
    return refused.value


def test_records_before_an_answer_that_is_left_to_librdkafka_are_in_the_span(seat: Seat) -> None:
    with FetchBroker(answering(lambda n, at: partition(n, error=6) if at >= 20 else log(at))) as broker:
        seat.begin(broker.leader(), P0)
        assert "NOT_LEADER_OR_FOLLOWER" in fetch_until_refused(seat, 30).reason
    assert seat.ahead.next_offset(P0) == 20


def test_a_topic_whose_id_its_leader_does_not_know_is_left_to_the_worker(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker asks other brokers whether it is gone, and knows `failOnDataLoss`."""
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 0)
    with FetchBroker(answering(lambda n, at: partition(n, error=100) if at >= 20 else log(at))) as broker:
        seat.begin(broker.leader(), P0)
        refused = fetch_until_refused(seat, 30)
    assert isinstance(refused, fetched_log.UnknownTopicId)
    assert seat.ahead.next_offset(P0) == 20
