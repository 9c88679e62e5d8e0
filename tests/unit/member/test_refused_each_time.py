"""A coordinator that sends a member away each time is asked ever more seldom, under either protocol."""

from __future__ import annotations

import pytest
from harness import classic_driver, consumer_driver

from spark_kgroup.limits import RETRY_BACKOFF_MAX_MS
from spark_kgroup.member import classic, consumer, contract
from spark_kgroup.model import ErrorCode

FOR_MS = 30_000
JOINS_MAX = FOR_MS / (0.8 * RETRY_BACKOFF_MAX_MS) + 8
"""One for each longest wait, and those of the first second or two."""


def pass_on(driver: classic_driver.Driver) -> None:
    """To the next timer, or at once over a new connection if the member wants one."""
    due_at_ms = driver.machine.next_wakeup_at_ms()
    if due_at_ms is not None:
        driver.after(max(0, due_at_ms - driver.now_ms))


def answer(driver: classic_driver.Driver, where: str, error: int) -> None:
    """The coordinator's answer to the last request: `error` to the request named so, and success to all other ones."""
    last = driver.last_sent()
    name = type(last).__name__.removesuffix("Request")
    code = error if name == where else ErrorCode.NONE
    match last:
        case contract.JoinRequest():
            driver.answer_join(error=code, generation=len(driver.sent))
        case contract.SyncRequest():
            driver.answer_sync(0, error=code)
        case contract.HeartbeatRequest():
            driver.answer_beat(code)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("Join", ErrorCode.UNKNOWN_MEMBER_ID),
        ("Join", ErrorCode.MEMBER_ID_REQUIRED),
        ("Sync", ErrorCode.REBALANCE_IN_PROGRESS),
        ("Sync", ErrorCode.UNKNOWN_MEMBER_ID),
        ("Sync", ErrorCode.ILLEGAL_GENERATION),
        ("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID),
        ("Heartbeat", ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_member_that_is_sent_away_each_time_joins_ever_more_seldom(where: str, error: ErrorCode) -> None:
    """KAFKA-13891, KAFKA-10233: 80 to 900 joins a second."""
    driver = classic_driver.Driver(instance_id=None)
    driver.take(contract.Join())
    driver.take(contract.Connected())
    end_ms = driver.now_ms + FOR_MS
    while driver.now_ms < end_ms and len(driver.sent) < 1_000:
        sent = len(driver.sent)
        answer(driver, where, error)
        if len(driver.sent) == sent:
            pass_on(driver)
    joins = sum(isinstance(request, contract.JoinRequest) for request in driver.sent)
    assert FOR_MS / (1.2 * RETRY_BACKOFF_MAX_MS) - 8 <= joins <= JOINS_MAX


def test_a_member_that_was_confirmed_in_between_joins_at_once() -> None:
    driver = classic_driver.Driver().into(classic.State.STABLE)
    for _ in range(10):
        sent = len(driver.sent)
        driver.after(classic_driver.HEARTBEAT_MS)
        driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
        assert isinstance(driver.last_sent(), contract.JoinRequest)
        assert len(driver.sent) == sent + 2
        driver.answer_join(generation=sent)
        driver.answer_sync(0)
        driver.answer_beat()


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND])
def test_a_member_that_is_sent_away_each_time_joins_ever_more_seldom_under_the_consumer_protocol(
    error: ErrorCode,
) -> None:
    driver = consumer_driver.Driver()
    driver.take(contract.Join())
    end_ms, joins = driver.now_ms + FOR_MS, 0
    while driver.now_ms < end_ms and joins < 1_000:
        asked = driver.awaited
        joining = asked.identity.generation == 0
        joins += joining
        if joining:
            driver.answer(assignment=consumer_driver.by_id(0))
            driver.resolve()
        else:
            driver.answer(error=error)
        if driver.awaited is asked:
            due_at_ms = driver.machine.next_wakeup_at_ms()
            assert due_at_ms is not None
            driver.pass_ms(due_at_ms - driver.now_ms)
    assert driver.state is not consumer.State.CLOSED
    assert joins <= JOINS_MAX
