"""Parts of models that read the whole call, outside attention, on ranks and in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import contextile.torch
import contextile.transformers as cth
from contextile.torch import Executor, collect, local_batch
from contextile.transformers._extent import noise_of
from ranks import run_ranks
from tiny_models import make_tiny

sys.path.append(str(Path(__file__).parents[3] / "examples" / "trainers"))
pytestmark = pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
LENGTHS = [9, 40, 12, 27]
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
MOE = {**SMALL, "output_router_logits": True, "router_aux_loss_coef": 0.1, "num_experts_per_tok": 2}


def rope(kind, **more):
    return {"rope_theta": 1e4, "rope_type": kind, **more}


LONG = {
    "short_factor": [1.0] * 4,
    "long_factor": [2.0, 4.0, 8.0, 16.0],
    "original_max_position_embeddings": 16,
    "factor": 8.0,
}
EXTENT = {
    # Frequencies that follow the longest position: beyond what they were trained for, and within.
    "dynamic": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**SMALL, "max_position_embeddings": 16, "rope_parameters": rope("dynamic", factor=4.0)},
    ),
    "dynamic, short": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**SMALL, "max_position_embeddings": 64, "rope_parameters": rope("dynamic", factor=4.0)},
    ),
    "longrope": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            **SMALL,
            "original_max_position_embeddings": 16,
            "rope_parameters": rope("longrope", **LONG),
        },
    ),
    # One kind of layers follows the longest position.
    "of layers": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **SMALL,
            "head_dim": 8,
            "max_position_embeddings": 16,
            "sliding_window": 17,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": rope("default"),
                "full_attention": rope("dynamic", factor=4.0),
            },
        },
    ),
    # Scales by a token's place in the tensor.
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            **SMALL,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "floor_scale": 4,
            "attn_scale": 0.5,
            "attention_chunk_size": 16,
            "no_rope_layer_interval": 2,
        },
    ),
}
ROUTERS = {
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**MOE, "num_local_experts": 4}),
    "qwen3": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**MOE, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16},
    ),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", {**MOE, "num_experts": 4}),
}


def make(name, implementation):
    return make_tiny(*{**EXTENT, **ROUTERS}[name], implementation)


def tokens_of():
    return torch.randint(3, 64, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))


def positions_of():
    return torch.cat([torch.arange(length) for length in LENGTHS])


def prepared(model, strategy="dcp", lengths=LENGTHS):
    executor = Executor()
    home = {} if strategy == "dcp" else {"home": "contiguous"}
    plan = ct.plan(
        lengths,
        cluster=ct.Cluster.from_torch(),
        strategy=strategy,
        block_size=4,
        **home,
        **cth.batch_of(model),
    )
    executor.prepare(plan)
    return executor, plan, local_batch(tokens_of()[: sum(lengths)], plan=plan, rank=executor.rank)


def off(found, expected):
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def gradients_are(model, one, case):
    import torch.distributed as dist

    for (name, value), expected in zip(model.named_parameters(), one.parameters(), strict=True):
        found = torch.zeros_like(value) if value.grad is None else value.grad
        dist.all_reduce(found)
        expected = torch.zeros_like(expected) if expected.grad is None else expected.grad
        error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-4))
        assert error < 2e-5, f"{case}: gradient of {name} is off by {error:.1e}"


def alone(name, model):
    """Logits of one process: of documents by themselves where places in the tensor count, and
    otherwise of the packed batch, whose longest position is that of all documents."""
    tokens, positions = tokens_of(), positions_of()
    if name == "llama4":
        return torch.cat(
            [model(part[None], use_cache=False).logits[0] for part in tokens.split(LENGTHS)]
        )
    return model(tokens[None], position_ids=positions[None], use_cache=False).logits[0]


def train(strategy):
    for name in EXTENT:
        one, model = make(name, "sdpa"), make(name, cth.register())
        executor, plan, local = prepared(model, strategy)
        call = {"input_ids": local.tokens[None], "use_cache": False}
        # Twice: frequencies keep what they followed.
        for _ in range(2):
            model.zero_grad(), one.zero_grad()
            expected = alone(name, one)
            expected.square().sum().backward()
            with cth.use(executor):
                logits = model(position_ids=local.positions[None], **call).logits[0]
                logits.square().sum().backward()
            error = off(collect(logits, plan=plan), expected)
            assert error < 1e-5, f"{name}: logits are off by {error:.1e}"
            gradients_are(model, one, name)
        # The caller answers for positions: ranks ask each other for the longest.
        with cth.use(executor, check_positions=False), torch.no_grad():
            logits = model(position_ids=local.positions[None], **call).logits[0]
        assert off(collect(logits, plan=plan), expected) < 1e-5, name


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "ring"), (3, "dcp")])
def test_what_follows_the_longest_position_or_the_place_is_of_the_batch(ranks, strategy):
    run_ranks(train, ranks, strategy)


def router_losses():
    import torch.distributed as dist

    for name in ROUTERS:
        for lengths in (LENGTHS, [4, 4]):  # with the second, a rank has no token but a filler
            one, model = make(name, "sdpa"), make(name, cth.register())
            executor, _, local = prepared(model, lengths=lengths)
            tokens, positions = (
                tokens_of()[: sum(lengths)],
                torch.cat([torch.arange(n) for n in lengths]),
            )
            labels = tokens.roll(-1)
            labels[torch.tensor(lengths).cumsum(0) - 1] = -100
            more = {"num_items_in_batch": int((labels != -100).sum()), "use_cache": False}
            given = {
                "labels": labels[None],
                "shift_labels": labels[None],
                "position_ids": positions[None],
            }
            expected = one(tokens[None], **given, **more)
            expected.loss.backward()
            assert expected.aux_loss.item() > 0.1
            mine = {
                "labels": local.labels[None],
                "shift_labels": local.labels[None],
                "position_ids": local.positions[None],
            }
            with cth.use(executor):
                found = model(local.tokens[None], **mine, **more)
                found.loss.backward()
            parts = torch.stack([found.loss.detach(), found.aux_loss.detach()])
            dist.all_reduce(parts)
            for part, whole in zip(
                parts, (expected.loss.item(), expected.aux_loss.item()), strict=True
            ):
                assert abs(float(part / whole) - 1) < 1e-5, f"{name}: {float(part)} for {whole}"
            gradients_are(model, one, name)


@pytest.mark.parametrize("ranks", [2, 3])
def test_losses_of_routers_are_those_of_the_batch(ranks):
    run_ranks(router_losses, ranks)


def alone_executor(model, lengths=(64,)):
    executor = Executor(ct.inproc_group(1)[0])
    plan = ct.plan(
        list(lengths), cluster="local:1x1", strategy="zigzag", block_size=8, **cth.batch_of(model)
    )
    executor.prepare(plan)
    return executor, plan


def test_losses_of_routers_of_another_rule_are_refused():
    module = transformers.models.mixtral.modeling_mixtral
    model = make("mixtral", cth.register())
    executor, _ = alone_executor(model)
    before = module.load_balancing_loss_func
    call = {
        "input_ids": torch.ones(1, 64, dtype=torch.int64),
        "position_ids": torch.arange(64)[None],
        "use_cache": False,
    }
    for other in (
        lambda gate_logits, num_experts=None, top_k=2, attention_mask=None: gate_logits[0].sum(),
        lambda logits: logits[0].sum(),
    ):
        module.load_balancing_loss_func = other
        try:
            with (
                pytest.raises(
                    ct.InvalidArgument,
                    match="output_router_logits: expected a model whose load balancing loss",
                ),
                cth.use(executor),
            ):
                model(**call)
            with cth.use(executor):
                model(**call, output_router_logits=False)
            assert module.load_balancing_loss_func is other
        finally:
            module.load_balancing_loss_func = before
    with (
        pytest.raises(ct.InvalidArgument, match="attention_mask: expected none, or ones"),
        cth.use(executor),
    ):
        module.load_balancing_loss_func((torch.zeros(4, 2),), 2, 1, torch.tensor([[1, 0, 1, 1]]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "dynamic",
            "rotary_emb .LlamaRotaryEmbedding., whose frequencies follow the longest position",
        ),
        (
            "of layers",
            "rotary_emb .Gemma3RotaryEmbedding., whose frequencies follow the longest position",
        ),
        ("llama4", "self_attn .Llama4TextAttention., which scales queries by their place"),
        ("mixtral", "output_router_logits, which makes a loss of means"),
    ],
)
def test_models_that_read_the_whole_call_need_their_use(name, message):
    model = make(name, "sdpa")
    executor = Executor(ct.inproc_group(1)[0])
    batch = {**cth.batch_of(model), "mask": "causal"}
    executor.prepare(ct.plan([64], cluster="local:1x1", strategy="zigzag", block_size=8, **batch))
    call = {
        "input_ids": torch.ones(1, 64, dtype=torch.int64),
        "position_ids": torch.arange(64)[None],
        "use_cache": False,
    }
    with (
        pytest.raises(
            ct.InvalidArgument, match=f"expected contextile.transformers.use, .*{message}"
        ),
        contextile.torch.use(executor, is_causal=None),
    ):
        model(**call)
    if name == "mixtral":
        with contextile.torch.use(executor, is_causal=None):
            model(**call, output_router_logits=False)


def test_positions_of_each_rank_from_0_are_refused():
    model = make_tiny("LlamaForCausalLM", "LlamaConfig", SMALL, cth.register())
    executor, _ = alone_executor(model)
    tokens = torch.ones(1, 64, dtype=torch.int64)
    for wrong in (torch.arange(64) + 32, torch.arange(64) + 1):
        with (
            pytest.raises(
                ct.InvalidArgument, match="position_ids: expected those of this rank's tokens"
            ),
            cth.use(executor),
        ):
            model(tokens, position_ids=wrong[None], use_cache=False)
    # RoBERTa's begin behind those of padding.
    sizes = {
        **SMALL,
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    model = make_tiny(
        "RobertaForMaskedLM",
        "RobertaConfig",
        {key: value for key, value in sizes.items() if key != "num_key_value_heads"},
        cth.register(),
    )
    executor, _ = alone_executor(model)
    with cth.use(executor):
        model(tokens, position_ids=torch.arange(64)[None] + 2)
    with pytest.raises(ct.InvalidArgument, match="position_ids: expected those"), cth.use(executor):
        model(tokens, position_ids=torch.arange(64)[None] + 3)


def test_losses_that_are_no_sum_over_tokens_are_refused():
    tokens, positions = torch.ones(1, 64, dtype=torch.int64), torch.arange(64)[None]
    call = {"input_ids": tokens, "position_ids": positions}
    model = make_tiny("LlamaForQuestionAnswering", "LlamaConfig", SMALL, cth.register())
    executor, _ = alone_executor(model)
    span = {"start_positions": torch.tensor([5]), "end_positions": torch.tensor([9])}
    with (
        pytest.raises(
            ct.InvalidArgument,
            match="start_positions: expected none inside use, for LlamaForQuestionAnswering",
        ),
        cth.use(executor),
    ):
        model(**call, **span)
    with cth.use(executor):
        assert model(**call).start_logits.shape == (1, 64)
    given = {"labels": tokens % 2, "shift_labels": tokens % 2, "num_items_in_batch": 64}
    bert = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    for name, config, sizes in (
        # Its labels are not those of next tokens.
        ("LlamaForTokenClassification", "LlamaConfig", SMALL),
        (
            "BertForMaskedLM",
            "BertConfig",
            {**bert, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        ),
        (
            "BartForCausalLM",
            "BartConfig",
            {
                "vocab_size": 64,
                "d_model": 32,
                "decoder_layers": 1,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 48,
            },
        ),
    ):
        model = make_tiny(name, config, sizes, cth.register())
        executor, _ = alone_executor(model)
        accepted = {} if name.startswith("Bart") else {"position_ids": positions}
        with (
            pytest.raises(ct.InvalidArgument, match="labels: expected none inside use"),
            cth.use(executor, positions=positions[0] if not accepted else None),
        ):
            model(tokens, **accepted, **given)


def test_noise_is_that_of_the_whole_call():
    from transformers.integrations.neftune import activate_neftune, deactivate_neftune

    model = make_tiny("LlamaForCausalLM", "LlamaConfig", SMALL, cth.register())
    executor, _ = alone_executor(model)
    call = {
        "input_ids": torch.ones(1, 64, dtype=torch.int64),
        "position_ids": torch.arange(64)[None],
        "use_cache": False,
    }
    handle = activate_neftune(model, 5.0)
    with (
        pytest.raises(
            ct.InvalidArgument, match="neftune_noise_alpha: expected none inside use.*found 5"
        ),
        cth.use(executor),
    ):
        model(**call)
    embeddings = model.get_input_embeddings()
    torch.manual_seed(1)
    whole = embeddings(torch.ones(1, 256, dtype=torch.int64))
    torch.manual_seed(1)
    with noise_of(model, 64, 256), cth.use(executor):
        model(**call)
        torch.manual_seed(1)
        part = embeddings(torch.ones(1, 64, dtype=torch.int64))
    plain = embeddings.weight[1]
    assert ((part - plain).abs().max() / (whole - plain).abs().max()).item() == pytest.approx(
        1, rel=0.05
    )
    assert embeddings.neftune_noise_alpha == 5.0
    deactivate_neftune(model, handle)
    with cth.use(executor):
        model(**call)


# -------------------------------------------------------------------------------------------
# dropout


def dropped(executor, model, strategy):
    """Logits of the batch and gradients with attention dropout, for two seeds."""
    cluster = "local:1x1" if executor.size == 1 else ct.Cluster.from_torch()
    plan = ct.plan(LENGTHS, cluster=cluster, strategy=strategy, block_size=4, **cth.batch_of(model))
    executor.prepare(plan)
    local = local_batch(tokens_of(), plan=plan, rank=executor.rank)
    for seed in (7, 8):
        model.zero_grad()
        with cth.use(executor, dropout_seed=seed):
            logits = model(
                local.tokens[None], position_ids=local.positions[None], use_cache=False
            ).logits[0]
            logits.square().sum().backward()
        yield (
            collect(logits, plan=plan)
            if executor.size > 1
            else dispatched_back(logits.detach(), plan)
        )


def dispatched_back(rows, plan):
    whole = torch.empty_like(rows)
    whole[torch.from_numpy(plan.local_tokens(0))] = rows
    return whole


def drop():
    for checkpointed in (False, True):
        models = [
            make_tiny(
                "LlamaForCausalLM",
                "LlamaConfig",
                {**SMALL, "attention_dropout": 0.3},
                cth.register(),
            )
            for _ in range(2)
        ]
        if checkpointed:
            models[1].gradient_checkpointing_enable({"use_reentrant": False})
        alone = list(dropped(Executor(ct.inproc_group(1)[0]), models[0], "zigzag"))
        found = list(dropped(Executor(), models[1], "dcp"))
        for mine, one in zip(found, alone, strict=True):
            assert off(mine, one) < 1e-5, f"logits are off by {off(mine, one):.1e}"
        assert off(alone[0], alone[1]) > 0.01
        gradients_are(models[1], models[0], "dropout")


@pytest.mark.parametrize("ranks", [2, 3])
def test_dropout_follows_the_seed_and_the_tokens(ranks):
    run_ranks(drop, ranks)


def test_dropout_needs_a_seed():
    model = make_tiny(
        "LlamaForCausalLM", "LlamaConfig", {**SMALL, "attention_dropout": 0.3}, cth.register()
    )
    executor, _ = alone_executor(model)
    call = {
        "input_ids": torch.ones(1, 64, dtype=torch.int64),
        "position_ids": torch.arange(64)[None],
        "use_cache": False,
    }
    with (
        pytest.raises(
            ct.InvalidArgument,
            match="expected dropout 0, found 0.3; use.executor, dropout_seed=…. draws it",
        ),
        cth.use(executor),
    ):
        model(**call)
    with (
        pytest.raises(ct.InvalidArgument, match="dropout_seed: expected a whole number, found '7'"),
        cth.use(executor, dropout_seed="7"),
    ):
        pass
    for layer in model.model.layers:
        layer.self_attn.layer_idx = None
    with (
        pytest.raises(ct.InvalidArgument, match="expected layers with numbers"),
        cth.use(executor, dropout_seed=7),
    ):
        model(**call)
    with cth.use(executor):
        model.eval()(**call)


# ------------------------------------------------------------------------------------------
# trainers


def trainer_of(kind, folder, implementation, **changes):
    import tiny

    torch.manual_seed(0)
    sizes = {**MOE, "vocab_size": 97, "num_local_experts": 4, "max_position_embeddings": 256}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
    model.set_attn_implementation(implementation)
    own = {name: changes.pop(name) for name in ("executor", "plan") if name in changes}
    args = transformers.TrainingArguments(
        folder, gradient_accumulation_steps=2, **{**tiny.SETTINGS, "ddp_backend": None, **changes}
    )
    return kind(model, args, data_collator=tiny.pad, train_dataset=tiny.make_documents(), **own)


def losses_of(trainer):
    trainer.train()
    return [
        entry[name]
        for name in ("loss", "grad_norm")
        for entry in trainer.state.log_history
        if name in entry
    ]


def train_in_the_trainer(folder):
    import torch.distributed as dist

    class Trainer(cth.TrainerMixin, transformers.Trainer):
        pass

    ours = {
        "executor": Executor(),
        "plan": {"strategy": "dcp", "block_size": 16},
        "ddp_backend": "gloo",
    }
    trainer = trainer_of(Trainer, folder, cth.register(), **ours)
    losses = losses_of(trainer)
    if dist.get_rank() == 0:
        torch.save({"losses": losses, "parameters": trainer.model.state_dict()}, f"{folder}/out.pt")
    # Noise is that of rows: this rank's tokens are others than a row has. Every micro-batch drops
    # other attention weights.
    noisy = trainer_of(Trainer, folder, cth.register(), **ours, neftune_noise_alpha=5.0)
    alphas, rows, seeds = [], [], set()
    original, seed = noisy._shares.of, noisy._dropout_seed
    noisy._dropout_seed = lambda: seeds.add(one := seed()) or one
    for layer in noisy.model.model.layers:
        layer.self_attn.attention_dropout = 0.1

    def share_of(*arguments):
        share = original(*arguments)
        rows.append((share["input_ids"].shape[1], share.row_tokens))
        return share

    noisy._shares.of = share_of
    embeddings = noisy.model.get_input_embeddings()
    embeddings.register_forward_hook(lambda module, *_: alphas.append(module.neftune_noise_alpha))
    noisy.train()
    assert len(alphas) == len(seeds) == 6 and all(20 < row < 70 for _, row in rows)
    for alpha, (mine, row) in zip(alphas, rows, strict=True):
        assert alpha / mine**0.5 == pytest.approx(5.0 / row**0.5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_trainers_have_the_losses_of_routers_of_one_process(ranks, tmp_path):
    for name in ("accelerate", "tiny"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    run_ranks(train_in_the_trainer, ranks, str(tmp_path))
    found = torch.load(tmp_path / "out.pt")
    alone = trainer_of(transformers.Trainer, tmp_path / "alone", "sdpa")
    expected = losses_of(alone)
    assert len(expected) == 6
    for mine, one in zip(found["losses"], expected, strict=True):
        assert abs(mine - one) < 1e-5 * abs(one), f"{found['losses']} for {expected}"
    for name, one in alone.model.state_dict().items():
        assert (one - found["parameters"][name]).abs().max() < 1e-5 * one.abs().max().clamp(
            min=1e-3
        ), name
