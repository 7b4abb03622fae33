"""Models of plain PyTorch on ranks, compared with one process: calls taken over, modules replaced,
checkpointed, compiled."""

from __future__ import annotations

import contextlib
import functools

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from contextile.torch import (
    Executor,
    ScaledDotProductAttention,
    checkpoint_contexts,
    collect,
    local_batch,
    replace_attention,
    use,
)
from ranks import run_ranks

LENGTHS = [90, 33, 5]
TOKENS = sum(LENGTHS)
HEADS, KV_HEADS, DIM, LAYERS, VOCABULARY = 4, 2, 16, 3, 97
HIDDEN = HEADS * DIM
KEPT = torch.ops.contextile.attention.default
SHAPE = {"heads": (HEADS, KV_HEADS), "head_dim": DIM, "dtype": "f32", "mask": "causal"}


def rotated(x, positions):
    """RoPE: x [batch, tokens, heads, dim] at positions [batch, tokens]."""
    angles = positions[:, :, None, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack(
        [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], dim=-1
    ).flatten(-2)


class Sdpa(nn.Module):
    """The form of torchtitan's: q, k, v [batch, tokens, heads, dim]."""

    def forward(self, q, k, v, *, scale=None, enable_gqa=False):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa
        ).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(HIDDEN, HEADS * DIM, bias=False)
        self.wk = nn.Linear(HIDDEN, KV_HEADS * DIM, bias=False)
        self.wv = nn.Linear(HIDDEN, KV_HEADS * DIM, bias=False)
        self.wo = nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.inner_attention = Sdpa()

    def forward(self, x, positions):
        q, k, v = (w(x).unflatten(-1, (-1, DIM)) for w in (self.wq, self.wk, self.wv))
        out = self.inner_attention(rotated(q, positions), rotated(k, positions), v, enable_gqa=True)
        return self.wo(out.flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.feed_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention = Attention()
        self.gate, self.up, self.down = (
            nn.Linear(HIDDEN, 96, bias=False),
            nn.Linear(HIDDEN, 96, bias=False),
            nn.Linear(96, HIDDEN, bias=False),
        )

    def forward(self, x, positions):
        x = x + self.attention(self.norm(x), positions)
        y = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """``run`` calls a block: block(x, positions), or a checkpoint of it."""

    def __init__(self, run=lambda block, *arguments: block(*arguments)):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.run = run

    def forward(self, tokens, positions):
        x = self.embed(tokens)
        for block in self.blocks:
            x = self.run(block, x, positions)
        return self.head(self.norm(x))


def loss_of(logits, labels, weights):
    losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    return (losses * weights).sum()


def tokens_of(lengths):
    return torch.randint(1, VOCABULARY, (sum(lengths),), generator=torch.Generator().manual_seed(2))


def alone(model, lengths):
    """Logits and gradients of one process: every document by itself."""
    parts, at, count, tokens = [], 0, sum(length - 1 for length in lengths), tokens_of(lengths)
    for length in lengths:
        document = tokens[at : at + length]
        logits = model(document[None], torch.arange(length)[None])[0]
        loss_of(logits[:-1], document[1:], torch.full((length - 1,), 1 / count)).backward()
        parts.append(logits.detach())
        at += length
    return torch.cat(parts), {key: value.grad for key, value in model.named_parameters()}


def check(model, logits, plan, expected, gradients, what):
    """Checks that logits and gradients are within 1e-5 of one process; rank 0 prints how far."""
    import torch.distributed as dist

    worst = {
        "logits": (
            (collect(logits, plan=plan) - expected).abs().max() / expected.abs().max()
        ).item()
    }
    for (key, one), parameter in zip(gradients.items(), model.parameters(), strict=True):
        dist.all_reduce(parameter.grad)
        worst[key] = ((parameter.grad - one).abs().max() / one.abs().max()).item()
    if dist.get_rank() == 0:
        print(f"{what}: logits {worst.pop('logits'):.1e}, gradients {max(worst.values()):.1e}")
    for key, error in worst.items():
        assert error < 1e-5, f"{what}: {key} is off by {error:.2e}"


def prepared(executor, strategy, lengths=LENGTHS, **changes):
    cluster = ct.Cluster.from_torch() if executor.size > 1 else "local:1x1"
    plan = ct.plan(
        lengths, cluster=cluster, strategy=strategy, **{"block_size": 16, **SHAPE, **changes}
    )
    executor.prepare(plan)
    return plan, local_batch(tokens_of(lengths), plan=plan, rank=executor.rank)


def step(model, local):
    logits = model(local.tokens[None], local.positions[None])[0]
    return logits, loss_of(logits, local.labels, local.loss_weights)


RUNS = {
    "plain": lambda executor: lambda block, *arguments: block(*arguments),
    "checkpoint": lambda executor: functools.partial(checkpoint, use_reentrant=False),
    "contexts": lambda executor: functools.partial(
        checkpoint, use_reentrant=False, context_fn=lambda: checkpoint_contexts(executor)
    ),
    "selective": lambda executor: functools.partial(
        checkpoint,
        use_reentrant=False,
        context_fn=lambda: checkpoint_contexts(
            executor, lambda: create_selective_checkpoint_contexts([KEPT])
        ),
    ),
}


def train(*cases):
    """Each case is "strategy way run backend"."""
    executor = Executor(timeout=300)
    expected, gradients = alone(Llama(), LENGTHS)
    for case in cases:
        strategy, way, run, backend = case.split()
        plan, local = prepared(executor, strategy)
        model = Llama(RUNS[run](executor))
        if way == "modules":
            places = replace_attention(model, executor, layout="BTHD")
            assert places == [f"blocks.{i}.attention.inner_attention" for i in range(LAYERS)]
        if backend != "eager":
            for block in model.blocks:
                block.compile(backend=backend, fullgraph=True)
        with use(executor) if way == "calls" else contextlib.nullcontext():
            logits, loss = step(model, local)
        loss.backward()
        check(model, logits, plan, expected, gradients, case)


@pytest.mark.parametrize("strategy", ["zigzag", "dcp", "auto:steps=20000"])
def test_models_are_those_of_one_process(strategy):
    print(
        run_ranks(
            train, 4, f"{strategy} calls plain eager", f"{strategy} modules plain eager"
        ).stdout
    )


def test_checkpointed_models():
    runs = [
        "calls checkpoint",
        "calls contexts",
        "calls selective",
        "modules checkpoint",
        "modules contexts",
    ]
    print(run_ranks(train, 4, *[f"dcp {run} eager" for run in runs]).stdout)


def test_compiled_blocks():
    runs = [
        "calls plain",
        "calls checkpoint",
        "calls contexts",
        "modules plain",
        "modules checkpoint",
    ]
    print(
        run_ranks(
            train,
            2,
            *[f"dcp {run} aot_eager" for run in runs],
            "dcp calls plain inductor",
            timeout=600,
        ).stdout
    )


def train_torchtitan():
    from torchtitan.models.common.attention import ScaledDotProductAttention as Local
    from torchtitan.models.llama3 import llama3_configs

    def made():
        torch.manual_seed(5)
        model = llama3_configs["debugmodel"]("flex").build()
        model.init_states()
        return model

    executor = Executor(timeout=300)
    one, model = made(), made()
    for layer in one.layers.values():
        layer.attention.inner_attention = Local(Local.Config())
    expected, gradients = alone(one, LENGTHS)
    plan, local = prepared(executor, "dcp", heads=16)
    assert len(replace_attention(model, executor, layout="BTHD")) == len(model.layers)
    logits, loss = step(model, local)
    loss.backward()
    check(model, logits, plan, expected, gradients, "torchtitan")


def test_models_of_torchtitan():
    pytest.importorskip("torchtitan.models.llama3", reason="needs torchtitan", exc_type=ImportError)
    print(run_ranks(train_torchtitan, 4).stdout)


# ---------------------------------------------------------------------------------------- one rank


@pytest.fixture
def executor():
    executor = Executor(ct.inproc_group(1)[0])
    prepared(executor, "dcp")
    return executor


def tensors(tokens=TOKENS, **changes):
    generator = torch.Generator().manual_seed(3)
    heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS, **changes}
    return [
        torch.randn(1, heads[x], tokens, DIM, generator=generator, requires_grad=True)
        for x in "qkv"
    ]


