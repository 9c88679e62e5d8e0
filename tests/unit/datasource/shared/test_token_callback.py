"""A user's token function on an executor: bounded, and its errors told whole."""

import threading
import time

import pytest

from pyspark_kgroup.shared.token_callback import call_in_time
from spark_kgroup.errors import AuthenticationFailed


def test_a_token_callbacks_result_is_handed_on() -> None:
    expiry = time.time() + 60
    assert call_in_time("m:f", lambda config: (config, expiry), "token") == ("token", expiry, "", {})


def test_a_token_callback_that_never_returns_does_not_hold_up_its_caller() -> None:
    never = threading.Event()
    with pytest.raises(AuthenticationFailed, match="m:f did not return within 50 ms") as problem:
        call_in_time("m:f", lambda _: never.wait(), "", timeout_ms=50)
    assert problem.value.retriable
    never.set()


def test_the_error_of_a_token_callback_is_reported() -> None:
    def broken(_: str) -> object:
        raise RuntimeError("no way")

    with pytest.raises(AuthenticationFailed, match="m:f failed with RuntimeError: no way"):
        call_in_time("m:f", broken, "")
