"""report.html, one page that needs no network; the run in short; the sections that both consist of.

A section is a definition: its title, when it applies, its tables and figures in the report, its lines on the terminal
and its part of summary.json. It is a class in a file of sections/, or of a plugin; docs/extending.md has an example.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, ClassVar, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from railyard.core.installation import PROJECT, data_file
from railyard.core.records import IntervalId
from railyard.core.registry import Registry
from railyard.results import format as fmt
from railyard.results.analysis.fidelity import place, repeats
from railyard.results.analysis.findings import link_findings
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, measured_targets, missed_targets
from railyard.results.measured import MEASURED, policies_in_turn
from railyard.results.runs.records import LIVE_PAGE, Run, Verdict, record_kinds, worst_verdict
from railyard.results.views.table import Table

_FOLDER: Final = data_file("results/views")
_COLOUR: Final = {"ok": "green", "degraded": "yellow", "invalid": "red"}
_MAX_REASONS: Final = 3
_MAX_CARDS: Final = 5
SPREAD_UNKNOWN: Final = "one run, spread unknown"


@dataclass(frozen=True, slots=True)
class Card:
    """A result on the first screen of the report: its value, what theory or a target says, and the spread of repeats.

    `verdict`: of the intervals that it was measured in.
    """

    title: str
    value: str
    theory: str = ""
    spread: str = ""
    verdict: str = "ok"


def spread_text(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return `4.05 s to 4.12 s, 3 runs`; of one run its spread is not known."""
    if len(values) < 2:
        return SPREAD_UNKNOWN
    return f"{show(min(values))} to {show(max(values))}, {len(values)} runs"


class Section:
    """A section; the first line of its docstring is its description. What it doesn't define, it doesn't show."""

    title: ClassVar[str] = ""
    order: ClassVar[int] = 75  # its place in the report and on the terminal, lowest first
    template: ClassVar[str] = "section.html.j2"
    """A file of sections/, or of the measure's folder, with its content below the title; the default shows `tables`."""
    is_page_part: ClassVar[bool] = True
    """Whether the page makes its element and title; False where the template has several of them."""

    def applies(self, analysis: Analysis) -> bool:
        """Return whether the report has this section."""
        return True

    def cards(self, analysis: Analysis) -> Iterable[Card]:
        """Return its results for the first screen, most important first; the page has room for five of all sections."""
        return ()

    def headline(self, analysis: Analysis) -> Iterable[str | Table]:
        """Return sentences and tables for the top of the report."""
        return ()

    def tables(self, analysis: Analysis) -> Iterable[Table]:
        """Return its tables; a title stands above its table."""
        return ()

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the values of its template, beside `run` and `tables`."""
        return {}

    def explanation(self, analysis: Analysis) -> str:
        """Return a template with rows of the table that explains figures of the page; "" if it adds none."""
        return ""

    def links(self, analysis: Analysis) -> dict[str, str]:
        """Return more elements of the page to link to, by id, with their titles."""
        return {}

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print its part of the summary on the terminal."""

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return its headline figures for summary.json as plain data, whether or not the report has it."""
        return {}


def _missing(name: str, definition: type[Section]) -> Iterator[str]:
    if not (_FOLDER / "sections" / definition.template).is_file():
        yield f"template {definition.template}, which is not a file of results/views/sections"


SECTIONS: Final = Registry[type[Section]](
    "report section", "railyard.results.views.sections", Section, ["title"], _missing, holds_classes=True
)


section = SECTIONS.register  # decorator that registers a section by its id in the page


def sections() -> list[tuple[str, Section]]:
    """Return all sections with their names, in their order: those of folder sections/, and those of measures."""
    definitions = dict(SECTIONS.items())
    for measure in MEASURED.values():
        definitions |= measure.sections()
    named = [(name, definition()) for name, definition in definitions.items()]
    return sorted(named, key=lambda item: item[1].order)


@cache
def templates() -> Environment:
    """Return the templates of pages, which are compiled when a page first needs them."""
    folders = [_FOLDER, _FOLDER / "sections"]
    folders += [(PROJECT / MEASURED.source(name).file).parent for name in MEASURED.names()]
    return Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def render(analysis: Analysis) -> str:
    """Return the page as HTML."""
    environment = templates()
    run = analysis.run
    sentences: list[str] = []
    tables: list[Table] = []
    parts = []
    links = dict[str, str]()
    cards = list[Sequence[Card]]()
    for name, section in sections():
        if not section.applies(analysis):
            continue
        cards.append(tuple(section.cards(analysis)))
        for part in section.headline(analysis):
            if isinstance(part, Table):
                tables.append(part)
            else:
                sentences.append(part)
        values = {"run": run, "tables": section.tables(analysis), **section.parts(analysis)}
        content = Markup(environment.get_template(section.template).render(values))
        parts.append({"name": name, "title": section.title, "framed": section.is_page_part, "content": content})
        if section.is_page_part:
            links[name] = section.title
        links |= section.links(analysis)
    script = Markup(environment.get_template("report.js.j2").render())
    return environment.get_template("report.html.j2").render(
        run=run,
        title=run.experiment.title or run.name,
        command={"changed": [], "repeat": ""} | (run.provenance.get("command") or {}),
        cards=_first_cards(cards),
        agreement=analysis.agreement,
        files=_data_files(run),
        script=script,
        live_page=LIVE_PAGE,
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        description=run.experiment.description,
        facts=_facts(run),
        judgement=analysis.judgement,
        repeated=repeated_lines(analysis),
        checks=sorted(analysis.checks, key=lambda check: check.passed),
        sentences=sentences,
        tables=tables,
        sections=parts,
        links=links,
    )


def _number_text(number: int | None) -> str:
    if number is None:
        return fmt.NOTHING
    return str(number)


def _fabric_labels(run: Run) -> set[str]:
    """Return the labels of all fabrics of a run."""
    labels = {fabric.label for fabric in run.fabrics}
    for measure in MEASURED.values():
        labels.update(measure.fabric_labels(run))
    return labels


def _fact_keys() -> list[str]:
    """Return the keys of an experiment whose numbers of items stand below the title, each once."""
    keys: list[str] = []
    for measure in MEASURED.values():
        keys += measure.fact_keys
    return list(dict.fromkeys(keys))


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return name and text of each fact below the page's title."""
    policies = policies_in_turn(run)
    facts = [
        ("run", run.name),
        ("started", run.started_utc),
        ("took", fmt.seconds(run.duration_s)),
        ("seed", _number_text(run.experiment.seed)),
        ("repeats", _number_text(run.experiment.repeats)),
        ("fabrics", str(len(_fabric_labels(run)))),
    ]
    if policies:
        facts.append(("policies", str(len(policies))))
    for key in _fact_keys():
        count = run.experiment.item_count(key)
        if count:
            facts.append((key, str(count)))
    return facts


