"""The parts of a dead node's log that an error shows: its end, and before that the errors that led there."""

from pathlib import Path

from spark_kgroup.testing.kafka_node import KafkaNode

TIME = "2026-11-25 06:09:41,079"
REASON = [
    f"{TIME} ERROR [BrokerServer id=1] Fatal error during broker startup (kafka.server.BrokerServer)",
    "org.apache.kafka.common.KafkaException: Class NoSuchReporter cannot be found",
    "Caused by: java.lang.ClassNotFoundException: NoSuchReporter",
]


def node_with(tmp_path: Path, lines: list[str]) -> KafkaNode:
    (tmp_path / "server.log").write_text("\n".join(lines))
    return KafkaNode(1, tmp_path, 9092)


def test_errors_are_shown_however_much_was_logged_after_them(tmp_path: Path) -> None:
    ending = [f"{TIME} INFO shutting down {index} (kafka)" for index in range(40)]
    frames = ["\tat kafka.Kafka$.main(Kafka.scala:99)", "\t... 12 more"]
    shown = node_with(tmp_path, [f"{TIME} INFO starting", *REASON, *frames, *ending]).last_words()
    assert [line.strip() for line in shown.splitlines()[1:]] == [*REASON, "...", *ending[-15:]]


def test_a_short_log_is_shown_as_it_is(tmp_path: Path) -> None:
    shown = node_with(tmp_path, REASON).last_words()
    assert [line.strip() for line in shown.splitlines()[1:]] == REASON
