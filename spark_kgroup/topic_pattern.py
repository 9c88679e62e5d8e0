r"""Patterns of topics, as java.util.regex reads them and Java's consumer uses them: they match whole names.

Topics' names have 65 ASCII characters (Topic.validate), so each class of characters, with its properties, unions and
intersections, is a set of these characters: it is worked out here, by Java's rules. The rest (sequences,
alternatives, groups, quantifiers, anchors, looks ahead and behind) Java and `regex` read alike. `regex` also stops in
time, where a pattern would be tried for hours. Syntax that they may read differently, or that one Java reads other than
the next, is refused with its reason: a pattern must not choose other topics here than with Java.

- taken as they are: alternatives, groups, `(?=` `(?!` `(?<=` `(?<!` `(?>`, all quantifiers, greedy, lazy and possessive
- translated: classes, `\p{...}` of ASCII, `\d \w \s \h \v`, `\Q...\E`, `(?<name>`, `(?i)`, `\x41 \u0041 \0101`,
  `^ $ \A \z \Z`
- refused: back references, `\G \R \X \N`, comments `(?x)`, characters beyond ASCII, quantifiers without a bound in a
  look behind, a quantifier after another or after an anchor

RE2/J, with which brokers match (KIP-848), reads the translated pattern, too, but for looks ahead and behind, `(?>` and
possessive quantifiers.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from spark_kgroup.errors import OptionError
from spark_kgroup.limits import (
    PATTERN_CHARS_MAX,
    PATTERN_DEPTH_MAX,
    PATTERN_MATCH_S_MAX,
    PATTERN_REPEATS_MAX,
    PATTERN_SELECT_S_MAX,
)

_ALL: Final = frozenset(map(chr, range(128)))
_LEGAL: Final = frozenset(string.ascii_letters + string.digits + "._-")
_ALPHA, _DIGIT = frozenset(string.ascii_letters), frozenset(string.digits)
_LOWER, _UPPER = frozenset(string.ascii_lowercase), frozenset(string.ascii_uppercase)
_PUNCT, _SPACE = frozenset(string.punctuation), frozenset(" \t\n\r\f\v")
_CNTRL: Final = frozenset(map(chr, (*range(32), 127)))
_WORD: Final = _ALPHA | _DIGIT | {"_"}

_PREDEFINED: Final = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "h": frozenset(" \t"),
    "v": frozenset("\n\v\f\r"),
}
_CASED: Final = {
    name: chars
    for chars, names in (
        (_LOWER, "Lower Ll IsLl IsLowercase javaLowerCase"),
        (_UPPER, "Upper Lu IsLu IsUppercase javaUpperCase"),
    )
    for name in names.split()
}
_PROPERTIES: Final = _CASED | {
    name: chars
    for chars, names in (
        (_ALPHA, "Alpha L IsL LC IsLC IsAlphabetic javaLetter javaAlphabetic IsLatin"),
        (_DIGIT, "Digit N IsN Nd IsNd javaDigit"),
        (_ALPHA | _DIGIT, "Alnum LD IsLD javaLetterOrDigit"),
        (_PUNCT, "Punct"),
        (_PUNCT - frozenset("$+<=>^`|~"), "P IsP IsPunctuation"),
        (_PUNCT | _ALPHA | _DIGIT, "Graph"),
        (_PUNCT | _ALPHA | _DIGIT | {" "}, "Print"),
        (_ALL, "ASCII InBasicLatin InBasic_Latin"),
        (_CNTRL, "Cntrl Cc IsCc IsControl"),
        (_DIGIT | frozenset("abcdefABCDEF"), "XDigit"),
        (_SPACE, "Space"),
        (frozenset(" \t"), "Blank"),
        (frozenset("_"), "Pc IsPc"),
        (frozenset("-"), "Pd IsPd"),
    )
    for name in names.split()
}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS: Final = {"A": r"\A", "z": r"\Z", "Z": r"\Z", "b": r"\b", "B": r"\B"}
_GROUPS: Final = ("(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>")
_NOTHING: Final = "(?:(?!))"
"""Matches nowhere: a class without a character that a topic's name may have."""

_INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics of the brokers' own (Topic.INTERNAL_TOPICS)."""


class PatternError(OptionError):
    """A pattern is not Java's, or its meaning is not certain. The message says where, and how to write it instead."""


class PatternTooSlow(OptionError):
    """A pattern takes too long for a name: it tries too many ways."""


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern of topics' names.

    Attributes:
        java: as it was given.
        re2: the same for the brokers' RE2/J, or None if RE2/J cannot express it, or would match the brokers' own topics
            too.

    Raises:
        PatternError: it is not taken.
    """

    java: str
    re2: str | None = field(init=False, repr=False, compare=False, hash=False)
    _compiled: Any = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        import regex  # here, since only a process with a pattern needs it

        read = _read(self.java)
        object.__setattr__(self, "_compiled", regex.compile(read.whole, regex.V0))
        for_brokers = read.is_re2 and not self._is_for_internal()
        object.__setattr__(self, "re2", _for_brokers(read.whole) if for_brokers else None)

    def _is_for_internal(self) -> bool:
        try:
            return any(map(self.matches, _INTERNAL))
        except PatternTooSlow:
            # Undecided: the pattern is kept from the brokers, whose own topics it may match.
            return True

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` is matched (Matcher.matches). Never if no topic may have it (Topic.validate).

        Raises:
            PatternTooSlow: not decided within `PATTERN_MATCH_S_MAX`.
        """
        if not _LEGAL.issuperset(name):  # a peer that plays the broker may send any name, and `.` matches controls
            return False
        try:
            return self._compiled.fullmatch(name, timeout=PATTERN_MATCH_S_MAX) is not None
        except TimeoutError:
            raise self._too_slow(PATTERN_MATCH_S_MAX, f"the topic {name!r}") from None

    def select(self, names: Collection[str], cpu_clock_s: Callable[[], float]) -> tuple[str, ...]:
        """The names among `names` that match, sorted.

        Args:
            names: of topics.
            cpu_clock_s: how much time this thread has computed, as `time.thread_time`.

        Raises:
            PatternTooSlow: one name is not decided within `PATTERN_MATCH_S_MAX`, or all are not within
                `PATTERN_SELECT_S_MAX`.
        """
        ends_at_s = cpu_clock_s() + PATTERN_SELECT_S_MAX
        chosen = []
        for name in names:
            if self.matches(name):
                chosen.append(name)
            if cpu_clock_s() > ends_at_s:
                raise self._too_slow(PATTERN_SELECT_S_MAX, f"{len(names)} topics")
        return tuple(sorted(chosen))

    def _too_slow(self, seconds: float, what: str) -> PatternTooSlow:
        return PatternTooSlow(
            f"The pattern {self.java!r} took more than {seconds:g} s for {what}: avoid quantifiers within quantifiers, "
            "as in (a+)+, or make the inner one possessive: (a++)+."
        )


class _Read(NamedTuple):
    """A pattern for `regex` that matches the same topics' names as Java 17 does."""

    whole: str
    is_re2: bool
    """Whether RE2 has all syntax in it."""


def _read(java: str) -> _Read:
    if len(java) > PATTERN_CHARS_MAX:
        raise PatternError(f"it has {len(java)} characters, and {PATTERN_CHARS_MAX} are the most")
    if not java.isascii():
        raise PatternError("names of topics are ASCII: leave other characters out")
    reader = _Reader(java)
    return _Read(reader.whole(), reader.is_re2)


def _for_brokers(whole: str) -> str:
    r"""For RE2, which spells `\Z` as `\z` (names have no line ends), and has no look ahead that never holds."""
    return whole.replace(r"\Z", r"\z").replace(_NOTHING, r"[^\x00-\x7f]")


