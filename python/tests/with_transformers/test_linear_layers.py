"""Models with linear and convolutional layers on ranks, compared with one process."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_transformers import loss_of

import contextile.transformers as cth
from contextile.torch import (
    Executor,
    chunks_of,
    collect,
    documents_of,
    gather_layers,
    local_batch,
)
from contextile.torch import use as contextile_use
from ranks import run_ranks
from reference import relative_error
from tiny_models import finished

# On four ranks the third document passes through one whole; others are shorter than a kernel.
LENGTHS = [20, 3, 170, 1, 2, 30, 61, 13]
# The norms' epsilon keeps outputs near 0, at the begin of documents, from blowing up rounding.
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-2,
    "norm_eps": 1e-2,
    "layer_norm_epsilon": 1e-2,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 6,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_d_ssm": 64,
}
MIXED = ["linear_attention", "full_attention", "linear_attention"]
MODELS = {
    "qwen3_next": {**DELTA, **EXPERTS, "layer_types": MIXED},
    "qwen3_5_text": {**DELTA, "layer_types": MIXED},
    "qwen3_5_moe_text": {**DELTA, **EXPERTS, "layer_types": MIXED},
    "olmo_hybrid": {**DELTA, "rms_norm_eps": 1e-3, "layer_types": MIXED},
    "lara_mini": {**DELTA, "layer_types": MIXED},
    "kimi_linear": {
        **DELTA,
        **EXPERTS,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "layer_types": MIXED,
    },
    "bailing_hybrid": {
        **DELTA,
        "kda_safe_gate": False,
        **EXPERTS,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "layer_types": MIXED,
    },
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {**MAMBA, **EXPERTS, "shared_intermediate_size": 32, "layer_types": MIXED},
    "falcon_h1": {**MAMBA, "layer_types": None},
    "nemotron_h": {
        **EXPERTS,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 6,
        "n_groups": 2,
        "chunk_size": 16,
        "conv_kernel": 4,
        "moe_shared_expert_intermediate_size": 16,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention"],
    },
    "lfm2": {"conv_L_cache": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {
        **EXPERTS,
        "conv_L_cache": 3,
        "num_dense_layers": 1,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "lfm3": {"conv_L_cache": 3, "layer_types": ["conv", "full_attention", "conv"]},
}


def make(kind, implementation, **changes):
    given = {**SMALL, "num_hidden_layers": 3, **MODELS[kind], **changes}
    config = transformers.AutoConfig.for_model(
        kind, **{name: value for name, value in given.items() if value is not None}
    )
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = finished(model, implementation, lambda name: 0.5 if "conv" in name else 0.15)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):  # states that last over many ranks
            torch.nn.init.uniform_(
                parameter, -5.0, -2.0, generator=torch.Generator().manual_seed(parameter.numel())
            )
    return model


def tokens_of(lengths):
    return torch.randint(3, 97, (sum(lengths),), generator=torch.Generator().manual_seed(2))


def alone(kind, tokens, lengths):
    """Logits, loss and gradients of one process: every document by itself."""
    model = make(kind, "eager")
    parts, count = [], sum(length - 1 for length in lengths)
    total = torch.zeros(())
    for document in tokens.split(lengths):
        logits = model(
            document[None], position_ids=torch.arange(len(document))[None], use_cache=False
        ).logits[0]
        loss = loss_of(logits[:-1], document[1:], torch.full((len(document) - 1,), 1 / count))
        (loss + 0 * logits.sum()).backward()
        total += loss.detach()
        parts.append(logits.detach())
    return torch.cat(parts), total, {key: value.grad for key, value in model.named_parameters()}


def step(model, executor, plan, tokens, *, checkpointing=False):
    """Logits of the batch and this rank's loss; gradients are left in the parameters."""
    executor.prepare(plan)
    local = local_batch(tokens, plan=plan, rank=executor.rank)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    with cth.use(executor):
        logits = model(
            local.tokens[None], position_ids=local.positions[None], use_cache=False
        ).logits[0]
        loss = loss_of(logits, local.labels, local.loss_weights)
        loss.backward()
    return logits, loss.detach()


