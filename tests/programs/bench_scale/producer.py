"""Writes one record to each partition of a topic for each line on standard input, and answers with a line."""

import sys

from confluent_kafka import Producer

BOUND_S = 300
"""librdkafka's message.timeout.ms. Measured: a disk that is busy with 20,000 partitions has kept a broker for 60 s."""


def main(bootstrap: str, topic: str, partitions: int) -> None:
    """Produce on request, until standard input ends."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for _ in sys.stdin:
        for partition in range(partitions):
            producer.produce(topic, b"x" * 100, partition=partition)
        if producer.flush(BOUND_S):
            raise TimeoutError(f"records were not acknowledged within {BOUND_S} s")
        print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
