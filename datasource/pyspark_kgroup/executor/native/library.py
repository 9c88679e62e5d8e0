"""The decoder's binary for this platform: where it is, and whether it loads.

One wheel holds the binaries of all platforms. Of the C library that Python has loaded they need only memcpy, so one
binary for Linux serves glibc and musl.

Runs on: executor.
"""

from __future__ import annotations

import platform
import sys
from ctypes import CDLL
from functools import cache
from importlib.resources import as_file, files
from typing import Final, NamedTuple

from pyspark_kgroup.executor.native.interface import VERSION, declare

_SUFFIXES: Final = {"linux": ".so", "darwin": ".dylib"}


class Loaded(NamedTuple):
    """The library, or None and the reason why there is none."""

    library: CDLL | None
    reason: str = ""


def binary_name() -> str:
    """The file name of this platform's binary, whether or not there is one: `linux-x86_64.so`."""
    return f"{sys.platform}-{platform.machine().lower()}{_SUFFIXES.get(sys.platform, '')}"


@cache
def load() -> Loaded:
    """This platform's library. Looked for once in a process."""
    binary = files(__package__).joinpath("lib", binary_name())
    if not binary.is_file():
        return Loaded(None, f"this installation has no decoder for {binary_name().split('.')[0]}")
    try:
        with as_file(binary) as path:  # a zipped package is unpacked for as long as loading takes
            library = CDLL(str(path))
        declare(library)
        version = library.kgroup_version()
    except (OSError, AttributeError) as error:  # a file system with noexec, a binary that is not ours
        return Loaded(None, f"the decoder does not load: {error}")
    if version != VERSION:
        return Loaded(None, f"the decoder is of version {version}, and not of {VERSION}: install the package anew")
    return Loaded(library)
