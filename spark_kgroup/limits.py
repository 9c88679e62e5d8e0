"""Every bound and default, each with its origin: Kafka's name and default, or a measurement.

Units are last in a name. A value that a user can set has its option in `pyspark_kgroup.options` or a command-line
flag; the rest are fixed here.
"""

from __future__ import annotations

from typing import Final

SESSION_TIMEOUT_MS: Final = 300_000
"""Silence after which the coordinator gives a seat away. Kafka: session.timeout.ms, 45 s; 5 min here, so that a
driver can restart within it and move nothing (KIP-345 allows up to 30 min)."""

REBALANCE_TIMEOUT_MS: Final = 1_800_000
"""How long the coordinator waits for a member to rejoin. Kafka: max.poll.interval.ms, 5 min; 30 min here, because a
partition can be given up only between two micro-batches."""

HEARTBEAT_INTERVAL_MS: Final = 3_000
"""Kafka: heartbeat.interval.ms, 3 s. Each beat is jittered so that seats do not beat in step."""

HEARTBEAT_JITTER: Final = 0.1
"""Fraction of the interval a heartbeat may come early. Kafka has none; 10 % spreads 1,000 seats over 300 ms."""

METADATA_MAX_AGE_MS: Final = 30_000
"""How old cluster metadata may get before the leader looks for new partitions. Kafka: metadata.max.age.ms, 5 min."""

REQUEST_TIMEOUT_MS: Final = 30_000
"""Kafka: request.timeout.ms, 30 s."""

JOIN_TIMEOUT_SLACK_MS: Final = 5_000
"""A parked JoinGroup is awaited for the rebalance timeout and this much more (Kafka: AbstractCoordinator, 5 s)."""

CONNECT_TIMEOUT_MS: Final = 10_000
"""Kafka: socket.connection.setup.timeout.ms, 10 s."""

NEXT_ADDRESS_AFTER_MS: Final = 250
"""How long one address of a name may keep silent before the next one is tried as well (RFC 8305, section 8)."""

LOOK_UPS_MAX: Final = 256
"""Names that one process asks the system's resolver for at one time, a thread each (ours): a thread that a silent DNS
server holds up ends when the resolver gives up (glibc: 5 s for each server and try)."""

TOKEN_TIMEOUT_MS: Final = 10_000
"""How long one call for an OAUTHBEARER token may take (librdkafka: 20 s; here a seat's heartbeats wait behind it)."""

TOKEN_POST_TIMEOUT_MS: Final = 9_000
"""How long asking a token endpoint may take in all: a little less, so that its error says what was slow."""

TOKEN_CALLS_MAX: Final = 4
"""Calls of a token function that may hang at one time, a thread each (ours); another one is made when one returns."""

TOKEN_BYTES_MAX: Final = 1024 * 1024
"""Largest answer accepted from a token endpoint (ours; tokens have a few KiB)."""

TOKEN_REFRESH_FACTOR: Final = 0.8
"""Part of a token's life after which a new one is fetched. Kafka: sasl.login.refresh.window.factor, 0.8."""

TOKEN_RETRY_MS: Final = 10_000
"""After a failed refresh the old token serves this much longer, if it lives. Kafka: sasl.login.retry.backoff.max.ms."""

REAUTHENTICATION_FACTORS: Final = (0.85, 0.95)
"""Part of a SASL session after which it is renewed, drawn between the two (KIP-368, SaslClientAuthenticator)."""

REAUTHENTICATION_INTERVAL_MS: Final = 1_050
"""Shortest time between two authentications on one connection. A broker refuses a second one within 1 s
(KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS)."""

AUTHENTICATION_GRACE_MS: Final = 60_000
"""How long a cluster that knew us may refuse us before that is final: a broker that starts may not have all users yet
(ours; as long as default.api.timeout.ms)."""

SCRAM_ITERATIONS_MIN: Final = 4_096
"""Fewest SCRAM iterations that are accepted (RFC 7677, section 4; Kafka: ScramMechanism)."""

