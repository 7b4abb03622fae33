"""Finds or makes the plans of micro-batches, and executes them."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from contextile import _core
from contextile._planning import AnyStrategy, cluster_of
from contextile._planning import plan as make_plan
from contextile.megatron._layers import Layer, MicroBatch, layer_of, make_workload_of, micro_batch_of, name_of, tokens_of_rows
from contextile.torch import Executor, attention

# Not a context variable: recomputed layers may run on a thread of autograd.
_planner: Planner | None = None


class Planned(NamedTuple):
    """A plan, with the permutations between Megatron's order of rows and the plan's local order.

    They are None if the orders are the same.
    """

    plan: _core.Plan
    to_local: Tensor | None
    from_local: Tensor | None


def planned_of(plan: _core.Plan, micro_batch: MicroBatch, rank: int) -> Planned:
    """Returns a rank's plan with its permutations.

    Raises InvalidArgument if the plan puts other tokens on the rank than Megatron.
    """
    rows = tokens_of_rows(micro_batch, plan.num_devices, rank)
    local = plan.local_tokens(rank)
    order_of_rows, order_of_local = np.argsort(rows), np.argsort(local)
    if not np.array_equal(rows[order_of_rows], local[order_of_local]):
        raise _core.InvalidArgument(
            f"plan: expected the tokens that Megatron gives rank {rank} (home='zigzag'), found others ({plan.strategy})"
        )
    if np.array_equal(rows, local):
        return Planned(plan, None, None)
    to_local, from_local = np.empty_like(order_of_rows), np.empty_like(order_of_rows)
    to_local[order_of_local] = order_of_rows
    from_local[order_of_rows] = order_of_local
    return Planned(plan, torch.from_numpy(to_local), torch.from_numpy(from_local))


class Planner:
    """Plans micro-batches as layers meet them, and executes the plans. Making one is collective.

    Plans are cached by sequence lengths and by the attention of layers. All ranks of the group make
    the same ones.

    Parameters
    ----------
    executor : Executor, optional
        An executor of the context-parallel group. Default: one for
        ``parallel_state.get_context_parallel_group()``, on the GPU if PyTorch has one. Its
        ``plans_kept`` must be at least the number of micro-batches with different lengths in flight.
    strategy
        As for ``contextile.plan``, without a time budget: all ranks must find the same plan.
    cluster : Cluster or str, optional
        The cluster of the group. Default: its hosts (``Cluster.from_torch``).
    block_size, wire
        As for ``contextile.plan``.
    plans_cached : int
        Number of plans that are cached.

    Raises
    ------
    InvalidArgument
        The cluster has another number of devices than the group has ranks.

    Examples
    --------
    ::

        planner = Planner(strategy="dcp")              # after initialize_model_parallel
        with use(planner):
            loss = model(tokens, positions, None, labels=labels).mean()
            loss.backward()
    """

    def __init__(
        self,
        executor: Executor | None = None,
        *,
        strategy: AnyStrategy = "auto:steps=4000000",
        cluster: _core.Cluster | str | None = None,
        block_size: int | None = None,
        wire: str | None = None,
        plans_cached: int = 64,
    ) -> None:
        self._executor = executor or Executor(
            parallel_state.get_context_parallel_group(), device="cuda" if torch.cuda.is_available() else "cpu"
        )
        self._cluster = _core.Cluster.from_torch(self._executor.group) if cluster is None else cluster_of(cluster)
        if self._cluster.num_devices != self._executor.size:
            raise _core.InvalidArgument(
                f"cluster: expected {self._executor.size} devices, as the context-parallel group has ranks, found "
                f"{self._cluster.num_devices}"
            )
        self._options = {"strategy": strategy, "block_size": block_size, "wire": wire}
        self._plans_cached = plans_cached
        self._plans: OrderedDict[tuple[Any, MicroBatch], Planned] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def executor(self) -> Executor:
        """The executor of the context-parallel group."""
        return self._executor

    def plan_of(
        self,
        config: TransformerConfig,
        packed_seq_params: PackedSeqParams | None = None,
        *,
        seq_length: int | None = None,
        micro_batch_size: int | None = 1,
        attn_mask_type: AttnMaskType = AttnMaskType.causal,
    ) -> _core.Plan:
        """Returns the plan of a micro-batch, and caches it for the layers.

        Not collective. It may run on any thread, ahead of the layers; a layer that needs a plan
        meanwhile waits. Parameters and errors are those of ``workload_of`` and of
        ``contextile.plan``.

        Returns
        -------
        Plan

        Examples
        --------
        ::

            plan = planner.plan_of(config, packed_seq_params)
        """
        micro_batch = micro_batch_of(packed_seq_params, self._executor.size, seq_length, micro_batch_size)
        return self._find(layer_of(config, attn_mask_type), micro_batch).plan

    def _find(self, layer: Layer, micro_batch: MicroBatch) -> Planned:
        key = (layer._replace(band=(None, None)), micro_batch)  # layers of all bands share a plan
        with self._lock:
            planned = self._plans.pop(key, None)
            if planned is None:
                workload = make_workload_of(layer, micro_batch, self._executor.size)
                plan = make_plan(workload, cluster=self._cluster, **self._options)
                planned = planned_of(plan, micro_batch, self._executor.rank)
            self._plans[key] = planned
            while len(self._plans) > self._plans_cached:
                self._plans.popitem(last=False)
            return planned

    def _attend(
        self, layer: Layer, micro_batch: MicroBatch, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None
    ) -> Tensor:
        """Attends with rows in Megatron's order, and returns them in the same order. Collective."""
        planned = self._find(layer, micro_batch)
        # Compare plans by value, not by identity: ranks must decide alike, whatever their caches
        # hold.
        if self._executor.plan is None or self._executor.plan != planned.plan:
            self._executor.prepare(planned.plan)
        if planned.to_local is not None:
            q, k, v = (x.index_select(0, planned.to_local.to(x.device)) for x in (q, k, v))
        out = attention(q, k, v, executor=self._executor, mask=name_of(layer.band), sink=sink)
        return out if planned.from_local is None else out.index_select(0, planned.from_local.to(out.device))


@contextlib.contextmanager
def use(planner: Planner) -> Iterator[Planner]:
    """Makes ``CoreAttention`` layers attend with a planner, inside ``with``.

    Put it around training, or at least around forward and backward: recomputed layers need it, too.

    Parameters
    ----------
    planner : Planner
        The planner of this rank's context-parallel group.

    Yields
    ------
    Planner

    Examples
    --------
    ::

        with contextile.megatron.use(planner):
            train(...)
    """
    global _planner
    before, _planner = _planner, planner
    try:
        yield planner
    finally:
        _planner = before


def planner_in_use() -> Planner | None:
    """Returns the planner of the innermost ``use``; None outside of it."""
    return _planner
