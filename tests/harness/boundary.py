"""Shared by tests of a boundary's steps: two partitions, a seat that does not come to rest, logged messages, time."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.fake_driver import Driver
from harness.fake_group import FakeGroup
from spark_kgroup.model import TopicPartition

P0, P1 = (TopicPartition("t", index) for index in range(2))

World = Callable[..., tuple[FakeGroup, Driver]]
"""The type of the fixture `world`."""


def elapsed_ms(group: FakeGroup, call: Callable[[], object]) -> int:
    before = group.now_ms
    call()
    return group.now_ms - before


def messages(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [message for message in caplog.messages if part in message]


def unsettle(group: FakeGroup, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """This seat is in the midst of a rebalance that does not end."""
    seat = group.seats[name]
    view_of = type(seat).view
    monkeypatch.setattr(
        type(seat), "view", lambda self: replace(view_of(self), settled=self is not seat and view_of(self).settled)
    )
