"""Patterns of topics beside java.util.regex, which decides the meaning of `subscribePattern`, on random patterns."""

import subprocess
from collections import Counter
from pathlib import Path
from random import Random

from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import kafka_jars
from spark_kgroup.topic_pattern import PatternError, TopicPattern

SEED, PATTERNS, NAMES = 1, 3_000, 200
PROGRAM = Path(__file__).with_name("JavaPatterns.java")
PIECES = (
    *"aAbBzZ019._-",
    *(".", r"\.", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\x61", r"\u0062", r"\0101", r"\x{2d}", r"\-", "^", "$"),
    *(r"\A", r"\z", r"\Z", r"\b", r"\B", r"\h", r"\V", r"\Qa.\E", r"\Q-b\E", r"\E", "}", "]", "{", r"\1", r"\R", "&"),
    *(r"\p{Alpha}", r"\p{L}", r"\p{Lu}", r"\P{Lower}", r"\p{Punct}", r"\p{IsAlphabetic}", r"\p{javaLowerCase}", r"\pN"),
    *(r"\p{Alnum}", r"\p{IsPunctuation}", r"\p{XDigit}", r"\p{Pd}", r"\p{Pc}", r"\p{Upper}", r"\p{IsLatin}", r"\P{P}"),
    *("(?i)", "(?-i)", "(?s)", "(?im-s)", "(?x)"),
)
CLASS_PIECES = (
    *"aAbBz01._-^&",
    *(
        "a-c",
        "A-Z",
        "0-9",
        "--0",
        r"\d",
        r"\W",
        r"\p{Lower}",
        r"\p{IsPunctuation}",
        r"\P{L}",
        r"\.",
        r"\-",
        r"\x61-\x63",
    ),
)
GROUPS = ("(", "(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!", "(?<n>", "(?<n2>", "(?i:", "(?-i:")
QUANTIFIERS = ("?", "*", "+", "{2}", "{1,}", "{0,3}", "{2,1}")


def a_class(rng: Random, depth: int) -> str:
    def part() -> str:
        return a_class(rng, depth + 1) if depth < 2 and rng.random() < 0.2 else rng.choice(CLASS_PIECES)

    operands = ["".join(part() for _ in range(rng.randint(1, 3))) for _ in range(1 + (rng.random() < 0.3))]
    return f"[{rng.choice(('', '', '^'))}{'&&'.join(operands)}]"


def a_pattern(rng: Random, depth: int = 0) -> str:
    found = ""
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if kind < 0.2 and depth < 3:
            found += f"{rng.choice(GROUPS)}{a_pattern(rng, depth + 1)})"
        elif kind < 0.4:
            found += a_class(rng, 0)
        else:
            found += rng.choice(PIECES)
        if rng.random() < 0.35:
            found += rng.choice(QUANTIFIERS) + rng.choice(("", "", "?", "+"))
        if rng.random() < 0.1:
            found += "|"
    return found


def answers(names: list[str], patterns: list[str], *how: str) -> list[str]:
    """Java's line for each pattern: 0 or 1 for each of `names`, or ! and why it is refused."""
    re2j = next(jar for jar in kafka_jars() if jar.name.startswith("re2j-"))
    command: list[str | Path] = [find_java().executable, "-XX:TieredStopAtLevel=1", "-cp", re2j, PROGRAM, *how]
    asked = "\n".join([",".join(names), *patterns]) + "\n"
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def random_patterns_and_names() -> tuple[list[str], list[str]]:
    rng = Random(SEED)
    patterns = [a_pattern(rng) for _ in range(PATTERNS)]
    return patterns, ["".join(rng.choices("aAbBzZ01._-", k=rng.randint(1, 6))) for _ in range(NAMES)]


def matched(pattern: TopicPattern, names: list[str]) -> str:
    return "".join("01"[pattern.matches(name)] for name in names)


def first_difference(names: list[str], ours: str, theirs: str) -> str:
    return next(n for n, a, b in zip(names, ours, theirs, strict=True) if a != b)


def test_a_random_pattern_matches_the_names_that_it_matches_in_java_or_is_refused() -> None:
    patterns, names = random_patterns_and_names()
    counts, wrong = Counter[str](), []
    for pattern, java in zip(patterns, answers(names, patterns), strict=True):
        try:
            taken = TopicPattern(pattern)
        except PatternError:
            counts["refused, as Java does" if java.startswith("!") else "refused"] += 1
            continue
        if java.startswith("!"):
            counts["taken, and not by Java"] += 1  # a look behind too long for Java: it matches no other topics there
            continue
        ours = matched(taken, names)
        counts["taken, and matches some" if "1" in ours else "taken"] += 1
        if ours != java:
            wrong.append((pattern, first_difference(names, ours, java)))
    print(dict(counts))
    assert wrong == []
    assert counts["taken, and matches some"] > PATTERNS / 5
    assert counts["taken, and not by Java"] < PATTERNS / 1_000


def test_a_random_pattern_as_brokers_get_it_matches_the_same_names_with_re2j() -> None:
    patterns, names = random_patterns_and_names()
    taken = [pattern for text in patterns if (pattern := _taken(text)) is not None and pattern.re2 is not None]
    for_brokers = [pattern.re2 or "" for pattern in taken]
    wrong = []
    for pattern, theirs in zip(taken, answers(names, for_brokers, "re2j"), strict=True):
        ours = matched(pattern, names)
        if ours != theirs:
            what = theirs if theirs.startswith("!") else first_difference(names, ours, theirs)
            wrong.append((pattern.java, pattern.re2, what))
    assert wrong == []
    assert len(taken) > PATTERNS / 10


def _taken(text: str) -> TopicPattern | None:
    try:
        return TopicPattern(text)
    except PatternError:
        return None
