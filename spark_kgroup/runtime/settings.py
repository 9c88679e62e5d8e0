"""Which group, and how its seats behave: the choices of the runtime's owner. Plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from spark_kgroup.errors import OptionError
from spark_kgroup.limits import (
    API_TIMEOUT_MS,
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
)
from spark_kgroup.member.classic import PreviouslyOwned
from spark_kgroup.model import CLASSIC, CONSUMER, MemberIdentity, TopicPartition, longest_heartbeat_interval_ms
from spark_kgroup.topic_pattern import TopicPattern
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.security.settings import Plaintext, Security

if TYPE_CHECKING:
    from spark_kgroup.wire.responses import CommittedOffset


def _nothing(_who: MemberIdentity, _topic_id: str) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What the seats are to brokers as a client: who they are, and how long they wait for answers.

    Attributes:
        client_id: as brokers see it in each request. A static leader of another process that has the same one is taken
            to look after the group's assignment itself (`runtime.metadata_watch`).
        security: how to connect and who to be, as `load_security` makes it of `SecuritySettings`.
        request_timeout_ms: the bound of one request.
        api_timeout_ms: the bound of one call, with all its requests.
        metadata_max_age_ms: how old what is known of topics may be before brokers are asked again.
        cluster_id: of the cluster that an earlier process has worked with: the brokers of any other one are not
            believed. None for the cluster that answers first.
    """

    client_id: str = "spark-kgroup"
    security: Security = field(default_factory=Plaintext)
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    api_timeout_ms: int = API_TIMEOUT_MS
    metadata_max_age_ms: int = METADATA_MAX_AGE_MS
    cluster_id: str | None = None


def default_heartbeat_interval_ms(session_timeout_ms: int) -> int:
    """Kafka's default, or a third of the session timeout if that is less."""
    return min(HEARTBEAT_INTERVAL_MS, longest_heartbeat_interval_ms(session_timeout_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSettings:
    """The group protocol, and how a member takes part in it.

    Attributes:
        name: "classic", or "consumer" (KIP-848), under which the coordinator assigns and decides about sessions and
            heartbeats: `assignors`, `session_timeout_ms` and `heartbeat_interval_ms` are not for it.
        assignors: Kafka's names or module:Class, in order of preference.
        server_assignor: the coordinator's, under the consumer protocol, or None for its first.
        session_timeout_ms: how long a member may be silent before its partitions go to other members.
        rebalance_timeout_ms: how long the group waits for a member in a rebalance.
        heartbeat_interval_ms: the time between two heartbeats of a member.
        own_ids: whether static seats of a classic group are to have member ids that this process made.
        own_ids_if_alone: the same, if the group has no other member when it has first come to rest, and no earlier
            process was reading partitions. Until that is decided, `GroupView.settled` is false.
    """

    name: str = CLASSIC
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    server_assignor: str | None = None
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    own_ids: bool = False
    own_ids_if_alone: bool = False

    def __post_init__(self) -> None:
        """Refuse a text where there must be several values.

        Raises:
            OptionError: it names the setting.
        """
        _check_several("assignors", self.assignors)

    @property
    def is_consumer(self) -> bool:
        """Whether it is the consumer protocol (KIP-848)."""
        return self.name == CONSUMER


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingWork:
    """Work on partitions that outlasts a rebalance or a process: what the seats do to have it finished.

    Attributes:
        previously_owned: instance id -> the partitions that an earlier process of that seat may have been reading.
        holds_rebalances: whether a rebalance that the group's assignment needs waits for `Group.force_rebalance`: for
            an application that must commit its knowledge of partitions before another member gets them. It sees the
            reason in `GroupView.held`. A rebalance for new partitions does not wait.
        releases_seats: whether `Group.close` releases seats under the consumer protocol, so that any other process may
            have them at once. If not, they wait for this application's next process, which may have work to finish.
        topic_ids: topic -> its id as an earlier process knew it: one broker alone does not contradict that.
        reads_logs: whether leaders are asked where logs end, so that one that is cut off must be noticed.
    """

    previously_owned: Mapping[str, PreviouslyOwned] = field(default_factory=dict)
    holds_rebalances: bool = False
    releases_seats: bool = True
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    reads_logs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerHooks:
    """The functions of the seats' owner that a group calls, all on its event loop.

    Attributes:
        rack_of: instance id -> the rack where that seat reads (KIP-881), or None if it is not known. Asked at each
            join. Another answer than before is no reason to join.
        commit_metadata: the member that commits, and the topic's id as text, "" where it has none -> the text to write
            beside one partition of each topic. Asked at each commit.
        commit_mark: the same -> the text to write beside all other partitions.
        before_joining: called with the group's committed offsets, and the texts beside them, before any seat joins, or
            None if they are not asked for.
        alive: whether the process that the seats work for is still there, asked as each request is sent. If not, no
            request is sent, and the seats fail: another process may have their place by now.
    """

    rack_of: Callable[[str | None], str | None] = lambda _: None
    commit_metadata: Callable[[MemberIdentity, str], str] = _nothing
    commit_mark: Callable[[MemberIdentity, str], str] = _nothing
    before_joining: Callable[[Mapping[TopicPartition, CommittedOffset]], None] | None = None
    alive: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Which group, and how its seats behave.

    Attributes:
        bootstrap: addresses of brokers, as `parse_bootstrap` returns them.
        group: the group's id.
        topics: subscribed names, or none if there is a pattern.
        instance_ids: one static member each. None makes a dynamic member.
        pattern: the topics that it matches are subscribed, as they come and go.
        topics_must_exist: whether a subscribed topic that does not exist is an error, or just not there.
        cap_seats_to_partitions: no more seats than the topics have partitions at the start, without a limit if one of
            them is missing then.
        client: who the seats are to brokers, and how long they wait for them.
        protocol: the group protocol, with its assignors and times.
        work: of an earlier process, and of the next one.
        hooks: functions of the owner that the group calls.
    """

    bootstrap: tuple[Address, ...]
    group: str
    topics: tuple[str, ...]
    instance_ids: tuple[str | None, ...]
    pattern: TopicPattern | None = None
    topics_must_exist: bool = True
    cap_seats_to_partitions: bool = False
    client: ClientSettings = field(default_factory=ClientSettings)
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)
    work: OngoingWork = field(default_factory=OngoingWork)
    hooks: OwnerHooks = field(default_factory=OwnerHooks)

    def __post_init__(self) -> None:
        """Refuse texts where there must be several values.

        Raises:
            OptionError: it names the setting.
        """
        if isinstance(self.bootstrap, str) or not all(isinstance(each, Address) for each in self.bootstrap):
            raise OptionError(
                f"`bootstrap` is {self.bootstrap!r}: give addresses, as `parse_bootstrap` returns them, or use "
                "`Group.connect`, which takes a text."
            )
        _check_several("topics", self.topics)
        _check_several("instance_ids", self.instance_ids)


def _check_several(name: str, value: object) -> None:
    if isinstance(value, str):
        raise OptionError(f"`{name}` is {value!r}: give a tuple, such as ({value!r},).")
