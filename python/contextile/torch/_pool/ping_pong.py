"""Layers over two nano-batches that alternate (DistCA, section 4.1)."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contextile import _checks, _core
from contextile.torch._execute.agreement import telling_peers
from contextile.torch._pool.pool import Pool, PooledBatch
from contextile.torch._pool.pooled_calls import Calls, CallTimes, ping_pong


def _modules_of(layers: Any) -> list[nn.Module]:
    is_list = hasattr(layers, "__iter__")
    found = list(layers) if is_list else [layers]
    for layer in found:
        if not is_list or not isinstance(layer, nn.Module):
            raise _core.InvalidArgument(
                "ping-pong: expected a list of layers, each an nn.Module, found "
                f"{type(layer).__name__}"
            )
    return found


class PingPong(nn.Module):
    """Runs layers over the two nano-batches of a pooled batch, which alternate.

    While the attention of one nano-batch has its transfers under way, the other's work outside
    attention runs: a layer's ``post_attention`` and the next layer's ``pre_attention``. Backward
    does the same in reverse. With a batch of one nano-batch, transfers hide under nothing.

    Forward and backward are collective over the pool: all ranks have equally many layers. A rank
    whose neighbourhood is idle runs the same code with no rows, and computes for others. If layers
    raise, the other ranks get a TransportError that names this one.

    Parameters
    ----------
    layers : iterable of nn.Module
        Layers with two methods that do not mix tokens:
        ``pre_attention(x, *arguments)`` returns q [rows, q_heads, head_dim], k and v;
        ``post_attention(attended, x, *arguments)`` returns the next layer's x, from attention's
        output [rows, q_heads, value_dim] and the x that the layer got.
    pool : Pool
        The pool of all ranks.
    checkpoint : bool
        Whether backward computes the work outside attention again instead of keeping its
        activations. Attention's inputs and outputs are kept, so that it communicates once. To
        compute attention again, too, put ``torch.utils.checkpoint`` around the whole module.

    Examples
    --------
    Under torchrun, on every rank::

        layers = PingPong(model.layers, pool)
        batch = pool.prepare(lengths)                        # of every replica's micro-batch
        x = model.embed(tokens[batch.rows.tokens])
        x = layers(x, batch.rows.positions, batch=batch)
    """

    def __init__(
        self, layers: Iterable[nn.Module], pool: Pool, *, checkpoint: bool = False
    ) -> None:
        super().__init__()
        if not isinstance(pool, Pool):
            raise _core.InvalidArgument(f"ping-pong: expected a Pool, found {pool!r:.80}")
        self.layers = nn.ModuleList(_modules_of(layers))
        if len(self.layers) == 0:
            raise _core.InvalidArgument("ping-pong: expected a layer, found none")
        for i, layer in enumerate(self.layers):
            missing = [
                name
                for name in ("pre_attention", "post_attention")
                if not callable(getattr(layer, name, None))
            ]
            if missing:
                raise _core.InvalidArgument(
                    f"ping-pong: expected pre_attention and post_attention of layer {i}, found no "
                    f"{' and no '.join(missing)}"
                )
        self.calls = Calls(pool)
        self._checkpoint = _checks.flag("ping-pong, checkpoint", checkpoint)

    @property
    def times(self) -> dict[str, CallTimes]:
        """Times of this rank's calls of attention so far: "forward" and "backward"."""
        return self.calls.times

    def forward(self, x: Tensor, *arguments: Any, batch: PooledBatch) -> Tensor:
        """Runs all layers. Collective.

        Parameters
        ----------
        x : Tensor [rows, hidden]
            Hidden states of ``batch.rows``; [0, hidden] on an idle rank.
        arguments
            Passed to the layers' methods. Tensors with a row for each of x's rows are cut with it.
        batch : PooledBatch
            From ``Pool.prepare``.

        Returns
        -------
        Tensor [rows, hidden]

        Raises
        ------
        InvalidArgument
            x has another number of rows, another pool prepared the batch, or ranks meet in
            different calls. After the first and the last, the group has ended.
        TransportError
            A peer died or stalled.
        """
        self.calls.pool.check_batch("ping-pong", batch)
        executor = self.calls.pool.executor
        if len(batch.parts) > executor.plans_prepared:
            raise _core.InvalidArgument(
                f"executor: expected plans_prepared of at least {len(batch.parts)}, as there are "
                f"nano-batches, found {executor.plans_prepared}"
            )
        with telling_peers(executor, "ping-pong"):
            return self._run(x, arguments, batch)

    def _run(self, x: Tensor, arguments: tuple[Any, ...], batch: PooledBatch) -> Tensor:
        num_rows = len(batch.rows.tokens)
        if not isinstance(x, Tensor) or x.dim() == 0 or len(x) != num_rows:
            found = (
                f"{len(x)} rows for {num_rows}"
                if isinstance(x, Tensor) and x.dim()
                else f"{x!r:.80}"
            )
            raise _core.InvalidArgument(
                f"ping-pong: expected x of this rank's rows of the batch, found {found}"
            )
        counts = list(batch.rows.counts)
        cut = [
            torch.split(a, counts)
            if isinstance(a, Tensor) and a.dim() > 0 and len(a) == len(x)
            else [a] * len(counts)
            for a in arguments
        ]
        nano_arguments = [tuple(a[j] for a in cut) for j in range(len(counts))]
        pres, posts = self._steps()
        return torch.cat(
            ping_pong(self.calls, batch, pres, posts, list(torch.split(x, counts)), nano_arguments)
        )

    def _steps(self) -> tuple[list[Any], list[Any]]:
        pres = [layer.pre_attention for layer in self.layers]
        posts = [layer.post_attention for layer in self.layers]
        if not self._checkpoint:
            return pres, posts
        again = functools.partial(checkpoint, use_reentrant=False)
        return [functools.partial(again, pre) for pre in pres], [
            functools.partial(again, post) for post in posts
        ]
