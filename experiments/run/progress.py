"""Steps of a run, each with its time and result, on a terminal or as lines of a log; intervals measured again."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from railyard.core.host_load import LoadMeter
from railyard.core.records import INTERVAL_FIELDS, IntervalId
from railyard.experiments.run import observers
from railyard.experiments.run.words import sentence_names, words
from railyard.experiments.spec.faults import ATTEMPTS
from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.fidelity import Judgement, disturbance, judge
from railyard.results.analysis.findings import load_findings
from railyard.results.format import digits, how_often, percent, rate, seconds
from railyard.results.measured import MEASURED
from railyard.results.runs.records import (
    NOT_COMPARED,
    REPEATED,
    RUN,
    STEP,
    Event,
    LinkCheck,
    Load,
    Measurement,
    Run,
    worst_verdict,
)

REFRESH_S: Final = 0.25
# with its figures a bar fits a terminal of 60 columns
_BAR_WIDTH: Final = 20
MAX_REPEATED_S: Final = 120.0
"""An interval that took longer is not repeated: some pause in it is likely each time."""
_COLOUR: Final = {"ok": "green", "degraded": "yellow", "invalid": "red"}


def measure_undisturbed(run: Run, measure: Callable[[], bool | None]) -> None:
    """Measure an interval, and again if the machine was busy with something else, as often as `attempts` allows.

    The records of a repeated interval are removed; an event has the reason. An interval that is invalid for any other
    reason is kept as it is, and so is one for which `measure` returns False.
    """
    attempts = run.experiment.attempts or ATTEMPTS
    for attempt in range(1, attempts + 1):
        if Steps.current:
            Steps.current.begin_attempt(attempt, attempts)
        before = run.sizes()
        begun = time.monotonic()
        if measure() is False or attempt == attempts or time.monotonic() - begun > MAX_REPEATED_S:
            return
        measured = run.since(before)
        if not (text := disturbance(measured)):
            return
        if Steps.current:
            Steps.current.end_attempt()
        # events of controllers stay: what happened to the fabric happened
        run.discard(before)
        for interval in dict.fromkeys(load.interval for load in measured.loads):
            run.events.append(Event(time.monotonic_ns(), RUN, REPEATED, {**interval.as_dict(), "text": text}))


def outcome(run: Run, measured: Run) -> tuple[str, str]:
    """Return the verdict of the intervals in `measured`, "" without any, and their result in a few words."""
    parts: list[str] = []
    reasons: list[str] = []
    verdict = ""
    judgement = None
    if measured.loads:
        measured.links = run.links
        judgement = judge(measured)
        verdict = worst_verdict(judgement.intervals.values())
        if verdict != "ok":
            reasons = [finding.text for finding in judgement.evidence if finding.verdict == verdict]
    parts += _times_texts(measured, judgement)
    measure_texts = (measure.outcome_text(measured) for measure in MEASURED.values())
    parts += filter(None, measure_texts)
    if measured.links and not measured.loads:
        parts.append(_links_text(measured.links))
    repeats = [str(event.detail["text"]) for event in measured.events if event.what == REPEATED]
    if repeats:
        parts.append(f"measured again {how_often(len(repeats))} ({repeats[-1]})")
    parts += reasons[:1]
    return verdict, ", ".join(parts).replace("\u00a0", " ")


def _times_texts(measured: Run, judgement: Judgement | None) -> list[str]:
    """Return the first time that was measured of a whole, and how many more there are."""
    rows = [row for row in measured.measurements if not row.phase and row.metric in TIME_METRICS]
    if not rows:
        return []
    texts = [_time_text(rows[0], judgement.of_row(rows[0]) if judgement else "ok")]
    if len(rows) > 1:
        texts.append(f"and {len(rows) - 1} more times")
    return texts


def _time_text(row: Measurement, verdict: str) -> str:
    text = seconds(row.value)
    if row.ratio and verdict not in (*NOT_COMPARED, "invalid"):
        text += f", {digits(row.ratio, 4)} of its prediction"
    return text


def _links_text(links: Sequence[LinkCheck]) -> str:
    errors = [abs(link.measured_bps / link.expected_bps - 1) for link in links if link.expected_bps]
    noun = "link" if len(links) == 1 else "links"
    return f"{len(links)} {noun} within {percent(max(errors, default=0.0), 1)} of the expected rate"


class Steps:
    """Steps of a run: `with Steps(console, total, run) as steps: with steps.step("build"): ...`.

    On a terminal finished steps stay above the current one, which has its rate, the machine's load and the time left.
    Without a terminal there is a line for each step; without a console nothing. The events of a step are above its
    line, in the order of their times, if that is asked for.
    """

    current: ClassVar["Steps | None"] = None
    """The steps that are entered now, for measurements that are repeated."""

    def __init__(
        self,
        console: Console | None,
        total: int,
        run: Run,
        on_end: Callable[[], None] | None = None,
        with_events: bool = False,
    ) -> None:
        """`total`: number of steps. `on_end` is called at the end of each step. `with_events`: print events too."""
        is_terminal = console is not None and console.is_terminal
        self._bars = _Bars(console, is_terminal)
        self._overall = self._bars.add_task("run", total=total)
        self._step = self._bars.add_task("step", total=None, visible=False)
        self._console = console
        self._total = total
        self._run = run
        self._on_end = on_end
        self._is_terminal = is_terminal
        self._in_bytes = False
        self._with_events = with_events
        self._done = 0
        self._title = ""
        self._shown_events = 0
        self._begun_ns = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="progress", daemon=True)

    def __enter__(self) -> Self:
        Steps.current = self
        self._bars.start()
        if self._is_terminal:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._is_terminal:
            self._thread.join()
        self._bars.stop()
        Steps.current = None

    @contextmanager
    def step(self, title: str, total: float | None = None, in_bytes: bool = False) -> Iterator[None]:
        """One step; `total` where `reached` is called, `in_bytes` or in other units."""
        self._in_bytes = in_bytes
        observers.begin_step(title)
        self._title = self._bars.title = title
        self._bars.state = ""
        self._bars.reset(self._step, total=total, visible=True)
        before = self._run.sizes()
        begun_ns = time.monotonic_ns()
        self._begun_ns = begun_ns
        yield
        took_s = (time.monotonic_ns() - begun_ns) / 1e9
        verdict, result = outcome(self._run, self._run.since(before))
        self._done += 1
        detail = {"text": title, "number": self._done, "of": self._total, "seconds": took_s}
        self._run.events.append(Event(begun_ns, RUN, STEP, {**detail, "verdict": verdict, "result": result}))
        if self._on_end:
            self._on_end()
        if self._with_events:
            self._print_events(begun_ns)
        # last: a step that is shown as finished is in the run's folder
        self._print(title, took_s, verdict, result)
        self._bars.advance(self._overall)

    def reached(self, amount: float) -> None:
        """Set the progress of the step, on the way to its total."""
        self._bars.update(self._step, completed=amount)

    @property
    def title(self) -> str:
        """The step under way, with its attempt unless that is the first."""
        return self._bars.title

    def end_attempt(self) -> None:
        """Print the events of an attempt whose records are discarded next, above the line of the next attempt."""
        if self._with_events:
            self._print_events(self._begun_ns)

    def begin_attempt(self, number: int, attempts: int) -> None:
        """Name an attempt other than the first: the bar goes back to where the interval began."""
        attempt = ""
        self._bars.title = self._title
        if number > 1:
            attempt = f"attempt {number} of {attempts}"
            self._bars.title = f"{self._title} ({attempt})"
        # some of those that were printed may be discarded with the attempt before
        self._shown_events = min(self._shown_events, len(self._run.events))
        if attempt and self._is_terminal and self._console:
            again = [event for event in self._run.events if event.what == REPEATED]
            reason = f": {again[-1].detail['text']}" if again else ""
            self._console.print(Text(f"  {attempt}{reason}", "dim"), highlight=False)

    def _print(self, title: str, took_s: float, verdict: str, result: str) -> None:
        if self._console is None:
            return
        width = len(str(self._total))
        number = f"[{self._done:>{width}}/{self._total}] {took_s:7.1f} s  "
        line = Text(title)
        if verdict:
            line.append("  ").append(verdict, _COLOUR[verdict])
        line.append(f"  {result}" if result else "", "dim" if self._is_terminal else "")
        self._print_line(number, line)

    def _print_line(self, beginning: str, line: Text, style: str = "") -> None:
        """Print a line; on a terminal it is broken below itself, not below its `beginning`."""
        if self._console is None:
            return
        # a log has whole lines, which nothing overwrites
        if not self._is_terminal:
            self._console.print(Text(beginning) + line, style=style, soft_wrap=True, highlight=False)
            return
        table = Table.grid()
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row(beginning, line)
        self._console.print(table, style=style, highlight=False)

    def _refresh(self) -> None:
        """In a thread, on a terminal: draw the bars again."""
        while not self._ended.wait(REFRESH_S):
            if meter := LoadMeter.current:
                now = meter.recent
                load = Load(IntervalId(), now.busy, now.foreign, now.lag_p99_ms, 0, 0, 0, cpu_stolen=now.stolen)
                verdict = worst_verdict(finding.verdict for finding in load_findings(load))
                cpu = f"CPU {percent(now.busy, 0)}, other programs {percent(now.foreign, 0)}"
                self._bars.state = f"{self._rate()}{cpu}, threads {now.lag_p99_ms:.1f} ms late: {verdict} so far"
            self._bars.refresh()

    def _rate(self) -> str:
        """Return the rate of a step that counts bytes."""
        (step,) = (task for task in self._bars.tasks if task.id == self._step)
        if not self._in_bytes or not step.speed:
            return ""
        return f"{rate(8 * step.speed)}, "

    def _print_events(self, begun_ns: int) -> None:
        """Print the events since the last call by their times since `begun_ns`, whose order records don't have."""
        new = self._run.events[self._shown_events :]
        self._shown_events += len(new)
        hidden = {RUN}
        for measure in MEASURED.values():
            hidden |= measure.hidden_sources
        for event in sorted(new, key=lambda event: event.monotonic_ns):
            if event.source not in hidden and self._console:
                after_s = (event.monotonic_ns - begun_ns) / 1e9
                self._print_line(f"  {after_s:9.4f} s  ", Text(event_text(event)), "dim")


