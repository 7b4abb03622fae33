"""The operators of attention with the engine torch: their promises to PyTorch, torch.compile,
checkpoints, and saved tensors that are copied."""

from __future__ import annotations

import functools

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from contextile.torch import Executor, attention
from contextile.torch._kernels.triton_stage import TritonStage

HEADS, DIM = (4, 2), 16
BATCHES = (
    ([90, 38], "zigzag", "causal"),
    ([50, 40, 7], "dcp", "causal"),
    ([64], "magi", "sliding_window:9"),
    ([30, 31, 32], "ulysses", "full"),
)
KERNELS = ("torch:cpu", "torch:tiles", "torch:flex")


def planned(lengths, strategy="zigzag", mask="causal", **options):
    shape = {"heads": HEADS, "head_dim": DIM, "dtype": "f32", "cluster": "local:1x1"}
    return ct.plan(lengths, strategy=strategy, mask=mask, **{**shape, **options})


def executor_of(kernel=""):
    return Executor(ct.inproc_group(1)[0], engine="torch", kernel=kernel)


def inputs(tokens, seed=0):
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    heads = (HEADS[0], HEADS[1], HEADS[1], HEADS[0])
    return [torch.randn(tokens, number, DIM, generator=generator) for number in heads]


def gradients_of(function, tensors):
    q, k, v, dout = tensors
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = function(*leaves)
    (out * dout).sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def executor():
    return executor_of()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("has_sink", [False, True])
def test_the_operators_keep_their_promises_to_pytorch(kernel, has_sink, monkeypatch):
    executor = executor_of(kernel)
    executor.prepare(planned([60, 37], sink=has_sink))
    # The operator returns the number of its call, which is a new one every time.
    monkeypatch.setattr(executor, "begin_call", lambda: 1)
    number, index, saved = executor.prepared_of(None).call_of("")
    *tensors, dout = inputs(97)
    sink = torch.linspace(-1, 1, HEADS[0]) if has_sink else None
    leaves = [x.clone().requires_grad_() for x in tensors]
    logits = sink.clone().requires_grad_() if has_sink else None
    torch.library.opcheck(
        torch.ops.contextile.attention.default, (*leaves, logits, number, index, saved)
    )
    with torch.no_grad():
        made = torch.ops.contextile.attention(*tensors, sink, number, index, saved)
    torch.library.opcheck(
        torch.ops.contextile.attention_backward.default,
        (dout, *tensors, sink, *made, number, index),
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_compiled_graph_serves_batches_of_all_lengths(kernel):
    from torch._dynamo.testing import CompileCounterWithBackend

    executor = executor_of(kernel)

    def attend(q, k, v, plan):
        return attention(q * 2, k, v, executor=executor, plan=plan).square()

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    counts = []
    for lengths, strategy, mask in BATCHES:
        plan = executor.prepare(planned(lengths, strategy, mask))
        tensors = inputs(sum(lengths), seed=sum(lengths))
        both = [
            gradients_of(functools.partial(one, plan=plan), tensors) for one in (compiled, attend)
        ]
        assert_equal(*both)
        counts.append(counter.frame_count)
    # The second batch shows which sizes change.
    assert counts[-1] == counts[1] <= 2


def test_triton_kernels_run_in_checked_and_compiled_operators(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(TritonStage, "devices", ("cpu",))
    executor = executor_of("torch:triton")
    plan = executor.prepare(planned([20, 9]))
    monkeypatch.setattr(executor, "begin_call", lambda: 1)
    number, index, saved = executor.prepared_of(None).call_of("")
    tensors = inputs(29)
    leaves = [x.clone().requires_grad_() for x in tensors[:3]]
    torch.library.opcheck(
        torch.ops.contextile.attention.default,
        (*leaves, None, number, index, saved),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )

    def attend(q, k, v):
        return attention(q * 2, k, v, executor=executor, plan=plan).square()

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert_equal(gradients_of(compiled, tensors), gradients_of(attend, tensors))


def test_compiled_calls_may_be_under_way_together(executor):
    """Forward of two batches, then backward of both, compiled."""
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    expected, under_way = [], []
    for lengths, strategy, mask in BATCHES[:2]:
        plan = executor.prepare(planned(lengths, strategy, mask))
        tensors = inputs(sum(lengths), seed=3)
        attend = functools.partial(attention, executor=executor, plan=plan)
        expected.append(gradients_of(attend, tensors)[1:])
        leaves = [x.clone().requires_grad_() for x in tensors[:3]]
        out = compiled(*leaves, executor=executor, plan=plan)
        under_way.append((out, leaves, tensors[3]))
    for (out, leaves, dout), gradients in reversed(list(zip(under_way, expected, strict=True))):
        out.backward(dout)
        assert_equal([x.grad for x in leaves], gradients)


@pytest.mark.parametrize("has_sink", [False, True])
def test_saved_tensors_may_be_copied(executor, has_sink):
    """Offload and compression copy what forward saves."""
    executor.prepare(planned([60, 37], sink=has_sink))
    sink = torch.linspace(-1, 1, HEADS[0]) if has_sink else None
    attend = functools.partial(attention, executor=executor, sink=sink)
    tensors = inputs(97)
    expected = gradients_of(attend, tensors)
    kept = []  # so that copies lie where nothing was saved
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.clone()) or kept[-1], lambda x: x.clone()
    ):
        found = gradients_of(attend, tensors)
    assert kept
    assert_equal(found, expected)
    with torch.autograd.graph.save_on_cpu():
        assert_equal(gradients_of(attend, tensors), expected)


@pytest.mark.parametrize("kind", ["plain", "selective", "nested"])
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("kernel", ["torch:cpu", "torch:flex"])
def test_checkpoints_give_the_same_gradients(kernel, kind, is_compiled):
    executor = executor_of(kernel)
    prepared = executor.prepare(planned([60, 37]))
    again = functools.partial(checkpoint, use_reentrant=False)
    selective = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.contextile.attention.default]
    )

    def layer(q, k, v):
        return attention(q.sin(), k.cos(), v.sin(), executor=executor, plan=prepared).square()

    checkpointed = {
        "plain": functools.partial(again, layer),
        "selective": functools.partial(again, layer, context_fn=selective),
        "nested": functools.partial(again, functools.partial(again, layer)),
    }[kind]
    if is_compiled:
        checkpointed = torch.compile(checkpointed, fullgraph=True, backend="aot_eager")
    tensors = inputs(97)
    found, expected = gradients_of(checkpointed, tensors), gradients_of(layer, tensors)
    assert_equal(found, expected)


def test_a_checkpoint_computes_again_under_the_plan_of_its_first_time(executor):
    """Forward of two batches, then backward of the first."""
    batches = []
    for lengths, strategy, mask in BATCHES[:2]:
        executor.prepare(planned(lengths, strategy, mask))
        tensors = inputs(sum(lengths), seed=5)
        attend = functools.partial(attention, executor=executor)
        expected = gradients_of(attend, tensors)[1:]
        leaves = [x.clone().requires_grad_() for x in tensors[:3]]
        batches.append(
            (leaves, checkpoint(attend, *leaves, use_reentrant=False), tensors, expected)
        )
    for leaves, out, tensors, expected in batches:
        out.backward(tensors[3])
        assert_equal([x.grad for x in leaves], expected)
