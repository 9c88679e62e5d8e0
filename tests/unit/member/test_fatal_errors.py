"""Every error that ends a member, under either protocol: it names the member, the group, the cause and the way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import classic_driver, consumer_driver
from harness.classic_driver import HEARTBEAT_MS

from spark_kgroup.errors import FencedInstanceId, GroupError, GroupRejected
from spark_kgroup.limits import AUTHORIZATION_GRACE_MS
from spark_kgroup.member import classic, consumer, contract
from spark_kgroup.member.consumer_contract import Effect
from spark_kgroup.model import ErrorCode
from spark_kgroup.rights import RIGHTS_MISSING

UNKNOWN = 12_345
CODES = [*(int(code) for code in ErrorCode if code != ErrorCode.NONE), UNKNOWN]

# ------------------------------------------------------------------------- each request of each protocol, refused


def classic_refused(api: str, error: int, instance_id: str | None) -> list[contract.Effect]:
    """A member of the classic protocol gets `error` for its request of this name."""
    driver = classic_driver.Driver(instance_id=instance_id)
    if api == "JoinGroup":
        return driver.into(classic.State.JOINING).answer_join(error=error)
    if api == "SyncGroup":
        return driver.into(classic.State.SYNCING).answer_sync(error=error)
    driver.into(classic.State.STABLE)
    if api == "OffsetCommit":
        return driver.take(contract.MembershipRefused(identity=driver.machine.identity, error=error))
    driver.after(HEARTBEAT_MS)
    return driver.answer_beat(error)


def consumer_refused(state: str, error: int, instance_id: str | None) -> list[Effect]:
    """A member under the consumer protocol gets `error` for the heartbeat that it sends in this state."""
    driver = consumer_driver.Driver(instance_id)
    driver.into(consumer.State(state))
    if driver.state in (consumer.State.STABLE, consumer.State.RECONCILING):
        driver.pass_ms(5_000)
    return driver.answer(error=error, words="The broker's own words.")


Refused = Callable[[str, int, str | None], "list[contract.Effect] | list[Effect]"]
WHERE: list[tuple[Refused, str]] = [
    *((classic_refused, api) for api in ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit")),
    *((consumer_refused, state.value) for state in consumer.State if state.value in ("joining", "releasing", "stable")),
]
IDS = [f"{refused.__name__.partition('_')[0]} {where}" for refused, where in WHERE]


def end_of(refused: Refused, where: str, error: int, instance_id: str | None = "seat-0") -> GroupError | None:
    failed = [effect.error for effect in refused(where, error, instance_id) if isinstance(effect, contract.Failed)]
    assert len(failed) <= 1
    return failed[0] if failed else None


@pytest.mark.parametrize(("refused", "where"), WHERE, ids=IDS)
@pytest.mark.parametrize("error", CODES, ids=ErrorCode.name_of)
def test_an_error_that_ends_a_member_names_its_instance_id_its_group_the_cause_and_a_fix(
    refused: Refused, where: str, error: int
) -> None:
    end = end_of(refused, where, error)
    if end is None:
        assert error in goes_on(where)
        return
    head, _, fix = str(end).partition(": ")
    assert "'g'" in head
    assert "'seat-0'" in head
    assert ErrorCode.name_of(error) in head
    assert WAYS_OUT.intersection(fix.replace(",", "").replace(";", "").replace(":", "").split()), fix


GOES_ON: set[int] = {
    *ErrorCode.retriable_codes(),
    *(ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED),  # it joins
    *(ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION),  # it begins anew
    *(ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.STALE_MEMBER_EPOCH),
    ErrorCode.GROUP_ID_NOT_FOUND,  # of a heartbeat, not of a join
}
"""After these a member goes on, under the one or the other protocol."""


def goes_on(where: str) -> set[int]:
    """The codes that do not end a member: `GOES_ON`, and more in some places.

    A member fenced while it releases a seat looks up the seat's holder again. One that had rights waits for them.
    """
    if where in ("SyncGroup", "Heartbeat", "OffsetCommit", "stable"):
        return GOES_ON | RIGHTS_MISSING
    return GOES_ON | {ErrorCode.FENCED_INSTANCE_ID} if where == "releasing" else GOES_ON


WAYS_OUT = {"set", "grant", "use", "raise", "give", "stop", "report", "look"}
"""An error tells its reader to act: one of its words is one of these."""


@pytest.mark.parametrize(("refused", "where"), WHERE, ids=IDS)
def test_which_errors_end_a_member_is_decided_for_each_of_them(refused: Refused, where: str) -> None:
    ends = {code for code in CODES if end_of(refused, where, code) is not None}
    assert ends >= set(CODES) - goes_on(where)
    assert UNKNOWN in ends


@pytest.mark.parametrize(("refused", "where"), WHERE, ids=IDS)
def test_a_dynamic_member_that_ends_is_called_so_for_it_has_no_instance_id(refused: Refused, where: str) -> None:
    end = end_of(refused, where, ErrorCode.GROUP_MAX_SIZE_REACHED, None)
    assert isinstance(end, GroupRejected)
    assert "Group 'g' rejected a dynamic member (GROUP_MAX_SIZE_REACHED): the group is full: use fewer" in str(end)


# --------------------------------------------------------------------------------------------- rights that are missing


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_member_that_had_the_rights_waits_a_minute_for_them_under_the_classic_protocol(comes_back: bool) -> None:
    """A broker that starts may not have all ACLs yet (KAFKA-10233, redpanda #26281). A login has the same patience."""
    driver = classic_driver.Driver(session_ms=10 * AUTHORIZATION_GRACE_MS).into(classic.State.STABLE)
    driver.after(HEARTBEAT_MS)
    began_ms = driver.now_ms
    while driver.state is classic.State.STABLE and driver.now_ms < began_ms + AUTHORIZATION_GRACE_MS // 2:
        assert classic_driver.none_of(driver.answer_beat(ErrorCode.GROUP_AUTHORIZATION_FAILED), contract.Lost)
        driver.after(HEARTBEAT_MS)
    if comes_back:
        driver.answer_beat()
        driver.after(AUTHORIZATION_GRACE_MS)
    else:
        driver.now_ms = began_ms + AUTHORIZATION_GRACE_MS
    driver.answer_beat(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert driver.state is (classic.State.STABLE if comes_back else classic.State.CLOSED)


def test_a_member_that_had_the_rights_joins_again_until_they_are_back_under_the_classic_protocol() -> None:
    driver = classic_driver.Driver(session_ms=10 * AUTHORIZATION_GRACE_MS).into(classic.State.STABLE)
    began_ms = driver.now_ms
    driver.take(contract.RejoinWanted(reason="test"))
    joins = 0
    while driver.state is not classic.State.CLOSED and joins < 1_000:
        driver.answer_join(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        joins += 1
        due_at_ms = driver.machine.next_wakeup_at_ms()
        if due_at_ms is not None:
            driver.after(due_at_ms - driver.now_ms)
    assert AUTHORIZATION_GRACE_MS <= driver.now_ms - began_ms < AUTHORIZATION_GRACE_MS + 5_000
    assert 30 < joins < 200, "with a backoff"


@pytest.mark.parametrize("error", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_member_that_had_the_rights_waits_a_minute_for_them_under_the_consumer_protocol(error: ErrorCode) -> None:
    driver = consumer_driver.Driver().into(consumer.State.STABLE)
    driver.pass_ms(5_000)
    began_ms = driver.now_ms
    while driver.state is not consumer.State.CLOSED and driver.now_ms < began_ms + 2 * AUTHORIZATION_GRACE_MS:
        driver.answer(error=error)
        due_at_ms = driver.machine.next_wakeup_at_ms()
        if due_at_ms is not None:
            driver.pass_ms(due_at_ms - driver.now_ms)
    assert AUTHORIZATION_GRACE_MS <= driver.now_ms - began_ms < AUTHORIZATION_GRACE_MS + 5_000


# ------------------------------------------------------------------------------------------ the words of each error


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "set `partition.assignment.strategy` to one that all of them support"),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "another type (share, streams, connect: `kgroup describe` says which)"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "set `session.timeout.ms` within"),
        (ErrorCode.INVALID_GROUP_ID, "set `group.id`"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "grant READ on the group"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "use fewer members, or raise group.max.size"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "max.message.bytes of the topic __consumer_offsets: raise that"),
        (ErrorCode.UNSUPPORTED_VERSION, "retrying JoinGroup does not help: look for the reason in the log"),
        (UNKNOWN, "retrying JoinGroup does not help: look for the reason in the log of the group's coordinator"),
    ],
)
def test_a_refusal_under_the_classic_protocol_says_how_to_mend_it(error: int, fix: str) -> None:
    end = end_of(classic_refused, "JoinGroup", error)
    assert isinstance(end, GroupRejected)
    assert fix in str(end)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (ErrorCode.UNSUPPORTED_VERSION, "set `group.protocol` to classic"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, "set `group.remote.assignor` to one of"),
        (ErrorCode.GROUP_ID_NOT_FOUND, "whose assignments it cannot read): stop those"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "use fewer members, or raise group.consumer.max.size"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "grant READ on the group"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "grant READ on the subscribed topics"),
        (ErrorCode.INVALID_REQUEST, "report it with the broker's version"),
        (UNKNOWN, "retrying ConsumerGroupHeartbeat does not help: look for the reason in the log"),
    ],
)
def test_a_refusal_under_the_consumer_protocol_says_how_to_mend_it_and_quotes_the_broker(error: int, fix: str) -> None:
    end = end_of(consumer_refused, "joining", error)
    assert isinstance(end, GroupRejected)
    assert fix in str(end)
    assert str(end).endswith("The broker says: The broker's own words.")


@pytest.mark.parametrize(("refused", "where"), WHERE, ids=IDS)
def test_a_fenced_member_names_its_group_its_seat_and_the_change_to_make(refused: Refused, where: str) -> None:
    end = end_of(refused, where, ErrorCode.FENCED_INSTANCE_ID)
    if end is None:
        assert where == "releasing", "somebody else has taken the seat meanwhile: it looks again"
        return
    assert isinstance(end, FencedInstanceId)
    assert (end.group, end.instance_id) == ("g", "seat-0")
    assert str(end).endswith("and the newest one keeps it: give each process instance ids of its own.")


def test_a_dynamic_member_that_is_fenced_all_the_same_has_no_seat_to_name() -> None:
    end = end_of(classic_refused, "Heartbeat", ErrorCode.FENCED_INSTANCE_ID, None)
    assert isinstance(end, FencedInstanceId)
    assert end.instance_id == ""
    assert "took the place of a dynamic member in group 'g'" in str(end)
