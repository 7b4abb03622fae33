"""The groups of ranks that micro-batches run on, and their executors."""

from __future__ import annotations

import datetime
import math
import operator
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams

from contextile import _core
from contextile.torch import Executor


class GroupField(NamedTuple):
    """The group that a micro-batch names: its number of ranks, and the process group if it has
    one."""

    size: int
    group: Any  # None: this rank alone


def group_field_of(params: PackedSeqParams | None) -> GroupField | None:
    """Returns the group that ``local_cp_size`` and ``cp_group`` name; None if they name none.

    Like Megatron's attention of Transformer Engine, it takes ``cp_group`` alone, and
    ``local_cp_size`` alone if it is 1.
    """
    if params is None or (params.local_cp_size is None and params.cp_group is None):
        return None
    size, group = params.local_cp_size, params.cp_group
    if size is not None:
        try:
            size = operator.index(size)
        except TypeError:
            size = 0
        if size < 1:
            raise _core.InvalidArgument(
                "packed_seq_params: local_cp_size: expected a number of ranks, found "
                f"{params.local_cp_size!r:.40}"
            )
    if group is None:
        if size != 1:
            raise _core.InvalidArgument(
                f"packed_seq_params: expected cp_group, a group of local_cp_size {size} ranks, "
                "found none"
            )
        return GroupField(1, None)
    if not hasattr(group, "rank") or not hasattr(group, "size") or group.rank() < 0:
        raise _core.InvalidArgument(
            "packed_seq_params: cp_group: expected a group that this rank is in, found another"
        )
    if size is not None and group.size() != size:
        raise _core.InvalidArgument(
            f"packed_seq_params: cp_group: expected a group of local_cp_size {size} ranks, found "
            f"one of {group.size()}"
        )
    return GroupField(group.size(), group)


class Team(NamedTuple):
    """The ranks of one group: their executor and their cluster."""

    executor: Executor
    cluster: _core.Cluster

    @property
    def size(self) -> int:
        return self.executor.size

    @property
    def rank(self) -> int:
        return self.executor.rank


def ranks_of(group: Any) -> tuple[int, ...]:
    """Returns the global ranks of a process group; none if it is this rank alone."""
    ranks = () if group is None else tuple(dist.get_process_group_ranks(group))
    return ranks if len(ranks) > 1 else ()


def cluster_like(cluster: _core.Cluster, shape: _core.Cluster) -> _core.Cluster:
    """Returns a cluster with the constants of the first and as many nodes and devices as the
    second.

    A part of a node gets its share of the node's NICs.
    """
    found = _core.Cluster(cluster)
    found.nodes, found.devices_per_node = shape.nodes, shape.devices_per_node
    if found.devices_per_node < cluster.devices_per_node:
        found.inter_gbytes_per_s_per_node *= found.devices_per_node / cluster.devices_per_node
    found.nics_per_node = math.gcd(cluster.nics_per_node, found.devices_per_node)
    if cluster.compute_slots_per_node > 0:
        found.compute_slots_per_node = min(cluster.compute_slots_per_node, found.devices_per_node)
    found.check()
    return found


