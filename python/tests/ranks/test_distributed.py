"""Real ranks: torchrun's processes, whose executors meet through their torch.distributed group."""

from __future__ import annotations

import os
import signal
import time

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
if not ct.gloo_available():
    pytest.skip("this build has no gloo", allow_module_level=True)

from contextile.torch import Executor, attention, collect, dispatch
from ranks import run_alone, run_ranks
from reference import dense_mask, inputs, relative_error, run_dense

LENGTHS = [300, 41, 170, 1]
HEADS = (4, 2)
DIM = 32


def attend_everywhere(strategies):
    import torch.distributed as dist

    executor = Executor()
    assert (executor.rank, executor.size) == (dist.get_rank(), dist.get_world_size())
    cluster = ct.Cluster.from_torch()
    assert (cluster.nodes, cluster.devices_per_node) == (1, dist.get_world_size())
    tensors = inputs(sum(LENGTHS), HEADS, DIM)
    expected = run_dense(tensors, dense_mask(ct.make_workload(LENGTHS, mask="causal")))
    for strategy in strategies.split():
        plan = ct.plan(
            LENGTHS, cluster=cluster, strategy=strategy, heads=HEADS, head_dim=DIM, dtype="f32"
        )
        executor.prepare(plan)
        local = [dispatch(x, plan=plan, rank=executor.rank).requires_grad_() for x in tensors[:3]]
        out = attention(*local, executor=executor)
        out.backward(dispatch(tensors[3], plan=plan, rank=executor.rank))
        for found, one in zip([out, *(x.grad for x in local)], expected, strict=True):
            assert relative_error(collect(found, plan=plan), one) < 1e-5, strategy


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_attend(num_ranks):
    run_ranks(
        attend_everywhere,
        num_ranks,
        "zigzag dcp fcp:block=64 auto:steps=20000 distca:granularity=16",
    )


def attend_in_halves():
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = dist.get_rank() // 2
    executor = Executor(groups[mine])
    assert (executor.rank, executor.size) == (dist.get_rank() % 2, 2)
    lengths = LENGTHS if mine == 0 else [100, 60]
    plan = ct.plan(
        lengths,
        cluster=ct.Cluster.from_torch(groups[mine]),
        strategy="dcp",
        heads=HEADS,
        head_dim=DIM,
        dtype="f32",
    )
    executor.prepare(plan)
    tensors = inputs(sum(lengths), HEADS, DIM)
    local = [dispatch(x, plan=plan, rank=executor.rank) for x in tensors[:3]]
    expected = run_dense(tensors, dense_mask(ct.make_workload(lengths, mask="causal")))[0]
    assert (
        relative_error(
            collect(attention(*local, executor=executor), plan=plan, group=groups[mine]), expected
        )
        < 1e-5
    )


def test_groups_of_a_job():
    run_ranks(attend_in_halves, 4)


def hold_different_plans():
    import torch.distributed as dist

    lengths = [300 + dist.get_rank(), 60]
    executor = Executor()
    plan = ct.plan(
        lengths,
        cluster=ct.Cluster.from_torch(),
        strategy="zigzag",
        heads=HEADS,
        head_dim=DIM,
        dtype="f32",
    )
    try:
        executor.prepare(plan)
    except ct.InvalidPlan as error:
        assert "expected one plan on all ranks" in str(error)
        print("refused")


def test_different_plans_are_refused_on_all_ranks():
    assert run_ranks(hold_different_plans, 2).stdout.count("refused") == 2


def lose_a_rank():
    import torch.distributed as dist

    executor = Executor(timeout=5)
    plan = ct.plan(
        [512],
        cluster=ct.Cluster.from_torch(),
        strategy="zigzag",
        heads=HEADS,
        head_dim=DIM,
        dtype="f32",
    )
    executor.prepare(plan)
    dist.barrier()  # otherwise the other rank may still be in prepare
    if executor.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    zeros = [torch.zeros(plan.num_local_tokens(executor.rank), heads, DIM) for heads in (4, 2, 2)]
    try:
        for _ in range(1000):
            attention(*zeros, executor=executor)
    except ct.TransportError as error:
        print(f"lost after {time.monotonic() - begun:.1f} s: {error}", flush=True)
        os._exit(0)  # the rest of the job is gone


@pytest.mark.timing
def test_a_lost_rank_is_an_error_of_the_others():
    survivor, _ = run_alone(lose_a_rank, 2)
    assert "lost after" in survivor and "rank 1" in survivor, survivor
