"""Open MPI between the nodes, over TCP on the given rails. Requires openmpi-bin and mpi4py: `script/bootstrap mpi`.

mpirun runs in node 0's namespace and starts its daemons as on other machines, by a command: not ssh, but `enter`, which
moves into a node's namespace and sets a host name there. mpirun and its daemons communicate over the first rail.
"""

import importlib.util
import shutil
from signal import Signals
from typing import Any, Final

from railyard.core.errors import MissingRequirement
from railyard.core.installation import data_file, python_extra
from railyard.topologies.build import namespaces
from railyard.topologies.multirail.spec import Nic
from railyard.workloads.allreduce.engine.jobs import RankConfig
from railyard.workloads.allreduce.engine.worker import Program, result_array
from railyard.workloads.allreduce.engine_kind import ALLREDUCE_ENGINES, AllreduceEngine, PeerRanks
from railyard.workloads.allreduce.tasks import Array

ENTER: Final = data_file("workloads/allreduce/peers/enter")


class MpiRanks(PeerRanks):
    """Open MPI stripes large messages over all of `rails`."""

    program = __name__

    def _signal(self, number: Signals) -> None:
        """Do nothing: idle ranks wait for a request, and mpirun would send the signal to all of them over the rails."""

    @classmethod
    def missing_requirement(cls) -> MissingRequirement | None:
        """Return the requirement of Open MPI and mpi4py, None where both are installed."""
        if shutil.which("mpirun") and importlib.util.find_spec("mpi4py"):
            return None
        return MissingRequirement("this machine lacks Open MPI or mpi4py", python_extra("mpi"))

    def command(self) -> list[str]:
        """Return the command of mpirun."""
        nodes = [Nic(0, rank).namespace for rank in range(self.layout.size)]
        interfaces = [Nic(rail, None).interface for rail in self._rails]
        settings = {
            "plm_rsh_agent": str(ENTER),
            "plm_rsh_no_tree_spawn": "1",
            "routed": "direct",
            "oob_tcp_if_include": interfaces[0],
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": ",".join(interfaces),
            # ranks poll for messages (Open MPI has no other mode), and share this machine's cores
            "mpi_yield_when_idle": "1",
            "hwloc_base_binding_policy": "none",
        }
        # mpirun itself runs on the first node, under that node's name
        command = ["nsenter", f"--net={namespaces.path(nodes[0])}", "unshare", "--uts"]
        command += ["sh", "-c", 'hostname "$0" && exec "$@"', nodes[0]]
        command += ["mpirun", "--allow-run-as-root", "--leave-session-attached"]
        for name, value in settings.items():
            command += ["--mca", name, value]
        command += ["--host", ",".join(nodes), "-np", str(len(nodes))]
        return command + self.worker_command()


class Mpi:
    """Communicator of a rank, through mpi4py. It works in numpy's memory."""

    def __init__(self, config: RankConfig) -> None:
        self.mpi = _world()
        self._nodes = config.layout.size

    def call(self, collective: str, array: Array, root: int) -> Array:
        """Return the result of a collective. Allreduce and broadcast change the array and return it."""
        world = self.mpi.COMM_WORLD
        result = result_array(collective, array, self._nodes)
        match collective:
            case "allreduce":
                world.Allreduce(self.mpi.IN_PLACE, result)
            case "broadcast":
                world.Bcast(result, root)
            case "reduce_scatter":
                world.Reduce_scatter_block(array, result)
            case "all_gather":
                world.Allgather(array, result)
        return result


def _world() -> Any:
    """Initialize MPI, from which point a rank knows its number."""
    from mpi4py import MPI

    return MPI


PROGRAM = Program(Mpi, lambda engine: engine.mpi.Finalize(), _world)


@ALLREDUCE_ENGINES.register("mpi")
class MpiEngine(AllreduceEngine):
    """Open MPI on the first ordinary TCP rail."""

    equation = "Eq. 1 without set-up"
    colour = "yellow"
    ranks = MpiRanks
