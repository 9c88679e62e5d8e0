"""Commits and groups close to the most that a coordinator writes at once (max.message.bytes of __consumer_offsets)."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from harness.kafka import produce
from harness.offsets import offsets_alone
from harness.runtime import options_of, owned, settings_of
from harness.waiting import wait_for

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from pyspark_kgroup.offsets.earlier_runs import owned_by_seat
from spark_kgroup.errors import GroupRejected
from spark_kgroup.limits import COMMIT_PARTITIONS_MAX
from spark_kgroup.runtime.settings import OwnerHooks
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.runtime.views import SeatCommit
from spark_kgroup.seat_note import Author, SeatNote
from spark_kgroup.testing import ApacheKafka

DEFAULT_BYTES_MAX = 1_048_588
AUTHOR = Author(app="job", run=1)


def runtime_of(kafka: ApacheKafka, topic: str, members: int = 1, checkpoint: Checkpoint = EMPTY) -> GroupRuntime:
    """Seats that write notes and marks as a query's do."""
    options = options_of(kafka.bootstrap_servers, topic, "job", members)
    settings = settings_of(options)
    work = replace(settings.work, previously_owned=owned_by_seat(checkpoint, options.group_id))
    hooks = OwnerHooks(
        commit_mark=lambda _, topic_id: AUTHOR.encode(topic_id),
        commit_metadata=lambda who, topic_id: SeatNote(
            author=AUTHOR,
            member=who.member_id,
            at_ms=1_700_000_000_000,
            host="ip-10-12-13-14.compute.internal",
            topic_id=topic_id,
        ).encode(),
    )
    return GroupRuntime(replace(settings, work=work, hooks=hooks))


def topic_of(kafka: ApacheKafka, partitions: int) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    kafka.create_topic(name, partitions=partitions)
    return name


@contextmanager
def batches_of_at_most(kafka: ApacheKafka, size_bytes: int) -> Iterator[None]:
    """Let the coordinator write no more than this at once, as an operator may."""

    def limit(value: int) -> None:
        entry = ConfigEntry("max.message.bytes", str(value), incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, "__consumer_offsets", incremental_configs=[entry])
        kafka.admin.incremental_alter_configs([topic])[topic].result(30)

    limit(size_bytes)
    try:
        yield
    finally:
        limit(DEFAULT_BYTES_MAX)


def test_a_commit_that_is_larger_than_the_coordinator_writes_at_once_goes_in_parts(
    apache_kafka: ApacheKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_kgroup.runtime.offset_committer")
    topic = topic_of(apache_kafka, 100)
    with runtime_of(apache_kafka, topic) as runtime:
        view = runtime.wait_until(lambda view: view.settled and len(owned(view)) == 100, 30_000)
        (seat,) = view.seats
        with batches_of_at_most(apache_kafka, 3_000):

            def refused_as_a_whole() -> bool:
                everything = dict.fromkeys(seat.owned_since, round(time.monotonic() * 1000))
                assert runtime.commit([SeatCommit(seat=seat, positions=everything)]) == seat.owned_since.keys()
                assert offsets_alone(runtime.committed(seat.owned_since)) == everything
                return "commit refused with UNKNOWN_SERVER_ERROR" in caplog.text

            wait_for(refused_as_a_whole, "the limit to be in force")
        assert runtime.commit_refusal() == ""


def test_a_group_larger_than_the_coordinator_writes_at_once_ends_with_the_setting_to_raise(
    apache_kafka: ApacheKafka,
) -> None:
    topic = topic_of(apache_kafka, 100)
    with batches_of_at_most(apache_kafka, 1_000):

        def refusal() -> str | None:
            with runtime_of(apache_kafka, topic, members=20) as runtime:
                try:
                    runtime.wait_until(lambda view: view.settled, 10_000)
                except GroupRejected as error:
                    return str(error)
            return None

        message = wait_for(refusal, "the limit to be in force", 60)
    assert "max.message.bytes of the topic __consumer_offsets" in message


@pytest.mark.full
def test_a_seat_whose_commit_takes_several_requests_reads_commits_and_comes_back(apache_kafka: ApacheKafka) -> None:
    count = COMMIT_PARTITIONS_MAX + 100
    topic = topic_of(apache_kafka, count)
    options = options_of(apache_kafka.bootstrap_servers, topic, "job", 1)
    with runtime_of(apache_kafka, topic) as runtime:
        boundary = Boundary(BoundaryContext.of(runtime, options), bounded=False)
        begun = EMPTY
        while len(begun.owned) < count:  # brokers may not lead all of a new topic yet, and those are left for later
            begun = boundary.advance(begun)
        produce(apache_kafka.bootstrap_servers, topic, count, partitions=count)
        read = boundary.advance(begun)
        assert {place.position for place in read.owned.values()} == {1}
        assert boundary.advance(read) == read
        assert set(offsets_alone(runtime.committed(read.owned)).values()) == {1}
        generations = {seat.identity.generation for seat in runtime.view().seats}
    with runtime_of(apache_kafka, topic, checkpoint=read) as runtime:
        assert Boundary(BoundaryContext.of(runtime, options), bounded=False).advance(read) == read
        assert {seat.identity.generation for seat in runtime.view().seats} == generations, "nothing moved"
