"""One plan for the attention of several micro-batches, over the ranks of all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contextile import _checks, _core
from contextile._planning import AnyStrategy, cluster_of, lengths_of, make_workload, rule_of
from contextile._planning import plan as make_plan
from contextile.torch._attention.operators import attention
from contextile.torch._execute.agreement import agreed, give_up, telling_peers
from contextile.torch._execute.executor import Executor, Prepared
from contextile.torch._pool.pool_layout import (
    Layout,
    Lengths,
    Rows,
    check_nano_batches,
    micro_batches_of,
    no_rows,
)
from contextile.torch._ranks import messages


class _Section(NamedTuple):
    """The place of a micro-batch in the batch of a pool."""

    begin: int  # pooled token
    tokens: np.ndarray  # index in the micro-batch, by pooled token
    is_query: np.ndarray  # False for keys that an earlier nano-batch computed


class _Pooled(NamedTuple):
    """One nano-batch of all micro-batches of a pool: a plan, and where micro-batches lie in it."""

    plan: _core.Plan
    sections: list[_Section | None]  # by neighbourhood


class Part:
    """One nano-batch as this rank's layers compute it.

    Rows of Q have the caller's order. Rows of K and V are first those of earlier nano-batches in
    documents that were cut (``earlier``: their places among the earlier rows), then the rank's own.
    ``to_local`` and ``from_local`` convert these to the plan's local order and back.
    """

    def __init__(
        self, prepared: Prepared, section: _Section | None, earlier: np.ndarray, own: np.ndarray
    ) -> None:
        self.prepared = prepared
        local = prepared.plan.local_tokens(prepared.rank)
        self.num_rows = len(own)
        if section is None:
            kept, order = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        else:
            of_local = section.tokens[local - section.begin]
            kept = np.sort(of_local[~section.is_query[local - section.begin]])
            canonical = np.concatenate([kept, own])
            by_token, by_local = np.argsort(canonical), np.argsort(of_local)
            if not np.array_equal(canonical[by_token], of_local[by_local]):
                raise _core.InvalidArgument(
                    f"pool, rows: expected this rank's {len(of_local) - len(kept)} rows of the "
                    f"micro-batch (rows_of), found {len(own)} rows, or others"
                )
            order = np.empty_like(by_token)
            order[by_local] = by_token  # the place in canonical order of every local row
        self.num_kept = len(kept)
        self.earlier = None if len(kept) == 0 else torch.from_numpy(_places_in(earlier, kept))
        plain = np.array_equal(order, np.arange(len(order)))
        self.to_local = None if plain else torch.from_numpy(order)
        self.from_local = None if plain else torch.from_numpy(np.argsort(order))

    def local_of(self, rows: Tensor) -> Tensor:
        """Returns rows in the plan's local order. Rows of earlier nano-batches are 0 if missing."""
        missing = self.num_kept + self.num_rows - rows.shape[0]
        if missing > 0:
            rows = torch.cat([rows.new_zeros((missing, *rows.shape[1:])), rows])
        return rows if self.to_local is None else rows.index_select(0, self.to_local)

    def rows_of(self, local: Tensor) -> Tensor:
        """Returns rows in the caller's order, those of earlier nano-batches first."""
        return local if self.from_local is None else local.index_select(0, self.from_local)


