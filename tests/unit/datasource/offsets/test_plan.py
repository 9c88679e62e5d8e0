"""The ranges of a batch follow from its two offsets alone, the shares of a limit from the available records."""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kgroup.limits import RECORD_BYTES_UNKNOWN
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from pyspark_kgroup.offsets.plan import apply_limit, apply_limit_in_bytes, in_turn, positions_by_seat, ranges_by_seat
from spark_kgroup.model import TopicDescription, TopicPartition

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))


def period(start: int = 0, seat: str = "job-0", generation: int = 1, topic_id: str = "x") -> Period:
    return Period(topic_id=topic_id, start=start, seat=seat, generation=generation)


def checkpoint(owned: dict[TopicPartition, tuple[Period, int]]) -> Checkpoint:
    return Checkpoint(
        topics={tp.topic: Topic(topic_id=p.topic_id, first_sight=3) for tp, (p, _) in owned.items()},
        owned={tp: Owned(period=p, position=position) for tp, (p, position) in owned.items()},
    )


# ----------------------------------------------------------------------------------------- ranges to read


def test_the_same_period_goes_on_where_the_start_stands() -> None:
    start, end = checkpoint({P0: (period(), 10)}), checkpoint({P0: (period(), 25)})
    assert ranges_by_seat(start, end) == {"job-0": {P0: (10, 25)}}


@pytest.mark.parametrize(
    "other", [period(seat="job-1"), period(generation=2), period(start=12), period(topic_id="y")], ids=str
)
def test_another_period_is_read_from_its_beginning(other: Period) -> None:
    start, end = checkpoint({P0: (period(), 10)}), checkpoint({P0: (other, 25)})
    assert ranges_by_seat(start, end) == {other.seat: {P0: (other.start, 25)}}


def test_a_partition_absent_from_the_end_is_not_read() -> None:
    start = checkpoint({P0: (period(), 10), P1: (period(), 10)})
    assert ranges_by_seat(start, checkpoint({P0: (period(), 11)})) == {"job-0": {P0: (10, 11)}}


def test_seats_without_data_are_absent() -> None:
    start = checkpoint({P0: (period(), 10), P1: (period(seat="job-1"), 10)})
    end = checkpoint({P0: (period(), 10), P1: (period(seat="job-1"), 11)})
    assert ranges_by_seat(start, end) == {"job-1": {P1: (10, 11)}}


def test_an_adoption_alone_reads_no_record() -> None:
    assert ranges_by_seat(EMPTY, checkpoint({P0: (period(start=7), 7)})) == {}


def test_running_backwards_within_a_period_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="t-0 would run backwards: 10 to 9"):
        ranges_by_seat(checkpoint({P0: (period(), 10)}), checkpoint({P0: (period(), 9)}))


def described(name: str, epochs: dict[int, int]) -> dict[str, TopicDescription]:
    return {name: TopicDescription(name=name, topic_id=None, partition_count=3, leader_epochs=epochs)}


def test_a_seats_positions_have_tags_that_change_with_the_topics_id_and_the_leaders_epoch() -> None:
    end = checkpoint({P0: (period(), 10), P1: (period(), 11), P2: (period(seat="job-1"), 12)})
    before = positions_by_seat(end, described("t", {0: 4, 2: 0}))
    assert before == {"job-0": [(P0, 10, "x/4"), (P1, 11, "x")], "job-1": [(P2, 12, "x/0")]}
    assert positions_by_seat(end, described("t", {0: 5, 2: 0})) == {
        "job-0": [(P0, 10, "x/5"), (P1, 11, "x")],
        "job-1": before["job-1"],
    }
    renewed = checkpoint({P2: (period(seat="job-1", topic_id="y"), 12)})
    assert positions_by_seat(renewed, described("t", {2: 0})) == {"job-1": [(P2, 12, "y/0")]}


def test_the_tag_of_a_topic_that_is_not_seen_is_its_id() -> None:
    assert positions_by_seat(checkpoint({P0: (period(), 10)}), {}) == {"job-0": [(P0, 10, "x")]}


