"""One run in a process of its own: seats on a running Kafka, as the arguments say. Prints `Sessions` as JSON."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from confluent_kafka.admin import AdminClient, NewPartitions
from harness.runtime import give_up_at_once

from bench_sessions.measured import Cpu, Sessions, memory_mib
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, ProtocolSettings
from spark_kgroup.wire.address import parse_bootstrap

SETTLING_S = 15
"""From the last share on, until seats have beaten often enough to rest, and brokers have written their logs."""

REST_S = 60
BOUND_S = 600
POLL_S = 0.25  # a look at 1,000 seats takes 15 ms


def _owners(group: Group) -> dict[TopicPartition, str | None]:
    return {tp: seat.instance_id for seat in group.view().seats for tp in seat.owned_since}


def _all_own(group: Group, partitions: int) -> bool:
    seats = group.view().seats
    shares = [len(seat.owned_since) for seat in seats]
    at_rest = all(seat.settled and not seat.to_give_up for seat in seats)
    return at_rest and len(_owners(group)) == partitions and max(shares) - min(shares) <= 1


async def _until(condition: Callable[[], bool], what: str) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + BOUND_S:
            raise TimeoutError(f"waited {BOUND_S} s in vain for {what}")
        await asyncio.sleep(POLL_S)
    return time.monotonic() - began


async def _measure(bootstrap: str, broker: int, topic: str, protocol: str, seats: int, partitions: int) -> Sessions:
    settings = GroupSettings(
        bootstrap=parse_bootstrap(bootstrap),
        group=f"{protocol}-{topic}",
        topics=(topic,),
        instance_ids=tuple(f"seat-{number}" for number in range(seats)),
        protocol=ProtocolSettings(name=protocol, rebalance_timeout_ms=BOUND_S * 1_000),
        client=ClientSettings(metadata_max_age_ms=3_000, api_timeout_ms=BOUND_S * 1_000),
    )
    group = Group(settings, observer=give_up_at_once)
    before = Cpu.now(broker)
    began = time.monotonic()
    await group.start()
    try:
        await _until(lambda: _all_own(group, partitions), f"{seats} seats to have their shares")
        started_s, starting = time.monotonic() - began, Cpu.now(broker).since(before)
        await asyncio.sleep(SETTLING_S)
        before = Cpu.now(broker)
        await asyncio.sleep(REST_S)
        minute = Cpu.now(broker).since(before)
        owners, before = _owners(group), Cpu.now(broker)
        more = partitions + seats
        admin = AdminClient({"bootstrap.servers": bootstrap})
        await asyncio.to_thread(admin.create_partitions([NewPartitions(topic, more)])[topic].result, 60)
        noticed_s = await _until(lambda: _all_own(group, more), f"{seats} new partitions to be owned")
        noticing, now = Cpu.now(broker).since(before), _owners(group)
        moved = sum(now[tp] != owner for tp, owner in owners.items())
        return Sessions(
            protocol, seats, partitions, started_s, starting, minute, noticed_s, noticing, moved, memory_mib()
        )
    finally:
        await group.close()


if __name__ == "__main__":
    bootstrap, broker, topic, protocol, seats, partitions = sys.argv[1:]
    sessions = asyncio.run(_measure(bootstrap, int(broker), topic, protocol, int(seats), int(partitions)))
    print(json.dumps(asdict(sessions)))  # the parent reads it
