"""The equation behind a predicted time in symbols, and with the values that it was computed from."""

import re
from collections.abc import Iterator
from typing import Final

from railyard.results import format as fmt
from railyard.results.theory.predict import equation, hash_choices, iteration_terms, predict_phase
from railyard.results.theory.stated import stated
from railyard.topologies.prediction import WHOLE, StatedTime
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS
from railyard.workloads.schedule import Phase, Rates, Schedule

_SYMBOL: Final = re.compile(r"(/?)(C_F|C_S|\b[xyD]\b)")


def formula_texts(schedule: Schedule, rates: Rates, fabric: FabricSpec) -> dict[str, str]:
    """Return a text for each phase by name, and for a whole iteration: `Eq. 3: y·(x−1)·D/C_F + ... = ... = 1.605 s`.

    A phase that no equation predicts has the name of its bound alone; what is not compared has no text.
    """
    predictions = stated(schedule, rates, fabric)
    texts: dict[str, str] = {}
    for phase in dict.fromkeys(schedule.phases):
        if phase.name not in predictions:
            texts[phase.name] = _of_phase(phase, rates, fabric, hash_choices(phase, schedule, fabric))
    for name, prediction in predictions.items():
        if isinstance(prediction, StatedTime):
            texts[name] = f"{prediction.equation} = {fmt.seconds(prediction.seconds)}"
    if predictions:
        return texts
    if schedule.iteration is not None and all(phase.collective for phase in schedule.phases):
        terms = iteration_terms(schedule.iteration, rates, fabric)
        values = " + ".join(map(fmt.seconds, terms))
        texts[WHOLE] = f"Eq. 6: T_bubble + T_LS + T_sync = {values} = {fmt.seconds(sum(terms))}"
    return texts


def _of_phase(phase: Phase, rates: Rates, fabric: FabricSpec, choices: str) -> str:
    by = equation(phase, rates, fabric, choices)
    algorithm = ALGORITHMS[phase.collective] if phase.collective else None
    if algorithm is None or not algorithm.formula or by != algorithm.equation:
        return by
    return " = ".join([f"{by}: {algorithm.formula}", *_values(algorithm.formula, phase, rates, fabric)])


def _values(formula: str, phase: Phase, rates: Rates, fabric: FabricSpec) -> Iterator[str]:
    """Yield the formula with the values of one run, then its result."""
    values = {"x": str(phase.x), "y": str(phase.y), "D": fmt.size(phase.data_bytes)}
    values |= {"C_F": f"{fmt.size(rates.hb)}/s", "C_S": f"{fmt.size(rates.rail)}/s"}

    def value(symbol: re.Match[str]) -> str:
        return f"/({values[symbol[2]]})" if symbol[1] else values[symbol[2]]

    yield _SYMBOL.sub(value, formula)
    yield fmt.seconds(predict_phase(phase, rates, fabric) / phase.repeats)
