"""Every bound and default of the group's side, each with its origin: Kafka's name and default, or a measurement.

Units are last in a name. A value that a user can set is a default here. The rest is fixed.
"""

from __future__ import annotations

from typing import Final

# ------------------------------------------------------------------------------------------------------------ the group

SESSION_TIMEOUT_MS: Final = 300_000
"""Silence after which the coordinator gives a seat away. Kafka: session.timeout.ms, 45 s. 5 min here, so that the
process can restart within it without moving partitions (KIP-345 allows up to 30 min)."""

DYNAMIC_SESSION_TIMEOUT_MS: Final = 45_000
"""The same for a member without an instance id, which is never the same after a restart. Kafka: session.timeout.ms."""

REBALANCE_TIMEOUT_MS: Final = 1_800_000
"""How long the coordinator waits for a member to rejoin. Kafka: max.poll.interval.ms, 5 min. 30 min here, because the
application gives a partition up only between two pieces of its work, and sets how long one may take."""

JOIN_TIMEOUT_SLACK_MS: Final = 5_000
"""A parked JoinGroup is awaited for the rebalance timeout and this much more (Kafka: AbstractCoordinator, 5 s)."""

HEARTBEAT_INTERVAL_MS: Final = 3_000
"""Kafka: heartbeat.interval.ms, 3 s. Each beat is jittered so that seats do not beat in step."""

CONSUMER_SESSION_TIMEOUT_MS: Final = 45_000
"""Under the consumer protocol the coordinator decides: group.consumer.session.timeout.ms, 45 s. After as long without a
word from it a member takes all its partitions for lost."""

CONSUMER_HEARTBEAT_INTERVAL_MS: Final = 5_000
"""Holds until the coordinator's first answer tells its interval. Kafka: group.consumer.heartbeat.interval.ms, 5 s."""

SHARES_LOOK_MIN_MS: Final = 50
SHARES_LOOK_MAX_MS: Final = 250
"""How long between two looks at whether seats have their targets: at first a round trip or a few, then a quarter of the
time between two computations of targets (Kafka: group.consumer.assignment.interval.ms, 1 s)."""

HEARTBEAT_JITTER: Final = 0.1
"""Fraction of the interval a heartbeat may come early. Kafka has none. 10 % spreads 1,000 seats over 300 ms."""

BEATS_IN_SESSION_AT_REST: Final = 10
"""Heartbeats in a session of a seat for which two other seats hear of rebalances (ours: Kafka advises three at least,
and a process may be away for the rest of the session)."""

NEIGHBOURS_ASK_AFTER_MS: Final = 25
"""After a seat joined, how long until the other seats of its process ask whether the group rebalances, twice as long
each time (ours: a coordinator has the join by then). Measured on one host: a join arrives within 10 ms."""

REJOIN_BACKOFF_MAX_MS: Final = 30_000
"""Longest wait before another join when joins bring no change: during a long piece of work in a group of type consumer,
where each heartbeat asks for a join, or under a leader that goes on assigning topics that we do not subscribe to (ours:
Java joins at each heartbeat, 3 s). Once the application gives partitions up, the member joins at once."""

LEAVE_TIMEOUT_MS: Final = 5_000
"""How long a leaving member waits for the coordinator's answer (Kafka: consumer close, 30 s. A person waits here)."""

COMMIT_TIMEOUT_MS: Final = 5_000
"""How long one commit is retried after its last acknowledged part, before the application goes on without the rest
(Kafka: default.api.timeout.ms, 60 s. Here no offset is lost by trying again after the next piece of work)."""

COMMIT_PARTITIONS_MAX: Final = 1_000
"""Partitions in one OffsetCommit. The coordinator appends it as one record batch of at most max.message.bytes of
__consumer_offsets (1 MiB): with the longest names Kafka allows (249 characters each) a partition takes about 750 B."""

REASON_CHARACTERS_MAX: Final = 255
"""Longest reason in JoinGroup and LeaveGroup. Kafka: JoinGroupRequest.maybeTruncateReason, 255. A broker hangs up on
one of more than 32,767."""

CUSTOM_ASSIGNOR_TIMEOUT_MS: Final = 30_000
"""How long a call of a custom assignor may take: ten times as long as the slowest of Kafka's takes for a million
partitions, and a tenth of Kafka's rebalance timeout (max.poll.interval.ms, 5 min), after which a group gives up its
leader."""

