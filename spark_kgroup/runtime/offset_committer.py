"""Commits of several seats: over the shared connections, since a seat's own may have a join parked on it.

A commit is cut into parts that a coordinator takes at once, tried again while a refusal may pass, and given up after a
bound: the application commits again after its next piece of work. The texts beside the offsets give way if they are too
long for the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Set
from random import Random
from types import MappingProxyType
from typing import Final

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import BrokerError, WireError
from spark_kgroup.limits import COMMIT_PARTITIONS_MAX, COMMIT_TIMEOUT_MS
from spark_kgroup.member import contract
from spark_kgroup.model import ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.peer_words import listed
from spark_kgroup.rights import RIGHTS_MISSING, Rights
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.groups import Coordinators

log = logging.getLogger(__name__)

Texts = Callable[[str], tuple[str, str]]
"""Topic -> the text written beside one of its partitions, and the text beside the rest."""

_NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})

# After OFFSET_METADATA_TOO_LARGE the next attempt has shorter texts.
_AGAIN = ErrorCode.retriable_codes() | {ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.STALE_MEMBER_EPOCH}
_MEMBERSHIP_OVER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
_ASK_WHETHER_MEMBER = _MEMBERSHIP_OVER | {ErrorCode.STALE_MEMBER_EPOCH}
"""STALE_MEMBER_EPOCH: our epoch has moved, and a heartbeat brings the new one."""
_TOO_LARGE = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_COMMIT_OFFSET_SIZE})
"""A coordinator's answers for MESSAGE_TOO_LARGE and RECORD_LIST_TOO_LARGE: 4.x gives the first, older ones the
second."""


class OffsetCommitter:
    """Commits under the identities of our seats.

    Args:
        post: gives an event to the session of an instance id: a commit may be the first to hear that a membership is
            over.
        newest: gives a member's identity in its newest epoch, which moves under the consumer protocol, if the member
            has held the partitions all the while.

    """

    def __init__(
        self,
        settings: GroupSettings,
        coordinators: Coordinators,
        rng: Random,
        post: Callable[[str | None, contract.Event], None],
        newest: Callable[[MemberIdentity, Iterable[TopicPartition]], MemberIdentity] = lambda who, _: who,
    ) -> None:
        self._settings = settings
        self._coordinators = coordinators
        self._rng = rng
        self._post = post
        self._newest = newest
        self._refusals: dict[str | None, str] = {}
        self._topic_rights = Rights()
        self._group_rights = Rights(granted=True)  # the member that commits has joined with it

    @property
    def refusal(self) -> str:
        """Why the last commit of each seat was not acknowledged, empty if all were."""
        return ", ".join(sorted(set(self._refusals.values())))

    async def commit(
        self, who: MemberIdentity, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] = _NO_IDS
    ) -> frozenset[TopicPartition]:
        """Commit `positions`, which are of the topics with these ids, under the identity that was checked to own them.

        Returns:
            The partitions whose commit the coordinator acknowledged. The rest were not, or we cannot know: `refusal`
            says why.

        Raises:
            BrokerError: the right to commit for the group has been missing for a minute; or that for a topic, which may
                never have been there.
        """
        deadline_ms = monotonic_ms() + COMMIT_TIMEOUT_MS
        self._refusals.pop(who.instance_id, None)
        backoff = Backoff(self._rng)
        acknowledged: set[TopicPartition] = set()
        left = dict(positions)
        # A broker's offset.metadata.max.bytes may be below the default, and offsets matter more than the texts beside
        # them.
        texts: list[Texts] = [
            lambda topic: (self._note(who, topic_ids, topic), self._mark(who, topic_ids, topic)),
            lambda topic: (self._mark(who, topic_ids, topic), self._mark(who, topic_ids, topic)),
            lambda _: ("", ""),
        ]
        while left:
            errors, deadline_ms = await self._commit_parts(who, left, texts[0], deadline_ms)
            acknowledged |= {tp for tp, error in errors.items() if error == ErrorCode.NONE}
            if ErrorCode.OFFSET_METADATA_TOO_LARGE in errors.values() and len(texts) > 1:
                texts.pop(0)
            # Parts that were not sent before the deadline have no error here, and are not tried again.
            left = {tp: left[tp] for tp, error in errors.items() if error in _AGAIN}
            wait_ms = backoff.next_ms()
            if monotonic_ms() + wait_ms > deadline_ms:
                break
            if left:
                await asyncio.sleep(wait_ms / 1000)
        if acknowledged == positions.keys():
            self._refusals.pop(who.instance_id, None)
        return frozenset(acknowledged)

    def _note(self, who: MemberIdentity, topic_ids: Mapping[str, str], topic: str) -> str:
        return self._settings.hooks.commit_metadata(who, topic_ids.get(topic, ""))

    def _mark(self, who: MemberIdentity, topic_ids: Mapping[str, str], topic: str) -> str:
        return self._settings.hooks.commit_mark(who, topic_ids.get(topic, ""))

    async def _commit_parts(
        self, who: MemberIdentity, positions: Mapping[TopicPartition, int], texts: Texts, deadline_ms: int
    ) -> tuple[dict[TopicPartition, int], int]:
        """Commit each part of `positions` once. Returns errors and the deadline, which acknowledged parts put off."""
        errors: dict[TopicPartition, int] = {}
        # Sorted, so that a topic is in as few parts as possible: each part has one long text for each of its topics.
        tps = sorted(positions)
        for at in range(0, len(tps), COMMIT_PARTITIONS_MAX):
            if monotonic_ms() >= deadline_ms:
                break
            part = {tp: positions[tp] for tp in tps[at : at + COMMIT_PARTITIONS_MAX]}
            answered = await self._commit_part(who, part, texts, deadline_ms)
            if ErrorCode.NONE in answered.values():
                deadline_ms = monotonic_ms() + COMMIT_TIMEOUT_MS
            errors |= answered
        return errors, deadline_ms

    async def _commit_part(
        self, who: MemberIdentity, positions: Mapping[TopicPartition, int], texts: Texts, deadline_ms: int
    ) -> dict[TopicPartition, int]:
        """One commit, in halves if the refusal of the whole says that it may be too large."""
        errors = await self._commit_once(who, positions, texts, timeout_ms=max(1, deadline_ms - monotonic_ms()))
        # A topic that was just deleted has an error of its own, regardless of the rest.
        large = [(tp, positions[tp]) for tp, error in errors.items() if error in _TOO_LARGE]
        # The coordinator appends a commit as a whole: if it took some of the offsets, the size was not the problem.
        if len(large) < 2 or ErrorCode.NONE in errors.values():
            return errors
        middle = len(large) // 2
        first = await self._commit_part(who, dict(large[:middle]), texts, deadline_ms)
        if ErrorCode.NONE not in first.values():
            return errors  # it was not the size
        return errors | first | await self._commit_part(who, dict(large[middle:]), texts, deadline_ms)

    async def _commit_once(
        self, who: MemberIdentity, positions: Mapping[TopicPartition, int], texts: Texts, *, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        consumer_protocol = self._settings.protocol.is_consumer
        # A classic member's identity stays as it was checked: the coordinator checks the member, not the partition's
        # owner, so a newer generation would let a lost partition be committed.
        newest = self._newest(who, positions) if consumer_protocol else who
        request = messages.offset_commit(
            self._settings.group, newest, positions, texts=texts, consumer_protocol=consumer_protocol
        )
        try:
            response = await self._coordinators.call(self._settings.group, request, timeout_ms=timeout_ms)
        except WireError as error:
            log.info("seat %s: commit not acknowledged: %s", who.instance_id, error)
            # The last attempt may have had a moment left: a broker's word in an earlier one says more than its silence.
            self._refusals.setdefault(who.instance_id, str(error))
            # No broker sent these two codes: one is among those to try again, the other is final.
            return dict.fromkeys(
                positions, ErrorCode.NETWORK_EXCEPTION if error.retriable else ErrorCode.INVALID_REQUEST
            )
        assert isinstance(response, schema.OffsetCommitResponse)
        errors = messages.offset_commit_errors(response)
        codes = set(errors.values())
        # While a right is missing for some topics, acknowledged offsets of other topics must not end its minute.
        if ErrorCode.NONE in codes and not codes & RIGHTS_MISSING:
            self._topic_rights.on_granted()
            self._group_rights.on_granted()
        for code in sorted(codes):
            self._note_error(who, code, {tp.topic for tp, each in errors.items() if each == code})
        return errors

    def _note_error(self, who: MemberIdentity, code: int, topics: Set[str]) -> None:
        if code in _ASK_WHETHER_MEMBER:
            self._post(who.instance_id, contract.MembershipRefused(identity=who, error=code))
        elif code in RIGHTS_MISSING and not self._rights_for(code).may_come_back(monotonic_ms()):
            of_group = code == ErrorCode.GROUP_AUTHORIZATION_FAILED
            refused = f"group {self._settings.group!r}" if of_group else f"topic {listed(sorted(topics), repr)}"
            raise BrokerError("OffsetCommit", code, refused)
        if code != ErrorCode.NONE:
            log.info("seat %s: commit refused with %s", who.instance_id, ErrorCode.name_of(code))
            self._refusals[who.instance_id] = ErrorCode.name_of(code)

    def _rights_for(self, code: int) -> Rights:
        return self._group_rights if code == ErrorCode.GROUP_AUTHORIZATION_FAILED else self._topic_rights
