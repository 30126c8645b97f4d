"""Which figures and tables can be recomputed, by name. Modules are loaded when they are asked for."""

from importlib import import_module
from typing import Final

from railyard.results.published.figure import Figure

FIGURES: Final[dict[str, str]] = {
    "fig1": "what a Clos costs and draws, against scale (Rail-only Eq. 4, 5; Spine-free Fig. 1)",
    "fig2": "traffic volume by kind, and how many pairs it is on (Rail-only Fig. 2)",
    "fig3": "traffic heatmaps of GPT-1T on DGX A100 (Rail-only Fig. 3)",
    "fig4": "traffic of GPT-1T on 16 DGX GH200 (Rail-only Fig. 4)",
    "fig5": "traffic of MoE-1.3B with 128 experts (Rail-only Fig. 5)",
    "fig6": "switches by layer of both designs (Rail-only Fig. 1 and 6)",
    "fig7": "HFU, predicted and measured (Rail-only Fig. 7, Korthikanti Table 5)",
    "fig8": "iteration time against the size of the HB domain (Rail-only Fig. 8)",
    "fig9": "iteration time against HB and NIC bandwidth (Rail-only Fig. 9)",
    "fig10": "iteration time against batch size (Rail-only Fig. 10)",
    "table2": "switches, transceivers and savings (Rail-only Table II)",
    "korthikanti": "iteration time of Korthikanti Table 5, row by row",
    "megatron": "iteration time of Megatron-LM Table 1, row by row",
    "dp530b": "what data parallelism costs the 530B model, measured and by Eq. 11",
    "allgather": "the AllGather bounds, Eq. 12 and 13, and the conjecture that they are equal",
    "slowdown": "MoE all-to-all, Eq. 3 over Eq. 2, for each platform (Rail-only section IV-B)",
    "reliability": "how often both networks fail, and what of the GPUs' time it takes (Rail-only section IV-C)",
}
"""Name -> what it shows. The module is railyard.results.published.figures.NAME, its function `figure()`."""


def compute(name: str) -> Figure:
    """Compute one of FIGURES. KeyError if there is no such name."""
    if name not in FIGURES:
        raise KeyError(name)
    made: Figure = import_module(f"railyard.results.published.figures.{name}").figure()
    return made
