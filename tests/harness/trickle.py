"""A producer for tiny batches: a few records all the time, in a thread, at hardly any cost."""

import threading

from confluent_kafka import Producer


class Trickle:
    """One record for each of two partitions every `pause_s`. A context manager."""

    def __init__(self, bootstrap: str, topic: str, *, pause_s: float = 0.05) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._topic = topic
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trickle")

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            for partition in range(2):
                self._producer.produce(self._topic, value=b"drop", partition=partition)
            self._producer.poll(0)

    def __enter__(self) -> "Trickle":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self._producer.flush(120) == 0
