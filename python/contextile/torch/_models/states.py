"""Convolutions and recurrences over documents that lie in chunks on several ranks.

A chunk's first document may have begun on an earlier rank, and its last may go on. Convolutions
then read a tail of tokens of the ranks before. Recurrences are linear in their state: a rank
computes its chunk from a zero state, together with its transition, which says what becomes of the
state before it. Only the composition of transitions goes from rank to rank, and each rank adds its
correction locally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from contextile import _core
from contextile.torch._batch.layout import tensor_of
from contextile.torch._tokens.token_layout import Chunks


def _single(tensor: Tensor) -> Tensor:
    """Returns a tensor in fp32, or in fp64 if it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _no_rows(of: Tensor, *others: Tensor) -> Tensor:
    """Returns ``of`` without rows. Backward reaches all of them, so a rank whose chunk is empty
    takes part in the collectives behind them."""
    return of[:, :0] + sum(tensor[:, :0].sum() for tensor in others)


def _check_tokens(chunks: Chunks, name: str, tensor: Tensor, dim: int) -> None:
    if not isinstance(chunks, Chunks):
        raise _core.InvalidArgument(f"chunks: expected those of chunks_of, found {chunks!r:.80}")
    if tensor_of(name, tensor).dim() <= dim or not tensor.is_floating_point():
        raise _core.InvalidArgument(
            f"{name}: expected floating-point numbers with the chunk's tokens in dimension {dim}, "
            f"found {tensor.dtype} {list(tensor.shape)}"
        )
    if tensor.shape[0] != 1 or tensor.shape[dim] != chunks.num_tokens:
        raise _core.InvalidArgument(
            f"{name}: expected a batch of 1 with the chunk's {chunks.num_tokens} tokens in "
            f"dimension {dim}, found {list(tensor.shape)}"
        )


# ------------------------------------------------------------------------------------ convolutions


