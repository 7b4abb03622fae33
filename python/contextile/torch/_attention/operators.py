"""Attention as operators of PyTorch, with gradients."""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple, NoReturn, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from contextile import _core
from contextile.torch._attention.bias import Bias, Terms, check_known, terms_of
from contextile.torch._attention.by_head import attend_by_head
from contextile.torch._batch.calls import check_batch
from contextile.torch._execute.dtensor import (
    check_dtensors,
    check_heads_of_rank,
    has_dtensors,
    num_sharers,
)
from contextile.torch._execute.executor import Executor, Prepared, executor_of, rank_executor_of

_forward_ad: Any = forward_ad  # it has no types


def _new_output(q: Tensor, v: Tensor, saved_bytes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns uninitialized out, lse, saved and made_by (forward's plan and call numbers)."""
    return (
        q.new_empty((q.shape[0], q.shape[1], v.shape[2])),
        q.new_empty(q.shape[:2], dtype=torch.float32),
        q.new_empty((saved_bytes,), dtype=torch.uint8),
        torch.empty((2,), dtype=torch.int64),  # on the CPU: reading it waits for no device
    )


def _new_gradients(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, table: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns uninitialized dq, dk, dv, dsink and dtable, contiguous even if the inputs are not."""
    num_sinks = 0 if sink is None else sink.shape[0]
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        q.new_empty((num_sinks,), dtype=torch.float32),
        q.new_empty((0, 0) if table is None else table.shape, dtype=torch.float32),
    )


class _Arguments(NamedTuple):
    """The arguments of the operator of forward, in the order of its schema."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None
    plan: int
    mask: int
    saved_bytes: int
    slopes: Tensor | None = None
    table: Tensor | None = None
    buckets: Tensor | None = None
    first_offset: int = 0
    dropout: float = 0.0
    seed: Tensor | None = None


class _BackwardArguments(NamedTuple):
    """The arguments of the operator of backward, in the order of its schema."""

    dout: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None
    out: Tensor
    lse: Tensor
    saved: Tensor
    made_by: Tensor
    plan: int
    mask: int
    slopes: Tensor | None = None
    table: Tensor | None = None
    buckets: Tensor | None = None
    first_offset: int = 0
    dropout: float = 0.0
    seed: Tensor | None = None
    table_learns: bool = False


def _native(tensor: Tensor | None) -> Any:
    """Returns a tensor to the library, whose functions name arrays of NumPy alone."""
    return tensor


def _terms_for(executor: Executor, terms: Terms) -> Any:
    """Returns the terms of a call as the executor's engine takes them."""
    return terms if executor.engine == "torch" else terms.native()


def _rows_of_plan(executor: Executor, plan: int, q: Tensor) -> slice:
    """Returns the rows that are tokens of the plan: none if this rank has only a filler."""
    return slice(0) if q.shape[0] == 1 and executor.has_no_tokens(plan) else slice(None)


@torch.library.custom_op("contextile::attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    plan: int,
    mask: int,
    saved_bytes: int,
    slopes: Tensor | None = None,
    table: Tensor | None = None,
    buckets: Tensor | None = None,
    first_offset: int = 0,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, lse, saved, made_by = _new_output(q, v, saved_bytes)
    executor = executor_of(plan)
    executor.note_call(plan)
    rank = rank_executor_of(plan)
    terms = _terms_for(executor, Terms(slopes, table, buckets, first_offset, dropout, seed))
    # The identity of the call travels with the saved tensors, because hooks may copy them (offload,
    # compression): their addresses say nothing.
    call = executor.begin_call()
    made_by.copy_(torch.tensor([plan, call]))
    check = executor.check_tensor
    rows = _rows_of_plan(executor, plan, q)
    if rows.stop == 0:
        out.zero_()
        lse.fill_(float("-inf"))
    with executor.on_device() as stream:
        rank.forward(
            mask=mask,
            call=call,
            q=check("q", q[rows]),
            k=check("k", k[rows]),
            v=check("v", v[rows]),
            sink=None if sink is None else check("sink", sink),
            out=check("out", out[rows]),
            lse=_native(lse[rows]),
            saved=_native(saved),
            terms=terms,
            stream=stream,
        )
    return out, lse, saved, made_by


@_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    plan: int,
    mask: int,
    saved_bytes: int,
    *terms: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _new_output(q, v, saved_bytes)


@torch.library.custom_op("contextile::attention_backward", mutates_args=())
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
    slopes: Tensor | None = None,
    table: Tensor | None = None,
    buckets: Tensor | None = None,
    first_offset: int = 0,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    table_learns: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    made_by_plan, call = made_by.tolist()
    if made_by_plan != plan:
        raise _core.InvalidArgument(
            "checkpoint: expected forward computed again under the plan of its first time, found "
            "the executor prepared for another; give plan= what prepare returned for the batch, "
            "or context_fn (checkpoint_contexts)"
        )
    dq, dk, dv, dsink, dtable = _new_gradients(q, k, v, sink, table if table_learns else None)
    executor = executor_of(plan)
    rank = rank_executor_of(plan)
    terms = _terms_for(executor, Terms(slopes, table, buckets, first_offset, dropout, seed))
    check = executor.check_tensor
    rows = _rows_of_plan(executor, plan, q)
    if rows.stop == 0:
        for gradient in (dq, dk, dv):
            gradient.zero_()
    with executor.on_device() as stream:
        rank.backward(
            mask=mask,
            call=call,
            q=check("q", q[rows]),
            k=check("k", k[rows]),
            v=check("v", v[rows]),
            sink=None if sink is None else check("sink", sink),
            out=check("out", out[rows]),
            lse=check("lse", lse[rows]),
            dout=check("dout", dout[rows]),
            dq=_native(dq[rows]),
            dk=_native(dk[rows]),
            dv=_native(dv[rows]),
            dsink=_native(None if sink is None else dsink),
            saved=_native(saved.detach()),
            terms=terms,
            dtable=_native(dtable if table_learns else None),
            stream=stream,
        )
    return dq, dk, dv, dsink, dtable


@_backward.register_fake
def _(*arguments: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = _BackwardArguments(*arguments, **named)
    return _new_gradients(
        given.q, given.k, given.v, given.sink, given.table if given.table_learns else None
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    given = _Arguments(*inputs)._asdict()
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    ctx.names = list(tensors)
    ctx.others = {name: value for name, value in given.items() if name not in tensors}
    ctx.table_learns = (
        "table" in tensors and ctx.needs_input_grad[_Arguments._fields.index("table")]
    )
    ctx.save_for_backward(*tensors.values(), *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _by_argument(**gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns a gradient for every argument of forward; None for those that are not given."""
    return tuple(gradients.get(name) for name in _Arguments._fields)


def _gradients(ctx: Any, dout: Tensor | None, *others: None) -> tuple[Tensor | None, ...]:
    if dout is None:
        return _by_argument()
    *tensors, out, lse, saved, made_by = ctx.saved_tensors
    given = _Arguments(**ctx.others, **dict(zip(ctx.names, tensors, strict=True)))
    arguments = _BackwardArguments(
        dout=dout,
        q=given.q,
        k=given.k,
        v=given.v,
        sink=given.sink,
        out=out,
        lse=lse,
        saved=saved,
        made_by=made_by,
        plan=given.plan,
        mask=given.mask,
        slopes=given.slopes,
        table=given.table,
        buckets=given.buckets,
        first_offset=given.first_offset,
        dropout=given.dropout,
        seed=given.seed,
        table_learns=ctx.table_learns,
    )
    dq, dk, dv, dsink, dtable = _backward(*arguments)
    table = given.table if ctx.table_learns else None
    return _by_argument(
        q=dq,
        k=dk,
        v=dv,
        sink=None if given.sink is None else dsink,
        table=None if table is None else dtable.to(table.device, table.dtype),
    )


_forward.register_autograd(_gradients, setup_context=_setup)


def _no_second_gradients(ctx: Any, *gradients: Any) -> NoReturn:
    raise NotImplementedError(
        "contextile.torch.attention: gradients of gradients are not supported"
    )


_backward.register_autograd(_no_second_gradients)


def _refuse_forward_mode(*tensors: Tensor | None) -> None:
    """Raises on dual numbers, whose tangents do not reach an operator and would be lost."""
    if torch.compiler.is_compiling():
        return
    if _forward_ad._current_level < 0:  # noqa: SLF001  # torch tells it nowhere else
        return
    if any(t is not None and _forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError(
            "contextile.torch.attention: forward-mode derivatives are not supported"
        )


def as_autocast(
    prepared: Prepared, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Casts q, k and v as autocast does if it is on. Raises unless its dtype is the plan's."""
    kind = q.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    if dtype != prepared.dtype:
        raise _core.InvalidArgument(
            f"autocast: expected the plan's {prepared.dtype}, found {dtype}"
        )
    return q.to(dtype), k.to(dtype), v.to(dtype)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    executor: Executor,
    plan: _core.Plan | Prepared | None = None,
    mask: str = "",
    sink: Tensor | None = None,
    bias: Bias | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | Tensor | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    executor: Executor,
    plan: _core.Plan | Prepared | None = None,
    mask: str = "",
    sink: Tensor | None = None,
    bias: Bias | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | Tensor | None = None,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    executor: Executor,
    plan: _core.Plan | Prepared | None = None,
    mask: str = "",
    sink: Tensor | None = None,
    bias: Bias | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | Tensor | None = None,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    executor: Executor,
    plan: _core.Plan | Prepared | None = None,
    mask: str = "",
    sink: Tensor | None = None,
    bias: Bias | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes exact attention of this rank's tokens to the whole batch, by a plan.

    Collective: every rank of the executor's group calls it, in the same order. Backward is
    collective, too, and its calls come in the same order on every rank.

    Query head h reads KV head h // (q_heads // kv_heads). A token attends only what the plan's mask
    lets it see; documents of the batch never see each other unless the mask says so.

    Parameters
    ----------
    q : Tensor [..., q_heads, head_dim]
        Queries of this rank's tokens.
    k : Tensor [..., kv_heads, head_dim]
        Keys of the same tokens.
    v : Tensor [..., kv_heads, value_dim]
        Values of the same tokens. The leading dimensions of q, k and v are equal and together hold
        this rank's tokens in the plan's local order (``plan.local_tokens(rank)``): [tokens],
        [1, tokens] or [tokens, 1]. A rank without tokens gives none, or a filler as ``local_batch``
        does, whose result is 0. All three have the plan's dtype (float32, bfloat16 or float16)
        and lie on the executor's device.
    executor : Executor
        Prepared for the plan of the batch.
    plan : Plan or Prepared, optional
        The batch that the call belongs to, if several are in flight: a plan that the executor still
        keeps, or what ``prepare`` returned for it. Compiled functions take only the latter.
        Default: the plan that was prepared last; where a checkpoint computes again, that of the
        first time.
    mask : str
        Name of one of the plan's masks. May be left out if the plan has only one. If it differs by
        head (``masks.by_head``), the call runs once for each group of heads.
    sink : float32 Tensor [q_heads], optional
        A logit per query head that takes part in the softmax and has no value, the same on every
        rank, which is checked on the CPU. Needed if and only if ``plan.shape.sink`` is true.
    bias : Alibi or RelativeBias, optional
        A bias of scores by position (``alibi``, ``relative_bias``, ``t5_bias``), added after a
        softcap. It is the same on every rank.
    dropout_p : float
        Probability of an attention weight to be dropped; the others are divided by ``1 -
        dropout_p``.
    dropout_seed : int or int64 Tensor, optional
        Needed with dropout: the same on every rank, another in every layer and step. Seed, head and
        tokens alone decide about a weight, so no plan changes a result.
    return_lse : bool
        Whether to return the log-sum-exp of the scores, too.

    Returns
    -------
    out : Tensor [..., q_heads, value_dim]
        In the dtype of q. Rows that attend nothing are 0.
    lse : float32 Tensor [..., q_heads]
        Only with ``return_lse``. Natural logarithm; -inf for rows that attend nothing. It has no
        gradient.

    Raises
    ------
    InvalidArgument
        The executor has no such plan, or the plan no such mask; a tensor has another shape, dtype
        or device than the plan needs; DTensors are sharded otherwise than by heads, or only some
        tensors are DTensors, or they have a bias or dropout, or the plan has not the heads of one
        rank; a mask that differs by head meets dropout or DTensors; the kernel has no bias or
        dropout; autocast is on with another dtype than the plan's; a module that is computing,
        unless it is compiled, was given tokens or positions that ``local_batch`` made for another
        plan. It is also raised if ranks meet in different calls, after which the group has ended.
    TransportError
        A peer died, failed or stalled longer than the executor's timeout. The group has ended; make
        a new executor.
    NotImplementedError
        Gradients of gradients, or forward-mode derivatives.

    Notes
    -----
    Backward returns the exact gradients of q, k and v for this rank's tokens, complete over the
    batch: nothing is left to sum. The gradients of ``sink`` and of a bias table are this rank's
    share; sum them over the group, like that of any parameter that all ranks hold.

    Tensors may be DTensors, all on one mesh: sharded by heads over some of its dimensions, evenly
    and alike, and replicated over the others. The plan then has the heads of one rank, the
    executor's group has the ranks that hold the same heads, and out and lse are sharded as q is.

    Under ``torch.autocast`` q, k and v are cast as for ``scaled_dot_product_attention``.

    Examples
    --------
    One rank in this process; under torchrun write ``Executor()`` and
    ``cluster=ct.Cluster.from_torch()``:

    >>> import contextile as ct
    >>> import torch
    >>> from contextile.torch import Executor, attention
    >>> executor = Executor(ct.inproc_group(1)[0])
    >>> plan = ct.plan([60, 40], mask="causal", cluster="local:1x1", strategy="zigzag",
    ...                heads=(4, 2), head_dim=32, dtype="f32")
    >>> prepared = executor.prepare(plan)
    >>> tokens = plan.num_local_tokens(executor.rank)
    >>> q = torch.randn(tokens, 4, 32, requires_grad=True)
    >>> k, v = torch.randn(2, tokens, 2, 32)
    >>> out = attention(q, k, v, executor=executor)
    >>> out.shape
    torch.Size([100, 4, 32])
    >>> out.sum().backward()
    >>> q.grad.shape
    torch.Size([100, 4, 32])
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise _core.InvalidArgument(
                f"attention: expected a Tensor as {name}, found {type(tensor).__name__}"
            )
        if tensor.dim() < 3:
            raise _core.InvalidArgument(
                f"attention: expected {name} [..., tokens, heads, dim], found {list(tensor.shape)}"
            )
    if sink is not None and not (isinstance(sink, Tensor) and sink.dtype == torch.float32):
        found = sink.dtype if isinstance(sink, Tensor) else type(sink).__name__
        raise _core.InvalidArgument(f"attention: expected a float32 Tensor as sink, found {found}")
    if not isinstance(executor, Executor):
        raise _core.InvalidArgument(
            f"attention: expected an Executor, found {type(executor).__name__}"
        )
    terms = terms_of(bias, dropout_p, dropout_seed)
    _refuse_forward_mode(q, k, v, sink, terms.table)
    if not torch.compiler.is_compiling() and has_dtensors(q, k, v, sink):
        check_dtensors(q, k, v, sink)
        if terms.has_any:
            raise _core.InvalidArgument(
                "attention: expected no bias and no dropout with DTensors, found "
                + ("dropout" if bias is None else "a bias")
            )
    prepared = executor.prepared_of(plan)
    if bias is not None and not torch.compiler.is_compiling():
        check_known(bias, prepared.longest_document)
    if terms.has_any and executor.gpu is not None:
        raise _core.InvalidArgument(
            "attention: expected no bias and no dropout on a GPU, whose kernels (cuda:*) have "
            "neither, found " + ("dropout" if bias is None else "a bias")
        )
    if not torch.compiler.is_compiling():
        check_batch(prepared.plans)
    if mask in prepared.head_groups:
        attend = functools.partial(attention, executor=executor, plan=prepared, return_lse=True)
        out, lse = attend_by_head(attend, prepared, mask, (q, k, v), sink, bias, dropout_p)
        return (out, lse) if return_lse else out
    number, index, saved_bytes = prepared.call_of(mask)
    if num_sharers(q) > 1:
        check_heads_of_rank((q.shape[-2], k.shape[-2]), prepared.rules[mask].heads, num_sharers(q))
    q, k, v = as_autocast(prepared, q, k, v)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dtype != prepared.dtype:
            raise _core.InvalidArgument(
                f"attention: expected {name} of {prepared.dtype}, as the plan, found {tensor.dtype}"
            )
    leading = q.shape[:-2]
    if leading != k.shape[:-2] or leading != v.shape[:-2]:
        raise _core.InvalidArgument(
            f"attention: expected q, k and v of the same tokens, found {list(q.shape)}, "
            f"{list(k.shape)} and {list(v.shape)}"
        )
    arguments = _Arguments(
        q=q.reshape(-1, *q.shape[-2:]),
        k=k.reshape(-1, *k.shape[-2:]),
        v=v.reshape(-1, *v.shape[-2:]),
        sink=sink,
        plan=number,
        mask=index,
        saved_bytes=saved_bytes,
        slopes=terms.slopes,
        table=terms.table,
        buckets=terms.buckets,
        first_offset=terms.first_offset,
        dropout=terms.dropout,
        seed=terms.seed,
    )
    flat: tuple[Tensor, ...] = torch.ops.contextile.attention(*arguments)
    out, lse, _, _ = flat
    out = out.reshape(*leading, *out.shape[-2:])
    if return_lse:
        return out, lse.reshape(*leading, lse.shape[-1])
    return out
