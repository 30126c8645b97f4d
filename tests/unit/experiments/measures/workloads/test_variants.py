"""Variants in which the workloads of an experiment run."""

from typing import Any

from railyard.experiments.measures.workloads.turn import Variant
from railyard.experiments.measures.workloads.variants import variants_of
from railyard.experiments.spec.parsing import parse

FABRIC = {"kind": "rail-only", "domains": 4, "rails": 4}


def variants(**keys: Any) -> list[tuple[str, str]]:
    """Return scene and policy of each variant, in their order."""
    workload = {"kind": "transfers", "duration": "1s"}
    spec = parse({"name": "mine", "fabrics": [FABRIC], "workloads": [workload], **keys})
    return [(each.scene, each.policy) for each in variants_of(spec).variants(spec, spec.gpu_fabrics[0])]


def test_workload_runs_once_without_policies() -> None:
    assert variants() == [(Variant().scene, Variant().policy)] == [("", "")]


def test_policies_run_in_turn_beside_the_background() -> None:
    background = [{"rails": [0], "load": 0.5}]
    routing = {"policies": ["dr", "health"]}
    assert variants(routing=routing, background=background) == [("", "dr"), ("", "health")]


def test_all_policies_run_in_a_scene_before_the_next_one() -> None:
    routing = {"policies": ["dr", "health"]}
    turns = variants(routing=routing, grid={"rails": [0], "loads": [0, 0.5]})
    assert [policy for _, policy in turns] == ["dr", "health"] * 2
    assert [scene for scene, _ in turns] == ["g0 0%", "g0 0%", "g0 50%", "g0 50%"]
