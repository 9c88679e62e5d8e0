"""`kgroup member`: one member of a group in a terminal, for people and for tests. It reads and commits no offsets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, assert_never

import typer

from spark_kgroup.admin.command_config import HELP as COMMAND_CONFIG_HELP
from spark_kgroup.admin.command_config import security_from
from spark_kgroup.admin.command_output import say
from spark_kgroup.admin.stop_signals import stop_signals
from spark_kgroup.assignors import NAMES, assignors_called
from spark_kgroup.errors import FencedInstanceId, OptionError
from spark_kgroup.limits import (
    DYNAMIC_SESSION_TIMEOUT_MS,
    METADATA_MAX_AGE_MS,
    SESSION_TIMEOUT_MS,
    STRING_BYTES_MAX,
)
from spark_kgroup.member import contract
from spark_kgroup.model import AUTO, BROKER, CLASSIC, CLIENT, CONSUMER, ErrorCode, TopicPartition
from spark_kgroup.peer_words import printable
from spark_kgroup.runtime.settings import (
    ClientSettings,
    GroupSettings,
    OwnerHooks,
    ProtocolSettings,
    default_heartbeat_interval_ms,
)
from spark_kgroup.topic_pattern import TopicPattern
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.security.settings import Plaintext

if TYPE_CHECKING:
    from spark_kgroup.runtime.session import Session

EXAMPLES = (
    "Examples:\n\n"
    "kgroup member --bootstrap-server localhost:9092 --group orders --instance-id orders-0 --topics orders\n\n"
    "kgroup member --bootstrap-server localhost:9092 --group orders --instance-id orders-0 --topics orders --json\n\n"
    "kgroup member --bootstrap-server localhost:9092 --group orders --instance-id orders-0 --topics orders --leave\n\n"
    "kgroup member --bootstrap-server localhost:9092 --group orders --pattern 'orders-.*'\n\n"
    "kgroup member --bootstrap-server localhost:9093 --group orders --topics orders --command-config client.properties"
)


_ASSIGNOR: Final = "cooperative-sticky"

_FATAL: Final = ("fenced", "error")
"""Events that end the member: the command ends with their error."""

_PIPE_CLOSED: Final = 128 + signal.SIGPIPE
"""The exit code of a command whose reader has enough, as shells give it: `kgroup member | head -1`."""


class EventPrinter:
    """Turns a session's effects into lines, one per event.

    Args:
        write: takes one event as a mapping.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        self._write = write

    def __call__(self, session: Session, effect: contract.Notice) -> None:
        """The runtime's observer."""
        match effect:
            case contract.Joined(skip_assignment=skip):
                self._event(session, "joined")
                if skip:
                    self._event(session, "skip_assignment", reason="the group is stable: its assignment stands")
            case contract.Assigned():
                self._on_assigned(session, effect)
            case contract.GiveUpAll(partitions=partitions):
                self._give_up(session, partitions, kept=frozenset())
            case contract.Lost(partitions=partitions, reason=reason):
                self._event(session, "lost", partitions=[], revoked=pairs(partitions), reason=reason)
            case contract.Rejoining(reason=reason):
                self._event(session, "rejoining", reason=reason)
            case contract.Left(error=code):
                self._on_left(session, code)
            case contract.Failed(error=error):
                name = "fenced" if isinstance(error, FencedInstanceId) else "error"
                self._event(session, name, partitions=[], reason=str(error))
            case _:
                assert_never(effect)

    def _on_assigned(self, session: Session, effect: contract.Assigned) -> None:
        kept = effect.assigned - effect.revoked
        if effect.revoked:
            self._give_up(session, effect.revoked, kept=kept)
        self._event(session, "assigned", partitions=pairs(kept), added=pairs(effect.added & kept))

    def _give_up(
        self, session: Session, partitions: frozenset[TopicPartition], *, kept: frozenset[TopicPartition]
    ) -> None:
        """Report the revocation and confirm it at once: this member reads no records that would have to end first."""
        self._event(session, "revoked", partitions=pairs(kept), revoked=pairs(partitions))
        session.post(contract.GaveUp(partitions=partitions))

    def _on_left(self, session: Session, code: int) -> None:
        if code == ErrorCode.NONE:
            self._event(session, "left", partitions=[])
        elif session.failure is None:  # a failure was reported when it ended the session
            reason = f"could not leave ({ErrorCode.name_of(code)}): the seat stays until its session times out"
            self._event(session, "error", partitions=[], reason=reason)

    def _event(self, session: Session, event: str, **more: Any) -> None:
        who = session.machine.identity
        self._write(
            {
                "event": event,
                "at_ms": time.time_ns() // 1_000_000,
                "member_id": who.member_id,
                "instance_id": who.instance_id,
                "generation": who.generation,
                "leader": session.machine.leader,
                **more,
            }
        )


