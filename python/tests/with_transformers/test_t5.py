"""T5's relative position bias on ranks, compared with one process."""

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
SIZES = {
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 40,
}
BATCH = {"mask": {"full": "full"}, "heads": 4, "head_dim": 8, "dtype": "f32", "scale": 1.0}


def make(implementation, name="T5"):
    return make_tiny(f"{name}EncoderModel", f"{name}Config", SIZES, implementation, std=None)


def alone(name, tokens):
    """Hidden states and gradients of one process: every document by itself."""
    model = make("eager", name)
    parts = [model(document[None]).last_hidden_state[0] for document in tokens.split(LENGTHS)]
    hidden = torch.cat(parts)
    (hidden**2 * torch.arange(32)).sum().backward()
    return hidden.detach(), {key: value.grad for key, value in model.named_parameters()}


def train(name, strategy, checkpointing):
    import torch.distributed as dist

    executor = Executor()
    model = make(cth.register(), name)
    if checkpointing == "on":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = torch.randint(1, 97, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    plan = ct.plan(
        LENGTHS, cluster=ct.Cluster.from_torch(), strategy=strategy, block_size=16, **BATCH
    )
    executor.prepare(plan)
    local = local_batch(tokens, plan=plan, rank=executor.rank)
    with cth.use(executor, check_masks=False, check_positions=False):
        hidden = model(local.tokens[None]).last_hidden_state[0]
        (hidden**2 * torch.arange(32)).sum().backward()
    expected, gradients = alone(name, tokens)
    error = (collect(hidden, plan=plan) - expected).abs().max() / expected.abs().max()
    assert error < 1e-5, f"hidden states are off by {error:.2e}"
    for key, value in model.named_parameters():
        found = value.grad if value.grad is not None else torch.zeros_like(value)
        dist.all_reduce(found)
        one = gradients[key] if gradients[key] is not None else torch.zeros_like(value)
        error = (found - one).abs().max() / one.abs().max().clamp(min=1e-8)
        assert error < 1e-5, f"gradient of {key} is off by {error:.2e}"


@pytest.mark.parametrize(
    ("name", "strategy", "ranks"), [("T5", "dcp", 4), ("MT5", "zigzag", 2), ("UMT5", "dcp", 2)]
)
def test_t5_is_that_of_one_process(name, strategy, ranks):
    run_ranks(train, ranks, name, strategy, "off")


def test_checkpointed_t5():
    run_ranks(train, 2, "T5", "dcp", "on")


def test_biases_of_no_table_are_refused():
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan([64], cluster="local:1x1", strategy="zigzag", **BATCH))
    model = make(cth.register())
    layer = model.encoder.block[1].layer[0].SelfAttention
    with cth.use(executor, check_masks=False, check_positions=False):
        model(torch.ones(1, 64, dtype=torch.int64))
        for position_bias in (torch.zeros(1, 4, 64, 64), None):  # T5 makes zeros of None
            with pytest.raises(
                ct.InvalidArgument, match="expected no position_bias but that of a layer"
            ):
                layer(torch.zeros(1, 64, 32), position_bias=position_bias)
        first = model.encoder.block[0].layer[0].SelfAttention
        with pytest.raises(
            ct.InvalidArgument, match="expected no position_bias but that of a layer"
        ):
            first(torch.zeros(1, 64, 32), position_bias=torch.zeros(1, 4, 64, 64))
