"""NICs that GPUs of an HB domain share: which GPU is at which NIC, and so on which rail.

A rail is where a NIC is plugged in. NIC n of each domain is plugged into rail switch n, and all GPUs of the NIC share
its link. The map is the same in all domains, so GPUs of one rank are on one rail, and a GPU's rank says by which NIC a
path crosses (docs/topologies.md, "NICs that GPUs share").
"""

from collections.abc import Sequence

from railyard.topologies.addresses import Gpu

RailOfRank = tuple[int, ...]
"""Rail of each GPU of a domain, by its rank; () where each GPU has a NIC and a rail of its own."""


def rails_by_rank(rails: int, gpus_per_nic: int, nics: Sequence[int] | None) -> RailOfRank:
    """Return the rail of each rank of a domain with `rails` GPUs; () where each rank is its own rail.

    `nics`: the explicit map, which takes the place of `gpus_per_nic`.
    """
    by_rank = tuple(rank // gpus_per_nic for rank in range(rails))
    if nics is not None:
        by_rank = tuple(nics)
    if by_rank == tuple(range(rails)):
        return ()
    return by_rank


def map_problem(nics: Sequence[int], rails: int) -> str:
    """Return what is wrong with an explicit map; "" if nothing is."""
    if len(nics) != rails:
        return f"must name the rail of each of the {rails} GPUs of a domain: it has {len(nics)} numbers"
    numbers = set(nics)
    for rail in range(len(numbers)):
        if rail not in numbers:
            return f"must number rails from 0 without gaps: no GPU is on rail {rail}"
    return ""


def nic_name(domain: int, rail: int) -> str:
    """Return the name of the NIC of a domain on a rail, such as d0n1."""
    return f"d{domain}n{rail}"


def most_per_nic(by_rank: RailOfRank) -> int:
    """Return the GPUs of the NIC that most GPUs share; 1 where none is shared."""
    return max((by_rank.count(rail) for rail in set(by_rank)), default=1)


def first_ranks(by_rank: RailOfRank) -> tuple[int, ...]:
    """Return for each rank the lowest rank at the same NIC, which stands for the NIC where links are numbered."""
    return tuple(by_rank.index(rail) for rail in by_rank)


def gpus_of_nic(by_rank: RailOfRank, domain: int, rail: int) -> tuple[Gpu, ...]:
    """Return the GPUs of a domain whose NIC is on a rail."""
    if not by_rank:
        return (Gpu(domain, rail),)
    return tuple(Gpu(domain, rank) for rank, rank_rail in enumerate(by_rank) if rank_rail == rail)
