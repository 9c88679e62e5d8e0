"""A seat's server logs in as a worker does, and stays logged in."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation
from harness.kafka import produce
from harness.secured import ALICE, PASSWORDS
from harness.sidecars import Query, seat_servers_of, sidecars_of, sleeping_executor
from harness.waiting import wait_for

from spark_kgroup.errors import BrokerError

if TYPE_CHECKING:
    from harness.secured import SecuredKafka

pytestmark = pytest.mark.xdist_group("together-secured_kafka")

RECORDS = 50_000

TOKEN_LIFE_S = 6
CALLBACK = f"""
import os, time
from pyspark_kgroup import token_callback
from spark_kgroup.testing import unsecured_token

@token_callback
def token(path):
    with open(path, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    return unsecured_token("alice", {TOKEN_LIFE_S}), time.time() + {TOKEN_LIFE_S}
"""


def test_a_login_ends_while_there_is_no_room_for_more_and_the_next_read_has_a_new_token(
    secured_kafka: "SecuredKafka", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is where Spark puts files that users ship: on the worker's path, and not installed."""
    topic, pids = f"topic-{uuid4().hex[:8]}", tmp_path / "pids"
    secured_kafka.kafka.create_topic(topic, partitions=1)
    produce(secured_kafka.kafka.bootstrap_servers, topic, RECORDS, partitions=1, size=100)
    secured_kafka.allow(ALICE, AclOperation.READ, topic=topic)
    (tmp_path / "tokens_of_mine.py").write_text(CALLBACK)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    options: dict[str, Any] = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.ca.pem": secured_kafka.ca_pem,
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.config": str(pids),
        "tokenCallback": "tokens_of_mine:token",
    }
    with (
        sleeping_executor() as executor,
        Query(
            secured_kafka.bootstrap("SASL_SSL"), topic, {"seat-0": [0]}, prefetch_bytes=1024 * 1024, **options
        ) as query,
    ):
        ours = asked_by(pids, os.getpid())
        assert len(query.run(executor, {0: (0, 10)})) == 10
        wall_expires_at_s = time.time() + TOKEN_LIFE_S
        (server,) = seat_servers_of(sidecars_of(query, executor)[0])
        wait_for(lambda: time.time() > wall_expires_at_s, "the first token to expire", 60)
        assert len(query.run(executor, {0: (10, RECORDS)})) == RECORDS - 10
        assert asked_by(pids, server) >= 2
        assert asked_by(pids, os.getpid()) == ours, "the seat's server has read, not this process"
        wait_for(lambda: query.registry.counts().warm_reads == 2, "both reads to be served by the seat's server")


def test_rights_that_are_taken_away_while_a_seats_server_reads_are_the_error_of_its_worker(
    secured_kafka: "SecuredKafka",
) -> None:
    """Within seconds: first come the rows that the seat server fetched ahead, then the worker is refused too."""
    topic = f"topic-{uuid4().hex[:8]}"
    secured_kafka.kafka.create_topic(topic, partitions=1)
    produce(secured_kafka.kafka.bootstrap_servers, topic, RECORDS, partitions=1, size=100)
    secured_kafka.allow(ALICE, AclOperation.READ, topic=topic)
    options: dict[str, Any] = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.ca.pem": secured_kafka.ca_pem,
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": ALICE,
        "kafka.sasl.password": PASSWORDS[ALICE],
    }
    with (
        sleeping_executor() as executor,
        Query(
            secured_kafka.bootstrap("SASL_SSL"), topic, {"seat-0": [0]}, prefetch_bytes=1024 * 1024, **options
        ) as query,
    ):
        assert len(query.run(executor, {0: (0, 10)})) == 10
        wait_for(lambda: query.registry.homes()["seat-0"].warm, "its server to be counted")
        secured_kafka.forbid(ALICE, topic)
        with pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION_FAILED.*grant READ on the topic"):
            query.run(executor, {0: (10, RECORDS)})
        wait_for(lambda: not query.registry.homes()["seat-0"].warm, "the seat to be called not warm")


def asked_by(pids: Path, pid: int) -> int:
    """How many tokens a process has asked for."""
    return pids.read_text().split().count(str(pid)) if pids.exists() else 0
