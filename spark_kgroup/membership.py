"""A membership in a consumer group, for programs on asyncio: `async with Group.connect(...) as group`.

The program is told by events which partitions it owns, commits their offsets, and releases partitions that the group
asks for. It reads records with a client of its own choice, or works on partitions in some other way: a partition may
stand for a shard, a tenant, a device.

`Group.connect` runs a `runtime.Group`, the seats without an opinion of what an application does with them.

A topic may be deleted and created again under its name, which is all that OffsetCommit and OffsetFetch know of it. So
each commit writes the topic's id beside its offsets, as the data source does (`seat_note`), and an offset beside
another id does not count. Topics are looked at before a commit: a position in a topic that was created again is not
committed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from spark_kgroup.assignors import assignors_called
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import KgroupError, OptionError, WireError
from spark_kgroup.limits import COMMIT_TIMEOUT_MS, SESSION_TIMEOUT_MS, STRING_BYTES_MAX, TOPIC_IDS_MAX_AGE_MS
from spark_kgroup.member import contract
from spark_kgroup.model import (
    CLASSIC,
    CONSUMER,
    INT_MAX,
    MemberIdentity,
    TopicDescription,
    TopicPartition,
    is_kafka_name,
)
from spark_kgroup.peer_words import printable_words
from spark_kgroup.runtime.group import Group as Seats
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import (
    ClientSettings,
    GroupSettings,
    OwnerHooks,
    ProtocolSettings,
    default_heartbeat_interval_ms,
)
from spark_kgroup.seat_note import is_of_topic, topic_mark
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import Security, SecuritySettings

log = logging.getLogger(__name__)

_LOOK_MS: Final = 60_000
"""How long `events` waits before it looks again whether a seat has failed: it hears of that at once anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The group has assigned `partitions` to the seat `instance_id`: it owns them from now on.

    A restarted program gets the partitions that its seat still holds in the same way.
    """

    instance_id: str | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """The group asks for `partitions` back: finish their work, `Group.commit` their offsets, then `Group.release` them.

    The seat owns them until then. The group waits for them for its rebalance timeout (KIP-429: onPartitionsRevoked).
    """

    instance_id: str | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The seat owns `partitions` no longer: stop their work, and commit none of it (KIP-429: onPartitionsLost).

    The same if their topic was deleted and created again: an `Assigned` follows, for the topic that has the name now.
    """

    instance_id: str | None
    partitions: frozenset[TopicPartition]
    reason: str


Event = Assigned | Revoked | Lost


