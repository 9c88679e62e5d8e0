"""Files of a checkpoint in HDFS or an object store, by way of Spark's own file systems.

Runs on: driver, in the process of the command `kgroup checkpoint`, which starts a session for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark_kgroup.checkpoint_files.files import Files
from spark_kgroup.errors import EnvironmentProblem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANAGERS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$",  # since Spark 4.1
    "org.apache.spark.sql.execution.streaming.CheckpointFileManager$",
)


class HadoopFiles:
    """Files in a folder that Hadoop knows by a URI.

    Args:
        spark: a session in this process, not of Spark Connect.
        uri: of the folder.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._uri = uri
        self._jvm = cast(Any, spark._jvm)
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._root = self._jvm.org.apache.hadoop.fs.Path(uri)
        self._system = self._root.getFileSystem(conf)
        # As Spark itself writes its logs: in one step, as the file system at hand allows it.
        self._manager = self._companion(_MANAGERS).create(self._root, conf)

    def _companion(self, names: tuple[str, ...]) -> Any:
        """The object of Scala's that has the first of these names that there is."""
        loader = self._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
        for name in names:
            if loader.getResource(f"{name.replace('.', '/')}.class") is not None:
                return loader.loadClass(name).getField("MODULE$").get(None)
        raise EnvironmentProblem("How this Spark writes checkpoints is not known: use PySpark 4.0 to 4.3.")

    def __str__(self) -> str:
        return self._uri

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        path = self._path(folder)
        if not self._system.exists(path):
            return []
        return [status.getPath().getName() for status in self._system.listStatus(path)]

    def read(self, name: str) -> bytes:
        """See `Files`."""
        path = self._path(name)
        if not self._system.exists(path):
            raise FileNotFoundError(name)
        stream = self._system.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        """See `Files`."""
        path = self._path(name)
        self._system.mkdirs(path.getParent())
        stream = self._manager.createAtomic(path, True)
        stream.write(bytearray(content))
        stream.close()  # the file is there from now on


@contextmanager
def hadoop_files(uri: str, settings: Mapping[str, str]) -> Iterator[Files]:
    """The files in a folder, while a session of its own runs with these settings.

    Raises:
        EnvironmentProblem: PySpark is missing, or Spark cannot reach the folder.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            f"To reach {uri}, kgroup checkpoint needs PySpark, of your cluster's version: pip install pyspark."
        ) from None
    builder = SparkSession.builder.appName("kgroup checkpoint").master("local[1]").config("spark.ui.enabled", "false")
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    spark = None
    try:
        spark = builder.getOrCreate()
        yield HadoopFiles(spark, uri)
    except (Py4JError, PySparkException) as problem:
        reason = str(getattr(problem, "java_exception", problem)).splitlines()[0]
        raise EnvironmentProblem(f"Spark cannot reach {uri} ({reason}): give settings of it with --conf.") from None
    finally:
        if spark is not None:
            spark.stop()
