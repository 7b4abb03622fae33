"""Calls of attention that are in flight while other work runs, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._attention.operators import as_autocast
from contextile.torch._batch.untyped import not_compiled
from contextile.torch._execute.executor import Executor, Prepared
from contextile.torch._pool.pool import Part, Pool, PooledBatch

# A call has three steps. `begin` sends its inputs and computes what is local, `advance` computes
# what came and sends results, `end` adds up the results that came.
#
# Each step is an operation of autograd, and a token joins them. Autograd goes through operations in
# the reverse of the order in which they ran. So backward begins in `end`, advances in `advance` and
# ends in `begin`. Whatever ran between two steps of forward runs between two steps of backward.


class CallTimes(NamedTuple):
    """Seconds of calls on this rank, measured.

    Attributes
    ----------
    calls : int
        Number of calls.
    attention_s : float
        Inside the kernel.
    exposed_s : float
        Waiting for transfers.
    sent_bytes : int
    """

    calls: int = 0
    attention_s: float = 0.0
    exposed_s: float = 0.0
    sent_bytes: int = 0


class Calls:
    """Begins calls of a pool's batches, with the batch that backward uses, and measures them."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.backward_batch: PooledBatch | None = None  # None: forward's
        self.times = {"forward": CallTimes(), "backward": CallTimes(), "idle": CallTimes()}

    @contextmanager
    def backward_by(self, batch: PooledBatch) -> Iterator[None]:
        """Makes backward use another batch's plans, which have the same rows on this rank."""
        before, self.backward_batch = self.backward_batch, batch
        try:
            yield
        finally:
            self.backward_batch = before

    def start(
        self,
        prepared: Prepared,
        direction: str,
        arrays: dict[str, Any],
        *,
        counted: str = "",
        number: int | None = None,
    ) -> _InFlight:
        """Begins a call with the number of a forward, whose backward it is; None: of its own."""
        executor = self.pool.executor
        rank = executor.rank_executor_of(prepared.number)
        begin = rank.begin_forward if direction == "forward" else rank.begin_backward
        arrays = {
            name: None if x is None else executor.check_tensor(name, x)
            for name, x in arrays.items()
        }
        number = executor.begin_call() if number is None else number
        return _InFlight(
            self, counted or direction, begin(mask=0, call=number, **arrays), arrays, number
        )

    def add(self, counted: str, stats: Any) -> None:
        times = self.times[counted]
        self.times[counted] = CallTimes(
            times.calls + 1,
            times.attention_s + stats.attention_s,
            times.exposed_s + stats.exposed_s,
            times.sent_bytes + stats.sent_bytes,
        )


class _InFlight:
    """A call that has begun, with the tensors that it reads and writes."""

    def __init__(
        self, calls: Calls, counted: str, pending: Any, arrays: dict[str, Any], number: int
    ) -> None:
        self._calls = calls
        self._counted = counted
        self._pending = pending
        self.arrays = arrays
        self.number = number

    def advance(self) -> None:
        self._pending.advance()

    def finish(self) -> dict[str, Any]:
        self._calls.add(self._counted, self._pending.finish())
        return self.arrays


