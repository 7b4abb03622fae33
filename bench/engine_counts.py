#!/usr/bin/env python3
"""Counts what a rank of the engine torch does in a call, and predicts what its kernels keep of
their speed. Needs no GPU: all is counted in the plan's lists, nothing is run.

  bench/engine_counts.py [--tokens 8192,32768,65536,131072]
                         [--strategies zigzag,magi,dcp,distca,auto] [--cluster dgx-h100:1x8]
                         [--dataset prolong] [--seed 0] [--steps 20000] [--sm 600,480]
                         [--memory 2.8]

Tokens are those of a device; bf16, 32 query heads and 8 KV heads of 128, causal. For each plan and
direction it takes the rank with most FLOPs, and prints

* launches: batches of messages
* calls: of kernels of attention
* keys: rows of keys that calls read, over the rank's own; in brackets without repetition
* gathered: GB that are copied before kernels and after them
* merged: GB that merges of partial results, and additions of gradients, read and write
* temporary: GB that the largest call needs
* share: the kernels' time over the time of all, predicted with --sm TFLOP/s (forward, backward) and
  --memory TB/s. Attention in place moves data inside of its kernels, next to their products, so
  this counts only where it takes longer than they.

for three ways: `eager`, torch:flash with PyTorch's operators around it; `fused`, with the Triton
kernels for rows; `triton`, attention in place. Messages are hidden in no way here, nor counted.
"""

import argparse
from typing import NamedTuple

import numpy as np

import contextile as ct
from contextile import _core

HEADS, DIM = (32, 8), 128
PRODUCTS = {"forward": 2, "backward": 5}
# Bytes for each element of a result, by way: merged into one that is there, or overwriting it. A
# merge reads and writes float32 and reads the partial result in bf16.
MERGE = {"eager": (34, 16), "fused": (10, 6)}
# The same of gradients, which are added: index_add_ converts first.
ADD = {"eager": (18, 16), "fused": (10, 6)}
WAYS = ("eager", "fused", "triton")


class Work(NamedTuple):
    """Bytes that kernels around attention move, and the most that a call needs."""

    calls: int = 0
    gathered: float = 0.0
    merged: float = 0.0
    temporary: float = 0.0


def is_run(rows):
    return len(rows) < 2 or bool((np.diff(rows) == 1).all())


def gathered_bytes(call, kind, bytes_per_row):
    """A copy reads and writes its rows; a run is a view."""
    rows = call.rows[kind]
    return 0 if is_run(rows) else 2 * len(rows) * bytes_per_row


def work_of_call(call, direction, groups, way):
    """Returns the work around one call of torch:flash."""
    heads, kv_heads = HEADS[0] // groups, HEADS[1] // groups
    row, kv_row = heads * DIM, kv_heads * DIM  # elements
    num_rows, num_keys = len(call.rows["q"]), len(call.rows["kv"])
    gathered = gathered_bytes(call, "q", 2 * row) + gathered_bytes(call, "kv", 4 * kv_row)
    if direction == "forward":
        merged = num_rows * row * MERGE[way][call.is_first]
        temporary = num_rows * row * 2  # what the kernel returns
        if way == "eager" and not call.is_first:
            temporary += num_rows * row * 12  # rows of o, the result as float32, the merge
        return Work(1, gathered, merged, temporary + gathered / 2)
    gathered += gathered_bytes(call, "do", 2 * row)
    # The output's projection on dO: by operators the largest number, dO over it, its square, the
    # sum and the product; by Triton one pass.
    gathered += num_rows * row * (26 if way == "eager" else 4)
    merged = num_rows * row * ADD[way][call.is_first] + 2 * num_keys * kv_row * ADD[way][False]
    temporary = num_rows * row * (2 + 2 + 8) + num_keys * kv_row * 4
    if way == "eager":
        temporary += num_rows * row * 4 + num_keys * kv_row * 4
    return Work(1, gathered, merged, temporary + gathered / 2)


def work_in_place(stage, direction, groups):
    """Returns the work of a stage in place, beyond what its kernel reads once."""
    row, kv_row = HEADS[0] // groups * DIM, HEADS[1] // groups * DIM
    num_rows = len(stage.intervals.rows["q"])
    if direction == "forward":
        return Work(1, 0.0, num_rows * row * (4 if stage.is_first else 8))
    # Sums of dq are atomic: zeroed or read, and written once for each block of keys.
    return Work(1, 0.0, num_rows * row * 8 + 2 * stage.num_keys * kv_row * 8)


