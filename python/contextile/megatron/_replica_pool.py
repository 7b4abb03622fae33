"""Attention of all data-parallel replicas in one plan per micro-batch."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from contextile import _core
from contextile._planning import AnyStrategy
from contextile.megatron._groups import GroupField
from contextile.megatron._layer_specs import Layer, MicroBatch, name_of, tokens_of_rows
from contextile.megatron._plans import log_wait
from contextile.torch import Executor, Pool, gather_lengths
from contextile.torch._execute.agreement import peers_of
from contextile.torch._pool.pool import PooledBatch
from contextile.torch._pool.pool_layout import Rows


class _Entry(NamedTuple):
    """The micro-batches that replicas run at the same time."""

    lengths: list[list[int]]  # by replica
    batch: PooledBatch


def _check_layer(layer: Layer, layer_number: int) -> None:
    """Raises InvalidArgument if a pool cannot compute the attention of the layer."""
    name, found = name_of(layer.band), None
    if len(layer.layers) > 1:
        names = ", ".join(name_of(band) for band, _ in layer.layers)
        found = (
            f"window_size: expected one mask for all layers, found {names} (window_attn_skip_freq)"
        )
    elif name.startswith("window:"):
        found = f"window_size: expected a window without tokens ahead of a query, found {name}"
    elif layer.sink:
        found = "softmax_type: expected vanilla, found one with a softmax offset"
    if found is not None:
        raise _core.InvalidArgument(f"layer {layer_number}, pool dp_cp: {found}")


def _check_padding(layer: Layer, layer_number: int, micro_batch: MicroBatch) -> None:
    """Raises InvalidArgument if tokens would attend padding, which comes after them."""
    if micro_batch.num_used != micro_batch.lengths and layer.band[1] != 0:
        raise _core.InvalidArgument(
            f"layer {layer_number}, pool dp_cp: expected a causal mask with padded sequences, "
            f"found {name_of(layer.band)}"
        )


def _check_groups(executor: Executor, whole: Any, own: Any) -> None:
    """Raises InvalidArgument unless the executor is of DP x CP, where replicas lie side by side."""
    members, ranks = dist.get_process_group_ranks(whole), dist.get_process_group_ranks(own)
    found = dist.get_process_group_ranks(executor.group)
    if (found, executor.size) != (members, len(members)):
        raise _core.InvalidArgument(
            f"pool dp_cp: expected an executor of DP x CP, ranks {members}, found one of "
            f"{executor.size} ranks of {found}"
        )
    begin = whole.rank() - own.rank()
    if begin % len(ranks) != 0 or members[begin : begin + len(ranks)] != ranks:
        raise _core.InvalidArgument(
            f"pool dp_cp: expected a context-parallel group side by side in DP x CP, {members}, "
            f"found {ranks} (order of initialize_model_parallel)"
        )


def _check_chunks(chunks: int | None, option: str) -> None:
    """Raises InvalidArgument on an interleaved pipeline, which has several chunks per stage."""
    if chunks is not None and chunks > 1:
        raise _core.InvalidArgument(
            f"pool dp_cp: expected a pipeline that is not interleaved, found {option} {chunks}"
        )


class ReplicaPool:
    """The ranks of DP x CP, which compute each other's attention (``Planner(pool="dp_cp")``).

    Replicas are the neighbourhoods of a ``contextile.torch.Pool``. All of them run the same layers
    at the same time, each on a micro-batch of its own.

    A rank does not know which micro-batches the others run: lengths may change on one replica only,
    and layers may be recomputed in any order. So each call begins with a digest of lengths from
    every rank. Digests that come together again need no other message, and find the same plan.
    """

    def __init__(
        self,
        executor: Executor | None,
        *,
        strategy: AnyStrategy | None,
        cluster: _core.Cluster | None,
        plans_cached: int,
    ) -> None:
        if executor is None and torch.cuda.is_available():
            raise _core.InvalidArgument("pool dp_cp: expected PyTorch on the CPU, found a GPU")
        _check_chunks(
            parallel_state.get_virtual_pipeline_model_parallel_world_size(),
            "virtual_pipeline_model_parallel_size",
        )
        self._group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        own = parallel_state.get_context_parallel_group()
        self.executor = executor or Executor(self._group)
        _check_groups(self.executor, self._group, own)
        self.size, self.rank = own.size(), own.rank()  # of context parallelism
        cluster = cluster or _core.Cluster.from_torch(self._group)
        if cluster.num_devices != self.executor.size:
            raise _core.InvalidArgument(
                f"cluster: expected {self.executor.size} devices, as DP x CP has ranks, found "
                f"{cluster.num_devices}"
            )
        self._options: dict[str, Any] = {"cluster": cluster, "plans_cached": plans_cached}
        if strategy is not None:
            self._options["strategy"] = strategy
        # Shards of one rank are whole, and need not be multiples of 2 x ranks.
        self._options["layout"] = "zigzag" if self.size > 1 else "contiguous"
        self._plans_cached = plans_cached
        self._pools: dict[Layer, Pool] = {}
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()  # the same keys on all ranks

    def check_call(
        self, layer_number: int, config: TransformerConfig, static: Any, field: GroupField | None
    ) -> None:
        """Raises InvalidArgument if a micro-batch has a group of its own, the layer another, or the
        pipeline is interleaved."""
        _check_chunks(
            config.virtual_pipeline_model_parallel_size, "virtual_pipeline_model_parallel_size"
        )
        if field is not None:
            raise _core.InvalidArgument(
                f"layer {layer_number}, pool dp_cp: expected micro-batches of the static "
                f"context-parallel group, found one of a group of {field.size} ranks (cp_group, "
                "local_cp_size)"
            )
        if (self.size, self.rank) != (static.size(), static.rank()):
            raise _core.InvalidArgument(
                f"layer {layer_number}, pool dp_cp: expected a layer of rank {self.rank} of "
                f"{self.size}, as the context-parallel group, found rank {static.rank()} of "
                f"{static.size()}"
            )

    def plan_of(self, layer: Layer, micro_batch: MicroBatch) -> _core.Plan:
        """Returns the plan of the micro-batches of all replicas. Collective."""
        _check_layer(layer, 1)
        return self._find(layer, micro_batch)[0].batch.plans[0]

    def attend(
        self,
        layer: Layer,
        layer_number: int,
        micro_batch: MicroBatch,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        """Attends with rows in Megatron's order, and returns them in the same order. Collective."""
        _check_layer(layer, layer_number)
        _check_padding(layer, layer_number, micro_batch)
        began = time.perf_counter()
        entry, was_there = self._find(layer, micro_batch)
        if not was_there:
            seconds = time.perf_counter() - began
            lengths = [length for of_replica in entry.lengths for length in of_replica]
            log_wait(layer_number, seconds, lengths, self.executor.size, "Planner.plan_of")
        out = self._pools[layer].attention(q, k, v, batch=entry.batch)
        if micro_batch.num_used == micro_batch.lengths:
            return out
        # No token attends padding, so padding gets no gradient once its rows are 0.
        rows = entry.batch.rows
        is_padding = rows.positions >= torch.tensor(micro_batch.num_used)[rows.sequence_ids]
        return out.masked_fill(is_padding[:, None, None], 0)

    def _find(self, layer: Layer, micro_batch: MicroBatch) -> tuple[_Entry, bool]:
        """Returns a prepared batch, and whether it was planned already. Collective."""
        pool = self._pools.get(layer)
        if pool is None:
            pool = self._pools[layer] = self._make_pool(layer)
        key = (layer, self._digests_of(micro_batch))
        entry = self._entries.pop(key, None)
        was_there = entry is not None
        # Plans are compared by value: the executor may have forgotten one that is cached here.
        if entry is None or self.executor.plan != entry.batch.plans[0]:
            lengths = gather_lengths(micro_batch.lengths, pool) if entry is None else entry.lengths
            entry = _Entry(
                lengths, pool.prepare(lengths, nano_batches=1, rows=_rows_of(pool, micro_batch))
            )
        self._entries[key] = entry
        while len(self._entries) > self._plans_cached:
            self._entries.popitem(last=False)
        return entry, was_there

    def _make_pool(self, layer: Layer) -> Pool:
        return Pool(
            self.executor,
            neighbourhoods=self.executor.size // self.size,
            heads=layer.heads,
            head_dim=layer.head_dim,
            value_dim=layer.value_dim,
            dtype=layer.dtype,
            scale=layer.scale,
            mask=name_of(layer.band),
            **self._options,
        )

    def _digests_of(self, micro_batch: MicroBatch) -> tuple[int, ...]:
        """Returns a digest of the micro-batch of every rank. Collective."""
        text = repr((micro_batch.lengths, micro_batch.is_sbhd)).encode()
        digest = int.from_bytes(
            hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True
        )
        return tuple(found for (found,) in peers_of(self.executor).numbers("pool dp_cp", [digest]))


def _rows_of(pool: Pool, micro_batch: MicroBatch) -> Rows:
    """Returns this rank's rows in Megatron's order, which interleaves the sequences of sbhd."""
    rows = pool.rows_of(micro_batch.lengths, nano_batches=1)
    tokens = tokens_of_rows(micro_batch, pool.size, pool.rank)
    order = torch.from_numpy(np.searchsorted(rows.tokens.numpy(), tokens))
    return Rows(rows.tokens[order], rows.positions[order], rows.sequence_ids[order], rows.counts)