class Teams:
    """The teams of a rank, each made once. Making one is collective over its group."""

    def __init__(self, static: Executor, cluster: _core.Cluster | None) -> None:
        self._given = cluster
        self.static = Team(static, cluster or _core.Cluster.from_torch(static.group))
        if self.static.cluster.num_devices != static.size:
            raise _core.InvalidArgument(
                f"cluster: expected {static.size} devices, as the context-parallel group has "
                f"ranks, found {self.static.cluster.num_devices}"
            )
        self._lock = threading.Lock()  # planning ahead may make the team of one rank
        self._teams: dict[tuple[int, ...], Team] = {}
        self._groups: dict[tuple[int, ...], Any] = {}  # that were made here
        if static.size == 1 or static.group is not None:
            self._teams[ranks_of(static.group)] = self.static
        elif dist.is_initialized() and static.size == dist.get_world_size():
            self._teams[tuple(range(static.size))] = self.static
        for group in _hybrid_groups():
            self.join(group)

    def join(self, group: Any) -> Team:
        """Returns the team of a group, making it if it is new."""
        ranks = ranks_of(group)
        with self._lock:
            team = self._teams.get(ranks) or self._make(ranks, group)
            self._teams[ranks] = team
        return team

    def _make(self, ranks: tuple[int, ...], group: Any) -> Team:
        executor = self.static.executor.for_group(group if ranks else _core.inproc_group(1)[0])
        shape = (
            _core.Cluster.from_torch(group)
            if ranks
            else _core.Cluster.preset("local", nodes=1, devices_per_node=1)
        )
        return Team(executor, shape if self._given is None else cluster_like(self._given, shape))

    def known(self, field: GroupField | None) -> Team:
        """Returns a team that exists, or can be made without peers."""
        if field is None:
            return self.static
        ranks = ranks_of(field.group)
        if ranks and ranks not in self._teams:
            raise _core.InvalidArgument(
                "packed_seq_params: cp_group: expected a group that the planner knows, found a "
                "new one; call Planner.join on all its ranks first"
            )
        return self.join(field.group)

    def group_of(self, ranks: int | Sequence[int]) -> Any:
        """Implements ``Planner.group_of``."""
        world = parallel_state.get_data_parallel_group(with_context_parallel=True)
        if not isinstance(ranks, Sequence):
            return self._group_of_size(operator.index(ranks), world.size())
        members = dist.get_process_group_ranks(world)
        wanted = [operator.index(rank) for rank in ranks]
        if (
            wanted != sorted(set(wanted))
            or not wanted
            or wanted[0] < 0
            or wanted[-1] >= len(members)
        ):
            raise _core.InvalidArgument(
                f"ranks: expected ascending ranks of DP x CP, 0 to {len(members) - 1}, found "
                f"{wanted}"
            )
        if world.rank() not in wanted:
            raise _core.InvalidArgument(
                f"ranks: expected a group that this rank, {world.rank()}, is in, found {wanted}"
            )
        if is_megatrons(wanted, len(members)):
            return self._group_of_size(len(wanted), len(members))
        return self._own_group(tuple(members[rank] for rank in wanted))

    def _group_of_size(self, size: int, num_ranks: int) -> Any:
        if size == 1:
            # Without a group, Megatron's RoPE takes the static one.
            is_alone = parallel_state.get_context_parallel_world_size() == 1
            return None if is_alone else self._own_group((dist.get_rank(),))
        groups = {group.size(): group for group in _hybrid_groups()}
        groups[num_ranks] = parallel_state.get_data_parallel_group(with_context_parallel=True)
        if size not in groups:
            raise _core.InvalidArgument(
                "ranks: expected one of Megatron's groups of 1, "
                f"{', '.join(map(str, sorted(groups)))} ranks, found {size} "
                "(initialize_model_parallel(hybrid_context_parallel=True) makes those of powers "
                "of two)"
            )
        return groups[size]

    def _own_group(self, ranks: tuple[int, ...]) -> Any:
        if ranks not in self._groups:
            timeout = datetime.timedelta(seconds=self.static.executor.timeout)
            self._groups[ranks] = dist.new_group(
                list(ranks), timeout=timeout, use_local_synchronization=True
            )
        return self._groups[ranks]


def is_megatrons(ranks: Sequence[int], num_ranks: int) -> bool:
    """Returns true if Megatron makes a group of these ranks of DP x CP.

    Those are aligned runs of a power of two of ranks, and all ranks.
    """
    size, first = len(ranks), ranks[0]
    if list(ranks) != list(range(first, first + size)):
        return False
    return size == num_ranks or (
        size & (size - 1) == 0 and first % size == 0 and num_ranks % size == 0
    )


def _hybrid_groups() -> list[Any]:
    """Returns this rank's groups of Megatron's hybrid context parallelism, smallest first."""
    if not parallel_state.model_parallel_is_initialized():
        return []
    whole = parallel_state.get_data_parallel_group(with_context_parallel=True)
    groups, size = [], 2
    while size < whole.size():
        try:
            group = parallel_state.get_hybrid_data_context_parallel_groups(
                check_initialized=False, group_size=size
            )
        except KeyError:
            break
        if not set(ranks_of(group)) <= set(ranks_of(whole)):
            break  # left over from groups that Megatron made earlier
        groups.append(group)
        size *= 2
    return [*groups, whole] if groups else []
