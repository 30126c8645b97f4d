"""`trace` on packets: every pair of every fabric takes the path of its policy, and deviations are reported."""

import pytest

from railyard.controller.failover.detours import Broken
from railyard.experiments.commands.trace import assemble_path, verdict
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import path_name
from railyard.topologies.measure.capture import Capture
from railyard.topologies.plan import read_active_plan
from tests.emulation.fabrics import Fabric, at_best, build
from tests.emulation.programs import USER, Program, as_root, as_user
from tests.emulation.steered import arrived, traced
from tests.emulation.test_cli import BUILT_S, PROMPT, SHELL, Wrap, command
from tests.unit.path_choices import CHOICES, chosen_path, own_path

DETOUR = "a detour: the policy says "
AS_CHOSEN = "\nas the policy says\n"


def assert_all_as_chosen(fabric: Fabric, broken: Broken) -> None:
    """All ordered pairs of GPUs, within domains too."""
    spec, policy = fabric.net.plan.spec, fabric.net.plan.spec.chosen_policy
    with Capture(fabric.net.plan) as capture:
        for src in fabric.gpus:
            for dst in (gpu for gpu in fabric.gpus if gpu != src):
                path = own_path(policy, src, dst)
                if src.domain != dst.domain:
                    path = chosen_path(policy, src, dst, broken, spec.rails, spec.kind) or path
                (way,) = arrived(capture, src, dst)
                assert way.path == path, f"{src.name} -> {dst.name}: {way.name}, by {way}"


@pytest.mark.sandbox
@pytest.mark.parametrize(("kind", "policy"), CHOICES)
def test_every_pair_goes_as_chosen_before_and_after_a_cut(kind: str, policy: str) -> None:
    fabric = build(kind, 2, 3, policy=policy)
    assert_all_as_chosen(fabric, Broken())
    fabric.set_link(Gpu(0, 1), "down")
    fabric.await_event("rerouted")
    assert_all_as_chosen(fabric, Broken(links=frozenset({Gpu(0, 1)})))
    src, dst = Gpu(0, 1), Gpu(1, 1)
    with Capture(fabric.net.plan) as capture:
        way, own = arrived(capture, src, dst)[0], own_path(policy, src, dst)
    assert way.kind == "drd"
    assert verdict([way], [own]) == f"{DETOUR}{path_name(own)}"


@pytest.mark.sandbox
def test_trace_without_rerouting_shows_where_packets_are_lost() -> None:
    fabric = build("rail-only", 2, 3, reroute=False, backups=False)
    fabric.set_link(Gpu(1, 1), "down")
    fabric.await_event("port-down")
    with Capture(fabric.net.plan) as capture:
        at_the_switch = traced(capture, Gpu(0, 2), Gpu(1, 1), 2)
    assert str(at_the_switch[0]) == "d0g2 -hb0-> d0g1 -rail0-> rail1"
    assert verdict(at_the_switch, [own_path("dr", Gpu(0, 2), Gpu(1, 1))]).startswith("lost after rail1: ")


@pytest.mark.sandbox
def test_flows_share_the_spines_and_time_runs_forward() -> None:
    """And the plan is there while the fabric stands."""
    fabric = build("rail-optimized", 2, 2, spines=2)
    assert read_active_plan() == fabric.net.plan
    with Capture(fabric.net.plan) as capture:
        probes = capture.probe(Gpu(0, 0), Gpu(1, 1), 64)
    seen = [assemble_path(Gpu(0, 0), Gpu(1, 1), probe.observations) for probe in probes]
    assert {str(way) for way in seen} == {f"d0g0 -rail0-> rail0 -> spine{n} -> rail1 -> d1g1" for n in (0, 1)}
    for probe, way in zip(probes, seen, strict=True):
        stamps = [ns for hop in way.hops for ns in (hop.in_ns, hop.out_ns) if ns is not None]
        assert [probe.sent_ns, *stamps] == sorted({probe.sent_ns, *stamps})
        assert len(stamps) == 8
    fabric.net.stop()
    assert read_active_plan() is None


@pytest.mark.parametrize("who", [as_root, as_user])
def test_the_command_on_a_fabric_of_ones_own(who: Wrap) -> None:
    def typed(*words: str) -> tuple[int, str]:
        done = command(*words, who=_as_the_same(who))
        return done.returncode, done.stdout + done.stderr

    with Program(who(SHELL)) as shell:
        shell.await_text(PROMPT, BUILT_S)
        status, message = typed("trace", "moe-slowdown", "d0g0", "d1g1", "--probes", "2")
        assert status == 0, message
        assert "2 of 2 probes: dr by rail 1\n  d0g0 -hb0-> d0g1 -rail0-> rail1 -> d1g1\n" in message
        assert message.endswith(AS_CHOSEN)
        assert typed("exec", "moe-slowdown", "rail1", "ip", "link", "set", "d0g1", "down") == (0, "")

        def traced() -> tuple[int, str]:
            return typed("trace", "moe-slowdown", "d0g0", "d1g1", "--probes", "1")

        status, message = at_best(traced, lambda last: last[1].endswith(f"\n{DETOUR}dr by rail 1\n"))
        assert status == 1, message
        assert "\nrd by rail 0\n  d0g0 -rail0-> rail0 -> d1g0 -hb0-> d1g1\n" in message
        gpus = "allowed are d0g0, d0g1, d1g0, d1g1"
        stranger = (2, f"error: DST: 'd7g7' is not a GPU of shell-moe-slowdown: {gpus}\n")
        assert typed("trace", "moe-slowdown", "d0g0", "d7g7") == stranger


def _as_the_same(who: Wrap) -> Wrap:
    """Return who started it: a look from elsewhere needs no /dev/net/tun."""
    return (lambda argv: [*USER, *argv]) if who is as_user else who
