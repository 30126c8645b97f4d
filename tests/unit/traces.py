"""Traces for tests: those of tests/traces, and what is done with them."""

from pathlib import Path
from typing import Any, Final

from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import FabricSpec
from railyard.workloads.jobs.trace import TraceSpec
from railyard.workloads.scale import real_rates
from railyard.workloads.schedule import payload_rates
from railyard.workloads.spec import Setting, parse_workload
from railyard.workloads.traces.common import Trace
from railyard.workloads.traces.lower import Lowered
from tests.traces import make

TRACES: Final = Path(make.__file__).parent
RANKS: Final = {"pipeline": 8, "experts": 4, "ring": 4, "dlrm": 8, "ddp.json": 4, "moe.txt": 16, "micro.txt": 16}
FORMATS: Final = {"pipeline": "chakra", "experts": "chakra", "ring": "chakra", "dlrm": "param", "ddp.json": "param"}
FABRIC: Final = FabricSpec(kind="rail-only", domains=4, rails=4)


def read(path: Path | str, groups: str | None = None) -> Trace:
    return spec_of(path, groups=groups).read(setting_of(FABRIC))


def spec_of(path: Path | str, **more: Any) -> TraceSpec:
    spec = parse_workload({"kind": "trace", "path": str(path), **more})
    assert isinstance(spec, TraceSpec)
    return spec


def setting_of(fabric: FabricSpec) -> Setting:
    emulated = payload_rates(12 * 10**8, 10**8, fabric.mtu)
    return Setting(fabric, real_rates(PLATFORMS[fabric.platform], emulated), emulated, "workload", 0)


def replayable(path: Path | str, fabric: FabricSpec = FABRIC, **more: Any) -> Lowered:
    return spec_of(path, **{"bytes_factor": 1.0, **more}).lowered(setting_of(fabric))[0]


SIMAI: Final = """HYBRID_TRANSFORMER model_parallel_NPU_group: 2 all_gpus: 4
2
a -1 10 ALLREDUCE 100 20 ALLREDUCE 200 30 ALLREDUCE 300 40
b -1 11 NONE 0 21 ALLGATHER 201 1 NONE 0 41
"""
