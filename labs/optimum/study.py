"""One instance: auto, the bound, the solver's bound and the best plan known."""

from __future__ import annotations

import dataclasses
import math

import contextile as ct
from optimum import bound, instances, plans
from optimum.costs import Costs, token_limit_of

MOST_BLOCKS = 24
RATIOS = ("auto/best", "auto/lower", "best/lower", "bound/lower", "bound/best")
HEADER = (
    "| cluster | documents | heads | mask | blocks | auto, µs | best plan, µs | solver's bound, "
    "µs | bound, µs | auto / best | auto / solver | best / solver | bound / solver | status |\n"
    + "|---" * 14
    + "|"
)


def attention_us(costs, placement):
    """Attention of every device in the model, with the calls of the placement."""
    calls = {}
    for at, device in enumerate(placement.devices):
        groups = calls.setdefault((device, placement.stages[at]), {})
        groups.setdefault(at % costs.groups, []).append(at // costs.groups)
    total = [0.0] * costs.cluster.num_devices
    for (device, _), groups in calls.items():
        total[device] += costs.call_ns + sum(costs.attention_ns(tiles) for tiles in groups.values())
    return [one / 1e3 for one in total]


def check_model(costs, placement):
    """Refuses a model whose attention times are not the simulator's."""
    simulated = plans.build(costs, placement).simulate().forward
    found = [device.attention_us for device in simulated.devices]
    expected = attention_us(costs, placement)
    if any(not math.isclose(a, b, rel_tol=1e-6) for a, b in zip(expected, found, strict=True)):
        raise AssertionError(f"attention: expected {expected} µs, found {found} in the simulation")


def measure(instance, equal_blocks, solve_s, num_plans, threads):
    """The row of an instance, in the blocks of auto's plan or in equal ones."""
    workload, cluster = instance.workload(), instances.cluster_of(instance.cluster)
    auto = ct.plan(
        workload,
        cluster=cluster,
        strategy="auto:objective=attention",
        block_size=instance.block_size,
        token_limit=token_limit_of(workload, cluster),
        backward=False,
        wire=workload.shape.dtype,
    )
    auto_us = auto.simulate().forward.time_us
    blocks = plans.blocks_of(auto)
    in_blocks = len(blocks) <= MOST_BLOCKS and not equal_blocks
    costs = Costs(workload, cluster, blocks if in_blocks else instance.block_size)
    bound_us = ct.lower_bound(workload, cluster=cluster).time_us
    start = plans.contiguous(costs)
    seeds = [start]
    like_auto = plans.placement_like(costs, auto)
    if like_auto is not None:
        seeds.append(like_auto)
    search = plans.Annealing(costs, seed=1)
    known, known_us = best_of([search.improve(seed, num_plans // 6) for seed in seeds])
    solved = bound.solve(costs, bound_us, known, known_us, solve_s, threads)
    check_model(costs, known)
    found = [(known, known_us), search.improve(known, num_plans // 3)]
    if solved.placement is not None:
        found.append(search.improve(solved.placement, num_plans // 3))
    best, best_us = best_of(found)
    return row_of(instance, solved, bound_us, auto, auto_us, best, best_us) | {
        "blocks": len(costs.tokens),
        "auto_in_blocks": in_blocks,
        "evaluated": search.evaluated,
    }


def best_of(found):
    return min(found, key=lambda pair: pair[1])


def row_of(instance, solved, bound_us, auto, auto_us, best, best_us):
    return {
        "cluster": instance.cluster,
        "documents": instance.documents,
        "heads": instance.heads,
        "mask": instance.mask,
        "auto_us": auto_us,
        "found_us": best_us,
        "best_us": min(best_us, auto_us),
        "lower_us": solved.lower_us,
        "model_us": solved.model_us,
        "bound_us": bound_us,
        "status": solved.status,
        "solve_s": solved.seconds,
        "auto_chose": {key: auto.options[key] for key in auto.options if key.startswith("chosen")},
        "found": dataclasses.asdict(best),
        "auto/best": auto_us / min(best_us, auto_us),
        "auto/lower": auto_us / solved.lower_us,
        "best/lower": min(best_us, auto_us) / solved.lower_us,
        "bound/lower": bound_us / solved.lower_us,
        "bound/best": bound_us / min(best_us, auto_us),
    }


def line(row):
    names = " | ".join(row[key] for key in ("cluster", "documents", "heads", "mask"))
    times = " | ".join(f"{row[key]:.1f}" for key in ("auto_us", "best_us", "lower_us", "bound_us"))
    ratios = " | ".join(f"{row[key]:.2f}" for key in RATIOS[:4])
    mark = "" if row["auto_in_blocks"] else ", other blocks"
    return f"| {names} | {row['blocks']} | {times} | {ratios} | {row['status']}{mark} |"
