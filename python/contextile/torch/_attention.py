"""Attention as operators of PyTorch."""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import checkpoint

from contextile import _core
from contextile.torch._executor import Executor, Prepared, executor_of, rank_executor_of


def _new_output(q: Tensor, v: Tensor, saved_bytes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, lse, what forward saves and the number of the plan it was of, to be written."""
    return (
        q.new_empty((q.shape[0], q.shape[1], v.shape[2])),
        q.new_empty(q.shape[:2], dtype=torch.float32),
        q.new_empty((saved_bytes,), dtype=torch.uint8),
        torch.empty((1,), dtype=torch.int64),  # on the CPU: reading it waits for no device
    )


def _new_gradients(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and dsink, to be written; contiguous, whatever the inputs are."""
    num_sinks = 0 if sink is None else sink.shape[0]
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        q.new_empty((num_sinks,), dtype=torch.float32),
    )


@torch.library.custom_op("contextile::attention", mutates_args=(), device_types=("cpu", "cuda"))
def _forward(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, plan: int, mask: int, saved_bytes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, lse, saved, made_by = _new_output(q, v, saved_bytes)
    executor = executor_of(plan)
    rank = rank_executor_of(plan)
    made_by.fill_(plan)
    check = executor.check_tensor
    with executor.on_device() as stream:
        rank.forward(
            mask=mask,
            call=executor.begin_call(lse),
            q=check("q", q),
            k=check("k", k),
            v=check("v", v),
            sink=None if sink is None else check("sink", sink),
            out=check("out", out),
            lse=lse,
            saved=saved,
            stream=stream,
        )
    return out, lse, saved, made_by


@_forward.register_fake
def _(q, k, v, sink, plan, mask, saved_bytes):
    return _new_output(q, v, saved_bytes)


@torch.library.custom_op("contextile::attention_backward", mutates_args=(), device_types=("cpu", "cuda"))
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
    made_by: Tensor,
    plan: int,
    mask: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if made_by.item() != plan:
        raise _core.InvalidArgument(
            "checkpoint: expected forward computed again under the plan of its first time, found the executor prepared for "
            "another; give plan= what prepare returned for the batch, or context_fn (checkpoint_contexts)"
        )
    dq, dk, dv, dsink = _new_gradients(q, k, v, sink)
    executor = executor_of(plan)
    rank = rank_executor_of(plan)
    check = executor.check_tensor
    with executor.on_device() as stream:
        rank.backward(
            mask=mask,
            call=executor.call_that_made(lse),
            q=check("q", q),
            k=check("k", k),
            v=check("v", v),
            sink=None if sink is None else check("sink", sink),
            out=check("out", out),
            lse=check("lse", lse),
            dout=check("dout", dout),
            dq=dq,
            dk=dk,
            dv=dv,
            dsink=None if sink is None else dsink,
            saved=saved.detach(),
            stream=stream,
        )
    return dq, dk, dv, dsink


@_backward.register_fake
def _(dout, q, k, v, sink, out, lse, saved, made_by, plan, mask):
    return _new_gradients(q, k, v, sink)


def _setup(ctx, inputs, output):
    q, k, v, sink, ctx.plan, ctx.mask, _ = inputs
    ctx.has_sink = sink is not None
    ctx.save_for_backward(q, k, v, *([sink] if ctx.has_sink else []), *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse, dsaved, dmade_by):
    if dout is None:
        return (None,) * 7
    q, k, v, *sink, out, lse, saved, made_by = ctx.saved_tensors
    dq, dk, dv, dsink = _backward(
        dout, q, k, v, sink[0] if ctx.has_sink else None, out, lse, saved, made_by, ctx.plan, ctx.mask
    )
    return dq, dk, dv, dsink if ctx.has_sink else None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def _no_second_gradients(ctx, *gradients):
    raise NotImplementedError("contextile.torch.attention: gradients of gradients are not supported")


_backward.register_autograd(_no_second_gradients)


def _refuse_forward_mode(*tensors: Tensor | None) -> None:
    """Tangents of dual numbers do not reach an operator: they would be lost without a word."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError("contextile.torch.attention: forward-mode derivatives are not supported")


@torch.compiler.disable
def refuse_reentrant() -> None:
    """Reentrant checkpoints call forward without gradients, and again in backward, when the plan may be another."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is checkpoint.CheckpointFunction.forward.__code__:
            raise _core.InvalidArgument(
                "checkpoint: expected use_reentrant=False, or attention(plan=…) inside, found a reentrant one"
            )
        frame = frame.f_back  # type: ignore[assignment]


def _as_autocast(prepared: Prepared, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What autocast makes of them, where it is on; it must be what the plan is for."""
    kind = q.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    if dtype != prepared.dtype:
        raise _core.InvalidArgument(f"autocast: expected the plan's {prepared.dtype}, found {dtype}")
    return q.to(dtype), k.to(dtype), v.to(dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    executor: Executor,
    plan: _core.Plan | Prepared | None = None,
    mask: str = "",
    sink: Tensor | None = None,
    dropout: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Exact attention of this rank's tokens to the whole batch, by the plan the executor is prepared for. Collective.

    Differentiable in q, k, v and sink. Every rank calls it in the same order, as all collectives; so are its backward
    passes.

    Shapes
    ------
    q : [..., q_heads, head_dim]
    k : [..., kv_heads, head_dim]
    v : [..., kv_heads, value_dim]
        Leading dimensions hold this rank's tokens in the plan's local order (``plan.local_tokens(rank)``): [tokens],
        [1, tokens] or [tokens, 1].
    sink : float32 [q_heads], where ``plan.shape.sink``
    returns : [..., q_heads, value_dim]; with ``return_lse`` also float32 [..., q_heads], without gradients

    Parameters
    ----------
    executor
        Prepared for the batch's plan.
    plan
        Which of the plans that the executor keeps, where several batches take turns: what ``prepare`` returned, or the plan
        (not inside a compiled function). None: the last that was prepared.
    mask
        The name of one of the plan's masks; empty: that of a plan with only one.
    dropout
        Only 0: ranks would need one mask of what is dropped.

    Raises
    ------
    InvalidArgument
        No plan, a mask it has not, tensors of another shape, dtype or device, dropout, autocast to another dtype than the
        plan's, a reentrant checkpoint. Ranks in different calls: the group has ended then.
    TransportError
        A peer failed.
    NotImplementedError
        Gradients of gradients, forward-mode derivatives.

    Notes
    -----
    Under ``torch.autocast`` q, k and v are cast as for ``scaled_dot_product_attention``; its dtype must be the plan's.

    The gradient of ``sink`` is this rank's share: sum it over the group as that of any parameter that all ranks hold.
    """
    if dropout != 0.0:
        raise _core.InvalidArgument(f"attention: expected dropout 0, found {dropout}")
    _refuse_forward_mode(q, k, v, sink)
    prepared = executor.prepared_of(plan)
    number, index, saved_bytes = prepared.call_of(mask)
    if plan is None and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        refuse_reentrant()
    q, k, v = _as_autocast(prepared, q, k, v)
    leading = q.shape[:-2]
    if leading != k.shape[:-2] or leading != v.shape[:-2]:
        raise _core.InvalidArgument(
            f"attention: expected q, k and v of the same tokens, found {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    out, lse, _, _ = torch.ops.contextile.attention(
        q.reshape(-1, *q.shape[-2:]),
        k.reshape(-1, *k.shape[-2:]),
        v.reshape(-1, *v.shape[-2:]),
        sink,
        number,
        index,
        saved_bytes,
    )
    out = out.reshape(*leading, *out.shape[-2:])
    if return_lse:
        return out, lse.reshape(*leading, lse.shape[-1])
    return out
