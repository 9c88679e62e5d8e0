"""The group's side (`spark_kgroup/`) knows no Spark, and no word of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "spark_kgroup"

OF_SPARK = re.compile(
    r"(?<![\w-])(?:py)?spark(?![-_]kgroup)"  # the package's own name is not about Spark
    r"|(?<!record )\bbatch(?:es)?\b|(?<![\w.])quer(?:y|ies)\b|\bboundar(?:y|ies)\b"  # a record batch is Kafka's
    r"|\bexecutors?\b|\bdrivers?\b|\btrigger|micro-batch|\bload\(\)|\bsidecars?\b"
    r"|registryHost|registryPort|instanceIdPrefix|tokenCallback|startingOffsets|maxOffsetsPerTrigger|failOnDataLoss"
    r"|(?<![\w.])kafka\.(?:bootstrap|client|group|session|heartbeat|metadata|partition|request|default|security|sasl|ssl|https)\.",
    re.IGNORECASE,
)
"""Options are Spark's spelling of Kafka's settings: `kafka.` stands before them there."""

ALLOWED = {
    "admin/checkpoint_command.py": {"spark", "query", "batch", "batches"},
    "admin/cli.py": {"spark"},
    "admin/describe_command.py": {"spark", "executor", "executors"},
    "admin/doctor_command.py": {"spark", "pyspark", "executor", "executors", "load()"},
    "admin/source_deeds.py": {"spark", "load()", "executor"},
    "seat_note.py": {"spark", "executor", "driver"},
    "wire/security/oauth.py": {"query"},
}
"""The columns that `kgroup describe` shows beside the offsets of Spark's seats, the options of the commands whose
deeds are entry points, and the query of a URL."""


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if "testing" not in path.parts],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_the_group_s_side_has_no_word_of_spark_s(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    found = {word[0].lower() for word in OF_SPARK.finditer(path.read_text())}
    if name.startswith("broker/"):
        found -= {"batch", "batches"}  # of records: that room has no other ones
    assert found <= ALLOWED.get(name, set())


@pytest.mark.parametrize(
    "text", ["Spark", "a query", "a batch", "the boundary", "kafka.session.timeout.ms", "by an executor", "two load()s"]
)
def test_a_word_of_spark_s_is_found(text: str) -> None:
    assert OF_SPARK.search(text)


@pytest.mark.parametrize("text", ["one record batch", "a RecordBatch of Kafka", "url.query", "spark_kgroup"])
def test_a_word_of_the_field_s_is_none_of_spark_s(text: str) -> None:
    assert not OF_SPARK.search(text)