@dataclass
class Story:
    """A made-up life of three partitions: checkpoints as boundaries leave them, and the spans due in each period."""

    checkpoints: list[Checkpoint] = field(default_factory=lambda: [EMPTY])
    spans: dict[tuple[TopicPartition, Period], list[int]] = field(default_factory=dict)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """At each boundary a partition is read on, given up or lost, or adopted, perhaps where another member came to."""
    story = Story()
    owned: dict[TopicPartition, tuple[Period, int]] = {}
    read_up_to = dict.fromkeys((P0, P1, P2), 0)
    for generation in range(1, draw(st.integers(1, 12))):
        for tp in (P0, P1, P2):
            fate = draw(st.sampled_from(["on", "on", "away", "moved"]))
            if fate == "away":
                owned.pop(tp, None)
            elif fate == "moved" or tp not in owned:
                start = read_up_to[tp] + draw(st.integers(0, 5))
                owned[tp] = (period(start, draw(st.sampled_from(["job-0", "job-1"])), generation), start)
            if tp in owned:
                held, position = owned[tp]
                owned[tp] = (held, position + draw(st.integers(0, 9)))
                read_up_to[tp] = owned[tp][1]
                story.spans.setdefault((tp, held), [held.start])[1:] = [owned[tp][1]]
        story.checkpoints.append(checkpoint(owned))
    return story


@given(stories())
def test_batches_read_each_offset_of_each_period_exactly_once(story: Story) -> None:
    read: dict[tuple[TopicPartition, Period], list[tuple[int, int]]] = {}
    for start, end in pairwise(story.checkpoints):
        for seat, ranges in ranges_by_seat(start, end).items():
            for tp, span in ranges.items():
                assert end.owned[tp].period.seat == seat
                read.setdefault((tp, end.owned[tp].period), []).append(span)
    for key, (first, last) in story.spans.items():
        spans = read.get(key, [])
        assert sum(b - a for a, b in spans) == last - first
        assert [a for a, _ in spans] == [first, *(b for _, b in spans)][: len(spans)]


@given(stories())
def test_a_replay_reads_the_same(story: Story) -> None:
    for start, end in pairwise(story.checkpoints):
        replayed = [Checkpoint.from_json(point.to_json()) for point in (start, end)]
        assert ranges_by_seat(*replayed) == ranges_by_seat(start, end)


@given(stories())
def test_a_batch_from_an_offset_to_itself_is_empty(story: Story) -> None:
    assert all(ranges_by_seat(point, point) == {} for point in story.checkpoints)


# ------------------------------------------------------------------------------------------------ limits

partitions = st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 20))
spans = st.tuples(st.integers(0, 10**12), st.integers(0, 10**9) | st.integers(0, 3)).map(lambda s: (s[0], sum(s)))
availables = st.dictionaries(partitions, spans, max_size=12)
limits = st.integers(1, 40) | st.integers(1, 10**10)


def taken(available: dict[TopicPartition, tuple[int, int]], limit: int | None) -> dict[TopicPartition, int]:
    return {tp: end - available[tp][0] for tp, end in apply_limit(available, limit).items()}


@given(availables)
def test_without_a_limit_all_is_taken(available: dict[TopicPartition, tuple[int, int]]) -> None:
    assert apply_limit(available, None) == {tp: end for tp, (_, end) in available.items()}