def _first_cards(by_section: Sequence[Sequence[Card]]) -> list[Card]:
    """Return the cards for the first screen: one of every section, then a second one, while there is room."""
    # (number of a card in its section, number of the section): in the order in which cards are chosen
    places: list[tuple[int, int]] = []
    for section, cards in enumerate(by_section):
        places += [(number, section) for number in range(len(cards))]
    places.sort()
    chosen = sorted(places[:_MAX_CARDS], key=lambda place: (place[1], place[0]))
    return [by_section[section][number] for number, section in chosen]


def _data_files(run: Run) -> list[str]:
    """Return the files of the run's folder that the page links to."""
    linked = [kind.file for kind in record_kinds().values() if kind.file and kind.is_linked and run.rows(kind)]
    # tables of transfers, which are not CSV, come first
    linked.sort(key=lambda file: file.endswith(".csv"))
    return ["results.csv", *linked, "events.jsonl", "spec.yaml", "summary.json", "provenance.json", "timeline.pftrace"]


def summarise(analysis: Analysis) -> dict[str, Any]:
    """Return the content of summary.json: verdict, reasons, checks and headline figures. Times in s, rates in bit/s."""
    run = analysis.run
    judgement = analysis.judgement
    headline: dict[str, Any] = {}
    for _, section in sections():
        headline |= section.summary(analysis)
    findings = [finding.as_dict() for finding in judgement.evidence if finding.verdict != "ok"]
    repeated = [{**interval.as_dict(), "reasons": reasons} for interval, reasons in repeats(run).items()]
    intervals = [{**interval.as_dict(), "verdict": verdict} for interval, verdict in judgement.intervals.items()]
    return {
        "name": run.name,
        "title": run.name if run.experiment.title is None else run.experiment.title,
        "started_utc": run.started_utc,
        "duration_s": run.duration_s,
        "seed": run.experiment.seed,
        "interrupted": run.interrupted,
        "failed": run.failed,
        "interactive": run.is_interactive,
        **completeness(run),
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
        "findings": findings,
        "repeated": repeated,
        "intervals": intervals,
        "agreement": analysis.agreement.as_dict(),
        "passed": analysis.passed,
        "checks": [check.as_dict() for check in analysis.checks],
        "targets_missed": missed_targets((*analysis.outcomes, *_outcomes_of_measures(analysis))),
        "headline": headline,
    }


