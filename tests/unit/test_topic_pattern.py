"""The syntax taken over from java.util.regex. The differential program has the real one beside it."""

import time
from itertools import count

import pytest

from spark_kgroup.limits import PATTERN_MATCH_S_MAX
from spark_kgroup.topic_pattern import PatternError, PatternTooSlow, TopicPattern


@pytest.mark.parametrize(
    ("java", "matched", "unmatched"),
    [
        ("orders", "orders", "orders-eu my-orders"),
        ("orders.*", "orders orders-eu orders.", "my-orders Orders"),
        (r"a|b.c|\Qa.c\E", "a b.c b-c a.c", "a-c b"),
        ("[a-z&&[^b-d]]+", "aef z", "abc A"),
        ("[^a-c&&b-e]", "a d Z _", "b c"),
        (r"\p{Alpha}+\p{Punct}\P{L}", "a-1 Zz.0", "1-1 a-a"),
        ("(?<region>eu|us)-(?i)Orders", "eu-orders us-ORDERS", "EU-orders"),
        ("(?!__)(?i:a)?+.*", "a_ A topic", "__consumer_offsets"),
        ("a*+b", "aaab b", "aaa"),
        ("a++a", "", "aaa"),
        (r"(?>a|ab)c", "ac", "abc"),
        (r"\x61\u0062\0143", "abc", "abd"),
        (r"(?i)\x61", "a A", "b"),
    ],
)
def test_a_pattern_matches_whole_names_as_in_java(java: str, matched: str, unmatched: str) -> None:
    names = [*matched.split(), *unmatched.split()]
    assert TopicPattern(java).select(names, time.thread_time) == tuple(sorted(matched.split()))


@pytest.mark.parametrize(
    ("java", "fix"),
    [
        ("(a", "add )"),
        ("a)", "escape it as \\)"),
        ("*", "escape it as \\*"),
        ("a**", "put the part before it in (?:...)"),
        ("a{", "escape the brace"),
        ("[a", "add ]"),
        ("[z-a]", "put the lower character first"),
        (r"(a)\1", "write out the text that it repeats"),
        ("(?x)a", "Write it without the other flags"),
        (r"\p{IsGreek}", "write the characters"),
        (r"(?i)\p{Lower}", "write [a-z]"),
        ("(?<=a*)b", "write {0,249}"),
        ("(?<n>a)(?<n>b)", "rename one"),
        ("é", "leave other characters out"),
        ("(" * 60 + ")" * 60, "50 deep"),
        ("a" * 70_000, "65536 are the most"),
        ("[a&&[b]c]", "put them all in one class"),
    ],
)
def test_a_pattern_that_java_may_read_otherwise_is_refused_with_the_way_out(java: str, fix: str) -> None:
    with pytest.raises(PatternError) as refused:
        TopicPattern(java)
    assert fix in str(refused.value)


def test_a_name_that_no_topic_may_have_is_matched_by_no_pattern() -> None:
    names = ["t-\x1b[31m", "t-\r", "t-\n", "t-é", "t- ", "t-ok"]
    assert TopicPattern(r"t-.*|[^a]+").select(names, time.thread_time) == ("t-ok",)


def test_a_pattern_that_would_try_for_years_stops_and_names_the_topic() -> None:
    with pytest.raises(PatternTooSlow, match="possessive"):
        TopicPattern("(a|aa|a.)*(a+)+(a*a*)*_").matches("a" * 200 + "-")


def test_800_topics_of_10_000_are_selected_at_once() -> None:
    names = [f"{'orders' if n % 25 < 2 else 'clicks'}-{n}" for n in range(10_000)]
    assert len(TopicPattern(r"(?!__)orders-\d++").select(names, time.thread_time)) == 800


def test_names_that_are_slow_only_together_stop_as_well() -> None:
    """Each takes a quarter of the bound for one. All 10,000 in a cluster would take 20 minutes."""
    names = [f"{'a' * 34}-{n}" for n in range(10_000)]
    looked_at = count()

    def cpu_clock_s() -> float:
        return next(looked_at) * PATTERN_MATCH_S_MAX / 4

    with pytest.raises(PatternTooSlow, match=r"10 s for 10000 topics: .*possessive"):
        TopicPattern("a+b").select(names, cpu_clock_s)
    assert next(looked_at) < 100
