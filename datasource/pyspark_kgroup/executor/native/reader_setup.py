"""The decoder, the settings and the security with which this process reads natively, for any ranges.

Runs on: executor.
"""

from __future__ import annotations

from ctypes import CDLL
from typing import NamedTuple

from pyspark_kgroup.executor.native import library
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity, connection_security
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.shared.tickets import ReadSettings
from spark_kgroup.errors import KgroupError


class CredentialsUnusable(FallbackToLibrdkafka):
    """A file or a function that proves who this user is cannot be used. That may be mended at any moment."""


class NativeReaderSetup(NamedTuple):
    """The decoder, the settings and the security of native reading.

    Attributes:
        decoder: the library (`library.load`).
    """

    decoder: CDLL
    fetch_settings: FetchSettings
    security: ConnectionSecurity


def native_reader_setup(settings: ReadSettings) -> NativeReaderSetup:
    """The setup for reading natively with these settings.

    Raises:
        CredentialsUnusable: a file is not here, or does not hold its certificate or key, or there is no token callback.
        FallbackToLibrdkafka: this process has no decoder, or cannot read natively with this configuration.
    """
    loaded = library.load()
    if loaded.library is None:
        raise FallbackToLibrdkafka(loaded.reason, lasting=True)
    try:
        fetch_settings = FetchSettings.of(settings.consumer_config)
        return NativeReaderSetup(loaded.library, fetch_settings, connection_security(settings.consumer_config))
    except KgroupError as problem:
        raise CredentialsUnusable(str(problem).rstrip("."), lasting=True) from None
