"""The bounds of the data source alone, each with its origin: Spark's or Kafka's name and default, or a measurement.

Units are last in a name. A value that a user can set has its option in `pyspark_kgroup.options.rows`. The rest is
fixed. The bounds of the group's side are in `spark_kgroup.limits`.

Runs on: both.
"""

from __future__ import annotations

from typing import Final

# --------------------------------------------------------------------------------------------------------- the boundary

SETTLE_TIMEOUT_MS: Final = 60_000
"""How long the first boundary waits for all seats to be in the group and at rest. A Java member that processes a
long poll may hold a rebalance up for its max.poll.interval.ms (5 min). The next trigger then waits again."""

HANDOVER_WAIT_MS: Final = 1_000
"""How long a boundary that gave partitions up waits for the next assignment, so that another seat of the same query
adopts them in the same boundary. Measured on one broker: 10-50 ms."""

LOOK_WAIT_MS: Final = 1_000
"""How long a boundary waits for the look at the group's assignment that follows a rejoin. The next one waits again.
Measured on one broker: under 50 ms, and up to a heartbeat's interval if the group rebalances."""

END_OFFSETS_MAX_AGE_MS: Final = 50
"""How long listed end offsets serve further idle triggers, which may come every 10 ms (Spark:
spark.sql.streaming.pollingDelay)."""

END_BELOW_MS: Final = 10_000
"""How long a leader is asked again whose log ends below a position that was read (in a task, as in the driver: brokers
are asked anew who leads), unless its epoch is newer than that
of the read: a leader may list a lower end for a moment (seen in the field for seconds), and no log is cut without
another election. If a second broker names the same leader, the time begins then. A task, which knows no epochs, always
asks as long."""

BEGINS_BEHIND_MS: Final = 5_000
"""How long a task asks whether a log begins behind its position (ours): a log's first offset goes up alone, but a
broker that is cut off may have the log of an earlier topic."""

UNKNOWN_FOR_MS: Final = 5_000
"""For how long two brokers, or the only one, do not know a topic or partition until it counts as deleted for a task:
not all brokers know a new topic at once (as long as tasks' topic.metadata.propagation.max.ms, after which librdkafka
reports it)."""

END_BELOW_ASKED_MS: Final = 500
"""How long between two such questions (ours)."""

LEADER_PATIENCE_MS: Final = 5_000
"""How long a boundary waits for a leader that answered before (ours: Kafka elects one within it if a broker is
restarted in good order). After that its partitions add no records to the batch, and it is asked on beside the
boundaries."""

OUT_OF_REACH_AGAIN_MS: Final = 500
"""Pause between two looks, under AvailableNow, whether leaders answer if only their partitions are unread (ours)."""

BEGUN_END_OFFSETS_MAX_AGE_MS: Final = 1_000
"""How old end offsets may be that a boundary began to list when it began, beside its commits. Older ones, after a wait
within the boundary, are listed again."""

IDLE_TOPICS_MAX_AGE_MS: Final = 5_000
"""How old the list of topics may be while no records arrive. A change that shows in no end offset is noticed this late,
such as a topic that was created anew with just as many records. At 200 ms a trigger, one request for 25 of them.
Kafka's consumers look each metadata.max.age.ms, 5 min, which is the bound here if it is shorter."""

NEW_OBJECTS_MAX: Final = 50_000
"""How many objects a stream reader makes until Python looks for cycles among them (CPython: 700). Measured at 5,000
partitions: a boundary takes 265 ms of CPU instead of 380, and CPU grows as partitions do."""

PLANNED_TOPICS_MAX_AGE_MS: Final = 1_000
"""How old the list of topics may be when a batch is planned: the boundary that fixed its end has just asked for it
(Spark writes its offset log in between, 50 ms measured). Only a replay finds none."""

PROGRESS_LOGGED_MS: Final = 10_000
"""Shortest time between two log lines about one query's lag (Spark:
spark.sql.streaming.noDataProgressEventInterval)."""

SEATS_GROW_AFTER_MS: Final = 10_000
"""How long no further executor may come before seats are added for the executors that came: Spark asks for more each
second (spark.dynamicAllocation.sustainedSchedulerBacklogTimeout), and one takes some seconds to start."""