ASSIGNOR_STEPS_MAX: Final = 20_000_000
"""Heap entries and arcs that the search for the best spread may look at when subscriptions differ. Measured: 2 to 8 s
of one core (not of the event loop), while the group waits for its leader. The hardest group tried, 300 members with 60
skewed topics of their choice, took 0.5 million, and Kafka's own largest test, 1,000,000 partitions and 2,000 members, 4
million."""

PLANNED_ROUNDS_MAX: Final = 20
"""Rounds after which a plan takes an assignor for one that never comes to rest. Ours need two. Java's
cooperative-sticky needed up to four in 15,000 random groups."""

PLANNED_PARTITIONS_MAX: Final = 2_000_000
"""Partitions of all topics in one plan: twice the largest group that is measured (`make bench-assign`: 2 s, 0.5 GiB),
so that a count with a few digits too many is an error, and not the end of the memory."""

# ---------------------------------------------------------------------------------------------------------------- calls

STARTUP_TIMEOUT_MS: Final = 15_000
"""How long a first contact with the cluster may take before the start fails with a clear error (Kafka's
default.api.timeout.ms is 60 s. A person waits here)."""

API_TIMEOUT_MS: Final = 300_000
"""Bound on one look-up with all its retries: how long a running group waits for brokers that are gone. Kafka:
default.api.timeout.ms, 60 s. 5 min here, so that a cluster can restart, since an error ends all seats."""

REQUEST_TIMEOUT_MS: Final = 30_000
"""Kafka: request.timeout.ms, 30 s."""

CALL_SLACK_MS: Final = 30_000
"""How much longer than the look-up inside it a blocking call into the runtime may take before it counts as stuck: an
idle event loop needs no time at all, a starved machine some."""

CLOSE_TIMEOUT_MS: Final = 5_000
"""How long closing the runtime may take. Measured: under 50 ms."""

CLOSE_WORD_MS: Final = 2_000
"""Of that, how long seats under the consumer protocol wait for the coordinator's word that they are released. Without
it the next process releases them (ours, measured: 5 ms)."""

METADATA_MAX_AGE_MS: Final = 30_000
"""How old cluster metadata may get before a member looks whether the group's assignment still fits. Kafka:
metadata.max.age.ms, 5 min."""

LEADERS_LOOKED_UP_MS: Final = 8_000
"""How often a process that reads logs looks up their leaders, each time at another broker (ours): of three brokers one
may be cut off and another may not know it yet, and rows are to go on within 30 s."""

LOOK_AGAIN_MS: Final = 1_000
"""How soon a look at a group's assignment that could not be finished, or has to be confirmed, is taken again (ours):
half of the time within which a change is to be noticed after a refresh of metadata."""

FORCE_AGAIN_MAX_MS: Final = 3_600_000
"""How long a group's watch waits at most after rebalances that did not mend the assignment, from one refresh of
metadata on, doubled each time: a group whose assignor leaves another partition out each time would rebalance at each
look (ours)."""

OWN_IDS_DECIDED_WITHIN_MS: Final = 10_000
"""How long seats that are to have ids of their own if they are alone wait for a group at rest (ours: a new group is at
rest after 3 s, group.initial.rebalance.delay.ms)."""

OWN_IDS_POLL_MS: Final = 20
"""Pause between two looks whether these seats are at rest (ours)."""

OWN_IDS_AGAIN_MS: Final = 1_000
"""How soon seats without a member id of their own look again whether their group is at rest: no rebalance in which a
member hands over is much shorter than a second, and one DescribeGroups for each process and second is little."""

TOPIC_GONE_AFTER_MS: Final = 30_000
"""How long one broker alone may deny a topic that was there, or name another id of it, before the topic counts as
deleted, or as created again, while no other broker is asked or answers: a broker that starts may not know all topics
yet (librdkafka: topic.metadata.propagation.max.ms, 30 s). Two brokers that say so are believed: measured, 0.2 s."""

TOPIC_ABSENT_AFTER_MS: Final = 5_000
"""How long one broker alone may deny a topic that this process has never seen, before the topic counts as absent (ours:
at a start a person waits here, and has mostly misspelt it)."""

TOPIC_PATIENCE_MS: Final = 5_000
"""How long a look at several topics waits for one of which brokers do not say what it is, before the others go on
(ours: a leader is elected within that time). Kafka's clients take each topic of an answer for itself."""

OFFSETS_LEFT_OUT_MS: Final = 2_000
"""How long a coordinator is asked again that leaves partitions out of its committed offsets, until that means that they
have none (ours, less than `COMMIT_TIMEOUT_MS`. Apache Kafka's leaves none out, some hosted services do)."""