def _places_in(tokens: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    order = np.argsort(tokens)
    return order[np.searchsorted(tokens, wanted, sorter=order)]


class PooledBatch:
    """The micro-batches of a pool that run at the same time, prepared. Made by ``Pool.prepare``.

    Attributes
    ----------
    pool : Pool
        The pool that prepared it.
    rows : Rows
        This rank's tokens of its micro-batch; no tokens if its neighbourhood is idle.
    plans : tuple of Plan
        One for each nano-batch.
    parts : list of Part
        The nano-batches as this rank's layers compute them.
    """

    def __init__(self, pool: Pool, rows: Rows, parts: list[Part]) -> None:
        self.pool = pool
        self.rows = rows
        self.parts = parts
        self.plans = tuple(part.prepared.plan for part in parts)


class Pool:
    """Ranks that compute each other's attention, though each group of them has tokens of its own.

    The ranks of the executor are in neighbourhoods of equal size, side by side: those of a
    neighbourhood hold one micro-batch together, as a context-parallel group does. Neighbourhoods
    are data-parallel replicas, or pipeline stages. One plan balances the attention of all their
    micro-batches over all ranks (DistCA, section 4); tokens stay where they are.

    Parameters
    ----------
    executor : Executor
        An executor of all ranks of the pool, on the CPU.
    neighbourhoods : int
        Number of neighbourhoods; it divides the number of ranks.
    heads, head_dim, value_dim, dtype, scale, softcap
        As for ``contextile.plan``.
    mask : MaskSpec or str
        A rule for all documents of all layers.
    strategy
        As for ``contextile.plan``: one that takes a home layout. The default sends queries and keys
        again for backward, and keeps none of other ranks' tokens meanwhile.
    cluster : Cluster or str, optional
        The cluster of the pool. Default: its hosts (``Cluster.from_torch``).
    layout : str
        Rows of a micro-batch on the ranks of its neighbourhood: ``"contiguous"``, equal tokens in
        sequence, or ``"zigzag"``, as Megatron-LM deals them, for one nano-batch.
    plans_cached : int
        Number of plans that are cached.

    Raises
    ------
    InvalidArgument
        A size does not fit the executor, it is on a GPU, or an option is unknown.

    Examples
    --------
    >>> import contextile as ct
    >>> import torch
    >>> from contextile.torch import Executor, Pool, attention
    >>> pool = Pool(Executor(ct.inproc_group(1)[0]), neighbourhoods=1, heads=(4, 2), head_dim=32,
    ...             dtype="f32", cluster="local:1x1")
    >>> batch = pool.prepare([[60, 40]], nano_batches=1)
    >>> q, k, v = (torch.randn(len(batch.rows.tokens), heads, 32) for heads in (4, 2, 2))
    >>> attention(q, k, v, executor=pool.executor).shape
    torch.Size([100, 4, 32])
    """

    def __init__(
        self,
        executor: Executor,
        *,
        neighbourhoods: int,
        heads: int | tuple[int, int],
        head_dim: int,
        value_dim: int | None = None,
        dtype: Any = "bf16",
        scale: float = 0.0,
        softcap: float = 0.0,
        mask: _core.MaskSpec | str = "causal",
        strategy: AnyStrategy = "distca:nano_batches=1,resend=on,backward=own",
        cluster: _core.Cluster | str | None = None,
        layout: str = "contiguous",
        plans_cached: int = 64,
    ) -> None:
        if not isinstance(executor, Executor):
            raise _core.InvalidArgument(f"pool: expected an Executor, found {executor!r:.80}")
        neighbourhoods = _checks.count("pool, neighbourhoods", neighbourhoods)
        if neighbourhoods < 1 or executor.size % neighbourhoods != 0:
            raise _core.InvalidArgument(
                f"pool: expected neighbourhoods that divide the {executor.size} ranks evenly, "
                f"found {neighbourhoods}"
            )
        if executor.device.type != "cpu":
            raise _core.InvalidArgument(
                f"pool: expected an executor on the CPU, found one on {executor.device}"
            )
        if layout not in ("contiguous", "zigzag"):
            raise _core.InvalidArgument(
                f"pool, layout: expected contiguous or zigzag, found {layout!r:.80}"
            )
        self.executor = executor
        self.neighbourhoods = neighbourhoods
        self.size = executor.size // neighbourhoods
        self.neighbourhood, self.rank = divmod(executor.rank, self.size)
        if cluster is None:
            self.cluster = _core.Cluster.from_torch(executor.group)
        else:
            self.cluster = cluster_of(cluster)
        if self.cluster.num_devices != executor.size:
            raise _core.InvalidArgument(
                f"pool, cluster: expected one of {executor.size} devices, as there are ranks, "
                f"found {self.cluster.num_devices}"
            )
        self._plans_cached = _checks.count("pool, plans_cached", plans_cached, least=1)
        if not isinstance(mask, (str, _core.MaskSpec)):
            raise _core.InvalidArgument(
                "pool, mask: expected one rule for all documents of all layers, or its text, "
                f"found {mask!r:.80}"
            )
        self.mask = rule_of(mask).text
        self.layout = layout
        self._shape = {
            "heads": heads,
            "head_dim": head_dim,
            "value_dim": value_dim,
            "dtype": dtype,
            "scale": scale,
            "softcap": softcap,
        }
        self._strategy = strategy
        self._plans: OrderedDict[Any, list[_Pooled]] = OrderedDict()

    def plan(
        self, micro_batches: Sequence[Lengths | None], *, nano_batches: int = 2
    ) -> tuple[_core.Plan, ...]:
        """Plans micro-batches that run at the same time. Not collective.

        Parameters
        ----------
        micro_batches : sequence of (sequence of int or None)
            Token counts of the documents of every neighbourhood's micro-batch, the same on all
            ranks. None: the neighbourhood is idle, and only computes attention of others.
        nano_batches : int
            2 for ``PingPong``, where each micro-batch is cut into two of equal tokens; or 1.

        Returns
        -------
        tuple of Plan
            One for each nano-batch.

        Raises
        ------
        InvalidArgument
            There are more or fewer micro-batches than neighbourhoods, all are idle, or one has too
            few tokens; or the strategy cannot plan them.

        Examples
        --------
        Under torchrun with 4 ranks, 2 of them for each replica::

            plan, = pool.plan([[700, 260], [64, 500, 380]], nano_batches=1)
        """
        return tuple(
            pooled.plan for pooled in self._find(micro_batches_of(micro_batches), nano_batches)
        )

    def prepare(
        self,
        micro_batches: Sequence[Lengths | None],
        *,
        nano_batches: int = 2,
        rows: Rows | None = None,
    ) -> PooledBatch:
        """Plans micro-batches that run at the same time, and prepares for them. Collective.

        Parameters
        ----------
        micro_batches, nano_batches
            As for ``plan``.
        rows : Rows, optional
            This rank's rows in the order in which layers have them, from ``rows_of``. Default: that
            order; but with one nano-batch the plan's local order, which ``attention``, ``use`` and
            ``replace_attention`` take.

        Returns
        -------
        PooledBatch

        Raises
        ------
        InvalidArgument
            As for ``plan``; or ``rows`` are not those of this rank.
        InvalidPlan
            Ranks gave different micro-batches.

        Examples
        --------
        ::

            batch = pool.prepare([[700, 260], [64, 500, 380]], nano_batches=1)
            x = embed(my_tokens[batch.rows.tokens])
        """
        given = micro_batches_of(micro_batches)
        pooled = self._find(given, nano_batches)
        mine = given[self.neighbourhood]
        in_local_order = rows is None and nano_batches == 1
        if rows is None:
            if mine is None:
                rows = no_rows(nano_batches)
            elif nano_batches == 1:
                rows = self._rows_of_plan(mine, pooled[0])
            else:
                rows = self.rows_of(mine, nano_batches=nano_batches)
        if not isinstance(rows, Rows) or len(rows.counts) != nano_batches:
            found = f"rows of {len(rows.counts)}" if isinstance(rows, Rows) else f"{rows!r:.80}"
            raise _core.InvalidArgument(
                f"pool, rows: expected Rows of {nano_batches} nano-batches (rows_of), found {found}"
            )
        tokens = np.split(rows.tokens.numpy(), np.cumsum(rows.counts)[:-1])
        parts = []
        for j, one in enumerate(pooled):
            prepared = self.executor.prepare(one.plan)
            earlier = np.concatenate([np.empty(0, dtype=np.int64), *tokens[:j]])
            with telling_peers(self.executor, "pool, prepare"):
                parts.append(Part(prepared, one.sections[self.neighbourhood], earlier, tokens[j]))
        if not in_local_order:
            self.executor.withhold(
                "pool: expected pool.attention or PingPong, which take the rows of this batch, "
                "found a call without its plan"
            )
        return PooledBatch(self, rows, parts)

    def check_batch(self, where: str, batch: Any) -> None:
        """Raises InvalidArgument unless this pool prepared the batch."""
        if not isinstance(batch, PooledBatch):
            raise _core.InvalidArgument(
                f"{where}: expected a batch of Pool.prepare, found {batch!r:.80}"
            )
        if batch.pool is not self:
            raise _core.InvalidArgument(
                f"{where}: expected a batch that this pool prepared, found one of another pool "
                f"({batch.pool.neighbourhoods} neighbourhoods, mask {batch.pool.mask}, for one of "
                f"{self.neighbourhoods}, mask {self.mask})"
            )

    def rows_of(self, lengths: Lengths, *, nano_batches: int = 2) -> Rows:
        """Returns this rank's rows of a micro-batch of its neighbourhood. Not collective.

        They ascend in every nano-batch, and depend on the micro-batch alone. Ranks at the same
        place in their neighbourhoods, such as stages of a pipeline, have the same rows.

        Examples
        --------
        ::

            rows = pool.rows_of([700, 260])
            x, labels = embed(tokens[rows.tokens]), labels[rows.tokens]
        """
        layout = self._layout_of(lengths, nano_batches)
        return layout.rows_of([layout.tokens_of(j, self.rank) for j in range(nano_batches)])

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *, batch: PooledBatch) -> Tensor:
        """Computes attention of a batch of one nano-batch, for rows in any order.

        Collective, with gradients. It is for frameworks with an order of rows of their own, which
        ``prepare`` gets as ``rows``. Otherwise ``attention`` does the same.

        Parameters
        ----------
        q, k, v : Tensor [rows, heads, dim]
            Of this rank's rows; without rows on an idle rank.
        batch : PooledBatch
            Prepared with ``nano_batches=1``.

        Returns
        -------
        Tensor [rows, q_heads, value_dim]

        Raises
        ------
        InvalidArgument
            Another pool prepared the batch, it has two nano-batches, or there are other rows; as
            for ``attention``.
        TransportError
            A peer died or stalled.

        Examples
        --------
        ::

            batch = pool.prepare(lengths, nano_batches=1, rows=pool.rows_of(mine, nano_batches=1))
            out = pool.attention(q, k, v, batch=batch)
        """
        self.check_batch("pool", batch)
        if len(batch.parts) != 1:
            raise _core.InvalidArgument(
                f"pool: expected a batch of 1 nano-batch, found {len(batch.parts)}; PingPong takes "
                "it"
            )
        part = batch.parts[0]
        if any(len(x) != part.num_rows for x in (q, k, v)):
            error = _core.InvalidArgument(
                f"pool: expected q, k and v of {part.num_rows} rows, found {len(q)}, {len(k)} and "
                f"{len(v)}"
            )
            give_up(self.executor, "pool", error)
            raise error
        local = (part.local_of(x) for x in (q, k, v))
        return part.rows_of(attention(*local, executor=self.executor, plan=part.prepared))

    def check_lengths(self, lengths: Lengths, nano_batches: int) -> None:
        """Raises InvalidArgument unless a neighbourhood can hold a micro-batch."""
        self._layout_of(lengths, nano_batches)

    def _layout_of(self, lengths: Lengths, nano_batches: int) -> Layout:
        check_nano_batches(nano_batches)
        if nano_batches == 2 and self.layout == "zigzag":
            raise _core.InvalidArgument(
                "pool: expected 1 nano-batch with the layout zigzag, found 2"
            )
        return Layout(lengths, nano_batches, self.size, self.mask, self.layout)

    def _rows_of_plan(self, lengths: Lengths, pooled: _Pooled) -> Rows:
        section = pooled.sections[self.neighbourhood]
        assert section is not None
        local = pooled.plan.local_tokens(self.executor.rank)
        return self._layout_of(lengths, 1).rows_of([section.tokens[local - section.begin]])

    def _find(self, micro_batches: list[list[int] | None], nano_batches: int) -> list[_Pooled]:
        check_nano_batches(nano_batches)
        key = (
            nano_batches,
            tuple(None if lengths is None else tuple(lengths) for lengths in micro_batches),
        )
        found = self._plans.pop(key, None)
        if found is None:
            found = self._make(key[1], nano_batches)
        self._plans[key] = found
        while len(self._plans) > self._plans_cached:
            self._plans.popitem(last=False)
        return found

    def _make(self, micro_batches: Sequence[Lengths | None], nano_batches: int) -> list[_Pooled]:
        if len(micro_batches) != self.neighbourhoods or not any(micro_batches):
            raise _core.InvalidArgument(
                f"pool: expected the micro-batches of {self.neighbourhoods} neighbourhoods, not "
                f"all idle, found {len(micro_batches)}, "
                f"{sum(not lengths for lengths in micro_batches)} of them idle"
            )
        layouts = [
            self._layout_of(lengths, nano_batches) if lengths else None for lengths in micro_batches
        ]
        return [self._pooled(layouts, j) for j in range(nano_batches)]

    def _pooled(self, layouts: Sequence[Layout | None], part: int) -> _Pooled:
        lengths: list[int] = []
        home: list[tuple[int, int, int]] = []
        kept: list[tuple[int, int]] = []  # keys of earlier nano-batches
        sections: list[_Section | None] = []
        end = 0
        for n, layout in enumerate(layouts):
            if layout is None:
                sections.append(None)
                continue
            begin, tokens, is_query = end, [], []
            for document, first, last in layout.parts[part]:
                owners = [
                    place
                    for places in layout.places[: part + 1]
                    for place in places
                    if place[0] == document
                ]
                home += [
                    (end + b, end + e, n * self.size + r)
                    for _, b, e, r in sorted(owners, key=lambda place: place[1])
                ]
                if first > 0:
                    kept.append((end, end + first))
                tokens.append(np.arange(last) + layout.first_token[document])
                is_query.append(np.arange(last) >= first)
                lengths.append(last)
                end += last
            sections.append(_Section(begin, np.concatenate(tokens), np.concatenate(is_query)))
        workload = make_workload(
            lengths, mask=self.mask, home=home, num_ranks=self.executor.size, **self._shape
        )
        if kept:
            workload = _core.without_queries(workload, kept)
        return _Pooled(make_plan(workload, cluster=self.cluster, strategy=self._strategy), sections)


