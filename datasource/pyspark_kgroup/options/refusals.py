"""Options of `format("kafka")` and of Kafka's clients that have no place here, and the options to use instead.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kgroup.options.values import without_shading
from spark_kgroup.errors import OptionError

_REFUSALS: Final = (
    ("path", "topics are not files. Call load() without a path and set `subscribe`."),
    ("assign", "the group decides who reads which partition. Set `subscribe`."),
    ("topic", "it belongs to writing. Set `subscribe`."),
    ("topics streamName", "the topics to read are named in `subscribe`."),
    ("checkpointLocation", "it belongs to writeStream, which keeps the checkpoint. Set it there."),
    (
        "databricks.serviceCredential",
        "log in with OAUTHBEARER and a function that returns tokens: set `tokenCallback`.",
    ),
    (
        "pushFilters",
        "where a source takes filters, Spark 4.1 to 4.3 gives a second query on one load() the rows of the first. "
        "Leave it out, and bound the read by `startingTimestamp` or `startingOffsets`.",
    ),
    ("groupIdPrefix", "a stream is one group for its whole life: set `kafka.group.id`. A batch read joins no group."),
    (
        "fetchOffset.numRetries fetchOffset.retryIntervalMs kafkaConsumer.pollTimeoutMs",
        "set `kafka.default.api.timeout.ms`, which says how long to wait for brokers.",
    ),
    (
        "kafka.enable.auto.commit kafka.auto.commit.interval.ms kafka.enable.auto.offset.store",
        "offsets are committed to the group when a batch is durable. Leave it out.",
    ),
    (
        "kafka.error_cb kafka.stats_cb kafka.throttle_cb kafka.log_cb kafka.rebalance_cb kafka.offset_commit_cb "
        "kafka.consume_cb kafka.on_commit kafka.on_delivery kafka.logger kafka.opaque kafka.interceptors",
        "it takes an object of the program, which an option cannot carry. Leave it out.",
    ),
    (
        "kafka.oauth_cb kafka.oauthbearer_token_refresh_cb",
        "it takes a function, which an option cannot carry. Name yours in `tokenCallback`.",
    ),
    (
        "kafka.default.topic.config kafka.default_topic_conf",
        "it takes an object of the program. Give each of its properties as its own option.",
    ),
    ("kafka.enable.partition.eof", "this source sets it itself. Leave it out."),
    ("kafka.group.instance.id", "every seat has its own. Set `instanceIdPrefix`."),
    (
        "kafka.key.deserializer kafka.value.deserializer kafka.key.serializer kafka.value.serializer",
        "keys and values arrive as bytes. Decode them with DataFrame operations.",
    ),
    ("kafka.interceptor.classes kafka.plugin.library.paths", "they could change the records. Leave it out."),
    ("kafka.metadata.broker.list", "set `kafka.bootstrap.servers`."),
    (
        "kafka.metric.reporters kafka.metrics.num.samples kafka.metrics.recording.level kafka.metrics.sample.window.ms "
        "kafka.auto.include.jmx.reporter kafka.config.providers kafka.exclude.internal.topics "
        "kafka.internal.leave.group.on.close kafka.auto.register.schemas",
        "it belongs to Java's clients. Leave it out.",
    ),
    ("kafka.max.poll.records", "a batch is bounded by `maxOffsetsPerTrigger`."),
    (
        "kafka.sasl.login.callback.handler.class kafka.sasl.client.callback.handler.class kafka.sasl.login.class "
        "kafka.sasl.oauthbearer.jwt.retriever.class kafka.sasl.oauthbearer.jwt.validator.class",
        "no Java class can be used here. Leave it out for client credentials, or set `tokenCallback`.",
    ),
    (
        "kafka.sasl.oauthbearer.assertion.file kafka.sasl.oauthbearer.grant.type "
        "kafka.sasl.oauthbearer.metadata.authentication.type kafka.enable.sasl.oauthbearer.unsecure.jwt",
        "not in this version. Use client credentials (kafka.sasl.oauthbearer.method=oidc) or `tokenCallback`.",
    ),
    (
        "kafka.sasl.kerberos.service.name kafka.sasl.kerberos.principal kafka.sasl.kerberos.keytab "
        "kafka.sasl.kerberos.kinit.cmd",
        "Kerberos is not supported. Use SCRAM, OAUTHBEARER or mTLS.",
    ),
    (
        "kafka.ssl.protocol kafka.ssl.enabled.protocols kafka.ssl.provider kafka.ssl.keymanager.algorithm "
        "kafka.ssl.trustmanager.algorithm kafka.ssl.secure.random.implementation kafka.ssl.engine.factory.class "
        "kafka.security.providers",
        "it belongs to Java's TLS. Here OpenSSL decides, with TLS 1.2 or newer. Leave it out.",
    ),
    (
        "kafka.ssl.cipher.suites kafka.ssl.curves.list kafka.ssl.sigalgs.list kafka.ssl.crl.location "
        "kafka.ssl.providers kafka.ssl.engine.location kafka.ssl.engine.id kafka.ssl.ca.certificate.stores",
        "it would apply to the executors but not to the driver. Leave it out.",
    ),
    ("kafka.fetch.max.wait.ms", "librdkafka has another name for it. Set `kafka.fetch.wait.max.ms`."),
    ("kafka.receive.buffer.bytes", "librdkafka has another name for it. Set `kafka.socket.receive.buffer.bytes`."),
    ("kafka.send.buffer.bytes", "librdkafka has another name for it. Set `kafka.socket.send.buffer.bytes`."),
)
"""Options of `format("kafka")` and of Kafka's clients that have no place here, and why."""

_OF_BATCHES: Final[Mapping[str, str]] = {
    "assign": "set `subscribe`, and filter on the column partition.",
    "groupIdPrefix": "a batch read joins no group. Leave it out.",
    "kafka.enable.auto.commit": "a batch read commits no offsets. Leave it out.",
    "kafka.auto.commit.interval.ms": "a batch read commits no offsets. Leave it out.",
    "kafka.group.instance.id": "a batch read joins no group. Leave it out.",
    "kafka.max.poll.records": "a task's share is bounded by `maxRecordsPerPartition`.",
}
"""The reasons of a batch read to refuse options that streams refuse for another reason."""

REFUSED: Final = {name: reason for names, reason in _REFUSALS for name in names.split()}

_TRUE_ANYWAY: Final[Mapping[str, tuple[str, ...]]] = {
    "kafka.enable.auto.commit": ("false",),
    "kafka.enable.auto.offset.store": ("false",),
    "kafka.sasl.login.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.oauthbearerlogincallbackhandler",
        "org.apache.kafka.common.security.oauthbearer.secured.oauthbearerlogincallbackhandler",  # until Kafka 3.9
    ),
}
"""Refused options -> values with which they may be given, because this source behaves so anyway."""


def refuse(given: Mapping[str, str], *, batch: bool = False) -> None:
    """Check that no option in `given` (names in lower case) is refused.

    Args:
        given: the options.
        batch: whether they are of a batch read.

    Raises:
        OptionError: an option is refused. The message says what to do instead.
    """
    for name, reason in REFUSED.items():
        value = given.get(name.lower())
        if value is not None and without_shading(value.strip().lower()) not in _TRUE_ANYWAY.get(name, ()):
            why = _OF_BATCHES.get(name, reason) if batch else reason
            raise OptionError(f"Option {name} cannot be used with this source: {why}")
