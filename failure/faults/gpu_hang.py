"""Fault kind gpu-hang."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.links import all_lost, disable_loss, enable_loss, prepare_loss
from railyard.failure.faults.support.processes import GpuFault, gpu_links, processes_in, signal_all
from railyard.topologies.build.network import FabricNet
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.plan import Plan


@fault("gpu-hang")
class GpuHang(GpuFault):
    """A GPU neither answers nor forwards, and keeps its carriers."""

    order = 12
    weight = 1.0

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return all GPUs; none where GPUs share NICs, since a NIC's loss would be that of other GPUs too."""
        if isinstance(plan, Plan) and plan.nics:
            return ()
        return super().targets(plan)

    def target_problem(self, plan: FabricPlan, target: str) -> str:
        """Return what is wrong with a target; on a fabric whose GPUs share NICs, that."""
        if isinstance(plan, Plan) and plan.nics:
            return (
                f"can't hang on {plan.title}: a GPU that shares a NIC can crash, but has no link of its own to silence"
            )
        return super().target_problem(plan, target)

    def prepare(self, net: FabricNet, target: str, p: Any) -> None:
        """Install the rules at all cables."""
        for link in gpu_links(net, target):
            prepare_loss(link, 1.0)

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Start the loss, and stop all processes in the GPU's namespace."""
        # A GPU forwards for others (Rail-only IV-B). The emulated GPU's kernel would do so even while its processes are
        # stopped, so its cables lose all packets too.
        enable_loss(*gpu_links(net, target))
        signal_all(target, signal.SIGSTOP)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Continue the processes, and stop the loss."""
        signal_all(target, signal.SIGCONT)
        disable_loss(*gpu_links(net, target))

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether each direction of each cable loses all frames, and each process is stopped."""
        symptoms: list[bool] = []
        for link in gpu_links(net, target):
            symptoms += all_lost(link)
        for pid in processes_in(target):
            with suppress(psutil.NoSuchProcess):
                symptoms.append(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        return symptoms