def check_gradients(kind, model, gradients):
    """Compares with the largest of each parameter, or a thousandth of the largest of all.

    Gradients are fp32 sums over the tokens in another order, of terms that partly cancel, and how a
    product rounds depends on the CPU. A state that went wrong is off by a percent or more.
    """
    import torch.distributed as dist

    least = 1e-3 * max(one.abs().max() for one in gradients.values() if one is not None)
    for key, value in model.named_parameters():
        found = value.grad if value.grad is not None else torch.zeros_like(value)
        dist.all_reduce(found)
        one = gradients[key] if gradients[key] is not None else torch.zeros_like(value)
        error = (found - one).abs().max() / one.abs().max().clamp(min=least)
        assert error < 1e-4, f"{kind}: gradient of {key} is off by {error:.2e}"


def train(kinds, strategies, checkpointing="off", lengths="", block_size="8"):
    import torch.distributed as dist

    executor = Executor()
    lengths = [int(length) for length in lengths.split()] or LENGTHS
    for kind in kinds.split():
        tokens = tokens_of(lengths)
        expected, expected_loss, gradients = alone(kind, tokens, lengths)
        for strategy in strategies.split():
            model = make(kind, cth.register())
            plan = ct.plan(
                lengths,
                cluster=ct.Cluster.from_torch(),
                strategy=strategy,
                block_size=int(block_size),
                **cth.batch_of(model),
            )
            logits, loss = step(model, executor, plan, tokens, checkpointing=checkpointing == "on")
            dist.all_reduce(loss)
            error = relative_error(collect(logits, plan=plan), expected)
            assert error < 1e-5, f"{kind}, {strategy}: logits are off by {error:.2e}"
            assert abs(loss - expected_loss) < 1e-5 * expected_loss
            check_gradients(f"{kind}, {strategy}", model, gradients)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_models_are_those_of_one_process(num_ranks):
    run_ranks(train, num_ranks, "qwen3_next bamba", "zigzag dcp auto:steps=20000", timeout=600)


def test_every_family_is_that_of_one_process():
    run_ranks(train, 4, " ".join(MODELS.keys() - {"qwen3_next", "bamba"}), "dcp", timeout=900)


def test_checkpointed_models():
    run_ranks(train, 2, "qwen3_next falcon_h1", "zigzag", "on", timeout=600)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param("9", marks=pytest.mark.whole),
        "1 2 6 1",
        pytest.param("2 7", marks=pytest.mark.whole),
    ],
)
def test_ranks_with_fewer_tokens_than_a_kernel(lengths):
    run_ranks(train, 4, "qwen3_next bamba lfm2", "zigzag", "off", lengths, "1", timeout=600)


def states_of(lengths, model, executor, **home):
    """Bytes of tokens and of states that this rank sends in a step."""
    plan = ct.plan(
        lengths,
        cluster=ct.Cluster.from_torch(),
        strategy="dcp",
        block_size=8,
        **cth.batch_of(model),
        **home,
    )
    step(model, executor, plan, tokens_of(lengths))
    return chunks_of(executor).sent_bytes


def count_bytes():
    executor = Executor()
    model = make("qwen3_next", cth.register())
    short, long = (states_of([length], model, executor) for length in (64, 256))
    assert long["states"] == short["states"]
    # Two layers, and forward once: the first of two ranks sends a tail of 3 tokens of 80 channels,
    # and a state of 4 heads of [8, 12]. The other sends their gradients.
    assert short["states"] == 2 * 4 * (3 * 80 + 4 * 8 * 12)
    chunks = chunks_of(executor)
    table = chunks.report(4 * SMALL["hidden_size"], layers=2).splitlines()[1 + executor.rank]
    assert int(table.split()[-1]) == long["tokens"] > 0
    assert states_of([64], model, executor, home="contiguous")["tokens"] == 0


def test_bytes_are_counted_and_states_do_not_grow():
    run_ranks(count_bytes, 2)


# --------------------------------------------------------------------------- layers on documents

JAMBA = {
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 6,
    "mamba_d_conv": 4,
    "mamba_dt_rank": 4,
    "use_mamba_kernels": False,
    **EXPERTS,
}


