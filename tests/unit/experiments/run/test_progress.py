"""Steps of a run in a log, on a terminal and in a notebook, and intervals that are measured again."""

import io
import os
import re
import select
import sys
import termios
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.core.records import IntervalId
from railyard.experiments import options
from railyard.experiments.run.progress import REFRESH_S, Steps, measure_undisturbed, outcome
from railyard.experiments.spec.faults import ATTEMPTS
from railyard.results.analysis.fidelity import repeats
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import PROCESS, ByteCheck, Event, LinkCheck, Load, Measurement, Run
from railyard.results.views import report

pytestmark = pytest.mark.usefixtures("figures_as_text")

WHERE = IntervalId("rail-only", "all-to-all", "rd")
QUIET = Load(WHERE, 0.3, 0.01, 1.0, 0, 1000, 0)
BUSY = replace(QUIET, cpu_busy=0.99, cpu_foreign=0.6)
LOST = ByteCheck(WHERE, 1000, 999, 1, 0, 0, 0)


TIME = re.compile(r" +\d+\.\d+ s(?=  )")
BAR_TITLES = ("step", "run", "all-to-all")
ESCAPE_CODE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def lines_of(shown: io.StringIO) -> list[str]:
    """Return the lines of a log or a terminal, without their times and escape codes."""
    text = ESCAPE_CODE.sub("", shown.getvalue())
    lines = [TIME.sub(" T", line).rstrip() for line in text.splitlines()]
    # bars are drawn whenever it is time
    return [line for line in lines if not line.startswith(BAR_TITLES)]


def run_of() -> Run:
    links = [LinkCheck("rail-only", "rail", "d0g0 -> rail0", 100.0, 100.0)]
    return Run("mine", {}, {}, "now", links=links)


def measured(run: Run, loads: list[Load], record: ByteCheck | Event | None = None) -> int:
    """Measure an interval that has the next of these loads each time; return how often. `record`: of each attempt."""
    following = list(loads)

    def measure() -> None:
        run.loads.append(following.pop(0))
        seconds = 1.0 + len(following)
        run.measurements.append(Measurement(WHERE, "", "completion_time", seconds, "s", 1.0, 1.0, 1.0))
        run.events.append(Event(1, "controller", "ready", {"fabric": "rail-only"}))
        run.events.append(Event(2, "workload", "started", WHERE.as_dict()))
        if isinstance(record, ByteCheck):
            run.bytes.append(record)
        elif record:
            run.events.append(record)

    measure_undisturbed(run, measure)
    return len(loads) - len(following)


@given(busy=st.integers(0, 4), attempts=st.sampled_from([None, 1, 2, 4]))
def test_an_interval_is_repeated_while_the_machine_is_busy(busy: int, attempts: int | None) -> None:
    run = run_of()
    run.spec |= {"attempts": attempts} if attempts else {}  # records of older releases have no such key
    times = measured(run, [BUSY] * busy + [QUIET])
    allowed = attempts or ATTEMPTS
    assert times == min(busy + 1, allowed)
    assert run.loads == [QUIET if busy < allowed else BUSY]
    assert len(run.measurements) == 1
    assert [event.what for event in run.events].count("ready") == times  # what happened stays
    assert [event.what for event in run.events].count("started") == 1
    assert len(repeats(run).get(WHERE, [])) == times - 1


@pytest.mark.parametrize(
    "record",
    [LOST, Event(3, PROCESS, "interrupted", {**WHERE.as_dict(), "text": "died"})],
    ids=["lost byte", "dead process"],
)
def test_interval_invalid_for_another_reason_stays_invalid(record: ByteCheck | Event) -> None:
    run = run_of()
    assert measured(run, [BUSY, QUIET], record) == 1
    assert run.loads == [BUSY]
    assert record in (*run.bytes, *run.events)


def test_a_load_of_the_runs_own_is_not_repeated() -> None:
    assert measured(run_of(), [replace(QUIET, cpu_busy=0.99), QUIET]) == 1


@pytest.mark.parametrize(("load", "text"), [(QUIET, "1.000 s, 1.000 of its prediction"), (BUSY, "1.000 s")])
def test_a_step_has_a_ratio_only_if_its_time_is_valid(load: Load, text: str) -> None:
    run = run_of()
    run.spec["attempts"] = 1
    measured(run, [load])
    before = Run("mine", {}, {}, "now").sizes()
    assert outcome(run, run.since(before))[1].startswith(text)
    assert ("of its prediction" in outcome(run, run.since(before))[1]) == (load is QUIET)


def test_a_long_interval_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railyard.experiments.run.progress.MAX_REPEATED_S", -1.0)
    assert measured(run_of(), [BUSY, QUIET]) == 1


def test_summary_and_terminal_name_a_repeated_interval() -> None:
    run = run_of()
    shown = io.StringIO()
    measured(run, [BUSY, BUSY, QUIET])
    analysis = Analysis(run)
    report.print_summary(analysis, Console(file=shown, width=200))
    reasons = report.summarise(analysis)["repeated"][0]["reasons"]
    assert len(reasons) == 2
    (line,) = [line for line in lines_of(shown) if "measured again twice" in line]
    assert reasons[0] in line
    assert line.strip() in report.render(analysis)


