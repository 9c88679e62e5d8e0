"""A long step says so before it begins, on standard error only."""

import pytest

from spark_kgroup.testing.progress import announced


def test_a_wait_is_announced_and_its_duration_told(capfd: pytest.CaptureFixture[str]) -> None:
    with announced("Preparing"):
        assert capfd.readouterr() == ("", "Preparing\n")
    output, errors = capfd.readouterr()
    assert output == ""
    assert errors.startswith("Preparing: done after 0.")


def test_work_that_fails_is_not_done(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="full"), announced("Preparing"):
        raise OSError("full")
    assert "Preparing: not done after 0." in capfd.readouterr().err


def test_a_terminal_has_a_live_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, this is a terminal
    with announced("Preparing"):
        pass
    output, errors = capfd.readouterr()
    assert output == ""
    assert "\x1b" in errors
    assert "Preparing: done after 0." in errors
