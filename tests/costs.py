"""The time of each file of a test session: the slowest are printed, so that a test that has become expensive is seen.

All are stored in pytest's cache, for `script/test changed`, which runs as many files as take less than a minute.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

SHOWN: Final = 10
STORED: Final = "railyard/seconds"
"""Key in pytest's cache."""
CACHE: Final = Path(__file__).parents[1] / ".pytest_cache" / "v" / STORED


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


def store(terminal: pytest.TerminalReporter, exit_status: int) -> None:
    """Keep the time of each file in pytest's cache, unless the session ran only some of a file's tests."""
    options = terminal.config.option
    is_partial = options.keyword or options.markexpr or getattr(options, "lf", False) or options.maxfail
    is_partial = is_partial or any("::" in argument for argument in terminal.config.args)
    cache = getattr(terminal.config, "cache", None)
    is_complete = exit_status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if cache is None or is_partial or options.collectonly or not is_complete:
        return
    reports = [report for reports in terminal.stats.values() for report in reports]
    seconds = seconds_by_file([report for report in reports if isinstance(report, pytest.TestReport)])
    cache.set(STORED, stored_seconds() | {file: round(value, 2) for file, value in seconds.items()})


def stored_seconds() -> dict[str, float]:
    """Return the seconds that each test file took when it was last run in this checkout; empty if none was."""
    try:
        stored = json.loads(CACHE.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {file: float(value) for file, value in stored.items() if isinstance(value, int | float)}