def sdpa(q, k, v, **changes):
    return functional.scaled_dot_product_attention(
        q, k, v, **{"is_causal": True, "enable_gqa": True, **changes}
    )


def dense(q, k, v, plan):
    """The same with PyTorch alone, one document at a time."""
    mask = torch.block_diag(*[torch.ones(length, length).tril() for length in LENGTHS]).bool()
    order = torch.from_numpy(plan.local_tokens(0))
    return sdpa(q, k, v, attn_mask=mask[order][:, order], is_causal=False)


def test_a_call_is_that_of_the_batch_and_what_is_outside_is_left_alone(executor):
    q, k, v = tensors()
    before = sdpa(q, k, v)
    with use(executor) as one:
        assert one is executor
        out = sdpa(q, k, v)
        by_arguments = functional.scaled_dot_product_attention(
            q, k, v, None, 0.0, True, scale=0.25, enable_gqa=True
        )
    assert out.shape == q.shape
    torch.testing.assert_close(out, dense(q, k, v, executor.plan), rtol=1e-5, atol=1e-5)
    assert torch.equal(out, by_arguments)
    assert torch.equal(before, sdpa(q, k, v))


def test_what_is_compiled_outside_is_taken_over_inside_once_for_every_plan(executor):
    torch._dynamo.reset()
    compiled = torch.compile(sdpa, backend="eager", fullgraph=True)
    counts = torch._dynamo.utils.counters["stats"]
    before, outside = counts["unique_graphs"], compiled(*tensors())
    for strategy in ("dcp", "zigzag", "dcp", "zigzag"):
        prepared(executor, strategy, mask={"zigzag": "causal", "dcp": "sliding_window:9"}[strategy])
        with use(executor):
            torch.testing.assert_close(compiled(*tensors()), sdpa(*tensors()))
    torch.testing.assert_close(compiled(*tensors()), outside)
    assert counts["unique_graphs"] == before + 3


