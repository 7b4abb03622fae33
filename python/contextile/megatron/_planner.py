"""Plans of micro-batches, found or made, and executed."""

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
    """A plan with the way from Megatron's order of rows to the plan's local order, and back; None: the same order."""

    plan: _core.Plan
    to_local: Tensor | None
    from_local: Tensor | None


def planned_of(plan: _core.Plan, micro_batch: MicroBatch, rank: int) -> Planned:
    """Of a rank. Raises InvalidArgument where the plan has other tokens there than Megatron."""
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
    """Plans micro-batches as layers meet them, and executes the plans. Collective.

    Plans are cached by lengths and by what layers compute; all ranks of the group make the same ones.

    Parameters
    ----------
    executor
        Of the context-parallel group; None: one for ``parallel_state.get_context_parallel_group()``, on the GPU where PyTorch
        has one. Its ``plans_kept`` is at least the number of micro-batches of other lengths that are under way at a time.
    strategy
        As of ``contextile.plan``; without a time budget, for all ranks must find the same plan.
    cluster
        Of the group; None: its hosts (``Cluster.from_torch``).
    block_size, wire
        As of ``contextile.plan``.
    plans_cached
        How many plans are kept to be found again.

    Raises
    ------
    InvalidArgument
        The cluster has another number of devices than the group.
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
        """Of the context-parallel group."""
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
        """The plan of a micro-batch, which layers then find. Not collective; on any thread, so also ahead: a layer that
        comes meanwhile waits.

        Parameters, Raises
            As of ``workload_of``; and what ``contextile.plan`` raises.
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
        """Rows in Megatron's order, as what is returned."""
        planned = self._find(layer, micro_batch)
        # Equal plans count, not whether it is the same object: all ranks decide alike, whatever their caches hold.
        if self._executor.plan is None or self._executor.plan != planned.plan:
            self._executor.prepare(planned.plan)
        if planned.to_local is not None:
            q, k, v = (x.index_select(0, planned.to_local.to(x.device)) for x in (q, k, v))
        out = attention(q, k, v, executor=self._executor, mask=name_of(layer.band), sink=sink)
        return out if planned.from_local is None else out.index_select(0, planned.from_local.to(out.device))


@contextlib.contextmanager
def use(planner: Planner) -> Iterator[Planner]:
    """The planner that layers attend with inside: around training, or around forward and the recomputation in backward."""
    global _planner
    before, _planner = _planner, planner
    try:
        yield planner
    finally:
        _planner = before


def planner_in_use() -> Planner | None:
    """That of ``use``; None: outside of it."""
    return _planner
