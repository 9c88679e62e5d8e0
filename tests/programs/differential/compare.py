"""Our assignors and Java's, each on the same groups until these are at rest."""

from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from differential.cases import Case
from spark_kgroup.assignors import assignor
from spark_kgroup.assignors._racks import is_near, racks_matter, racks_of_members, racks_of_partitions
from spark_kgroup.assignors.sticky import decode_user_data
from spark_kgroup.model import Assignment, GroupMember, TopicPartition

_ROUNDS_MAX: Final = 12
_NOWHERE: Final[frozenset[str]] = frozenset()


class Score(NamedTuple):
    """How good an assignment is. Less is better, and earlier fields count for more.

    Attributes:
        unevenness: the sum of the squares of the members' loads.
        far: partitions without a replica in their owner's rack, if that makes a difference in this group.
        moved: partitions that have left their owner.
    """

    unevenness: int
    far: int
    moved: int


@dataclass
class Findings:
    """The results of all cases so far.

    Attributes:
        wrong: cases in which ours breaks a promise, with words.
        more_moves: cases in which ours moves more than Java's, with the reason.
        counts: how many cases had which outcome.
    """

    wrong: list[tuple[Case, str]] = field(default_factory=list)
    more_moves: list[tuple[Case, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    moved_by_ours: int = 0
    moved_by_java: int = 0
    far_in_ours: int = 0
    far_in_java: int = 0

    def take(self, case: Case, answer: Mapping[str, Any]) -> None:
        """Compare ours with Java's answer to one case."""
        self.counts[f"{case.assignor}: cases"] += 1
        try:
            ours, rounds = at_rest(case)
        except ValueError as error:
            self.wrong.append((case, str(error)))
            return
        if problem := _problem_with_java(case, answer):
            self.counts[f"{case.assignor}: Java {problem}"] += 1
            return
        java = _shares_in(answer)
        if not case.sticky:
            if ours != java:
                self.wrong.append((case, "another assignment than Java's"))
            return
        self.counts[f"{case.assignor}: rounds of ours, {rounds}"] += 1
        self.counts[f"{case.assignor}: rounds of Java, {answer['rounds']}"] += 1
        if not _reads(answer.get("user_data", {}), java):
            self.wrong.append((case, "cannot read what Java's members say that they were assigned"))
        self._compare(case, _score(case, ours), _score(case, java))

    def exceptions(self) -> list[str]:
        """The cases in which ours moves more than Java's, one a line, each with its reason."""
        return [f"{case.seed} {case.assignor}: {reason}" for case, reason in self.more_moves]

    def _compare(self, case: Case, ours: Score, java: Score) -> None:
        self.moved_by_ours += ours.moved
        self.moved_by_java += java.moved
        self.far_in_ours += ours.far
        self.far_in_java += java.far
        if ours > java:
            self.wrong.append((case, f"{ours}, Java {java}"))
        self.counts[f"{case.assignor}: {'as good as Java' if ours == java else 'better'}"] += 1
        if ours.moved > java.moved:
            self.more_moves.append((case, _reason(ours, java)))


def _reason(ours: Score, java: Score) -> str:
    if ours.unevenness < java.unevenness:
        return f"better balanced, sum of squared loads {ours.unevenness} instead of {java.unevenness}"
    if ours.far < java.far:
        return f"nearer, {ours.far} partitions in other racks than their owner instead of {java.far}"
    return "no reason"


def at_rest(case: Case) -> tuple[dict[str, frozenset[TopicPartition]], int]:
    """The final assignment of our assignor, when no round changes it any more, and the number of rounds.

    Raises:
        ValueError: an assignment breaks a promise of `Assignor.assign`, or the group does not come to rest.
    """
    chosen, members = assignor(case.assignor), case.as_sent()
    for a_round in range(1, _ROUNDS_MAX + 1):
        shares = chosen.assign(members, case.topics)
        _check(case, members, shares)
        if not case.cooperative or all(m.subscription.owned == shares[m.member_id] for m in members):
            _check_complete(case, shares)
            return dict(shares), a_round
        members = [
            replace(
                m,
                subscription=replace(
                    m.subscription, owned=shares[m.member_id], generation=100 + a_round, user_data=None
                ),
            )
            for m in members
        ]
    raise ValueError(f"not at rest after {_ROUNDS_MAX} rounds")


def _check(case: Case, members: Iterable[GroupMember], shares: Assignment) -> None:
    wanted = {member.member_id: member.subscription.topics for member in members}
    if shares.keys() != wanted.keys():
        raise ValueError(f"assigns to {sorted(shares)}")
    assigned: set[TopicPartition] = set()
    for member_id, share in shares.items():
        if twice := assigned & share:
            raise ValueError(f"assigns {min(twice)} twice")
        if foreign := [tp for tp in share if tp.topic not in wanted[member_id]]:
            raise ValueError(f"assigns {foreign[0]} to {member_id}, who does not want it")
        if gone := [tp for tp in share if tp.partition >= case.topics[tp.topic].partition_count]:
            raise ValueError(f"assigns {gone[0]}, which does not exist")
        assigned |= share


def _check_complete(case: Case, shares: Assignment) -> None:
    wanted = {name for member in case.members for name in member.subscription.topics}
    wanted_partitions = {tp for name in wanted & case.topics.keys() for tp in case.topics[name].partitions}
    if missing := wanted_partitions - frozenset().union(*shares.values()):
        raise ValueError(f"{min(missing)} has no owner")


def _problem_with_java(case: Case, answer: Mapping[str, Any]) -> str:
    """Why its answer is none to compare with, or empty if it is one."""
    if "error" in answer:
        return f"fails ({answer['error'].split(':')[0]})"
    try:
        _check(case, case.members, _shares_in(answer))
        _check_complete(case, _shares_in(answer))
    except ValueError:
        return "leaves partitions out or assigns them twice"
    return ""


def _reads(user_data: Mapping[str, str], shares: Assignment) -> bool:
    """Whether we understand the user data of Java's sticky members, which all are in generation 7."""
    return all(decode_user_data(b64decode(raw)) == (shares[member], 7) for member, raw in user_data.items())


def _shares_in(answer: Mapping[str, Any]) -> dict[str, frozenset[TopicPartition]]:
    return {
        member_id: frozenset(TopicPartition(topic, index) for topic, index in pairs)
        for member_id, pairs in answer["shares"].items()
    }


def _score(case: Case, shares: Assignment) -> Score:
    racks = racks_of_members(case.members)
    wanted = {name for member in case.members for name in member.subscription.topics}
    if not racks_matter(set(racks.values()), racks_of_partitions(case.topics[n] for n in wanted & case.topics.keys())):
        racks = {}
    far = sum(
        not is_near(racks, member_id, case.topics[tp.topic].racks.get(tp.partition, _NOWHERE))
        for member_id, share in shares.items()
        for tp in share
    )
    moved = sum(partition not in shares[owner] for partition, owner in case.owners.items())
    return Score(sum(len(share) ** 2 for share in shares.values()), far, moved)


def compare(answers: Iterable[tuple[Case, Mapping[str, Any]]]) -> Findings:
    """All findings of cases, each given with Java's answer."""
    found = Findings()
    for case, answer in answers:
        found.take(case, answer)
    return found
