"""The topology of one host in place of all: NCCL_TOPO_DUMP_FILE has the host of a job's first rank."""

from railyard.workloads.cluster.records import Cluster, Nic


def share(cluster: Cluster) -> None:
    """Give the hosts of communicators what the only topology says, if it is of none of them."""
    names: dict[str, None] = {}
    for communicator in cluster.communicators:
        names |= dict.fromkeys(communicator.hosts)
    described = [host for host in cluster.hosts.values() if host.nics_of_gpu]
    if len(described) != 1 or not names or described[0].name in names:
        return
    topology = described[0]
    for name in names:
        host = cluster.host(name)
        host.nics_of_gpu = topology.nics_of_gpu
        for number, nic in topology.nics.items():
            logged = host.nics.get(number)
            if logged is None:
                host.nics[number] = nic
            else:
                host.nics[number] = Nic(number, logged.name or nic.name, logged.kind, logged.rate_bps or nic.rate_bps)
    del cluster.hosts[topology.name]
    cluster.gaps[f"{topology.name}.xml names no host of the job: it is taken for all of them"] = None
