"""Models of many kinds under context parallelism, compared with one process."""

from __future__ import annotations

import contextile as ct
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import contextile.transformers as cth  # noqa: E402
from contextile.torch import Executor, collect, local_batch  # noqa: E402
from ranks import run_ranks  # noqa: E402

LENGTHS = [60, 33, 5]
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
TWO_KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
ENCODER = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {
    # Layers of unlike heads and dimensions.
    "Gemma4ForCausalLM": ("Gemma4TextConfig", {
        **SMALL, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
        "sliding_window": 17, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8}),
    "MiMoV2FlashForCausalLM": ("MiMoV2FlashConfig", {
        **SMALL, "head_dim": 12, "v_head_dim": 8, "sliding_window": 17, "layer_types": TWO_KINDS, "n_routed_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}),
    # Chunked layers.
    "Llama4ForCausalLM": ("Llama4TextConfig", {
        **SMALL, "head_dim": 8, "attention_chunk_size": 16, "num_local_experts": 2, "intermediate_size_mlp": 48,
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"]}),
    # A factor of the scores that the configuration does not have, and one KV head.
    "OPTForCausalLM": ("OPTConfig", {**ENCODER, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}),
    # Encoders.
    "BertForMaskedLM": ("BertConfig", {**ENCODER, **NO_DROPOUT}),
    "ModernBertForMaskedLM": ("ModernBertConfig", {
        **ENCODER, "local_attention": 16, "layer_types": TWO_KINDS, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2}),
}  # fmt: skip


def make(name, implementation):
    config_name, changes = MODELS[name]
    torch.manual_seed(5)
    model = getattr(transformers, name)(getattr(transformers, config_name)(**changes)).float().train()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    model.set_attn_implementation(implementation)
    return model


def tokens_of():
    return torch.randint(3, 97, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))


def alone(name):
    """Logits and gradients of one process: every document by itself. The loss is the sum of the
    squares of the logits."""
    model = make(name, "eager")
    parts = []
    for document in tokens_of().split(LENGTHS):
        logits = model(document[None], position_ids=torch.arange(len(document))[None]).logits[0]
        logits.square().sum().backward()
        parts.append(logits.detach())
    return torch.cat(parts), {key: value.grad for key, value in model.named_parameters()}


def compare(name, model, logits, plan):
    """Compares logits and gradients of this rank's model with those of one process."""
    import torch.distributed as dist

    expected, gradients = alone(name)
    error = (collect(logits, plan=plan) - expected).abs().max() / expected.abs().max()
    assert error < 1e-5, f"{name}: logits are off by {error:.2e}"
    largest = max(float(one.abs().max()) for one in gradients.values() if one is not None)
    for key, value in model.named_parameters():
        found = value.grad if value.grad is not None else torch.zeros_like(value)
        dist.all_reduce(found)
        one = gradients[key] if gradients[key] is not None else torch.zeros_like(value)
        error = (found - one).abs().max() / one.abs().max().clamp(min=1e-2 * largest)
        assert error < 1e-5, f"{name}: gradient of {key} is off by {error:.2e}"


def train(names, strategy):
    executor = Executor()
    for name in names.split():
        model = make(name, cth.register())
        plans = ct.plans(LENGTHS, cluster=ct.Cluster.from_torch(), strategy=strategy, block_size=8, **cth.batch_of(model))
        executor.prepare(plans)
        plan = executor.plan
        local = local_batch(tokens_of(), plan=plan, rank=executor.rank)
        with cth.use(executor):
            logits = model(local.tokens[None], position_ids=local.positions[None]).logits[0]
            logits.square().sum().backward()
        compare(name, model, logits, plan)


def test_models_are_those_of_one_process():
    run_ranks(train, 3, " ".join(MODELS), "dcp", timeout=300)


def test_batch_of_asks_the_layers():
    gemma = cth.batch_of(make("Gemma4ForCausalLM", "eager"))
    assert gemma["heads"] == {"full": (4, 1), "sliding": (4, 2)} and gemma["head_dim"] == {"full": 16, "sliding": 8}
    assert gemma["mask"] == {"full": ("causal", 1), "sliding": ("sliding_window:17", 2)} and gemma["scale"] == 1.0
    mimo = cth.batch_of(make("MiMoV2FlashForCausalLM", "eager"))
    assert mimo["sink"] == {"full": False, "sliding": True} and (mimo["head_dim"], mimo["value_dim"]) == (12, 8)
    assert cth.batch_of(make("BertForMaskedLM", "eager"))["mask"] == {"full": ("full", 3)}
    assert cth.batch_of(make("OPTForCausalLM", "eager"))["scale"] == 1.0
    bert = cth.batch_of(make("ModernBertForMaskedLM", "eager"))["mask"]
    assert bert["sliding"][0]([40]).offsets == (-8, 8) and bert["full"] == ("full", 1)
