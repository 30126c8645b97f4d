"""A fault kind of a plugin: what a definition must have, and what consumers derive from it."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core import plugins
from railyard.experiments import cli
from railyard.experiments.measures.faults.targets import first_packet_target
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.failure.faults import FAULTS, Fault, cable, fault_kinds
from railyard.failure.oracle.reachability import bounds
from railyard.failure.pairs import affected_pairs
from railyard.failure.scenario.random_faults import RandomFaults
from railyard.topologies.addresses import Gpu
from railyard.topologies.spec import parse_fabric
from tests.emulation.programs import ROOT
from tests.unit.messages import messages

PLUGIN = ROOT / "docs/examples/rail_brownout.py"
PLAN = nominal_plan(parse_fabric({"kind": "rail-only", "domains": 3, "rails": 3}))
SPEC = """
name: mine
fabrics: [{kind: rail-only}]
faults: [{kind: rail-brownout, target: rail1, rate: 0.2}]
"""


@pytest.fixture(autouse=True)
def _plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.ENVIRONMENT, "")
    plugins.load(PLUGIN)
    yield
    for kind in fault_kinds():
        if FAULTS.source(kind).origin == "plugin":
            FAULTS.remove(kind)


def test_source_of_a_plugin_kind_is_its_file() -> None:
    assert FAULTS.source("rail-brownout").file == "docs/examples/rail_brownout.py"
    assert fault_kinds()[-1] == "rail-brownout"


def test_spec_has_the_parameters_of_a_plugin_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(SPEC)
    spec = parse(yaml.safe_load(SPEC))
    assert spec.resolved()["faults"][0]["rate"] == 0.2
    assert cli.main(["dry-run", str(tmp_path / "mine.yaml"), "-o", "rate=0.3"]) == 0
    assert "rail-brownout rail1 2s rate 0.3" in " ".join(capsys.readouterr().out.split())


def test_oracle_slows_the_cables_of_a_plugin_kind() -> None:
    fault = Fault.of("rail-brownout", "rail1", rate=0.2)
    left = bounds(PLAN, [fault])
    assert left.lower.dead.slowed == {cable(f"d{d}g1", "rail1"): PLAN.rail_bps // 5 for d in range(3)}
    assert left.lower.reachable == bounds(PLAN, []).lower.reachable
    crosses = affected_pairs(fault, PLAN).crosses
    assert crosses(Gpu(0, 1), Gpu(1, 1))
    assert not crosses(Gpu(0, 0), Gpu(1, 0))
    assert first_packet_target("rail-brownout", None) is None


def test_random_faults_draw_a_plugin_kind_if_the_mix_names_it() -> None:
    assert "rail-brownout" not in RandomFaults().weights
    script = RandomFaults(count=20, mix={"rail-brownout": 1.0, "link-down": 1.0}).script("random", PLAN, 1)
    assert {timed.fault.kind for timed in script.faults} == {"rail-brownout", "link-down"}


BROKEN = """
from railyard.failure.faults import FaultKind, fault

@fault("{name}")
class Broken(FaultKind):
    \"\"\"Lacks most of it.\"\"\"
    def targets(self, plan): return []
    def impact(self, plan, target, p): return None
    def inject(self, net, target, p): pass
"""
BAD_SPECS = {
    "large rate": ("rate: 0.2", "rate: 2"),
    "parameter of another kind": ("rate: 0.2", "loss: 0.2"),
    "target": ("rail1", "d0g0"),
}


def load_definition(folder: Path, name: str) -> None:
    file = folder / "broken.py"
    file.write_text(BROKEN.format(name=name))
    plugins.load(file)


def test_messages_name_a_plugin_kind_like_others(tmp_path: Path, data_regression: DataRegressionFixture) -> None:
    texts = messages(lambda change: parse(yaml.safe_load(SPEC.replace(*change))), BAD_SPECS)
    names = {"incomplete": "mine", "name of another kind": "link-down"}
    for case, message in messages(partial(load_definition, tmp_path), names).items():
        # without the line of the other definition
        texts[case] = re.sub(r":\d+$", "", message)
    data_regression.check(texts)
