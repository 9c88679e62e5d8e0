"""Settings in the words of a command: flags, and properties in the file of --command-config."""

from __future__ import annotations

from typing import Final

from spark_kgroup.errors import FencedInstanceId, KgroupError

_NAMES: Final = {
    "bootstrap.servers": "--bootstrap-server",
    "group.id": "--group",
    "session.timeout.ms": "--session-timeout-ms",
    "metadata.max.age.ms": "--metadata-max-age-ms",
    "partition.assignment.strategy": "--assignor",
    "group.protocol": "--group-protocol",
    "group.remote.assignor": "--remote-assignor",
    "topics": "`--topics`",
    "members": "members",
    "token": "token function",
}
"""Setting -> its name in a command. All further settings stand in the file of --command-config, by their own names."""


def command_name_of(setting: str) -> str:
    """`setting` as a command's user spells it."""
    return _NAMES.get(setting, setting)


def put_in_command_terms(problem: KgroupError) -> None:
    """Name, in the message of `problem`, the flags or the file with which the user of a command makes its settings."""
    if isinstance(problem, FencedInstanceId):
        problem.args = (
            f"Another process took the seat {problem.instance_id!r} in group {problem.group!r} (FENCED_INSTANCE_ID): "
            "an application, or another member with the same --instance-id. The newest one keeps the seat.",
        )
    others: list[str] = []

    def note(setting: str) -> str:
        others.extend({setting} - _NAMES.keys())
        return command_name_of(setting)

    problem.name_settings(note)
    if others and "--command-config" not in str(problem):
        problem.args = (f"{problem} (Properties stand in the file that --command-config names.)",)
