"""The coordinator's half of the group protocols, without any I/O: many groups by name, Kafka's messages in and out.

How a broker, or a simulation, runs one::

    coordinator = GroupCoordinator(CoordinatorConfig(), new_id=lambda: str(uuid4()))
    for record in log:
        coordinator.apply(record)
    carry_out(coordinator.start(now_ms))
    ...
    carry_out(coordinator.receive(Received(request, version, client_id, client_host, token), now_ms))
    carry_out(coordinator.tick(now_ms))        # at coordinator.next_wakeup_at_ms(), or at any other time

1. *In.* `Received` is one request: the class of `wire.schema` that has all fields of its API, with Kafka's default in
   each field that the request's own version lacks (JoinGroup v5 has no reason: None). `version` is the version that the
   client sent, because some answers depend on it (`versions`). `token` is the caller's, and names the request in
   effects. `ANSWERED` has the requests that a coordinator answers.
2. *Out.* Each call returns effects in the order in which the caller carries them out (`contract`). `Append` comes
   BEFORE the answers that promise its records, so a record that cannot be appended ends the coordinator: the caller
   sends no answer that follows, and starts another coordinator from the log. `Answer` has the token and the response of
   `wire.schema` with all fields: a version that lacks a field leaves it out, and JoinGroup before v7 has an empty text
   for a null `protocol_name`. A JoinGroup or SyncGroup may be answered by a later call. `Dropped` has the token of a
   request that is never answered: Kafka leaves it open, too, and a client sees a timeout.
3. *State.* A handler decides. `apply(record)` alone writes the durable state: the metadata of groups, and committed
   offsets. So a restart is a replay. A restart forgets the rest, as Kafka's does: parked requests, member ids that no
   JoinGroup has used, and a rebalance that is not complete.
4. *Time.* `now_ms` is in milliseconds since 1970, by a clock that never goes back: timestamps in records outlive a
   process. The coordinator keeps its timers as data (`timers`: key -> instant), and `tick` fires those that are due. A
   `tick` before the next deadline has no effect. After each call the next deadline may be another one.
5. *Ids.* `new_id` makes the random part of a member id. This package has no random source, no clock and no wait.
6. *Other calls.* `delete_topics(names)`: the broker deleted these topics, and their offsets go. `resign()`: another
   broker coordinates from now on; all parked requests are answered with NOT_COORDINATOR, and the caller answers later
   requests so without asking the coordinator.

The caller makes the checks of KafkaApis: the user's rights, the version (one of `versions`), and that the partitions of
an OffsetCommit or OffsetDelete exist. Those that do not are answered with UNKNOWN_TOPIC_OR_PARTITION by the caller, and
only the rest of the request comes here.

Sources: Kafka's `group-coordinator` (GroupCoordinatorService, GroupMetadataManager, OffsetMetadataManager,
ClassicGroup), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED), KIP-496 (OffsetDelete),
KIP-559 (protocol type and name), KIP-814 (SkipAssignment).
"""

from spark_kgroup.coordinator.config import CoordinatorConfig
from spark_kgroup.coordinator.contract import Answer, Append, Dropped, Effect, Received, Token
from spark_kgroup.coordinator.coordinator import GroupCoordinator
from spark_kgroup.coordinator.records import GroupMetadata, GroupRemoved, OffsetCommitted, OffsetRemoved, Record
from spark_kgroup.coordinator.versions import ANSWERED, Versions

__all__ = [
    "ANSWERED",
    "Answer",
    "Append",
    "CoordinatorConfig",
    "Dropped",
    "Effect",
    "GroupCoordinator",
    "GroupMetadata",
    "GroupRemoved",
    "OffsetCommitted",
    "OffsetRemoved",
    "Received",
    "Record",
    "Token",
    "Versions",
]
