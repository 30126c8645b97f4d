"""Metrics of a live run in the text format of Prometheus, version 0.0.4."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from railyard.experiments.live.sampler import LinkSample

_ABOUT: Final = {
    "railyard_link_up": ("gauge", "1 if the link has a carrier"),
    "railyard_link_rate_bits": ("gauge", "rate of the link, bit/s"),
    "railyard_link_bits": ("gauge", "traffic of the last sample, bit/s"),
    "railyard_link_queue_bytes": ("gauge", "bytes that wait at the network's end of the link"),
    "railyard_link_drops": ("gauge", "frames dropped in the last sample"),
    "railyard_health_score": ("gauge", "health score, 0 blocked to 100 idle"),
    "railyard_active_faults": ("gauge", "faults that were clicked and are not repaired"),
    "railyard_gpus": ("gauge", "GPUs or nodes of the fabric that is up"),
}


def exposition(
    run: Mapping[str, Any],
    fabric: Mapping[str, Any] | None,
    links: Sequence[LinkSample],
    health: Mapping[str, Sequence[tuple[float, float]]],
) -> str:
    """Return all metrics. `fabric`: as `structure` returns it; `health`: (load, score) of each element, by sort."""
    rows: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in _ABOUT}
    rows["railyard_active_faults"].append(({}, len(run["active"])))
    gpu_count = 0
    link_structures: Sequence[Mapping[str, Any]] = ()
    if fabric:
        gpu_count = len(fabric["hosts"])
        # there is no sample yet of a fabric that has just come up
        if links:
            link_structures = fabric["links"]
    rows["railyard_gpus"].append(({}, gpu_count))
    for link, sample in zip(link_structures, links, strict=True):
        labels = {"a": link["a"], "b": link["b"], "interface": link["interface"]}
        rows["railyard_link_up"].append((labels, sample.up))
        rows["railyard_link_rate_bits"].append((labels, link["rate"]))
        for direction, share in (("to_network", sample.to_network), ("from_network", sample.from_network)):
            rows["railyard_link_bits"].append((labels | {"direction": direction}, share * link["rate"] / 1000))
        rows["railyard_link_queue_bytes"].append((labels, sample.queue))
        rows["railyard_link_drops"].append((labels, sample.drops))
    for sort in ("rail", "domain", "spine"):
        for index, (_, score) in enumerate(health.get(sort, ())):
            rows["railyard_health_score"].append(({"element": sort, "index": str(index)}, score))
    text = ""
    for name, samples in rows.items():
        if samples:
            text += _lines(name, samples)
    return text


def _lines(name: str, rows: Iterable[tuple[Mapping[str, str], float]]) -> str:
    kind, about = _ABOUT[name]
    lines = [f"# HELP {name} {about}\n# TYPE {name} {kind}\n"]
    for labels, value in rows:
        label_texts = [f'{key}="{_escaped(text)}"' for key, text in labels.items()]
        metric = name
        if label_texts:
            metric = f"{name}{{{','.join(label_texts)}}}"
        lines.append(f"{metric} {float(value):.10g}\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
