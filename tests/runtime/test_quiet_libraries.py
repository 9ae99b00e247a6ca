"""Tests of the silence around libraries."""

from __future__ import annotations

import logging

import pytest

from pretune.runtime.quiet_libraries import quiet_libraries


def use_library(logger: logging.Logger) -> None:
    """Print and log within the silence, and fail."""
    with quiet_libraries():
        print("printed inside")
        logger.error("logged inside")
        raise ValueError("an error passes")


def test_logs_and_prints_are_dropped_only_inside(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("a library")
    with pytest.raises(ValueError, match="an error passes"):
        use_library(logger)
    print("printed outside")
    logger.error("logged outside")
    assert capsys.readouterr().out == "printed outside\n"
    assert caplog.messages == ["logged outside"]
