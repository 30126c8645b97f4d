"""`compare`: say whether runs got slower, by medians, bootstrap intervals and a verdict for each row."""

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from railyard.core.errors import RailyardError
from railyard.core.safe_files import write_file
from railyard.experiments.options import Markdown, console, shows_progress
from railyard.experiments.run import folder
from railyard.experiments.spec.loading import leaves
from railyard.results import run_folder, sources
from railyard.results.analysis import comparison as compared
from railyard.results.analysis.run_analysis import BELIEVABLE, Analysis
from railyard.results.analysis.thresholds import CONFIDENCE, LIMIT
from railyard.results.runs.record_files import to_json
from railyard.results.runs.records import Run
from railyard.results.sources import Source
from railyard.results.views import comparison as views

PURPOSE = "Work with results"
MAX_NAMED = 5  # keys of the specifications that differ
MACHINE = ("kernel", "cpu", "cores", "datapath")  # what makes another machine, of provenance.json


@shows_progress
def command(
    a: Annotated[
        str, typer.Argument(metavar="A", help="The runs to compare with: a run's folder, a folder of runs, a sweep.")
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The runs to judge. A and B may be in a git revision: main:results/a.")
    ],
    limit: Annotated[
        float, typer.Option(min=0.001, max=1, help="A change of this share or less counts as the same.")
    ] = LIMIT,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Confidence of the intervals, for all rows together.")
    ] = CONFIDENCE,
    markdown: Markdown = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON to stdout.")] = False,
) -> int:
    """Compare the runs B with the runs A: same, faster, slower, or not enough data, for each row of results.

    Exit status 1 if a row is slower, if a run of B failed or fails a check that A passes, or if there is not enough
    data for any verdict. A row needs five values on each side: repeats, or runs.
    """
    folder.check_outputs({"--markdown": markdown})
    before = sources.load("A", a)
    after = sources.load("B", b)
    try:
        problems = _problems(before, after)
        notes = _notes(before, after)
        comparison = compared.compare(_values(before), _values(after), limit, confidence, problems, notes)
    except RailyardError:
        raise
    except Exception as error:
        side, suspect = _suspect(before, after)
        raise run_folder.unfit(side, suspect.name, "compared by", error, suspect.run) from error
    if markdown:
        with folder.reporting_path_errors("--markdown", markdown):
            write_file(markdown, views.markdown(comparison, a, b))
    if as_json:
        sys.stdout.write(to_json({"a": a, "b": b, **comparison.as_dict()}).decode())
    views.show(comparison, console(stderr=as_json))
    return 1 if comparison.failure else 0


def _values(runs: Sequence[Source]) -> list[dict[compared.RowKey, compared.Values]]:
    return [compared.values_of(source.run, _axes(source)) for source in runs]


def _suspect(before: Sequence[Source], after: Sequence[Source]) -> tuple[str, Source]:
    """Return the first run whose records are not as Railyard wrote them, else the first, and its side."""
    for side, source_list in (("A", before), ("B", after)):
        for source in source_list:
            if source.run.damaged or not source.run.verified:
                return side, source
    return "A", before[0]


def _axes(source: Source) -> str:
    return ", ".join(f"{key}={value}" for key, value in source.axes.items())


def _failures(source: Source) -> Iterator[str]:
    run = source.run
    if run.failed or run.interrupted:
        yield run.failed or "interrupted"
    for line in run.damaged:
        yield f"damaged: {line}"
    yield from (f"failed: {check.name}" for check in Analysis(run).checks if not check.passed and _counts(check.name))


def _counts(check: str) -> bool:
    """Return whether a check is of the fabric. Rows are left out by their verdicts where the machine was at fault."""
    return check != BELIEVABLE


def _problems(before: Sequence[Source], after: Sequence[Source]) -> Iterator[str]:
    known_problems = {line for source in before for line in _failures(source)}
    for source in after:
        yield from (f"{source.name}: {line}" for line in _failures(source) if line not in known_problems)


def _notes(before: Sequence[Source], after: Sequence[Source]) -> Iterator[str]:
    """Yield what differs between the two sides beside the results."""
    for source in before:
        yield from (f"{source.name}: {line}" for line in _failures(source))
    has_axes = any(source.axes for source in (*before, *after))
    changes = _changes_of_specs(before, after)
    if changes and not has_axes:
        shown = "; ".join(changes[:MAX_NAMED])
        if len(changes) > MAX_NAMED:
            shown += f"; {len(changes) - MAX_NAMED} more"
        yield f"the specifications differ: {shown}"
    for name in MACHINE:
        values_before = sorted({_fact(source.run, name) for source in before})
        values_after = sorted({_fact(source.run, name) for source in after})
        if values_before != values_after:
            yield f"the machines differ: {name} {', '.join(values_before)} → {', '.join(values_after)}"
    for side, runs in (("A", before), ("B", after)):
        if len(runs) < compared.MIN_VALUES:
            few = f"{len(runs)} run{'s' if len(runs) > 1 else ''} in {side}"
            yield f"{few}: the intervals are of repeats, and leave out what differs from run to run"
            break


def _changes_of_specs(before: Sequence[Source], after: Sequence[Source]) -> list[str]:
    """Return `key: old → new` for every key in which the specifications differ, but for the seed."""
    spec_before = _merged_spec(before)
    spec_after = _merged_spec(after)
    keys = dict.fromkeys([*spec_before, *spec_after])
    differing = [key for key in keys if key != "seed" and spec_before.get(key) != spec_after.get(key)]
    return [f"{key}: {spec_before.get(key, 'none')} → {spec_after.get(key, 'none')}" for key in differing]


def _merged_spec(sources: Sequence[Source]) -> dict[str, str]:
    """Return the values of all keys of the sources' specifications; of a key with several, the last source's."""
    values: dict[str, str] = {}
    for source in sources:
        values |= {key: str(value) for key, value in leaves(source.run.spec)}
    return values


def _fact(run: Run, name: str) -> str:
    return str(run.provenance.get(name, "unknown"))
