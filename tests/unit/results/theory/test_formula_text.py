"""Formulas as reports print them say what the predictions compute."""

import pytest

from railyard.results.format import seconds
from railyard.results.theory.formula_text import formula_texts
from railyard.results.theory.predict import predict_schedule
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import parse_fabric
from railyard.workloads.collectives.algorithm import ALGORITHMS
from railyard.workloads.schedule import Phase, Rates
from railyard.workloads.spec import build, parse_workload

RATES = Rates(hb=24e6, rail=2e6)
SIZES = [(1, 2), (2, 1), (1, 4), (4, 3)]
GRIDS = [
    (name, x, y)
    for name, algorithm in ALGORITHMS.items()
    if algorithm.formula
    for x, y in SIZES
    if x * y == 2 or name != "point-to-point"
]


@pytest.mark.parametrize(("name", "x", "y"), GRIDS)
def test_the_symbols_give_the_closed_form(name: str, x: int, y: int) -> None:
    phase = Phase("p", "collective", name, x, y, 6e6)
    text = ALGORITHMS[name].formula.replace("−", "-").replace("·", "*")
    values = {"x": x, "y": y, "D": phase.data_bytes, "C_F": RATES.hb, "C_S": RATES.rail, "max": max}
    assert eval(text, values) == pytest.approx(ALGORITHMS[name].closed_form_s(phase, RATES.hb, RATES.rail))


def test_each_time_of_an_iteration_has_its_values_and_result() -> None:
    fabric = parse_fabric({"kind": "rail-only", "domains": 4, "rails": 4})
    schedule, *_ = build(parse_workload({"kind": "moe"}), fabric, 16_000_000, 192_000_000)
    texts, predicted = formula_texts(schedule, RATES, fabric), predict_schedule(schedule, RATES, fabric)
    assert {name: text.rpartition(" = ")[2] for name, text in texts.items()} == {
        name: seconds(value) for name, value in predicted.items()
    }
    assert texts["moe-a2a"].startswith("Eq. 3: y·(x−1)·D/C_F + x·(y−1)·D/C_S = 4·(4−1)·")
    assert "/(24.00\u00a0MB/s) + 4·(4−1)·" in texts["moe-a2a"]
    assert texts[WHOLE].startswith("Eq. 6: T_bubble + T_LS + T_sync = 0\u00a0s + ")


def test_a_bound_has_its_name_alone() -> None:
    thin = parse_fabric({"kind": "rail-optimized", "domains": 4, "rails": 4, "oversubscription": 4})
    schedule, *_ = build(parse_workload({"kind": "moe"}), thin, 16_000_000, 192_000_000)
    assert formula_texts(schedule, RATES, thin)["moe-a2a"] == "bottleneck link, not Eq. 2"