def test_slices_of_plans_serve(executor):
    plan = executor.plan
    with use(executor):
        whole = sdpa(*tensors())
    executor.prepare(ct.Plan.slice_from_bytes(plan.slice_to_bytes(0)))
    with use(executor):
        assert torch.equal(sdpa(*tensors()), whole)


def multi_head(train, **arguments):
    def call(q, k, v):
        layer = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True).train(train)
        x = torch.randn(1, TOKENS, HIDDEN)
        with contextlib.nullcontext() if train else torch.no_grad():
            return layer(x, x, x, **arguments)

    return call


def encoder_layer(q, k, v):
    with torch.no_grad():
        return nn.TransformerEncoderLayer(HIDDEN, HEADS, batch_first=True).eval()(
            torch.randn(1, TOKENS, HIDDEN)
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda q, k, v: sdpa(q, k, v, attn_mask=torch.ones(128, 128), is_causal=False),
            "expected no attn_mask",
        ),
        (lambda q, k, v: sdpa(q, k, v, dropout_p=0.1), "expected dropout 0, found 0.1"),
        (
            lambda q, k, v: sdpa(q, k, v, is_causal=False),
            "expected is_causal=True, found is_causal=False",
        ),
        (
            lambda q, k, v: sdpa(q, k, v, scale=0.3),
            "expected the plan's scale 0.25, found the call's 0.3",
        ),
        (lambda q, k, v: sdpa(q, k, v, enable_gqa=False), "expected enable_gqa=True with 4 heads"),
        (
            lambda q, k, v: sdpa(q, k[:, :, :5], v[:, :, :5]),
            "128 tokens as queries, keys and values, found 128, 5 and 5",
        ),
        (lambda q, k, v: sdpa(*(x[:, :, :9] for x in (q, k, v))), "found 9, 9 and 9"),
        (
            lambda q, k, v: sdpa(*(x.expand(2, -1, -1, -1) for x in (q, k, v))),
            "expected a batch of 1",
        ),
        (lambda q, k, v: sdpa(*(x[0] for x in (q, k, v))), "expected tensors of 4 dimensions"),
        (
            lambda q, k, v: sdpa(q, *(x.repeat_interleave(2, 1) for x in (k, v))),
            r"expected the plan's heads \(4, 2\)",
        ),
        (lambda q, k, v: sdpa(q, k, v[..., :8]), r"expected the plan's dims \(16, 16\)"),
        (
            lambda q, k, v: sdpa(*(x.bfloat16() for x in (q, k, v))),
            "expected the plan's torch.float32",
        ),
        (
            lambda q, k, v: torch.ops.aten.scaled_dot_product_attention.default(q, q, q),
            "which no plan takes over",
        ),
        (multi_head(True), "found multi_head_attention_forward"),
        (multi_head(True, need_weights=False), "found multi_head_attention_forward"),
        (multi_head(False, need_weights=False), "found multi_head_attention_forward"),
        (encoder_layer, "found multi_head_attention_forward"),
        (
            lambda q, k, v: torch.compile(multi_head(True, need_weights=False), backend="eager")(
                q, k, v
            ),
            "multi_head",
        ),
        (
            lambda q, k, v: torch.compile(sdpa, backend="eager")(q, k, v, is_causal=False),
            "expected is_causal=True",
        ),
        (lambda q, k, v: None, "found no call"),
    ],
)
def test_what_cannot_be_is_refused_and_the_group_lives_on(executor, call, message):
    with pytest.raises(ct.InvalidArgument, match=message), use(executor):
        call(*tensors())
    with use(executor):
        sdpa(*tensors())