@given(availables, limits)
def test_the_limit_is_met_exactly(available: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    there_is = sum(end - position for position, end in available.values())
    assert sum(taken(available, limit).values()) == min(limit, there_is)


@given(availables, limits)
def test_a_limit_takes_no_offset_that_does_not_exist(
    available: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    shares = taken(available, limit)
    assert shares.keys() == available.keys()
    assert all(0 <= shares[tp] <= end - position for tp, (position, end) in available.items())


@given(availables, limits)
def test_shares_are_in_proportion(available: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    """To within the one offset that each partition is granted, and the rounding."""
    shares = taken(available, limit)
    sizes = {tp: end - position for tp, (position, end) in available.items()}
    total = sum(sizes.values())
    if total > limit:
        # Granting one offset to each of n partitions moves at most n of the limit to where they are not due.
        slack = 2 + len(sizes)
        assert all(abs(shares[tp] * total - sizes[tp] * limit) <= slack * total for tp in sizes)


@given(availables, limits)
def test_every_partition_with_data_takes_part_while_the_limit_has_room(
    available: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    waiting = [tp for tp, (position, end) in available.items() if end > position]
    shares = taken(available, limit)
    if len(waiting) <= limit:
        assert all(shares[tp] for tp in waiting)


@given(availables, limits, st.randoms())
def test_shares_do_not_depend_on_the_order(
    available: dict[TopicPartition, tuple[int, int]], limit: int, rng: Random
) -> None:
    entries = list(available.items())
    rng.shuffle(entries)
    assert apply_limit(dict(entries), limit) == apply_limit(available, limit)


def test_a_long_backlog_does_not_hold_up_a_single_record() -> None:
    assert taken({P0: (0, 1_000_000), P1: (5, 6), P2: (9, 9)}, 100) == {P0: 99, P1: 1, P2: 0}


def test_offsets_left_over_by_rounding_go_to_the_largest_remainder_and_not_to_the_largest_share() -> None:
    """3 offsets, beside one for each, are shared 7 to 3: 2.1 and 0.9."""
    assert taken({P0: (0, 8), P1: (0, 4)}, 5) == {P0: 3, P1: 2}


def test_a_small_limit_still_makes_progress() -> None:
    assert sum(taken({P0: (0, 7), P1: (0, 7), P2: (0, 9)}, 1).values()) == 1


@settings(deadline=None)  # no promise of time
@given(st.integers(2, 40), st.data())
def test_a_limit_below_the_number_of_partitions_serves_each_once_a_round(count: int, data: st.DataObject) -> None:
    """However much comes in elsewhere meanwhile."""
    limit = data.draw(st.integers(1, count - 1))
    tps = [TopicPartition("t", index) for index in range(count)]
    positions, ends, last = dict.fromkeys(tps, 0), dict.fromkeys(tps, 1), None
    waiting = set(tps)
    for _ in range(-(-count // limit)):
        before, positions = positions, apply_limit({tp: (positions[tp], ends[tp]) for tp in tps}, limit, last)
        moved = [tp for tp in tps if positions[tp] > before[tp]]
        last = in_turn(moved, last)[-1]
        waiting -= set(moved)
        for tp in data.draw(st.sets(st.sampled_from(tps))):
            ends[tp] += data.draw(st.integers(0, 50))
    assert not waiting


@given(st.lists(st.integers(0, 99), min_size=2, max_size=40), st.data())
def test_no_partition_waits_longer_than_one_round_of_batches_with_a_restart_after_each(
    begins: list[int], data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, len(begins) - 1))
    began = {TopicPartition("t", index): begin for index, begin in enumerate(begins)}
    positions = dict(began)
    for _ in range(-(-len(began) // limit)):
        positions = apply_limit({tp: (position, 1_000) for tp, position in positions.items()}, limit)
    assert all(positions[tp] > began[tp] for tp in began)


# ------------------------------------------------------------------------------------------------ limits in bytes

SIZES = {"t": 100.0, "u": 7_000.0}
byte_limits = st.integers(1, 100_000) | st.integers(1, 10**14)


def bytes_of(shares: dict[TopicPartition, int]) -> float:
    return sum(count * SIZES[tp.topic] for tp, count in shares.items())


def taken_in_bytes(available: dict[TopicPartition, tuple[int, int]], limit: int | None) -> dict[TopicPartition, int]:
    ends = apply_limit_in_bytes(available, limit, SIZES.__getitem__)
    return {tp: end - available[tp][0] for tp, end in ends.items()}


@given(availables)
def test_without_a_limit_in_bytes_all_is_taken(available: dict[TopicPartition, tuple[int, int]]) -> None:
    assert apply_limit_in_bytes(available, None, SIZES.__getitem__) == {tp: end for tp, (_, end) in available.items()}


@given(availables, byte_limits)
def test_a_batch_keeps_within_its_bytes_or_has_one_record(
    available: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    shares = taken_in_bytes(available, limit)
    assert shares.keys() == available.keys()
    assert all(0 <= shares[tp] <= end - position for tp, (position, end) in available.items())
    assert bytes_of(shares) <= limit * (1 + 1e-9) or sum(shares.values()) == 1


@given(availables, byte_limits)
def test_a_limit_in_bytes_is_used_but_for_less_than_a_record_of_each_partition(
    available: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    there_is = {tp: end - position for tp, (position, end) in available.items() if end > position}
    at_least = min(float(limit), bytes_of(there_is)) - sum(SIZES[tp.topic] for tp in there_is)
    assert bytes_of(taken_in_bytes(available, limit)) >= at_least - 1e-9 * limit


@given(availables, byte_limits)
def test_every_partition_with_data_takes_part_while_there_are_bytes_for_it(
    available: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    waiting = {tp: 1 for tp, (position, end) in available.items() if end > position}
    shares = taken_in_bytes(available, limit)
    if bytes_of(waiting) <= limit:
        assert all(shares[tp] for tp in waiting)
    else:
        assert any(shares[tp] for tp in waiting)


def probed(available: dict[TopicPartition, tuple[int, int]], limit: int) -> dict[TopicPartition, int]:
    """Partition -> how many records are taken, where only the records of topic t have a known size."""
    ends = apply_limit_in_bytes(available, limit, lambda topic: SIZES["t"] if topic == "t" else None)
    return {tp: end - available[tp][0] for tp, end in ends.items() if end > available[tp][0]}


def test_of_unread_topics_one_partition_each_is_enough() -> None:
    """64 of 800 topics in each batch, however many partitions they have."""
    many = {TopicPartition(f"u{topic}", index): (0, 1_000) for topic in range(800) for index in range(12)}
    taken = probed(many, 64 * RECORD_BYTES_UNKNOWN)
    assert sorted(taken.values()) == [1] * 64
    assert len({tp.topic for tp in taken}) == 64


def test_topics_of_known_sizes_take_their_part_beside_unknown_ones() -> None:
    taken = probed({P0: (0, 100_000), TopicPartition("u", 0): (0, 1), TopicPartition("u", 1): (0, 1)}, 3_000_000)
    assert taken.pop(P0) > 10_000
    assert list(taken.values()) == [1]


def test_single_records_of_unread_topics_are_taken() -> None:
    """The partition whose turn it is has one record, and all that there is counts as more than the limit."""
    single = {TopicPartition("u", index): (0, 1) for index in range(12)}
    assert list(probed(single, 10 * RECORD_BYTES_UNKNOWN).values()) == [1]
    beside_many = {TopicPartition("u", 0): (0, 1), TopicPartition("u", 1): (0, 100_000)}
    assert probed(beside_many, 4 * RECORD_BYTES_UNKNOWN) == {TopicPartition("u", 0): 1}


@given(availables, byte_limits, st.sets(st.sampled_from(["t", "u"])))
def test_a_batch_takes_records_whichever_sizes_of_its_topics_are_known(
    available: dict[TopicPartition, tuple[int, int]], limit: int, known: set[str]
) -> None:
    ends = apply_limit_in_bytes(available, limit, lambda topic: SIZES[topic] if topic in known else None)
    assert all(position <= ends[tp] <= end for tp, (position, end) in available.items())
    assert any(ends[tp] > position for tp, (position, _) in available.items()) == any(
        end > position for position, end in available.values()
    )


def test_all_partitions_of_a_topic_of_which_no_row_is_ever_seen_have_their_turn() -> None:
    """All that there is are aborted transactions, say."""
    available = {TopicPartition("u", index): (0, 9) for index in range(3)}
    last, turns = None, []
    for _ in range(6):
        ends = apply_limit_in_bytes(available, RECORD_BYTES_UNKNOWN, lambda _: None, last)
        (last,) = (tp for tp in available if ends[tp] > available[tp][0])
        turns.append(last.partition)
        available = {tp: (ends[tp], 9) for tp in available}
    assert turns == [0, 1, 2, 0, 1, 2]


def test_partitions_take_turns_where_bytes_do_not_suffice_for_a_record_of_each() -> None:
    tps = [TopicPartition("u", index) for index in range(5)]
    positions: dict[TopicPartition, int] = dict.fromkeys(tps, 0)
    last, turns = None, []
    for _ in range(5):
        before = positions
        available = {tp: (position, 1_000) for tp, position in before.items()}
        positions = apply_limit_in_bytes(available, 15_000, SIZES.__getitem__, last)
        moved = [tp for tp in tps if positions[tp] > before[tp]]
        last = in_turn(moved, last)[-1]
        turns.append([tp.partition for tp in moved])
    assert turns == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]
