"""The tables of train_distca.py: attention by rank and tick, idle ticks, exposed communication."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import contextile as ct
from contextile.torch import ticks


def work_of(plans) -> dict[str, list[float]]:
    """MFLOPs of attention by rank, of one layer in each direction."""
    work: dict[str, list[float]] = {}
    for direction in ("forward", "backward"):
        of_plans = [
            [device.flops / 1e6 for device in getattr(plan.stats(), direction).devices]
            for plan in plans
        ]
        work[direction] = [sum(flops) for flops in zip(*of_plans, strict=True)]
    return work


def alone_of(pool, lengths, strategy) -> dict[str, list[float]]:
    """The same if every neighbourhood plans its own micro-batch."""
    work: dict[str, list[float]] = {"forward": [], "backward": []}
    for mine in lengths:
        if mine is None:
            idle = [0.0] * pool.size
            found = {"forward": idle, "backward": idle}
        else:
            plan = ct.plan(
                mine,
                cluster=f"local:1x{pool.size}",
                strategy=strategy,
                heads=(4, 2),
                head_dim=16,
                dtype="f32",
            )
            found = work_of([plan])
        for direction, flops in found.items():
            work[direction] += flops
    return work


def imbalance(flops: list[float]) -> float:
    return max(flops) * len(flops) / sum(flops)


def print_work(ranks, lengths, options, strategy) -> None:
    pool, pipeline = ranks.pool, ranks.pipelines[options.nano_batches]
    all_ticks = ticks(stages=pipeline.stages, micro_batches=options.micro_batches)
    print("\nAttention of one layer by rank and tick of the first step, MFLOP (planned)")
    print(
        f"{'tick':>12}  {'':8}  {'  '.join(f'rank {r}' for r in range(pool.executor.size))}  "
        "largest / mean"
    )
    idle_ticks = [0] * pipeline.stages
    idle_work = [0.0] * pipeline.stages
    sums = {"alone": 0.0, "pooled": 0.0}
    per_stage = pipeline.replicas * pool.size
    for tick in all_ticks:
        given = pipeline.micro_batches_of(tick, lengths)
        rows = {
            "alone": alone_of(pool, given, strategy)[tick.phase],
            "pooled": work_of(pool.plan(given, nano_batches=options.nano_batches))[tick.phase],
        }
        for form, flops in rows.items():
            name = f"{tick.phase} {tick.number}" if form == "alone" else ""
            numbers = "  ".join(f"{x:6.2f}" for x in flops)
            print(f"{name:>12}  {form:8}  {numbers}  {imbalance(flops):14.2f}")
            sums[form] += max(flops)
        for stage, step in enumerate(tick.steps):
            if step is None:
                idle_ticks[stage] += 1
                idle_work[stage] += sum(rows["pooled"][stage * per_stage : (stage + 1) * per_stage])
    print(f"sum over ticks of the largest: alone {sums['alone']:.2f}, pooled {sums['pooled']:.2f}")
    print("\nIdle ticks of the first step")
    print("stage  ticks  idle  attention of others in them, MFLOP of a layer")
    for stage in range(pipeline.stages):
        print(f"{stage:5}  {len(all_ticks):5}  {idle_ticks[stage]:4}  {idle_work[stage]:10.2f}")


def print_exposed(ranks, model, batch_of, options) -> None:
    """Runs steps with one nano-batch and with two, in turns, and prints how long ranks waited."""
    rank = ranks.pool.executor.rank
    measured = {}
    for layer in model.layers:
        layer.pause_s_per_row = 1e-3 * options.block_ms * ranks.pool.size / options.tokens
    for step in range(options.timed_steps):
        for nano_batches, pipeline in ranks.pipelines.items():
            if step == 0:
                ranks.train(model, *batch_of(0), nano_batches)  # plans
            before = dict(pipeline.times)
            ranks.train(model, *batch_of(0), nano_batches)
            for direction, after in pipeline.times.items():
                found = measured.setdefault(
                    (nano_batches, direction), torch.zeros(3, dtype=torch.float64)
                )
                was = before[direction]
                found += torch.tensor(
                    [
                        after.exposed_s - was.exposed_s,
                        after.attention_s - was.attention_s,
                        after.sent_bytes - was.sent_bytes,
                    ]
                )
    model.zero_grad()
    if rank == 0:
        print(
            f"\nExposed communication over {options.links}, mean of {options.timed_steps} steps "
            "and all ranks (measured)"
        )
        if options.block_ms > 0:
            print(
                f"with a pause of {options.block_ms:g} ms in every layer, {2 * options.block_ms:g} "
                "ms backward"
            )
        print("              direction  waited, ms  in the kernel, ms  sent, kB")
    for (nano_batches, direction), found in measured.items():
        dist.all_reduce(found)
        exposed, attention, sent = (
            found / (options.timed_steps * ranks.pool.executor.size)
        ).tolist()
        if rank == 0:
            name = "ping-pong" if nano_batches == 2 else "no ping-pong"
            kind = "idle tick" if direction == "idle" else direction
            print(
                f"{name:>12}  {kind:>9}  {1e3 * exposed:10.1f}  {1e3 * attention:17.1f}  "
                f"{sent / 1e3:8.1f}"
            )


def print_tables(ranks, model, batch_of, options) -> None:
    """Prints the three tables on rank 0. Collective."""
    strategy = sys.modules["__main__"].STRATEGY
    lengths = [[lengths for lengths, _ in of_replicas] for of_replicas in batch_of(0)[0]]
    if ranks.pool.executor.rank == 0:
        print_work(ranks, lengths, options, strategy)
    print_exposed(ranks, model, batch_of, options)
    sys.stdout.flush()