def pairs(partitions: Iterable[TopicPartition]) -> list[list[str | int]]:
    """Partitions as JSON: `[[topic, partition], ...]`, sorted."""
    return [[tp.topic, tp.partition] for tp in sorted(partitions)]


def write_json(event: Mapping[str, Any]) -> None:
    """One JSON object a line, at once."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def write_text(event: Mapping[str, Any]) -> None:
    """One readable line. The reason of a fatal event is left out: the command prints it once, as its error."""
    at = time.strftime("%H:%M:%S", time.localtime(event["at_ms"] / 1000))
    role = " leader" if event["leader"] else ""
    name = typer.style(f"{event['event']:<15}", bold=True)
    words = [f"generation {event['generation']}{role}"]
    words += [f"{key} {_short(event[key])}" for key in ("partitions", "added", "revoked") if key in event]
    if "reason" in event and event["event"] not in _FATAL:
        words.append(f"({event['reason']})")
    typer.echo(f"{at}  {name}  {'  '.join(map(printable, words))}")


def _short(partitions: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{topic}-{index}" for topic, index in partitions) or "none"


def member(
    bootstrap_server: Annotated[str, typer.Option(help="HOST:PORT[,HOST:PORT] of any brokers of the cluster.")],
    group: Annotated[str, typer.Option(help="The group to join.")],
    topics: Annotated[str | None, typer.Option(help="Topics to subscribe to, separated by commas.")] = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Subscribe to all topics whose whole name it matches, in Java's syntax."),
    ] = None,
    instance_id: Annotated[
        str | None, typer.Option(help="Makes the member static (KIP-345). One without it leaves on Ctrl-C.")
    ] = None,
    assignor: Annotated[
        str,
        typer.Option(
            metavar="|".join(NAMES),
            help="How the leader assigns partitions: several with commas in between, the preferred one first, or "
            "module:Class of your own.",
        ),
    ] = _ASSIGNOR,
    rack: Annotated[str | None, typer.Option(help="Where the member reads (client.rack, KIP-881).")] = None,
    group_protocol: Annotated[
        str,
        typer.Option(
            metavar=f"{CLASSIC}|{CONSUMER}",
            help=f"{CONSUMER}: the brokers assign, and decide about sessions (KIP-848, Kafka 4.0).",
        ),
    ] = CLASSIC,
    member_ids: Annotated[
        str,
        typer.Option(
            metavar=f"{BROKER}|{CLIENT}|{AUTO}",
            help=f"{CLIENT}: a static member has an id of its own making, where brokers of Kafka 4.1 allow it. {AUTO}: "
            "if it is the first one in its group.",
        ),
    ] = BROKER,
    remote_assignor: Annotated[
        str | None,
        typer.Option(help=f"With --group-protocol {CONSUMER}: the broker's assignor, as uniform or range."),
    ] = None,
    metadata_max_age_ms: Annotated[
        int, typer.Option(min=10, help="How often the member looks for new partitions.")
    ] = METADATA_MAX_AGE_MS,
    session_timeout_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How long the member may be silent before other members get its partitions: by default "
            f"{SESSION_TIMEOUT_MS} with --instance-id, {DYNAMIC_SESSION_TIMEOUT_MS} without.",
        ),
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=COMMAND_CONFIG_HELP),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one JSON object.")] = False,
    leave: Annotated[
        bool, typer.Option("--leave", help="On Ctrl-C, leave the group instead of keeping the seat.")
    ] = False,
) -> None:
    """Join a group and print one line per event, until Ctrl-C. Reads no records and commits no offsets."""
    _check_protocol(group_protocol, remote_assignor, assignor, session_timeout_ms)
    _check_topics(topics, pattern)
    if session_timeout_ms is None:
        session_timeout_ms = SESSION_TIMEOUT_MS if instance_id is not None else DYNAMIC_SESSION_TIMEOUT_MS
    settings = GroupSettings(
        bootstrap=parse_bootstrap(bootstrap_server),
        group=group,
        topics=_topics(topics) if topics is not None else (),
        pattern=_pattern(pattern),
        instance_ids=(instance_id,),
        protocol=ProtocolSettings(
            name=group_protocol,
            assignors=_assignors(assignor),
            server_assignor=remote_assignor,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=default_heartbeat_interval_ms(session_timeout_ms),
            own_ids=_member_ids(member_ids, group_protocol, instance_id) == CLIENT,
            own_ids_if_alone=member_ids == AUTO,
        ),
        client=ClientSettings(
            client_id="kgroup-member",
            security=security_from(command_config) if command_config else Plaintext(),
            metadata_max_age_ms=metadata_max_age_ms,
        ),
        hooks=OwnerHooks(rack_of=lambda _: rack or None),
    )
    if rack is not None and len(rack.encode()) > STRING_BYTES_MAX:
        raise OptionError(f"--rack has more than the {STRING_BYTES_MAX} bytes that brokers take.")
    if instance_id == "":
        raise OptionError("--instance-id is empty: name the seat, or leave the option out for a dynamic member.")
    printer = EventPrinter(write_json if as_json else write_text)
    try:
        # No process comes back for a dynamic member: its partitions would rest until its session is over.
        asyncio.run(_run(settings, printer, leave=leave or instance_id is None))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more
        raise typer.Exit(_PIPE_CLOSED) from None
    if not leave and instance_id is not None:
        lasts = "the brokers' session timeout" if group_protocol == CONSUMER else f"{session_timeout_ms / 1000:g} s"
        say(
            f"The seat {printable(repr(instance_id))} stays in the group: no other member gets its partitions for "
            f"{lasts}. With --leave it is given back at once."
        )


def _check_protocol(protocol: str, remote_assignor: str | None, assignor: str, session_timeout_ms: int | None) -> None:
    """Refuse options that the protocol has no use for.

    Raises:
        OptionError: an option does not fit the protocol. The message names it and the fix.
    """
    if protocol not in (CLASSIC, CONSUMER):
        raise OptionError(f"--group-protocol {protocol!r} is unknown: set {CLASSIC} or {CONSUMER}.")
    if protocol == CLASSIC and remote_assignor is not None:
        raise OptionError(f"--remote-assignor is for --group-protocol {CONSUMER}: set that, or use --assignor.")
    if protocol == CONSUMER and assignor != _ASSIGNOR:
        raise OptionError(f"--assignor is for --group-protocol {CLASSIC}: use --remote-assignor, or leave it out.")
    if protocol == CONSUMER and session_timeout_ms is not None:
        raise OptionError(
            f"--session-timeout-ms is for --group-protocol {CLASSIC}: under {CONSUMER} the brokers decide "
            "(group.consumer.session.timeout.ms, or the group's consumer.session.timeout.ms). Leave it out."
        )


def _member_ids(member_ids: str, protocol: str, instance_id: str | None) -> str:
    """The checked `--member-ids`: whether the broker or the member makes the member's id.

    Raises:
        OptionError: the value is unknown, or does not fit the other options. The message names the fix.
    """
    if member_ids not in (BROKER, CLIENT, AUTO):
        raise OptionError(f"--member-ids {member_ids!r} is unknown: set {BROKER}, {CLIENT} or {AUTO}.")
    if member_ids != BROKER and protocol == CONSUMER:
        raise OptionError(
            f"--member-ids is for --group-protocol {CLASSIC}: each member makes its own under {CONSUMER}."
        )
    if member_ids != BROKER and instance_id is None:
        raise OptionError(f"--member-ids {member_ids} is for static members: give an --instance-id.")
    return member_ids


def _assignors(listed: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in listed.split(",") if name.strip())
    if not names:
        raise OptionError(f"--assignor names none: give one of {', '.join(NAMES)}, or module:Class of your own.")
    assignors_called(names)  # a wrong name is an error before the member connects
    return names


def _check_topics(topics: str | None, pattern: str | None) -> None:
    """Refuse a command line without topics, or with both --topics and --pattern.

    Raises:
        OptionError: it names both options.
    """
    if (topics is None) == (pattern is None):
        raise OptionError("Which topics? Give either --topics, or --pattern.")


def _pattern(java: str | None) -> TopicPattern | None:
    try:
        return TopicPattern(java) if java is not None else None
    except OptionError as wrong:
        raise OptionError(f"--pattern is not taken: {wrong}") from None


def _topics(listed: str) -> tuple[str, ...]:
    topics = tuple(sorted({name.strip() for name in listed.split(",") if name.strip()}))
    if not topics:
        raise OptionError("--topics names no topic: give at least one, several with commas in between.")
    return topics


async def _run(settings: GroupSettings, printer: EventPrinter, *, leave: bool) -> None:
    from spark_kgroup.runtime.group import Group  # here, since --help needs none of it

    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(problem: BaseException | None = None) -> None:
        if over.done():
            return
        if problem is None:
            over.set_result(None)
        else:
            over.set_exception(problem)

    for signum in stop_signals():
        loop.add_signal_handler(signum, end)

    def observe(session: Session, notice: contract.Notice) -> None:
        try:
            printer(session, notice)
        except Exception as problem:  # noqa: BLE001 - raised by `over`; here it would end the heartbeats and nothing else
            end(problem)
        if isinstance(notice, contract.Failed):
            end()

    group = Group(settings, observer=observe)
    try:
        await group.start()
        try:
            await over
        finally:
            group.view()  # raises the error that ended the member, if one did
            if leave:
                await group.leave()
    finally:
        await group.close()
