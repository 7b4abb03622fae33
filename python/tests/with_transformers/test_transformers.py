"""Hugging Face models as they are, on ranks, compared with one process."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import contextile.transformers as cth
from contextile.torch import Executor, collect, local_batch
from ranks import run_ranks
from tiny_models import make_tiny

LENGTHS = [90, 33, 5]
SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "pad_token_id": 0,
}
MODELS = {
    "Llama": {},
    "Qwen2": {"use_sliding_window": False},
    "Qwen3": {},
    "Mistral": {"sliding_window": 17},
    "Gemma2": {"sliding_window": 17, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 20.0},
    "Gemma3Text": {
        "sliding_window": 17,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "GptOss": {
        "sliding_window": 17,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "Olmo2": {},
    "Granite": {"attention_multiplier": 0.2},
}


def make(name, implementation):
    prefix = name.removesuffix("Text")
    return make_tiny(
        f"{prefix}ForCausalLM", f"{name}Config", {**SMALL, **MODELS[name]}, implementation, std=None
    )


def loss_of(logits, labels, weights):
    losses = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    return (losses * weights).sum()


def alone(name, tokens):
    """Logits and gradients of one process: every document by itself."""
    model = make(name, "eager")
    parts, begin, count = [], 0, sum(length - 1 for length in LENGTHS)
    for length in LENGTHS:
        document = tokens[begin : begin + length]
        logits = model(
            document[None], position_ids=torch.arange(length)[None], use_cache=False
        ).logits[0]
        loss_of(logits[:-1], document[1:], torch.full((length - 1,), 1 / count)).backward()
        parts.append(logits.detach())
        begin += length
    return torch.cat(parts), {key: value.grad for key, value in model.named_parameters()}


def train(names, strategy, checkpointing):
    import torch.distributed as dist

    executor = Executor()
    for name in names.split():
        model = make(name, cth.register())
        if checkpointing == "on":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        tokens = torch.randint(1, 97, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
        plan = ct.plan(
            LENGTHS,
            cluster=ct.Cluster.from_torch(),
            strategy=strategy,
            block_size=16,
            **cth.batch_of(model),
        )
        executor.prepare(plan)
        local = local_batch(tokens, plan=plan, rank=executor.rank)
        with cth.use(executor):
            logits = model(
                local.tokens[None], position_ids=local.positions[None], use_cache=False
            ).logits[0]
            loss_of(logits, local.labels, local.loss_weights).backward()
        expected, gradients = alone(name, tokens)
        error = (collect(logits, plan=plan) - expected).abs().max() / expected.abs().max()
        assert error < 1e-5, f"{name}: logits are off by {error:.2e}"
        for key, value in model.named_parameters():
            found = value.grad if value.grad is not None else torch.zeros_like(value)
            dist.all_reduce(found)
            one = gradients[key] if gradients[key] is not None else torch.zeros_like(value)
            error = (found - one).abs().max() / one.abs().max().clamp(min=1e-8)
            assert error < 1e-5, f"{name}: gradient of {key} is off by {error:.2e}"


@pytest.mark.parametrize("strategy", ["dcp", "auto:steps=20000"])
def test_models_are_those_of_one_process(strategy):
    run_ranks(
        train,
        4,
        " ".join(MODELS) if strategy == "dcp" else "Llama Gemma2",
        strategy,
        "off",
        timeout=600,
    )


def test_checkpointed_models():
    run_ranks(train, 2, "Llama Gemma2", "dcp", "on")


def test_what_a_model_asks_of_a_plan():
    assert cth.batch_of(make("Llama", "eager"))["mask"] == {"full": ("causal", 3)}
    gemma = cth.batch_of(make("Gemma2", "eager"))
    assert gemma["mask"] == {"full": ("causal", 1), "sliding": ("sliding_window:17", 2)}
    assert gemma["scale"] == pytest.approx(24**-0.5) and gemma["softcap"] == 20.0
    assert cth.batch_of(make("GptOss", "eager"))["sink"]
    assert cth.batch_of(make("Llama", "eager"), dtype="bf16")["dtype"] == "bf16"


def call(model, *, executor=None, **arguments):
    tokens = torch.ones(1, sum(LENGTHS), dtype=torch.int64)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    arguments = {"input_ids": tokens, "position_ids": positions, "use_cache": False, **arguments}
    if executor is None:
        return model(**arguments)
    with cth.use(executor):
        return model(**arguments)


def test_what_cannot_be_is_said():
    model = make("Llama", cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    with pytest.raises(ct.InvalidArgument, match="expected an executor prepared for the batch"):
        call(model)
    with pytest.raises(ct.InvalidArgument, match="expected an executor prepared for the batch"):
        call(model, executor=executor)
    executor.prepare(
        ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model))
    )
    assert call(model, executor=executor).logits.shape == (1, sum(LENGTHS), 97)
    with pytest.raises(ct.InvalidArgument, match="expected a batch of 1"):
        call(
            model,
            executor=executor,
            input_ids=torch.ones(2, 64, dtype=torch.int64),
            position_ids=torch.arange(64)[None],
        )
    executor.prepare(
        ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model, scale=0.3))
    )
    with pytest.raises(
        ct.InvalidArgument, match="expected the plan's scale 0.3, found the layer's 0.25"
    ):
        call(model, executor=executor)
    # A rank may have only its slice, as data loaders hand out.
    plan = ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model))
    executor.prepare(ct.Plan.slice_from_bytes(plan.slice_to_bytes(0)))
    assert call(model, executor=executor).logits.shape == (1, sum(LENGTHS), 97)
    windowed = make("Mistral", cth.register())
    executor.prepare(
        ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model))
    )
    with pytest.raises(
        ct.InvalidArgument, match=r"expected one of the plan's \(full\), found 'sliding'"
    ):
        call(windowed, executor=executor)


def test_padding_is_refused():
    model = make("Llama", cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan([128], cluster="local:1x1", strategy="zigzag", **cth.batch_of(model)))
    tokens = torch.ones(1, 128, dtype=torch.int64)
    padding = torch.ones(1, 128, dtype=torch.int64)
    with cth.use(executor):
        model(tokens, attention_mask=padding, use_cache=False)
        padding[0, :20] = 0
        with pytest.raises(
            ct.InvalidArgument, match=r"packed without padding.*found \[1, 128\] with 20 zeros"
        ):
            model(tokens, attention_mask=padding, use_cache=False)


@pytest.mark.parametrize(
    ("name", "mask", "message"),
    [
        (
            "Llama",
            "full",
            "mask 'full': expected causal, as the layer, keys -127 to 0 from the query; found "
            "-127 to 127",
        ),
        ("Llama", "sliding_window:8", "expected causal.*found -7 to 0"),
        (
            "Mistral",
            {"sliding": ("sliding_window:8", 3)},
            "expected a window of 17.*keys -16 to 0.*found -7 to 0",
        ),
        ("Mistral", {"sliding": ("causal", 3)}, "found -127 to 0"),
    ],
)
def test_masks_that_are_not_the_layers(name, mask, message):
    model = make(name, cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(
        ct.plan([128], cluster="local:1x1", strategy="zigzag", **cth.batch_of(model, mask=mask))
    )
    tokens = torch.ones(1, 128, dtype=torch.int64)
    with cth.use(executor), pytest.raises(ct.InvalidArgument, match=message):
        model(tokens, use_cache=False)
    with cth.use(executor, check_masks=False):
        model(tokens, use_cache=False)


def test_whole_models_are_compiled():
    model = make("Llama", cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for lengths in ([90, 33], [60], [128], [33, 33, 4], [77], [55], [44], [99], [120], [31]):
        executor.prepare(
            ct.plan(lengths, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model))
        )
        tokens = torch.arange(sum(lengths))[None] % 97
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        with cth.use(executor), torch.no_grad():
            found, expected = (
                one(tokens, position_ids=positions, use_cache=False).logits
                for one in (compiled, model)
            )
        assert (found - expected).abs().max() < 1e-5


def test_positions_are_not_forgotten():
    model = make("Llama", cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan([128], cluster="local:1x1", strategy="zigzag", **cth.batch_of(model)))
    tokens = torch.ones(1, 128, dtype=torch.int64)
    with cth.use(executor):
        model(tokens, use_cache=False)  # one document on one rank: 0, 1, 2, … are its positions
    executor.prepare(
        ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model))
    )
    with (
        cth.use(executor),
        pytest.raises(
            ct.InvalidArgument, match="position_ids: expected those of this rank's tokens"
        ),
    ):
        model(tokens, use_cache=False)


def test_models_that_do_not_attend_through_it_are_refused():
    model = make("Llama", "eager")
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(
        ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model))
    )
    with pytest.raises(ct.InvalidArgument, match="found no call of a layer"):
        call(model, executor=executor)
    config = make("Llama", "eager").config
    config.layer_types = ["chunked_attention", "full_attention", "full_attention"]
    with pytest.raises(ct.InvalidArgument, match="found chunked_attention"):
        cth.batch_of(config)


def prepared_alone(model, lengths, **changes):
    """An executor of one rank whose positions do not count from 0, the plan, and its tokens."""
    executor = Executor(ct.inproc_group(1)[0])
    batch = {**cth.batch_of(model), **changes}
    plan = ct.plan(lengths, cluster="local:1x1", strategy="zigzag", block_size=8, **batch)
    executor.prepare(plan)
    tokens = torch.randint(3, 60, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    return executor, plan, local_batch(tokens, plan=plan, rank=0)


def tiny(name, **changes):
    config = getattr(
        transformers,
        f"{name.removesuffix('ForCausalLM').removesuffix('ForSequenceClassification')}Config",
    )
    torch.manual_seed(0)
    return getattr(transformers, name)(config(**{**SMALL, **changes})).float()


CLASSES = [2, 0, 1]


def classify(lengths):
    import torch.distributed as dist

    lengths = [int(length) for length in lengths.split()]
    classes = torch.tensor(CLASSES[: len(lengths)])
    executor = Executor()
    for name in ("Llama", "Qwen3", "Gemma2"):
        model, alone = (
            tiny(f"{name}ForSequenceClassification", **MODELS[name], num_labels=3).train()
            for _ in range(2)
        )
        model.set_attn_implementation(cth.register())
        alone.set_attn_implementation("eager")
        tokens = torch.randint(1, 60, (sum(lengths),), generator=torch.Generator().manual_seed(2))
        # The number of padding in the text is a token like others.
        tokens[lengths[0] - 1] = SMALL["pad_token_id"]
        alone.config.pad_token_id = None
        plan = ct.plan(
            lengths, cluster=ct.Cluster.from_torch(), strategy="zigzag", **cth.batch_of(model)
        )
        executor.prepare(plan)
        local = local_batch(tokens, plan=plan, rank=executor.rank)
        with cth.use(executor):
            out = model(
                local.tokens[None],
                position_ids=local.positions[None],
                labels=classes,
                use_cache=False,
            )
            out.loss.backward()
            plain = model(
                local.tokens[None],
                position_ids=local.positions[None],
                use_cache=False,
                return_dict=False,
            )
        documents = tokens.split(lengths)
        expected = torch.cat(
            [alone(document[None], use_cache=False).logits for document in documents]
        )
        torch.nn.functional.cross_entropy(expected, classes).backward()
        assert torch.allclose(out.logits, expected, rtol=1e-5, atol=1e-6) and torch.equal(
            plain[0], out.logits
        )
        assert torch.allclose(
            out.loss, torch.nn.functional.cross_entropy(expected, classes), rtol=1e-5
        )
        # With two tokens, gradients of queries are small differences of large numbers.
        least = 0.01 * max(one.grad.abs().max() for one in alone.parameters())
        for (key, value), one in zip(model.named_parameters(), alone.parameters(), strict=True):
            dist.all_reduce(value.grad)
            error = (value.grad - one.grad).abs().max() / one.grad.abs().max().clamp(min=least)
            assert error < 1e-5, f"{name}: gradient of {key} is off by {error:.2e}"


@pytest.mark.parametrize(
    ("num_ranks", "lengths"),
    [(2, "90 33 5"), pytest.param(4, "90 33 5", marks=pytest.mark.whole), (4, "2")],
)
def test_classifiers_return_a_row_for_every_document(num_ranks, lengths):
    run_ranks(classify, num_ranks, lengths)


def test_labels_of_classifiers_are_those_of_documents():
    model = tiny("LlamaForSequenceClassification")
    model.set_attn_implementation(cth.register())
    executor, _, local = prepared_alone(model, [30, 34])
    inputs = {
        "input_ids": local.tokens[None],
        "position_ids": local.positions[None],
        "use_cache": False,
    }
    with cth.use(executor):
        assert model(**inputs).logits.shape == (2, 2)
        with pytest.raises(
            ct.InvalidArgument,
            match=r"labels: expected those of the batch's 2 documents.*found \[1\]",
        ):
            model(**inputs, labels=torch.tensor([1]))
    model.set_attn_implementation("eager")
    assert model(**inputs).logits.shape == (1, 2)  # as always, outside


def test_ranks_without_tokens_have_a_filler():
    run_ranks(train_on_few, 4)


def train_on_few():
    import torch.distributed as dist

    executor = Executor()
    model, alone = make("Llama", cth.register()), make("Llama", "eager")
    tokens = torch.tensor([4, 7, 1])
    plan = ct.plan([3], cluster=ct.Cluster.from_torch(), strategy="dcp", **cth.batch_of(model))
    executor.prepare(plan)
    assert sum(plan.num_local_tokens(rank) == 0 for rank in range(4)) >= 1
    local = local_batch(tokens, plan=plan, rank=executor.rank)
    with cth.use(executor):
        logits = model(
            local.tokens[None], position_ids=local.positions[None], use_cache=False
        ).logits[0]
        loss_of(logits, local.labels, local.loss_weights).backward()
    expected = alone(tokens[None], use_cache=False).logits[0]
    loss_of(expected[:-1], tokens[1:], torch.full((2,), 0.5)).backward()
    assert torch.allclose(collect(logits, plan=plan), expected, rtol=1e-5, atol=1e-6)
    for (key, value), one in zip(model.named_parameters(), alone.parameters(), strict=True):
        dist.all_reduce(value.grad)
        assert torch.allclose(value.grad, one.grad, rtol=1e-4, atol=1e-6), key


def test_positions_are_those_of_the_plan():
    model = tiny("LlamaForCausalLM")
    model.set_attn_implementation(cth.register())
    executor, _, _ = prepared_alone(model, [32, 32])
    _, _, other = prepared_alone(model, [16, 48])
    _, _, one_row = prepared_alone(model, [64])
    # Another batch of as many tokens, and one that is planned as a single document.
    for local in (other, one_row):
        with (
            pytest.raises(ct.InvalidArgument, match="position_ids: expected those of this rank's"),
            cth.use(executor),
        ):
            model(
                local.tokens.clone()[None],
                position_ids=local.positions.clone()[None],
                use_cache=False,
            )
        with (
            pytest.raises(
                ct.InvalidArgument, match="found those that local_batch made for another"
            ),
            cth.use(executor, check_positions=False),
        ):
            model(local.tokens[None], position_ids=torch.arange(64)[None], use_cache=False)
    own = type(model).forward
    model.forward = lambda *given, **named: own(model, *given, **named)
    with (
        pytest.raises(ct.InvalidArgument, match="found those that local_batch made for another"),
        cth.use(executor, check_positions=False),
    ):
        model(other.tokens[None], position_ids=torch.arange(64)[None], use_cache=False)
    del model.forward
    _, _, same = prepared_alone(model, [32, 32])
    with cth.use(executor):
        model(same.tokens[None], position_ids=same.positions[None], use_cache=False)
    with cth.use(executor, check_positions=False):
        model(same.tokens[None], position_ids=same.positions[None] ** 2, use_cache=False)


def test_models_that_count_positions_themselves_are_refused():
    model = transformers.BartForCausalLM(
        transformers.BartConfig(
            vocab_size=97,
            d_model=32,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=48,
            encoder_attention_heads=4,
        )
    ).eval()
    model.set_attn_implementation(cth.register())
    executor, _, local = prepared_alone(model, [30, 34])
    with pytest.raises(ct.InvalidArgument, match="BartForCausalLM would count"), cth.use(executor):
        model(local.tokens[None], use_cache=False)


def test_labels_are_not_shifted_by_ranks():
    model = tiny("LlamaForCausalLM")
    model.set_attn_implementation(cth.register())
    executor, _, local = prepared_alone(model, [30, 34])
    inputs = {
        "input_ids": local.tokens[None],
        "position_ids": local.positions[None],
        "use_cache": False,
    }
    for labels in (
        {"labels": local.tokens[None]},
        {"labels": local.labels[None], "shift_labels": local.labels[None]},
    ):
        with (
            pytest.raises(ct.InvalidArgument, match="labels: expected none inside use"),
            cth.use(executor),
        ):
            model(**inputs, **labels)
    count = (local.labels != -100).sum()
    with cth.use(executor):
        loss = model(
            **inputs,
            labels=local.labels[None],
            shift_labels=local.labels[None],
            num_items_in_batch=count,
        ).loss
        logits = model(**inputs).logits[0]
    assert torch.allclose(loss, loss_of(logits, local.labels, local.loss_weights), rtol=1e-5)


def test_models_that_depend_on_the_order_of_tokens_are_refused():
    pooled = transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(**SMALL, n_positions=64)
    ).eval()
    pooled.set_attn_implementation(cth.register())
    executor, _, local = prepared_alone(pooled, [30, 34])
    with (
        pytest.raises(ct.InvalidArgument, match="GPT2ForSequenceClassification, which pools"),
        cth.use(executor),
    ):
        pooled(local.tokens[None], position_ids=local.positions[None], use_cache=False)

    model = tiny("LlamaForCausalLM")
    model.set_attn_implementation(cth.register())
    model.model.layers[0].mixer = torch.nn.Conv1d(4, 4, 3)
    with pytest.raises(ct.InvalidArgument, match="attention alone mixes tokens"), cth.use(executor):
        model(local.tokens[None], position_ids=local.positions[None], use_cache=False)


def test_arguments_that_would_be_dropped_are_refused():
    model = tiny("LlamaForCausalLM")
    model.set_attn_implementation(cth.register())
    executor, _, local = prepared_alone(model, [30, 34])
    with pytest.raises(ct.InvalidArgument, match="expected no head_mask"), cth.use(executor):
        model(
            local.tokens[None],
            position_ids=local.positions[None],
            use_cache=False,
            head_mask=torch.ones(4),
        )


def test_masks_of_images_are_refused_unless_the_plan_has_them():
    from transformers.masking_utils import create_causal_mask

    model = tiny("LlamaForCausalLM")
    model.set_attn_implementation(cth.register())
    blocks = torch.full((1, 64), -1)
    arguments = {
        "config": model.config,
        "inputs_embeds": torch.zeros(1, 64, 8),
        "attention_mask": None,
    }

    def make_mask(ids):
        return create_causal_mask(
            **arguments, block_sequence_ids=ids, position_ids=torch.arange(64)[None], cache=None
        )

    assert make_mask(blocks) is None  # no token of an image
    blocks[0, 5:9] = 0
    with pytest.raises(ct.InvalidArgument, match="blockwise_overlay"):
        make_mask(blocks)
    with pytest.raises(ct.InvalidArgument, match="prefix"):
        create_causal_mask(
            **arguments, or_mask_function=lambda b, h, q, k: k < 5, position_ids=None, cache=None
        )
    executor, _, _ = prepared_alone(model, [64], mask={"full": "prefix_lm:9"})
    with (
        pytest.raises(ct.InvalidArgument, match="found no call"),
        cth.use(executor, check_masks=False),
    ):
        assert make_mask(blocks) is None


@pytest.mark.parametrize("kind", ["mamba", "rwkv", "gemma4_text"])
def test_batch_of_says_what_it_cannot_describe(kind):
    try:
        config = transformers.AutoConfig.for_model(kind)
    except ValueError:
        pytest.skip(f"this transformers has no {kind}")
    with pytest.raises(ct.InvalidArgument, match=kind):
        cth.batch_of(config)


def test_batch_of_takes_a_mask_for_layers_it_does_not_know():
    config = tiny("LlamaForCausalLM").config
    config.layer_types = ["full_attention", "compressed_attention", "full_attention"]
    with pytest.raises(ct.InvalidArgument, match="compressed_attention"):
        cth.batch_of(config)
    chunked = {"full": ct.masks.chunked(8)}
    assert cth.batch_of(config, mask=chunked)["mask"] is chunked
    llama4 = transformers.AutoConfig.for_model("llama4_text")
    assert cth.batch_of(llama4)["mask"] == {"full": ("causal", 12), "chunked": ("chunked:8192", 36)}
