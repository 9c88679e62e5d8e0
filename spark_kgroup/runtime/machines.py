"""Which machine runs a member: the protocol of its configuration decides, and only here."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from spark_kgroup.member.classic import ClassicMember
from spark_kgroup.member.config import MemberConfig
from spark_kgroup.member.machine import Config, Machine


def make_machine(config: Config, rng: Random, rests: Callable[[], bool]) -> Machine:
    """A new machine for `config`. `rests` is for the classic protocol: see `ClassicMember`."""
    if isinstance(config, MemberConfig):
        return ClassicMember(config, jitter=rng.random, rests=rests)
    # Imported here: a start need not load modules that it does not use.
    from spark_kgroup.member.consumer import ConsumerMember
    from spark_kgroup.member.member_ids import new_member_id

    return ConsumerMember(config, jitter=rng.random, new_id=lambda: new_member_id(rng.randbytes))