def test_log_has_events_and_steps_in_words(data_regression: DataRegressionFixture) -> None:
    """Events are in the order of their times, above their step; those of an attempt are above the next one."""
    logs: dict[str, list[str]] = {}
    run = run_of()
    ends = list[int]()
    shown = io.StringIO()
    with Steps(Console(file=shown, width=40), 12, run, lambda: ends.append(len(run.events))) as steps:
        with steps.step("rail-only: building"):
            pass
        with steps.step("rail-only: all-to-all, 64 KiB, over both rails", total=10, in_bytes=True):
            measured(run, [BUSY, QUIET])
            steps.reached(10)
    logs["steps"] = lines_of(shown)
    assert [event.detail["text"] for event in run.events if event.what == "step"] == [
        line.partition(" T  ")[2].partition("  ok")[0] for line in logs["steps"]
    ]
    assert ends == [1, len(run.events)]

    run = run_of()
    shown = io.StringIO()
    with Steps(Console(file=shown, width=80), 1, run, with_events=True) as steps, steps.step("link-down d0g1"):
        begun = time.monotonic_ns()
        run.events.append(Event(begun + 30, "controller", "rerouted", {"routes": 1, "detours": 0}))
        run.events.append(Event(begun + 20, "controller", "port-down", {"port": "d0g1", "switch": "rail1"}))
        run.events.append(Event(begun + 10, "fault", "link-down", {"repeat": 0, "target": "d0g1"}))
        repaired = {"fabric": "rail-only", "part": "link-down d0g1", "target": "d0g1"}
        run.events.append(Event(begun + 40, "fault", "repair", repaired))
    logs["events"] = lines_of(shown)

    run = run_of()
    shown = io.StringIO()
    loads = [BUSY, QUIET]
    console = Console(file=shown, force_terminal=True, width=80, color_system=None)
    with Steps(console, 1, run, with_events=True) as steps, steps.step("all-to-all"):

        def measure() -> None:
            now = time.monotonic_ns()
            port = f"d0g{2 - len(loads)}"
            run.loads.append(loads.pop(0))
            run.events.append(Event(now, "controller", "port-down", {"port": port, "switch": "rail1"}))
            run.events.append(Event(now + 1, "fault", "link-down", {**WHERE.as_dict(), "target": port}))

        measure_undisturbed(run, measure)
        assert steps.title == "all-to-all (attempt 2 of 3)"
    assert Steps.current is None
    logs["attempts"] = lines_of(shown)
    data_regression.check(logs)


@pytest.mark.parametrize("width", [60, 80, 150])
def test_terminal_keeps_finished_steps_and_whole_bars(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railyard.experiments.run.progress.REFRESH_S", 0.01)
    run, shown = run_of(), io.StringIO()
    console = Console(file=shown, force_terminal=True, width=width, color_system=None)
    with Steps(console, 2, run) as steps:
        with steps.step("rail-only: " + 9 * "long name, "):
            run.events.append(Event(1, "controller", "port-down", {"port": "d0g1", "switch": "rail1"}))
        with steps.step("replaying", total=10):
            steps.reached(5)
            while "50%" not in shown.getvalue():
                pass
    lines = ESCAPE_CODE.sub("", shown.getvalue()).splitlines()
    assert any(line.startswith("[1/2]") for line in lines)
    assert "d0g1" not in shown.getvalue()  # events only if they are asked for
    assert max(map(len, lines)) <= width
    bars: list[str] = []
    for line in lines:
        if line.startswith("step"):
            bars += re.findall("[━╸╺]+", line)
    assert 20 in map(len, bars)
    with Steps(None, 1, run) as steps, steps.step("quietly"):
        steps.reached(1)


def test_the_outcome_of_faults_and_links_is_short() -> None:
    run = run_of()
    assert outcome(run, run_of())[1].startswith("1 link within 0.0%")
    assert outcome(run, Run("", {}, {}, "")) == ("", "")


def test_a_cell_of_a_notebook_gets_lines_without_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter runs `!command` with a terminal and FORCE_COLOR."""
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-color")
    ours, theirs = os.openpty()
    run = Run("mine", {}, {}, "now")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        console = options.console()
        assert console.width == options.NOTEBOOK_WIDTH
        with Steps(console, 2, run) as steps:
            for title in ("build", "measure"):
                with steps.step(title, total=2):
                    steps.reached(1)
        terminal.flush()
        output = ""
        while "[2/2]" not in output and select.select([ours], [], [], 10)[0]:
            output += os.read(ours, 4096).decode()
    os.close(ours)
    assert "\x1b" not in output
    assert [line[:5] for line in output.splitlines()] == ["[1/2]", "[2/2]"]


def reach_all(steps: Steps) -> None:
    for number in range(100):
        steps.reached(number)


def test_a_terminal_that_takes_no_output_keeps_no_step_waiting() -> None:
    """After Ctrl-S, only the thread that draws waits: a step that measures goes on to its end."""
    ours, theirs = os.openpty()
    run = Run("mine", {}, {}, "now")
    with os.fdopen(theirs, "w") as terminal:
        console = Console(file=terminal, force_terminal=True, width=60)
        with Steps(console, 1, run) as steps, steps.step("measure", total=100):
            os.read(ours, 4096)
            termios.tcflow(terminal, termios.TCOOFF)
            time.sleep(4 * REFRESH_S)
            measuring = threading.Thread(target=reach_all, args=[steps], daemon=True)
            measuring.start()
            measuring.join(10)
            is_waiting = measuring.is_alive()
            termios.tcflow(terminal, termios.TCOON)
    os.close(ours)
    assert not is_waiting
