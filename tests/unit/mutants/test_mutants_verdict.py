"""The verdict of `make mutants` on a run: figures and intervals."""

import pytest
from mutants.rooms import read_settings
from mutants.verdict import Mutant, Verdict, difference, is_wording, table, verdict_on

LESS = Mutant("a.x_f__mutmut_1", "a.f", ("- if x < 1:", "+ if x <= 1:"))
NONE = Mutant("a.x_f__mutmut_2", "a.f", ("- y = x", "+ y = None"))
LOOP = Mutant("a.x_g__mutmut_1", "a.g", ("- break", "+ return"))
UNTESTED = Mutant("a.x_h__mutmut_1", "a.h", ("- return 1", "+ return 2"))
ALL = [LESS, NONE, LOOP, UNTESTED]
OUTCOMES = {LESS.name: "survived", NONE.name: "killed", LOOP.name: "timeout", UNTESTED.name: "no tests"}


def test_a_mutant_that_no_test_calls_has_survived() -> None:
    verdict = verdict_on("room", ALL, OUTCOMES)
    assert (verdict.killed, verdict.timeouts, verdict.survivors) == (1, 1, (LESS, UNTESTED))
    assert verdict.killed_percent == 50


def test_a_room_without_a_tried_mutant_has_not_passed() -> None:
    assert verdict_on("room", ALL, {}).killed_percent == 0


def test_a_run_whose_tests_could_not_be_run_is_no_verdict() -> None:
    with pytest.raises(ValueError, match="suspicious"):
        verdict_on("room", ALL, {LESS.name: "suspicious"})


def test_the_interval_of_a_sample_is_wilson_s() -> None:
    """81 of 100: 72.2 to 87.5 % (Brown, Cai and DasGupta 2001, equation 4)."""
    verdict = Verdict("room", mutants=1000, tried=100, killed=80, timeouts=1, survivors=())
    assert verdict.interval_percent == pytest.approx((72.2, 87.5), abs=0.05)


def test_all_mutants_need_no_interval() -> None:
    assert verdict_on("room", ALL, OUTCOMES).interval_percent == (50, 50)
    assert "95 %" not in table([verdict_on("room", ALL, OUTCOMES)])
    assert "95 %" in table([verdict_on("room", ALL, {LESS.name: "survived"})])


def test_a_sentence_is_wording_and_a_name_is_not() -> None:
    before = "def f(x):\n    raise ValueError('too large', x, 'name')\n"
    assert is_wording(before, before.replace("too large", "XXtoo largeXX"))
    assert not is_wording(before, before.replace("'name'", "'NAME'"))
    assert not is_wording(before, before.replace(", x,", ", None,"))


def test_a_difference_is_the_lines_that_changed() -> None:
    before = "def f(x):\n    y = x\n    y = x\n    return y\n"
    assert difference(before, before.replace("return y", "return None")) == ("- return y", "+ return None")
    assert difference(before, "def f(x):\n    y = x\n    return y\n") == ("- y = x",)


def test_the_rooms_that_are_configured_are_there() -> None:
    settings = read_settings()
    assert [room.name for room in settings.rooms] == ["seats", "offsets", "assignors", "member", "boundary"]
    assert settings.killed_percent_min >= 90
