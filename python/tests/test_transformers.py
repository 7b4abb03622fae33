"""Hugging Face models as they are, on ranks, beside themselves in one process."""

from __future__ import annotations

from types import SimpleNamespace

import contextile as ct
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import contextile.transformers as cth  # noqa: E402
from contextile.torch import Executor, collect, local_batch  # noqa: E402
from ranks import run_ranks  # noqa: E402

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
    "Gemma3Text": {"sliding_window": 17, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "GptOss": {"sliding_window": 17, "num_local_experts": 2, "num_experts_per_tok": 1,
               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "Olmo2": {},
    "Granite": {"attention_multiplier": 0.2},
}  # fmt: skip


def make(name, implementation):
    prefix = name.removesuffix("Text")
    config = getattr(transformers, f"{name}Config" if name != "Gemma3Text" else "Gemma3TextConfig")(**{**SMALL, **MODELS[name]})
    torch.manual_seed(5)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).float().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.set_attn_implementation(implementation)
    return model


def loss_of(logits, labels, weights):
    losses = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    return (losses * weights).sum()


def alone(name, tokens):
    """Logits and gradients of one process: every document by itself."""
    model = make(name, "eager")
    parts, begin, count = [], 0, sum(length - 1 for length in LENGTHS)
    for length in LENGTHS:
        document = tokens[begin : begin + length]
        logits = model(document[None], position_ids=torch.arange(length)[None], use_cache=False).logits[0]
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
        plan = ct.plan(LENGTHS, cluster=ct.Cluster.from_torch(), strategy=strategy, block_size=16, **cth.batch_of(model))
        executor.prepare(plan)
        local = local_batch(tokens, plan=plan, rank=executor.rank)
        with cth.use(executor):
            logits = model(local.tokens[None], position_ids=local.positions[None], use_cache=False).logits[0]
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


@pytest.mark.parametrize("strategy", ["zigzag", "dcp", "auto:steps=20000"])
def test_models_are_those_of_one_process(strategy):
    run_ranks(train, 4, " ".join(MODELS) if strategy == "dcp" else "Llama Gemma2", strategy, "off", timeout=600)


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
    executor.prepare(ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model)))
    assert call(model, executor=executor).logits.shape == (1, sum(LENGTHS), 97)
    with pytest.raises(ct.InvalidArgument, match="expected a batch of 1"):
        call(model, executor=executor, input_ids=torch.ones(2, 64, dtype=torch.int64), position_ids=torch.arange(64)[None])
    executor.prepare(ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model, scale=0.3)))
    with pytest.raises(ct.InvalidArgument, match="expected the plan's scale 0.3, found the layer's 0.25"):
        call(model, executor=executor)
    two = SimpleNamespace(
        plan=ct.plan([300, 4], cluster="local:1x2", strategy="dcp", block_size=512, **cth.batch_of(model))
    )
    with pytest.raises(ct.InvalidArgument, match="expected tokens on every rank, found none on rank"):
        call(model, executor=two)
    # Of a rank's slice, as data loaders hand out, that rank's tokens are looked at.
    plan = ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model))
    executor.prepare(ct.Plan.slice_from_bytes(plan.slice_to_bytes(0)))
    assert call(model, executor=executor).logits.shape == (1, sum(LENGTHS), 97)
    windowed = make("Mistral", cth.register())
    executor.prepare(ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model)))
    with pytest.raises(ct.InvalidArgument, match=r"expected one of the plan's \(full\), found 'sliding'"):
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
        with pytest.raises(ct.InvalidArgument, match=r"packed without padding.*found \[1, 128\] with 20 zeros"):
            model(tokens, attention_mask=padding, use_cache=False)


@pytest.mark.parametrize(
    ("name", "mask", "message"),
    [
        ("Llama", "full", "mask 'full': expected causal, as the layer, keys -127 to 0 from the query; found -127 to 127"),
        ("Llama", "sliding_window:8", "expected causal.*found -7 to 0"),
        ("Mistral", {"sliding": ("sliding_window:8", 3)}, "expected a window of 17.*keys -16 to 0.*found -7 to 0"),
        ("Mistral", {"sliding": ("causal", 3)}, "found -127 to 0"),
    ],
)
def test_masks_that_are_not_the_layers(name, mask, message):
    model = make(name, cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan([128], cluster="local:1x1", strategy="zigzag", **cth.batch_of(model, mask=mask)))
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
        executor.prepare(ct.plan(lengths, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model)))
        tokens = torch.arange(sum(lengths))[None] % 97
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        with cth.use(executor), torch.no_grad():
            found, expected = (one(tokens, position_ids=positions, use_cache=False).logits for one in (compiled, model))
        assert (found - expected).abs().max() < 1e-5


def test_positions_are_not_forgotten():
    model = make("Llama", cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan([128], cluster="local:1x1", strategy="zigzag", **cth.batch_of(model)))
    tokens = torch.ones(1, 128, dtype=torch.int64)
    with cth.use(executor):
        model(tokens, use_cache=False)  # one document on one rank: 0, 1, 2, … are its positions
    executor.prepare(ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model)))
    with cth.use(executor), pytest.raises(ct.InvalidArgument, match="position_ids: expected those of this rank's tokens"):
        model(tokens, use_cache=False)


def test_models_that_do_not_attend_through_it_are_refused():
    model = make("Llama", "eager")
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan(LENGTHS, cluster="local:1x1", strategy="zigzag", **cth.batch_of(model)))
    with pytest.raises(ct.InvalidArgument, match="found no call of a layer"):
        call(model, executor=executor)
    config = make("Llama", "eager").config
    config.layer_types = ["chunked_attention", "full_attention", "full_attention"]
    with pytest.raises(ct.InvalidArgument, match="found chunked_attention"):
        cth.batch_of(config)