SCRAM_ITERATIONS_MAX: Final = 1_000_000
"""Most SCRAM iterations that are accepted: 60 times what Kafka lets a credential have (ScramControlManager, 16,384).
Measured: 2 s of one core, beside the event loop."""

SCRAM_SALT_BYTES_MIN: Final = 12
"""Shortest SCRAM salt that is accepted (scramp; Kafka makes 26 bytes, ScramFormatter.secureRandomBytes)."""

RETRY_BACKOFF_MS: Final = 100
"""First wait before a retry. Kafka: retry.backoff.ms, 100 ms."""

RETRY_BACKOFF_MAX_MS: Final = 1_000
"""Longest wait before a retry. Kafka: retry.backoff.max.ms, 1 s."""

PACED_ADDRESSES_MAX: Final = 10_000
"""Addresses of which is remembered how connections to them ended (ours; far more than a cluster has brokers)."""

RETRY_BACKOFF_JITTER: Final = 0.2
"""A wait is drawn from 80 % to 120 % of its value (Kafka: ExponentialBackoff, 0.2)."""

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Largest response frame accepted on the control plane. Kafka: socket.request.max.bytes, 100 MiB."""

HANDSHAKE_FRAME_BYTES_MAX: Final = 64 * 1024
"""Largest response frame accepted from who has not authenticated yet: its ApiVersions answer takes 1 KiB, and what is
decoded on the event loop stays far below `DECODED_AT_ONCE_BYTES_MAX`. Kafka's sasl.server.max.receive.size is 512 KiB,
and may be much smaller without GSSAPI."""

DECODED_AT_ONCE_BYTES_MAX: Final = 256 * 1024
"""Largest response frame that is decoded on the event loop; a larger one goes to a thread. Measured, CPU: 2 MiB/s for
ApiVersions (small numbers), so 0.13 s; 4 MiB/s for Metadata and OffsetFetch, 70 MiB/s for DescribeGroups. With a thread
the loop was late by 8 ms mostly and 245 ms at most (a frame of 16 MiB, two busy cores)."""

DESCRIPTORS_SPARE: Final = 256
"""File descriptors that are made room for beyond one for each seat: connections of the pool, of executors, of look-ups
(ours; 60 executors and 60 brokers are far below it)."""

IN_FLIGHT_MAX: Final = 100
"""Requests awaiting an answer on one connection before the next one waits for its turn. A boundary of 1,000 seats sends
1,000 commits at once; a broker takes one request of a connection at a time (Kafka: SocketServer mutes the channel)."""

LEAVE_TIMEOUT_MS: Final = 5_000
"""How long a leaving member waits for the coordinator's word (Kafka: consumer close, 30 s; a person waits here)."""

REJOIN_BACKOFF_MAX_MS: Final = 30_000
"""Longest wait before another join when joins change nothing: a long batch in a group of type consumer, where each
heartbeat asks for one; or a leader that goes on assigning what we do not subscribe to (ours; Java joins at each, 3 s).
What the application gives up is joined for at once."""

COMMIT_TIMEOUT_MS: Final = 5_000
"""How long one commit at a boundary is retried after its last acknowledged part, before the next batch comes without
the others (Kafka: default.api.timeout.ms, 60 s; here nothing is lost by trying again at the next boundary)."""

COMMIT_PARTITIONS_MAX: Final = 1_000
"""Partitions in one OffsetCommit. The coordinator appends it as one batch of at most max.message.bytes of
__consumer_offsets (1 MiB): with the longest names Kafka allows (249 characters each) a partition takes about 700 B."""

REASON_CHARACTERS_MAX: Final = 255
"""Longest reason in JoinGroup and LeaveGroup. Kafka: JoinGroupRequest.maybeTruncateReason, 255; a broker hangs up on
one of more than 32,767."""

STARTUP_TIMEOUT_MS: Final = 15_000
"""How long a first contact with the cluster may take before the query fails with a clear error (Kafka's
default.api.timeout.ms is 60 s; a person waits here)."""

