"""Lint of layouts: the groups whose traffic changes rails, with the reason."""

from hypothesis import given
from hypothesis import strategies as st

from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.pair_traffic import gpt_traffic
from railyard.workloads.models.catalogue import GptModel
from railyard.workloads.placement.cross_rail import Finding, lint, lint_schedule
from railyard.workloads.placement.layout import data_parallel, hierarchical, layout_from_order, layout_from_ranks
from railyard.workloads.spec import build, parse_workload
from tests.unit.workloads.placement.test_layout import parallel


def test_the_published_order_needs_no_traffic_between_rails() -> None:
    """Rail-only Fig. 3: t = 8 fills a DGX A100."""
    assert lint(layout_from_order(parallel(8, 64, 6), 384, 8, ("tensor", "data", "pipeline"))) == ()


def test_tensor_group_over_a_domains_edge_is_named_with_its_gpus() -> None:
    found = lint(layout_from_order(parallel(3, 1, 4), 3, 4, ("tensor", "data", "pipeline")))
    assert found[0] == Finding(
        kind="TP",
        group="stage 0, replica 1",
        ranks=(3, 4, 5),
        gpus=("d0g3", "d1g0", "d1g1"),
        reason="on rail3 in d0 but on rail0, rail1 in d1; "
        "its ring changes domain and rail at d0g3 to d1g0, d1g1 to d0g3",
    )
    assert [(f.kind, f.group) for f in found[1:3]] == [("TP", "stage 0, replica 2"), ("DP", "stage 0, tensor rank 0")]


def test_two_swapped_ranks_are_found_in_their_pipeline() -> None:
    assert lint(layout_from_ranks(parallel(2, 2, 2), 2, 4, [0, 1, 2, 3, 4, 5, 6, 7])) == ()
    (found,) = lint(layout_from_ranks(parallel(2, 2, 2), 2, 4, [0, 1, 2, 3, 4, 6, 5, 7]))
    assert (found.kind, found.group) == ("PP", "stage 0 to 1")
    assert found.gpus == ("d0g1", "d0g2", "d1g2", "d1g1")
    assert found.ranks == (1, 2, 5, 6)
    assert found.reason == "2 of 4 pipelines change domain and rail: d0g1 to d1g2, d0g2 to d1g1"


def test_stages_in_a_row_change_rails_and_snake_order_does_not() -> None:
    straight = lint(layout_from_order(parallel(2, 4, 1), 2, 4, ("tensor", "data", "pipeline")))
    assert [f.group for f in straight] == ["stage 1 to 2"]
    assert lint(hierarchical(parallel(2, 4, 1), 2, 4)) == ()


def test_the_way_back_of_an_interleaved_pipeline_is_looked_at() -> None:
    chunks = parallel(1, 6, 1, virtual_stages=2, global_batch=6)
    (found,) = lint(hierarchical(chunks, 3, 2))
    assert found.group == "stage 5 to 0, back for the next chunk of layers"
    assert found.gpus == ("d2g1", "d0g0")


def test_experts_all_talk_to_all() -> None:
    (found,) = lint(data_parallel(8, 8, 4), experts=8)
    assert (found.kind, found.group) == ("EP", "experts' group 0")
    assert found.reason.startswith("24 of 56 pairs of its all-to-all change domain and rail")
    assert lint(data_parallel(8, 8, 4), experts=4) == ()


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


def test_steps_of_an_experiment_that_change_rails() -> None:
    a2a = parse_workload({"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "bytes": "1MB"})
    schedule, *_ = build(a2a, FabricSpec(kind="rail-optimized", domains=2, rails=2), 10**8, 10**9)
    (found,) = lint_schedule(schedule)
    assert found.gpus == ("d0g0", "d0g1", "d1g0", "d1g1")
    assert (
        found.reason == "4 of its pairs change domain and rail: d0g0 to d1g1, d0g1 to d1g0, d1g0 to d0g1, d1g1 to d0g0"
    )
    dense = parse_workload({"kind": "gpt", "bytes": "1MB"})
    assert lint_schedule(build(dense, FabricSpec(kind="rail-only"), 10**8, 10**9)[0]) == ()