class Group:
    """One or more seats of this program in a consumer group. Made by `connect`, and used on one event loop."""

    def __init__(self, settings: GroupSettings) -> None:
        self._seats = Seats(settings, observer=self._on_notice)
        self._events: deque[Event] = deque()
        self._owned: dict[str | None, frozenset[TopicPartition]] = {}
        self._revoked: dict[str | None, frozenset[TopicPartition]] = {}
        self._topic_ids: dict[str, str] = {}
        """Topic -> its id, as brokers told it last."""
        self._read_of: dict[tuple[str | None, TopicPartition], str] = {}
        """Partition -> the id that its topic had when the program took `Assigned`."""
        self._topics_seen_at_ms = 0

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        bootstrap: str,
        *,
        group: str,
        topics: Iterable[str],
        instance_ids: Iterable[str | None],
        group_protocol: str = CLASSIC,
        assignors: Iterable[str] | None = None,
        server_assignor: str | None = None,
        session_timeout_ms: int | None = None,
        security: SecuritySettings | None = None,
    ) -> AsyncIterator[Group]:
        """Join a group for as long as the block runs.

        Seats with an instance id are static members (KIP-345): they keep their place for the session timeout after the
        block, so that a restarted program has its partitions again without a rebalance. `leave` gives them back. A seat
        whose instance id is None is a dynamic member, which leaves at the end of the block.

        Args:
            bootstrap: brokers, as "host:port[,host:port]".
            group: the group's id.
            topics: names of topics that exist, at least one.
            instance_ids: of each seat, unique in the group, such as "worker-0"; [None] for one dynamic member.
            group_protocol: "classic": a member of the group assigns partitions. "consumer": the brokers do (KIP-848,
                Apache Kafka 4.0 or newer).
            assignors: names of assignors, the preferred one first, or "module:Class"; ["cooperative-sticky"] if None.
                Under the classic protocol only.
            server_assignor: one of the brokers' group.consumer.assignors, or None for their first. Under the consumer
                protocol only.
            session_timeout_ms: how long a seat may be silent before its partitions go to other members; 5 minutes if
                None. Under the classic protocol only: the consumer protocol has the group's setting on the brokers,
                consumer.session.timeout.ms.
            security: how to connect and who to be; by default without TLS and login.

        Raises:
            OptionError: an argument has another type or value. The message names the argument and the fix.
            WireError: the cluster cannot be reached, or refuses this client, within 15 s.
            UnknownTopic: a topic does not exist.
        """
        _check_protocol(group_protocol, assignors, server_assignor, session_timeout_ms)
        session_timeout_ms = _milliseconds("session_timeout_ms", session_timeout_ms, SESSION_TIMEOUT_MS)
        settings = GroupSettings(
            bootstrap=parse_bootstrap(_addresses(bootstrap), "bootstrap"),
            group=_text("group", group, "shards"),
            topics=_topics(topics),
            instance_ids=_instance_ids(instance_ids),
            protocol=ProtocolSettings(
                name=group_protocol,
                assignors=_assignors(assignors),
                server_assignor=server_assignor,
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=default_heartbeat_interval_ms(session_timeout_ms),
            ),
            client=ClientSettings(security=_security(security)),
            hooks=OwnerHooks(commit_metadata=_mark, commit_mark=_mark),
        )
        connected = cls(settings)
        try:
            await connected._seats.start()
            connected._hear_of_topics(connected._seats.topics.known)
            try:
                yield connected
            finally:
                if None in settings.instance_ids:
                    await connected._leave_if_possible()
        finally:
            await connected._seats.close()

    @property
    def owned(self) -> Mapping[str | None, frozenset[TopicPartition]]:
        """Instance id -> partitions of which `events` has told, and that are neither released nor lost."""
        return {seat: partitions for seat, partitions in self._owned.items() if partitions}

    def events(self) -> AsyncIterator[Event]:
        """The changes of the seats' ownership, in order, for as long as the group is connected.

        The iterator raises KgroupError when a seat has ended for good (fenced, rejected). The error says why.
        """
        return _Events(self._events, self._seats, self._on_taken)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Partition -> the offset at which to go on; without partitions for which the group has none.

        An offset of a topic that was deleted since is none, if its commit names the topic's id: those of this library
        do, those of other clients do not.

        Raises:
            WireError: the coordinator, or a broker that knows the topics, did not answer in time, or refused.
        """
        found = await self._seats.offsets.committed(partitions)
        if topics := {partition.topic for partition in found}:
            self._hear_of_topics(await self._seats.topics.named(topics))
        return {
            partition: committed.offset
            for partition, committed in found.items()
            if committed is not None
            and is_of_topic(committed.metadata, self._topic_ids.get(partition.topic, "")) is not False
        }

    async def commit(self, positions: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Commit, for each partition, the offset of the next record.

        Returns:
            The partitions whose commit the coordinator has confirmed. Partitions that no seat owns, or that the program
            has not been told of by `Assigned`, are not among them, nor those of a topic that was created again since.

        Raises:
            BrokerError: this user may not commit.
            KgroupError: a seat has ended for good.
        """
        told = self._told()  # while this waits, a partition may be lost and assigned anew: the position is of before
        await self._see_topics()
        confirmed: frozenset[TopicPartition] = frozenset()
        for seat in self._seats.view().seats:
            # Asked anew for each seat: partitions may have been lost while an earlier seat's commit was under way.
            now = self._told()
            own = {
                partition: at
                for partition, at in positions.items()
                if (key := (seat.instance_id, partition)) in now
                and now[key] == told.get(key)
                and self._read_of[key] == self._topic_ids.get(partition.topic, "")
            }
            if own:
                confirmed |= await self._seats.commits.commit(seat.identity, own, dict(self._topic_ids))
        return confirmed

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Give up partitions that were `Revoked`, AFTER their offsets were committed.

        Raises:
            OptionError: the group has not asked for one of them.
        """
        wanted = frozenset(partitions)
        if unasked := wanted.difference(*self._revoked.values()):
            raise OptionError(
                f"The group has not asked for {min(unasked)}: release only partitions that `Revoked` names."
            )
        for seat, revoked in self._revoked.items():
            if given_up := revoked & wanted:
                self._forget(seat, given_up)
                self._seats.give_up(seat, given_up)

    async def leave(self) -> None:
        """Give all seats back for good: the group rebalances at once.

        Raises:
            GroupUnsettled: the coordinator did not confirm it in time.
        """
        await self._seats.leave()

    async def _leave_if_possible(self) -> None:
        try:
            await self.leave()
        except KgroupError as problem:  # the block's own error matters more
            log.info("the dynamic member stays until its session is over: %s", problem)

    # ---------------------------------------------------------------------------------------------- topic ids

    def _told(self) -> dict[tuple[str | None, TopicPartition], tuple[object, str]]:
        """(seat, partition) -> its ownership, and the topic's id, under which the program was told of it."""
        return {
            (seat.instance_id, partition): (since, self._read_of[seat.instance_id, partition])
            for seat in self._seats.view().seats
            for partition, since in seat.owned_since.items()
            if (seat.instance_id, partition) in self._read_of
        }

    async def _see_topics(self) -> None:
        """Ask brokers for the ids of the topics that the program works on, unless they told them just now.

        If no broker answers, the last ids have to do: a commit names the one under which the program was told of the
        partition.
        """
        names = {partition.topic for _, partition in self._read_of}
        if not names or monotonic_ms() - self._topics_seen_at_ms <= TOPIC_IDS_MAX_AGE_MS:
            return
        try:
            topics = await self._seats.topics.named(names, COMMIT_TIMEOUT_MS)
        except WireError as error:
            log.info("no look at the topics before this commit: %s", error)
            return
        self._topics_seen_at_ms = monotonic_ms()
        self._hear_of_topics(topics)

    def _hear_of_topics(self, topics: Mapping[str, TopicDescription]) -> None:
        """Take the topics' ids. Partitions of a topic that was created again are lost and assigned.

        Partitions to be released are not assigned again: the program has only to release them.
        """
        self._topic_ids |= {name: str(topic.topic_id) for name, topic in topics.items() if topic.topic_id is not None}
        for seat, owned in list(self._owned.items()):
            other = frozenset(
                tp
                for tp in owned - self._revoked.get(seat, frozenset())
                if self._read_of.get((seat, tp)) not in (None, self._topic_ids.get(tp.topic, ""))
            )
            if other:
                names = ", ".join(sorted({tp.topic for tp in other}))
                reason = f"deleted and created again: {names}"
                self._forget(seat, other)
                self._owned[seat] |= other
                self._events += [
                    Lost(instance_id=seat, partitions=other, reason=reason),
                    Assigned(instance_id=seat, partitions=other),
                ]
                # `events` waits for changes of the seats, and this one comes from the topics.
                self._seats.wake()

    def _on_taken(self, event: Event) -> None:
        """The program has been told. A position that it had before is of no use for a partition that is assigned now.

        A partition that was lost since is left out: the program has not been told of that yet.
        """
        if isinstance(event, Assigned):
            seat = event.instance_id
            later = [each.partitions for each in self._events if isinstance(each, Lost) and each.instance_id == seat]
            there = event.partitions.difference(*later)
            self._read_of |= {(seat, tp): self._topic_ids.get(tp.topic, "") for tp in there}

    # ----------------------------------------------------------------------------------------- from the seats

    def _on_notice(self, session: Session, notice: contract.Notice) -> None:
        seat = session.config.instance_id
        match notice:
            case contract.Assigned(added=added, revoked=revoked):
                if new := added - revoked:
                    self._owned[seat] = self._owned.get(seat, frozenset()) | new
                    self._events.append(Assigned(instance_id=seat, partitions=new))
                self._on_revoked(session, revoked)
            case contract.GiveUpAll(partitions=partitions):
                self._on_revoked(session, partitions)
            case contract.Lost(partitions=partitions, reason=reason):
                if gone := partitions & self._owned.get(seat, frozenset()):
                    self._forget(seat, gone)
                    self._events.append(Lost(instance_id=seat, partitions=gone, reason=reason))

    def _on_revoked(self, session: Session, partitions: frozenset[TopicPartition]) -> None:
        """Announce what the program works on, once. What it has never heard of is released at once."""
        seat = session.config.instance_id
        known = self._owned.get(seat, frozenset())
        if unknown := partitions - known:
            session.post(contract.GaveUp(partitions=unknown))
        if new := (partitions & known) - self._revoked.get(seat, frozenset()):
            self._revoked[seat] = self._revoked.get(seat, frozenset()) | new
            self._events.append(Revoked(instance_id=seat, partitions=new))

    def _forget(self, seat: str | None, partitions: frozenset[TopicPartition]) -> None:
        for table in (self._owned, self._revoked):
            table[seat] = table.get(seat, frozenset()) - partitions
        for partition in partitions:
            self._read_of.pop((seat, partition), None)