CALL_SLACK_MS: Final = 30_000
"""How much longer than the look-up inside it a blocking call into the runtime may take before it counts as stuck: an
idle event loop needs no time at all, a starved machine some."""

CLOSE_TIMEOUT_MS: Final = 5_000
"""How long closing the runtime may take. Measured: under 50 ms."""

SETTLE_TIMEOUT_MS: Final = 60_000
"""How long the first boundary waits for all seats to be in the group and at rest. A Java member that processes a
long poll may hold a rebalance up for its max.poll.interval.ms (5 min); the next trigger then waits again."""

HANDOVER_WAIT_MS: Final = 1_000
"""How long a boundary that gave something up waits for the next assignment, so that another seat of the same query
adopts in the same boundary. Measured on one broker: 10-50 ms."""

END_OFFSETS_MAX_AGE_MS: Final = 50
"""How long listed end offsets serve further idle triggers, which may come every 10 ms (Spark:
spark.sql.streaming.pollingDelay)."""

PLANNED_TOPICS_MAX_AGE_MS: Final = 1_000
"""How old the list of topics may be when a batch is planned: the boundary that fixed its end has just asked for it
(Spark writes its offset log in between, 50 ms measured); only a replay finds none."""

TOPIC_GONE_AFTER_MS: Final = 5_000
"""How long brokers are asked for a topic that was there before it counts as deleted: right after a change not all of
them know the same. Measured on one broker: under 50 ms."""

ORPHAN_CHECK_INTERVAL_MS: Final = 1_000
"""Shortest time between two looks for partitions without an owner while the group is not stable."""

ASSIGNOR_STEPS_MAX: Final = 20_000_000
"""Heap entries and arcs that the search for the best spread may look at when subscriptions differ. Measured: 2 to 8 s
of one core (not of the event loop), while the group waits for its leader. The hardest group tried, 300 members with 60
skewed topics of their choice, took 0.5 million; Kafka's own largest test, 1,000,000 partitions and 2,000 members, 4
million."""

ARROW_BATCH_ROWS_MAX: Final = 65_536
"""Rows in one Arrow batch that a seat hands to Spark. Spark's own batches have 10,000
(spark.sql.execution.arrow.maxRecordsPerBatch); larger ones cost less for each row."""

ARROW_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of keys, values and headers in one Arrow batch; a larger record is a batch of its own. At 100 B a record this
is about as much as ARROW_BATCH_ROWS_MAX."""

API_TIMEOUT_MS: Final = 300_000
"""Bound on one look-up with all its retries, and on a read to which nothing comes: how long a running query waits for
brokers that are gone. Kafka: default.api.timeout.ms, 60 s; Spark: kafkaConsumer.pollTimeoutMs, 120 s; 5 min here, so
that a cluster can restart, since an error ends the whole query."""

NEXT_BROKER_AFTER_MS: Final = 500
"""How long one broker may keep silent before the next one is asked as well (RFC 8305 takes 250 ms for connecting
alone). 20 dead hosts before a good one take 10 s of `STARTUP_TIMEOUT_MS`."""

KEEPALIVE_IDLE_S: Final = 20
"""Silence after which the kernel probes a broker's host, and between its three probes: gone after 80 s. Kafka's
clients enable keepalive with the system's 2 h (Selector.configureSocketChannel)."""

PREFETCH_BYTES_PER_EXECUTOR: Final = 64 * 1024 * 1024
"""What one executor holds ahead of the next batch, in all its seats, librdkafka's queues included. librdkafka:
queued.max.messages.kbytes, 64 MiB for one consumer."""

PREFETCH_BYTES_MIN: Final = 1024 * 1024
"""Less than this would not hold a fetch's answer (Kafka: max.partition.fetch.bytes, 1 MiB)."""

