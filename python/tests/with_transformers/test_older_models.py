"""Models whose layers attend in their own forward, compared with one process."""

from __future__ import annotations

import inspect
import sys

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_models import LENGTHS, compare, tokens_of

import contextile.transformers as cth
from contextile.torch import Executor, collect, local_batch
from ranks import run_ranks
from tiny_models import make_tiny

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
BERT = {
    **SMALL,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
FALCON = {**SMALL, "attention_dropout": 0.0, "hidden_dropout": 0.0}
BART = {
    "vocab_size": 97,
    "d_model": 32,
    "attention_heads": 4,
    "num_layers": 2,
    "ffn_dim": 48,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
# Classes, configurations and sizes by name.
MODELS = {
    "Bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 97, "hidden_size": 48, "n_layer": 2, "n_head": 6, "pad_token_id": 0},
    ),
    "Mpt": (
        "MptForCausalLM",
        "MptConfig",
        {
            "vocab_size": 97,
            "d_model": 48,
            "n_layers": 2,
            "n_heads": 6,
            "max_seq_len": 128,
            "attn_config": {"softmax_scale": 0.3, "clip_qkv": 2.0},
        },
    ),
    "Falcon": ("FalconForCausalLM", "FalconConfig", FALCON),
    "Falcon of many KV heads": (
        "FalconForCausalLM",
        "FalconConfig",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "Falcon without groups": (
        "FalconForCausalLM",
        "FalconConfig",
        {**FALCON, "multi_query": False},
    ),
    "GPTNeo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": 97,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 128,
            "window_size": 7,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "GPTNeoXJapanese": (
        "GPTNeoXJapaneseForCausalLM",
        "GPTNeoXJapaneseConfig",
        {**SMALL, "attention_dropout": 0.0, "hidden_dropout": 0.0},
    ),
    "OpenAIGPT": (
        "OpenAIGPTLMHeadModel",
        "OpenAIGPTConfig",
        {
            "vocab_size": 97,
            "n_positions": 128,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
    "MegatronBert": ("MegatronBertForMaskedLM", "MegatronBertConfig", BERT),
    "RemBert": (
        "RemBertForCausalLM",
        "RemBertConfig",
        {**BERT, "is_decoder": True, "input_embedding_size": 16, "output_embedding_size": 16},
    ),
    "MPNet": ("MPNetForMaskedLM", "MPNetConfig", {**BERT, "max_position_embeddings": 256}),
    "Tapas": ("TapasForMaskedLM", "TapasConfig", {**BERT, "max_position_embeddings": 128}),
    "RoFormer": (
        "RoFormerForMaskedLM",
        "RoFormerConfig",
        {**BERT, "embedding_size": 16, "rotary_value": True},
    ),
    "XGLM": ("XGLMForCausalLM", "XGLMConfig", BART),
    "Mvp": ("MvpForCausalLM", "MvpConfig", BART),
    "TrOCR": ("TrOCRForCausalLM", "TrOCRConfig", BART),
}
GIVES_POSITIONS = ("Mvp", "RoFormer", "TrOCR")  # to models that count them


def make(name):
    return make_tiny(*MODELS[name])


def called(model, tokens, positions):
    accepts = "position_ids" in inspect.signature(type(model).forward).parameters
    return model(
        tokens[None], use_cache=False, **({"position_ids": positions[None]} if accepts else {})
    ).logits[0]


def alone(name):
    """Logits and gradients of one process: every document by itself."""
    model = make(name)
    parts = []
    for document in tokens_of().split(LENGTHS):
        parts.append(called(model, document, torch.arange(len(document))))
        parts[-1].square().sum().backward()
    return torch.cat(parts).detach(), {key: value.grad for key, value in model.named_parameters()}


def train(names, strategy, checkpointing="off"):
    executor = Executor()
    for name in names.split(","):
        model = make(name)
        if checkpointing == "on":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        plans = ct.plans(
            LENGTHS,
            cluster=ct.Cluster.from_torch(),
            strategy=strategy,
            block_size=8,
            **cth.batch_of(model),
        )
        plan = executor.prepare(plans).plan
        local = local_batch(tokens_of(), plan=plan, rank=executor.rank)
        with cth.use(executor, positions=local.positions if name in GIVES_POSITIONS else None):
            logits = called(model, local.tokens, local.positions)
            logits.square().sum().backward()
        compare(name, model, collect(logits, plan=plan), *alone(name))


@pytest.mark.parametrize(
    ("ranks", "strategy"), [(2, "zigzag"), pytest.param(4, "dcp", marks=pytest.mark.whole)]
)
def test_they_are_those_of_one_process(ranks, strategy):
    run_ranks(train, ranks, ",".join(MODELS), strategy, timeout=600)


def test_checkpointed_layers():
    run_ranks(train, 2, "Bloom,Mpt,GPTNeo", "dcp", "on")


# ---------------------------------------------------------------------------------------- one rank


def prepared(model, **changes):
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(
        ct.plans([64], cluster="local:1x1", strategy="zigzag", **{**cth.batch_of(model), **changes})
    )
    return executor


def run(model, **given):
    with cth.use(prepared(model)):
        return model(torch.ones(1, 64, dtype=torch.int64), **given)


def test_layers_are_described():
    assert cth.batch_of(make("Mpt")) | {"dtype": None} == {
        "mask": {"full": ("causal", 2)},
        "heads": (6, 6),
        "head_dim": 8,
        "value_dim": 8,
        "scale": 0.3,
        "dtype": None,
    }
    assert cth.batch_of(make("GPTNeo"))["mask"] == {
        "full": ("causal", 1),
        "sliding": ("sliding_window:7", 1),
    }
    assert cth.batch_of(make("Falcon"))["heads"] == (4, 1)
    assert cth.batch_of(make("Falcon of many KV heads"))["heads"] == (4, 2)
    assert cth.batch_of(make("MegatronBert"))["mask"] == {"full": ("full", 2)}


def test_their_own_attention_comes_back():
    model = make("Bloom")
    forward = type(model.transformer.h[0].self_attention).forward
    tokens = torch.ones(1, 64, dtype=torch.int64)
    expected = model(tokens).logits
    found = run(model).logits
    assert type(model.transformer.h[0].self_attention).forward is forward
    assert not torch.equal(found, expected)
    assert torch.equal(model(tokens).logits, expected)
    with pytest.raises(ct.InvalidArgument, match="expected a batch of 1"), cth.use(prepared(model)):
        model(tokens.expand(2, -1))
    assert torch.equal(model(tokens).logits, expected)


def test_no_mask_of_tokens_by_tokens_is_made(monkeypatch):
    from transformers.masking_utils import AttentionMaskInterface

    def refuse(*_, **__):
        raise AssertionError("a mask was made")

    for name in ("eager", "sdpa"):
        monkeypatch.setitem(AttentionMaskInterface._global_mapping, name, refuse)
    for name in ("Bloom", "Mpt", "Falcon", "XGLM", "MegatronBert"):
        run(make(name))


def test_what_an_adapter_has_not_is_refused():
    ones = torch.ones(1, 64, dtype=torch.int64)
    holes = torch.cat([torch.zeros_like(ones[:, :3]), ones[:, 3:]], 1)
    for name in ("Bloom", "Mpt", "GPTNeo", "MegatronBert"):
        run(make(name), attention_mask=ones)
        with pytest.raises(ct.InvalidArgument, match="attention_mask: expected none, or ones"):
            run(make(name), attention_mask=holes)
    with pytest.raises(
        ct.InvalidArgument, match="expected no attention mask, for the plan has the batch's masks"
    ):
        run(make("OpenAIGPT"), attention_mask=holes)
    with pytest.raises(
        ct.InvalidArgument,
        match="attention: expected no encoder_hidden_states in RemBertSelfAttention",
    ):
        model = make_tiny(
            "RemBertForCausalLM",
            "RemBertConfig",
            {**MODELS["RemBert"][2], "add_cross_attention": True},
        )
        run(model, encoder_hidden_states=torch.zeros(1, 5, 32))
    model = make("Bloom")
    layer, rows = model.transformer.h[0].self_attention, torch.zeros(1, 64, 48)
    with (
        pytest.raises(ct.InvalidArgument, match="attention: expected no head_mask"),
        cth.use(prepared(model)),
    ):
        layer(rows, rows, torch.zeros(6, 1, 1), None, head_mask=torch.ones(6))
    falcon = make_tiny(
        "FalconForCausalLM", "FalconConfig", {**FALCON, "alibi": True, "multi_query": False}
    )
    with pytest.raises(ct.InvalidArgument, match="attention: expected no alibi in FalconAttention"):
        run(falcon)
    dropping = make_tiny(
        "BloomForCausalLM", "BloomConfig", {**MODELS["Bloom"][2], "attention_dropout": 0.1}
    )
    dropping.transformer.h[0].self_attention.attention_dropout.p = 0.1  # tiny models have none
    with pytest.raises(ct.InvalidArgument, match="attention: expected dropout 0, found 0.1"):
        run(dropping)
    with (
        pytest.raises(
            ct.InvalidArgument, match="expected the plan's scale 0.353553, found the layer's 0.3"
        ),
        cth.use(prepared(make("Mpt"), scale=8**-0.5)),
    ):
        make("Mpt")(ones)


def test_slopes_of_another_bias_are_refused(monkeypatch):
    model = make("Bloom")
    modeling = sys.modules[type(model).__module__]
    original = modeling._get_alibi_slopes
    monkeypatch.setattr(modeling, "_get_alibi_slopes", lambda *given: 2 * original(*given))
    with pytest.raises(
        ct.InvalidArgument, match="expected the slopes of ALiBi's paper in BloomAttention"
    ):
        run(model)
