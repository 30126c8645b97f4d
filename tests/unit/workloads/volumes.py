"""How much a model sends in one iteration, in closed form: what counted matrices and schedules are compared with.

Units: bytes that all GPUs together hand to their network, in 16 bits. Rings and hierarchical collectives; all GPUs of
the grid n = x y send, in an AllGather or ReduceScatter of D bytes, (n - 1) D together.
"""

from railyard.workloads.models.catalogue import FP16_BYTES, GptModel, MoeModel
from railyard.workloads.placement.layout import Parallelism


def gpt_volumes(model: GptModel, parallelism: Parallelism | None = None) -> dict[str, float]:
    """Rail-only Fig. 2a: TP has over 75% in the GPTs of 145.6B to 1T. This count gives 95% to 97%.

    TP: 4 AllGather and 4 ReduceScatter of 2 b h s bytes for each layer and micro-batch. PP: b h s / t elements a GPU
    over each of p v - 1 boundaries, forward and back. DP: a ring AllReduce of each GPU's layers. Embeddings are left
    out. No `parallelism`: the published one.
    """
    p = parallelism or model.training
    gathered = model.gathered_bytes(p.micro_batch)
    pipelines = p.data * p.micro_batches
    return {
        "TP": 8.0 * model.layers * pipelines * (p.tensor - 1) * gathered,
        "PP": 2.0 * (p.pipeline * p.virtual_stages - 1) * pipelines * gathered,
        "DP": 2.0 * (p.data - 1) * FP16_BYTES * model.layers * model.layer_parameters,
    }


def moe_volumes(model: MoeModel, gpus: int | None = None) -> dict[str, float]:
    """Rail-only Fig. 5a: all-to-all has 27%. This count gives MoE-1.3B 30.6%.

    All-to-all: all but each GPU's own share of its tokens. DP: AllReduce of the static part, embeddings included, in 16
    bits. The paper doesn't give its count; 27% would need a static part larger by 19%, or one of 32-bit gradients in
    part. Forwarding in HB domains is not counted. With more `gpus` than experts each has the model's own tokens,
    and the experts' replicas are summed too.
    """
    n = gpus or model.gpus
    size = min(model.experts, n)
    replicas = n // size
    experts = 2.0 * (replicas - 1) * FP16_BYTES * model.expert_parameters * model.experts
    return {
        "EP": model.all_to_alls * model.all_to_all_bytes * (size - 1.0) * replicas,
        "DP": 2.0 * (n - 1) * FP16_BYTES * model.static_parameters + experts,
    }
