"""The decoder, the settings and the security with which this process reads natively, for any ranges.

Runs on: executor.
"""

from __future__ import annotations

from ctypes import CDLL
from typing import NamedTuple

from pyspark_kgroup.executor.native import library
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity, connection_security
from pyspark_kgroup.executor.native.decode import Unusual
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.shared.tickets import ReadSettings
from spark_kgroup.errors import KgroupError


class Means(NamedTuple):
    """The means of native reading.

    Attributes:
        decoder: the library (`library.load`).
    """

    decoder: CDLL
    fetch_settings: FetchSettings
    security: ConnectionSecurity


def native_means(settings: ReadSettings) -> Means:
    """The means of reading natively with these settings.

    Raises:
        Unusual: this process has no decoder, or cannot read natively with this configuration.
    """
    loaded = library.load()
    if loaded.library is None:
        raise Unusual(loaded.reason, lasting=True)
    try:
        fetch_settings = FetchSettings.of(settings.consumer_config)
        return Means(loaded.library, fetch_settings, connection_security(settings.consumer_config))
    except KgroupError as problem:
        raise Unusual(str(problem).rstrip("."), lasting=True) from None
