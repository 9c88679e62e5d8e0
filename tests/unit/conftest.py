"""How Hypothesis works here, and what the brokers of these tests are spared on a busy machine.

A shared machine may stop for a while, so no example has a deadline. A failure says how to get the same example again.
Each run has new examples, half as many as is usual: to make them takes longer than to check them.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("ordinary", deadline=None, max_examples=50, print_blob=True)
settings.register_profile("few", deadline=None, max_examples=20, derandomize=True, database=None)  # `make mutants`
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ordinary"))


@pytest.fixture(autouse=True)
def _a_busy_machine_is_no_silent_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers of these tests answer within 0.5 s if the machine is not busy: else a second broker would be asked.

    That changes who is believed, and how often each is asked. Tests about a silent broker are marked `silent_broker`.
    """
    if request.node.get_closest_marker("silent_broker") is None:
        monkeypatch.setattr("spark_kgroup.wire.brokers.NEXT_BROKER_AFTER_MS", 10_000)