SEATS_SHRINK_AFTER_MS: Final = 600_000
"""How long executors must run fewer tasks at once than there are seats before the surplus seats leave: ten times as
long as Spark keeps an idle executor (spark.dynamicAllocation.executorIdleTimeout, 60 s)."""

SLOTS_KNOWN_MS: Final = 60_000
"""How long ago a batch may be whose executors are counted: a sidecar ends after `SIDECAR_IDLE_MS` without a read."""

MAX_TRIGGER_DELAY_MS: Final = 900_000
"""For how long `minOffsetsPerTrigger` may hold records back (Spark: maxTriggerDelay, 15m)."""

DURABLE_TOLD_AFTER_MS: Final = 3_000
"""How long a query makes no progress before its listener tells the reader that the last batch is durable (ours): with
shorter triggers the next trigger has told it by then."""

# -------------------------------------------------------------------------------------------------------------- records

ARROW_BATCH_ROWS_MAX: Final = 65_536
"""Rows in one Arrow batch that a seat hands to Spark. Spark's own batches have 10,000
(spark.sql.execution.arrow.maxRecordsPerBatch). Larger ones cost less for each row."""

ARROW_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of keys, values and headers in one Arrow batch. A larger record is a batch of its own. At 100 B a record this
is about as much as ARROW_BATCH_ROWS_MAX."""

DECOMPRESSED_PIECE_BYTES: Final = ARROW_BATCH_BYTES_MAX
"""How many bytes the native decoder decompresses of a batch until it makes rows of them: as many as an Arrow batch
takes. A batch of some kilobytes may become hundreds of megabytes, and Java's consumer reads it record by record."""

DECOMPRESSED_BYTES_MAX: Final = 100_000_000
"""Largest size, decompressed, of one record or a batch of one block of snappy in the native decoder. A larger one is
read with librdkafka (librdkafka: receive.message.max.bytes, the largest answer that it takes)."""

DECODED_BYTES_MAX: Final = 64 * 1024 * 1024
"""How many bytes the native decoder makes of one answer before it hands them over: as many as
PREFETCH_BYTES_PER_EXECUTOR. A thousand to one is usual where records repeat themselves and batches are compressed."""

PREFETCH_BYTES_PER_EXECUTOR: Final = 64 * 1024 * 1024
"""Most bytes that one executor holds ahead of a query's next batch, in all seats of that query.
librdkafka: queued.max.messages.kbytes, 64 MiB for one consumer."""

PREFETCH_BYTES_MIN: Final = 1024 * 1024
"""Less than this would not hold a fetch's answer (Kafka: max.partition.fetch.bytes, 1 MiB)."""

# ------------------------------------------------------------------------ channels between driver, sidecars and workers

CHANNEL_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest message accepted from the registry or a sidecar (ours). A seat's share of a batch takes 170 B to 720 B for
each partition, by the length of the topic's name (Kafka: at most 249), where its leader has a name of 20 characters:
40,000 partitions of one seat at the worst. Kafka advises at most 4,000 for each broker. A larger share is not fetched
ahead."""

CHANNEL_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest message that registry and sidecars accept from their clients (ours): all options of a query, certificates
included, take some KiB."""

CHANNEL_HANDSHAKE_BYTES_MAX: Final = 512
"""Largest message accepted from a peer that has not shown the key yet. Ours take 150 B."""

CHANNEL_RECEIVE_BYTES: Final = 65_536
"""Most bytes that are taken from a socket at once (asyncio.streams: _DEFAULT_LIMIT, 64 KiB)."""

CHANNEL_HANDSHAKE_MS: Final = 5_000
"""How long a peer may take to show the key: one round trip and two digests."""

CHANNEL_LOOK_UP_MS: Final = 10_000
"""How long finding the driver's address may take before that: a resolver asks its second server after 5 s (glibc)."""

CHANNEL_CONNECT_MS: Final = 2_000
"""How long a TCP connection may take to come about. A packet that is lost is sent again after 1 s (RFC 6298, section
2.1). A firewall that drops them all costs an executor this long once in `SIDECAR_RETRY_MS`."""

CHANNEL_SEND_MS: Final = 10_000
"""How long a peer may leave a message unread before it counts as gone: as long as `SIDECAR_SILENCE_MS`."""

