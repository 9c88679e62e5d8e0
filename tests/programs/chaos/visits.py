"""A topic that its operator deletes and makes again, once all of it was read: no record of either life may be lost."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from history.facts import Recreated

from chaos import collect
from chaos.producers import Producing
from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.model import TopicPartition
from spark_kgroup.testing import ApacheKafka

VISITS: Final = "visits"
VISITS_PARTITIONS: Final = {VISITS: 2}
_READ_TIMEOUT_S: Final = 60.0
_CREATE_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.5


class Visits:
    """The topic, and one producer after the other, each for one life of the topic.

    Attributes:
        earlier: the records of each life, but for the last one.
        recreated: when each life but the first began.
    """

    def __init__(self, kafka: ApacheKafka, seed: int) -> None:
        self.earlier: list[Mapping[TopicPartition, Mapping[int, bytes]]] = []
        self.recreated: list[Recreated] = []
        self._kafka = kafka
        self._seed = seed
        self._producers: list[Producing] = []
        self._life_began_with = 0

    def begin(self) -> None:
        """Make the topic, and produce to it."""
        self._kafka.create_topic(VISITS, VISITS_PARTITIONS[VISITS])
        self._produce()

    def _produce(self) -> None:
        name, partitions = f"visitor-{len(self._producers)}", VISITS_PARTITIONS
        self._producers.append(
            Producing(name, self._kafka.bootstrap_servers, partitions, self._seed, transactional=False)
        )
        self._producers[-1].start()

    @property
    def producers(self) -> list[Producing]:
        return self._producers

    def recreate(self, is_read: Callable[[int], bool]) -> bool:
        """Delete the topic and make it again. False if it was not read in time, and is left as it is.

        Args:
            is_read: whether all of it was read, where it has at least so many records.
        """
        self._producers[-1].stop()
        assert self._producers[-1].failure() is None
        deadline = time.monotonic() + _READ_TIMEOUT_S
        records = sum(producer.acknowledged for producer in self._producers[self._life_began_with :])
        while not (read := is_read(records)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if read:
            self.earlier.append(collect.committed_records(self._kafka.bootstrap_servers, VISITS))
            self._kafka.admin.delete_topics([VISITS])[VISITS].result(30)
            self.recreated.append(Recreated(VISITS, time.time()))
            self._create_again()
            self._life_began_with = len(self._producers)
        self._produce()
        return read

    def _create_again(self) -> None:
        """The name is free soon after the deletion was acknowledged."""
        deadline = time.monotonic() + _CREATE_TIMEOUT_S
        while True:
            try:
                return self._kafka.create_topic(VISITS, VISITS_PARTITIONS[VISITS])
            except EnvironmentProblem:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