class _Attention:
    """One attention of one nano-batch: what its steps share."""

    def __init__(self, calls: Calls, part: Part, index: int) -> None:
        self.calls = calls
        self.part = part
        self.index = index  # of the nano-batch
        self.forward: _InFlight | None = None
        self.number: int | None = None  # of the forward
        self.backward: _InFlight | None = None
        self.inputs: tuple[Tensor, Tensor, Tensor] | None = None
        self.part_of_backward = part

    def begin_forward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        part = self.part
        saved = _saved_bytes(part.prepared, q)
        out = q.new_empty((len(k), q.shape[1], v.shape[2]))
        lse = q.new_empty((len(k), q.shape[1]), dtype=torch.float32)
        self.inputs = (q, k, v)
        self.forward = self.calls.start(
            part.prepared,
            "forward",
            {
                "q": part.local_of(q),
                "k": part.local_of(k),
                "v": part.local_of(v),
                "out": out,
                "lse": lse,
                "saved": saved,
            },
        )

    def end_forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns out and lse of the own rows, and the bytes that forward keeps."""
        assert self.forward is not None
        arrays = self.forward.finish()
        self.number = self.forward.number
        self.forward = None
        kept = self.part.num_kept
        return (
            self.part.rows_of(arrays["out"])[kept:],
            self.part.rows_of(arrays["lse"])[kept:],
            arrays["saved"],
        )

    def begin_backward(self, tensors: tuple[Tensor, ...], dout: Tensor) -> None:
        q, k, v, out, lse, saved = tensors
        batch = self.calls.backward_batch
        part = self.part if batch is None else batch.parts[self.index]
        if part is not self.part:
            _check_same_rows(self.part, part, saved, self.calls.pool.executor)
            saved = _saved_bytes(part.prepared, q)
        local = {
            name: part.local_of(x)
            for name, x in (
                ("q", q),
                ("k", k),
                ("v", v),
                ("out", out),
                ("lse", lse),
                ("dout", dout),
            )
        }
        gradients = {
            "dq": torch.empty_like(local["q"]),
            "dk": torch.empty_like(local["k"]),
            "dv": torch.empty_like(local["v"]),
        }
        self.part_of_backward = part
        # Ranks that serve a pipeline's backward may have made no such forward.
        number = self.number if batch is None else None
        self.backward = self.calls.start(
            part.prepared, "backward", {**local, **gradients, "saved": saved}, number=number
        )

    def end_backward(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns gradients of the own rows of q, and of all rows of k and v."""
        assert self.backward is not None
        arrays = self.backward.finish()
        self.backward = None
        part = self.part_of_backward
        dq, dk, dv = (part.rows_of(arrays[name]) for name in ("dq", "dk", "dv"))
        return dq[part.num_kept :], dk, dv


def _saved_bytes(prepared: Prepared, like: Tensor) -> Tensor:
    return like.new_empty((prepared.call_of("")[2],), dtype=torch.uint8)


def _check_same_rows(forward: Part, backward: Part, saved: Tensor, executor: Executor) -> None:
    if (forward.num_kept, forward.num_rows) == (
        backward.num_kept,
        backward.num_rows,
    ) and saved.numel() == 0:
        return
    problem = (
        f"pool: expected backward by a plan of the same {forward.num_rows} rows, after a forward "
        f"that kept nothing (distca with resend=on), found {backward.num_rows} rows and "
        f"{saved.numel()} bytes kept"
    )
    executor.transport.abort(problem)
    raise _core.InvalidArgument(problem)


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.call = call
        call.begin_forward(q.detach(), k.detach(), v.detach())
        return q.new_empty((0,))

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return None, *ctx.call.end_backward()


class _Advance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Attention, token: Tensor) -> Tensor:
        ctx.call = call
        assert call.forward is not None
        call.forward.advance()
        return token.new_empty((0,))

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> Any:
        ctx.call.backward.advance()
        return None, token


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Attention, token: Tensor) -> Tensor:
        out, lse, saved = call.end_forward()
        assert call.inputs is not None
        ctx.call = call
        # Saved, not kept in the call: checkpoints drop what is saved, and make it again.
        ctx.save_for_backward(*call.inputs, out, lse, saved)
        call.inputs = None
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        ctx.call.begin_backward(ctx.saved_tensors, dout)
        return None, dout.new_zeros((0,))


class NanoBatchCall:
    """Attention of one nano-batch in one layer, in three steps."""

    def __init__(self, calls: Calls, batch: PooledBatch, index: int) -> None:
        self._attention = _Attention(calls, batch.parts[index], index)
        self._token: Tensor | None = None

    def begin(self, q: Tensor, k: Tensor, v: Tensor, earlier: tuple[Tensor, Tensor] | None) -> None:
        """Begins with this rank's rows; `earlier` are keys and values of earlier nano-batches."""
        part = self._attention.part
        q, k, v = as_autocast(part.prepared, q, k, v)
        if len(q) != part.num_rows or len(k) != part.num_rows or len(v) != part.num_rows:
            raise _core.InvalidArgument(
                f"pool: expected q, k and v of {part.num_rows} rows, found {len(q)}, {len(k)} and "
                f"{len(v)}"
            )
        if part.earlier is not None:
            assert earlier is not None
            k = torch.cat([earlier[0].to(k.dtype).index_select(0, part.earlier), k])
            v = torch.cat([earlier[1].to(v.dtype).index_select(0, part.earlier), v])
        self._token = _Begin.apply(self._attention, q, k, v)

    def advance(self) -> None:
        self._token = _Advance.apply(self._attention, self._token)

    def end(self) -> Tensor:
        out: Tensor = _End.apply(self._attention, self._token)
        self._token = None
        return out


