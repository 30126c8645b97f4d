"""Assertions on measured times: they are inconclusive, and not failed, where the machine could not measure.

    with ry.timing():
        assert fabric.run(ry.AllToAll(bytes="8MB")).ratio < 1.1

No other assertion is ever inconclusive, so a test can't hide a failure by accident (docs/api.md, "pytest").
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from railyard.core.errors import BadInput
from railyard.experiments.api import inconclusive
from railyard.experiments.api.results import Results

# The results that were measured in each block that is open now.
_blocks: Final[list[list[Results]]] = []


@contextmanager
def timing(*results: Results) -> Iterator[list[Results]]:
    """Context for assertions on measured times: on `results`, and on everything that is measured inside it.

    An AssertionError that leaves it gets a note with the reason of a verdict that isn't ok. It counts as inconclusive
    in pytest if the machine alone made the measurements invalid. BadInput for a value that is no Results.
    """
    for value in results:
        if not isinstance(value, Results):
            raise BadInput("results", value, "must be what net.run, fault.repair, ry.run or ry.load returned")
    measured = list(results)
    _blocks.append(measured)
    try:
        yield measured
    except AssertionError as error:
        for covered in measured:
            if covered.reasons:
                error.add_note(f"fidelity: {covered.reasons[0]}")
            inconclusive.mark(error, covered.analysis.judgement.machine_reason)
        raise
    finally:
        _blocks[:] = [block for block in _blocks if block is not measured]


def record(results: Results) -> None:
    """Add what was measured to every open block."""
    for block in _blocks:
        block.append(results)
