"""Where each Python process of Spark's has its modules from: a function, and a source that is none of ours."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


def place(*_: Any) -> str:
    """Of the process that calls this, as JSON: where PySpark and Py4J lie, and Spark's archives on its path."""
    archives = [entry for entry in sys.path if entry.endswith((".jar", "pyspark.zip", "-src.zip"))]
    packages = {name: str(Path(sys.modules[name].__file__ or "").parent) for name in ("pyspark", "py4j")}
    return json.dumps({**packages, "archives": archives, "prefix": sys.prefix})


class Places(DataSource):
    """A row for each of three processes: one that makes the reader, one that plans, and a worker."""

    @classmethod
    def name(cls) -> str:
        return "places"

    def schema(self) -> str:
        return "place string"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- Spark's signature
        return PlacesReader(place())


class PlacesReader(DataSourceReader):
    def __init__(self, of_maker: str) -> None:
        self._of_maker = of_maker

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(place())]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield from [(self._of_maker,), (partition.value,), (place(),)]