def backends():
    return [None, "eager", "aot_eager", "inductor"]


@pytest.mark.parametrize(
    ("fullgraph", "backend"),
    [
        *((False, backend) for backend in backends()[:-1]),
        pytest.param(False, "inductor", marks=pytest.mark.whole),
        *((True, backend) for backend in backends()),
    ],
)
def test_flex_attention_is_refused_in_our_words(executor, backend, fullgraph):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    causal = flex.create_block_mask(
        lambda b, h, q, k: q >= k, None, None, TOKENS, TOKENS, device="cpu"
    )
    calls = (
        lambda x: flex.flex_attention(x * 2, x, x),
        lambda x: flex.flex_attention(x, x, x, block_mask=causal, return_lse=True),
        lambda x: flex.flex_attention(
            x,
            x,
            x,
            score_mod=lambda score, b, h, q, k: score * 2,
            return_aux=flex.AuxRequest(lse=True),
        ),
        flex.flex_attention,
    )
    for attend in calls:
        torch._dynamo.reset()
        compiled = (
            attend
            if backend is None
            else torch.compile(attend, backend=backend, fullgraph=fullgraph)
        )
        x = torch.randn(1, HEADS, TOKENS, DIM)
        arguments = (x, x, x) if attend is flex.flex_attention else (x,)
        with (
            pytest.raises(
                ct.InvalidArgument,
                match="^attention: expected .*, found flex_attention, which no plan takes over$",
            ),
            use(executor),
        ):
            compiled(*arguments)
    with use(executor):
        sdpa(*tensors())


