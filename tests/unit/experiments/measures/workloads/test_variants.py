"""Variants in which the workloads of an experiment run."""

from typing import Any

from railyard.experiments.measures.workloads.variants import variants_of
from railyard.experiments.spec.parsing import parse

FABRIC = {"kind": "rail-only", "domains": 4, "rails": 4}


def variants(**keys: Any) -> list[tuple[str, str]]:
    """Return scene and policy of each variant, in their order."""
    workload = {"kind": "transfers", "duration": "1s"}
    spec = parse({"name": "mine", "fabrics": [FABRIC], "workloads": [workload], **keys})
    return [(each.scene, each.policy) for each in variants_of(spec).variants(spec, spec.gpu_fabrics[0])]


def test_policies_run_in_turn_in_each_scene() -> None:
    routing = {"policies": ["dr", "health"]}
    assert variants() == [("", "")]
    assert variants(routing=routing, background=[{"rails": [0], "load": 0.5}]) == [("", "dr"), ("", "health")]
    assert variants(routing=routing, grid={"rails": [0], "loads": [0, 0.5]}) == [
        ("g0 0%", "dr"), ("g0 0%", "health"), ("g0 50%", "dr"), ("g0 50%", "health"),
    ]  # fmt: skip