CHANNEL_BACKLOG: Final = 1_024
"""Connections that wait in the kernel to be accepted. The kernel refuses further ones, or lets them try again after
1 s."""

ACCEPT_AGAIN_S: Final = 0.1
"""Pause after a connection that could not be accepted: mostly, no file descriptor is left (asyncio: ACCEPT_RETRY_DELAY,
1 s. Here it is shorter, because a worker waits)."""

# --------------------------------------------------------------------------------------------------------- the registry

REGISTRY_CONNECTIONS_MAX: Final = 4_096
"""Executors connected to one registry (ours), with one connection each."""

REGISTRY_UNAUTHENTICATED_MAX: Final = 256
"""Connections that have not shown the key yet. For a new one, the oldest of the host that holds most is dropped,
so that a flood pushes out its own. Measured on two busy cores: a flood brings about 1,000 a second, so an honest peer
on the same host has 250 ms for its answer."""

REGISTRY_PORT_WAIT_MS: Final = 5_000
"""How long a given registry port may be taken before that is an error: the last stream reader of the same query may be
on its way out (Spark sends it SIGTERM and does not wait)."""

REGISTRY_REFUSALS_LOGGED_MS: Final = 60_000
"""Shortest time between two log lines about refused connections."""

SCANS_MAX: Final = 1_000
"""Scans whose tickets are known at one time. The oldest is forgotten for a new one. A batch has one for each time that
its query reads the source (one, two in a self-union)."""

PAST_RANGES_MAX: Final = 20_000
"""Ranges and tickets of batches before the last two that are known still, for frames that `foreachBatch` has kept and
that are computed again: some hundred batches of 64 partitions. Measured: 0.3 KB each, so 6 MB."""

# -------------------------------------------------------------------------------------------- sidecars and seat servers

SIDECAR_START_AFTER_MS: Final = 1_000
"""How long a worker that has found no sidecar waits for the end of its read before it starts one, whose imports compete
for the CPU with the worker's own. Measured: the first read of a new executor takes 0.53 s and not 0.87."""

SIDECAR_START_MS: Final = 20_000
"""How long a sidecar may take to start before it counts as one that cannot. No worker waits for it. Measured: 1.5 s,
most of it imports."""

SIDECAR_RETRY_MS: Final = 60_000
"""How long the workers of an executor read directly before one tries again to start a sidecar that could not be
started, or to reach a registry that could not be reached (ours: Spark keeps an idle worker as long)."""

SIDECAR_IDLE_MS: Final = 600_000
"""How long a sidecar, or one of its seat servers, lives without a read: as long as a broker keeps an idle connection
(Kafka: connections.max.idle.ms, 10 min)."""

SIDECAR_HEARTBEAT_MS: Final = 3_000
"""How often a sidecar tells the registry that it lives, as Kafka's heartbeat.interval.ms."""

SIDECAR_SILENCE_MS: Final = 10_000
"""Silence after which an executor counts as gone: three heartbeats. A killed process is noticed at once. This is for
hosts that vanish. Spark itself waits 120 s (spark.network.timeout)."""

SUCCEEDED_SIDECAR_SILENCE_MS: Final = 5_000
"""How long a sidecar may be silent once another one claims the same executor: it looks once a second whether it has
been replaced, and lets the registry hear of it each `SIDECAR_HEARTBEAT_MS` if it has not."""

SUCCESSOR_WAIT_MS: Final = 8_000
"""How long the other sidecar waits for the end of the silent one: longer than `SUCCEEDED_SIDECAR_SILENCE_MS`, and
shorter than a sidecar waits for an answer (`SIDECAR_SILENCE_MS`)."""

SIDECAR_UNAUTHENTICATED_MAX: Final = 64
"""Connections that have not shown the key yet, beside the executor and over the network each. For a new one, the oldest
of the host that holds most is dropped, and its descriptor closed before the new one is heard."""

MISSED_TICKETS_MAX: Final = 20
MISSED_BATCHES_MIN: Final = 4
"""How many tickets an executor must have missed, on average, and how many batches at least, until its seats may have
another home. Spark deals tasks to executors at random: with probability exp(-20) one that still gets tasks has missed
so many. In a single batch it may be busy with other tasks."""