def serve(calls: Calls, batch: PooledBatch, num_layers: int, direction: str) -> None:
    """Takes part in the attention of others in the order of ``ping_pong``, with no tokens here.

    Collective with ranks that run ``ping_pong``, or backward of it.
    """
    parts = batch.parts if direction == "forward" else batch.parts[::-1]

    def begun(part: Part) -> _InFlight:
        return calls.start(
            part.prepared, direction, _no_tokens(part.prepared, direction), counted="idle"
        )

    in_flight = [begun(part) for part in parts]
    for layer in range(num_layers):
        for call in in_flight:
            call.advance()
        for i, part in enumerate(parts):
            in_flight[i].finish()
            if layer + 1 < num_layers:
                in_flight[i] = begun(part)


def _no_tokens(prepared: Prepared, direction: str) -> dict[str, Any]:
    (q_heads, kv_heads), (dim, value_dim) = prepared.rules[""].heads, prepared.rules[""].dims
    q, k, v = (
        torch.empty((0, *shape), dtype=prepared.dtype)
        for shape in ((q_heads, dim), (kv_heads, dim), (kv_heads, value_dim))
    )
    out, lse = q.new_empty((0, q_heads, value_dim)), torch.empty((0, q_heads))
    arrays = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "saved": _saved_bytes(prepared, q)}
    if direction == "backward":
        arrays |= {"dout": out.clone(), "dq": q.clone(), "dk": k.clone(), "dv": v.clone()}
    return arrays


# Returns q, k and v; and x of the next layer from attention's output and x.
Pre = Callable[..., tuple[Tensor, Tensor, Tensor]]
Post = Callable[..., Tensor]


@not_compiled  # the layers' methods may be compiled; the order of steps is not
def ping_pong(
    calls: Calls,
    batch: PooledBatch,
    pres: list[Pre],
    posts: list[Post],
    xs: list[Tensor],
    arguments: list[tuple[Any, ...]],
) -> list[Tensor]:
    """Runs layers over nano-batches that alternate, one's transfers under another's work."""
    num_nano = len(batch.parts)
    in_flight: list[NanoBatchCall] = []
    keys: list[tuple[Tensor, Tensor] | None] = [None] * num_nano

    def begin(layer: int, j: int) -> NanoBatchCall:
        attended = pres[layer](xs[j], *arguments[j])
        if (
            not isinstance(attended, (tuple, list))
            or len(attended) != 3
            or not all(map(torch.is_tensor, attended))
        ):
            raise _core.InvalidArgument(
                f"ping-pong, layer {layer}: expected pre_attention to return the tensors q, k and "
                f"v, found {type(attended).__name__}"
            )
        q, k, v = attended
        keys[j] = (k, v)
        call = NanoBatchCall(calls, batch, j)
        # A document that is cut has its first rows in the first nano-batch, whose keys of this
        # layer are there already.
        call.begin(q, k, v, keys[0] if j > 0 else None)
        return call

    in_flight = [begin(0, j) for j in range(num_nano)]
    for layer in range(len(pres)):
        for call in in_flight:
            call.advance()
        for j in range(num_nano):
            attended = in_flight[j].end()
            rows = len(xs[j])
            xs[j] = posts[layer](attended, xs[j], *arguments[j])
            if not isinstance(xs[j], Tensor) or xs[j].dim() == 0 or len(xs[j]) != rows:
                found = tuple(xs[j].shape) if isinstance(xs[j], Tensor) else type(xs[j]).__name__
                raise _core.InvalidArgument(
                    f"ping-pong, layer {layer}: expected post_attention to return a tensor of "
                    f"{rows} rows, found {found}"
                )
            if layer + 1 < len(pres):
                in_flight[j] = begin(layer + 1, j)
    return xs
