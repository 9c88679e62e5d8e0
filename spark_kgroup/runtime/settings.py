"""Which group, and how its seats behave: what whoever starts the runtime decides. Plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_kgroup.limits import (
    API_TIMEOUT_MS,
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
)
from spark_kgroup.member.classic import PreviouslyOwned
from spark_kgroup.model import MemberIdentity
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.security.settings import Plaintext, Security


def _nothing(_: MemberIdentity) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Which group, and how its seats behave.

    Attributes:
        topics_must_exist: whether a subscribed topic that does not exist is an error, or just not there.
        instance_ids: one static member each; None makes a dynamic member.
        assignors: Kafka's names, in order of preference.
        previously_owned: instance id -> what an earlier process of that seat may have been reading.
        finds_orphans: whether a seat that came back without a rebalance rejoins for subscribed partitions that nobody
            owns. False for an application that must commit before that, and looks at a moment of its own.
        cap_seats_to_partitions: no more seats than the topics have partitions at the start; no limit if one
            of them is missing then.
        commit_metadata: who commits -> what is written beside one partition of each topic; asked at each commit, on the
            event loop.
        commit_mark: what is written beside all others.
        alive: whether the process that the seats work for is still there; asked as each request is sent. If not,
            nothing is sent, and the seats fail: another process may have their place by now.
    """

    bootstrap: tuple[Address, ...]
    group: str
    topics: tuple[str, ...]
    instance_ids: tuple[str | None, ...]
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    metadata_max_age_ms: int = METADATA_MAX_AGE_MS
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    api_timeout_ms: int = API_TIMEOUT_MS
    client_id: str = "spark-kgroup"
    security: Security = field(default_factory=Plaintext)
    topics_must_exist: bool = True
    previously_owned: Mapping[str, PreviouslyOwned] = field(default_factory=dict)
    finds_orphans: bool = False
    cap_seats_to_partitions: bool = False
    commit_metadata: Callable[[MemberIdentity], str] = _nothing
    commit_mark: str = ""
    alive: Callable[[], bool] = lambda: True
