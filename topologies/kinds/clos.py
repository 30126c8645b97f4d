"""Fabric kind `clos`: a fat-tree of two tiers, with a leaf for each HB domain and spines that join the leaves.

         spine0      spine1          every leaf has a cable to every spine
         |     \\    /     |
       leaf0            leaf1        all GPUs of a domain attach to its leaf
      /     \\          /     \\
    d0g0    d0g1      d1g0    d1g1

Frames take a shortest path; flows are hashed over the spines. Ranks have no switches of their own, so every path
between two domains crosses the spines.
"""

from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind
from railyard.topologies.graph import Cable, Network, Size


@FABRIC_KINDS.register("clos")
class Clos(FabricKind):
    """A leaf for each HB domain, and spines."""

    default_policy = "spine"
    default_spines = 2

    def network(self, size: Size) -> Network:
        """Return switches and cables. A leaf's cables to the spines carry together what its GPUs send, if no
        oversubscription thins them.
        """
        leaves = [f"leaf{domain}" for domain in range(size.domains)]
        spines = [f"spine{number}" for number in range(size.spines)]
        rate = size.rails / size.spines / size.oversubscription
        down = [Cable(gpu.name, leaves[gpu.domain]) for gpu in size.gpus]
        up = [Cable(leaf, spine, rate) for leaf in leaves for spine in spines]
        return Network((*leaves, *spines), (*down, *up))