SIDECARS_IN_TICKET: Final = 3
"""How many sidecars of other executors a ticket names: one of them asks the registry for a worker that cannot."""

SIDECAR_NETWORK_TIMEOUT_MS: Final = 120_000
"""How long a worker of another executor may leave a sidecar's bytes unread, or its host be silent (Spark:
spark.network.timeout, 120 s)."""

REGISTRY_PATIENCE_MS: Final = 30_000
"""How long a worker goes on asking the registry if its ticket does not carry the ranges to read. With Spark's four
attempts of a task (spark.task.maxFailures) that is as long as Spark bears an executor's silence (spark.network.timeout,
120 s)."""

REGISTRY_GONE_MS: Final = 3_000
"""How long it goes on if no process listens at the registry's port any more: the registry has ended, and with it the
query, unless a firewall answers for it, and then another executor can still ask (ours)."""

REGISTRY_AGAIN_MS: Final = 200
"""Pause between two rounds of asking (ours)."""

SEAT_SERVER_STALL_MS: Final = 3_000
"""How long a seat's server waits for the next record of a read before the worker goes on directly, with the patience
of `API_TIMEOUT_MS` (Spark: kafkaConsumer.pollTimeoutMs, 120 s). Measured: the end of a log is known after 50 ms, a
record after 1 ms."""

SEAT_SERVER_SILENCE_MS: Final = 10_000
"""Silence of a seat's server after which a worker reads directly: three times `SEAT_SERVER_STALL_MS`."""

CREDENTIALS_SETTLE_MS: Final = 5_000
"""How long a read that begins waits for a certificate and its key to fit together, if one of their files has changed in
that time (ours): an agent writes one after the other. A read under way keeps the earlier pair."""

READ_SILENCE_WARNED_MS: Final = 10_000
"""How long a read gets no data until its worker warns and names the silent source. It waits on, up to its bound of
5 min (ours: as long as a seat that waits for the group)."""

SEAT_SERVER_REST_MS: Final = 30_000
"""How long workers read a seat directly after its server could not fetch it natively (`FallbackToLibrdkafka`, ours):
longer than an election takes, short beside the life of a query."""

SEAT_SERVER_LASTING_REST_MS: Final = 600_000
"""The same where the process lacks what it needs to read natively, such as a decoder for the platform (ours). Each try
costs the read that meets it its counts of rows and sizes."""

SEAT_SERVER_LOOK_S: Final = 0.1
"""How long a read waits for more records before it looks at positions, and hands over those that it has (ours)."""

# ------------------------------------------------------------------------------------------------------ the own fetcher

FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes that one broker may answer at once. One batch comes whole, however large it is. Four times Kafka's
max.partition.fetch.bytes, since several partitions share it. Kafka's own fetch.max.bytes is 50 MiB."""

FETCH_PARTITION_BYTES_MAX: Final = 1024 * 1024
"""Most bytes that it may answer of one partition. Kafka: max.partition.fetch.bytes, 1 MiB."""

FETCH_ANSWER_BYTES_MAX: Final = 100_000_000
"""Largest answer that is taken: beyond `FETCH_BYTES_MAX` it is one batch. librdkafka: receive.message.max.bytes, 100
MB."""

FETCH_BYTES_MIN: Final = 64 * 1024
"""Bytes that it may always answer, however little room there is: one batch would come whole in any case."""

ABORTED_TRANSACTIONS_MAX: Final = 200_000
"""How many aborted transactions one answer may list (ours). Kafka lists those that overlap the offsets that it sends:
28,000 have a batch of 70 B and a marker of 78 B each in `FETCH_BYTES_MAX`, and producers may have one open in each
partition."""

ABORTED_TRANSACTION_BYTES: Final = 200
"""Memory that one of them takes (measured: a pair of integers, in a set)."""

FETCH_UNDECODED_BYTES_MAX: Final = 256 * 1024
"""How much of a partition waits until it is decoded ahead: an Arrow batch costs as much as 1,000 records of 100 B
(measured: 100 us), and at 1,000 records/s a few come at a time."""

