"""Fault kind gpu-crash."""

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.processes import CrashedGpus


@fault("gpu-crash")
class GpuCrash(CrashedGpus):
    """A GPU loses both links and all its processes."""

    order = 11
    weight = 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "GPU crash, what it carried for others",
            "its carrier is lost (PORT_STATUS), a decision, and route changes at all sources that it forwarded for",
            100,
            150,
        ),
    )
