"""The cluster that the options of a read name, for requests of this process outside the group.

Runs on: driver.
"""

from __future__ import annotations

from pyspark_kgroup.options.read_options import ReadOptions
from pyspark_kgroup.options.security import driver_settings
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.security.secured import load_security


def cluster_of(options: ReadOptions) -> Cluster:
    """The cluster, with the client id, the security and the timeouts of the options. The caller closes it.

    Raises:
        OptionError: an address cannot be read, or the files or the token callback of the security cannot be used.
    """
    return Cluster(
        parse_bootstrap(options.bootstrap_servers),
        client_id=options.client_id,
        security=load_security(driver_settings(options.security)),
        request_timeout_ms=options.request_timeout_ms,
        api_timeout_ms=options.api_timeout_ms,
    )
