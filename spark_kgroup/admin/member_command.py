"""`kgroup member`: one member of a group in a terminal, for people and for tests. Reads nothing, commits nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from spark_kgroup.admin.command_config import HELP as COMMAND_CONFIG_HELP
from spark_kgroup.admin.command_config import security_from
from spark_kgroup.assignors import NAMES
from spark_kgroup.assignors import assignor as known
from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.limits import METADATA_MAX_AGE_MS, SESSION_TIMEOUT_MS
from spark_kgroup.member import effects as fx
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.runtime.group import Group, GroupSettings
from spark_kgroup.runtime.session import Session
from spark_kgroup.wire.cluster import parse_bootstrap
from spark_kgroup.wire.security import Plaintext

EXAMPLES = (
    "Examples:\n\n"
    "kgroup member --bootstrap-server localhost:9092 --group orders --instance-id orders-0 --topics orders\n\n"
    "kgroup member --bootstrap-server localhost:9092 --group orders --instance-id orders-0 --topics orders --json\n\n"
    "kgroup member --bootstrap-server localhost:9092 --group orders --instance-id orders-0 --topics orders --leave\n\n"
    "kgroup member --bootstrap-server localhost:9093 --group orders --topics orders --command-config client.properties"
)


class EventPrinter:
    """Turns a session's effects into lines, one per event.

    Args:
        write: takes one event as a mapping.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        self._write = write

    def __call__(self, session: Session, effect: fx.Effect) -> None:
        """The runtime's observer."""
        match effect:
            case fx.Joined(skip_assignment=skip):
                self._event(session, "joined")
                if skip:
                    self._event(session, "skip_assignment", reason="the group is stable: its assignment stands")
            case fx.Assigned(owned=owned, added=added, revoked=revoked):
                if revoked:
                    self._event(session, "revoked", partitions=pairs(owned), revoked=pairs(revoked))
                self._event(session, "assigned", partitions=pairs(owned), added=pairs(added))
                if revoked:
                    session.post(fx.GaveUp(partitions=revoked))  # nothing is read here, so nothing is waited for
            case fx.Lost(partitions=partitions, reason=reason):
                self._event(session, "lost", partitions=[], revoked=pairs(partitions), reason=reason)
            case fx.Rejoining(reason=reason):
                self._event(session, "rejoining", reason=reason)
            case fx.Left(error=code):
                self._left(session, code)
            case fx.Failed(error=error):
                name = "fenced" if isinstance(error, FencedInstanceId) else "error"
                self._event(session, name, partitions=[], reason=str(error))
            case _:
                pass

    def _left(self, session: Session, code: int) -> None:
        if code == ErrorCode.NONE:
            self._event(session, "left", partitions=[])
        else:
            reason = f"could not leave ({ErrorCode.name_of(code)}); the seat stays until its session times out"
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
    """One readable line."""
    at = time.strftime("%H:%M:%S", time.localtime(event["at_ms"] / 1000))
    role = " leader" if event["leader"] else ""
    told = [f"{at}  [bold]{event['event']:<15}[/]  generation {event['generation']}{role}"]
    told += [f"{key} {_short(event[key])}" for key in ("partitions", "added", "revoked") if key in event]
    if "reason" in event:
        told.append(escape(f"({event['reason']})"))
    Console(soft_wrap=True, highlight=False).print("  ".join(told))


def _short(partitions: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{topic}-{index}" for topic, index in partitions) or "none"


def member(
    bootstrap_server: Annotated[str, typer.Option(help="HOST:PORT[,HOST:PORT] of any brokers of the cluster.")],
    group: Annotated[str, typer.Option(help="The group to join.")],
    topics: Annotated[str, typer.Option(help="Topics to subscribe to, separated by commas.")],
    instance_id: Annotated[
        str | None, typer.Option(help="Makes the member static (KIP-345). Without it, it leaves on Ctrl-C.")
    ] = None,
    assignor: Annotated[
        str, typer.Option(metavar="|".join(NAMES), help="How the leader assigns.")
    ] = "cooperative-sticky",
    metadata_max_age_ms: Annotated[
        int, typer.Option(min=10, help="How often the leader looks for new partitions.")
    ] = METADATA_MAX_AGE_MS,
    session_timeout_ms: Annotated[
        int, typer.Option(min=1, help="Silence after which the coordinator gives the seat away.")
    ] = SESSION_TIMEOUT_MS,
    command_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=COMMAND_CONFIG_HELP),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one JSON object.")] = False,
    leave: Annotated[bool, typer.Option("--leave", help="On Ctrl-C, give the seat back for good.")] = False,
) -> None:
    """Join a group and print one line per event, until Ctrl-C. Reads nothing and commits nothing."""
    settings = GroupSettings(
        bootstrap=parse_bootstrap(bootstrap_server),
        group=group,
        topics=tuple(sorted({name.strip() for name in topics.split(",") if name.strip()})),
        instance_ids=(instance_id,),
        assignors=(known(assignor).name,),
        session_timeout_ms=session_timeout_ms,
        metadata_max_age_ms=metadata_max_age_ms,
        client_id="kgroup-member",
        security=security_from(command_config) if command_config else Plaintext(),
    )
    printer = EventPrinter(write_json if as_json else write_text)
    asyncio.run(_run(settings, printer, leave=leave or instance_id is None))


async def _run(settings: GroupSettings, printer: EventPrinter, *, leave: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)

    def observe(session: Session, effect: fx.Effect) -> None:
        printer(session, effect)
        if isinstance(effect, fx.Failed):
            stop.set()

    group = Group(settings, observer=observe)
    try:
        await group.start()
        await stop.wait()
        group.view()  # raises what the member failed of
        if leave:
            await group.leave()
    finally:
        await group.close()