def completeness(run: Run) -> dict[str, Any]:
    """Return whether a run's records are all of those that it was to write, and what is wrong with them.

    None: they are not verified.
    """
    is_complete: bool | None = None
    if run.damaged or run.interrupted or run.failed:
        is_complete = False
    elif run.verified:
        is_complete = True
    return {"complete": is_complete, "damaged": run.damaged}


def repeated_lines(analysis: Analysis) -> list[str]:
    """Return a line for each interval, or fabric's links, measured again since the machine was busy."""
    lines: list[str] = []
    for interval, reasons in repeats(analysis.run).items():
        text = f"measured again {fmt.how_often(len(reasons))}: {place(interval, analysis.labels)}"
        distinct_reasons = "; ".join(dict.fromkeys(reasons))
        lines.append(f"{text}: {distinct_reasons}; now {_present_verdict(analysis, interval)}")
    return lines


def _present_verdict(analysis: Analysis, interval: IntervalId) -> Verdict:
    """Return an interval's verdict, or that of a fabric's links; invalid if it was not measured again to its end."""
    links = [link for link in analysis.run.links if IntervalId(link.fabric) == interval]
    if links:
        return worst_verdict(finding.verdict for finding in link_findings(links))
    return analysis.judgement.intervals.get(interval, "invalid")


def _outcomes_of_measures(analysis: Analysis) -> Iterator[Outcome]:
    """Yield the targets of measures that have no section for them."""
    for outcomes in analysis.shown_outcomes.values():
        yield from outcomes


def _targets_line(outcomes: Sequence[Outcome], name: str) -> Text:
    """Return how many of the targets in the table are met, which are not, and which could not be judged.

    `name`: what the targets are of, such as `recovery`.
    """
    counts = Counter(outcome.met for outcome in outcomes)
    missed = [f"{outcome.name}, on {outcome.fabric}" for outcome in outcomes if outcome.met is False]
    values = sum(outcome.not_judged for outcome in outcomes)
    line = Text(f"{name} targets met: {counts[True]} of {len(outcomes)}")
    if missed:
        line.append(f"; not: {'; '.join(missed)}", "bold red")
    if values:
        line.append(f"; not judged: {counts[None]} targets, {values} values, the machine was disturbed", "yellow")
    return line


def print_summary(analysis: Analysis, console: Console) -> None:
    """Print the summary. Lines are wrapped at a terminal's width and stay whole without one, as in a CI log."""

    def print_line(line: str | Text) -> None:
        console.print(line, soft_wrap=not console.is_terminal, highlight=False)

    run = analysis.run
    judgement = analysis.judgement
    state = ""
    if run.interrupted:
        state += " [bold red]interrupted[/]"
    if run.is_interactive:
        state += " [bold red]interactive[/]"
    verdict = f"[bold {_COLOUR[judgement.verdict]}]{judgement.verdict}[/]"
    print_line(f"[bold]{run.name}[/]{state}  fidelity {verdict}  {fmt.seconds(run.duration_s)}")
    reasons = fmt.rows_with_room(judgement.reasons, _MAX_REASONS)
    for reason in reasons:
        print_line(Text(f"  {reason}"))
    if len(judgement.reasons) > len(reasons):
        print_line(f"  … and {len(judgement.reasons) - len(reasons)} more")
    repeated = repeated_lines(analysis)
    shown = fmt.rows_with_room(repeated, _MAX_REASONS)
    for text in shown:
        print_line(Text(f"  {text}"))
    if len(repeated) > len(shown):
        print_line(f"  … and {len(repeated) - len(shown)} more intervals measured again")
    for _, section in sections():
        section.show(analysis, console)
    for check in analysis.checks:
        mark = Text("✓ ", style="green") if check.passed else Text("✗ ", style="bold red")
        print_line(Text.assemble(mark, check.name, (f": {check.detail}", "dim")))
    if analysis.agreement.compared or analysis.agreement.invalid:
        print_line(Text.assemble(("agreement with theory: ", "dim"), analysis.agreement.text))
    if any(o.samples for o in analysis.outcomes):
        print_line(_targets_line(measured_targets(analysis.outcomes), "recovery"))
    for name, outcomes in analysis.shown_outcomes.items():
        print_line(_targets_line(measured_targets(outcomes), name))
