"""The slowest files of a test session, printed at its end, so that a test that has become expensive is seen."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import pytest

SHOWN: Final = 10


def seconds_by_file(reports: list[pytest.TestReport]) -> Mapping[str, float]:
    """Return the time of all phases of a file's tests, in seconds."""
    found: dict[str, float] = defaultdict(float)
    for report in reports:
        found[report.nodeid.partition("::")[0]] += report.duration
    return found


def show(terminal: pytest.TerminalReporter) -> None:
    """Print the slowest files, slowest first."""
    reports = [report for found in terminal.stats.values() for report in found if isinstance(report, pytest.TestReport)]
    found = seconds_by_file(reports)
    if len(found) > 1:
        terminal.section(f"slowest {min(SHOWN, len(found))} of {len(found)} files")
        for file, seconds in sorted(found.items(), key=lambda item: -item[1])[:SHOWN]:
            count = len({report.nodeid for report in reports if report.nodeid.startswith(f"{file}::")})
            terminal.line(f"{seconds:7.1f} s  {count:4} tests  {file}")
