"""Railyard: GPU training fabrics, emulated on real packets.

    import railyard as ry
    with ry.fabric(ry.FabricSpec(kind="rail-only", domains=2, rails=4)) as net:
        net.run(ry.AllToAll(bytes="8MB")).ratio

Everything is imported when it is first used. Every workload and collective of the registries is an attribute: AllToAll,
AllReduce, Gpt, Moe, ... docs/api.md describes the rest. The sub-packages are the top-level folders of the checkout.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from railyard.core.errors import BadInput, CheckFailed, RailyardError
    from railyard.core.errors import MissingRequirement as MachineLacks
    from railyard.experiments.api.experiment import run
    from railyard.experiments.api.fabric import Fabric, Fault, MakeFault, fabric
    from railyard.experiments.api.processes import MakeRanks, Process
    from railyard.experiments.api.results import Results, load
    from railyard.experiments.api.specs import FabricSpec, load_plugin
    from railyard.experiments.api.timing import timing
    from railyard.workloads.spec import Workload

    MakeWorkload = Callable[..., Workload]  # its arguments are the workload's keys in YAML
    AllGather: MakeWorkload
    AllReduce: MakeWorkload
    AllToAll: MakeWorkload
    Allreduce: MakeWorkload
    Collective: MakeWorkload
    DataParallel: MakeWorkload
    Ddp: MakeWorkload
    Gpt: MakeWorkload
    Moe: MakeWorkload
    ReduceScatter: MakeWorkload
    Trace: MakeWorkload
    Training: MakeWorkload
    Transfers: MakeWorkload

_EXPORTS: Final = {
    "BadInput": "core.errors.BadInput",
    "CheckFailed": "core.errors.CheckFailed",
    "Fabric": "experiments.api.fabric.Fabric",
    "Fault": "experiments.api.fabric.Fault",
    "MakeFault": "experiments.api.fabric.MakeFault",
    "MakeRanks": "experiments.api.processes.MakeRanks",
    "Process": "experiments.api.processes.Process",
    "fabric": "experiments.api.fabric.fabric",
    "run": "experiments.api.experiment.run",
    "FabricSpec": "experiments.api.specs.FabricSpec",
    "load_plugin": "experiments.api.specs.load_plugin",
    "MachineLacks": "core.errors.MissingRequirement",
    "RailyardError": "core.errors.RailyardError",
    "Results": "experiments.api.results.Results",
    "load": "experiments.api.results.load",
    "timing": "experiments.api.timing.timing",
}
__version__ = "0.1.0"
__all__ = [
    "BadInput", "CheckFailed", "Fabric", "FabricSpec", "Fault", "MachineLacks", "MakeFault", "MakeRanks", "Process",
    "RailyardError", "Results", "fabric", "load", "load_plugin", "run", "timing",
]  # fmt: skip


if not TYPE_CHECKING:  # or every name would be one of the package for a type checker

    def __getattr__(name: str) -> Any:
        """Import an exported name, or return the constructor of the workload that has this name."""
        if name in _EXPORTS:
            module, _, attribute = _EXPORTS[name].rpartition(".")
            found = getattr(import_module(f"railyard.{module}"), attribute)
        elif name[0].isupper():
            found = import_module("railyard.experiments.api.specs").workload(name)
        else:
            raise AttributeError(f"module 'railyard' has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    specs = import_module("railyard.experiments.api.specs")
    return sorted({*globals(), *__all__, *specs.workload_names()})
