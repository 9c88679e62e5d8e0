"""The requests to each broker and their times, and each answer that ends the fetches."""

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from harness import kio_messages
from harness.fake_broker import HUNG_UP, Raw, until
from harness.fetch_broker import TOPIC_ID, FetchBroker, answering, partition, response, wanted
from harness.record_batches import Batch, Record
from harness.waiting import wait_for
from kio.schema.errors import ErrorCode
from kio.static.primitive import i64Timedelta

from pyspark_kgroup.executor.native import broker_connection, fetched_log
from pyspark_kgroup.executor.native import fetcher as module
from pyspark_kgroup.executor.native.broker_connection import Broker, BrokerConnection, BrokerFailed
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity, connection_security
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetched_log import LogLost, UnknownTopicId
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.limits import RETRY_BACKOFF_MS
from spark_kgroup.model import TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
SETTINGS = FetchSettings.of({"client.id": "me", "client.rack": "here"})


def log(first: int, count: int = 10, **more: Any) -> bytes:
    return Batch([Record(first + number) for number in range(count)], **more).encoded()


@contextmanager
def fetching(*brokers: FetchBroker) -> Iterator[Fetcher]:
    with ExitStack() as stack:
        for broker in brokers:
            stack.enter_context(broker)
        fetcher = Fetcher(SETTINGS, ConnectionSecurity())
        try:
            yield fetcher
        finally:
            fetcher.close()


def ask_and_connect(fetcher: Fetcher) -> None:
    """Ask, and wait until a request is under way."""
    fetcher.ask()
    wait_for(lambda: fetcher.ready(0) or fetcher.connections(), "a request")


def next_chunks(fetcher: Fetcher, *, go_on: bool = True) -> list[Chunk]:
    """The chunks of the next answers: of one answer of each broker that has one by now."""
    fetcher.ask()
    return [
        chunk._replace(records=memoryview(bytes(chunk.records)))
        for connection in fetcher.ready()
        for chunk in fetcher.take(connection, go_on=go_on)
    ]


def fetches_of(broker: FetchBroker) -> list[list[tuple[int, int]]]:
    """(partition, offset) of each Fetch, in order."""
    return [[(number, offset) for _, number, offset in wanted(request)] for request in broker.fetches]


# ------------------------------------------------------------------------------------------------------------ requests


def test_a_partition_is_asked_for_as_metadata_and_settings_say() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset, leader_epoch=4)))
    with fetching(broker) as fetcher:
        fetcher.add(T1, broker.leader(epoch=5), 100, 130)
        (chunk,) = next_chunks(fetcher, go_on=False)
        assert chunk == Chunk(T1, 100, 130, 110, memoryview(log(100, leader_epoch=4)), ())
        next_chunks(fetcher, go_on=False)
        first, second = broker.fetches
    assert (first.isolation_level, first.rack_id) == (0, "here")
    assert (first.session_id, first.session_epoch, first.forgotten_topics_data) == (0, -1, ())
    ((topic,), (again,)) = first.topics, second.topics
    assert topic.topic_id == TOPIC_ID
    assert [(one.current_leader_epoch, one.last_fetched_epoch) for one in topic.partitions] == [(5, -1)]
    assert [(one.current_leader_epoch, one.last_fetched_epoch) for one in again.partitions] == [(5, 4)]


def test_the_next_request_is_sent_before_an_answer_is_decoded() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 1_000)
        fetcher.ask()
        (connection,) = fetcher.ready()
        fetcher.take(connection)
        wait_for(lambda: len(broker.fetches) == 2, "the second request")
        assert fetches_of(broker) == [[(0, 0)], [(0, 10)]]
        fetcher.ask()
        assert fetcher.connections() == [connection], "one at a time"
        assert len(broker.fetches) == 2


def test_no_request_asks_for_a_range_that_is_done_nor_follows_the_last_one() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 5)
        fetcher.add(T1, broker.leader(), 0, 15)
        assert [(c.partition, c.next_offset) for c in next_chunks(fetcher)] == [(T0, 5), (T1, 10)]
        assert [(c.partition, c.next_offset) for c in next_chunks(fetcher)] == [(T1, 15)]
        assert fetcher.connections() == []
        with pytest.raises(FallbackToLibrdkafka, match="no range is left"):
            fetcher.ready()
    assert fetches_of(broker) == [[(0, 0), (1, 0)], [(1, 10)]]


def test_partitions_that_gave_records_are_asked_for_last() -> None:
    """KIP-74: only the first is promised progress, and it may fill the answer."""
    broker = FetchBroker(lambda request: first_only(request))

    def first_only(request: Any) -> Any:
        topics = wanted(request)
        partitions = [partition(n, log(offset) if place == 0 else b"") for place, (_, n, offset) in enumerate(topics)]
        return response({TOPIC_ID: partitions})

    with fetching(broker) as fetcher:
        for each in (T0, T1, T2):
            fetcher.add(each, broker.leader(), 0, 1_000)
        order = [chunk.partition for _ in range(6) for chunk in next_chunks(fetcher)]
    assert order == [T0, T1, T2] * 2