def event_text(event: Event) -> str:
    """Return an event in words, without what the step's line says: its fabric and interval."""
    if event.source == "fault" and (target := event.detail.get("target")):
        is_repair = event.what == "repair"
        kind = str(event.detail.get("part", event.what)).partition(" ")[0] if is_repair else event.what
        return words("repair" if is_repair else "inject", {"kind": kind, "target": target})
    if event.source == "script":
        return words("script", {"name": event.what, "faults": len(event.detail["faults"])})
    name_with_source = f"{event.source}-{event.what}"
    name = name_with_source if name_with_source in sentence_names() else event.what
    left_out = frozenset({"fabric"}) if name in sentence_names() else frozenset(INTERVAL_FIELDS)
    return words(name, {key: value for key, value in event.detail.items() if key not in left_out})


class _Bars(Progress):
    """Bars of the run and its step, of one width on every terminal, below the step's title and above its state."""

    def __init__(self, console: Console | None, is_terminal: bool) -> None:
        self.title = self.state = ""
        columns = (TextColumn("{task.description}"), BarColumn(_BAR_WIDTH), TaskProgressColumn(), TimeElapsedColumn())
        super().__init__(
            *columns, TextColumn("left"), TimeRemainingColumn(),
            console=console, disable=not is_terminal, transient=True, auto_refresh=False,
        )  # fmt: skip

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the title, the bars and the state, each on lines of its own."""
        if self.title:
            yield Text(self.title)
        yield from super().get_renderables()
        if self.state:
            yield Text(self.state, "dim")