@pytest.mark.parametrize("backend", backends()[1:])
def test_compiled_calls_are_refused_in_our_words(executor, backend):
    modules = ScaledDotProductAttention(executor)
    refused = (
        (
            {"attn_mask": torch.ones(128, 128), "is_causal": False},
            "attention: expected no attn_mask",
        ),
        ({"is_causal": False}, "attention: expected is_causal=True, found is_causal=False"),
        ({"scale": 0.3}, "attention: expected the plan's scale 0.25"),
        ({"enable_gqa": False}, "attention: expected enable_gqa=True"),
    )
    for arguments, message in refused:
        for attend, context in (
            (sdpa, functools.partial(use, executor)),
            (modules, contextlib.nullcontext),
        ):
            torch._dynamo.reset()
            given = {
                name: value
                for name, value in arguments.items()
                if attend is sdpa or value is not False or name != "is_causal"
            }
            if len(given) != len(arguments) and not given:
                continue
            compiled = torch.compile(
                lambda *x, attend=attend, given=given: attend(*x, **given) + 1,
                backend=backend,
                fullgraph=True,
            )
            with pytest.raises(ct.InvalidArgument, match=f"^{message}"), context():
                compiled(*tensors())
    with (
        pytest.raises(ct.InvalidArgument, match="^attention: expected the plan's heads"),
        use(executor),
    ):
        torch.compile(sdpa, backend=backend, fullgraph=True, dynamic=True)(*tensors(q=8))


def test_plans_that_do_not_agree_are_refused(executor):
    with (
        pytest.raises(ct.InvalidArgument, match="expected prepare"),
        use(Executor(ct.inproc_group(1)[0])),
    ):
        pass
    with (
        pytest.raises(ct.InvalidArgument, match="expected one of the plan's"),
        use(executor, mask="short"),
    ):
        pass
    with (
        pytest.raises(ct.InvalidArgument, match="is_causal=False, found one that attends no later"),
        use(executor, is_causal=False),
    ):
        sdpa(*tensors(), is_causal=False)
    with use(executor, is_causal=None):
        sdpa(*tensors(), is_causal=False)
    prepared(executor, "dcp", mask="full")
    with (
        pytest.raises(
            ct.InvalidArgument, match="is_causal=True, found one that attends later tokens"
        ),
        use(executor),
    ):
        sdpa(*tensors())
    with use(executor, is_causal=False):
        sdpa(*tensors(), is_causal=False)
    prepared(executor, "dcp", softcap=3.0)
    with pytest.raises(ct.InvalidArgument, match="without softcap and sinks"), use(executor):
        pass


def test_one_of_several_masks(executor):
    prepared(executor, "dcp", mask={"long": ("causal", 1), "short": ("sliding_window:1", 1)})
    q, k, v = tensors()
    with use(executor, mask="short"):
        out = sdpa(q, k, v)
    torch.testing.assert_close(out, v.repeat_interleave(2, 1))  # every token sees itself alone
    model = nn.Sequential(Block(), Block())
    replace_attention(
        model,
        executor,
        mask=lambda place: "long" if place.startswith("0.") else "short",
        layout="BTHD",
    )
    assert [block.attention.inner_attention.mask for block in model] == ["long", "short"]


def test_autocast_is_that_of_the_call(executor):
    prepared(executor, "dcp", dtype="bf16")
    with torch.autocast("cpu", dtype=torch.bfloat16), use(executor):
        assert sdpa(*tensors()).dtype == torch.bfloat16


