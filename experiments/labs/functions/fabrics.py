"""Answers of lab 1: forwarding GPUs, routes and cables of the variant's fabric."""

from itertools import permutations

from railyard.experiments.labs.definition import Setting
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.forwarding import hops
from railyard.topologies.routing import source_routes


def rank_pairs(rails: int, second_domain: int) -> list[tuple[int, int]]:
    """Return the ranks that source and destination may have: different ones, and the second not `second_domain`.

    A destination d1g1 would hide the mistake of exchanging domain and rank.
    """
    pairs = permutations(range(rails), 2)
    return [(first, second) for first, second in pairs if second != second_domain]


def default_spines() -> int:
    """Return the number of spines that rail-optimized has by default."""
    return FABRIC_KINDS["rail-optimized"].default_spines


def forwarder(setting: Setting, source: str, destination: str) -> str:
    """Return the GPU that forwards packets between two GPUs of the variant, by the fabric's policy."""
    path = setting.fabric().paths(setting.gpu(source), setting.gpu(destination))[0].path
    return hops(path, setting.gpu(source), setting.gpu(destination))[0].b.name


def route_count(setting: Setting, gpu: str) -> int:
    """Return the number of routes of metric 20 at a GPU of the variant."""
    return len(source_routes(setting.plan(), setting.gpu(gpu)))


def exchanged_address(setting: Setting, gpu: str) -> str:
    """Return the address that a GPU would have if domain and rank were exchanged."""
    domain, rank = setting.gpu(gpu)
    return Gpu(rank, domain).ip


def crosses_spine(setting: Setting) -> bool:
    """Return whether packets from `src` to `dst` cross a spine on rail-optimized."""
    paths = setting.fabric(kind="rail-optimized").paths(setting.gpu("src"), setting.gpu("dst"))
    return paths[0].path.kind == "spine"


def spine_cables(setting: Setting) -> int:
    """Return the number of cables of rail-optimized that have an end at a spine."""
    plan = setting.plan(kind="rail-optimized")
    return sum("spine" in link.a.node or "spine" in link.b.node for link in plan.links)
