"""One task for each partition of a topic, shared among all processes that run this: python shards.py BROKERS TOPIC ME

Start it on several hosts, each with a name of its own (ME). A process that is restarted within the session has its
partitions again, and no other process notices.
"""

import asyncio
import sys
from contextlib import suppress

from spark_kgroup import Assigned, Group, Lost, Revoked, TopicPartition


async def work_on(partition: TopicPartition) -> None:
    """Stands for the work of one shard."""
    print("begin", partition, flush=True)
    await asyncio.Event().wait()


async def main(bootstrap: str, topic: str, me: str) -> None:
    """Run the tasks of the partitions that this process owns."""
    running: dict[TopicPartition, asyncio.Task[None]] = {}
    async with Group.connect(bootstrap, group=f"shards-of-{topic}", topics=[topic], instance_ids=[me]) as group:
        async for event in group.events():
            match event:
                case Assigned(partitions=partitions):
                    running |= {each: asyncio.create_task(work_on(each)) for each in partitions}
                case Revoked(partitions=partitions) | Lost(partitions=partitions):
                    for partition in partitions:
                        running.pop(partition).cancel()
                    if isinstance(event, Revoked):
                        group.release(partitions)
            print(me, "works on", *sorted(map(str, running)), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:4]))
