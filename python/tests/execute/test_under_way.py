"""Checkpointed batches under way: forward of one, of another, and then backward of both."""

from __future__ import annotations

import contextlib
import functools
import threading

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from contextile.torch import (
    Executor,
    ScaledDotProductAttention,
    attention,
    checkpoint_contexts,
    local_batch,
    use,
)
from ranks import run_ranks
from tiny_models import make_tiny

HEADS, DIM = 4, 16
BATCHES = (
    ([90, 38], {"strategy": "dcp", "mask": "causal", "block_size": 16}),
    ([128], {"strategy": "zigzag", "mask": "sliding_window:9"}),
)
WAYS = ("attention", "plan", "use", "modules")


class Layer(nn.Module):
    """A layer of x [1, tokens, HEADS * DIM] that attends in one of several ways."""

    def __init__(self, way, executor):
        super().__init__()
        self.way, self.executor = way, executor
        self.project = nn.Linear(HEADS * DIM, 3 * HEADS * DIM)
        self.inner = ScaledDotProductAttention(executor, layout="BTHD")

    def forward(self, x, plan):
        q, k, v = self.project(x).unflatten(-1, (3, HEADS, DIM)).unbind(2)
        if self.way == "use":
            out = scaled_dot_product_attention(
                *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True
            ).transpose(1, 2)
        elif self.way == "modules":
            out = self.inner(q, k, v)
        else:
            out = attention(
                q, k, v, executor=self.executor, plan=plan if self.way == "plan" else None
            )
        return x + out.flatten(2)


def layers_of(way, executor, backend):
    torch.manual_seed(1)
    layers = nn.ModuleList(Layer(way, executor) for _ in range(2))
    for layer in layers if backend else ():
        layer.compile(backend=backend, fullgraph=True)
    return layers


def run_of(kind, executor):
    """Returns what runs a layer: a checkpoint of a kind, or the layer itself."""
    selective = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.contextile.attention.default]
    )
    again = functools.partial(checkpoint, use_reentrant=False)
    return {
        "plain": lambda layer, *arguments: layer(*arguments),
        "checkpoint": again,
        "reentrant": functools.partial(checkpoint, use_reentrant=True),
        "contexts": functools.partial(again, context_fn=lambda: checkpoint_contexts(executor)),
        "selective": functools.partial(again, context_fn=selective),
        "nested": lambda layer, *arguments: again(lambda *inner: again(layer, *inner), *arguments),
        "nested reentrant": lambda layer, *arguments: checkpoint(
            lambda *inner: checkpoint(layer, *inner, use_reentrant=True),
            *arguments,
            use_reentrant=True,
        ),
    }[kind]


def planned(executor, batch):
    lengths, options = BATCHES[batch]
    cluster = ct.Cluster.from_torch() if executor.size > 1 else "local:1x1"
    return ct.plan(lengths, cluster=cluster, heads=HEADS, head_dim=DIM, dtype="f32", **options)


def gradients_of(executor, way, kind, *, backend=None, batches, inside=False):
    """Gradients of the inputs and of the parameters: forward of the batches, then backward.

    Backward runs inside the last ``use``, or after it.
    """
    layers, run = layers_of(way, executor, backend), run_of(kind, executor)
    taken_over = functools.partial(use, executor) if way == "use" else contextlib.nullcontext
    under_way = []

    def backward():
        for _, out in reversed(under_way):
            out.square().sum().backward()

    for batch in batches:
        prepared = executor.prepare(planned(executor, batch))
        torch.manual_seed(10 * batch + executor.rank)
        leaf = torch.randn(
            1, prepared.plan.num_local_tokens(executor.rank), HEADS * DIM, requires_grad=True
        )
        with taken_over():
            x = leaf
            for layer in layers:
                x = run(layer, x, prepared)
            under_way.append((leaf, x))
            if inside and batch == batches[-1]:
                backward()
    if not inside:
        backward()
    return [*(leaf.grad for leaf, _ in under_way), *(value.grad for value in layers.parameters())]


def expected_of(executor):
    """The same of one batch at a time, without checkpoints."""
    parts = [gradients_of(executor, "attention", "plain", batches=[batch]) for batch in (0, 1)]
    return [
        parts[0][0],
        parts[1][0],
        *(a + b for a, b in zip(parts[0][1:], parts[1][1:], strict=True)),
    ]


def compare(found, expected, what):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-5, atol=1e-5, msg=lambda text: f"{what}: {text}"
        )