WITNESS_MAX_AGE_MS: Final = 30_000
"""How long one broker is the first to be asked while all its answers are of use: a broker that is cut off believes that
it still leads its partitions (ours, a tenth of Kafka's metadata.max.age.ms. Kafka's clients ask the least loaded
node)."""

TOPIC_NAMES_KNOWN_MS: Final = 1_000
"""How old an answer about topics may be that names all ids which a seat asks for (ours): an id keeps its name, but its
topic may be gone by now."""

TOPIC_IDS_MAX_AGE_MS: Final = 1_000
"""How old the ids of topics may be when `Group.commit` relies on them (ours): a position that is committed for a topic
created within this time names the old topic's id, so it does not count for the new one."""

TOPIC_NAMES_MISSED_MS: Final = 100
"""How old one may be that lacks an id: a new topic is known to all brokers soon. Kafka: retry.backoff.ms, 100."""

REPLACED_TOPICS_MAX: Final = 10_000
"""Ids of topics that were created anew, remembered so that a broker which lags behind is not believed (ours: a broker
lags by seconds, and this takes 1 MiB)."""

WAIT_TOLD_AFTER_MS: Final = 10_000
"""How long a seat waits for its coordinator, or is refused, before a warning names the reason (ours: a restart of a
broker takes less)."""

RETRY_BACKOFF_MS: Final = 100
"""First wait before a retry. Kafka: retry.backoff.ms, 100 ms."""

RETRY_BACKOFF_MAX_MS: Final = 1_000
"""Longest wait before a retry. Kafka: retry.backoff.max.ms, 1 s."""

RETRY_BACKOFF_JITTER: Final = 0.2
"""A wait is drawn from 80 % to 120 % of its value (Kafka: ExponentialBackoff, 0.2)."""

# ---------------------------------------------------------------------------------------------------------- connections

CONNECT_TIMEOUT_MS: Final = 10_000
"""Kafka: socket.connection.setup.timeout.ms, 10 s."""

NEXT_ADDRESS_AFTER_MS: Final = 250
"""How long one address of a name may keep silent before the next one is tried as well (RFC 8305, section 8)."""

NEXT_BROKER_AFTER_MS: Final = 500
"""How long one broker may keep silent before the next one is asked as well (RFC 8305 takes 250 ms for connecting
alone). 20 dead hosts before a good one take 10 s of `STARTUP_TIMEOUT_MS`."""

LOOK_UPS_MAX: Final = 256
"""Names that one process asks the system's resolver for at one time, a thread each (ours): a thread that a silent DNS
server holds up ends when the resolver gives up (glibc: 5 s for each server and try)."""

PACED_ADDRESSES_MAX: Final = 10_000
"""Most addresses whose failed connections are remembered (ours, far more than a cluster has brokers)."""

KEEPALIVE_IDLE_S: Final = 20
"""Silence after which the kernel probes a broker's host, and between its three probes: gone after 80 s. Kafka's
clients enable keepalive with the system's 2 h (Selector.configureSocketChannel)."""

DESCRIPTORS_SPARE: Final = 256
"""File descriptors that are made room for beyond one for each seat: connections of the pool, of look-ups, of the
application (ours: 60 brokers and 60 hosts that connect to it are far below it)."""

