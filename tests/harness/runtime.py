"""The seats of one query without Spark: a runtime, and the boundary that Spark would ask."""

from pyspark_kgroup.options.parser import SourceOptions, parse
from spark_kgroup.member import contract
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, OngoingWork, ProtocolSettings
from spark_kgroup.runtime.views import GroupView
from spark_kgroup.wire.address import parse_bootstrap


def options_of(bootstrap: str, topic: str, prefix: str, members: int, **more: str) -> SourceOptions:
    return parse(
        {
            "kafka.bootstrap.servers": bootstrap,
            "kafka.group.id": f"of-{topic}",
            "subscribe": topic,
            "members": str(members),
            "instanceIdPrefix": prefix,
            "startingOffsets": "earliest",
            "kafka.metadata.max.age.ms": "1000",
            "kafka.heartbeat.interval.ms": "200",
            **more,
        }
    )


def settings_of(options: SourceOptions) -> GroupSettings:
    return GroupSettings(
        bootstrap=parse_bootstrap(options.bootstrap_servers),
        group=options.group_id,
        topics=options.subscription.topics,
        pattern=options.subscription.pattern,
        instance_ids=options.instance_ids,
        client=ClientSettings(metadata_max_age_ms=options.metadata_max_age_ms),
        protocol=ProtocolSettings(session_timeout_ms=30_000, heartbeat_interval_ms=options.heartbeat_interval_ms),
        work=OngoingWork(holds_rebalances=True),
    )


def owned(view: GroupView) -> set[TopicPartition]:
    return {tp for seat in view.seats for tp in seat.owned_since}


def give_up_at_once(session: Session, notice: contract.Notice) -> None:
    """An observer of a `Group` whose application reads no record: a partition is given up once it is asked for."""
    match notice:
        case contract.Assigned(revoked=revoked) if revoked:
            session.post(contract.GaveUp(partitions=revoked))
        case contract.GiveUpAll(partitions=partitions):
            session.post(contract.GaveUp(partitions=partitions))
