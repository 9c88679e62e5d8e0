"""A real Kafka consumer group member, with all its parts.

`Group.connect` joins a group from a program on asyncio. `GroupRuntime` puts the seats of a group behind blocking calls,
and `GroupSettings` names the group and how its members behave. Names are imported when they are asked for: many a
process imports this package for its errors alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_kgroup.errors import KgroupError
    from spark_kgroup.membership import Assigned, Group, Lost, Revoked
    from spark_kgroup.model import MemberIdentity, TopicDescription, TopicPartition
    from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, OngoingWork, OwnerHooks, ProtocolSettings
    from spark_kgroup.runtime.thread import GroupRuntime
    from spark_kgroup.runtime.views import GroupView, SeatView
    from spark_kgroup.wire.security.settings import SecuritySettings

    __version__: str

__all__ = [
    "Assigned",
    "ClientSettings",
    "Group",
    "GroupRuntime",
    "GroupSettings",
    "GroupView",
    "KgroupError",
    "Lost",
    "MemberIdentity",
    "OngoingWork",
    "OwnerHooks",
    "ProtocolSettings",
    "Revoked",
    "SeatView",
    "SecuritySettings",
    "TopicDescription",
    "TopicPartition",
    "__version__",
]

_MODULES: Final = {
    "Assigned": "spark_kgroup.membership",
    "ClientSettings": "spark_kgroup.runtime.settings",
    "Group": "spark_kgroup.membership",
    "GroupRuntime": "spark_kgroup.runtime.thread",
    "GroupSettings": "spark_kgroup.runtime.settings",
    "GroupView": "spark_kgroup.runtime.views",
    "KgroupError": "spark_kgroup.errors",
    "Lost": "spark_kgroup.membership",
    "MemberIdentity": "spark_kgroup.model",
    "OngoingWork": "spark_kgroup.runtime.settings",
    "OwnerHooks": "spark_kgroup.runtime.settings",
    "ProtocolSettings": "spark_kgroup.runtime.settings",
    "Revoked": "spark_kgroup.membership",
    "SeatView": "spark_kgroup.runtime.views",
    "SecuritySettings": "spark_kgroup.wire.security.settings",
    "TopicDescription": "spark_kgroup.model",
    "TopicPartition": "spark_kgroup.model",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version() -> str:
    """The version in the installed package's metadata."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("spark-kgroup")
    except PackageNotFoundError:  # the sources are on the path, and the package is not installed
        return "0+unknown"
