"""The names that `spark_kgroup` offers, and the cost of their import."""

import subprocess
import sys
from importlib import import_module

import spark_kgroup


def test_the_names_offered_are_sorted_and_are_those_of_their_modules() -> None:
    assert spark_kgroup.__all__ == sorted(spark_kgroup.__all__)
    assert spark_kgroup.__all__ == [
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
    for name in spark_kgroup.__all__[:-1]:
        offered = getattr(spark_kgroup, name)
        assert getattr(import_module(offered.__module__), name) is offered


def test_a_name_that_is_not_offered_is_no_attribute() -> None:
    assert not hasattr(spark_kgroup, "Session")


def test_the_package_alone_imports_no_client_of_kafka() -> None:
    asked = "import sys, spark_kgroup; print(sorted(m for m in sys.modules if m.startswith(('kio', 'spark_kgroup.'))))"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
