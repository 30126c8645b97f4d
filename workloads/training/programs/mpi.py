"""Open MPI: one mpirun at the first GPU. Requires openmpi-bin and mpi4py: `script/bootstrap mpi`."""

from collections.abc import Sequence
from typing import Final

from railyard.core.errors import MissingRequirement
from railyard.core.installation import PROJECT
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
        """Give a GPU's address to its NIC."""
        return address_command(address)

    def launches(self, job: Job) -> Sequence[Launch]:
        """Return mpirun with the shipped script."""
        options = [option for option in job.options("checkpoint.npz") if not option.startswith("--timeout=")]
        return [mpirun(job, [*script("mpi"), *options])]


def address_command(address: str) -> Sequence[str]:
    """Return the command that gives a GPU's address to its NIC too: Open MPI takes none from lo."""
    return ("ip", "address", "replace", f"{address}/32", "dev", DEVICE)


def mpirun_command(gpus: Sequence[str], argv: Sequence[str]) -> list[str]:
    """Return the command to start at the first GPU, for a rank at each; its output names the rank of each line."""
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
        "orte_abort_on_non_zero_status": "1",
    }
    command = ["mpirun", "--allow-run-as-root", "--tag-output"]
    for name, value in settings.items():
        command += ["--mca", name, value]
    return [*command, "--host", ",".join(gpus), "-np", str(len(gpus)), *argv]


def mpirun(job: Job, argv: Sequence[str], cwd: str = str(PROJECT)) -> Launch:
    """Return mpirun with a rank at each GPU."""
    gpus = tuple(job.addresses)
    return Launch(gpus[0], tuple(mpirun_command(gpus, argv)), {}, cwd=cwd)
