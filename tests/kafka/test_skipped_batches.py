"""A batch that Spark calls done and that no task has read: the sink has seen its number before."""

import pytest
from harness.kafka import MakeTopic, produce
from harness.query import Query
from harness.waiting import wait_for

from spark_kgroup.testing import ApacheKafka

RECORDS = 30
WARNING = f"A batch of {RECORDS} offsets is done, and no task has read a record of it."


@pytest.mark.parametrize("skipped", [True, False])
def test_a_batch_that_the_sink_has_skipped_makes_one_warning(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str, caplog: pytest.LogCaptureFixture, skipped: bool
) -> None:
    topic = new_topic(2)
    with Query(apache_kafka.bootstrap_servers, group, topic) as query:
        for first in (0, RECORDS):
            produce(apache_kafka.bootstrap_servers, topic, RECORDS, partitions=2, first=first)
            wait_for(query.plan, "a batch", 60)
            if skipped:
                query.skip()
            else:
                query.run()
        query.plan()
    assert caplog.text.count(WARNING) == int(skipped)
