"""What the live page offers to start: named texts in YAML, of the experiment and of the registries."""

from railyard.core.config import parse_yaml
from railyard.experiments.live.choices import choices
from railyard.experiments.live.traffic import STARTABLE
from railyard.workloads.background.spec import BACKGROUNDS, BackgroundSpec, check_background
from railyard.workloads.collectives.algorithm import collectives
from railyard.workloads.spec import build, parse_workload
from tests.unit.stand_ins import plan_of

WORKLOAD = {"kind": "moe", "model": "moe-1.3b-128", "duration": "3s"}
BACKGROUND = {"rails": [0, 1], "load": 0.9}
EXPERIMENT = {"workloads": [WORKLOAD, {"kind": "allreduce"}], "background": [BACKGROUND]}


def test_every_offered_workload_can_be_built() -> None:
    plan, texts = plan_of(domains=4, rails=4), choices({})["workload"]
    for name, text in texts.items():
        spec = parse_workload(parse_yaml(text, name))
        assert build(spec, plan.spec, plan.rail_bps, plan.hb_bps).schedule.phases
    assert set(collectives()) <= {name.partition(",")[0] for name in texts}


def test_every_kind_of_background_is_offered() -> None:
    plan, texts = plan_of("rail-optimized", domains=4, rails=4), choices({})["background"]
    specs = [BackgroundSpec.model_validate(parse_yaml(text, name)) for name, text in texts.items()]
    for spec in specs:
        check_background([spec], plan.spec)
    assert {key for spec in specs for key in spec.model_dump(exclude_none=True)} >= {*BACKGROUNDS.names()}


def test_experiments_own_choices_come_first_in_their_order() -> None:
    offered = choices(EXPERIMENT)
    assert tuple(offered) == STARTABLE
    workload, background = (next(iter(offered[sort].items())) for sort in ("workload", "background"))
    assert workload == ("of the experiment: moe-1.3b-128", "kind: moe\nmodel: moe-1.3b-128\nduration: 3s")
    assert parse_yaml(background[1], "background") == BACKGROUND
