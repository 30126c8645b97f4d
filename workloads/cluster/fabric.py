"""The fabric of a cluster that `check` read: its hosts as HB domains, and the rail of each GPU's NIC."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from railyard.core.errors import BadInput
from railyard.topologies.nics import most_per_nic, rails_by_rank
from railyard.topologies.spec import FabricSpec, parse_fabric
from railyard.workloads.cluster.check import RailCheck
from railyard.workloads.cluster.records import Host

_EXPERIMENT: Final = """# GPUs, NICs and rails of {hosts}, as `check` read them. Rates and sizes are the emulation's.
name: cluster
fabrics:
  - {{kind: rail-only, {size}}}
  - {{kind: rail-optimized, {size}}}
workloads:
  - {{kind: collective, collective: all-reduce, duration: 2s}}
  - {{kind: collective, collective: all-to-all, algorithm: direct, duration: 2s}}
"""


def experiment_text(check: RailCheck, field: str) -> str:
    """Return an experiment on both fabrics with the map of a cluster, as YAML. BadInput if no fabric has that map.

    `field`: the option that asks for it, for messages.
    """
    spec = fabric_of(check, field)
    words = [f"domains: {spec.domains}", f"rails: {spec.rails}"]
    if spec.gpus_per_nic is not None:
        words.append(f"gpus_per_nic: {spec.gpus_per_nic}")
    elif spec.nics is not None:
        words.append(f"nics: {list(spec.nics)}")
    hosts = list(check.cluster.hosts)
    names = ", ".join(hosts[:4])
    if len(hosts) > 4:
        names += f" and {len(hosts) - 4} more hosts"
    return _EXPERIMENT.format(hosts=names, size=", ".join(words))


def fabric_of(check: RailCheck, field: str) -> FabricSpec:
    """Return the rail-only fabric with a cluster's map of GPUs to rails. BadInput if no fabric has that map."""
    rails_of_hosts = _rails_of_hosts(check, field)
    hosts = list(rails_of_hosts)
    if len(hosts) < 2:
        raise BadInput(field, ", ".join(hosts) or "no host", "must have 2 hosts or more, with GPUs that the files name")
    first = rails_of_hosts[hosts[0]]
    for host in hosts[1:]:
        problem = _difference(hosts[0], first, host, rails_of_hosts[host])
        if problem:
            raise BadInput(field, host, f"{problem}: a fabric has one map for all domains")
    numbers = sorted(set(first.values()))
    by_rank = [numbers.index(first[gpu]) for gpu in sorted(first)]
    data: dict[str, object] = {"kind": "rail-only", "domains": len(hosts), "rails": len(by_rank)}
    gpus_per_nic = most_per_nic(tuple(by_rank))
    if tuple(by_rank) == rails_by_rank(len(by_rank), gpus_per_nic, None):
        data["gpus_per_nic"] = gpus_per_nic
    elif by_rank != list(range(len(by_rank))):
        data["nics"] = by_rank
    return parse_fabric(data)


def _rails_of_hosts(check: RailCheck, field: str) -> dict[str, dict[int, int]]:
    """Return the rail of each GPU, by host."""
    rails_of_hosts: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for place in check.gpus:
        for name in place.hosts:
            if len(place.rails) > 1:
                rails = ", ".join(map(str, place.rails))
                allowed = f"uses NICs on rails {rails}: a GPU of a fabric has one NIC"
                raise BadInput(field, f"GPU {place.gpu} of {name}", allowed)
            rail = place.rails[0] if place.rails else _rail_by_place(check, name, place.gpu)
            if rail is None:
                allowed = "has no NIC in these files: give --rails, --gpus-per-nic or a topology as XML"
                raise BadInput(field, f"GPU {place.gpu} of {name}", allowed)
            rails_of_hosts[name][place.gpu] = rail
    return dict(rails_of_hosts)


def _rail_by_place(check: RailCheck, name: str, gpu: int) -> int | None:
    """Return the rail of a GPU whose NIC no connection shows: by the host's topology, else by its number."""
    host = check.cluster.host(name)
    if gpu in host.nics_of_gpu or check.rails.gpus_per_nic > 1:
        return check.rails.rail_of_gpu(host, gpu)
    gpus_per_nic = _gpus_per_nic(check, host)
    if gpus_per_nic is None:
        return None
    return check.rails.rail(host, gpu // gpus_per_nic)


def _gpus_per_nic(check: RailCheck, host: Host) -> int | None:
    """Return how many GPUs share each NIC of a host, if each NIC has as many; None if unknown."""
    gpus = {place.gpu for place in check.gpus if host.name in place.hosts}
    if not host.nics or len(gpus) % len(host.nics):
        return None
    return len(gpus) // len(host.nics)


def _difference(first: str, first_rails: Mapping[int, int], host: str, rails: Mapping[int, int]) -> str:
    """Return how the map of a host differs from the first one's; "" if it doesn't."""
    if first_rails.keys() != rails.keys():
        return f"has {len(rails)} GPUs, and {first} has {len(first_rails)}"
    for gpu, rail in sorted(rails.items()):
        if rail != first_rails[gpu]:
            return f"has GPU {gpu} on rail {rail}, and {first} has it on rail {first_rails[gpu]}"
    return ""
