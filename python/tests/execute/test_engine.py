"""The engine torch computes exact attention: strategies, masks, kernels and numbers of ranks."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from engine_ranks import run_beside_native, run_cases, run_cases_by_triton_rows

from all_pairs import all_pairs
from ranks import run_ranks

LENGTHS = [40, 7, 1, 66, 30]
STRATEGIES = (
    "ring",
    "zigzag",
    "ulysses",
    "hybrid",
    "all_gather",
    "double_ring",
    "wlb",
    "bytescale",
    "megatron_dynamic",
    "megatron_packed",
    "magi",
    "dcp",
    "fcp",
    "distca",
    "auto:steps=3000",
)
MASKS = (
    "full",
    "causal",
    "sliding_window:9",
    "lambda:2,8",
    "causal_blockwise:8,2,1",
    "shared_question:0.3,3",
    "prefix_lm:5",
    "chunked:16",
)
HAS_TRITON = importlib.util.find_spec("triton") is not None
KERNELS = ("torch:tiles", "torch:cpu", "torch:flex", "torch:flash")
RANKS = (1, 2, 3, 4, 8)


@functools.cache
def planned(strategy: str, mask: str, ranks: int, **shape: Any) -> ct.Plan | None:
    """The plan, or None where the strategy has none for that mask and number of ranks."""
    shape = {"heads": (8, 4), "head_dim": 16, "dtype": "f32", "block_size": 16, **shape}
    try:
        return ct.plan(LENGTHS, mask=mask, cluster=f"local:1x{ranks}", strategy=strategy, **shape)
    except ct.InvalidArgument:
        return None


def saved(plan: ct.Plan, folder: Path) -> str:
    path = folder / f"{plan.digest}.plan"
    plan.save(path)
    return str(path)


def test_every_pair_of_strategy_mask_kernel_and_ranks_is_exact(tmp_path):
    by_ranks = defaultdict(list)
    parameters = (STRATEGIES, MASKS, KERNELS, RANKS)
    cases = list(all_pairs(parameters, lambda case: planned(*case[:2], case[3]) is not None))
    for values, found in zip(parameters, zip(*cases, strict=True), strict=True):
        assert set(values) == set(found)
    for strategy, mask, kernel, ranks in cases:
        by_ranks[ranks].append((saved(planned(strategy, mask, ranks), tmp_path), kernel, 1e-5))
    for ranks, some in by_ranks.items():
        run_ranks(run_cases, ranks, json.dumps(some))


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_unlike_strategies_are_exact_with_triton(tmp_path):
    cases = []
    unlike = ("zigzag", "ulysses", "megatron_dynamic", "magi", "dcp", "distca", "auto:steps=3000")
    for number, strategy in enumerate(unlike):
        masks = [*MASKS[number % len(MASKS) :], *MASKS]
        plans = (planned(strategy, mask, 2, heads=(4, 2)) for mask in masks)
        plan = next(plan for plan in plans if plan is not None)
        cases.append((saved(plan, tmp_path), "torch:triton", 1e-5))
    run_ranks(run_cases, 2, json.dumps(cases))


@pytest.mark.whole
@pytest.mark.parametrize("ranks", RANKS)
def test_the_whole_product_is_exact(tmp_path, ranks):
    kernels = (*KERNELS, "torch:triton") if HAS_TRITON else KERNELS
    cases = [
        (saved(planned(strategy, mask, ranks), tmp_path), kernel, 1e-5)
        for strategy, mask, kernel in itertools.product(STRATEGIES, MASKS, kernels)
        if planned(strategy, mask, ranks) is not None
    ]
    assert len(cases) >= 300
    run_ranks(run_cases, ranks, json.dumps(cases), timeout=3600)


# Relative to the largest number of the result. Rounding to bf16 is 2^-9 of a number at most: of
# inputs, of a partial result before it is merged, of what travels, of the result.
BOUND_BF16 = 4 * 2**-8


OF_TRITON = (
    ("zigzag", "torch:triton", 1e-5, {"value_dim": 32, "sink": True}),
    ("dcp", "torch:triton", 1e-5, {"heads": (4, 1), "head_dim": 24, "softcap": 5.0}),
    ("ulysses", "torch:triton", BOUND_BF16 / 8, {"dtype": "f16"}),
)[: 3 * HAS_TRITON]


def test_unlike_shapes_and_dtypes_are_exact(tmp_path):
    cases = []
    for strategy, kernel, bound, shape in (
        ("zigzag", "", 1e-5, {"sink": True}),
        ("fcp", "torch:flash", 1e-5, {"sink": True}),
        ("dcp", "torch:flex", 1e-5, {"sink": True, "softcap": 5.0}),
        ("auto:steps=3000", "torch:tiles", 1e-5, {"softcap": 5.0}),
        ("auto:steps=3000", "", 1e-5, {"value_dim": 8}),
        ("ulysses", "torch:flash", 1e-5, {"value_dim": 8}),
        ("zigzag", "torch:flex", 1e-5, {"value_dim": 32}),
        ("distca", "", 1e-5, {"heads": (4, 4), "scale": 0.5}),
        ("ring", "", 1e-5, {"heads": (4, 1), "head_dim": 24}),
        ("dcp", "torch:cpu", BOUND_BF16, {"dtype": "bf16"}),
        ("magi", "torch:flash", BOUND_BF16, {"dtype": "bf16"}),
        ("auto:steps=3000", "torch:tiles", BOUND_BF16, {"dtype": "bf16"}),
        ("zigzag", "torch:flex", BOUND_BF16, {"dtype": "bf16"}),
        ("hybrid", "torch:cpu", BOUND_BF16 / 8, {"dtype": "f16"}),
        *OF_TRITON,
    ):
        plan = planned(strategy, "causal", 2, **shape)
        cases.append((saved(plan, tmp_path), kernel, bound))
    run_ranks(run_cases, 2, json.dumps(cases))


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_triton_kernels_for_rows_are_exact(tmp_path):
    cases = [
        (saved(planned(strategy, mask, 2, **shape), tmp_path), kernel, bound)
        for strategy, mask, kernel, bound, shape in (
            ("zigzag", "causal", "torch:flash", 1e-5, {}),
            ("hybrid", "lambda:2,8", "torch:flash", 1e-5, {"sink": True}),
            ("fcp", "causal_blockwise:8,2,1", "torch:tiles", 1e-5, {"softcap": 5.0}),
            ("ulysses", "causal", "torch:cpu", 1e-5, {}),
            ("magi", "causal", "torch:triton", 1e-5, {"value_dim": 8}),
            ("dcp", "causal", "torch:flash", BOUND_BF16, {"dtype": "bf16"}),
        )
    ]
    run_ranks(run_cases_by_triton_rows, 2, json.dumps(cases))


def test_masks_of_layers_homes_and_partials_on_the_wire_are_exact(tmp_path):
    shape: Any = {"heads": (4, 2), "head_dim": 16, "dtype": "f32", "block_size": 16}
    several = ct.plan(
        LENGTHS,
        mask={"local": "sliding_window:9", "all": "causal"},
        cluster="local:1x3",
        strategy="dcp",
        **shape,
    )
    run_ranks(run_cases, 3, json.dumps([(saved(several, tmp_path), "", 1e-5)]))


def test_bias_and_dropout_are_those_of_the_engine_native(tmp_path):
    cases = []
    for strategy, ranks in (("zigzag", 3), ("dcp", 3), ("ulysses", 2)):
        plan = planned(strategy, "causal", ranks)
        for name in ("alibi", "t5", "dropout", "t5, dropout"):
            cases.append((ranks, (saved(plan, tmp_path), "", name)))
            if HAS_TRITON and strategy == "ulysses" and name in ("alibi", "t5, dropout"):
                cases.append((ranks, (saved(plan, tmp_path), "torch:triton", name)))
    for ranks in (2, 3):
        some = [case for number, case in cases if number == ranks]
        run_ranks(run_beside_native, ranks, json.dumps(some))
