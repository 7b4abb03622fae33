"""Encoders and decoders of one batch: attention between tokens of two kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contextile import _checks, _core
from contextile.torch._attention.bias import Bias
from contextile.torch._attention.operators import attention
from contextile.torch._batch.layout import tensor_of
from contextile.torch._execute.executor import Executor, Prepared


class Sides:
    """The sources and the targets among a rank's tokens of a batch of pairs.

    Not collective. The plan is one for ``contextile.masks.encoder_decoder``.

    Parameters
    ----------
    source_lengths, target_lengths : sequence of int
        As for ``masks.encoder_decoder``.
    plan : Plan
        The plan of the batch, or the rank's slice.
    rank : int
        The rank.

    Attributes
    ----------
    source_rows, target_rows : int64 Tensor
        Rows of this rank's sources and targets in the plan's local order.
    source_tokens, target_tokens : int64 Tensor
        Their numbers among all sources, and among all targets, of the batch, end to end.
    source_positions, target_positions : int64 Tensor
        Their positions in their source, or target.

    Raises
    ------
    InvalidArgument
        The plan is one of other lengths, of sources or of targets.

    Examples
    --------
    >>> import contextile as ct
    >>> from contextile.torch import Sides
    >>> plan = ct.plan(**ct.masks.encoder_decoder([3, 2], [2, 1]), cluster="local:1x1",
    ...                strategy="zigzag", heads=4, head_dim=32)
    >>> sides = Sides([3, 2], [2, 1], plan=plan, rank=0)
    >>> sides.source_rows.tolist(), sides.target_positions.tolist()
    ([0, 1, 2, 5, 6], [0, 1, 0])
    """

    def __init__(
        self,
        source_lengths: Sequence[int],
        target_lengths: Sequence[int],
        *,
        plan: _core.Plan,
        rank: int,
    ) -> None:
        _checks.plan("sides, plan", plan)
        _checks.whole("sides, rank", rank)
        source_lengths = _checks.lengths("sides, source_lengths", source_lengths)
        target_lengths = _checks.lengths("sides, target_lengths", target_lengths)
        if len(source_lengths) != len(target_lengths):
            raise _core.InvalidArgument(
                f"sides: expected as many targets as sources, found {len(source_lengths)} sources "
                f"and {len(target_lengths)} targets"
            )
        lengths = [
            source + target for source, target in zip(source_lengths, target_lengths, strict=True)
        ]
        found = [end - begin for begin, end in plan.sequences]
        if lengths != found:
            raise _core.InvalidArgument(
                f"sides: expected pairs of {found[:8]} tokens, as the plan's, found {lengths[:8]}"
            )
        sources, both = torch.tensor(list(source_lengths)), torch.tensor(lengths)
        position = torch.arange(sum(lengths)) - (both.cumsum(0) - both).repeat_interleave(both)
        is_source = position < sources.repeat_interleave(both)
        local = torch.from_numpy(plan.local_tokens(rank))
        self.source_rows = is_source[local].nonzero()[:, 0]
        self.target_rows = (~is_source[local]).nonzero()[:, 0]
        source, target = local[self.source_rows], local[self.target_rows]
        self.source_tokens = (is_source.cumsum(0) - 1)[source]
        self.target_tokens = ((~is_source).cumsum(0) - 1)[target]
        self.source_positions = position[source]
        self.target_positions = (position - sources.repeat_interleave(both))[target]
        self.num_tokens = len(local)
        self._plan, self._rank = plan.digest, rank
        self._sources, self._targets = sources, both - sources
        self.longest_source = int(sources.max())

        for name in ("encoder", "decoder", "cross") if plan.slice_of is None else ():
            mask = plan.mask(plan.mask_names.index(name)) if name in plan.mask_names else None
            if mask is not None and mask.num_pairs != self.pairs_of(name, mask):
                raise _core.InvalidArgument(
                    "sides: expected the lengths of the plan's sources and targets, found "
                    f"{self.pairs_of(name, mask)} pairs for mask '{name}', which has "
                    f"{mask.num_pairs}"
                )

    def pairs_of(self, name: str, mask: Any) -> int:
        """Returns the number of attended pairs of a mask of these sides, as far as it reaches."""
        sources, targets = self._sources, self._targets
        if name == "encoder":
            reach = torch.minimum(sources - 1, torch.tensor((mask.offsets or (0, 0))[1]))
            return int((sources * (2 * reach + 1) - reach * (reach + 1)).sum())
        return int((targets * (targets + 1) // 2 if name == "decoder" else sources * targets).sum())

    def check_plan(self, plan: _core.Plan, rank: int) -> None:
        """Raises unless these are the sides of a plan on a rank."""
        if (plan.digest, rank) != (self._plan, self._rank):
            raise _core.InvalidArgument(
                "sides: expected those of the plan that the executor is prepared for, on rank "
                f"{rank}, found those of "
                + ("another plan" if plan.digest != self._plan else f"rank {self._rank}")
            )

    def rows_of(self, mask: str) -> tuple[Tensor, Tensor]:
        """Returns the rows of the queries and of the keys of a mask: encoder, decoder or cross."""
        sides = {
            "encoder": (self.source_rows, self.source_rows),
            "decoder": (self.target_rows, self.target_rows),
            "cross": (self.target_rows, self.source_rows),
        }
        if mask not in sides:
            raise _core.InvalidArgument(f"mask: expected one of {', '.join(sides)}, found '{mask}'")
        return sides[mask]


def cross_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sides: Sides,
    executor: Executor,
    plan: _core.Plan | Prepared | None = None,
    mask: str = "cross",
    bias: Bias | None = None,
) -> Tensor:
    """Computes exact attention from one side of a batch of pairs to a side, by a plan.

    Collective, as ``attention``. Targets attend sources, or with ``mask`` ``"encoder"`` or
    ``"decoder"``, one side itself.

    Parameters
    ----------
    q : Tensor [query tokens, q_heads, head_dim]
        Queries of this rank's targets; of its sources for ``mask="encoder"``.
    k : Tensor [key tokens, kv_heads, head_dim]
        Keys of this rank's sources; of its targets for ``mask="decoder"``.
    v : Tensor [key tokens, kv_heads, value_dim]
        Their values.
    sides : Sides
        Which of this rank's tokens are sources.
    executor, plan
        As for ``attention``.
    mask : str
        ``"cross"``, ``"encoder"`` or ``"decoder"``.
    bias : Alibi or RelativeBias, optional
        As for ``attention``, by positions in the side. ``"cross"`` has none, because its queries
        and keys count positions from beginnings of their own.

    Returns
    -------
    Tensor [query tokens, q_heads, value_dim]

    Raises
    ------
    InvalidArgument
        A tensor has another number of tokens than the side, there is a bias between two sides, or
        as ``attention`` does.

    Examples
    --------
    >>> import contextile as ct
    >>> import torch
    >>> from contextile.torch import Executor, Sides, cross_attention
    >>> plan = ct.plan(**ct.masks.encoder_decoder([60], [20]), cluster="local:1x1",
    ...                strategy="zigzag", heads=4, head_dim=32, dtype="f32")
    >>> executor = Executor(ct.inproc_group(1)[0])
    >>> prepared = executor.prepare(plan)
    >>> sides = Sides([60], [20], plan=plan, rank=0)
    >>> q, k, v = torch.randn(20, 4, 32), torch.randn(60, 4, 32), torch.randn(60, 4, 32)
    >>> cross_attention(q, k, v, sides=sides, executor=executor).shape
    torch.Size([20, 4, 32])
    """
    if not isinstance(sides, Sides):
        raise _core.InvalidArgument(f"cross_attention: expected Sides, found {sides!r:.80}")
    query_rows, key_rows = sides.rows_of(mask)
    if bias is not None and mask == "cross":
        raise _core.InvalidArgument(
            "bias: expected none with mask='cross', whose queries and keys count positions from "
            "beginnings of their own, found one"
        )
    prepared = executor.prepared_of(plan)
    sides.check_plan(prepared.mask_of(mask)[0], prepared.rank)
    for name, tensor, rows in (("q", q, query_rows), ("k", k, key_rows), ("v", v, key_rows)):
        if tensor_of(name, tensor).dim() != 3:
            raise _core.InvalidArgument(
                f"{name}: expected [tokens, heads, dim], found {list(tensor.shape)}"
            )
        if len(tensor) != len(rows):
            raise _core.InvalidArgument(
                f"{name}: expected {len(rows)} tokens of this rank, found {len(tensor)}"
            )

    def spread(tensor: Tensor, rows: Tensor) -> Tensor:
        whole = tensor.new_zeros((sides.num_tokens, *tensor.shape[1:]))
        return whole.index_copy(0, rows.to(tensor.device), tensor)

    spread_q, spread_k, spread_v = (
        spread(x, rows) for x, rows in ((q, query_rows), (k, key_rows), (v, key_rows))
    )
    out = attention(
        spread_q, spread_k, spread_v, executor=executor, plan=plan, mask=mask, bias=bias
    )
    return out[query_rows.to(q.device)]