class _Tail(torch.autograd.Function):
    """Puts a tail of the ranks before in front of a chunk's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, chunks: Chunks, width: int) -> Tensor:
        ctx.chunks = chunks
        ctx.sends, ctx.gets = chunks.tails(width)
        parts = [rows[begin:end] for one in ctx.sends for begin, end in one]
        leaving = torch.cat([rows[:0], *parts])
        chunks.sent_bytes["states"] += leaving.numel() * leaving.element_size()
        counts = [sum(end - begin for begin, end in one) for one in ctx.sends]
        return torch.cat([chunks.peers.exchange("convolution", leaving, counts, ctx.gets), rows])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        tail = sum(ctx.gets)
        leaving, own = gradient[:tail], gradient[tail:].clone()
        ctx.chunks.sent_bytes["states"] += leaving.numel() * leaving.element_size()
        counts = [sum(end - begin for begin, end in one) for one in ctx.sends]
        received, at = (
            ctx.chunks.peers.exchange("convolution, backward", leaving, ctx.gets, counts),
            0,
        )
        for one in ctx.sends:
            for begin, end in one:
                own[begin:end] += received[at : at + end - begin]
                at += end - begin
        return own, None, None


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    chunks: Chunks,
    conv: Callable[..., Tensor] | None = None,
    **options: Any,
) -> Tensor:
    """Computes a causal depthwise convolution of documents in chunks. Collective; differentiable.

    Every document begins with zeros. A rank sends at most ``kernel - 1`` tokens to each rank that
    needs them.

    Parameters
    ----------
    x : Tensor [1, channels, tokens of the chunk]
        This rank's chunk (``Chunks.gather``).
    weight : Tensor [channels, kernel]
        One kernel per channel.
    bias : Tensor [channels], optional
        Added to the result.
    chunks : Chunks
        The chunks of the plan.
    conv : function, optional
        The convolution ``conv(x, weight, bias, **options)`` of one row of tokens, such as
        ``causal_conv1d_fn``. Default: PyTorch's.

    Returns
    -------
    Tensor [1, channels, tokens of the chunk]

    Raises
    ------
    InvalidArgument
        ``x`` has another number of tokens than the chunk.
    """
    _check_tokens(chunks, "x", x, 2)
    shapes: list[tuple[str, Tensor, list[int | str]]] = [("weight", weight, [x.shape[1], "kernel"])]
    if bias is not None:
        shapes.append(("bias", bias, [x.shape[1]]))
    for name, tensor, shape in shapes:
        is_shape = (
            tensor_of(name, tensor).dim() == len(shape)
            and tensor.shape[0] == x.shape[1]
            and tensor.shape[-1] > 0
        )
        if not is_shape or tensor.dtype != x.dtype:
            expected = ", ".join(map(str, shape))
            raise _core.InvalidArgument(
                f"{name}: expected {x.dtype} [{expected}], as x, found {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
    width = weight.shape[-1] - 1
    rows = x[0].t()
    if width > 0 and chunks.needs_tails(width):
        rows = _Tail.apply(rows, chunks, width)
    # Zeros between documents make one row of them, which one call computes.
    spread, kept = chunks.spread(width, x.device)
    rows = torch.cat([rows, rows.new_zeros((1, rows.shape[1]))]).index_select(0, spread)
    one_row = (conv or _conv)(rows.t()[None], weight, bias, **options)
    return one_row.index_select(2, kept)


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    padded = functional.pad(x, (weight.shape[-1] - 1, 0))
    return functional.conv1d(padded, weight[:, None], bias, groups=weight.shape[0])


# ------------------------------------------------------------------------------------------ states


def _becomes(transition: Tensor, state: Tensor) -> Tensor:
    """Returns what a transition, a matrix or one factor per head, makes of a state."""
    return transition @ state if transition.shape[-1] > 1 else transition * state


class _Pass(torch.autograd.Function):
    """Passes states along the ranks of documents, and their gradients back.

    It takes a chunk's output, which it returns unchanged, so that backward runs on every rank, even
    if no loss of this rank depends on the state that it sends.
    """

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        last: Tensor | None,
        transition: Tensor | None,
        like: Tensor,
        chunks: Chunks,
    ) -> tuple[Tensor, Tensor]:
        ctx.chunks = chunks
        state = torch.zeros_like(like)
        if chunks.previous is not None:
            chunks.peers.receive("state", state, chunks.previous)
        if chunks.following is not None:
            assert last is not None
            sent = last if transition is None else last + _becomes(transition, state)
            chunks.peers.send("state", sent, chunks.following)
            chunks.sent_bytes["states"] += sent.numel() * sent.element_size()
        ctx.save_for_backward(transition, state)
        return out.view_as(out), state

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, dstate: Tensor) -> tuple[Tensor | None, ...]:
        transition, state = ctx.saved_tensors
        chunks, dlast, dtransition = ctx.chunks, None, None
        if chunks.following is not None:
            dlast = torch.empty_like(state)
            chunks.peers.receive("state, backward", dlast, chunks.following)
            if transition is not None:
                with torch.enable_grad():
                    leaves = transition.detach().requires_grad_(), state.detach().requires_grad_()
                    sent = _becomes(*leaves)
                dtransition, more = torch.autograd.grad(sent, leaves, dlast)
                dstate = dstate + more
        if chunks.previous is not None:
            chunks.peers.send("state, backward", dstate, chunks.previous)
            chunks.sent_bytes["states"] += dstate.numel() * dstate.element_size()
        return dout, dlast, dtransition, None, None


def _joined(
    chunks: Chunks,
    outs: list[Tensor],
    first: tuple[Tensor, Tensor] | None,
    last: Tensor | None,
    like: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Joins the outputs of parts and passes states. Returns them with the state before the chunk.

    ``first`` has the first part's response to the state before it and its transition, ``last`` the
    state behind the last part, both only if the documents come from the rank before or go on.
    """
    out = torch.cat(outs, dim=1)
    if chunks.previous is None and chunks.following is None:
        return out, None
    passes_through = first is not None and last is not None and len(chunks.parts) == 1
    transition = first[1] if passes_through and first is not None else None
    passed: tuple[Tensor, Tensor] = _Pass.apply(out, last, transition, like, chunks)
    return passed


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    gates: dict[str, Tensor],
    chunks: Chunks,
    rule: Callable[..., tuple[Tensor, Tensor | None]],
    **options: Any,
) -> Tensor:
    """Computes linear attention over documents in chunks. Collective; differentiable.

    The state is a matrix per head, [key_dim, value_dim], to which every token applies a linear map
    of the key dimension before it adds its own value: the gated delta rule (Qwen3-Next), KDA (Kimi
    Linear), gated linear attention. The transition of a chunk is then the rule itself, started from
    the identity with values of 0, so the rule is called once with key_dim more columns of values. A
    rank sends heads * key_dim * value_dim * 4 bytes forward, and as many backward.

    Parameters
    ----------
    query, key : Tensor [1, tokens of the chunk, heads, key_dim]
        Queries and keys; the number of value heads is a multiple of theirs.
    value : Tensor [1, tokens of the chunk, value_heads, value_dim]
        Values.
    gates : dict of Tensors [1, tokens of the chunk, ...]
        Further arguments of the rule that have a row per token: ``{"g": g, "beta": beta}``.
    chunks : Chunks
        The chunks of the plan.
    rule : function
        ``rule(query, key, value, **gates, initial_state=, output_final_state=, **options)`` of one
        document, which returns its output and its last state, such as ``chunk_gated_delta_rule``.
        It is called with fp32 tensors.
    **options
        Passed on to the rule.

    Returns
    -------
    Tensor [1, tokens of the chunk, value_heads, value_dim]
        In the dtype of ``query``.

    Raises
    ------
    InvalidArgument
        A tensor has another number of tokens than the chunk.
    """
    if not isinstance(gates, Mapping) or not callable(rule):
        raise _core.InvalidArgument(
            "linear_attention: expected a dict of gates and a function as rule, found "
            f"{gates!r:.40} and {rule!r:.40}"
        )
    given = {"query": query, "key": key, "value": value, **gates}
    for name, tensor in given.items():
        _check_tokens(chunks, name, tensor, 1)
    fits = query.dim() == 4 and query.shape == key.shape and value.dim() == 4 and key.shape[2] > 0
    if not fits or value.shape[2] % key.shape[2] != 0:
        raise _core.InvalidArgument(
            "linear_attention: expected query and key [1, tokens, heads, dim] of one shape, and "
            f"value with a multiple of their heads, found {list(query.shape)}, {list(key.shape)} "
            f"and {list(value.shape)}"
        )
    dtype, heads, key_dim, value_dim = query.dtype, value.shape[2], key.shape[3], value.shape[3]
    with torch.autocast(query.device.type, enabled=False):
        given = {name: _single(tensor) for name, tensor in given.items()}
        outs, first, last = [_no_rows(given["value"], *given.values())], None, None
        for number, part in enumerate(chunks.parts):
            rows = {name: tensor[:, part.begin : part.end] for name, tensor in given.items()}
            comes = number == 0 and chunks.previous is not None
            goes = number == len(chunks.parts) - 1 and chunks.following is not None
            start = None
            if comes:
                start = functional.pad(
                    torch.eye(key_dim, dtype=given["key"].dtype, device=query.device),
                    (value_dim, 0),
                )
                start = start.expand(1, heads, -1, -1).contiguous()
                rows["value"] = functional.pad(rows["value"], (0, key_dim))
            out, state = rule(**rows, initial_state=start, output_final_state=goes, **options)
            if comes:
                out, response = torch.split(out, [value_dim, key_dim], dim=3)
                first = response, response if state is None else state[..., value_dim:]
                state = None if state is None else state[..., :value_dim]
            outs.append(out)
            last = state if goes else None
        like = given["value"].new_empty((1, heads, key_dim, value_dim))
        joined, before = _joined(chunks, outs, first, last, like)
        if first is not None and before is not None:
            more = torch.einsum("blhk,bhkv->blhv", first[0], before)
            joined = torch.cat(
                [joined[:, : more.shape[1]] + more, joined[:, more.shape[1] :]], dim=1
            )
    return joined.to(dtype)


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    chunks: Chunks,
    rule: Callable[..., Any],
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **options: Any,
) -> Tensor:
    """Computes Mamba-2's scan (SSD) over documents in chunks. Collective; differentiable.

    A chunk's transition is one decay per head. A rank sends heads * head_dim * state_dim * 4 bytes
    forward, and as many backward.

    Parameters
    ----------
    x : Tensor [1, tokens of the chunk, heads, head_dim]
        Inputs.
    dt : Tensor [1, tokens of the chunk, heads]
        Time steps, to which ``dt_bias``, softplus and ``dt_limit`` are applied.
    A : Tensor [heads]
        Negative rates of decay.
    B, C : Tensor [1, tokens of the chunk, groups, state_dim]
        Input and output maps; the number of heads is a multiple of groups.
    chunks : Chunks
        The chunks of the plan.
    rule : function
        ``rule(x, dt, A, B, C, dt_bias=, dt_softplus=, dt_limit=, return_final_states=, **options)``
        of one document, such as ``mamba_chunk_scan_combined``.
    **options
        Passed on to the rule.

    Returns
    -------
    Tensor [1, tokens of the chunk, heads, head_dim]
        In the dtype that the rule returns.

    Raises
    ------
    InvalidArgument
        A tensor has another number of tokens than the chunk.
    """
    for name, tensor in {"x": x, "dt": dt, "B": B, "C": C}.items():
        _check_tokens(chunks, name, tensor, 1)
    fits = (
        x.dim() == 4
        and dt.shape == x.shape[:3]
        and B.dim() == 4
        and B.shape == C.shape
        and A.shape == x.shape[2:3]
    )
    if not fits or x.shape[2] % max(B.shape[2], 1) != 0:
        raise _core.InvalidArgument(
            "ssd_scan: expected x [1, tokens, heads, head_dim], dt [1, tokens, heads], A [heads], "
            f"B and C [1, tokens, groups, state_dim], found {list(x.shape)}, {list(dt.shape)}, "
            f"{list(A.shape)}, {list(B.shape)} and {list(C.shape)}"
        )
    options.update(dt_bias=dt_bias, dt_softplus=dt_softplus, dt_limit=dt_limit)
    heads, head_dim, state_dim = x.shape[2], x.shape[3], B.shape[3]
    outs, last = [_no_rows(x, dt, B, C)], None
    for number, part in enumerate(chunks.parts):
        rows = [tensor[:, part.begin : part.end] for tensor in (x, dt, B, C)]
        goes = number == len(chunks.parts) - 1 and chunks.following is not None
        out = rule(rows[0], rows[1], A, rows[2], rows[3], return_final_states=goes, **options)
        if goes:
            out, last = out
        outs.append(out)
    with torch.autocast(x.device.type, enabled=False):
        first = None
        if chunks.previous is not None:
            end = chunks.parts[0].end
            decay = _decay(dt[:, :end], A, dt_bias, dt_softplus, dt_limit)
            response = (
                _single(C[:, :end]).repeat_interleave(heads // C.shape[2], dim=2) * decay[..., None]
            )
            first = response, decay[:, -1, :, None, None]
        outs = [outs[0].to(outs[-1].dtype), *outs[1:]]
        like = _single(x.new_empty((1, heads, head_dim, state_dim)))
        joined, before = _joined(
            chunks, outs, first, None if last is None else last.to(like.dtype), like
        )
        if first is not None and before is not None:
            more = torch.einsum("blhn,bhpn->blhp", first[0], before).to(joined.dtype)
            joined = torch.cat(
                [joined[:, : more.shape[1]] + more, joined[:, more.shape[1] :]], dim=1
            )
    return joined


def _decay(
    dt: Tensor, A: Tensor, dt_bias: Tensor | None, softplus: bool, limit: tuple[float, float]
) -> Tensor:
    """Returns the decay from the beginning to each token, [1, tokens, heads] in fp32."""
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if softplus:
        dt = functional.softplus(dt)
    return (dt.clamp(min=limit[0], max=limit[1]) * _single(A)).cumsum(dim=1).exp()
