"""`predict`, `dry-run`, `describe` and `list` of experiments that steer."""

import io
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.experiments import cli
from railyard.experiments.commands import trace
from railyard.experiments.measures.steering.dry_run import describe_background, format_shares
from railyard.experiments.measures.steering.expected_times import initial_states
from railyard.experiments.measures.steering.predict import EQUATIONS, SHARES, WHY_NOT, predictions
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.loading import read
from railyard.experiments.spec.parsing import parse
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path as Way
from railyard.topologies.forwarding import Share
from railyard.topologies.measure.capture import Probe
from railyard.workloads.background.spec import BackgroundSpec
from tests.unit.loaded_experiments import load
from tests.unit.stand_ins import plan_of

pytestmark = pytest.mark.usefixtures("figures_as_text")

STEERED = [name for name in loading.names() if "routing" in loading.read(name)]
HOT = {"rails": [0, 1], "load": 0.8}


def spec_of(**keys: Any) -> ExperimentSpec:
    """Four domains of four rails, of which 0 and 1 are hot; two GPUs send to each other's rank."""
    transfers = {"kind": "transfers", "domains": [0], "ranks": [0, 1], "duration": "1s"}
    fabric = {"kind": "rail-only", "domains": 4, "rails": 4, "rail_rate": "20Mbit", "hb_rate": "240Mbit"}
    data = {"name": "mine", "fabrics": [fabric], "workloads": [transfers], "routing": {}, "background": [HOT]}
    return parse(data | keys)


def times_of(spec: ExperimentSpec) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for row in predictions(spec):
        found.setdefault(row.policy, []).append(row.predicted)
    return found


def test_best_fit_puts_both_transfers_on_one_idle_rail() -> None:
    times = times_of(spec_of())
    assert times["dr"] == times["rd"] == times["health"] == [pytest.approx(5.0, rel=1e-3)]
    assert times["health-drd"] == [pytest.approx(2.0, rel=1e-3)]
    assert times["health-best"] == times["oracle"] == [pytest.approx(1.0, rel=1e-3)]


def test_there_is_a_row_for_each_policy_and_seed_in_their_order() -> None:
    rows = predictions(spec_of(routing={"policies": ["rd", "random"]}, repeats=3, seed=7))
    assert [(row.policy, row.seed) for row in rows] == [(p, s) for p in ("rd", "random") for s in (7, 8, 9)]
    assert len({row.predicted for row in rows if row.policy == "random"}) > 1, "the draw depends on the seed"


def test_unknown_prediction_has_a_reason() -> None:
    rows = {row.policy: row for row in predictions(spec_of())}
    assert (rows["ecmp"].predicted, rows["ecmp"].equation, rows["ecmp"].why) == (None, "", WHY_NOT["several"])
    assert rows["dr"].equation == SHARES
    wave = HOT | {"duration": "1s", "period": "2s"}
    assert {(row.predicted, row.why) for row in predictions(spec_of(background=[wave]))} == {(None, WHY_NOT["moving"])}


def test_dependent_steps_have_equations_only_on_default_routes() -> None:
    moe = {"kind": "moe", "skew": 1.0, "algorithm": "direct", "duration": "2s"}
    policies = {"policies": ["dr", "rd", "health-best"]}
    quiet = {row.policy: row for row in predictions(spec_of(workloads=[moe], background=[], routing=policies))}
    assert quiet["dr"].equation == EQUATIONS
    assert quiet["dr"].predicted is not None
    assert {quiet[p].why for p in ("rd", "health-best")} == {WHY_NOT["dependent"]}
    loaded = predictions(spec_of(workloads=[moe], routing=policies))
    assert {row.why for row in loaded} == {WHY_NOT["dependent"]}


def test_each_scene_is_predicted_with_its_own_background() -> None:
    grid = {"rails": [0, 1], "loads": [0, 0.5, 0.8]}
    rows = predictions(spec_of(background=[], grid=grid, routing={"policies": ["dr"]}))
    assert [row.predicted for row in rows] == [pytest.approx(s, rel=1e-3) for s in (1, 2, 5)]
    assert len({row.workload for row in rows}) == 3


def test_first_paths_follow_from_the_scores() -> None:
    (_, _, begin), *_ = initial_states(spec_of(), seeds=1)
    assert begin.scores.rails == (20, 20, 100, 100)
    pair, back = begin.chosen("dr")
    assert begin.chosen("health-drd")[pair] == begin.chosen("health-drd")[back] == (Share(Way("drd", 2)),)
    assert {begin.chosen("oracle")[pair], begin.chosen("oracle")[back]} == {(Share(Way("drd", n)),) for n in (2, 3)}


def test_paths_and_background_in_short() -> None:
    assert format_shares((Share(Way("drd", 4)), Share(Way("drd", 5)))) == "drd 4, 5"
    assert format_shares((Share(Way("dr", 1)), Share(Way("rd", 0)))) == "dr 1, rd 0"
    assert format_shares(()) == "–"
    assert describe_background(BackgroundSpec(rails=(0, 2), domains=(1,), load=0.5)) == "domain 1 and rails 0, 2 at 50%"
    wave = BackgroundSpec.model_validate({"spine": True, "load": 0.9, "start": "4s", "duration": "2s", "period": "8s"})
    assert describe_background(wave) == "spines at 90%, from 4s on, for 2s, every 8s"


@pytest.mark.parametrize("name", STEERED)
def test_describe_prints_the_whole_experiment(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No key of it is lost, and none is shown that this experiment has no use for."""
    assert cli.main(["describe", name]) == 0
    wording = capsys.readouterr().out
    data = yaml.safe_load(wording[wording.index("\nname: ") : wording.index("\nrun it: ")])
    above = {key: value for key, value in read(name).items() if key in ("title", "topic", "takes", "description")}
    assert parse(data | above) == load(name)
    assert "start: 0s" not in wording
    assert "reroute" not in data


@pytest.mark.parametrize("command", ["predict", "dry-run"])
def test_routing_and_background_can_be_changed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["-o", "routing.policies=[dr,rd]", "-o", "routing.health.registry=etcd", "-o", "background.0.load=.5"]
    assert cli.main([command, "hot-rail", *changes]) == 0
    assert capsys.readouterr().err == ""
    for file in tmp_path.iterdir():
        file.unlink()
    assert cli.main([command, "hot-rail", "-o", "background.0.load=1"]) == 2
    assert capsys.readouterr() == ("", "error: background.0.load: 1 must be 0.95 or less\n")
    assert not list(tmp_path.iterdir())


def test_trace_shows_choices_before_and_after_its_probes(
    monkeypatch: pytest.MonkeyPatch, data_regression: DataRegressionFixture
) -> None:
    capture = SimpleNamespace(probe=lambda *_: [Probe(0, ())])
    monkeypatch.setattr(trace, "Capture", lambda plan: nullcontext(capture))
    lines: dict[str, str] = {}
    choices: dict[str, list[list[Way] | None]] = {
        "changed": [[Way("dr", 1)], [Way("drd", 2)]],
        "not known afterwards": [[Way("drd", 2)], None],
        "not steered": [None, None],
    }
    for case, answers in choices.items():
        following = iter(answers)
        monkeypatch.setattr(trace, "ask", lambda src, dst, following=following: next(following))
        text = io.StringIO()
        status = trace.show(plan_of(domains=2, rails=4), Gpu(0, 0), Gpu(1, 1), 1, Console(file=text, width=200))
        assert status == 1, "a probe that no process received is lost"
        lines[case] = text.getvalue().splitlines()[0]
    data_regression.check(lines)
