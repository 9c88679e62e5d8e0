"""Which Apache Kafka is run, and the differences between its releases that matter for that.

| since | difference | source |
|---|---|---|
| 4.0 | brokers log with Log4j 2, before with Reload4j (the Log4j 1 of today) | KIP-653 |
| 3.9 | controllers tell each other their addresses, which `advertised.listeners` may not have before | KIP-853 |
| 3.8 | until 4.0, the group tool's table of members has partitions without their topics | its output |
| 3.8 | the group tool and the console consumer are in `org.apache.kafka.tools`, before in `kafka` | KAFKA-14589 |
| 3.5 | the storage tool takes users for SCRAM, and brokers without ZooKeeper know none before | KIP-900 |
| 3.2 | the oldest release that is run here | |
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from spark_kgroup.errors import EnvironmentProblem, OptionError
from spark_kgroup.testing.ivy import Coordinate

KAFKA_VERSION: Final = "4.3.1"
"""The Apache Kafka release that is run unless another is named."""

VERSION_VARIABLE: Final = "KGROUP_KAFKA_VERSION"
"""The environment variable that names another: for the fixtures of the pytest plugin and all that start Kafka."""

_OLDEST: Final = (3, 2)
_CAN_BE_RUN: Final = "Apache Kafka 3.2.0 or later can be run"

_LOG4J_1: Final = """\
log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={log}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d %p %m (%c)%n
"""

_LOG4J_2: Final = """\
rootLogger.level=INFO
rootLogger.appenderRef.file.ref=file
appender.file.type=File
appender.file.name=file
appender.file.fileName={log}
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c)%n%throwable
"""


@dataclass(frozen=True, slots=True)
class Logging:
    """How a release is told to log to a file.

    Attributes:
        binding: the library that SLF4J logs with, which no broker's POM names.
        property: the Java system property that names the file of settings.
        settings: their text, in which `{log}` stands for the log's path.
    """

    binding: Coordinate
    property: str
    settings: str


_RELOAD4J: Final = Logging(Coordinate("org.slf4j", "slf4j-reload4j", "1.7.36"), "log4j.configuration", _LOG4J_1)
"""As kafka-tools 3.9 depends on it, with SLF4J 1.7.36, which all releases from 3.2 to 4.3 have."""

_LOG4J: Final = Logging(
    Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"), "log4j2.configurationFile", _LOG4J_2
)
"""Of the release that kafka_2.13 4.3.1 depends on. kafka_2.13 4.0 depends on no Log4j at all."""


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """The properties of one release that this package needs.

    Raises:
        OptionError: `version` is no release of 3.2 or later.
    """

    version: str

    def __post_init__(self) -> None:
        if not re.match(r"\d+\.\d+\.", self.version) or self.number < _OLDEST:
            raise OptionError(f"version is {self.version}: {_CAN_BE_RUN}.")

    @property
    def number(self) -> tuple[int, ...]:
        """Major and minor, to be compared."""
        return tuple(int(part) for part in self.version.split(".")[:2])

    @property
    def logging(self) -> Logging:
        """How it logs."""
        return _LOG4J if self.number >= (4, 0) else _RELOAD4J

    @property
    def group_tool(self) -> str:
        """The class behind kafka-consumer-groups.sh."""
        package = "org.apache.kafka.tools.consumer.group" if self.number >= (3, 8) else "kafka.admin"
        return f"{package}.ConsumerGroupCommand"

    @property
    def shows_topics_of_members(self) -> bool:
        """Whether the group tool names the topics of a member's partitions."""
        return not (3, 8) <= self.number < (4, 0)

    @property
    def advertises_controllers(self) -> bool:
        """Whether a controller tells others its address, and reads it from `advertised.listeners`."""
        return self.number >= (3, 9)

    @property
    def has_scram_users(self) -> bool:
        """Whether its storage tool takes users for SCRAM."""
        return self.number >= (3, 5)


def kafka_version() -> str:
    """The release that is run where the caller names none: $KGROUP_KAFKA_VERSION, else `KAFKA_VERSION`.

    Raises:
        EnvironmentProblem: the variable names none that can be run.
    """
    version = os.environ.get(VERSION_VARIABLE)
    if not version:
        return KAFKA_VERSION
    try:
        return KafkaRelease(version).version
    except OptionError:
        raise EnvironmentProblem(f"{VERSION_VARIABLE} is {version}: {_CAN_BE_RUN}.") from None
