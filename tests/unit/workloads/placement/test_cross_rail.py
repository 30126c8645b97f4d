"""Lint of layouts: the groups whose traffic changes rails, with the reason."""

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.pair_traffic import gpt_traffic
from railyard.workloads.models.catalogue import GptModel
from railyard.workloads.placement.cross_rail import Finding, lint, lint_schedule
from railyard.workloads.placement.layout import (
    DIMENSIONS,
    Layout,
    data_parallel,
    hierarchical,
    layout_from_order,
    layout_from_ranks,
)
from railyard.workloads.spec import build, parse_workload
from tests.unit.workloads.placement.test_layout import parallel

MEGATRONS_ORDER: Final = DIMENSIONS


@pytest.mark.parametrize(
    "layout",
    [
        layout_from_order(parallel(8, 64, 6), 384, 8, MEGATRONS_ORDER),  # Rail-only Fig. 3: t = 8 fills a DGX A100
        layout_from_ranks(parallel(2, 2, 2), 2, 4, range(8)),
        hierarchical(parallel(2, 4, 1), 2, 4),
    ],
    ids=["published", "Megatron's", "snake"],
)
def test_layouts_without_traffic_between_rails(layout: Layout) -> None:
    assert lint(layout) == ()


def test_findings_of_layouts(file_regression: FileRegressionFixture) -> None:
    interleaved = parallel(1, 6, 1, virtual_stages=2, global_batch=6)
    a2a = parse_workload({"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "bytes": "1MB"})
    schedule = build(a2a, FabricSpec(kind="rail-optimized", domains=2, rails=2), 10**8, 10**9).schedule
    findings: dict[str, Sequence[Finding]] = {
        "tensor groups over a domain's edge": lint(layout_from_order(parallel(3, 1, 4), 3, 4, MEGATRONS_ORDER)),
        "two swapped ranks": lint(layout_from_ranks(parallel(2, 2, 2), 2, 4, [0, 1, 2, 3, 4, 6, 5, 7])),
        "stages in a row": lint(layout_from_order(parallel(2, 4, 1), 2, 4, MEGATRONS_ORDER)),
        "interleaved pipeline": lint(hierarchical(interleaved, 3, 2)),
        "experts": lint(data_parallel(8, 8, 4, experts=8)),
        "steps of a schedule": lint_schedule(schedule),
    }
    lines: list[str] = []
    for case, listed in findings.items():
        lines += [case, *(f"    {finding}" for finding in listed)]
    file_regression.check("\n".join(lines))


def test_groups_without_traffic_between_rails() -> None:
    assert lint(data_parallel(8, 8, 4, experts=4)) == ()
    dense = parse_workload({"kind": "gpt", "bytes": "1MB"})
    assert lint_schedule(build(dense, FabricSpec(kind="rail-only"), 10**8, 10**9).schedule) == ()


SHAPE = {"hidden": 8, "heads": 4, "sequence": 4, "vocabulary": 5, "parameters": 1, "domain_gpus": 2}
MODEL = GptModel.model_validate({"kind": "gpt", "layers": 4, "training": parallel(1, 1, 1).model_dump(), **SHAPE})


@given(t=st.integers(1, 4), p=st.sampled_from([1, 2, 4]), d=st.integers(1, 4), data=st.data())
def test_there_are_findings_exactly_where_bytes_change_rails(t: int, p: int, d: int, data: st.DataObject) -> None:
    n = t * p * d
    rails = data.draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
    layout = layout_from_ranks(parallel(t, p, d), n // rails, rails, data.draw(st.permutations(range(n))))
    traffic = gpt_traffic(MODEL, layout)
    crossing = {kind for kind in traffic.pairs if traffic.at(kind, "across rails").src.size}
    assert {f.kind for f in lint(layout)} == crossing