def train_on_documents():
    import torch.distributed as dist

    MODELS["jamba"] = JAMBA
    executor = Executor()
    # There are fewer documents than ranks in the second batch.
    for lengths in ([20, 3, 40, 1, 2, 13], [60, 21]):
        tokens = tokens_of(lengths)
        expected, expected_loss, gradients = alone("jamba", tokens, lengths)
        model = make("jamba", cth.register())
        places = gather_layers(model, executor, names=["JambaMambaMixer"])
        assert places == ["model.layers.0.mamba", "model.layers.2.mamba"]
        plan = ct.plan(
            lengths,
            cluster=ct.Cluster.from_torch(),
            strategy="zigzag",
            block_size=8,
            **cth.batch_of(model),
        )
        logits, loss = step(model, executor, plan, tokens)
        dist.all_reduce(loss)
        assert relative_error(collect(logits, plan=plan), expected) < 1e-5
        assert abs(loss - expected_loss) < 1e-5 * expected_loss
        assert all(
            value.grad is not None for name, value in model.named_parameters() if "mamba" in name
        )
        check_gradients("jamba", model, gradients)
        documents = documents_of(executor)
        table = documents.report(4 * SMALL["hidden_size"], layers=2).splitlines()[1 + executor.rank]
        assert int(table.split()[-1]) == documents.sent_bytes["tokens"]


def test_layers_on_whole_documents():
    run_ranks(train_on_documents, 4)


def prepared_alone(model, lengths):
    executor = Executor(ct.inproc_group(1)[0])
    plan = ct.plan(
        lengths, cluster="local:1x1", strategy="zigzag", block_size=8, **cth.batch_of(model)
    )
    executor.prepare(plan)
    return executor, local_batch(tokens_of(lengths), plan=plan, rank=0)


def test_what_layers_in_order_refuse():
    from transformers.models.bamba import modeling_bamba

    model = make("bamba", cth.register())
    executor, local = prepared_alone(model, [40, 24])
    inputs = {"input_ids": local.tokens[None], "position_ids": local.positions[None]}
    originals = modeling_bamba.causal_conv1d_fn, modeling_bamba.BambaMixer.forward
    with (
        pytest.raises(ct.InvalidArgument, match="BambaMixer: expected no cache inside use"),
        cth.use(executor),
    ):
        model(**inputs, use_cache=True)
    with (
        pytest.raises(
            ct.InvalidArgument, match="expected no seq_idx, for the plan keeps documents apart"
        ),
        cth.use(executor),
    ):
        model(**inputs, use_cache=False, seq_idx=local.sequence_ids[None].int())
    with (
        pytest.raises(ct.InvalidArgument, match="labels: expected none inside use"),
        cth.use(executor),
    ):
        model(**inputs, use_cache=False, labels=local.tokens[None])
    inputs["position_ids"] = torch.arange(64)[None]
    with (
        pytest.raises(
            ct.InvalidArgument, match="position_ids: expected those of this rank's tokens"
        ),
        cth.use(executor),
    ):
        model(**inputs, use_cache=False)
    modeling_bamba.causal_conv1d_fn = lambda x, *args, **options: x
    with (
        pytest.raises(ct.InvalidArgument, match="found no call of mamba2_chunk_scan"),
        cth.use(executor),
    ):
        modeling_bamba.mamba2_chunk_scan, scan = (
            lambda x, *args, **options: x,
            modeling_bamba.mamba2_chunk_scan,
        )
        try:
            model(local.tokens[None], position_ids=local.positions[None], use_cache=False)
        finally:
            modeling_bamba.mamba2_chunk_scan = scan
    modeling_bamba.causal_conv1d_fn = originals[0]
    assert modeling_bamba.BambaMixer.forward is originals[1]


def test_layers_that_pass_no_states_are_refused():
    MODELS["jamba"] = JAMBA
    model = make("jamba", cth.register())
    with pytest.raises(ct.InvalidArgument, match=r"found linear_attention.*gather_layers"):
        cth.batch_of(model)
    with pytest.raises(ct.InvalidArgument, match="found linear_attention"):
        cth.batch_of(model.config)
    # A mask that the caller names does not make such layers right: the first attention is layer 1.
    executor, local = prepared_alone(make("bamba", cth.register()), [64])
    with (
        pytest.raises(ct.InvalidArgument, match=r"found JambaForCausalLM with model.layers.0"),
        cth.use(executor),
    ):
        model(local.tokens[None], position_ids=local.positions[None], use_cache=False)
    with pytest.raises(ct.InvalidArgument, match="expected modules called Mixer, found none"):
        gather_layers(model, executor, names=["Mixer"])
    # Nor do other contexts than that of transformers.
    bamba = make("bamba", "sdpa")
    with (
        pytest.raises(ct.InvalidArgument, match="BambaForCausalLM with model.layers.0.mamba"),
        contextile_use(executor, check_model=True),
    ):
        bamba(local.tokens[None], position_ids=local.positions[None], use_cache=False)