IN_FLIGHT_MAX: Final = 100
"""Requests awaiting an answer on one connection before the next one waits for its turn. 1,000 seats commit
at once, and a broker takes one request of a connection at a time (Kafka: SocketServer mutes the channel)."""

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Largest response frame accepted on the control plane. Kafka: socket.request.max.bytes, 100 MiB."""

HANDSHAKE_FRAME_BYTES_MAX: Final = 64 * 1024
"""Largest response frame accepted from a peer that has not authenticated yet: its ApiVersions answer takes 1 KiB, and
its frames, decoded on the event loop, stay far below `DECODED_AT_ONCE_BYTES_MAX`. Kafka's sasl.server.max.receive.size
is 512 KiB, and may be much smaller without GSSAPI."""

DECODED_AT_ONCE_BYTES_MAX: Final = 256 * 1024
"""Largest response frame that is decoded on the event loop. A larger one goes to a thread. Measured, CPU: 4 MiB/s for
Metadata and OffsetFetch, so 0.06 s, 7 MiB/s for ApiVersions, 25 MiB/s for DescribeGroups, and 0.7 MiB/s for the worst
case, a list of groups whose names are all empty. With a thread the loop was late by 8 ms mostly and 253 ms at most (a
frame of 8 MiB, two busy cores)."""

PARTITIONS_AT_ONCE_MAX: Final = 5_000
"""Partitions in an answer to Metadata that are looked through on the event loop. More go to a thread. Measured: 2 us
for each, so 10 ms here, and 2 s for a million."""

# ------------------------------------------------------------------------------------------------------------- security

REAUTHENTICATION_FACTORS: Final = (0.85, 0.95)
"""Part of a SASL session after which it is renewed, drawn between the two (KIP-368, SaslClientAuthenticator)."""

REAUTHENTICATION_INTERVAL_MS: Final = 1_050
"""Shortest time between two authentications on one connection. A broker refuses a second one within 1 s
(KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS)."""

AUTHENTICATION_GRACE_MS: Final = 60_000
"""How long a cluster that accepted us before may refuse us, or be refused, before that is final: a broker that starts
may not have all users yet, and renewed credentials reach brokers and clients at different moments (ours, as long as
default.api.timeout.ms)."""

AUTHORIZATION_GRACE_MS: Final = 60_000
"""How long a right that we had may be missing before that is final: ACLs arrive at a broker as users do (ours, as
`AUTHENTICATION_GRACE_MS`)."""

SCRAM_ITERATIONS_MIN: Final = 4_096
"""Fewest SCRAM iterations that are accepted (RFC 7677, section 4, and Kafka's ScramMechanism)."""

SCRAM_ITERATIONS_MAX: Final = 1_000_000
"""Most SCRAM iterations that are accepted: 60 times as many as Kafka allows (ScramControlManager, 16,384).
Measured: 2 s of one core, beside the event loop."""

SCRAM_SALT_BYTES_MIN: Final = 12
"""Shortest SCRAM salt that is accepted (as in scramp, while Kafka makes 26 bytes: ScramFormatter.secureRandomBytes)."""

TOKEN_TIMEOUT_MS: Final = 10_000
"""How long one call for an OAUTHBEARER token may take (librdkafka: 20 s. Here a seat's heartbeats wait behind it)."""

TOKEN_POST_TIMEOUT_MS: Final = 9_000
"""How long asking a token endpoint may take in all: a little less, so that the error names the slow endpoint."""

TOKEN_CALLS_MAX: Final = 4
"""Calls of a token function that may hang at one time, a thread each (ours). Another one is made when one returns."""

TOKEN_BYTES_MAX: Final = 1024 * 1024
"""Largest answer accepted from a token endpoint (ours: tokens have a few KiB)."""

TOKEN_REFRESH_FACTOR: Final = 0.8
"""Part of a token's life after which a new one is fetched. Kafka: sasl.login.refresh.window.factor, 0.8."""

TOKEN_RETRY_MS: Final = 10_000
"""After a failed refresh the old token serves this much longer, if it lives. Kafka: sasl.login.retry.backoff.max.ms."""

TOKEN_CLOCK_OFF_MAX_S: Final = 86_400
"""How far ahead a clock may be by which a new token has expired (ours). Beyond that its expiry has another unit."""

TOKEN_OF_UNKNOWN_LIFE_S: Final = 60
"""How long a new token serves that has expired by this machine's clock (ours)."""

# --------------------------------------------------------------------------------------------------- texts

STRING_BYTES_MAX: Final = 32_767
"""The longest text of Kafka's protocol (its strings have a length of 16 bits, with a sign)."""

PEER_WORDS_CHARS_MAX: Final = 500
"""How much of a broker's or another peer's text stands in an error or a log line (ours). Kafka's own take 200."""

NAMES_LISTED_MAX: Final = 20
"""How many names one error or log line lists: two lines or three (ours). A group may have 10,000 partitions."""

# ------------------------------------------------------------------------------------------------- patterns of topics

PATTERN_CHARS_MAX: Final = 65_536
"""How long a pattern may be: 800 names of 80 characters, one beside the other."""

PATTERN_DEPTH_MAX: Final = 50
"""How deep groups and classes may be: reading a level takes two of Python's 1,000 frames."""

PATTERN_REPEATS_MAX: Final = 249
"""Most repetitions that a quantifier may ask for: Kafka's longest name of a topic (Topic.MAX_NAME_LENGTH)."""

PATTERN_MATCH_S_MAX: Final = 0.5
"""How long one name may take: heartbeats wait for it. An ordinary pattern takes microseconds."""

PATTERN_SELECT_S_MAX: Final = 10.0
"""How much CPU all names of a cluster may take at one look: 100 us for each of 100,000. Members wait for it as they
join."""

PATTERN_SELECT_S_SLOW: Final = 1.0
"""CPU time for all names from which on a warning is logged."""

MATCH_AGAIN_AFTER_MS: Final = 100
"""How old the topics that a pattern matches may be when a member joins. Kafka: retry.backoff.ms, 100."""