@pytest.mark.parametrize("speaking", [range(8), range(1), ()], ids=["all speak", "one speaks", "all are silent"])
def test_many_partitions_have_turns_and_none_starves(
    monkeypatch: pytest.MonkeyPatch, speaking: Collection[int]
) -> None:
    """Three of eight at a time: each has its turn in any three requests. A wait is shared by those who take turns."""
    monkeypatch.setattr(module, "FETCH_PARTITIONS_MAX", 3)
    broker = FetchBroker(answering(lambda number, offset: log(offset) if number in speaking else b""))
    with fetching(broker) as fetcher:
        for number in range(8):
            fetcher.add(TopicPartition("t", number), broker.leader(), 0)
        for _ in range(12):
            next_chunks(fetcher, go_on=False)
        asked = [{number for number, _ in request} for request in fetches_of(broker)]
        waits_ms = [request.max_wait // timedelta(milliseconds=1) for request in broker.fetches]
    assert [len(request) for request in asked] == [3] * 12
    assert all(set.union(*asked[first : first + 3]) == set(range(8)) for first in range(10))
    assert set(waits_ms) <= {50 * 3 // 8, 500 * 3 // 8}


def test_a_range_that_had_one_turn_in_vain_is_asked_for_again_though_another_one_had_one_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FETCH_PARTITIONS_MAX", 1)
    logs = {0: [b"", log(0)], 1: [b"", log(0)]}
    broker = FetchBroker(answering(lambda number, _: logs[number].pop(0)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 10)
        fetcher.add(T1, broker.leader(), 0, 10)
        assert positions_of(fetcher, 2) == [(T0, 0), (T1, 0)]
    assert fetches_of(broker) == [[(0, 0)], [(1, 0)]] * 2


def test_a_partition_that_is_dropped_is_shown_no_more_though_it_is_on_its_way() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0)
        fetcher.add(T1, broker.leader(), 0)
        ask_and_connect(fetcher)
        fetcher.drop({T0})
        assert [chunk.partition for chunk in next_chunks(fetcher)] == [T1]
        assert [chunk.partition for chunk in next_chunks(fetcher)] == [T1]
    assert fetches_of(broker)[:2] == [[(0, 0), (1, 0)], [(1, 10)]]


def test_several_brokers_are_asked_at_the_same_time_each_for_its_own() -> None:
    """No broker answers before both are asked."""
    brokers: list[FetchBroker] = []

    def both_asked(number: int, offset: int) -> bytes:
        wait_for(lambda: all(broker.fetches for broker in brokers), "both brokers to be asked")
        return log(offset)

    brokers += [FetchBroker(answering(both_asked)) for _ in range(2)]
    with fetching(*brokers) as fetcher:
        fetcher.add(T0, brokers[0].leader(1), 0, 10)
        fetcher.add(T1, brokers[1].leader(2), 0, 10)
        fetcher.add(T2, brokers[0].leader(1), 0, 10)
        found: list[TopicPartition] = []
        while len(found) < 3:
            found += [chunk.partition for chunk in next_chunks(fetcher)]
    assert sorted(found) == [T0, T1, T2]
    assert [fetches_of(broker) for broker in brokers] == [[[(0, 0), (2, 0)]], [[(1, 0)]]]


def test_brokers_are_connected_to_side_by_side() -> None:
    """No broker tells its versions before all have a connection."""
    brokers = [FetchBroker(answering(lambda _, offset: log(offset))) for _ in range(3)]

    def late(broker: FetchBroker) -> Any:
        at_once = broker.fake.api_versions

        async def api_versions(version: int) -> Any:
            await until(lambda: all(other.fake.connections for other in brokers))
            return at_once(version)

        return api_versions

    for broker in brokers:
        broker.fake.api_versions = late(broker)  # type: ignore[method-assign]
    with fetching(*brokers) as fetcher:
        for number, broker in enumerate(brokers):
            fetcher.add(TopicPartition("t", number), broker.leader(number), 0, 10)
        found: list[TopicPartition] = []
        while len(found) < 3:
            found += [chunk.partition for chunk in next_chunks(fetcher)]
    assert sorted(found) == [T0, T1, T2]


@contextmanager
def silent_address() -> Iterator[Broker]:
    """An address that drops packets: its listener's backlog is full, so that a connection is not even refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.05)
            try:
                waiting.connect(listener.getsockname())
            except TimeoutError:
                break
        else:
            pytest.fail("the backlog has no end")
        yield Broker(*listener.getsockname())


def positions_of(fetcher: Fetcher, count: int) -> list[tuple[TopicPartition, int]]:
    """Partition and position of the next `count` chunks, sorted."""
    found: list[tuple[TopicPartition, int]] = []
    while len(found) < count:
        found += [(chunk.partition, chunk.position) for chunk in next_chunks(fetcher)]
    return sorted(found)


def test_a_broker_that_drops_packets_delays_no_other_and_is_left_alone_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_connection, "FETCH_CONNECT_MS", 3_000)
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with silent_address() as silent, fetching(broker) as fetcher:
        fetcher.add(T0, Leader(2, *silent, 5, TOPIC_ID.hex), 0, 10)
        fetcher.add(T1, broker.leader(1), 0, 20)
        began_at_s = time.monotonic()
        assert positions_of(fetcher, 2) == [(T1, 0), (T1, 10)]
        assert (fetcher.left, fetcher.waits()) == ({}, True)
        with pytest.raises(BrokerFailed, match=f"{silent} did not answer in time"):
            fetcher.ready()
        assert time.monotonic() - began_at_s >= 3
        assert list(fetcher.left) == [T0]


def test_partitions_of_a_broker_that_refuses_are_left_while_other_brokers_are_read_and_no_connection_stays() -> None:
    with FetchBroker(answering(lambda _, offset: log(offset))) as gone:
        address = gone.leader(2)
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with broker:
        fetcher = Fetcher(SETTINGS, ConnectionSecurity())
        fetcher.add(T0, address, 0, 10)
        fetcher.add(T1, broker.leader(1), 0)
        assert positions_of(fetcher, 2) == [(T1, 0), (T1, 10)]
        wait_for(lambda: next_chunks(fetcher) and fetcher.left, "the refusal to be seen")
        assert list(fetcher.left) == [T0]
        assert "refused" in fetcher.left[T0].reason
        fetcher.add(T0, broker.leader(1), 0)
        assert fetcher.left == {}
        wait_for(lambda: T0 in {chunk.partition for chunk in next_chunks(fetcher)}, "its new leader's records")
        fetcher.close()
        wait_for(lambda: broker.fake.connections == 1 and not broker.fake.open_connections, "the connection's end")


def test_partitions_of_a_broker_that_hangs_up_are_left_where_they_are_while_other_brokers_are_read() -> None:
    dying = FetchBroker(answering(lambda _, offset: log(offset)), versions=(4, 17))
    dying.fake.answer = lambda request: HUNG_UP if len(dying.fetches) > 1 else answering(lambda _, at: log(at))(request)
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker, dying) as fetcher:
        fetcher.add(T0, dying.leader(2), 0, 100)
        fetcher.add(T1, broker.leader(1), 0)
        found: list[tuple[TopicPartition, int]] = []
        while not fetcher.left:
            found += positions_of(fetcher, 1)
        assert [at for each, at in found if each == T0] == [0]
        assert "closed the connection" in fetcher.left[T0].reason
        before = len([one for one in found if one[0] == T1])
        assert positions_of(fetcher, 2) == [(T1, before * 10), (T1, before * 10 + 10)]


@pytest.mark.parametrize("begun", [b"\0\0", b"\0\0\0\x20abc"], ids=["in its length", "in its body"])
def test_an_answer_that_stops_in_its_midst_delays_no_other_broker_and_its_broker_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(module, "FETCH_SILENCE_MS", 3_000)
    stopping = FetchBroker(lambda _: Raw(begun))
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(stopping, broker) as fetcher:
        fetcher.add(T0, stopping.leader(1), 0, 10)
        ask_and_connect(fetcher)
        (stopped,) = fetcher.ready()
        assert fetcher.take(stopped) == []
        fetcher.add(T1, broker.leader(2), 0, 50)
        assert [at for _, at in positions_of(fetcher, 5)] == [0, 10, 20, 30, 40]
        assert fetcher.left == {}
        with pytest.raises(BrokerFailed, match=f"{stopping.address} did not answer in time"):
            fetcher.ready()
        assert list(fetcher.left) == [T0]


def test_a_reader_that_waited_for_other_brokers_has_patience_anew_with_a_broker_that_is_asked_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FETCH_AWAITED_MS", 500)
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 10)
        fetcher.ask(at_once=True)
        assert [chunk.position for connection in fetcher.ready() for chunk in fetcher.take(connection)] == [0]
        fetcher.ask(at_once=True)
        over_at_s = time.monotonic() + 0.5
        wait_for(lambda: time.monotonic() > over_at_s, "the patience to be over")
        fetcher.add(T1, broker.leader(), 0, 10)
        fetcher.ask(at_once=True)
        assert [chunk.position for connection in fetcher.ready() for chunk in fetcher.take(connection)] == [0]
        assert fetcher.left == {}


def test_a_connection_that_is_given_up_while_it_is_opened_is_closed_when_it_is_open() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    given_up = threading.Event()
    at_once = broker.fake.api_versions

    async def api_versions(version: int) -> Any:
        await until(given_up.is_set)
        return at_once(version)

    broker.fake.api_versions = api_versions  # type: ignore[method-assign]
    with broker:
        fetcher = Fetcher(SETTINGS, ConnectionSecurity())
        fetcher.add(T0, broker.leader(), 0, 10)
        fetcher.ask()
        assert fetcher.ready(0) == []
        wait_for(lambda: broker.fake.open_connections == 1, "the connection")
        fetcher.close()
        given_up.set()
        wait_for(lambda: broker.fake.open_connections == 0, "the connection's end")


def test_a_pause_is_waited_for_exactly_and_other_brokers_answers_come_meanwhile() -> None:
    """One broker has not heard of the leader, and the other one answers in the midst of the pause."""
    refusals = [UNKNOWN_EPOCH]
    paused = FetchBroker(answering(lambda n, at: partition(n, error=refusals.pop()) if refusals else log(at)))
    with fetching(paused) as fetcher:
        fetcher.add(T0, paused.leader(1), 0, 10)
        assert next_chunks(fetcher, go_on=False) == []
        fetcher.ask()
        assert (fetcher.readables(), 0.0 < (fetcher.wait_s() or 0.0) <= RETRY_BACKOFF_MS / 1000) == ([], True)
        assert fetcher.ready(0) == [], "nothing was slept for"
        broker = FetchBroker(answering(lambda _, offset: log(offset)))
        with broker:
            fetcher.add(T1, broker.leader(2), 0, 10)
            assert positions_of(fetcher, 2) == [(T0, 0), (T1, 0)]
    assert fetches_of(paused) == [[(0, 0)], [(0, 0)]]


def test_topics_of_one_broker_are_told_apart_by_their_ids() -> None:
    other = UUID(int=7)

    def answer(request: Any) -> Any:
        return response({topic: [partition(0, log(offset))] for topic, _, offset in wanted(request)})

    broker = FetchBroker(answer)
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 10)
        fetcher.add(TopicPartition("u", 0), broker.leader(topic_id=other), 5, 15)
        assert [(c.partition.topic, c.position) for c in next_chunks(fetcher)] == [("t", 0), ("u", 5)]


def test_topics_have_names_where_the_broker_knows_no_ids() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)), versions=(4, 12))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader()._replace(topic_id=""), 0, 10)
        assert [chunk.partition for chunk in next_chunks(fetcher)] == [T0]
        ((topic, _, _),) = wanted(broker.fetches[0])
    assert topic == "t"


def test_a_topic_without_an_id_on_a_connection_by_ids_is_asked_for_on_a_new_one_by_names() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0)
        assert positions_of(fetcher, 1) == [(T0, 0)]
        fetcher.add(TopicPartition("u", 0), broker.leader()._replace(topic_id=""), 0)
        wait_for(
            lambda: {chunk.partition.topic for chunk in next_chunks(fetcher, go_on=False)} == {"t", "u"}, "both topics"
        )
        assert {topic for topic, _, _ in wanted(broker.fetches[-1])} == {"t", "u"}
    assert broker.fake.connections == 2


# ------------------------------------------------------------------------------------------------------- long polls


def test_ranges_that_are_in_the_log_are_not_waited_for() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 1_000)
        next_chunks(fetcher)
        next_chunks(fetcher)
    assert {request.min_bytes for request in broker.fetches} == {1}


def test_without_an_end_a_few_records_are_awaited_at_a_time_until_they_cease() -> None:
    logs = [log(0), b"", log(10), b""]
    broker = FetchBroker(answering(lambda _, __: logs.pop(0) if logs else b""))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0)
        for _ in range(4):
            next_chunks(fetcher, go_on=False)
        waits = [(request.max_wait // timedelta(milliseconds=1), request.min_bytes) for request in broker.fetches]
    busy, idle = (50, 65_536), (500, 1)
    assert waits == [busy, busy, idle, busy]


# ----------------------------------------------------------------------------------------------------- another leader

NOT_LEADER, FENCED, UNKNOWN_EPOCH = 6, 74, 75


@pytest.mark.parametrize("error", [NOT_LEADER, FENCED])
def test_a_leader_that_moved_is_followed_where_the_answer_says_who_and_where(error: int) -> None:
    """KIP-951: no record is lost or read twice, and a partition that did not move is asked for as before."""
    other = FetchBroker(answering(lambda _, offset: log(offset)))
    with other:

        def say(number: int, offset: int) -> Any:
            return partition(number, error=error, leader=(2, 6)) if number == 0 and offset == 10 else log(offset)

        broker = FetchBroker(answering(say, endpoints={2: other.address}))
        with fetching(broker) as fetcher:
            fetcher.add(T0, broker.leader(1, epoch=5), 0, 30)
            fetcher.add(T1, broker.leader(1, epoch=5), 0, 30)
            found: list[tuple[TopicPartition, int]] = []
            while len(found) < 6:
                found += [(chunk.partition, chunk.position) for chunk in next_chunks(fetcher)]
        asked = [one for request in other.fetches for topic in request.topics for one in topic.partitions]
    assert sorted(found) == [(each, offset) for each in (T0, T1) for offset in (0, 10, 20)]
    assert [(one.current_leader_epoch, one.last_fetched_epoch, one.fetch_offset) for one in asked] == [
        (6, 0, 10),
        (6, 0, 20),
    ]


def test_a_leader_that_is_elected_again_is_asked_with_its_new_epoch() -> None:
    broker = FetchBroker(lambda request: answer(request))

    def answer(request: Any) -> Any:
        ((topic,),) = [request.topics]
        fenced = topic.partitions[0].current_leader_epoch < 7
        say = partition(0, error=FENCED, leader=(1, 7)) if fenced else log(0)
        return answering(lambda *_: say, endpoints={1: broker.address})(request)

    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(1, epoch=5), 0, 10)
        assert next_chunks(fetcher) == []
        assert [chunk.position for chunk in next_chunks(fetcher)] == [0]
    assert broker.fake.connections == 1


@pytest.mark.parametrize(("leader", "named"), [(None, 2), ((2, 6), 3), ((2, 5), 2), ((2, 4), 2), ((-1, 6), 2)], ids=str)
def test_a_leader_that_moved_to_an_unknown_address_or_by_older_news_is_unusual(
    leader: tuple[int, int] | None, named: int
) -> None:
    say = answering(lambda n, _: partition(n, error=NOT_LEADER, leader=leader), endpoints={named: Broker("b", 1)})
    broker = FetchBroker(say)
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(1, epoch=5), 0, 10)
        with pytest.raises(FallbackToLibrdkafka, match="t-0: NOT_LEADER_OR_FOLLOWER"):
            next_chunks(fetcher)


def test_a_broker_that_has_not_heard_of_our_leader_is_asked_again_while_other_brokers_are_read() -> None:
    behind = [3]

    def say(number: int, offset: int) -> Any:
        if number == 0 and behind[0]:
            behind[0] -= 1
            return partition(number, error=UNKNOWN_EPOCH)
        return log(offset)

    broker = FetchBroker(answering(say))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 10)
        fetcher.add(T1, broker.leader(), 0, 20)
        found: list[tuple[TopicPartition, int]] = []
        while len(found) < 3:
            found += [(chunk.partition, chunk.position) for chunk in next_chunks(fetcher)]
    assert found == [(T1, 0), (T1, 10), (T0, 0)]
    assert fetches_of(broker) == [[(0, 0), (1, 0)], [(1, 10)], [(0, 0)], [(0, 0)], [(0, 0)]]


@pytest.mark.parametrize("moves", [True, False], ids=["from one to the other and back", "one that stays behind"])
def test_leaders_that_do_not_settle_are_unusual_after_a_while(monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 1_500)
    epochs = iter(range(6, 1_000))
    brokers: list[FetchBroker] = []

    def say(number: int, _: int) -> Any:
        epoch = next(epochs)
        error = {"error": NOT_LEADER, "leader": (1 + epoch % 2, epoch)} if moves else {"error": UNKNOWN_EPOCH}
        return partition(number, **error)

    def answer(request: Any) -> Any:
        return answering(say, endpoints={1: brokers[1].address, 2: brokers[0].address})(request)

    brokers += [FetchBroker(answer), FetchBroker(answer)]
    with fetching(*brokers) as fetcher:
        fetcher.add(T0, brokers[0].leader(2), 0, 10)
        fallback = fail(fetcher)
        asked = sum(len(broker.fetches) for broker in brokers)
    assert fallback.reason == ("t-0: NOT_LEADER_OR_FOLLOWER" if moves else "t-0: UNKNOWN_LEADER_EPOCH")
    assert 3 < asked < 40, "again and again, with pauses"


# -------------------------------------------------------------------------------------------------- preferred replicas


def racks_of(broker: FetchBroker) -> list[str]:
    return [request.rack_id for request in broker.fetches]


def test_the_replica_that_a_leader_prefers_is_asked_from_then_on() -> None:
    """KIP-392: the leader answers without records, and is asked once for the replica's address."""
    replica = FetchBroker(answering(lambda _, offset: log(offset)))
    with replica:
        leader = FetchBroker(answering(lambda n, _: partition(n, preferred=2), brokers={2: replica.address}))
        with fetching(leader) as fetcher:
            fetcher.add(T0, leader.leader(1), 0, 30)
            fetcher.add(T1, leader.leader(1), 0, 20)
            found: list[tuple[TopicPartition, int]] = []
            while len(found) < 5:
                found += [(chunk.partition, chunk.position) for chunk in next_chunks(fetcher)]
        assert len(leader.fake.requests) == 2, "a Fetch, and Metadata"
    assert sorted(found) == [(T0, 0), (T0, 10), (T0, 20), (T1, 0), (T1, 10)]
    assert fetches_of(leader) == [[(0, 0), (1, 0)]]
    assert fetches_of(replica) == [[(0, 0), (1, 0)], [(0, 10), (1, 10)], [(0, 20)]]


@pytest.mark.parametrize(
    "refusal",
    [
        lambda n: partition(n, error=1),
        lambda n: partition(n, error=6),
        lambda n: partition(n, error=74, leader=(1, 5)),
        lambda n: partition(n, diverging=(0, 5)),
        lambda _: b"",
    ],
    ids=["OFFSET_OUT_OF_RANGE", "NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "another log", "nothing, twice"],
)
def test_the_leader_itself_is_read_after_its_preferred_replica_failed(refusal: Callable[[int], Any]) -> None:
    """The replica is behind, or has lost its place. The leader is not told our rack any more, so that it does not send
    us back."""
    replica = FetchBroker(answering(lambda n, offset: log(offset) if offset == 0 else refusal(n)))
    with replica:

        def answer(request: Any) -> Any:
            say = (lambda n, _: partition(n, preferred=2)) if getattr(request, "rack_id", "") else lambda _, at: log(at)
            return answering(say, brokers={2: replica.address})(request)

        leader = FetchBroker(answer)
        with fetching(leader) as fetcher:
            fetcher.add(T0, leader.leader(1), 0, 40)
            positions: list[int] = []
            while len(positions) < 4:
                positions += [chunk.position for chunk in next_chunks(fetcher)]
    assert positions == [0, 10, 20, 30]
    assert racks_of(leader) == ["here", "", "", ""]


@pytest.mark.parametrize("dies", ["it hangs up", "it is gone before it is asked"])
def test_the_leader_itself_is_read_after_the_connection_to_its_preferred_replica_ended(dies: str) -> None:
    """No record is lost or read twice, and the leader is not told our rack, so that it does not send us back."""
    replica = FetchBroker(lambda _: HUNG_UP)
    with replica:
        where = replica.address
        if dies == "it is gone before it is asked":
            replica.stop()

        def answer(request: Any) -> Any:
            say = (lambda n, _: partition(n, preferred=2)) if getattr(request, "rack_id", "") else lambda _, at: log(at)
            return answering(say, brokers={2: where})(request)

        leader = FetchBroker(answer)
        with fetching(leader) as fetcher:
            fetcher.add(T0, leader.leader(1), 0, 20)
            fetcher.add(T1, leader.leader(1), 0, 20)
            assert positions_of(fetcher, 4) == [(T0, 0), (T0, 10), (T1, 0), (T1, 10)]
            assert fetcher.left == {}
    assert racks_of(leader) == ["here", "", ""]


def test_a_leader_of_a_newer_epoch_that_a_replica_names_is_followed() -> None:
    newest = FetchBroker(answering(lambda _, offset: log(offset)))
    with newest:
        refusal = partition(0, error=FENCED, leader=(3, 6))
        replica = FetchBroker(answering(lambda *_: refusal, endpoints={3: newest.address}))
        with replica:
            leader = FetchBroker(answering(lambda n, _: partition(n, preferred=2), brokers={2: replica.address}))
            with fetching(leader) as fetcher:
                fetcher.add(T0, leader.leader(1), 0, 10)
                positions: list[int] = []
                while not positions:
                    positions += [chunk.position for chunk in next_chunks(fetcher)]
    assert (fetches_of(newest), racks_of(newest)) == ([[(0, 0)]], ["here"])


def test_the_leader_is_asked_again_which_replica_it_prefers_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_log, "FETCH_REPLICA_MS", 0)
    replica = FetchBroker(answering(lambda _, offset: log(offset)))
    with replica:
        leader = FetchBroker(answering(lambda n, _: partition(n, preferred=2), brokers={2: replica.address}))
        with fetching(leader) as fetcher:
            fetcher.add(T0, leader.leader(1), 0, 20)
            positions: list[int] = []
            while len(positions) < 2:
                positions += [chunk.position for chunk in next_chunks(fetcher)]
        assert len(leader.fake.requests) == 3, "two Fetches, and Metadata once"
    assert positions == [0, 10]
    assert fetches_of(leader) == [[(0, 0)], [(0, 10)]]


def test_a_leader_is_read_itself_where_no_broker_knows_the_replica_that_it_prefers() -> None:
    def answer(request: Any) -> Any:
        say = (lambda n, _: partition(n, preferred=2)) if getattr(request, "rack_id", "") else lambda _, at: log(at)
        return answering(say, brokers={1: broker.address})(request)

    broker = FetchBroker(answer)
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(1), 0, 20)
        positions: list[int] = []
        while len(positions) < 2:
            positions += [chunk.position for chunk in next_chunks(fetcher)]
    assert positions == [0, 10]
    assert racks_of(broker) == ["here", "", ""]


@pytest.mark.parametrize("metadata", [HUNG_UP, None], ids=["it hangs up", "it is silent"])
def test_a_leader_that_does_not_tell_where_its_preferred_replica_is_loses_only_its_own(
    monkeypatch: pytest.MonkeyPatch, metadata: Any
) -> None:
    """Records that came in the same answer are not lost: no position has moved past them."""
    monkeypatch.setattr(broker_connection, "FETCH_BROKERS_MS", 100)

    def answer(request: Any) -> Any:
        say = answering(lambda n, at: partition(n, preferred=2) if n == 0 else log(at))
        return metadata if not hasattr(request, "rack_id") else say(request)

    leader, other = FetchBroker(answer), FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(leader, other) as fetcher:
        fetcher.add(T0, leader.leader(1), 0, 10)
        fetcher.add(T1, leader.leader(1), 0, 10)
        fetcher.add(T2, other.leader(3), 0)
        found: list[TopicPartition] = []
        while len(fetcher.left) < 2:
            found += [each for each, _ in positions_of(fetcher, 1)]
        assert set(found) == {T2}
        assert sorted(fetcher.left) == [T0, T1]
        assert positions_of(fetcher, 1)[0][0] == T2


# ------------------------------------------------------------------------------------------------ logs that are lost

UNKNOWN_ID, UNKNOWN_PARTITION, INCONSISTENT_ID = 100, 3, 103


def fail(fetcher: Fetcher) -> FallbackToLibrdkafka:
    """The error that ends the fetches. Until then no record comes."""

    def read() -> None:
        while True:
            assert next_chunks(fetcher) == []

    with pytest.raises(FallbackToLibrdkafka) as caught:
        read()
    return caught.value


@pytest.mark.parametrize("end", [30, None])
def test_a_topic_whose_id_its_leader_does_not_know_for_a_while_is_left_to_librdkafka(
    monkeypatch: pytest.MonkeyPatch, end: int | None
) -> None:
    """One broker is one witness: librdkafka's reader asks others whether the topic is gone."""
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 1_500)
    broker = FetchBroker(answering(lambda n, _: partition(n, error=UNKNOWN_ID)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 5, end)
        left = fail(fetcher)
        asked = len(broker.fetches)
    assert isinstance(left, UnknownTopicId)
    assert left.reason == "t-0: UNKNOWN_TOPIC_ID"
    assert 3 < asked < 40, "again and again, with pauses"


@pytest.mark.parametrize("error", [UNKNOWN_ID, UNKNOWN_PARTITION, INCONSISTENT_ID])
def test_a_topic_of_which_a_broker_hears_a_little_later_is_read(error: int) -> None:
    answers = [error, error]
    broker = FetchBroker(answering(lambda n, at: partition(n, error=answers.pop()) if answers else log(at)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 10)
        assert [next_chunks(fetcher), next_chunks(fetcher)] == [[], []]
        assert [chunk.position for chunk in next_chunks(fetcher)] == [0]


@pytest.mark.parametrize("error", [UNKNOWN_PARTITION, INCONSISTENT_ID])
def test_a_partition_that_a_known_topic_does_not_have_is_unusual_and_no_loss(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 150)
    broker = FetchBroker(answering(lambda n, _: partition(n, error=error)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 10)
        fallback = fail(fetcher)
    assert not isinstance(fallback, LogLost)
    assert fallback.reason == f"t-0: {ErrorCode(error).name.upper()}"


def test_a_log_that_is_no_longer_the_one_that_was_read_is_lost_from_there() -> None:
    """KIP-320: it was cut at offset 7, and has other records since."""
    broker = FetchBroker(answering(lambda n, at: log(at) if at == 0 else partition(n, diverging=(3, 7))))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        assert [chunk.position for chunk in next_chunks(fetcher)] == [0]
        lost = fail(fetcher)
    assert isinstance(lost, LogLost)
    assert lost.goes_on_at == 10
    assert str(lost.loss) == (
        "Offsets 10 to 29 of t-0 were still to be read, but from offset 7 on the log is not the one that was read up "
        "to here: it was truncated (unclean leader election)."
    )


# -------------------------------------------------------------------------------------------------- unusual answers


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda n, _: partition(n, error=1), "t-0: OFFSET_OUT_OF_RANGE"),
        (lambda n, _: partition(n, error=6), "t-0: NOT_LEADER_OR_FOLLOWER"),
        (lambda n, _: partition(n, error=74), "t-0: FENCED_LEADER_EPOCH"),
        (lambda n, _: partition(n, error=56), "t-0: KAFKA_STORAGE_ERROR"),
        (lambda n, _: partition(n + 1), "a partition that it was not asked for"),
        (lambda _, __: log(0, 3, magic=1), "record format 1"),
        (lambda _, __: log(0, 3), "records before offset 5"),
    ],
)
def test_an_answer_that_is_out_of_the_ordinary_is_unusual(say: Any, why: str) -> None:
    broker = FetchBroker(answering(say))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 5, 30)
        with pytest.raises(FallbackToLibrdkafka, match=why):
            next_chunks(fetcher)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: response({}), "not answer for each"),
        (lambda _: response({TOPIC_ID: [partition(0), partition(0)]}), "not asked for"),
        (lambda _: response({UUID(int=1): [partition(0)]}), "not asked for"),
        (lambda _: response({}, error=ErrorCode.unsupported_version.value), "UNSUPPORTED_VERSION"),
    ],
)
def test_an_answer_to_another_request_is_unusual(answer: Any, why: str) -> None:
    broker = FetchBroker(answer)
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        with pytest.raises(FallbackToLibrdkafka, match=why):
            next_chunks(fetcher)


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda n, _: partition(n, error=56), "t-0: KAFKA_STORAGE_ERROR"),
        (lambda _, __: log(0, magic=1), "record format 1"),
        (lambda _, __: b"", "t-0 has no record from offset 0 to 20"),
    ],
    ids=["refused", "an old format", "nothing, twice"],
)
def test_a_partition_that_is_unusual_is_left_while_other_partitions_of_its_broker_are_read(say: Any, why: str) -> None:
    def all_but_the_first_have_records(number: int, offset: int) -> Any:
        speaks = number != 0 and len(broker.fetches) > 2
        return log(offset) if speaks else say(number, offset) if number == 0 else b""

    broker = FetchBroker(answering(all_but_the_first_have_records))
    with fetching(broker) as fetcher:
        fetcher.add(T1, broker.leader(), 0)
        fetcher.add(T0, broker.leader(), 0, 20)
        assert positions_of(fetcher, 2) == [(T1, 0), (T1, 10)]
        assert {each: fallback.reason for each, fallback in fetcher.left.items()} == {T0: why}
    assert broker.fake.connections == 1


