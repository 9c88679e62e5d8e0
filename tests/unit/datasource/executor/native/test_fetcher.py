"""What is asked of which broker, and when; and each answer after which nothing more is fetched."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from harness.fetch_broker import TOPIC_ID, FetchBroker, answering, partition, response, wanted
from harness.record_batches import Batch, Record
from harness.waiting import wait_for
from kio.schema.errors import ErrorCode
from kio.static.primitive import i64Timedelta

from pyspark_kgroup.executor.native import fetcher as module
from pyspark_kgroup.executor.native.broker_connection import Broker
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity, connection_security
from pyspark_kgroup.executor.native.decode import Unusual
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire import messages

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
SETTINGS = FetchSettings.of({"client.id": "me", "client.rack": "here"})


def log(first: int, count: int = 10, **more: Any) -> bytes:
    return Batch([Record(first + number) for number in range(count)], **more).encoded()


@contextmanager
def fetching(*brokers: FetchBroker, **more: Any) -> Iterator[Fetcher]:
    with ExitStack() as stack:
        for broker in brokers:
            stack.enter_context(broker)
        fetcher = Fetcher(SETTINGS, ConnectionSecurity(), **more)
        try:
            yield fetcher
        finally:
            fetcher.close()


def next_chunks(fetcher: Fetcher, *, go_on: bool = True) -> list[Chunk]:
    """Those of the next answers: of one of each broker that has one by now."""
    fetcher.ask()
    return [
        chunk._replace(records=memoryview(bytes(chunk.records)))
        for connection in fetcher.ready()
        for chunk in fetcher.take(connection, go_on=go_on)
    ]


def fetches_of(broker: FetchBroker) -> list[list[tuple[int, int]]]:
    """(partition, offset) of each Fetch, in order."""
    return [[(number, offset) for _, number, offset in wanted(request)] for request in broker.fetches]


# ------------------------------------------------------------------------------------------------------- what is asked


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


def test_the_next_request_is_sent_before_anybody_looks_at_an_answer() -> None:
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


def test_nothing_is_asked_of_a_range_that_is_done_nor_after_the_last() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 5)
        fetcher.add(T1, broker.leader(), 0, 15)
        assert [(c.partition, c.next_offset) for c in next_chunks(fetcher)] == [(T0, 5), (T1, 10)]
        assert [(c.partition, c.next_offset) for c in next_chunks(fetcher)] == [(T1, 15)]
        assert fetcher.connections() == []
        with pytest.raises(Unusual, match="nothing is left"):
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


def test_a_partition_that_is_dropped_is_shown_no_more_though_it_is_on_its_way() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0)
        fetcher.add(T1, broker.leader(), 0)
        fetcher.ask()
        fetcher.drop(T0)
        assert [chunk.partition for chunk in next_chunks(fetcher)] == [T1]
        assert [chunk.partition for chunk in next_chunks(fetcher)] == [T1]
    assert fetches_of(broker)[:2] == [[(0, 0), (1, 0)], [(1, 10)]]


def test_several_brokers_are_asked_at_the_same_time_each_for_its_own() -> None:
    """None answers before both are asked."""
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


# -------------------------------------------------------------------------------------------------- preferred replicas


def test_the_replica_that_a_leader_prefers_is_asked_from_then_on() -> None:
    """KIP-392: the leader answers without records."""
    replica = FetchBroker(answering(lambda _, offset: log(offset)))
    leader = FetchBroker(answering(lambda number, _: partition(number, preferred=2)))
    with replica, leader, fetching(brokers={2: replica.address}) as fetcher:
        fetcher.add(T0, leader.leader(1), 0, 30)
        positions = []
        while len(positions) < 3:
            positions += [chunk.position for chunk in next_chunks(fetcher)]
    assert positions == [0, 10, 20]
    assert fetches_of(leader) == [[(0, 0)]]
    assert fetches_of(replica) == [[(0, 0)], [(0, 10)], [(0, 20)]]


def test_a_replica_that_nobody_has_heard_of_is_unusual() -> None:
    leader = FetchBroker(answering(lambda number, _: partition(number, preferred=2)))
    with fetching(leader) as fetcher:
        fetcher.add(T0, leader.leader(1), 0, 30)
        with pytest.raises(Unusual, match="node 2"):
            next_chunks(fetcher)


# -------------------------------------------------------------------------------------------------- unusual answers


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda n, _: partition(n, error=1), "t-0: OFFSET_OUT_OF_RANGE"),
        (lambda n, _: partition(n, error=3), "t-0: UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda n, _: partition(n, error=6), "t-0: NOT_LEADER_OR_FOLLOWER"),
        (lambda n, _: partition(n, error=74), "t-0: FENCED_LEADER_EPOCH"),
        (lambda n, _: partition(n, error=75), "t-0: UNKNOWN_LEADER_EPOCH"),
        (lambda n, _: partition(n, error=100), "t-0: UNKNOWN_TOPIC_ID"),
        (lambda n, _: partition(n, error=29), "t-0: TOPIC_AUTHORIZATION_FAILED"),
        (lambda n, _: partition(n, diverging=(3, 7)), "t-0: its log is not the one"),
        (lambda n, _: partition(n + 1), "what it was not asked for"),
        (lambda _, __: log(0, 3, magic=1), "record format 1"),
        (lambda _, __: log(0, 3), "records before offset 5"),
    ],
)
def test_an_answer_that_is_out_of_the_ordinary_is_unusual(say: Any, why: str) -> None:
    broker = FetchBroker(answering(say))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 5, 30)
        with pytest.raises(Unusual, match=why):
            next_chunks(fetcher)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: response({}), "not answer for all"),
        (lambda _: response({TOPIC_ID: [partition(0), partition(0)]}), "not asked for"),
        (lambda _: response({UUID(int=1): [partition(0)]}), "not asked for"),
        (lambda _: response({}, error=ErrorCode.unsupported_version.value), "UNSUPPORTED_VERSION"),
    ],
)
def test_an_answer_to_something_else_is_unusual(answer: Any, why: str) -> None:
    broker = FetchBroker(answer)
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        with pytest.raises(Unusual, match=why):
            next_chunks(fetcher)


def test_a_range_of_which_nothing_comes_twice_in_a_row_is_unusual() -> None:
    logs = [b"", log(0), b"", log(10), b"", b""]
    broker = FetchBroker(answering(lambda _, __: logs.pop(0) if logs else b""))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        for _ in range(5):
            next_chunks(fetcher, go_on=False)
        with pytest.raises(Unusual, match="nothing from offset 20 to 30"):
            next_chunks(fetcher, go_on=False)


def test_a_batch_that_never_comes_whole_is_unusual() -> None:
    broker = FetchBroker(answering(lambda _, offset: log(offset)[:-1]))
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        assert next_chunks(fetcher) == []
        with pytest.raises(Unusual, match="nothing from offset 0 to 30"):
            next_chunks(fetcher)


def test_a_broker_that_does_not_answer_in_time_is_unusual_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_SILENCE_MS", 10)
    monkeypatch.setattr(module, "FETCH_IDLE_WAIT_MS", 10)
    broker = FetchBroker(lambda _: None)
    with fetching(broker) as fetcher:
        fetcher.add(T0, broker.leader(), 0, 30)
        fetcher.ask()
        with pytest.raises(Unusual, match=f"{broker.address} did not answer in time"):
            fetcher.ready()


def test_a_throttled_connection_is_given_the_time_that_the_broker_mutes_it() -> None:
    """KIP-219: the broker answers at once, and then reads nothing for so long."""
    broker = FetchBroker(lambda _: response({TOPIC_ID: [partition(0, log(0))]}, throttle_ms=3_600_000))
    with fetching(broker) as fetcher:
        assert fetcher.patience_s() == 0
        fetcher.add(T0, broker.leader(), 0, 30)
        fetcher.ask()
        assert 0 < fetcher.patience_s() <= 10.5
        next_chunks(fetcher)
        assert 3_000 < fetcher.patience_s() <= 3_610.5


# ------------------------------------------------------------------------------------------------- ends of sessions


def test_a_session_that_is_about_to_end_is_replaced_by_a_new_connection() -> None:
    """KIP-368: a broker hangs up on who sends anything after it."""
    lifetimes_ms = [1, 0]

    def answer(request: Any) -> Any:
        if hasattr(request, "mechanism"):
            return messages.SaslHandshakeResponse(error_code=ErrorCode(0), mechanisms=("PLAIN",))
        if hasattr(request, "auth_bytes"):
            lifetime = i64Timedelta.parse(timedelta(milliseconds=lifetimes_ms.pop(0)))
            return messages.SaslAuthenticateResponse(
                error_code=ErrorCode(0), error_message=None, auth_bytes=b"", session_lifetime=lifetime
            )
        return answering(lambda _, offset: log(offset))(request)

    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    with FetchBroker(answer) as broker:
        fetcher = Fetcher(SETTINGS, connection_security({**config, "sasl.password": "p"}))
        fetcher.add(T0, broker.leader(), 0, 30)
        fetcher.ask()
        (first,) = fetcher.connections()
        wait_for(lambda: first.session_ends, "the end of the session")
        positions = []
        while len(positions) < 3:
            positions += [chunk.position for chunk in next_chunks(fetcher)]
        fetcher.close()
    assert positions == [0, 10, 20]
    assert broker.fake.connections == 2


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
    with pytest.raises(Unusual, match=next(iter(config)) if "fetch" not in str(config) else "no number"):
        FetchSettings.of(config)


def test_an_address_is_shown_as_people_write_it_and_cannot_break_a_line() -> None:
    assert str(Broker("a", 1)) == "a:1"
    assert str(Broker("a\nb", 1)) == "'a\\nb':1"
