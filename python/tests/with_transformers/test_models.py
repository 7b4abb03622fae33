"""Models of many kinds under context parallelism, compared with one process."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import contextile.transformers as cth
from contextile.torch import Executor, Sides, collect, dispatch, local_batch
from ranks import run_ranks
from tiny_models import make_tiny

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
    "Gemma4ForCausalLM": (
        "Gemma4TextConfig",
        {
            **SMALL,
            "head_dim": 8,
            "global_head_dim": 16,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 17,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 97,
            "hidden_size_per_layer_input": 8,
        },
    ),
    "MiMoV2FlashForCausalLM": (
        "MiMoV2FlashConfig",
        {
            **SMALL,
            "head_dim": 12,
            "v_head_dim": 8,
            "sliding_window": 17,
            "layer_types": TWO_KINDS,
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    # Chunked layers.
    "Llama4ForCausalLM": (
        "Llama4TextConfig",
        {
            **SMALL,
            "head_dim": 8,
            "attention_chunk_size": 16,
            "num_local_experts": 2,
            "intermediate_size_mlp": 48,
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        },
    ),
    # A factor of the scores that the configuration does not have, and one KV head.
    "OPTForCausalLM": (
        "OPTConfig",
        {**ENCODER, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
    ),
    # Encoders.
    "BertForMaskedLM": ("BertConfig", {**ENCODER, **NO_DROPOUT}),
    "ModernBertForMaskedLM": (
        "ModernBertConfig",
        {
            **ENCODER,
            "local_attention": 16,
            "layer_types": TWO_KINDS,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
}


def make(name, implementation):
    return make_tiny(name, *MODELS[name], implementation)


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


def compare(name, model, logits, expected, gradients):
    """Compares logits of the batch and gradients of this rank's model with those of one process."""
    import torch.distributed as dist

    error = (logits - expected).abs().max() / expected.abs().max()
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
        plans = ct.plans(
            LENGTHS,
            cluster=ct.Cluster.from_torch(),
            strategy=strategy,
            block_size=8,
            **cth.batch_of(model),
        )
        executor.prepare(plans)
        plan = executor.plan
        local = local_batch(tokens_of(), plan=plan, rank=executor.rank)
        with cth.use(executor):
            logits = model(local.tokens[None], position_ids=local.positions[None]).logits[0]
            logits.square().sum().backward()
        compare(name, model, collect(logits, plan=plan), *alone(name))


