"""The evidence of a run as a history: the facts that remain without the product's own words."""

from collections.abc import Iterator, Sequence

from history.facts import Committed, Ended, Exposed, Fact, Left, LogEnd, Read, Stored, Sunk

from chaos.evidence import ApplicationEvidence, Evidence, PeerEvidence, Span


def facts_of(evidence: Evidence) -> Iterator[Fact]:
    """Every fact. Those of one kind come in the order in which they happened."""
    yield from evidence.produced
    yield from _stored(evidence)
    for application in evidence.applications:
        yield from _sunk(application)
        yield from application.warnings
        yield from _exposed(application.name, application.exposed(evidence.commits, evidence.recreated))
    for peer in evidence.peers:
        yield from _read(peer)
        yield from _exposed(peer.name, peer.exposed)
    for commit in evidence.commits:
        yield Committed(*commit.partition, commit.offset, commit.wall_at_s, commit.by_us)
    for tp, end in sorted(evidence.log_ends.items()):
        yield LogEnd(*tp, end)
    for reader in evidence.readers:
        yield from (Ended(reader.name, *failure) for failure in reader.failures)
    yield from evidence.recreated
    yield from evidence.lasting
    yield from map(Left, evidence.processes_left)


def _stored(evidence: Evidence) -> Iterator[Stored]:
    for topics in (*evidence.earlier, evidence.topics):
        for (topic, partition), records in sorted(topics.items()):
            for offset, value in sorted(records.items()):
                yield Stored(topic, partition, offset, value.decode())


def _exposed(reader: str, spans: Sequence[Span]) -> Iterator[Exposed]:
    return (Exposed(reader, *tp, first, end) for tp, first, end in spans)


def _sunk(application: ApplicationEvidence) -> Iterator[Sunk]:
    for tp, offset, value, batch, file, wall_at_s in application.rows:
        yield Sunk(application.name, *tp, offset, value.decode(), batch, file, wall_at_s)


def _read(peer: PeerEvidence) -> Iterator[Read]:
    for row in peer.rows:
        yield Read(
            peer.name, row.partition.topic, row.partition.partition, row.offset, row.value.decode(), row.wall_at_s
        )
