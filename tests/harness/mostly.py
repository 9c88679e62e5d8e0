"""Which of the two group protocols a dear test speaks in `make test`. It speaks the other one in `make test-all`."""

import pytest

from harness.group_protocol import OF_ENVIRONMENT, PROTOCOLS
from spark_kgroup.model import CLASSIC


def mostly(protocol: str) -> pytest.MarkDecorator:
    """Marks a test that uses the fixture `group_protocol`, and whose other protocol a cheaper test speaks."""
    other = next(each for each in PROTOCOLS if each != protocol)
    both = [protocol, pytest.param(other, marks=pytest.mark.full)]
    return pytest.mark.parametrize(
        "group_protocol", both if OF_ENVIRONMENT == CLASSIC else [OF_ENVIRONMENT], indirect=True
    )