def fixed_bytes(own_tokens, direction):
    """Own inputs into buffers, results begun and converted to the dtype of the tensors."""
    row, kv_row = HEADS[0] * DIM, HEADS[1] * DIM
    if direction == "forward":
        return own_tokens * (row * (4 + 4 + 6) + 2 * kv_row * 4)
    return own_tokens * (2 * row * 4 + 2 * kv_row * 4 + row * 10 + 2 * kv_row * 10)


def counted(program, direction, way):
    """Returns the work of a program and its number of launches."""
    total, launches = Work(), 0
    for one in program.instructions:
        if isinstance(one, _core.StageLaunch):
            launches += 1
        if not isinstance(one, _core.StageAttention) or one.pairs == 0:
            continue
        found = (
            [work_in_place(one, direction, program.head_groups)]
            if way == "triton"
            else [work_of_call(call, direction, program.head_groups, way) for call in one.calls]
        )
        for work in found:
            total = Work(
                total.calls + work.calls,
                total.gathered + work.gathered,
                total.merged + work.merged,
                max(total.temporary, work.temporary),
            )
    return total, launches


def rank_with_most_work(plan, direction):
    devices = getattr(plan.stats(), direction).devices
    return max(range(plan.num_devices), key=lambda rank: devices[rank].flops)


def rows_of(plan, tokens, strategy, flops, memory):
    """Prints the rows of one plan."""
    for direction in ("forward", "backward"):
        rank = rank_with_most_work(plan, direction)
        max_rows = (1 << 30) // (4 * 3 * DIM * HEADS[0])
        programs = plan.stages(rank, "", direction, intervals=True, max_rows=max_rows)
        stages = [
            one
            for program in programs
            for one in program.instructions
            if isinstance(one, _core.StageAttention)
        ]
        own = sum(program.own_tokens * program.head_groups for program in programs)
        keys = sum(len(call.rows["kv"]) for one in stages for call in one.calls)
        unique = sum(one.num_keys for one in stages)
        pairs = sum(
            one.pairs / program.head_groups
            for program in programs
            for one in program.instructions
            if isinstance(one, _core.StageAttention)
        )
        kernel_s = 2 * PRODUCTS[direction] * pairs * HEADS[0] * DIM / flops[direction]
        cells = []
        for way in WAYS:
            found = [counted(program, direction, way) for program in programs]
            fixed = sum(fixed_bytes(program.own_tokens, direction) for program in programs)
            work = Work(
                sum(work.calls for work, _ in found),
                sum(work.gathered for work, _ in found),
                sum(work.merged for work, _ in found),
                max(work.temporary for work, _ in found),
            )
            around = (work.gathered + work.merged) / memory
            if way == "triton":  # inside of kernels, next to their products
                total_s = max(kernel_s, around) + fixed / memory
            else:
                total_s = kernel_s + around + fixed / memory
            share = kernel_s / total_s
            cells.append(
                f"{work.calls} · {work.gathered / 1e9:.2f} · {work.merged / 1e9:.2f} · "
                f"{work.temporary / 1e9:.2f} · **{share:.2f}**"
            )
        launches = sum(launches for _, launches in found)
        print(
            f"| {strategy} | {tokens // 1024}K | {direction} | {launches} | {keys / own:.1f} "
            f"({unique / own:.1f}) | {1e3 * kernel_s:.1f} | {' | '.join(cells)} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="8192,32768,65536,131072")
    parser.add_argument("--strategies", default="zigzag,magi,dcp,distca,auto")
    parser.add_argument("--cluster", default="dgx-h100:1x8")
    parser.add_argument("--dataset", default="prolong")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20000, help="of the search of auto")
    parser.add_argument("--sm", default="600,480", help="TFLOP/s of forward and backward")
    parser.add_argument("--memory", type=float, default=2.8, help="TB/s")
    given = parser.parse_args()
    flops = dict(
        zip(("forward", "backward"), (1e12 * float(x) for x in given.sm.split(",")), strict=True)
    )
    nodes, per_node = map(int, given.cluster.rpartition(":")[2].split("x"))
    print(
        "| strategy | tokens | direction | launches | keys (once) | kernel ms | eager: calls · "
        "gathered · merged · temporary GB · share | fused: the same | triton: the same |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for tokens in map(int, given.tokens.split(",")):
        [lengths] = ct.sample_lengths(
            given.dataset, tokens=tokens * nodes * per_node, seed=given.seed
        )
        for strategy in given.strategies.split(","):
            options = f":steps={given.steps}" if strategy == "auto" else ""
            plan = ct.plan(
                lengths,
                mask="causal",
                cluster=given.cluster,
                strategy=strategy + options,
                heads=HEADS,
                head_dim=DIM,
                dtype="bf16",
            )
            rows_of(plan, tokens, strategy, flops, 1e12 * given.memory)


if __name__ == "__main__":
    main()
