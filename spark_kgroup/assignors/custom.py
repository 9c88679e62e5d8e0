"""Custom assignors: `module:Class`, loaded by that name, with every answer checked against the contract."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import Any, Final

from spark_kgroup.assignors.contract import Assignor, RebalanceProtocol, check_assignment
from spark_kgroup.errors import AssignorError, OptionError
from spark_kgroup.limits import CUSTOM_ASSIGNOR_TIMEOUT_MS
from spark_kgroup.model import Assignment, GroupMember, TopicDescription, TopicPartition
from spark_kgroup.threads import in_a_thread

SPELLING: Final = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*:[A-Za-z_]\w*(?:\.\w+)*")
"""How a custom assignor is named. No name of Kafka's has a colon."""


class CustomAssignor:
    """A user's assignor. Every failure in it is an `AssignorError` that names it.

    Attributes:
        spelled: `module:Class`.
        name: the name on which members agree, as any other assignor's.
        protocol: the rebalance protocol that it declares.
    """

    def __init__(self, spelled: str, made: Assignor) -> None:
        self.spelled = spelled
        self.name = made.name
        self.protocol = RebalanceProtocol(made.protocol)
        self._made = made
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"its `name` is {self.name!r}, and should be text on which members agree")
        if not callable(made.user_data) or not callable(made.assign):
            raise TypeError("its `user_data` and `assign` should be methods")

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """The assignor's own bytes in a member's subscription.

        Raises:
            AssignorError: it raised, took longer than `CUSTOM_ASSIGNOR_TIMEOUT_MS`, or gave neither bytes nor None.
        """
        found = self._ask("user_data", owned, generation)
        if not isinstance(found, bytes | None):
            raise AssignorError(
                f"The assignor {self.spelled} gave user data of type {type(found).__name__}, not bytes."
            )
        return found

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """The assignor's assignment, checked, with an empty set for each member that it left out.

        Raises:
            AssignorError: it raised, took longer than `CUSTOM_ASSIGNOR_TIMEOUT_MS`, or broke the contract.
        """
        # The assignor gets copies: its answer is checked against the true members and topics even if it changes its
        # arguments.
        found = self._ask("assign", list(members), {name: _copy_topic(topic) for name, topic in topics.items()})
        if not isinstance(found, Mapping) or not all(isinstance(share, Collection) for share in found.values()):
            raise AssignorError(
                f"The assignor {self.spelled} should give a mapping from member ids to sets of partitions."
            )
        check_assignment(self.spelled, self.protocol, members, topics, found)
        return {member.member_id: frozenset(found.get(member.member_id, ())) for member in members}

    def _ask(self, what: str, *arguments: Any) -> Any:
        asked = in_a_thread(lambda: getattr(self._made, what)(*arguments), f"{what} of {self.spelled}")
        if not _ends_in_time(asked):
            raise AssignorError(
                f"The assignor {self.spelled} did not return from {what} within {CUSTOM_ASSIGNOR_TIMEOUT_MS} ms."
            )
        try:
            return asked.result()
        except BaseException as error:
            raise AssignorError(f"The assignor {self.spelled} raised in {what}: {error!r}.") from error


def load_assignor(spelled: str) -> CustomAssignor:
    """An instance of the class that `spelled` names, made without arguments.

    Raises:
        OptionError: there is no such class, it is no assignor, or this took longer than `CUSTOM_ASSIGNOR_TIMEOUT_MS`.
    """
    module, _, of_module = spelled.partition(":")

    def make() -> CustomAssignor:
        found = attrgetter(of_module)(import_module(module))
        # BEFORE it is called: a name in a configuration must not instantiate just any class.
        if not isinstance(found, type) or Assignor not in found.__mro__:
            raise TypeError("it is not a class that derives from spark_kgroup.assignors.contract.Assignor")
        return CustomAssignor(spelled, found())

    made = in_a_thread(make, f"import of {spelled}")
    try:
        if not _ends_in_time(made):
            raise TimeoutError(f"it was not imported and made within {CUSTOM_ASSIGNOR_TIMEOUT_MS} ms")
        return made.result()
    # Ctrl-C ends the wait in this thread, and is no failure of the assignor.
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: it would end this process, and as if all were well
        raise OptionError(
            f"The assignor {spelled!r} in `partition.assignment.strategy` cannot be used: {error!r}. It should be the "
            "module:Class of a subclass of spark_kgroup.assignors.contract.Assignor that this process can import and "
            "make without arguments."
        ) from error


def _ends_in_time(future: Future[Any]) -> bool:
    return bool(wait([future], CUSTOM_ASSIGNOR_TIMEOUT_MS / 1000).done)


def _copy_topic(topic: TopicDescription) -> TopicDescription:
    return replace(topic, racks=dict(topic.racks), leaders=dict(topic.leaders), leader_epochs=dict(topic.leader_epochs))