def gather_lengths(lengths: Lengths | None, pool: Pool) -> list[list[int]]:
    """Returns the lengths of every neighbourhood's micro-batch, for ``Pool.prepare``. Collective.

    Parameters
    ----------
    lengths : sequence of int or None
        Token counts of the documents of this rank's micro-batch; None or empty if it is idle.
    pool : Pool
        The pool of all ranks.

    Raises
    ------
    InvalidArgument
        A rank gave no lengths, or ranks of a neighbourhood gave different ones. All ranks raise it.

    Examples
    --------
    ::

        batch = pool.prepare(gather_lengths(my_lengths, pool), nano_batches=1)
    """
    mine, problem = None, None
    try:
        mine = [] if lengths is None else lengths_of(lengths)
    except _core.InvalidArgument as error:
        problem = error
    all_lengths = agreed(
        pool.executor,
        "gather_lengths",
        problem,
        mine,
        lambda value: messages.items(value, lambda length: messages.whole(length, 1, 2**63 - 1)),
    )
    for rank, found in enumerate(all_lengths):
        if found != all_lengths[rank - rank % pool.size]:
            raise _core.InvalidArgument(
                "pool: expected one micro-batch in a neighbourhood, found "
                f"{all_lengths[rank - rank % pool.size]} on rank {rank - rank % pool.size} and "
                f"{found} on rank {rank}"
            )
    return all_lengths[:: pool.size]