FETCH_IDLE_WAIT_MS: Final = 500
"""How long a broker waits for the first record when there is none. Kafka: fetch.max.wait.ms, 500 ms."""

FETCH_BUSY_WAIT_MS: Final = 50
FETCH_BUSY_BYTES_MIN: Final = 64 * 1024
"""How long, and for how much, it waits while records flow. Measured at 1,000 records/s: 20 answers a second, half of
what librdkafka needs, and none later for it, since Spark writes its log (50 ms) between two batches."""

FETCH_PARTITIONS_MAX: Final = 500
"""How many partitions one request asks for. The next request asks for more. Measured with 10,000 of one broker: an
answer for all costs 73 to 94 ms of CPU, however little it holds."""

FETCH_SILENCE_MS: Final = 10_000
"""How long an answer may be overdue, or pause in its midst, before librdkafka goes on (ours, as
`SEAT_SERVER_SILENCE_MS`)."""

FETCH_AWAITED_MS: Final = SEAT_SERVER_STALL_MS // 2
"""How long a read of a seat's server waits for a broker's bytes, connection included, until that broker has
failed (ours)."""

FETCH_TURN_MS: Final = 10
"""How long one answer is received until other brokers have their turn (ours): a hundred times the cost of a turn, and
more than the time between two packets of a broker that sends."""

FETCH_CONNECT_MS: Final = 5_000
"""How long a connection may take until it can fetch: name, TCP, TLS, versions and login. Half of `CONNECT_TIMEOUT_MS`,
for librdkafka then tries anew."""

FETCH_BROKERS_MS: Final = 1_000
"""How long a broker may take to name the addresses of all brokers (ours). The reads from every broker wait for it, once
for each replica that the driver did not know."""

FETCH_TROUBLE_MS: Final = 5_000
"""How long brokers may not know the leader of a partition before librdkafka goes on (ours, as `FETCH_CONNECT_MS`).
Measured on three brokers: a moved leader is known to all within 0.1 s."""

FETCH_REPLICA_MS: Final = 300_000
"""How long a replica is read that a leader prefers to itself, until the leader is asked again, and how long it is not
read after it failed. Kafka's consumer: metadata.max.age.ms, 5 min."""

FETCH_JOINED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Small batches are joined up to this size, larger ones are decoded in parts of it. A row takes 36 B at least, so rows
stay below `ARROW_BATCH_ROWS_MAX`. Measured: with 8 MiB Spark's socket takes 1.6 to 2 times as long for each byte."""

FETCH_LARGE_BYTES: Final = 512 * 1024
"""Batches above this are not joined, which copies them. Measured at 1 KB: a tenth less CPU for a read than with half of
`FETCH_JOINED_BYTES_MAX`, since answers have 1 MiB of a partition at most."""

RECORD_BYTES_UNKNOWN: Final = 1024 * 1024
"""The size that `maxBytesPerTrigger` assumes for a topic's records until some were read. Kafka: message.max.bytes."""

SAMPLED_PARTITIONS_MAX: Final = 3
"""Of so many partitions of a topic records are read before the first batch (`first_sample`; ours)."""

SAMPLED_TOPICS_MAX: Final = 300
"""Of so many topics, which take 300 MB and the whole of `SAMPLE_MS` if their records are large (ours)."""

SAMPLED_RECORDS: Final = 200
"""How many records of a topic (ours)."""

SAMPLED_BYTES: Final = 1024 * 1024
"""How many bytes of a topic, as rows have them in memory, if its records are large (ours)."""

SAMPLE_MS: Final = 10_000
"""How long the sample takes at most (ours). Measured: 0.2 s."""

ROWS_REMEMBERED: Final = 10_000
"""How many of a topic's earlier records count towards its mean size (ours): some batches, if they are small."""

TOPICS_SIZED_MAX: Final = 100_000
"""Number of topics whose record sizes the driver remembers (ours). Records of further topics count as unknown."""

SIZES_TOLD_MAX: Final = 1_000
"""Number of topics whose record sizes one read tells, 300 KB of a message (ours). The next read tells those of further
topics, since reads mostly begin elsewhere."""

TASKS_MAX: Final = 100_000
"""Tasks of one batch: as many as Spark's scheduler bears, with tickets of 50 MB (ours)."""
