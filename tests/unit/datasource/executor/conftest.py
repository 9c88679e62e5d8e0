"""The decoder for all tests of this folder and below."""

from ctypes import CDLL

import pytest
from harness.decoder import built_decoder


@pytest.fixture(scope="session")
def library() -> CDLL:
    return built_decoder()
