"""In which order pytest-xdist hands tests to its processes, and which of them belong together."""

import re

import pytest

_TOGETHER = "together-"

DEAREST_FIRST = (
    "test_kill_points.py",
    "test_executors_die.py",
    "test_divided_shares.py",
    "test_brokers_fail.py",
    "test_a_broker_cut_off.py",
    "test_checkpoint_set_back.py",
    "test_seats_grow.py",
    "test_reads_across_executors.py",
    "test_replay_across_owners.py",
    "test_gone_and_back.py",
    "test_examples.py",
    "test_standalone_example.py",
    "test_sharing_a_group.py",
    "test_orphaned_reader.py",
    "test_last_word_on_kafka.py",
    "test_mixed_groups.py",
    "test_topics_at_random.py",
    "test_native_reader.py",
    "test_data_loss.py",
    "test_assignors_on_kafka.py",
    "test_member_command.py",
)
"""Files with single tests of 20 s and more: one that began last would keep a run waiting."""


def hand_out(items: list[pytest.Item]) -> None:
    """Order tests by their files' cost, and keep those together that share a fixture of their module.

    A module's fixture, such as a broker of its own, would be made in each process otherwise. It also holds the tests of
    a module together that are not independent of each other. Tests of several files that belong together name their
    group themselves, as those that share `three_nodes` or the secured broker do.
    """
    items.sort(
        key=lambda item: DEAREST_FIRST.index(item.path.name) if item.path.name in DEAREST_FIRST else len(DEAREST_FIRST)
    )
    for item in items:
        if item.get_closest_marker("xdist_group") is None and _shares_a_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(f"{_TOGETHER}{item.path.stem}"))


def name_groups(items: list[pytest.Item]) -> None:
    """Put the group of each test at the end of its id, which is where pytest-xdist's scheduler looks for it.

    pytest-xdist does so itself, and pytest 9.2 does not see it: it keeps a test's id elsewhere since
    (pytest-xdist 3.8.0, issue 1386). Without its group, a module's fixture is made in each process.
    """
    for item in items:
        groups = sorted({mark.args[0] for mark in item.iter_markers("xdist_group")})
        if groups and without_group(item.nodeid) == item.nodeid:
            # pytest has no public way to rename a test, and its types do not show this one.
            item._id = item._id.parse(f"{item.nodeid}@{'_'.join(groups)}")  # type: ignore[attr-defined, unused-ignore]


def without_group(nodeid: str) -> str:
    """A test's id as pytest takes it: the group is added to it."""
    return re.sub(f"@{_TOGETHER}\\w+$", "", nodeid)


def _shares_a_module_fixture(item: pytest.Item) -> bool:
    known = getattr(item, "_fixtureinfo", None)
    definitions = known.name2fixturedefs.values() if known is not None else ()
    return any(each[-1].scope == "module" for each in definitions)
