"""Arguments of `Group.connect` and `GroupSettings` that cannot be meant are refused with a sentence."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from harness.fake_broker import on_a_loop

from spark_kgroup import Group, GroupSettings, ProtocolSettings
from spark_kgroup.errors import OptionError
from spark_kgroup.wire.address import parse_bootstrap

GIVEN: Mapping[str, Any] = {"bootstrap": "b:9092", "group": "g", "topics": ["t"], "instance_ids": ["a"]}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bootstrap": "b"}, "`bootstrap.servers`: 'b' is not HOST:PORT."),
        ({"bootstrap": ["b:9092"]}, "`bootstrap` has ['b:9092']: give a text that is not empty."),
        ({"group": ""}, "`group` has '': give a text that is not empty."),
        ({"topics": "t"}, "`topics` is 't': give a list, such as ['orders']."),
        ({"topics": []}, "`topics` is empty: give at least one, such as ['orders']."),
        ({"topics": [7]}, "`topics` has 7: give a text that is not empty."),
        ({"instance_ids": 2}, "`instance_ids` is 2: give a list, such as ['worker-0']."),
        ({"instance_ids": ["a", "a"]}, "`instance_ids` names a seat twice: ['a', 'a']."),
        ({"assignors": ["stickiest"]}, "stickiest"),
        ({"assignors": "range"}, "`assignors` is 'range': give a list, such as ['range']."),
        ({"group_protocol": "Consumer"}, "`group_protocol` is 'Consumer': give 'classic' or 'consumer'."),
        ({"server_assignor": "uniform"}, "`server_assignor` is 'uniform', but under group_protocol='classic'"),
        ({"group_protocol": "consumer", "server_assignor": ""}, "`server_assignor` has '': give a text that is not"),
        (
            {"group_protocol": "consumer", "assignors": ["range"]},
            "`assignors` is ['range'], but under group_protocol='consumer' the brokers assign: give `server_assignor`",
        ),
        (
            {"group_protocol": "consumer", "session_timeout_ms": 45_000},
            "`session_timeout_ms` is 45000, but under group_protocol='consumer' the brokers decide: set the group's "
            "consumer.session.timeout.ms there.",
        ),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_before_a_seat_joins(wrong: Mapping[str, Any], sentence: str) -> None:
    @on_a_loop
    async def scenario() -> None:
        with pytest.raises(OptionError, match=re.escape(sentence)):
            async with Group.connect(**{**GIVEN, **wrong}):
                pass

    scenario()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bootstrap": "b:9092"}, "`bootstrap` is 'b:9092': give addresses, as `parse_bootstrap` returns them"),
        ({"bootstrap": ("b:9092",)}, "`bootstrap` is ('b:9092',): give addresses"),
        ({"topics": "t"}, "`topics` is 't': give a tuple, such as ('t',)."),
        ({"instance_ids": "a"}, "`instance_ids` is 'a': give a tuple"),
    ],
    ids=str,
)
def test_settings_of_a_wrong_type_are_refused(wrong: Mapping[str, Any], sentence: str) -> None:
    right = {**GIVEN, "bootstrap": parse_bootstrap("b:9092"), "topics": ("t",), "instance_ids": ("a",)}
    GroupSettings(**right)
    with pytest.raises(OptionError, match=re.escape(sentence)):
        GroupSettings(**{**right, **wrong})


def test_a_text_for_the_assignors_is_refused() -> None:
    with pytest.raises(OptionError, match=re.escape("`assignors` is 'range': give a tuple, such as ('range',).")):
        ProtocolSettings(assignors="range")  # type: ignore[arg-type]
