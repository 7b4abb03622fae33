"""Plans whose ranks own multiples of some number of tokens, or equally many."""

from __future__ import annotations

import pytest

import contextile as ct
from contextile import _core
from contextile._planning import options_of

SMALL = {"heads": (4, 2), "head_dim": 32, "dtype": "f32"}
LENGTHS = [700, 90, 346, 16]  # 1152 tokens: 384 and 576 of 3 and 2 ranks


def owned(plan):
    return [plan.num_local_tokens(rank) for rank in range(plan.num_devices)]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("strategy", ["zigzag", "wlb", "dcp", "magi", "fcp", "auto:steps=100000"])
def test_ranks_own_multiples_or_equally_many_tokens(strategy, ranks):
    given = {"cluster": f"local:1x{ranks}", "strategy": strategy, "mask": "lambda:8,64", **SMALL}
    plan = ct.plan(LENGTHS, tokens_multiple=16, **given)
    assert sum(owned(plan)) == 1152
    assert all(tokens % 16 == 0 for tokens in owned(plan))
    assert owned(ct.plan(LENGTHS, equal_tokens=True, **given)) == [1152 // ranks] * ranks


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens_multiple": 0}, "tokens_multiple: expected at least 1, found 0"),
        ({"tokens_multiple": 2.5}, "tokens_multiple: expected a whole number, found 2.5"),
        ({"equal_tokens": 1}, "equal_tokens: expected True or False, found 1"),
        (
            {"tokens_multiple": 100},
            "tokens_multiple: expected a batch of a multiple of 100 tokens, found 1152; "
            "pad it by 48",
        ),
        (
            {"equal_tokens": True, "tokens_multiple": 256},
            "equal_tokens: expected a batch of a multiple of 1024 tokens (256 on each of 4 "
            "devices), found 1152; pad it by 896",
        ),
        (
            {"equal_tokens": True, "home": "zigzag"},
            "equal_tokens: expected a workload without a home layout, which says itself how many "
            "tokens a device owns",
        ),
    ],
)
def test_what_no_plan_keeps_to_is_refused(given, message):
    with pytest.raises(ct.InvalidArgument) as refused:
        ct.plan(LENGTHS, cluster="local:1x4", strategy="zigzag", **SMALL, **given)
    assert str(refused.value) == message


def test_options_have_it():
    assert _core.PlanOptions().tokens_multiple == 1
    assert _core.PlanOptions().equal_tokens is False
    workload = ct.make_workload(LENGTHS, **SMALL)
    given = options_of(
        {"tokens_multiple": 16, "equal_tokens": True},
        shape=workload.shape,
        cluster=ct.Cluster.load("local:1x2"),
    )
    assert (given.tokens_multiple, given.equal_tokens) == (16, True)


def test_comparisons_and_schedules_keep_to_it():
    rows = ct.compare(
        LENGTHS, cluster="local:1x4", strategies="wlb,dcp", equal_tokens=True, **SMALL
    )
    assert [row.uneven_us for row in rows] == [0, 0]
    given = {"cluster": "local:1x4", "strategy": "megatron_dynamic", **SMALL}
    schedule = ct.schedule([704, 96, 336, 16], tokens_multiple=16, **given)
    plans = [batch.plan for one in schedule.rounds for batch in one.micro_batches]
    assert all(tokens % 16 == 0 for plan in plans for tokens in owned(plan))
    with pytest.raises(ct.InvalidArgument, match=r"sequence 0 .*: tokens_multiple: expected a"):
        ct.schedule([700, 100, 336, 16], tokens_multiple=16, **given)


@pytest.mark.parametrize("strategy", ["zigzag", "ring", "hybrid", "dcp", "fcp", "magi"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_plans_of_unlike_shapes_share_the_placement(strategy, ranks):
    for lengths in (LENGTHS, [51, 61, 32], [400, 7, 300, 61]):
        plans = ct.plans(
            lengths,
            mask={"full": "causal", "near": "sliding_window:64"},
            heads={"full": (8, 4), "near": (4, 4)},
            head_dim=32,
            cluster=f"local:1x{ranks}",
            strategy=strategy,
            tokens_multiple=16,
        )
        assert all(tokens % 16 == 0 for tokens in owned(plans["full"]))
        assert owned(plans["near"]) == owned(plans["full"])


def test_comparisons_skip_micro_batches_that_are_no_multiples():
    rows = ct.compare(
        [500, 300, 224],
        cluster="local:1x4",
        strategies="zigzag,bytescale",
        tokens_multiple=16,
        **SMALL,
    )
    by_name = {row.strategy: row for row in rows}
    assert by_name["zigzag"].ok and not by_name["bytescale"].ok
    assert "tokens_multiple: expected a batch of a multiple of 16" in by_name["bytescale"].skipped


def test_devices_that_only_compute_own_no_equal_share():
    with pytest.raises(ct.InvalidArgument, match="attention_servers has devices without tokens"):
        ct.plan(
            LENGTHS,
            cluster="local:1x4",
            strategy="distca:attention_servers=1",
            equal_tokens=True,
            **SMALL,
        )
