"""Attention as operators of PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._executor import Executor, check_tensor, rank_executor_of


def _new_output(q: Tensor, v: Tensor, saved_bytes: int) -> tuple[Tensor, Tensor, Tensor]:
    """out, lse and what forward saves, to be written."""
    return (
        q.new_empty((q.shape[0], q.shape[1], v.shape[2])),
        q.new_empty(q.shape[:2], dtype=torch.float32),
        q.new_empty((saved_bytes,), dtype=torch.uint8),
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


@torch.library.custom_op("contextile::attention", mutates_args=(), device_types="cpu")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, plan: int, mask: int, saved_bytes: int
) -> tuple[Tensor, Tensor, Tensor]:
    out, lse, saved = _new_output(q, v, saved_bytes)
    rank_executor_of(plan).forward(
        mask=mask,
        q=check_tensor("q", q),
        k=check_tensor("k", k),
        v=check_tensor("v", v),
        sink=None if sink is None else check_tensor("sink", sink),
        out=out,
        lse=lse,
        saved=saved,
    )
    return out, lse, saved


@_forward.register_fake
def _(q, k, v, sink, plan, mask, saved_bytes):
    return _new_output(q, v, saved_bytes)


@torch.library.custom_op("contextile::attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
    plan: int,
    mask: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dsink = _new_gradients(q, k, v, sink)
    rank_executor_of(plan).backward(
        mask=mask,
        q=check_tensor("q", q),
        k=check_tensor("k", k),
        v=check_tensor("v", v),
        sink=None if sink is None else check_tensor("sink", sink),
        out=check_tensor("out", out),
        lse=check_tensor("lse", lse),
        dout=check_tensor("dout", dout),
        dq=dq,
        dk=dk,
        dv=dv,
        dsink=None if sink is None else dsink,
        saved=saved.detach(),
    )
    return dq, dk, dv, dsink


@_backward.register_fake
def _(dout, q, k, v, sink, out, lse, saved, plan, mask):
    return _new_gradients(q, k, v, sink)


def _setup(ctx, inputs, output):
    q, k, v, sink, ctx.plan, ctx.mask, _ = inputs
    ctx.has_sink = sink is not None
    ctx.save_for_backward(q, k, v, *([sink] if ctx.has_sink else []), *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse, dsaved):
    if dout is None:
        return (None,) * 7
    q, k, v, *sink, out, lse, saved = ctx.saved_tensors
    dq, dk, dv, dsink = _backward(
        dout, q, k, v, sink[0] if ctx.has_sink else None, out, lse, saved, ctx.plan, ctx.mask
    )
    return dq, dk, dv, dsink if ctx.has_sink else None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def _no_second_gradients(ctx, *gradients):
    raise NotImplementedError("contextile.torch.attention: gradients of gradients are not supported")


_backward.register_autograd(_no_second_gradients)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    executor: Executor,
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
    mask
        The name of one of the plan's masks; empty: that of a plan with only one.
    dropout
        Only 0: ranks would need one mask of what is dropped.

    Raises
    ------
    InvalidArgument
        No plan, a mask it has not, tensors of another shape, dtype or device, dropout.
    TransportError
        A peer failed.
    NotImplementedError
        Gradients of gradients.

    Notes
    -----
    The gradient of ``sink`` is this rank's share: sum it over the group as that of any parameter that all ranks hold.
    """
    if dropout != 0.0:
        raise _core.InvalidArgument(f"attention: expected dropout 0, found {dropout}")
    plan, index, saved_bytes = executor.call_of(mask)
    leading = q.shape[:-2]
    out, lse, _ = torch.ops.contextile.attention(
        q.reshape(-1, *q.shape[-2:]),
        k.reshape(-1, *k.shape[-2:]),
        v.reshape(-1, *v.shape[-2:]),
        sink,
        plan,
        index,
        saved_bytes,
    )
    out = out.reshape(*leading, *out.shape[-2:])
    if return_lse:
        return out, lse.reshape(*leading, lse.shape[-1])
    return out
