"""A query's triggers, every 5 s for some minutes, new records at every second one, a line of JSON now and then."""

import json
import sys
import time

from bench_sessions.measured import memory_mib

from bench_scale.boundaries import Producer, Trigger
from pyspark_kgroup.offsets.checkpoint import EMPTY

TRIGGER_S = 5.0
TOLD_EACH_S = 300.0


def run(bootstrap: str, topic: str, partitions: int, seats: int, minutes: int) -> None:
    """Run the triggers, and print a moment now and then."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.group.id": topic,
        "subscribe": topic,
        "members": str(seats),
        "startingOffsets": "earliest",
    }
    producer = Producer(bootstrap, topic, partitions)
    query = Trigger(options, EMPTY.to_json())
    query.first()
    query.settle()
    began_s = told_s = time.monotonic()
    triggers = 0
    try:
        while True:
            now_s = time.monotonic()
            if triggers == 0 or now_s >= told_s + TOLD_EACH_S or now_s >= began_s + 60 * minutes:
                told_s = now_s
                moment = {"minute": round((now_s - began_s) / 60), "triggers": triggers}
                print(json.dumps({**moment, "driver_mib": memory_mib(), "cpu_s": time.process_time()}), flush=True)
            if now_s >= began_s + 60 * minutes:
                return
            if triggers % 2 == 0:
                producer.fill()
            query.pull()
            triggers += 1
            time.sleep(max(0.0, now_s + TRIGGER_S - time.monotonic()))
    finally:
        query.stop()
        producer.end()


if __name__ == "__main__":
    bootstrap, topic, partitions, seats, minutes = sys.argv[1:]
    run(bootstrap, topic, int(partitions), int(seats), int(minutes))
