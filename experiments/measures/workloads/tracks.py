"""Workloads on the timeline: phases, passes of pipeline stages, transfers, goodput, and the rates of links."""

from collections.abc import Sequence

from railyard.results.analysis.aggregate import grouped, labels
from railyard.results.analysis.link_rates import delivered, fabric_specs, link_rates
from railyard.results.format import size
from railyard.results.measured import policies_in_turn
from railyard.results.runs.records import Flow, Run
from railyard.results.views.tracks import Slice, Track, interval_track
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.spec import FabricSpec


def add_tracks(root: Track, run: Run) -> None:
    """Add a track for each replay; the rates of links where nothing changes the paths meanwhile."""
    names = labels(run)
    specs = fabric_specs(run)
    has_fixed_paths = not policies_in_turn(run)
    for interval, flows in grouped(run.flows, "interval").items():
        track = interval_track(root, names, interval)
        done = [flow for flow in flows if flow.end_ns]
        _add_replay(track, done)
        if has_fixed_paths and not interval.script and interval.fabric in specs:
            _add_links(track.child("links"), done, specs[interval.fabric])


def _add_replay(track: Track, flows: Sequence[Flow]) -> None:
    """Draw one replay: its phases, the passes of pipeline stages, the transfers of GPUs, its goodput."""
    for phase, of_phase in grouped(flows, "phase").items():
        track.child("phases").slices.append(_over(phase, of_phase))
    of_stages = [flow for flow in flows if flow.stage]
    for (stage, step), of_step in sorted(grouped(of_stages, "stage", "step").items()):
        track.child("iteration").child(stage).slices.append(_over(step, of_step))
    sent = grouped(flows, "src")
    for gpu in sorted(sent, key=gpu_of_name):
        track.child("transfers").child(gpu).slices += map(_transfer, sent[gpu])
    track.child("goodput", "bit/s").samples += delivered(flows)


def _over(name: str, flows: Sequence[Flow]) -> Slice:
    """Return a slice from the first transfer's start to the last one's end."""
    start_ns = min(flow.start_ns for flow in flows)
    end_ns = max(flow.end_ns for flow in flows)
    return Slice(start_ns, end_ns, name, {"transfers": len(flows)})


def _transfer(flow: Flow) -> Slice:
    """Return the slice of a transfer."""
    details: dict[str, object] = {"phase": flow.phase, "bytes": flow.bytes, "delivered": flow.delivered}
    if flow.step:
        details["step"] = flow.step
    return Slice(flow.start_ns, flow.end_ns, f"{flow.kind} → {flow.dst} {size(flow.bytes)}", details)


def _add_links(track: Track, flows: Sequence[Flow], fabric: FabricSpec) -> None:
    """Draw the rate of each GPU's links."""
    rates = sorted(link_rates(flows, fabric), key=lambda rate: (gpu_of_name(rate[0]), rate[1]))
    for gpu, link, samples in rates:
        track.child(gpu).child(link, "bit/s").samples += samples
