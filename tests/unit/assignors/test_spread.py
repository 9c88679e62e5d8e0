"""The steps that lead to a fair spread, one by one: each leaves as little as it can to the next, which costs more.

`settle` makes the outcome best after any result of the steps before it (`test_cooperative_sticky_properties`).
"""

from __future__ import annotations

import pytest

from spark_kgroup.assignors import _balance
from spark_kgroup.assignors._balance import _Spread

Counts = list[dict[int, int]]
"""For each member, topic -> how many."""


def spread_of(partitions: list[int], wanted_by: list[list[int]], claimed: Counts) -> _Spread:
    """A spread of topics with these partition counts, each topic a kind of its own, with these wishes and claims."""
    return _Spread(partitions, list(range(len(partitions))), wanted_by, claimed)


def alike(partitions: list[int], claimed: Counts) -> _Spread:
    """A spread of topics with these partition counts, which all members want."""
    return _Spread(partitions, [0] * len(partitions), [list(range(len(claimed)))], claimed)


# --------------------------------------------------------------------------------------------- handing out


def test_free_partitions_of_the_topic_that_fewest_members_want_are_handed_out_first() -> None:
    spread = spread_of([2, 2], wanted_by=[[0, 1], [0]], claimed=[{}, {}])
    spread.hand_out()
    assert spread.given == [{1: 2}, {0: 2}]


def test_free_partitions_go_to_the_least_loaded_of_those_that_want_them() -> None:
    spread = alike([9], claimed=[{0: 3}, {0: 1}, {}])
    spread.hand_out()
    assert spread.load == [3, 3, 3]


# ------------------------------------------------------------------------------------------------ levelling


def test_levelling_ends_when_no_member_has_two_more_than_another_that_wants_the_same() -> None:
    for surplus in range(2, 9):
        spread = alike([surplus], claimed=[{0: surplus}, {}])
        spread.level()
        assert max(spread.load) - min(spread.load) <= 1


def test_members_that_share_no_topic_with_the_most_loaded_are_levelled_all_the_same() -> None:
    spread = spread_of([16, 3], wanted_by=[[0, 1], [2, 3]], claimed=[{0: 12}, {0: 4}, {1: 3}, {}])
    spread.level()
    assert spread.load == [8, 8, 2, 1]


def test_a_spread_in_which_no_member_has_two_more_than_another_is_not_looked_through() -> None:
    spread = alike([5], claimed=[{0: 3}, {0: 2}])
    spread.level()
    assert (spread.given, spread.steps) == ([{0: 3}, {0: 2}], 0)


def test_a_member_hands_on_first_the_partitions_that_were_handed_out_to_it() -> None:
    """1. Free partitions of topic 1 go to member 1. 2. Member 0 shares topic 3 with it. 3. Now it has too much."""
    claimed: Counts = [{3: 13}, {0: 3}, {2: 5}]
    spread = _Spread([3, 2, 5, 13], kinds=[0, 0, 0, 1], subscribers=[[1, 2], [0, 1]], claimed=claimed)
    spread.hand_out()
    assert spread.given[1] == {0: 3, 1: 2}
    spread.level()
    assert spread.given == [{3: 9}, {0: 3, 3: 4}, {1: 2, 2: 5}]


def test_a_member_hands_on_most_of_the_topic_of_which_it_has_most() -> None:
    spread = alike([2, 5], claimed=[{0: 2, 1: 5}, {}])
    spread.level()
    assert spread.given == [{0: 2, 1: 2}, {1: 3}]


# ------------------------------------------------------------------------------- the steps that are counted


def test_who_has_least_is_looked_up_once_a_partition_and_once_more_for_each_load_that_grew() -> None:
    spread = alike([3], claimed=[{}, {}])
    assert spread.steps == 0
    spread.hand_out()
    assert spread.steps == 3 + 2, "after the first and after the second, the one that had least has more"


def test_a_member_that_can_hand_no_partition_on_looks_at_each_of_its_topics_once() -> None:
    claimed: Counts = [dict.fromkeys(range(5), 1), {}]
    spread = _Spread([1] * 5 + [0], kinds=[0] * 5 + [1], subscribers=[[0], [1]], claimed=claimed)
    spread.level()
    assert spread.steps == 5 + 2, "who has least is looked up for the list, and before something is handed on"


def test_a_spread_that_cannot_be_better_is_settled_after_one_look_at_each_arc() -> None:
    spread = alike([4, 2], claimed=[{0: 2}, {0: 2}, {1: 1}])
    spread.hand_out()
    before = spread.steps
    spread.cancel_negative_cycles()
    sinks, given, claims, topics, subscribers = 2 * 3, 3, 3, 2, 3
    assert spread.steps - before == sinks + given + claims + topics + subscribers
    assert spread.load == [2, 2, 2]


def test_no_search_begins_when_its_steps_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = alike([5], claimed=[{0: 5}, {}])
    monkeypatch.setattr(_balance, "ASSIGNOR_STEPS_MAX", 0)
    spread.level()
    spread.cancel_negative_cycles()
    assert (spread.given, spread.steps) == ([{0: 5}, {}], 0)