def test_records_that_came_with_the_last_refusal_are_shown_before_it_is() -> None:
    broker = FetchBroker(answering(lambda n, at: partition(n, error=56) if n == 0 else log(at)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 20)
        fetcher.add(T1, broker.leader(), 0, 10)
        assert [(chunk.partition, chunk.next_offset) for chunk in next_chunks(fetcher)] == [(T1, 10)]
        assert list(fetcher.left) == [T0]
        assert not fetcher.waits()


def test_a_range_without_records_twice_in_a_row_is_unusual() -> None:
    logs = [b"", log(0), b"", log(10), b"", b""]
    broker = FetchBroker(answering(lambda _, __: logs.pop(0) if logs else b""))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        for _ in range(5):
            next_chunks(fetcher, go_on=False)
        with pytest.raises(FallbackToLibrdkafka, match="no record from offset 20 to 30"):
            next_chunks(fetcher, go_on=False)


def test_a_batch_that_never_comes_whole_is_unusual() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)[:-1]))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        assert next_chunks(fetcher) == []
        with pytest.raises(FallbackToLibrdkafka, match="no record from offset 0 to 30"):
            next_chunks(fetcher)


def test_a_broker_that_does_not_answer_in_time_is_unusual_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_SILENCE_MS", 10)
    monkeypatch.setattr(module, "FETCH_IDLE_WAIT_MS", 10)
    broker = FetchBroker(lambda _: None)
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        fetcher.ask()
        with pytest.raises(FallbackToLibrdkafka, match=f"{broker.address} did not answer in time"):
            fetcher.ready()