def test_compiled_models_serve_all_plans(executor):
    from torch._dynamo.testing import CompileCounterWithBackend

    replaced = ScaledDotProductAttention(executor)
    for attend, context in (
        (replaced, contextlib.nullcontext),
        (sdpa, functools.partial(use, executor)),
    ):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(attend, fullgraph=True, backend=counter)
        for length in range(200, 188, -1):
            prepared(executor, "dcp", lengths=[length])
            q, k, v = (torch.randn(1, heads, length, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
            with context():
                found = compiled(q, k, v)
            assert torch.equal(found, replaced(q, k, v))
        assert counter.frame_count <= 2


def test_causality_is_that_of_the_mask(executor):
    for mask, lengths, is_causal in (
        ("full", [200], False),
        ("prefix_lm:5", [200], False),
        ("causal", [200], True),
    ):
        for block_size in (16, 512):
            prepared(executor, "dcp", lengths=lengths, mask=mask, block_size=block_size)
            q, k, v = (torch.randn(1, heads, 200, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
            with use(executor, is_causal=is_causal):
                sdpa(q, k, v, is_causal=is_causal)
            with (
                pytest.raises(ct.InvalidArgument, match="whose mask agrees"),
                use(executor, is_causal=not is_causal),
            ):
                sdpa(q, k, v, is_causal=not is_causal)


def test_modules_say_what_they_cannot(executor):
    q, k, v = tensors()
    module = ScaledDotProductAttention(executor)
    with use(executor):
        assert torch.equal(module(q, k, v), sdpa(q, k, v))
    turned = ScaledDotProductAttention(executor, layout="BTHD")
    assert torch.equal(
        turned(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), module(q, k, v)
    )
    assert not module.state_dict() and "layout='BHTD'" in repr(module)
    for call, message in (
        (lambda: module(q, k, v, attention_masks=1), "expected no attention_masks"),
        (lambda: module(q, k, v, is_causal=False), "found is_causal=False"),
        (lambda: turned(q, k, v), "128 tokens as queries, keys and values, found 4, 2 and 2"),
        (
            lambda: ScaledDotProductAttention(executor, layout="THBD"),
            "layout: expected BHTD or BTHD",
        ),
        (
            lambda: replace_attention(Llama(), executor, name="attn"),
            "expected modules called attn, found none",
        ),
        (
            lambda: replace_attention(Llama(), executor, name="attention"),
            "blocks.0.attention: expected a module without",
        ),
    ):
        with pytest.raises(ct.InvalidArgument, match=message):
            call()


class Mixing(nn.Module):
    """A model with one layer of attention and one other part."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, tokens, q, k, v):
        return sdpa(q, k, v)


@pytest.mark.parametrize(
    "part",
    [
        nn.Conv1d(HIDDEN, HIDDEN, 3),
        nn.GRU(HIDDEN, HIDDEN),
        nn.LSTM(HIDDEN, HIDDEN),
        type("MambaMixer", (nn.Module,), {})(),
    ],
    ids=lambda part: type(part).__name__,
)
def test_models_that_mix_tokens_elsewhere_are_refused(executor, part):
    _, local = prepared(executor, "zigzag")
    model = Mixing(nn.Sequential(nn.Linear(2, 2), part))
    with (
        pytest.raises(
            ct.InvalidArgument,
            match=(
                "expected one in which attention alone mixes tokens, found Mixing with part.1 "
                f".{type(part).__name__}"
            ),
        ),
        use(executor),
    ):
        model(local.tokens, *tensors())
    with use(executor, check_model=False):
        model(local.tokens, *tensors())
    # A convolution of images, or of one token at a time, mixes no tokens of the batch.
    with use(executor):
        Mixing(nn.ModuleDict({"vision": part, "pointwise": nn.Conv1d(4, 4, 1)}))(
            local.tokens, *tensors()
        )


@pytest.mark.parametrize("name", ["tokens", "positions", "labels", "sequence_ids"])
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[None], lambda t: t.view(1, -1)[:, :4]])
def test_batches_of_another_plan_are_refused(executor, name, view):
    plan, local = prepared(executor, "zigzag")
    prepared(executor, "zigzag", [33, 90, 5])  # as many tokens, other documents
    argument = view(getattr(local, name))
    model = Mixing(nn.Identity())
    with (
        pytest.raises(
            ct.InvalidArgument,
            match="expected tokens of the plan .* found those that local_batch made",
        ),
        use(executor),
    ):
        model(argument, *tensors())
    executor.prepare(plan)
    with use(executor):
        model(argument, *tensors())


def test_models_of_transformers_are_held_to_their_checks(executor):
    transformers = pytest.importorskip("transformers")
    _, local = prepared(executor, "zigzag")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config)
    given = {"position_ids": local.positions[None], "use_cache": False}
    with (
        pytest.raises(ct.InvalidArgument, match="labels: expected none inside use"),
        use(executor, is_causal=None),
    ):
        model(local.tokens[None], labels=local.labels[None], **given)
    with (
        pytest.raises(ct.InvalidArgument, match="position_ids: expected those"),
        use(executor, is_causal=None),
    ):
        model(local.tokens[None], use_cache=False)
