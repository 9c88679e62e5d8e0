"""One partition that is fetched: where its next request goes on, at which broker, and when.

Runs on: executor. Pure: time is handed in.

It is fetched from its leader, or from a replica nearby that the leader prefers to itself (KIP-392). A broker that
cannot serve the partition answers with an error:

| the broker answers | and then |
|---|---|
| NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH, and a leader of a newer epoch (KIP-951) | that leader is asked |
| any other refusal, as a replica, which may be behind or have lost its place | the leader is asked |
| UNKNOWN_LEADER_EPOCH: it has not heard of the leader that we know | it is asked again |
| UNKNOWN_TOPIC_ID: it has not heard of the topic, or the topic was deleted | it is asked again |
| UNKNOWN_TOPIC_OR_PARTITION, INCONSISTENT_TOPIC_ID: in the midst of such a change | it is asked again |
| TOPIC_AUTHORIZATION_FAILED: ACLs are being changed, or READ is missing | it is asked again, then `Refused` |
| the log diverges from the records that were read: it was truncated (KIP-320) | `LogLost` |
| any other error | `FallbackToLibrdkafka` |

An election, or news of it, may be on the way while we ask. So there is a pause before a broker is asked again, and
before a second leader is asked. All attempts together may take `FETCH_TROUBLE_MS`. Then librdkafka goes on: it asks
other brokers whether a topic is gone (`range_reader`), and hands out no record of a later topic (`topic_ids`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_messages import Wanted
from pyspark_kgroup.limits import FETCH_REPLICA_MS, FETCH_TROUBLE_MS
from pyspark_kgroup.offsets.data_loss import Loss, truncated
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.errors import BrokerError
from spark_kgroup.limits import RETRY_BACKOFF_MS
from spark_kgroup.model import ErrorCode, TopicPartition

_ANOTHER_LEADS: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


_NEWS_ON_THE_WAY: Final = frozenset(
    {
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)


class Verdict(FallbackToLibrdkafka):
    """A final answer: neither another broker nor librdkafka is asked instead."""


class Refused(Verdict):
    """This user may not read the topic. librdkafka, which then may not see the topic either, would wait silently.

    Attributes:
        partition: of the topic.
        error: for the user.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.error = BrokerError("Fetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED, str(partition))
        super().__init__(str(self.error))


class UnknownTopicId(FallbackToLibrdkafka):
    """The leader did not know the topic's id for `FETCH_TROUBLE_MS`: other brokers are to say whether it is gone."""


class LogLost(Verdict):
    """Records that were still to be read are gone. librdkafka would not notice, and read later records instead.

    Attributes:
        goes_on_at: the offset at which the rest of the range begins.
    """

    def __init__(self, loss: Loss, goes_on_at: int) -> None:
        super().__init__(str(loss).rstrip("."))
        self.loss = loss
        self.goes_on_at = goes_on_at


@dataclass(slots=True)
class FetchedLog:
    """A partition that is fetched.

    Attributes:
        position: the first offset that the next request asks for.
        end: one past the last wanted offset, or None if all are wanted.
        last_epoch: of the batch before `position`, -1 if none was fetched.
        paused_until_s: when it may be asked for again.
        empty: how many answers in a row had no record, neither of this partition nor of those asked for with it.
    """

    partition: TopicPartition
    leader: Leader
    position: int
    end: int | None
    last_epoch: int = -1
    paused_until_s: float = 0.0
    empty: int = 0
    _in_trouble_since_s: float | None = None
    _replica: int | None = None
    _replica_until_s: float = 0.0
    _leader_until_s: float = 0.0

    @property
    def done(self) -> bool:
        """Whether all wanted records have been fetched."""
        return self.end is not None and self.position >= self.end

    @property
    def node_id(self) -> int:
        """The broker that the next request goes to."""
        return self.leader.node_id if self._replica is None else self._replica

    def keeps_to_leader(self, now_s: float) -> bool:
        """Whether a request now leaves out this client's rack, so that the leader prefers no replica."""
        return now_s < self._leader_until_s

    def wanted(self) -> Wanted:
        """The partition as the next request asks for it."""
        topic_id = bytes.fromhex(self.leader.topic_id)
        return Wanted(*self.partition, topic_id, self.leader.epoch, self.position, self.last_epoch)

    def on_records(self, next_offset: int, leader_epoch: int) -> None:
        """Whole batches came, the last one of `leader_epoch`."""
        self.position = next_offset if self.end is None else min(next_offset, self.end)
        self.last_epoch = leader_epoch

    def on_answered(self, now_s: float) -> None:
        """The broker that was asked took this partition for its own, whether it has records or not."""
        self._in_trouble_since_s = None
        if now_s >= self._replica_until_s:
            self._replica = None  # the leader may prefer another replica by now

    def on_preferred(self, node_id: int, now_s: float) -> None:
        """The leader prefers another node to itself.

        Only a leader is followed, and not while it is asked without our rack: brokers that name each other would send
        us to and fro. A leader that names a node all the same has given an empty answer.
        """
        if not self.return_to_leader(now_s) and not self.keeps_to_leader(now_s):
            self._replica = node_id
            self._replica_until_s = now_s + FETCH_REPLICA_MS / 1000

    def return_to_leader(self, now_s: float) -> bool:
        """Ask the leader from now on, and only the leader for a while. False if the leader was asked already."""
        if self._replica is None:
            return False
        self._replica = None
        self._leader_until_s = now_s + FETCH_REPLICA_MS / 1000
        return True

    def on_refused(self, error: int, named: Leader | None, now_s: float) -> None:
        """The broker that was asked refused this partition.

        Args:
            error: Kafka's code.
            named: the leader that the answer names with its address, or None.
            now_s: by a monotonic clock.

        Raises:
            Refused: this user may not read the topic.
            FallbackToLibrdkafka: no broker is known that could serve the partition.
        """
        again = self._in_trouble_since_s is not None
        since_s = now_s if self._in_trouble_since_s is None else self._in_trouble_since_s
        # Of a newer epoch only: two brokers that name each other would send us to and fro.
        if error in _ANOTHER_LEADS and named is not None and named.epoch > self.leader.epoch:
            self.leader, self._replica = named, None
        elif not self.return_to_leader(now_s):
            if error not in _NEWS_ON_THE_WAY:
                raise self._fallback(error)
            again = True
        if now_s - since_s > FETCH_TROUBLE_MS / 1000:
            raise self._final(error)
        self._in_trouble_since_s = since_s
        if again:
            self.paused_until_s = now_s + RETRY_BACKOFF_MS / 1000

    def on_diverged(self, cut_at: int, now_s: float) -> None:
        """From `cut_at` on, which is below `position`, the log is not the one that was read.

        Raises:
            LogLost: the leader answered so. A replica may only be behind.
        """
        if not self.return_to_leader(now_s):
            # `position` stays: the records that the log has there now are read on, as after any truncation.
            raise LogLost(truncated(self.partition, self.position, self.end, cut_at), self.position)

    def _final(self, error: int) -> FallbackToLibrdkafka:
        if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return Refused(self.partition)
        kind = UnknownTopicId if error == ErrorCode.UNKNOWN_TOPIC_ID else FallbackToLibrdkafka
        return kind(f"{self.partition}: {ErrorCode.name_of(error)}")

    def _fallback(self, error: int) -> FallbackToLibrdkafka:
        return FallbackToLibrdkafka(f"{self.partition}: {ErrorCode.name_of(error)}")