CHANNEL_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest message accepted from the registry or a sidecar (ours). A seat's share of a batch takes 100 B to 650 B for
each partition, by the length of the topic's name (Kafka: at most 249): 40,000 partitions of one seat at the worst;
Kafka advises at most 4,000 for each broker. Of a larger share nothing is fetched ahead."""

CHANNEL_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest message that registry and sidecars accept from their clients (ours): all options of a query, certificates
included, take some KiB."""

CHANNEL_HANDSHAKE_BYTES_MAX: Final = 512
"""Largest message accepted from a peer that has not shown the key yet; ours take 150 B."""

CHANNEL_HANDSHAKE_MS: Final = 5_000
"""How long a peer may take to show the key: one round trip and two digests."""

CHANNEL_CONNECT_MS: Final = 2_000
"""How long a TCP connection may take to come about. A packet that is lost is sent again after 1 s (RFC 6298, section
2.1); a firewall that drops them all costs an executor this long once in `SIDECAR_RETRY_MS`."""

CHANNEL_LOOK_UP_MS: Final = 10_000
"""How long finding the driver's address may take before that: a resolver asks its second server after 5 s (glibc)."""

CHANNEL_SEND_MS: Final = 10_000
"""How long a peer may leave a message unread before it counts as gone: as long as `SIDECAR_SILENCE_MS`."""

SIDECAR_HEARTBEAT_MS: Final = 3_000
"""How often a sidecar tells the registry that it lives, as Kafka's heartbeat.interval.ms."""

SIDECAR_SILENCE_MS: Final = 10_000
"""Silence after which an executor counts as gone: three heartbeats. A killed process is noticed at once; this is for
hosts that vanish. Spark itself waits 120 s (spark.network.timeout)."""

REGISTRY_CONNECTIONS_MAX: Final = 4_096
"""Executors connected to one registry (ours); one connection each."""

REGISTRY_STRANGERS_MAX: Final = 256
"""Connections that have not shown the key yet; the oldest is dropped for a new one. Measured on two busy cores: a flood
brings about 1,000 a second, so an honest peer has 250 ms for its answer."""

REGISTRY_PORT_WAIT_MS: Final = 5_000
"""How long a given registry port may be taken before that is an error: the last stream reader of the same query may be
on its way out (Spark sends it SIGTERM and does not wait)."""

REGISTRY_REFUSALS_LOGGED_MS: Final = 60_000
"""Shortest time between two log lines about refused connections."""

SCANS_MAX: Final = 1_000
"""Scans whose tickets are known at one time; the oldest is forgotten for a new one. A batch has one for each time that
its query reads the source (one, two in a self-union), and those of two batches are kept."""

SIDECAR_IDLE_MS: Final = 600_000
"""How long a sidecar, or one of its seat servers, lives without a read: as long as a broker keeps an idle connection
(Kafka: connections.max.idle.ms, 10 min)."""

SIDECAR_START_MS: Final = 20_000
"""How long a worker waits for its executor's sidecar to start. Measured: 1.5 s, most of it imports."""

SIDECAR_RETRY_MS: Final = 60_000
"""How long the workers of an executor read by themselves before one tries again to start a sidecar that could not be
started, or to reach a registry that could not be reached (ours; so long does Spark keep a worker that has nothing to
do)."""

SIDECAR_STRANGERS_MAX: Final = 64
"""Connections of processes of the same user that have not shown the key yet; the oldest is dropped for a new one."""

SEAT_SERVER_STALL_MS: Final = 3_000
"""How long a seat's server waits for the next record of a read before the worker goes on by itself, with the patience
of `API_TIMEOUT_MS`. Measured: the end of a log is heard of after 50 ms, a record after 1 ms."""

SEAT_SERVER_QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""What a seat's consumer holds at most in librdkafka's queue, out of the seat's share of `prefetchBytes`."""

SEAT_SERVER_SILENCE_MS: Final = 10_000
"""Silence of a seat's server after which a worker reads by itself: three times `SEAT_SERVER_STALL_MS`."""

PROGRESS_LOGGED_MS: Final = 10_000
"""Shortest time between two log lines about one query's lag (Spark:
spark.sql.streaming.noDataProgressEventInterval)."""
