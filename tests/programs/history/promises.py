"""The promises, as pure functions: a history in, violations out.

Each function stands for one sentence of docs/explain/promises.md, or for one that the run needs of Kafka itself.
`PROMISES` is the list of all. A topic that was recreated begins a new life: offsets are compared within one life.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from history.facts import ABORTED, ACKNOWLEDGED, Committed, Ended, History, Lasting, Sunk

COMMIT_SLACK_S: Final = 0.05
"""How much earlier than its sink's a commit's time may be: the coordinator cuts its times to ms, a file system to the
ticks of its clock (4 ms)."""

Log = tuple[str, int]
"""(topic, partition)."""


class Violation(NamedTuple):
    """One promise that was not kept.

    Attributes:
        where: reader and partition, as far as they play a part.
        what: offsets and numbers: enough to find it in the logs.
    """

    where: str
    what: str


class Stretch(NamedTuple):
    """Offsets of one partition: `first` <= offset <= `last`."""

    log: Log
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


# ------------------------------------------------------------------------------------------------- Kafka's own


def acknowledged_records_are_stored(history: History) -> Iterator[Violation]:
    """A record that a producer was told to be committed is stored once. A record that it aborted is not stored."""
    stored = Counter(record.value for record in history.stored)
    for record in history.produced:
        count, where = stored[record.value], f"{record.producer}, {record.topic}-{record.partition}"
        if record.fate == ACKNOWLEDGED and count == 0:
            yield Violation(where, f"{record.value!r} was acknowledged and is not stored")
        if record.fate == ABORTED and count:
            yield Violation(where, f"{record.value!r} was aborted and is stored")
        if count > 1:
            yield Violation(where, f"{record.value!r} is stored {count} times")


def records_are_stored_as_sent(history: History) -> Iterator[Violation]:
    """One producer's records of one partition are stored in the order in which it sent them."""
    sent = {record.value: (record.producer, record.number) for record in history.produced}
    reached: dict[tuple[str, Log], tuple[int, str]] = {}
    for record in history.stored:
        log = (record.topic, record.partition)
        if (known := sent.get(record.value)) is None:
            yield Violation(_name(log), f"offset {record.offset} holds {record.value!r}, which no producer sent")
            continue
        producer, number = known
        last, value = reached.get((producer, log), (-1, ""))
        if number < last:
            yield Violation(f"{producer}, {_name(log)}", f"{record.value!r} is stored behind {value!r}")
        reached[producer, log] = number, record.value


# --------------------------------------------------------------------------------------- within one application


def rows_are_records(history: History) -> Iterator[Violation]:
    """Each delivered row is a committed record of the topic, at its place, with its value."""
    stored = {(r.topic, r.partition, r.offset, r.value) for r in history.stored}
    foreign = defaultdict(list)
    for row in history.deliveries:
        if (row.topic, row.partition, row.offset, row.value) not in stored:
            foreign[row.reader].append(((row.topic, row.partition), row.offset))
    for reader, places in foreign.items():
        for stretch in stretches(places):
            yield Violation(
                _at(reader, stretch.log), f"offsets {stretch} are no committed records, or have other values"
            )


def no_record_is_sunk_twice(history: History) -> Iterator[Violation]:
    """Within one application every record comes once."""
    counts = Counter((row.reader, row.topic, row.partition, row.offset, row.value) for row in history.sunk)
    twice = defaultdict(list)
    for (reader, topic, partition, offset, _), count in counts.items():
        if count > 1:
            twice[reader].append(((topic, partition), offset))
    for reader, places in twice.items():
        for stretch in stretches(places):
            yield Violation(_at(reader, stretch.log), f"offsets {stretch} were sunk more than once")


