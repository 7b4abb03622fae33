"""Finds or makes the plans of micro-batches, and executes them."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from contextile import _checks, _core
from contextile._linear_layers import LinearLayers
from contextile._planning import AnyStrategy, choice_of, cluster_of
from contextile._planning import plan as make_plan
from contextile.megatron._groups import Team, Teams, group_field_of
from contextile.megatron._layer_specs import (
    Layer,
    MicroBatch,
    layer_of,
    make_workload_of,
    micro_batch_of,
    name_of,
    tokens_of_rows,
)
from contextile.megatron._plans import PlanCache, log_wait
from contextile.megatron._replica_pool import ReplicaPool
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
            f"plan: expected the tokens that Megatron gives rank {rank} (home='zigzag'), found "
            f"others ({plan.strategy})"
        )
    if np.array_equal(rows, local):
        return Planned(plan, None, None)
    to_local, from_local = np.empty_like(order_of_rows), np.empty_like(order_of_rows)
    to_local[order_of_local] = order_of_rows
    from_local[order_of_rows] = order_of_local
    return Planned(plan, torch.from_numpy(to_local), torch.from_numpy(from_local))


def quick_strategy(num_ranks: int) -> str:
    """Returns a search of 0.1 to 0.3 seconds for most batches of up to 131,072 tokens.

    Its limit counts steps, so that all ranks find the same plan. A step costs more on more ranks.
    """
    return f"auto:steps={max(5_000, 100_000 * 64 // max(num_ranks, 8) ** 2)}"


def _alone(
    workload: _core.Workload, cluster: _core.Cluster, choice: _core.StrategyChoice
) -> _core.StrategyChoice | str:
    """Returns the strategy for one rank: another if it has to split heads or tokens."""
    reason = _core.unsupported_reason(workload, cluster, choice, _core.PlanOptions())
    return choice if reason is None else "zigzag"


class Planner:
    """Plans micro-batches as layers meet them, and executes the plans. Making one is collective.

    Plans are cached by sequence lengths, group of ranks, and the attention of layers. All ranks of
    a group make the same ones. A micro-batch with ``local_cp_size`` and ``cp_group`` is planned for
    that group. If Megatron has groups for hybrid context parallelism, the planner connects them all
    at once; it connects other groups when their first micro-batch comes.

    Parameters
    ----------
    executor : Executor, optional
        An executor of the context-parallel group. Default: one for
        ``parallel_state.get_context_parallel_group()``, on the GPU if PyTorch has one. Its
        ``plans_kept`` must be at least the number of micro-batches with different lengths in
        flight. Executors of other groups have its options.
    strategy, optional
        As for ``contextile.plan``, without a time budget: all ranks must find the same plan.
        Default: a search that takes about 0.2 seconds. A group of one rank has nothing to split, so
        strategies that need several ranks do not apply there.
    cluster : Cluster or str, optional
        The cluster of the group. Default: its hosts (``Cluster.from_torch``). Other groups have its
        constants on their own hosts.
    block_size, wire, linear_layers
        As for ``contextile.plan``. With a model as ``linear_layers``, the tensor parallelism is
        that of Megatron's layers.
    plans_cached : int
        Number of plans that are cached, or more if a batch of ``prepare_batch`` has more.
    pool : str, optional
        ``"dp_cp"``: one plan balances the attention of all data-parallel replicas over the ranks of
        DP x CP (``contextile.torch.Pool``), on the CPU. The executor, the cluster and the strategy
        are then those of DP x CP, and the strategy is by default the pool's. All replicas run the
        same layers at the same time.

    Raises
    ------
    InvalidArgument
        The cluster has another number of devices than the group has ranks; or there is a GPU, a
        block size, a wire type or ``linear_layers`` with a pool.

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
        strategy: AnyStrategy | None = None,
        cluster: _core.Cluster | str | None = None,
        block_size: int | None = None,
        wire: str | None = None,
        linear_layers: LinearLayers | None = None,
        plans_cached: int = 64,
        pool: str | None = None,
    ) -> None:
        given = None if cluster is None else cluster_of(cluster)
        plans_cached = _checks.count("planner, plans_cached", plans_cached, least=1)
        self._strategy = strategy
        self._options: dict[str, Any] = {
            "block_size": block_size,
            "wire": wire,
            "linear_layers": linear_layers,
        }
        self._plans: PlanCache[Planned] = PlanCache(plans_cached)
        self._pool: ReplicaPool | None = None
        self._static_teams: Teams | None = None
        if pool is None:
            executor = executor or Executor(
                parallel_state.get_context_parallel_group(),
                device="cuda" if torch.cuda.is_available() else "cpu",
            )
            self._static_teams = Teams(executor, given)
            return
        if pool != "dp_cp":
            raise _core.InvalidArgument(f"pool: expected dp_cp or None, found {pool!r:.40}")
        for name, value in self._options.items():
            if value is not None:
                raise _core.InvalidArgument(f"pool dp_cp: expected no {name}, found {value}")
        self._pool = ReplicaPool(
            executor, strategy=strategy, cluster=given, plans_cached=plans_cached
        )

    @property
    def executor(self) -> Executor:
        """The executor of the context-parallel group; with a pool, of DP x CP."""
        return self._teams.static.executor if self._pool is None else self._pool.executor

    @property
    def strategy_text(self) -> str:
        """The strategy with its options, as text; of a function, its name."""
        if self._strategy is None:
            return "auto" if self._pool is None else "distca"
        return getattr(self._strategy, "__name__", None) or str(self._strategy)

    @property
    def _teams(self) -> Teams:
        assert self._static_teams is not None
        return self._static_teams

    def _refuse_pool(self, call: str) -> None:
        if self._pool is not None:
            raise _core.InvalidArgument(
                f"{call}: expected a planner without a pool, found dp_cp; plan_of plans its "
                "micro-batches ahead, on all ranks"
            )

    def group_of(self, ranks: int | Sequence[int]) -> Any:
        """Returns the process group for micro-batches of some ranks, as ``cp_group``.

        The number of ranks, ``local_cp_size``, means Megatron's group of that size. A new group is
        made once, collectively over its ranks.

        Parameters
        ----------
        ranks : int or sequence of int
            A number of ranks, or ascending ranks of DP x CP with this one among them.

        Returns
        -------
        ProcessGroup or None
            None is this rank alone.

        Raises
        ------
        InvalidArgument
            Megatron has no group of that size, or this rank is not in the group.

        Examples
        --------
        ::

            group = planner.group_of(size)
            batch, packed_seq_params = get_batch_on_this_hybrid_cp_rank(sample, size, group)
        """
        self._refuse_pool("group_of")
        return self._teams.group_of(ranks)

    def join(self, group: Any) -> None:
        """Connects the ranks of a process group, once. Collective over the group.

        Layers do this by themselves; ``prepare`` and ``plan_of`` need it for new groups.
        """
        self._refuse_pool("join")
        self._teams.join(group)

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

        Not collective. It may run on any thread, ahead of the layers; a layer that needs the plan
        meanwhile waits. With a pool, it is collective over DP x CP, and each rank gives the
        micro-batch of its replica. Parameters and errors are those of ``workload_of`` and of
        ``contextile.plan``.

        Returns
        -------
        Plan

        Examples
        --------
        ::

            plan = planner.plan_of(config, packed_seq_params)
        """
        if self._pool is not None:
            own = parallel_state.get_context_parallel_group()
            self._pool.check_call(1, config, own, group_field_of(packed_seq_params))
            micro_batch = micro_batch_of(
                packed_seq_params, self._pool.size, seq_length, micro_batch_size
            )
            return self._pool.plan_of(layer_of(config, attn_mask_type), micro_batch)
        key, make = self._job_of(
            config, packed_seq_params, seq_length, micro_batch_size, attn_mask_type
        )
        return self._plans.find(key, make)[0].plan

    def prepare(
        self,
        config: TransformerConfig,
        packed_seq_params: PackedSeqParams | None = None,
        *,
        seq_length: int | None = None,
        micro_batch_size: int | None = 1,
        attn_mask_type: AttnMaskType = AttnMaskType.causal,
    ) -> Future[Any]:
        """Starts to plan a micro-batch on a thread, ahead of the layers. Not collective.

        Call it in the data loader. Parameters and errors are those of ``plan_of``; errors of
        planning are raised by the layer that needs the plan.

        Returns
        -------
        Future
            Is done when the micro-batch is planned.

        Examples
        --------
        ::

            planner.prepare(config, packed_seq_params)         # of the next micro-batch
        """
        self._refuse_pool("prepare")
        return self._plans.begin(
            *self._job_of(config, packed_seq_params, seq_length, micro_batch_size, attn_mask_type)
        )

    def prepare_batch(
        self,
        config: TransformerConfig,
        batch: tuple[Any, Any],
        *,
        attn_mask_type: AttnMaskType = AttnMaskType.causal,
    ) -> list[Future[Any]]:
        """Starts to plan this rank's micro-batches of hybrid context parallelism on a thread.

        Call it where the next batch is loaded, on all ranks: it is collective over groups that are
        new. A tensor-parallel rank without data plans in its layers.

        Parameters
        ----------
        config : TransformerConfig
            The configuration of the model.
        batch : (dict, list)
            What ``hybrid_batch`` returned, or Megatron's ``HybridCPDataLoaderWrapper`` yielded.
        attn_mask_type : AttnMaskType
            The mask type of the layer spec.

        Returns
        -------
        list of Future
            As for ``prepare``, one per micro-batch.

        Examples
        --------
        ::

            batch = hybrid_batch(schedule, samples)
            planner.prepare_batch(config, batch)
        """
        self._refuse_pool("prepare_batch")
        samples, rounds = batch
        if samples is None:
            return []
        this_rank = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        self._plans.reserve(sum(len(of_ranks[this_rank]) for of_ranks in rounds))
        futures = []
        for of_ranks in rounds:
            sizes = Counter(sequence for ids in of_ranks for sequence in ids)
            for sequence in of_ranks[this_rank]:
                sample, size = samples[sequence], sizes[sequence]
                group = self.group_of(sample["cp_ranks"].tolist() if "cp_ranks" in sample else size)
                self.join(group)
                params = PackedSeqParams(qkv_format="sbhd", local_cp_size=size, cp_group=group)
                seq_length = len(sample["tokens"])
                futures.append(
                    self.prepare(
                        config, params, seq_length=seq_length, attn_mask_type=attn_mask_type
                    )
                )
        return futures

    def _job_of(
        self,
        config: TransformerConfig,
        params: PackedSeqParams | None,
        seq_length: int | None,
        micro_batch_size: int | None,
        kind: AttnMaskType,
    ) -> tuple[Any, Callable[[], Planned]]:
        team = self._teams.known(group_field_of(params))
        micro_batch = micro_batch_of(params, team.size, seq_length, micro_batch_size)
        return self._job(team, layer_of(config, kind), micro_batch)

    def _job(
        self, team: Team, layer: Layer, micro_batch: MicroBatch
    ) -> tuple[Any, Callable[[], Planned]]:
        """Returns the key of a plan, which layers of all bands share, and what makes the plan."""

        def make() -> Planned:
            workload = make_workload_of(layer, micro_batch, team.size)
            strategy = quick_strategy(team.size) if self._strategy is None else self._strategy
            if team.size == 1 and self._strategy is not None and not callable(strategy):
                strategy = _alone(workload, team.cluster, choice_of(strategy))
            plan = make_plan(workload, cluster=team.cluster, strategy=strategy, **self._options)
            return planned_of(plan, micro_batch, team.rank)

        return (id(team.executor), layer._replace(band=(None, None)), micro_batch), make

    def _find(
        self, team: Team, layer: Layer, micro_batch: MicroBatch, layer_number: int
    ) -> Planned:
        began = time.perf_counter()
        planned, was_there = self._plans.find(*self._job(team, layer, micro_batch))
        if not was_there:
            seconds = time.perf_counter() - began
            log_wait(layer_number, seconds, micro_batch.lengths, team.size, "Planner.prepare")
        return planned

    def team_of(
        self,
        layer_number: int,
        config: TransformerConfig,
        static: Any,
        params: PackedSeqParams | None,
    ) -> Team | ReplicaPool:
        """Returns the ranks that run a layer's micro-batch. Collective over them if they are new.

        CoreAttention calls it. ``static`` is the layer's context-parallel group. Raises
        InvalidArgument if the micro-batch cannot run there.
        """
        field = group_field_of(params)
        if self._pool is not None:
            self._pool.check_call(layer_number, config, static, field)
            return self._pool
        found = None
        team = self._teams.static if field is None else self._teams.join(field.group)
        if field is None and (team.size, team.rank) != (static.size(), static.rank()):
            found = (
                f"expected an executor of the context-parallel group, rank {static.rank()} of "
                f"{static.size()}, found rank {team.rank} of {team.size}"
            )
        elif params is not None and field is not None and params.qkv_format == "thd":
            # Megatron's RoPE cuts thd for the static group: with PyTorch's operations it fails if
            # the sizes differ, with a fused kernel it does not.
            is_fused = config.apply_rope_fusion and team.size != static.size()
            if is_fused or (team.size == static.size() and team.rank != static.rank()):
                found = (
                    f"expected thd on the static context-parallel group, rank {static.rank()} of "
                    f"{static.size()}, as Megatron's RoPE does, found rank {team.rank} of "
                    f"{team.size} (cp_group); use sbhd"
                )
        if found is not None:
            raise _core.InvalidArgument(f"layer {layer_number}: {found}")
        return team

    def attend(
        self,
        team: Team | ReplicaPool,
        layer: Layer,
        layer_number: int,
        micro_batch: MicroBatch,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
    ) -> Tensor:
        """Attends with rows in Megatron's order, and returns them in the same order.

        CoreAttention calls it. Collective over the team.
        """
        if isinstance(team, ReplicaPool):
            return team.attend(layer, layer_number, micro_batch, q, k, v)
        planned, executor = self._find(team, layer, micro_batch, layer_number), team.executor
        # Compare plans by value, not by identity: ranks must decide alike, whatever their caches
        # hold.
        if executor.plan is None or executor.plan != planned.plan:
            executor.prepare(planned.plan)
        if planned.to_local is not None:
            q, k, v = (x.index_select(0, planned.to_local.to(x.device)) for x in (q, k, v))
        out = attention(q, k, v, executor=executor, mask=name_of(layer.band), sink=sink)
        return (
            out
            if planned.from_local is None
            else out.index_select(0, planned.from_local.to(out.device))
        )


@contextlib.contextmanager
def use(planner: Planner) -> Iterator[Planner]:
    """Makes ``CoreAttention`` layers attend with a planner, inside ``with``.

    Put it around training, or at least around forward and backward: recomputed layers need it, too.

    Parameters
    ----------
    planner : Planner
        The planner of this rank.

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
