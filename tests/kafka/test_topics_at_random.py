"""Topics that come, grow and go at random under one pattern, while a query runs and while it is away.

These are Spark's two stress tests of its Kafka source (KafkaSourceStressSuite and
KafkaSourceStressForDontFailOnDataLossSuite). A failure names its seed.
"""

import random
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as At
from harness.kafka import contents
from harness.query import Query
from harness.waiting import wait_for

from spark_kgroup.testing import ApacheKafka

SEEDS = (1,)
"""More of them find more, but CI has the time for one."""


class Topics:
    """The topics of one story, and a number for each record ever sent."""

    def __init__(self, kafka: ApacheKafka, chance: random.Random) -> None:
        self.prefix = f"random-{uuid4().hex[:8]}"
        self.partitions: dict[str, int] = {}
        self.sent: dict[str, list[int]] = {}
        self._kafka = kafka
        self._chance = chance
        self._producer: Producer | None = None
        self._next = 0

    def appear(self, name: str) -> None:
        """Create a topic, perhaps one that there was before, with some records."""
        self.partitions[name] = self._chance.randint(1, 3)
        self._kafka.create_topic(name, self.partitions[name])
        self._producer = None
        self.produce(name)

    def vanish(self, name: str) -> None:
        del self.partitions[name]
        self._producer = None
        self._kafka.admin.delete_topics([name])[name].result(30)

    def grow(self, name: str) -> None:
        self.partitions[name] += self._chance.randint(1, 2)
        self._kafka.add_partitions(name, self.partitions[name])
        self._producer = None
        self.produce(name)

    def produce(self, *names: str) -> None:
        if self._producer is None:  # one that is older does not know which topics there are by now
            config = {"bootstrap.servers": self._kafka.bootstrap_servers, "enable.idempotence": True}
            self._producer = Producer(config)
        for name in names:
            for _ in range(self._chance.randint(1, 9)):
                partition = self._chance.randrange(self.partitions[name])
                self._producer.produce(name, b"%d" % self._next, partition=partition)
                self.sent.setdefault(name, []).append(self._next)
                self._next += 1
        assert self._producer.flush(60) == 0

    def age_out(self, name: str) -> None:
        """Delete all records that a partition has by now, as retention does."""
        where = At(name, self._chance.randrange(self.partitions[name]), -1)
        self._kafka.admin.delete_records([where])[where].result(30)

    def query(self) -> Query:
        query = Query(self._kafka.bootstrap_servers, f"group-{self.prefix}", "unused", failOnDataLoss="false")
        del query.options["subscribe"]
        more = {"subscribePattern": f"{self.prefix}-.*", "kafka.topic.metadata.propagation.max.ms": "500"}
        query.options |= more
        return query


def numbers(query: Query) -> list[int]:
    return sorted(int(row["value"]) for rows in query.rows.values() for row in rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_record_is_read_once_if_no_topic_goes_before_it_is_read(apache_kafka: ApacheKafka, seed: int) -> None:
    chance = random.Random(seed)
    topics = Topics(apache_kafka, chance)
    query, names = topics.query(), [f"{topics.prefix}-{number}" for number in range(100)]
    topics.appear(names[0])

    def all_is_read() -> bool:
        query.trigger()
        return numbers(query) == sorted(number for each in topics.sent.values() for number in each)

    steps = 0
    while steps < 16:
        with query:
            for _ in range(chance.randint(3, 8)):
                steps += 1
                deed = chance.choice(["appear", "vanish", "grow", "produce", "produce"])
                name = chance.choice(list(topics.partitions))
                if deed == "appear":
                    topics.appear(names[steps])
                elif deed == "grow":
                    topics.grow(name)
                elif deed == "vanish" and name != names[0]:
                    wait_for(all_is_read, "all records, before a topic goes", 60)
                    topics.vanish(name)
                else:
                    topics.produce(name)
                query.trigger()
        topics.produce(names[0])
    with query:
        wait_for(all_is_read, "all records", 60)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_query_fails_and_no_record_is_read_twice_whichever_topics_come_and_go(
    apache_kafka: ApacheKafka, seed: int
) -> None:
    chance = random.Random(seed)
    topics = Topics(apache_kafka, chance)
    query, names = topics.query(), [f"{topics.prefix}-{number}" for number in range(4)]
    topics.appear(names[0])
    with query:
        for _ in range(30):
            there = [name for name in names if name in topics.partitions]
            deed = chance.choice(["appear", "vanish", "age out", "produce", "produce", "produce", "produce"])
            if deed == "appear" and len(there) < len(names):
                topics.appear(chance.choice([name for name in names if name not in there]))
            elif deed == "vanish" and there:
                topics.vanish(chance.choice(there))
            elif deed == "age out" and there:
                topics.age_out(chance.choice(there))
            else:
                topics.produce(*there)
            query.trigger()

        def what_is_left_is_read() -> bool:
            query.trigger()
            left = [contents(apache_kafka.bootstrap_servers, name).values() for name in topics.partitions]
            return {int(value or 0) for values in left for value in values} <= set(numbers(query))

        wait_for(what_is_left_is_read, "what the logs still have", 60)
        found = numbers(query)
    assert len(found) == len(set(found))