def train(ways):
    executor = Executor(timeout=120)
    expected = expected_of(executor)
    for way in ways.split():
        for kind in (
            "checkpoint",
            "reentrant",
            "contexts",
            "selective",
            "nested",
            "nested reentrant",
        ):
            compare(gradients_of(executor, way, kind, batches=(0, 1)), expected, f"{way} {kind}")
        if way == "use":
            for kind in ("checkpoint", "reentrant"):
                compare(
                    gradients_of(executor, way, kind, batches=(0, 1), inside=True),
                    expected,
                    f"{kind} inside",
                )


@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
def test_checkpoints_compute_again_under_their_plan():
    run_ranks(train, 2, " ".join(WAYS))


@pytest.fixture
def executor():
    return Executor(ct.inproc_group(1)[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["checkpoint", "reentrant"])
def test_compiled_layers_compute_again_under_their_plan(executor, way, kind):
    torch._dynamo.reset()
    found = gradients_of(executor, way, kind, backend="aot_eager", batches=(0, 1))
    compare(found, expected_of(executor), f"{way} {kind}")


def test_a_function_that_prepares_by_itself_prepares_again(executor):
    plans = [planned(executor, batch) for batch in (0, 1)]

    def function(q, k, v):
        outs = [attention(q, k, v, executor=executor)]
        for plan in plans:
            executor.prepare(plan)
            outs.append(attention(q, k, v, executor=executor))
        return sum(out * (place + 1) for place, out in enumerate(outs))

    found = []
    for run in (
        function,
        *(functools.partial(checkpoint, function, use_reentrant=how) for how in (False, True)),
    ):
        torch.manual_seed(0)
        leaves = [torch.randn(128, HEADS, DIM, requires_grad=True) for _ in range(3)]
        executor.prepare(plans[1])
        out = run(*leaves)
        executor.prepare(plans[0])
        out.square().sum().backward()
        found.append([leaf.grad for leaf in leaves])
    compare(found[1], found[0], "not reentrant")
    compare(found[2], found[0], "reentrant")


def test_backward_may_run_twice(executor):
    grads = []
    for kind in ("plain", "checkpoint", "reentrant"):
        torch.manual_seed(0)
        layer, leaf = Layer("use", executor), torch.randn(1, 128, HEADS * DIM, requires_grad=True)
        executor.prepare(planned(executor, 0))
        with use(executor):
            out = run_of(kind, executor)(layer, leaf, None)
        executor.prepare(planned(executor, 1))
        for _ in range(2):
            out.square().sum().backward(retain_graph=True)
        grads.append([leaf.grad])
    compare(grads[1], grads[0], "not reentrant")
    compare(grads[2], grads[0], "reentrant")


def test_other_checkpoints_name_the_plan_or_take_it(executor):
    from torch.distributed._composable import checkpoint as composable

    def run(**options):
        executor.prepare(planned(executor, 0))
        torch.manual_seed(0)
        layer, x = Layer("modules", executor), torch.randn(1, 128, HEADS * DIM, requires_grad=True)
        if options:
            composable(
                layer, **{name: value for name, value in options.items() if value is not None}
            )
        out = layer(x, None)
        executor.prepare(planned(executor, 1))
        out.square().sum().backward()
        return [x.grad]

    with pytest.raises(
        ct.InvalidArgument,
        match="^checkpoint: expected forward computed again under the plan of its first time",
    ):
        run(context_fn=None)
    compare(run(context_fn=lambda: checkpoint_contexts(executor)), run(), "composable")


def test_plans_that_are_gone_are_named(executor):
    few = Executor(ct.inproc_group(1)[0], plans_kept=1, plans_prepared=1)
    with pytest.raises(ct.InvalidArgument, match="plans_kept"):
        gradients_of(few, "attention", "checkpoint", batches=(0, 1))
    with pytest.raises(ct.InvalidArgument, match="plans_kept"):
        gradients_of(few, "attention", "reentrant", batches=(0, 1))


# --------------------------------------------------------------------------------------------
# models

SIZES = {"vocab_size": 97, "hidden_size": 64, "pad_token_id": 0}
LLAMA = {
    **SIZES,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
MODELS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "Llama with dropout": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "attention_dropout": 0.3}),
    "Bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {**SIZES, "n_layer": 2, "n_head": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    ),
}