class _Reader:
    """Reads one pattern from left to right."""

    def __init__(self, java: str) -> None:
        self.is_re2 = True
        self._java = java
        self._at = 0
        self._names: set[str] = set()
        self._depth = 0
        self._behind = 0
        self._quoting = False

    def whole(self) -> str:
        found = self._alternatives(fold=False)
        if self._at < len(self._java):
            raise self._error("this parenthesis was never opened: escape it as \\)")
        return found

    def _error(self, reason: str) -> PatternError:
        return PatternError(f"{reason} (at character {self._at + 1} of {self._java!r})")

    def _next(self, length: int = 1) -> str:
        return self._java[self._at : self._at + length]

    def _take(self, length: int = 1) -> str:
        found = self._next(length)
        if len(found) < length:
            raise self._error("the pattern ends too early")
        self._at += length
        return found

    def _skip(self, text: str) -> bool:
        if not self._java.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    # ------------------------------------------------------------------------------------------- sequences

    def _alternatives(self, *, fold: bool) -> str:
        """Up to the end of the group. `fold`: upper and lower case are one. `(?i)` holds to the group's end."""
        self._depth += 1
        if self._depth > PATTERN_DEPTH_MAX:
            raise self._error(f"groups and classes may be {PATTERN_DEPTH_MAX} deep")
        parts: list[str] = []
        while self._at < len(self._java) and (self._quoting or self._next() != ")"):
            if self._quote():
                continue
            if not self._quoting and self._skip("|"):
                parts.append("|")
                continue
            flags = None if self._quoting else self._flags(fold)
            if flags is None:
                parts.append(self._piece(fold))
                continue
            inside, opens_group = flags
            if opens_group:
                parts.append(self._quantified(self._group("(?:", inside)))
            else:
                fold = inside
        self._depth -= 1
        return "".join(parts)

    def _quote(self) -> bool:
        r"""Step over a `\Q` or `\E`, which begins or ends a quotation."""
        if self._quoting and self._skip(r"\E"):
            self._quoting = False
            return True
        if not self._quoting and self._skip(r"\Q"):
            self._quoting = True
            return True
        return False

    def _flags(self, fold: bool) -> tuple[bool, bool] | None:
        """`(?i-s)` or `(?i-s:`: whether case is one from here on, and whether it opens a group, or None for neither."""
        end = self._at + 2
        while end < len(self._java) and (self._java[end].isalpha() or self._java[end] == "-"):
            end += 1
        flags, closing = self._java[self._at + 2 : end], self._java[end : end + 1]
        if self._next(2) != "(?" or closing not in (")", ":") or not flags:
            return None
        on, _, off = flags.partition("-")
        if flags.count("-") > 1 or set(on + off) - set("idmsuU"):
            raise self._error(
                f"the flags {flags!r}: only i, d, m, s, u and U are taken. Write it without the other flags"
            )
        self._at = end + 1
        # Only i matters: the rest is about line ends and characters beyond ASCII, which no name has.
        return (fold or "i" in on) and "i" not in off, closing == ":"

    def _piece(self, fold: bool) -> str:
        """One atom with its quantifier."""
        char = self._next()
        if self._quoting:
            atom = _class(frozenset(self._take()), fold)
            self._quote()
            # A quantifier after \E is for the last quoted character alone, as in Java.
            return atom if self._quoting else self._quantified(atom)
        if char == "*" and self._at == 0:
            raise self._error("no text to repeat stands before this *: write .* for any text, or escape it as \\*")
        if char in "*+?":
            raise self._error(
                f"no text to repeat stands before this {char}, or another quantifier: escape it as \\{char}"
            )
        if char == "{":
            raise self._error("no text to repeat stands before this {: escape it as \\{")
        if char in "^$" or (char == "\\" and self._next(2)[1:] in _ANCHORS):
            return self._anchor()
        if char == "(":
            return self._quantified(self._group(self._opening(), fold))
        return self._quantified(self._single(fold))

    def _single(self, fold: bool) -> str:
        if self._skip("["):
            return _class(self._class(fold), False)
        if self._skip("."):
            return "."
        if self._next() == "\\":
            found = self._escape(fold)
            return _class(found, fold and len(found) == 1)
        return _class(frozenset(self._take()), fold)

    def _anchor(self) -> str:
        char = self._take()
        # Names have no line ends, so the flag m makes no difference to `^` and `$`.
        found = {"^": r"\A", "$": r"\Z"}.get(char) or _ANCHORS[self._take()]
        if self._next() in ("*", "+", "?", "{"):
            raise self._error("a quantifier after an anchor: leave one of them out")
        return found

    def _opening(self) -> str:
        for opening in _GROUPS:
            if self._skip(opening):
                self.is_re2 = self.is_re2 and opening == "(?:"
                return opening
        # AFTER `(?<=` and `(?<!`, which begin alike.
        if self._skip("(?<"):
            name = self._java[self._at :].partition(">")[0]
            if not name.isalnum() or not name[0].isalpha():
                raise self._error("the name of a group is letters and digits, a letter first, as in (?<name>...)")
            if name in self._names:
                raise self._error(f"two groups are called {name!r}: rename one")
            self._names.add(name)
            self._take(len(name) + 1)
            return "(?:"
        if self._java.startswith("(?", self._at):
            raise self._error("Java has no group that begins like this: escape the question mark as \\?")
        # Without back references no group needs to capture.
        self._at += 1
        return "(?:"

    def _group(self, opening: str, fold: bool) -> str:
        behind = opening in ("(?<=", "(?<!")
        self._behind += behind
        inside = self._alternatives(fold=fold)
        self._behind -= behind
        if not self._skip(")"):
            raise self._error("a parenthesis is not closed: add ), or escape it as \\(")
        if opening not in ("(?:", "(?>") and self._next() in ("*", "+", "?", "{"):
            raise self._error("a quantifier after a look ahead or behind: leave it out")
        return f"{opening}{inside})"

    def _quantified(self, atom: str) -> str:
        char = self._next()
        if not char or char not in "*+?{":
            return atom
        if char == "{":
            times = self._java[self._at :].partition("}")[0] + "}"
            low, comma, high = times[1:-1].partition(",")
            if not low.isdigit() or (high and not high.isdigit()) or (comma and high and int(low) > int(high)):
                raise self._error("the quantifier is none, as {2}, {2,} or {2,5} are: escape the brace as \\{")
            if max(int(low), int(high or 0)) > PATTERN_REPEATS_MAX:
                raise self._error(f"a quantifier may ask for {PATTERN_REPEATS_MAX} repetitions: no name is longer")
            unbounded = bool(comma and not high)
        else:
            times, unbounded = char, char != "?"
        if self._behind and unbounded:
            raise self._error(f"a look behind needs a bound: write {{0,{PATTERN_REPEATS_MAX}}} or the like")
        self._take(len(times))
        kind = self._take() if self._next() in ("?", "+") else ""
        self.is_re2 = self.is_re2 and kind != "+"
        if self._next() in ("*", "+", "?", "{"):
            raise self._error("a quantifier after another: put the part before it in (?:...)")
        return atom + times + kind

    # --------------------------------------------------------------------------------------------- classes

    def _class(self, fold: bool) -> frozenset[str]:
        """After its opening bracket, to the end of the class."""
        self._depth += 1
        if self._depth > PATTERN_DEPTH_MAX:
            raise self._error(f"groups and classes may be {PATTERN_DEPTH_MAX} deep")
        negated = self._skip("^")
        found = self._operand(fold)
        while self._skip("&&"):
            if self._next() in ("^", "]", "&"):
                raise self._error("the part after && is not clear: put it in a class of its own, as in &&[^a]")
            found &= self._operand(fold, alone=True)
        self._depth -= 1
        if not self._skip("]"):
            raise self._error("a class is not closed: add ], or escape the bracket as \\[")
        return _ALL - found if negated else found

    def _operand(self, fold: bool, *, alone: bool = False) -> frozenset[str]:
        """Up to && or the end of the class. `alone`: only classes or only characters. Java mixes them its own way."""
        found, kinds = frozenset[str](), set[str]()
        while self._next() not in ("", "]") and self._next(2) != "&&":
            if self._skip("["):
                found |= self._class(fold)
                kinds.add("class")
            else:
                found |= self._range(fold)
                kinds.add("characters")
        if not kinds:
            raise self._error("a class is empty here: name a character, or escape the bracket as \\]")
        if alone and len(kinds) > 1:
            raise self._error("characters beside a class after &&: put them all in one class")
        return found

    def _range(self, fold: bool) -> frozenset[str]:
        if self._next(2) in (r"\Q", r"\E"):
            raise self._error(r"\Q in a class: escape each character with a backslash")
        if self._next() == "&":
            raise self._error(r"an & in a class: no topic has one in its name. Leave it out")
        first = self._member(fold)
        if self._next() != "-" or self._next(2)[1:] in ("]", "["):
            return _folded(first, fold)
        self._take()
        last = self._member(fold)
        if len(first) != 1 or len(last) != 1:
            raise self._error(r"a class as the end of a range: escape the hyphen as \-")
        low, high = ord(*first), ord(*last)
        if low > high:
            raise self._error("the range is the wrong way round: put the lower character first")
        return _folded(frozenset(map(chr, range(low, high + 1))), fold)

    def _member(self, fold: bool) -> frozenset[str]:
        return self._escape(fold) if self._next() == "\\" else frozenset(self._take())

    def _escape(self, fold: bool) -> frozenset[str]:
        """The characters that an escape stands for: one, or a set."""
        self._take()
        char = self._take()
        if char in _PREDEFINED:
            return _PREDEFINED[char]
        if char.lower() in _PREDEFINED:
            return _ALL - _PREDEFINED[char.lower()]
        if char in "pP":
            found = self._property(fold)
            return found if char == "p" else _ALL - found
        if char in _CONTROLS:
            return frozenset(_CONTROLS[char])
        if char in "xu0":
            return frozenset(self._code(char))
        if char in "123456789k":
            raise self._error("a back reference is not taken: write out the text that it repeats")
        if char.isalpha():
            raise self._error(f"\\{char} is not taken: it is no escape of Java's for a character of topics' names")
        return frozenset(char)

    def _property(self, fold: bool) -> frozenset[str]:
        name = self._java[self._at + 1 :].partition("}")[0] if self._next() == "{" else self._next()
        self._take(len(name) + 2 if self._next() == "{" else 1)
        if name not in _PROPERTIES:
            raise self._error(f"the property {name!r} is not taken: write the characters, as [a-zA-Z]")
        if fold and name in _CASED:
            raise self._error(f"the property {name!r} under (?i), which each Java reads its own way: write [a-z]")
        return _PROPERTIES[name]

    def _code(self, kind: str) -> str:
        if kind == "0":
            digits = ""
            # Java takes a third octal digit only up to \0377.
            while len(digits) < 3 and self._next() in tuple("01234567") and int(digits + self._next(), 8) <= 0o377:
                digits += self._take()
            base = 8
        elif kind == "x" and self._skip("{"):
            digits, base = self._java[self._at :].partition("}")[0], 16
            self._take(len(digits) + 1)
        else:
            digits, base = self._take(2 if kind == "x" else 4), 16
        if not digits or set(digits) - set(string.hexdigits if base == 16 else string.octdigits):
            raise self._error("the number of a character is wrong: write it as \\x41, \\u0041 or \\0101")
        if int(digits, base) > 127:
            raise self._error("names of topics are ASCII: leave other characters out")
        return chr(int(digits, base))


def _folded(chars: frozenset[str], fold: bool) -> frozenset[str]:
    return chars | {c.swapcase() for c in chars} if fold else chars


def _class(chars: frozenset[str], fold: bool) -> str:
    """The set as `regex` writes it. Characters that no topic's name has are left out."""
    legal = sorted(_folded(chars, fold) & _LEGAL)
    if len(legal) == 1:
        return f"\\{legal[0]}" if legal[0] in ".-" else legal[0]
    if len(legal) == len(_LEGAL):
        return "."
    return f"[{''.join(legal).replace('-', '')}{'-' if '-' in legal else ''}]" if legal else _NOTHING
