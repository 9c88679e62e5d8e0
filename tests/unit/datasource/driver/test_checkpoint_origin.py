"""A query that goes on from another group's or another topic's checkpoint is told so, with the consequences."""

import json

import pytest

from pyspark_kgroup.driver.startup.checkpoint_origin import origin_warnings
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from pyspark_kgroup.options.parser import parse
from spark_kgroup.model import TopicPartition


def warnings(checkpoint: Checkpoint, **more: str) -> list[str]:
    options = {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "orders", "subscribe": "t,u"}
    return list(origin_warnings(checkpoint, parse(options | more)))


def written(topic: str = "t", seat: str = "orders-0", group: str = "", app: str = "") -> Checkpoint:
    period = Period(topic_id="id", start=0, seat=seat, generation=3)
    return Checkpoint(
        topics={topic: Topic(topic_id="id", first_sight=2)},
        owned={TopicPartition(topic, 0): Owned(period=period, position=5)},
        group=group,
        app=app,
    )


@pytest.mark.parametrize("checkpoint", [EMPTY, written(), written(group="orders"), written(seat="x-0", group="orders")])
def test_a_checkpoint_of_this_query_makes_no_warning(checkpoint: Checkpoint) -> None:
    assert warnings(checkpoint) == []


def test_a_checkpoint_of_another_group_makes_a_warning_with_both_names() -> None:
    (warning,) = warnings(written(group="payments"))
    assert "written by group 'payments', but kafka.group.id is 'orders'" in warning
    assert "continues from the checkpoint's positions" in warning
    assert "its own checkpointLocation" in warning


def test_a_checkpoint_of_another_prefix_makes_a_warning_with_both() -> None:
    (warning,) = warnings(written(group="orders", app="blue"), instanceIdPrefix="green")
    assert "instanceIdPrefix=blue, but that of this query is green" in warning
    assert "changed places" in warning
    assert warnings(written(group="orders", app="blue"), instanceIdPrefix="blue") == []


def test_a_checkpoint_that_does_not_say_its_group_is_known_by_its_seats() -> None:
    (warning,) = warnings(written(seat="payments-1"))
    assert "seats payments-1" in warning
    assert "orders-0" in warning
    assert warnings(written(seat="payments-1"), instanceIdPrefix="payments") == []


def test_a_checkpoint_without_any_subscribed_topic_makes_a_warning_that_the_query_starts_from_the_beginning() -> None:
    (warning,) = warnings(written(topic="other"))
    assert "topics other, of which this query reads none" in warning
    assert "from the beginning" in warning


def test_a_topic_that_is_added_or_left_out_makes_no_warning() -> None:
    assert warnings(written(topic="u")) == []


def test_the_group_is_written_and_read_and_does_not_make_two_offsets_differ() -> None:
    named = written(group="payments")
    assert Checkpoint.from_json(json.loads(json.dumps(named.to_json()))).group == "payments"
    assert named.to_json()["group"] == "payments"
    assert "group" not in written().to_json()
    assert named == written()
