"""Shapes of transformers against published totals, and their FLOPs against the published formulas."""

import pytest

from railyard.workloads.models.catalogue import GptModel, MoeModel, load_model, load_transformer, model_names
from railyard.workloads.models.transformer import Transformer

EXACT = {
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v3": 671_026_404_352,
    "kimi-k2": 1_026_408_209_408,
    "nemotron4-15b": 15_628_775_424,
    "nemotron4-340b": 341_029_195_776,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}
"""Parameters of these shapes as Hugging Face's transformers counts them in its own classes, on the meta device."""
ACTIVE = {
    "deepseek-v3": 37e9,
    "kimi-k2": 32.6e9,
    "gpt-oss-120b": 5.13e9,
    "mixtral-8x7b": 12.9e9,
    "mixtral-8x22b": 39e9,
    "qwen3-235b-a22b": 22e9,
    "nemotron3-super": 12e9,
}
"""As published, and published with three digits at most."""
TRANSFORMERS = [name for name in model_names() if isinstance(load_model(name), Transformer)]


@pytest.mark.parametrize("name", EXACT)
def test_shape_counts_to_the_published_weights(name: str) -> None:
    assert load_transformer(name).all_parameters == EXACT[name]


def test_only_the_sinks_of_gpt_oss_are_not_counted() -> None:
    sinks = 36 * 64
    assert load_transformer("gpt-oss-120b").all_parameters + sinks == 116_829_156_672


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_the_published(name: str) -> None:
    assert load_transformer(name).active_parameters == pytest.approx(ACTIVE[name], rel=0.03)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_kinds_of_layers_add_up(name: str) -> None:
    model = load_transformer(name)
    order = model.layer_sequence
    assert [order.count(index) for index in range(len(model.layer_kinds))] == [k.layers for k in model.layer_kinds]
    layers = sum(model.layer_kinds[index].parameters for index in order)
    assert layers + model.outer_parameters == model.all_parameters
    for kind in model.layer_kinds:
        assert kind.parameters - kind.static_parameters == kind.experts * kind.expert_parameters
        assert kind.matmul_parameters < kind.active_parameters < kind.matmul_parameters * 1.001


def test_gpt_of_a_paper_has_the_paper_formulas() -> None:
    """Narayanan et al. 2021 section 5.1: 24 s h^2 + 4 s^2 h forward in a layer, 2 s h V in the output layer."""
    gpt = GptModel.load("gpt-145.6b")
    model = gpt.transformer
    (kind,) = model.layer_kinds
    s = gpt.sequence
    assert kind.parameters == gpt.layer_parameters
    assert s * kind.matmul_flops == 24 * s * gpt.hidden**2
    assert kind.attention_flops(s) == 4 * s**2 * gpt.hidden
    assert s * model.output_flops == 2 * s * gpt.hidden * gpt.vocabulary
    # the papers leave the last norm out
    assert model.all_parameters - model.final_norm_parameters == gpt.all_parameters
    assert not model.fused_attention


def test_moe_of_a_paper_has_the_paper_parameters() -> None:
    mixture = MoeModel.load("moe-1.3b-128")
    model = mixture.transformer
    assert model.moe_layers == 12
    routers = 12 * (2048 * 128 + 128)
    assert model.all_parameters - model.final_norm_parameters - routers == mixture.all_parameters


def test_causal_pairs_with_and_without_a_window() -> None:
    """Against counting pairs one by one."""
    windowed, whole = load_transformer("gpt-oss-120b").layer_kinds
    for sequence in (1, 100, 128, 300):
        assert whole.attention_pairs(sequence) == sum(range(1, sequence + 1))
        assert windowed.attention_pairs(sequence) == sum(min(i, 128) for i in range(1, sequence + 1))
    size = 64 * (64 + 64)
    assert whole.attention_flops(300) == 2 * 300**2 * size
    assert whole.attention_flops(300, causal=True) == 300 * 301 * size


def test_latent_attention_widths_are_at_full_size() -> None:
    dense, moe = load_transformer("deepseek-v3").layer_kinds
    assert (dense.layers, moe.layers) == (3, 58)
    assert (moe.query_width, moe.key_width, moe.value_width) == (128 * 192, 128 * 192, 128 * 128)
    assert moe.latent_width == 576
    assert (dense.mlp_width, moe.mlp_width) == (18432, 9 * 2048)


def test_copy_with_another_value_is_counted_anew() -> None:
    model = load_transformer("deepseek-v3")
    assert [kind.layers for kind in model.layer_kinds] == [3, 58]
    assert [kind.layers for kind in model.model_copy(update={"layers": 31}).layer_kinds] == [3, 28]


def test_hybrids_have_state_spaces_and_attention() -> None:
    """Nemotron 3 Nano: 23 Mamba-2 and 23 MoE layers in pairs, 6 of attention; 31.6 B parameters (its model card)."""
    model = load_transformer("nemotron3-nano")
    pairs, attention = model.layer_kinds
    assert (pairs.layers, attention.layers) == (23, 6)
    assert model.all_parameters == pytest.approx(31.6e9, rel=1e-3)
    # in_proj gives gate, x, B and C of 8 groups, and a step for each head; out_proj takes 64 x 64 values
    projections = 2688 * (2 * 4096 + 2 * 8 * 128 + 64 + 4096)
    assert pairs.attention_parameters - projections == 5 * 6144 + 3 * 64 + 4096
    assert attention.matmul_parameters == 2688 * 128 * (32 + 2 + 2 + 32)
    # a scan costs every token the same, attention each one more
    assert pairs.attention_flops(16384) == 2 * pairs.attention_flops(8192)
    assert attention.attention_flops(16384) == 4 * attention.attention_flops(8192)
    assert model.layer_sequence.count(1) == 6
    assert model.layer_sequence[-1] == 1


def test_latent_experts_have_projections() -> None:
    model = load_transformer("nemotron3-super")
    plain = model.model_copy(update={"expert_hidden": model.hidden})
    (latent, _), (full, _) = (each.layer_kinds for each in (model, plain))
    assert latent.expert_parameters * 4 == full.expert_parameters
    assert latent.mlp_parameters - full.mlp_parameters == 2 * 4096 * 1024