def test_a_throttled_broker_is_asked_again_as_soon_as_it_listens_and_other_brokers_are_read_meanwhile() -> None:
    """KIP-219: above a quota the broker answers at once without any topic, and then reads no request for a while."""
    answers = [response({}, throttle_ms=300)]
    throttled = FetchBroker(lambda asked: answers.pop() if answers else answering(lambda _, at: log(at))(asked))
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(throttled, broker) as fetcher:
        fetcher.add(T0, throttled.leader(1), 0, 10)
        assert next_chunks(fetcher) == []
        muted_at_s = time.monotonic()
        fetcher.ask(at_once=True)
        assert (fetcher.readables(), 0.2 < (fetcher.wait_s() or 0) <= 0.3) == ([], True)
        fetcher.add(T1, broker.leader(2), 0, 20)
        assert positions_of(fetcher, 2) == [(T1, 0), (T1, 10)]
        assert positions_of(fetcher, 1) == [(T0, 0)]
        assert time.monotonic() - muted_at_s >= 0.29
        assert fetcher.left == {}
    assert fetches_of(throttled) == [[(0, 0)], [(0, 0)]]


# ------------------------------------------------------------------------------------------------- ends of sessions


def test_a_session_that_ends_while_a_request_is_under_way_gives_its_answer_and_then_a_new_connection_takes_over() -> (
    None
):
    """KIP-368: a broker still answers requests from before the end, and hangs up on a client that sends a later one."""
    lifetimes_ms = [1, 0]
    sessions: list[BrokerConnection] = []

    async def answer(request: Any) -> Any:
        if hasattr(request, "mechanism"):
            return kio_messages.SaslHandshakeResponse(error_code=ErrorCode(0), mechanisms=("PLAIN",))
        if hasattr(request, "auth_bytes"):
            lifetime = i64Timedelta.parse(timedelta(milliseconds=lifetimes_ms.pop(0)))
            return kio_messages.SaslAuthenticateResponse(
                error_code=ErrorCode(0), error_message=None, auth_bytes=b"", session_lifetime=lifetime
            )
        await until(lambda: sessions and sessions[0].session_ends)
        return answering(lambda _, offset: log(offset))(request)

    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    with FetchBroker(answer) as broker:
        fetcher = Fetcher(SETTINGS, connection_security({**config, "sasl.password": "p"}))
        fetcher.add(T0, broker.leader(), 0, 30)
        ask_and_connect(fetcher)
        sessions += fetcher.connections()
        positions: list[int] = []
        while len(positions) < 3:
            positions += [chunk.position for chunk in next_chunks(fetcher)]
        fetcher.close()
    assert positions == [0, 10, 20]
    assert broker.fake.connections == 2
    names = [type(request).__name__.removesuffix("Request") for request in broker.fake.requests]
    log_in = ["SaslHandshake", "SaslAuthenticate"]
    assert names == [*log_in, "Fetch", *log_in, "Fetch", "Fetch"], "nothing is sent in a session that ends"