class _Events(AsyncIterator[Event]):
    """Not a generator: a program may break out of its loop, and nothing is left to close."""

    def __init__(self, events: deque[Event], seats: Seats, on_taken: Callable[[Event], None]) -> None:
        self._events = events
        self._seats = seats
        self._on_taken = on_taken

    async def __anext__(self) -> Event:
        while not self._events:
            try:
                await self._seats.wait_until(lambda _: bool(self._events), _LOOK_MS)
            except KgroupError:
                if not self._events:  # else the program first hears of the partitions that the seat has lost
                    raise
        event = self._events.popleft()
        self._on_taken(event)
        return event


def _mark(_: MemberIdentity, topic_id: str) -> str:
    """The text beside each offset: `Group.connect` has no more to say than the topic's id."""
    return topic_mark(topic_id)


def _check_protocol(
    protocol: str, assignors: Iterable[str] | None, server_assignor: str | None, session_timeout_ms: int | None
) -> None:
    """Raises OptionError for a protocol that is none, and for an argument that it has no use for, or cannot send."""
    if protocol not in (CLASSIC, CONSUMER):
        raise OptionError(f"`group_protocol` is {_shown(protocol)}: give {CLASSIC!r} or {CONSUMER!r}.")
    if protocol == CLASSIC and server_assignor is not None:
        raise OptionError(
            f"`server_assignor` is {_shown(server_assignor)}, but under group_protocol={CLASSIC!r} a member assigns: "
            f"give `assignors`, or group_protocol={CONSUMER!r}."
        )
    if protocol == CONSUMER and assignors is not None:
        raise OptionError(
            f"`assignors` is {_shown(assignors)}, but under group_protocol={CONSUMER!r} the brokers assign: give "
            f"`server_assignor`, or group_protocol={CLASSIC!r}."
        )
    if protocol == CONSUMER and session_timeout_ms is not None:
        raise OptionError(
            f"`session_timeout_ms` is {_shown(session_timeout_ms)}, but under group_protocol={CONSUMER!r} the brokers "
            "decide: set the group's consumer.session.timeout.ms there."
        )
    if server_assignor is not None:
        _text("server_assignor", server_assignor, "uniform")


