"""Open MPI: one mpirun at the first GPU. Requires openmpi-bin and mpi4py: `script/bootstrap mpi`."""

from collections.abc import Sequence
from typing import Final

from railyard.core.errors import MissingRequirement
from railyard.workloads.allreduce.engines.mpi import ENTER, MpiRanks
from railyard.workloads.training.program import TRAINING_PROGRAMS, Job, Launch, TrainingProgram, script

DEVICE: Final = "rail0"


@TRAINING_PROGRAMS.register("mpi")
class Mpi(TrainingProgram):
    """Open MPI's allreduces over TCP; mpirun ends the job after a failure, which continues from its checkpoint."""

    def missing_requirement(self) -> MissingRequirement | None:
        """Return the requirement of Open MPI and mpi4py."""
        return MpiRanks.missing_requirement()

    def setup(self, address: str) -> Sequence[str]:
        """Give a GPU's address to its NIC too: Open MPI takes its addresses from interfaces, but not from lo."""
        return ("ip", "address", "replace", f"{address}/32", "dev", DEVICE)

    def launches(self, job: Job) -> Sequence[Launch]:
        """Return mpirun, whose output names the rank of each line."""
        settings = {
            "plm_rsh_agent": str(ENTER),
            "plm_rsh_no_tree_spawn": "1",
            "routed": "direct",
            "oob_tcp_if_include": DEVICE,
            "btl_tcp_if_include": DEVICE,
            "pml": "ob1",
            "btl": "tcp,self",
            "mpi_yield_when_idle": "1",
            "hwloc_base_binding_policy": "none",
        }
        gpus = tuple(job.addresses)
        arguments = [argument for name, value in settings.items() for argument in ("--mca", name, value)]
        options = [option for option in job.options("checkpoint.npz") if not option.startswith("--timeout=")]
        command = ["mpirun", "--allow-run-as-root", "--tag-output", *arguments]
        command += ["--host", ",".join(gpus), "-np", str(len(gpus)), *script("mpi"), *options]
        return [Launch(gpus[0], tuple(command), {"OMPI_MCA_orte_abort_on_non_zero_status": "1"})]
