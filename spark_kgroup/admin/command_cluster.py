"""The cluster that a command asks, by `--bootstrap-server` and `--command-config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_kgroup.admin.command_config import security_from
from spark_kgroup.limits import STARTUP_TIMEOUT_MS
from spark_kgroup.wire.address import parse_bootstrap

if TYPE_CHECKING:
    from spark_kgroup.wire.cluster import Cluster


def cluster_at(bootstrap_server: str, command_config: Path | None, *, client_id: str) -> Cluster:
    """The cluster of these brokers. The caller closes it.

    Raises:
        OptionError: an address cannot be read, or the file as `security_from` says.
    """
    from spark_kgroup.wire.cluster import Cluster  # here, since --help needs none of it

    return Cluster(
        parse_bootstrap(bootstrap_server),
        client_id=client_id,
        security=security_from(command_config) if command_config else None,
        api_timeout_ms=STARTUP_TIMEOUT_MS,
    )
