"""Finds the partitions that a seat must give up and that another application reads already.

Runs on: driver. Between two batches only (`boundary`), and only if partitions are to be given up.

In a classic group there are none: a partition that a member claims is not given to another member (KIP-429). But
brokers that convert a group to type consumer (KIP-848) take over assignments alone: 1. A generation asks P back from
us, and a batch is reading P. 2. A member with `group.protocol=consumer` joins, and is given P at once. 3. It reads on
and commits. 4. We come to our boundary. The broker would accept our commit, since it checks the member and not who owns
the partition, and the commit would set the group's offset back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyspark_kgroup.driver.boundary.group_port import GroupPort
from pyspark_kgroup.offsets.adoption import Writer
from pyspark_kgroup.options.values import join
from spark_kgroup.errors import WireError
from spark_kgroup.limits import COMMIT_TIMEOUT_MS
from spark_kgroup.model import TopicPartition
from spark_kgroup.seat_note import Author

log = logging.getLogger(__name__)


def find_taken_over(
    group: GroupPort, ours: Mapping[TopicPartition, Collection[int | None]], seats: Collection[str], us: Author
) -> frozenset[TopicPartition]:
    """Those of `ours` that a member other than our seats owns, or for which another writer has committed.

    They are named in a warning.

    Neither sign is enough: an owner that is asked to give up in its turn does not show as the owner, and an owner that
    has just begun has not committed yet.

    Args:
        group: described first, then asked for its offsets: each within `COMMIT_TIMEOUT_MS`, like the commit.
        ours: partition -> committed offsets that are no sign of another writer: the last one that we know of, and the
            one that we are about to commit. We may have committed that one before, without an answer, and it may have
            no text beside it.
        seats: the instance ids of our seats.
        us: the author that we write beside our commits.

    Raises:
        WireError: the coordinator did not answer in time. A commit would most likely have met the same.
    """
    theirs = _owned_by_others(group, seats)
    committed = group.committed(ours, COMMIT_TIMEOUT_MS)
    theirs |= {
        tp
        for tp, commit in committed.items()
        if commit is not None and commit.offset not in ours[tp] and Writer.of(commit.metadata, us) is not Writer.US
    }
    if taken := frozenset(theirs & ours.keys()):
        log.warning(
            "The group gave %s to another application while a batch of this query was reading there, as brokers do "
            "when they convert a group (group.protocol=consumer): the position of that batch is not committed, and its "
            "records may be delivered twice, by both applications.",
            join(sorted(taken)),
        )
    return taken


def _owned_by_others(group: GroupPort, seats: Collection[str]) -> set[TopicPartition]:
    """The partitions that other members own, or an empty set where a topic hidden from us hides the whole group."""
    try:
        described = group.describe(COMMIT_TIMEOUT_MS)
    except WireError as error:
        if error.retriable:
            raise
        log.info(
            "brokers do not say which members own the partitions to give up, so committed offsets decide: %s", error
        )
        return set()
    return {tp for member in described.members if member.instance_id not in seats for tp in member.assignment}
