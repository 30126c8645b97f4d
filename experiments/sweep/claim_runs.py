"""The runs that measure claims of the papers: a sweep whose axis is the experiment, and what it says of each claim."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.text import Text

from railyard.core.errors import BadInput
from railyard.core.host import detect, require
from railyard.core.provenance import git_commit
from railyard.core.safe_files import Folder
from railyard.experiments.options import console
from railyard.experiments.run.folder import reporting_path_errors
from railyard.experiments.spec import loading
from railyard.experiments.spec.duration import about, expected_s
from railyard.experiments.sweep.driver import Driver
from railyard.experiments.sweep.folder import FAILED, SweepFolder
from railyard.experiments.sweep.local import Local
from railyard.experiments.sweep.spec import Cell, Sweep
from railyard.results.published.claims import measured
from railyard.results.published.claims.definition import Measured, Paper, PublishedClaim
from railyard.results.sources import RUNS

SWEEP: Final = "sweep"
AXIS: Final = "experiment"
"""The axis of the sweep. It is no key of an experiment: each cell is an experiment of its own."""


class ClaimRun(NamedTuple):
    """A run that measures claims, and about how many seconds it takes; None if that is not known."""

    cell: Cell
    seconds: float | None


def run_claims(papers: Mapping[str, Paper], out: Path) -> list[str]:
    """Run what measures the claims of papers, and keep it in `out`/measured.csv; return what went wrong.

    A run that is there and valid is not run again; those of another version are named. An invalid run is not kept.
    BadInput if no claim is measured.
    """
    require(detect())
    claims: list[tuple[PublishedClaim, Measured]] = []
    for paper in papers.values():
        claims += [(claim, claim.measured) for claim in paper.claims if claim.measured]
    if not claims:
        raise BadInput("claims", ", ".join(papers), "has none that is measured on packets")
    runs = _runs([how for _, how in claims])
    cells = tuple(run.cell for run in runs.values())
    sweep = Sweep("claims", {}, {AXIS: list(runs)}, cells)
    screen = console(stderr=True)
    with reporting_path_errors("--out", out):
        opened = Folder(out, make=True)
    with opened, SweepFolder(out / SWEEP, sweep) as folder:
        folder.claim()
        # another attempt may succeed where the machine was busy
        missing = [cell for cell in cells if folder.state(cell.name) in ("", FAILED, measured.INVALID)]
        for line in plan_lines(runs, missing):
            screen.print(Text(line), soft_wrap=True)
        driver = Driver(folder, Local(), screen, folder.write_results)
        try:
            problems = list(driver.run(missing, seed=len(cells)).failed)
        except KeyboardInterrupt:
            screen.print("stopped: the same command goes on with the experiments that are missing")
            raise
        folders = {name: folder.path / RUNS / run.cell.name for name, run in runs.items()}
        problems += _keep(claims, folders, opened, screen)
    return problems


def _keep(
    claims: Sequence[tuple[PublishedClaim, Measured]], folders: Mapping[str, Path], out: Folder, screen: Console
) -> list[str]:
    """Write what runs say of claims to measured.csv in `out`; return why those are missing that are not in it.

    `folders`: of the runs, by the name of the experiment with its overrides.
    """
    problems: list[str] = []
    measurements = measured.read(out.path / measured.NAME)
    for claim, how in claims:
        # one run that says nothing leaves the other claims as they are
        try:
            measurements[claim.id] = measured.measure(claim, folders[how.run_name])
        except BadInput as error:
            problems.append(str(error))
    kept = [measurements[claim.id] for claim, _ in claims if claim.id in measurements]
    note = measured.of_other_versions(kept, measured.version(git_commit()))
    if note:
        # a run of hours is kept until its folder is removed
        screen.print(f"note: {note}; without their folders in {out.path / SWEEP / RUNS} they run again")
    out.write(measured.NAME, measured.to_csv(measurements).encode())
    return problems


def plan_lines(runs: Mapping[str, ClaimRun], missing: Sequence[Cell]) -> Iterator[str]:
    """Yield which runs are there already, then those that are missing, with about how long they take.

    `runs`: by the name of the experiment with its overrides.
    """
    there: list[str] = []
    to_do: list[str] = []
    total_s = 0.0
    unknown = 0
    for name, run in runs.items():
        if run.cell not in missing:
            there.append(name)
            continue
        to_do.append(f"{about(run.seconds):>7}  {name}")
        total_s += run.seconds or 0.0
        unknown += run.seconds is None
    if there:
        verb = "is" if len(there) == 1 else "are"
        yield f"{len(there)} of {len(runs)} experiments {verb} there already: {', '.join(there)}"
    if not to_do:
        return
    line = f"{len(to_do)} of {len(runs)} experiments to run"
    if total_s:
        line += f", about {about(total_s)}"
    if unknown:
        line += f", and {unknown} of unknown time"
    yield f"{line}:"
    yield from to_do


def _runs(claims: Sequence[Measured]) -> dict[str, ClaimRun]:
    """Return the run of each experiment with its overrides, by its name: several claims may be of one run."""
    runs: dict[str, ClaimRun] = {}
    for how in claims:
        if how.run_name not in runs:
            spec = loading.make(loading.read(how.experiment), how.experiment, how.options)
            runs[how.run_name] = ClaimRun(Cell({AXIS: how.run_name}, spec.resolved()), expected_s(spec))
    return runs