def gradients_of_model(executor, name, how, batches, inside):
    import contextile.transformers as cth

    model = make_tiny(*MODELS[name], None if name == "Bloom" else cth.register())
    model.train()
    if how is not None:
        model.gradient_checkpointing_enable({"use_reentrant": how})
    losses = []
    for batch in batches:
        lengths, options = BATCHES[batch]
        options = {**options, "mask": "causal"}
        plan = ct.plan(
            lengths, cluster=ct.Cluster.from_torch(), **{**cth.batch_of(model), **options}
        )
        executor.prepare(plan)
        tokens = torch.randint(1, 97, (sum(lengths),), generator=torch.Generator().manual_seed(2))
        local = local_batch(tokens, plan=plan, rank=executor.rank)
        given = {} if name == "Bloom" else {"position_ids": local.positions[None]}
        with cth.use(executor, dropout_seed=batch):
            embedded = model.get_input_embeddings()(local.tokens[None]).detach().requires_grad_()
            logits = model(inputs_embeds=embedded, use_cache=False, **given).logits[0]
            losses.append((logits.square() * (1 + batch)).sum())
            if inside and batch == batches[-1]:
                for loss in reversed(losses):
                    loss.backward()
    if not inside:
        for loss in reversed(losses):
            loss.backward()
    return {key: value.grad for key, value in model.named_parameters() if value.grad is not None}


def train_models():
    executor = Executor(timeout=120)
    for name in MODELS:
        parts = [gradients_of_model(executor, name, None, [batch], False) for batch in (0, 1)]
        expected = {key: parts[0][key] + parts[1][key] for key in parts[0]}
        for how in (False, True):
            for inside in (False, True):
                found = gradients_of_model(executor, name, how, (0, 1), inside)
                assert found.keys() == expected.keys()
                for key, one in expected.items():
                    error = (found[key] - one).abs().max() / one.abs().max().clamp(min=1e-8)
                    assert error < 1e-5, (
                        f"{name}, use_reentrant={how}, inside={inside}: {key} is off by {error:.2e}"
                    )


@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
def test_models_compute_again_under_their_plan():
    pytest.importorskip("transformers")
    run_ranks(train_models, 2)


# ----------------------------------------------------- contexts that a checkpoint's function enters


def mixed_gradient(executor, batch, reentrant):
    """The gradient of attention by a plan, in ``use``, and of attention to own tokens behind it."""
    x = torch.randn(1, 4, 33, 8, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def function(x):
        with use(executor):
            planned = scaled_dot_product_attention(x, x, x, is_causal=True)
        return planned + scaled_dot_product_attention(x, x, x, is_causal=True)

    executor.prepare(batch)
    y = function(x) if reentrant is None else checkpoint(function, x, use_reentrant=reentrant)
    y.sum().backward()
    return x.grad


@pytest.mark.parametrize("reentrant", [False, True])
def test_calls_behind_a_use_inside_a_checkpoint_stay_their_own(reentrant):
    executor = Executor(ct.inproc_group(1)[0])
    batch = ct.plan(
        [20, 13], cluster="local:1x1", strategy="zigzag", heads=(4, 4), head_dim=8, dtype="f32"
    )
    expected = mixed_gradient(executor, batch, None)
    assert torch.allclose(mixed_gradient(executor, batch, reentrant), expected, atol=1e-6)


def test_uses_on_threads_end_in_any_order():
    executors = [Executor(ct.inproc_group(1)[0]) for _ in range(2)]
    batch = ct.plan(
        [20, 13], cluster="local:1x1", strategy="zigzag", heads=(4, 4), head_dim=8, dtype="f32"
    )
    for executor in executors:
        executor.prepare(batch)
    began, entered, left = threading.Event(), threading.Event(), threading.Event()
    found = {}

    def function(x):
        return scaled_dot_product_attention(x, x, x, is_causal=True)

    def first():
        with use(executors[0]):
            function(torch.zeros(1, 4, 33, 8))
            began.set()
            entered.wait(30)
        left.set()

    def second():
        began.wait(30)
        x = torch.randn(1, 4, 33, 8, generator=torch.Generator().manual_seed(3)).requires_grad_()
        with use(executors[1]):
            entered.set()
            left.wait(30)
            y = checkpoint(function, x, use_reentrant=True)
        y.sum().backward()
        found["again"], x.grad = x.grad, None
        with use(executors[1]):
            function(x).sum().backward()
        found["first"] = x.grad

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.allclose(found["again"], found["first"], atol=1e-6)
