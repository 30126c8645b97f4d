"""A fabric kind as a graph: a leaf for each HB domain, which all its GPUs attach to, and spines that join the leaves.

         spine0      spine1          every leaf has a cable to every spine
         |     \\    /     |
       leaf0            leaf1        at full bisection: the cables of a leaf to the spines carry what its GPUs send
      /     \\          /     \\
    d0g0    d0g1      d1g0    d1g1

Frames take a shortest path; flows are hashed over the spines. A domain whose leaf is dead is cut off.

    script/run predict collectives --plugin docs/examples/leaf_spine.py -o 'fabrics=[{kind: leaf-spine, domains: 4,
        rails: 4}]'
"""

from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind
from railyard.topologies.graph import Cable, Network, Size


@FABRIC_KINDS.register("leaf-spine")
class LeafSpine(FabricKind):
    """HB domains attached whole to one leaf."""

    default_policy = "spine"
    default_spines = 2  # so that `spines` and `oversubscription` are keys of the fabric; 0 for a kind without them

    def network(self, size: Size) -> Network:
        """Return switches and cables of a fabric of this size. Rates are in rates of a rail; a GPU's cable has 1."""
        leaves = [f"leaf{domain}" for domain in range(size.domains)]
        spines = [f"spine{number}" for number in range(size.spines)]
        rate = size.rails / size.spines / size.oversubscription
        down = [Cable(gpu.name, leaves[gpu.domain]) for gpu in size.gpus]
        up = [Cable(leaf, spine, rate) for leaf in leaves for spine in spines]
        return Network((*leaves, *spines), (*down, *up))
