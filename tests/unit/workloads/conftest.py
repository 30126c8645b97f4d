"""Fixtures for tests of workloads."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pytest_regressions.file_regression import FileRegressionFixture

from tests.unit.traces import TRACES
from tests.unit.workloads.messages import CheckMessages, message_of


@pytest.fixture
def check_messages(file_regression: FileRegressionFixture, tmp_path: Path) -> CheckMessages:
    """Compare the message of each call's error with a golden file: the case, then the message."""

    def check(calls: Mapping[str, Callable[[], object]]) -> None:
        text = "".join(f"{case}\n    {message_of(call)}\n" for case, call in calls.items())
        text = text.replace(str(tmp_path), "TMP").replace(str(TRACES), "TRACES")
        # of a definition, which moves with every change above it
        text = re.sub(r"\.py:\d+", ".py:LINE", text)
        file_regression.check(text, encoding="utf-8")

    return check