def _topics(given: Iterable[str]) -> tuple[str, ...]:
    """The names, each once."""
    return tuple(dict.fromkeys(_name("topics", topic, "orders") for topic in _several("topics", given, "orders")))


def _instance_ids(given: Iterable[str | None]) -> tuple[str | None, ...]:
    """The instance id of each seat. They are looked at before they are compared, since a wrong one may have no hash."""
    dynamic = ", or None for one dynamic member"
    seats = [
        None if seat is None else _name("instance_ids", seat, "worker-0", dynamic)
        for seat in _several("instance_ids", given, "worker-0")
    ]
    ((seat, times),) = Counter(seats).most_common(1)
    if times > 1:
        raise OptionError(f"`instance_ids` has {seat!r} twice: give each seat one of its own, and None at most once.")
    return tuple(seats)


def _assignors(given: Iterable[str] | None) -> tuple[str, ...]:
    """The names, each of an assignor that can be made: a wrong one is an error before a seat joins."""
    if given is None:
        return ("cooperative-sticky",)
    names: list[str] = []
    for name in _several("assignors", given, "range"):
        if not isinstance(name, str):
            raise OptionError(f"`assignors` has {_shown(name)}: give names, such as 'range', or 'module:Class'.")
        names.append(name)
    try:
        assignors_called(names)
    except OptionError as wrong:
        raise OptionError(f"`assignors` is {_shown(names)}: {wrong}") from wrong
    return tuple(names)