# ---------------------------------------------------------------------------------------------------------- settings


def test_settings_are_those_of_librdkafkas_properties_and_bounded() -> None:
    config = {
        "client.id": "me",
        "client.rack": "r",
        "isolation.level": "read_committed",
        "fetch.max.bytes": "1000",
        "fetch.message.max.bytes": str(1 << 30),
        "queued.min.messages": "7",
        "group.id": "g",
    }
    assert FetchSettings.of(config) == FetchSettings(
        client_id="me", read_committed=True, rack="r", bytes_max=1_000, partition_bytes_max=1 << 20
    )
    assert FetchSettings.of({"max.partition.fetch.bytes": "9"}).partition_bytes_max == 9


@pytest.mark.parametrize(
    "config", [{"debug": "all"}, {"broker.address.family": "v4"}, {"fetch.max.bytes": "many"}, {"from.tomorrow": "1"}]
)
def test_a_property_that_only_librdkafka_understands_is_unusual(config: dict[str, str]) -> None:
    with pytest.raises(FallbackToLibrdkafka, match=next(iter(config)) if "fetch" not in str(config) else "no number"):
        FetchSettings.of(config)


def test_an_address_is_shown_as_people_write_it_and_cannot_break_a_line() -> None:
    assert str(Broker("a", 1)) == "a:1"
    assert str(Broker("a\nb", 1)) == "'a\\nb':1"
