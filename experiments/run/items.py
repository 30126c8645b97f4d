"""Runs the items of a measure on fabrics as they are: each fabric is built once, each interval gets a verdict."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from railyard.core.records import IntervalId
from railyard.experiments.measures.definition import MEASURES, Item, Measure, RunContext
from railyard.experiments.run.progress import measure_undisturbed
from railyard.experiments.run.session import (
    FabricSession,
    built,
    check_links,
    repeat_suffix,
    surviving_interruptions,
)
from railyard.experiments.spec.experiment import distinct_labels
from railyard.results.runs.records import Run

Work = Callable[[FabricSession, Item, IntervalId, Run], None]
"""Measures an item in an interval on a built fabric, and adds its records to the run."""


def run_items(context: RunContext, measure: Measure[Item], work: Work[Item]) -> None:
    """Build each fabric that has items, check its links, and measure each item as often as it is repeated.

    An item is a step of the run. It is measured again if other programs keep the machine busy, and its interval has
    the machine's load, from which its verdict follows. The routes are those of the fabric's policy: the controller
    reroutes, as nothing fails.
    """
    for number, items in measure.items_by_fabric(context.spec):
        label = context.spec.labels[number]
        with surviving_interruptions(context.run, IntervalId(label)), checked_fabric(context, number) as session:
            names = distinct_labels([_name(measure, item) for item in items], [{} for _ in items])
            for repeat in range(measure.repeats(context.spec)):
                for name, item in zip(names, items, strict=True):
                    interval = session.interval(name, repeat)
                    title = f"{label}: {name}" + repeat_suffix(repeat, measure.repeats(context.spec))
                    with context.steps.step(title), surviving_interruptions(context.run, interval):
                        measure_undisturbed(context.run, partial(_measure, session, item, interval, context.run, work))


@contextmanager
def checked_fabric(context: RunContext, number: int, reroute: bool = True) -> Iterator[FabricSession]:
    """Build a fabric of the experiment, by its number, as a step of the run, and take it down again.

    Its links are checked unless another measure did. `reroute`: the controller reroutes pairs.
    """
    label = context.spec.labels[number]
    run = context.run
    with ExitStack() as stack:
        with context.steps.step(f"{label}: building"):
            session = stack.enter_context(built(label, context.plans[number], context.datapath, reroute, run))
            if not any(link.fabric == label for link in run.links):
                check_links(session, run)
        yield session


def _name(measure: Measure[Item], item: Item) -> str:
    """Return the name of the intervals of an item: `latency from d0g0`."""
    return f"{MEASURES.name_of(measure)} {measure.item_label(item)}".strip()


def _measure(session: FabricSession, item: Item, interval: IntervalId, run: Run, work: Work[Item]) -> None:
    """Measure an item in an interval, with the machine's load."""
    with session.watch().record_load(run, interval):
        work(session, item, interval, run)