T5 = {
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 40,
}
BOTH = {
    "vocab_size": 97,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
NLLB = {
    **BOTH,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
SEQ2SEQ = {
    "BartForConditionalGeneration": (
        "BartConfig",
        {
            "vocab_size": 97,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 128,
            "dropout": 0.0,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "forced_eos_token_id": None,
        },
    ),
    "MarianMTModel": (
        "MarianConfig",
        {
            "vocab_size": 97,
            "decoder_vocab_size": 97,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 128,
            "dropout": 0.0,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
    # A table of biases by bucket in the first layer of each side.
    "T5ForConditionalGeneration": ("T5Config", {**T5, "num_layers": 2}),
    # One in every layer.
    "UMT5ForConditionalGeneration": ("UMT5Config", {**T5, "num_layers": 2}),
    # Local layers in the encoder.
    "LongT5ForConditionalGeneration": (
        "LongT5Config",
        {**T5, "num_layers": 2, "local_radius": 5, "encoder_attention_type": "local"},
    ),
    # Positions that are counted from token ids, more than its table begins with.
    "M2M100ForConditionalGeneration": (
        "M2M100Config",
        {**BOTH, "max_position_embeddings": 20, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    ),
    # The same without experts; layers of its decoder do not say that they are causal.
    "NllbMoeForConditionalGeneration": (
        "NllbMoeConfig",
        {**NLLB, "encoder_sparse_step": 0, "decoder_sparse_step": 0},
    ),
}
MODELS |= SEQ2SEQ
SOURCES, TARGETS = [60, 20, 9], [15, 40, 8]


def train_pairs(names, strategy):
    import torch.distributed as dist

    executor = Executor()
    generator = torch.Generator().manual_seed(2)
    sources, targets = (
        torch.randint(3, 97, (sum(lengths),), generator=generator) for lengths in (SOURCES, TARGETS)
    )
    for name in names.split():
        model = make(name, cth.register())
        window = 5 if name.startswith("LongT5") else None
        batch = cth.batch_of(
            model, **ct.masks.encoder_decoder(SOURCES, TARGETS, layers=(2, 2), window=window)
        )
        plan = ct.plan(**batch, cluster=ct.Cluster.from_torch(), strategy=strategy, block_size=8)
        executor.prepare(plan)
        sides = Sides(SOURCES, TARGETS, plan=plan, rank=executor.rank)
        with cth.use(executor, sides=sides):
            logits = model(
                input_ids=sources[sides.source_tokens][None],
                decoder_input_ids=targets[sides.target_tokens][None],
                use_cache=False,
            ).logits[0]
            loss = logits.square().sum()
            loss.backward()
        rows = logits.new_zeros((sides.num_tokens, logits.shape[1])).index_copy(
            0, sides.target_rows, logits.detach()
        )
        found = collect(rows, plan=plan)
        is_target = torch.cat(
            [torch.arange(s + t) >= s for s, t in zip(SOURCES, TARGETS, strict=True)]
        )
        one, parts = make(name, "eager"), []
        for source, target in zip(sources.split(SOURCES), targets.split(TARGETS), strict=True):
            expected = one(
                input_ids=source[None], decoder_input_ids=target[None], use_cache=False
            ).logits[0]
            expected.square().sum().backward()
            parts.append(expected.detach())
        gradients = {key: value.grad for key, value in one.named_parameters()}
        expected = torch.cat(parts)
        compare(name, model, found[is_target], expected, gradients)
        loss = loss.detach()
        dist.all_reduce(loss)
        assert abs(loss / expected.square().sum() - 1) < 1e-5, f"{name}: the loss is {loss}"


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.whole)])
def test_encoders_with_decoders_are_those_of_one_process(ranks):
    run_ranks(train_pairs, ranks, " ".join(SEQ2SEQ), "dcp" if ranks == 2 else "zigzag", timeout=600)


def test_encoders_with_decoders_need_their_sides():
    model = make("BartForConditionalGeneration", cth.register())
    with pytest.raises(
        ct.InvalidArgument, match="expected mask=, for the model has an encoder and a decoder"
    ):
        cth.batch_of(model)
    pairs = cth.batch_of(model, **ct.masks.encoder_decoder([9, 4], [5, 6]))
    plan = ct.plan(**pairs, cluster="local:1x1", strategy="dcp")
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(plan)
    sides = Sides([9, 4], [5, 6], plan=plan, rank=0)
    tokens = {
        "input_ids": torch.ones(1, 13, dtype=torch.int64),
        "decoder_input_ids": torch.ones(1, 11, dtype=torch.int64),
    }
    with (
        pytest.raises(ct.InvalidArgument, match="expected use\\(executor, sides=…\\)"),
        cth.use(executor),
    ):
        model(**tokens, use_cache=False)
    with cth.use(executor, sides=sides):
        assert model(**tokens, use_cache=False).logits.shape == (1, 11, 97)
    # Pairs of as many tokens that are cut elsewhere, another plan, and a plan of another kind.
    with pytest.raises(
        ct.InvalidArgument,
        match="sides: expected the lengths .* found 89 pairs for mask 'encoder', which has 97",
    ):
        Sides([8, 5], [6, 5], plan=plan, rank=0)
    other = ct.plan(
        **cth.batch_of(model, **ct.masks.encoder_decoder([4, 9], [6, 5])),
        cluster="local:1x1",
        strategy="dcp",
    )
    executor.prepare(other)
    with (
        pytest.raises(ct.InvalidArgument, match="found those of another plan"),
        cth.use(executor, sides=sides),
    ):
        pass
    executor.prepare(
        ct.plan([14, 10], cluster="local:1x1", strategy="dcp", heads=4, head_dim=8, dtype="f32")
    )
    with (
        pytest.raises(
            ct.InvalidArgument, match="expected one for masks.encoder_decoder, found masks causal"
        ),
        cth.use(executor, sides=sides),
    ):
        pass


def pairs_alone(model, window=None):
    """The model and batch of one process for pairs of 9 and 4 sources with 5 and 6 targets."""
    batch = cth.batch_of(model, **ct.masks.encoder_decoder([9, 4], [5, 6], window=window))
    plan = ct.plan(**batch, cluster="local:1x1", strategy="dcp")
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(plan)
    tokens = {
        "input_ids": torch.ones(1, 13, dtype=torch.int64),
        "decoder_input_ids": torch.ones(1, 11, dtype=torch.int64),
    }
    return executor, Sides([9, 4], [5, 6], plan=plan, rank=0), {**tokens, "use_cache": False}


@pytest.mark.parametrize(
    ("name", "config", "sizes", "message"),
    [
        (
            "NllbMoeForConditionalGeneration",
            "NllbMoeConfig",
            {**NLLB, "encoder_sparse_step": 1, "decoder_sparse_step": 1},
            "without a capacity, found NllbMoeFor.*router .NllbMoeTop2Router",
        ),
        (
            "SwitchTransformersForConditionalGeneration",
            "SwitchTransformersConfig",
            {
                **T5,
                "num_layers": 2,
                "num_decoder_layers": 2,
                "num_sparse_encoder_layers": 1,
                "num_sparse_decoder_layers": 1,
                "num_experts": 2,
            },
            "without a capacity, found SwitchTransformersFor.*router .SwitchTransformersTop1Router",
        ),
        (
            "PegasusXForConditionalGeneration",
            "PegasusXConfig",
            {**BOTH, "num_global_tokens": 4, "block_size": 4},
            "found PegasusXFor.*PegasusXGlobalLocalAttention.*code of its own",
        ),
        (
            "BigBirdPegasusForConditionalGeneration",
            "BigBirdPegasusConfig",
            {**BOTH, "attention_type": "block_sparse", "block_size": 4},
            "found BigBirdPegasusFor.*BigBirdPegasusBlockSparseAttention.*code of its own",
        ),
        (
            "LongT5ForConditionalGeneration",
            "LongT5Config",
            {
                **T5,
                "num_layers": 2,
                "local_radius": 5,
                "encoder_attention_type": "transient-global",
            },
            "found LongT5For.*LongT5TransientGlobalAttention.*code of its own",
        ),
    ],
)
def test_encoders_with_decoders_that_would_be_wrong_are_refused(name, config, sizes, message):
    model = make_tiny(name, config, sizes, cth.register())
    with pytest.raises(ct.InvalidArgument, match=message):
        executor, sides, tokens = pairs_alone(model)
        with cth.use(executor, sides=sides):
            model(**tokens)


def test_local_layers_need_their_window():
    model = make("LongT5ForConditionalGeneration", cth.register())
    for window, found in ((None, "found keys -8 to 8"), (4, "found keys -4 to 4")):
        executor, sides, tokens = pairs_alone(model, window)
        with (
            pytest.raises(ct.InvalidArgument, match=f"expected 5 tokens to either side.*{found}"),
            cth.use(executor, sides=sides),
        ):
            model(**tokens)
    executor, sides, tokens = pairs_alone(make("T5ForConditionalGeneration", "eager"), 5)
    with (
        pytest.raises(ct.InvalidArgument, match="expected 8 tokens to either side"),
        cth.use(executor, sides=sides),
    ):
        make("T5ForConditionalGeneration", cth.register())(**tokens)
    executor, sides, tokens = pairs_alone(model, 5)
    with (
        pytest.raises(ct.InvalidArgument, match="LongT5LocalAttention: expected no attention mask"),
        cth.use(executor, sides=sides),
    ):
        model(**tokens, attention_mask=torch.tensor([[0] * 3 + [1] * 10]))
    with pytest.raises(ct.InvalidArgument, match="window of at least 1 token, found 0"):
        ct.masks.encoder_decoder([9], [5], window=0)


def test_tables_of_positions_count_no_padding():
    model = make("M2M100ForConditionalGeneration", cth.register())
    executor, sides, tokens = pairs_alone(model)
    tokens["input_ids"][0, 5:7] = 0
    with (
        pytest.raises(ct.InvalidArgument, match="expected no padding .token 0.*found 2 tokens"),
        cth.use(executor, sides=sides),
    ):
        model(**tokens)
    with (
        pytest.raises(ct.InvalidArgument, match="positions: expected those of 12 tokens.*found 13"),
        cth.use(executor, sides=sides),
    ):
        model(**{**tokens, "input_ids": torch.ones(1, 12, dtype=torch.int64)})


def test_layers_of_an_encoder_that_attend_elsewhere_are_noticed():
    model = make("BartForConditionalGeneration", cth.register())
    plan = ct.plan(
        **cth.batch_of(model, **ct.masks.encoder_decoder([9], [5])),
        cluster="local:1x1",
        strategy="dcp",
    )
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(plan)
    sides = Sides([9], [5], plan=plan, rank=0)
    encoded = transformers.modeling_outputs.BaseModelOutput(torch.randn(1, 9, 32))
    with (
        pytest.raises(ct.InvalidArgument, match="found none of kind encoder"),
        cth.use(executor, sides=sides),
    ):
        model(
            encoder_outputs=encoded,
            decoder_input_ids=torch.ones(1, 5, dtype=torch.int64),
            use_cache=False,
        )


def test_models_that_count_positions_are_given_them():
    torch.manual_seed(0)
    model = transformers.BartForCausalLM(
        transformers.BartConfig(**{**SEQ2SEQ["BartForConditionalGeneration"][1]})
    ).eval()
    model.set_attn_implementation(cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    plan = ct.plan(
        [30, 34], cluster="local:1x1", strategy="zigzag", block_size=8, **cth.batch_of(model)
    )
    executor.prepare(plan)
    tokens = torch.randint(3, 97, (64,))
    local = local_batch(tokens, plan=plan, rank=0)
    with cth.use(executor, positions=local.positions), torch.no_grad():
        found = model(local.tokens[None], use_cache=False).logits[0]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = torch.cat(
            [model(part[None], use_cache=False).logits[0] for part in tokens.split([30, 34])]
        )
    assert (found - dispatch(expected, plan=plan, rank=0)).abs().max() < 1e-5
    model.set_attn_implementation(cth.register())
    with (
        pytest.raises(ct.InvalidArgument, match="position_ids: expected those of this rank's"),
        cth.use(executor, positions=torch.arange(64)),
    ):
        model(local.tokens[None], use_cache=False)


def test_models_are_those_of_one_process():
    run_ranks(
        train, 3, " ".join(name for name in MODELS if name not in SEQ2SEQ), "dcp", timeout=300
    )


def test_batch_of_asks_the_layers():
    gemma = cth.batch_of(make("Gemma4ForCausalLM", "eager"))
    assert gemma["heads"] == {"full": (4, 1), "sliding": (4, 2)} and gemma["head_dim"] == {
        "full": 16,
        "sliding": 8,
    }
    assert (
        gemma["mask"] == {"full": ("causal", 1), "sliding": ("sliding_window:17", 2)}
        and gemma["scale"] == 1.0
    )
    mimo = cth.batch_of(make("MiMoV2FlashForCausalLM", "eager"))
    assert mimo["sink"] == {"full": False, "sliding": True} and (
        mimo["head_dim"],
        mimo["value_dim"],
    ) == (12, 8)
    assert cth.batch_of(make("BertForMaskedLM", "eager"))["mask"] == {"full": ("full", 3)}
    assert cth.batch_of(make("OPTForCausalLM", "eager"))["scale"] == 1.0
    bert = cth.batch_of(make("ModernBertForMaskedLM", "eager"))["mask"]
    assert bert["sliding"][0]([40]).offsets == (-8, 8) and bert["full"] == ("full", 1)


def test_results_of_one_token_are_refused():
    torch.manual_seed(0)
    config = transformers.BertConfig(**ENCODER, **NO_DROPOUT)
    tokens = torch.randint(3, 97, (64,))
    for keeps, part in ((False, None), (True, "found BertModel with pooler")):
        model = transformers.BertModel(config, add_pooling_layer=keeps).eval()
        model.set_attn_implementation(cth.register())
        executor = Executor(ct.inproc_group(1)[0])
        plan = ct.plan([30, 34], cluster="local:1x1", strategy="zigzag", **cth.batch_of(model))
        executor.prepare(plan)
        local = local_batch(tokens, plan=plan, rank=0)
        call = {"input_ids": local.tokens[None], "position_ids": local.positions[None]}
        if part is None:
            with cth.use(executor):
                assert model(**call).last_hidden_state.shape == (1, 64, 32)
        else:
            with pytest.raises(ct.InvalidArgument, match=part), cth.use(executor):
                model(**call)


def test_embeddings_of_neighbors_are_refused():
    config = transformers.MobileBertConfig(
        **ENCODER, **NO_DROPOUT, true_hidden_size=32, intra_bottleneck_size=32, embedding_size=32
    )
    model = transformers.MobileBertForMaskedLM(config).eval()
    model.set_attn_implementation(cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    batch = cth.batch_of(model)
    executor.prepare(ct.plan([64], cluster="local:1x1", strategy="zigzag", **batch))
    tokens = {
        "input_ids": torch.ones(1, 64, dtype=torch.int64),
        "position_ids": torch.arange(64)[None],
    }
    with (
        pytest.raises(
            ct.InvalidArgument, match="attention alone mixes tokens.*MobileBertEmbeddings"
        ),
        cth.use(executor),
    ):
        model(**tokens)
