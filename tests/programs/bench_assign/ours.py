"""`python -m bench_assign.ours CASE REPETITIONS`: our assignor on one case, one JSON object for each run."""

import json
import resource
import sys
import time

from bench_assign.cases import CASES, Case
from spark_kgroup.assignors import assignor
from spark_kgroup.model import Assignment, GroupMember, Subscription, TopicDescription


def run(case: Case) -> dict[str, float | int]:
    """Assign a new group, and once more when some have left."""
    sticky = assignor("cooperative-sticky")
    names = [f"t{number:04}" for number in range(case.topics)]
    topics = {name: TopicDescription(name=name, topic_id=None, partition_count=case.partitions) for name in names}
    subscriptions = [tuple(names[number] for number in wanted) for wanted in case.wanted()]
    everybody = [_member(number, Subscription(topics=wanted)) for number, wanted in enumerate(subscriptions)]
    began = time.thread_time()
    before = sticky.assign(everybody, topics)
    fresh_s = time.thread_time() - began
    stay = [_claiming(member, before) for number, member in enumerate(everybody) if not case.leaves(number)]
    began = time.thread_time()
    after = sticky.assign(stay, topics)
    left_s = time.thread_time() - began
    loads = [len(share) for share in after.values()]
    moved = sum(len(before[member] - share) for member, share in after.items())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "fresh_s": fresh_s,
        "left_s": left_s,
        "least": min(loads),
        "most": max(loads),
        "moved": moved,
        "peak_mib": peak_mib,
    }


def _member(number: int, subscription: Subscription) -> GroupMember:
    return GroupMember(member_id=f"m{number:04}", instance_id=None, subscription=subscription)


def _claiming(member: GroupMember, before: Assignment) -> GroupMember:
    """As a leader sees it: its claims were read from bytes, so they are equal to the assigned objects, not the same."""
    owned = frozenset(type(tp)(*tp) for tp in before[member.member_id])
    claims = Subscription(topics=member.subscription.topics, owned=owned, generation=1)
    return GroupMember(member_id=member.member_id, instance_id=None, subscription=claims)


if __name__ == "__main__":
    wanted = next(case for case in CASES if case.name == sys.argv[1])
    for _ in range(int(sys.argv[2])):
        print(json.dumps(run(wanted)), flush=True)