def _security(given: SecuritySettings | None) -> Security:
    # What was given may be a secret, so an error shows no more than its type.
    if given is not None and not isinstance(given, SecuritySettings):
        raise OptionError(
            f"`security` is of type {type(given).__name__}: give SecuritySettings, such as "
            "SecuritySettings(protocol='SSL'), or None for neither TLS nor login."
        )
    return load_security(given if given is not None else SecuritySettings())


def _name(argument: str, given: object, example: str, more: str = "") -> str:
    if not isinstance(given, str) or not is_kafka_name(given):
        raise OptionError(
            f"`{argument}` has {_shown(given)}: give names of 1 to 249 letters, digits, `.`, `_` and `-`, such as "
            f"{example!r}{more}."
        )
    return given


def _several(name: str, given: Iterable[object], example: str) -> list[object]:
    """The items of an argument that takes several; raises OptionError for a text, whose items are characters."""
    found = None if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    if not found:
        raise OptionError(f"`{name}` is {_shown(given)}: give a list with at least one item, such as [{example!r}].")
    return found


def _addresses(given: object) -> str:
    # A list of any length: it is no string of Kafka's protocol.
    if not isinstance(given, str) or not given.strip():
        raise OptionError(f"`bootstrap` is {_shown(given)}: give brokers as a text, such as 'broker-1:9092'.")
    return given


def _text(name: str, given: object, example: str) -> str:
    if not isinstance(given, str) or not given.strip() or not _fits(given):
        raise OptionError(
            f"`{name}` is {_shown(given)}: give a text of 1 to {STRING_BYTES_MAX} bytes in UTF-8, such as {example!r}."
        )
    return given


def _fits(text: str) -> bool:
    """Whether it is a text that Kafka's protocol can carry."""
    try:
        return len(text.encode()) <= STRING_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _milliseconds(name: str, given: object, default: int) -> int:
    if given is None:
        return default
    # A bool is an int to Python, and True would pass for 1 ms.
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= INT_MAX:
        raise OptionError(
            f"`{name}` is {_shown(given)}: give a whole number of ms from 1 to {INT_MAX}, such as {default}."
        )
    return given


def _shown(given: object) -> str:
    """As much of an argument as an error should repeat."""
    return printable_words(repr(given))