def rows_are_in_order(history: History) -> Iterator[Violation]:
    """In each partition a batch holds later records than the batch before, and each of its files ascending ones."""
    order = {(r.topic, r.partition, r.offset, r.value): at for at, r in enumerate(history.stored)}
    files: dict[tuple[str, Log, int, str], list[Sunk]] = defaultdict(list)
    for row in history.sunk:
        files[row.reader, (row.topic, row.partition), row.batch, row.file].append(row)
    batches: dict[tuple[str, Log], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (reader, log, batch, _), rows in files.items():
        places = [order[key] for row in rows if (key := (*log, row.offset, row.value)) in order]
        if any(after < before for before, after in pairwise(places)):
            yield Violation(_at(reader, log), f"a file of batch {batch} is not in the order of the log")
        batches[reader, log][batch] += places
    for (reader, log), of_batch in batches.items():
        numbered = [(number, min(places), max(places)) for number, places in sorted(of_batch.items()) if places]
        for (before, _, last), (after, first, _) in pairwise(numbered):
            if first < last:
                yield Violation(_at(reader, log), f"batch {after} holds earlier records than batch {before}")


# ----------------------------------------------------------------------------------------- across applications


def no_record_is_lost(history: History) -> Iterator[Violation]:
    """Every committed record is read by a member of the group."""
    seen = {(row.topic, row.partition, row.offset, row.value) for row in history.deliveries}
    missing = [
        ((r.topic, r.partition), r.offset)
        for r in history.stored
        if (r.topic, r.partition, r.offset, r.value) not in seen
    ]
    for stretch in stretches(missing):
        yield Violation(_name(stretch.log), f"offsets {stretch} were read by no member")


def records_are_read_again_only_after_a_loss(history: History) -> Iterator[Violation]:
    """Of all members that read one record, each but one had lost its membership before the group knew of it."""
    exposed = defaultdict(list)
    for span in history.exposed:
        exposed[span.reader, (span.topic, span.partition)].append((span.first, span.end))
    kept_by: dict[tuple[Log, int, str], set[str]] = defaultdict(set)
    for row in history.deliveries:
        log = (row.topic, row.partition)
        if not any(first <= row.offset < end for first, end in exposed[row.reader, log]):
            kept_by[log, row.offset, row.value].add(row.reader)
    twice = defaultdict(list)
    for (log, offset, _), readers in kept_by.items():
        if len(readers) > 1:
            twice[" and ".join(sorted(readers))].append((log, offset))
    for names, places in twice.items():
        for stretch in stretches(places):
            yield Violation(_at(names, stretch.log), f"offsets {stretch} were read by all of these, and lost by none")


# --------------------------------------------------------------------------------------------- the group's offsets


def commits_never_go_back(history: History) -> Iterator[Violation]:
    """No commit of this source puts the group's committed offset of a partition back."""
    for (topic, partition, life), commits in _commits_by_life(history).items():
        for before, after in pairwise(commits):
            if after.by_us and after.offset < before.offset:
                in_life = f" (life {life + 1} of the topic)" if life else ""
                yield Violation(_name((topic, partition)), f"committed {before.offset}, then {after.offset}{in_life}")


def commits_are_not_ahead(history: History) -> Iterator[Violation]:
    """Records below a committed offset had been handed on by then. No committed offset is beyond the log's end."""
    done_at: dict[tuple[Log, str], float] = {}
    for row in history.deliveries:
        key = (row.topic, row.partition), row.value
        done_at[key] = min(done_at.get(key, float("inf")), row.wall_at_s if row.wall_at_s is not None else 0.0)
    lives = _stored_by_life(history)
    recreated = Counter(recreated.topic for recreated in history.recreated)
    ends = {(topic, partition, recreated[topic]): end for topic, partition, end in history.logend}
    for (topic, partition, life), commits in _commits_by_life(history).items():
        log = (topic, partition)
        records = lives.get((topic, partition, life), [])
        offsets = [offset for offset, _ in records]
        moments = [done_at.get((log, value), float("inf")) for _, value in records]
        checked = 0
        for commit in commits:
            if commit.offset > (end := ends.get((topic, partition, life), commit.offset)):
                yield Violation(_name(log), f"committed {commit.offset}, log end {end}")
            upto = bisect_right(offsets, commit.offset - 1)
            handed_on = zip(offsets[checked:upto], moments[checked:upto], strict=True)
            late = [(log, offset) for offset, at_s in handed_on if at_s > commit.wall_at_s + COMMIT_SLACK_S]
            for stretch in stretches(late):
                yield Violation(_name(log), f"committed {commit.offset} before offsets {stretch} were handed on")
            checked = max(checked, upto)


def lag_is_zero(history: History) -> Iterator[Violation]:
    """In the end the group's last commit of every partition is its log end."""
    last = {(commit.topic, commit.partition): commit.offset for commit in history.committed}
    for topic, partition, end in sorted(history.logend):
        if last.get((topic, partition)) != end:
            yield Violation(_name((topic, partition)), f"committed {last.get((topic, partition))}, log end {end}")


# --------------------------------------------------------------------------------------------------------- liveness


def members_live(history: History) -> Iterator[Violation]:
    """No query or consumer ends but by a fault that was aimed at it, or that lasts and is named in its error.

    A query that has named a lasting fault in time, in a warning or an error, may end by it as long as the fault lasts:
    it may be started again, and Spark tries a task several times.
    """
    for end in history.ended:
        if not any(_names(lasting, end) or _follows(lasting, end, history) for lasting in history.lasting):
            yield Violation(end.reader, end.words)


def the_rest_goes_on(history: History) -> Iterator[Violation]:
    """While one fault lasts, spared partitions are read soon, or a query's end names the fault within its bound.

    A batch was decided before it is read. One that was under way when the fault began, and needs records of a partition
    that is not spared, holds up its query until it has them.
    """
    for lasting in history.lasting:
        held_up_until_s = _held_up_until_s(history, lasting)
        if any(_names(lasting, end) for end in history.ended) or held_up_until_s > lasting.until_s - lasting.goes_on_s:
            continue
        done_at = _first_delivery(history)
        for log in [(str(topic), int(partition)) for topic, partition in lasting.spared]:
            watched = [
                record
                for record in history.produced
                if (record.topic, record.partition) == log and record.fate == ACKNOWLEDGED
                if record.wall_at_s is not None
                and lasting.wall_at_s <= record.wall_at_s <= lasting.until_s - lasting.goes_on_s
            ]
            if not watched:
                yield Violation(f"{lasting.fault}, {_name(log)}", "nothing was produced meanwhile: nothing is shown")
            late = [
                record
                for record in watched
                if done_at.get(record.value, float("inf"))
                > max(_moment(record.wall_at_s), held_up_until_s) + lasting.goes_on_s
            ]
            if late:
                what = f"{len(late)} of {len(watched)} records were not read within {lasting.goes_on_s:g} s"
                yield Violation(f"{lasting.fault}, {_name(log)}", f"{what}, {late[0].value!r} first")


def _held_up_until_s(history: History, lasting: Lasting) -> float:
    """When sinks showed the batches that the fault found under way, and that need what it touches, or 0 without any.

    Once the fault has begun, no batch is given records of a partition that it touches. So a query's first batch after
    that moment was under way if it has such a record.
    """
    spared = {(str(topic), int(partition)) for topic, partition in lasting.spared}
    first: dict[str, int] = {}
    for row in history.sunk:
        if _moment(row.wall_at_s) > lasting.wall_at_s:
            first[row.reader] = min(first.get(row.reader, row.batch), row.batch)
    under_way = [row for row in history.sunk if first.get(row.reader) == row.batch]
    needed = {row.reader for row in under_way if (row.topic, row.partition) not in spared}
    return max((_moment(row.wall_at_s) for row in under_way if row.reader in needed), default=0.0)


def a_lasting_fault_is_named(history: History) -> Iterator[Violation]:
    """Where a fault that lasts keeps records back, a warning or an error names it within its bound."""
    done_at = _first_delivery(history)
    for lasting in history.lasting:
        kept_back = [
            record.value
            for record in history.produced
            if record.fate == ACKNOWLEDGED and record.wall_at_s is not None
            if lasting.wall_at_s <= record.wall_at_s <= lasting.until_s - lasting.named_s
            if done_at.get(record.value, float("inf")) > record.wall_at_s + lasting.named_s
        ]
        warned = any(
            lasting.wall_at_s <= warning.wall_at_s <= lasting.wall_at_s + lasting.named_s
            and _has_a_word(lasting, warning.words)
            for warning in history.warned
        )
        if kept_back and not warned and not any(_names(lasting, end) for end in history.ended):
            what = f"{len(kept_back)} records were kept back for {lasting.named_s:g} s and no warning or error says why"
            yield Violation(lasting.fault, f"{what}, {kept_back[0]!r} first")


def no_process_is_left(history: History) -> Iterator[Violation]:
    """After the end no process runs."""
    for process in history.left:
        yield Violation("machine", process.command)


PROMISES: Sequence[Callable[[History], Iterator[Violation]]] = (
    acknowledged_records_are_stored,
    records_are_stored_as_sent,
    rows_are_records,
    no_record_is_sunk_twice,
    rows_are_in_order,
    no_record_is_lost,
    records_are_read_again_only_after_a_loss,
    commits_never_go_back,
    commits_are_not_ahead,
    lag_is_zero,
    members_live,
    the_rest_goes_on,
    a_lasting_fault_is_named,
    no_process_is_left,
)


def verdict(history: History) -> dict[str, list[Violation]]:
    """Name of each promise's function -> the violations."""
    return {promise.__name__.replace("_", " "): list(promise(history)) for promise in PROMISES}


# ---------------------------------------------------------------------------------------------------------- reading


def stretches(places: Iterable[tuple[Log, int]]) -> list[Stretch]:
    """Neighbouring offsets as one each. A gap of one is bridged, since a transaction's marker takes an offset."""
    found: list[Stretch] = []
    for log, offset in sorted(places):
        if found and found[-1].log == log and offset <= found[-1].last + 2:
            found[-1] = Stretch(log, found[-1].first, offset)
        else:
            found.append(Stretch(log, offset, offset))
    return found


def _stored_by_life(history: History) -> Mapping[tuple[str, int, int], list[tuple[int, str]]]:
    """(topic, partition, life of the topic) -> (offset, value) ascending: a life is over where offsets fall."""
    lives: dict[Log, int] = {}
    found: dict[tuple[str, int, int], list[tuple[int, str]]] = defaultdict(list)
    for record in history.stored:
        log = (record.topic, record.partition)
        of_life = found[*log, lives.setdefault(log, 0)]
        if of_life and record.offset <= of_life[-1][0]:
            lives[log] += 1
            of_life = found[*log, lives[log]]
        of_life.append((record.offset, record.value))
    return found


def _commits_by_life(history: History) -> Mapping[tuple[str, int, int], list[Committed]]:
    """(topic, partition, life of the topic) -> its commits: a life is over where the topic was recreated."""
    moments = defaultdict(list)
    for recreated in history.recreated:
        moments[recreated.topic].append(recreated.wall_at_s)
    found: dict[tuple[str, int, int], list[Committed]] = defaultdict(list)
    for commit in history.committed:
        life = bisect_right(sorted(moments[commit.topic]), commit.wall_at_s)
        found[commit.topic, commit.partition, life].append(commit)
    return found


def _first_delivery(history: History) -> Mapping[str, float]:
    """Value -> when a member first handed it on."""
    found: dict[str, float] = {}
    for row in history.deliveries:
        found[row.value] = min(found.get(row.value, float("inf")), _moment(row.wall_at_s))
    return found


def _moment(wall_at_s: float | None) -> float:
    return 0.0 if wall_at_s is None else wall_at_s


def _names(lasting: Lasting, end: Ended) -> bool:
    """Whether a query ended by this fault, within its bound, and says so."""
    at = _moment(end.wall_at_s)
    return lasting.wall_at_s <= at <= lasting.wall_at_s + lasting.named_s and _has_a_word(lasting, end.words)


def _follows(lasting: Lasting, end: Ended, history: History) -> bool:
    """Whether a query that had named this fault in time ended by it, or had begun to when the fault was over."""
    at, in_time_s = _moment(end.wall_at_s), lasting.wall_at_s + lasting.named_s
    named = [(e.reader, _moment(e.wall_at_s)) for e in history.ended if _has_a_word(lasting, e.words)]
    named += [(w.reader, w.wall_at_s) for w in history.warned if _has_a_word(lasting, w.words)]
    before = any(reader == end.reader and lasting.wall_at_s <= then <= min(at, in_time_s) for reader, then in named)
    return before and at <= lasting.until_s + lasting.named_s and _has_a_word(lasting, end.words)


def _has_a_word(lasting: Lasting, text: str) -> bool:
    return any(word in text for word in lasting.words)


def _name(log: Log) -> str:
    return f"{log[0]}-{log[1]}"


def _at(reader: str, log: Log) -> str:
    return f"{reader}, {_name(log)}"
