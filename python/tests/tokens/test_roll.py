"""Rows of other tokens of a document, on several ranks and in one process."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
if not ct.gloo_available():
    pytest.skip("this build has no gloo", allow_module_level=True)

from contextile.torch import dispatch, roll
from ranks import run_ranks

LENGTHS = [70, 26, 160, 1, 3]
FEW = [2]  # tokens for more ranks
STRATEGIES = ["ring", "zigzag", "fcp:block=16", "magi", "distca:nano_batches=1", "dcp", "bytescale"]
SHIFTS = [0, -1, 1, -2, 5, -300, 10**12]


def planned(lengths, strategy="zigzag", **options):
    return ct.plan(
        lengths,
        cluster=ct.Cluster.from_torch(),
        strategy=strategy,
        block_size=16,
        heads=(4, 2),
        head_dim=16,
        dtype="f32",
        **options,
    )


def rolled_in_one_process(whole, shifts, plan, fill=0):
    expected = torch.full_like(whole, fill)
    for begin, end in plan.sequences:
        for token in range(begin, end):
            if begin <= token - shifts < end:
                expected[token] = whole[token - shifts]
    return expected


def roll_on_ranks():
    import torch.distributed as dist

    rank = dist.get_rank()
    for strategy in STRATEGIES:
        whole_plan = planned(LENGTHS, strategy)
        ids = torch.arange(whole_plan.num_tokens) * 7 % 1009
        for plan in (whole_plan, ct.Plan.slice_from_bytes(whole_plan.slice_to_bytes(rank))):
            for shifts in SHIFTS:
                expected = rolled_in_one_process(ids, shifts, whole_plan, -100)
                found = roll(
                    dispatch(ids, plan=whole_plan, rank=rank), shifts, plan=plan, fill=-100
                )
                assert torch.equal(found, dispatch(expected, plan=whole_plan, rank=rank)), (
                    strategy,
                    shifts,
                )
    check_gradients(rank)
    check_dtypes(rank)
    # Documents that a mask alone keeps apart.
    edges = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    apart = planned([sum(LENGTHS)], mask=ct.masks.from_cu_seqlens(edges))
    ids = torch.arange(apart.num_tokens)
    found = roll(dispatch(ids, plan=apart, rank=rank), -1, plan=apart, fill=-100)
    assert torch.equal(
        found,
        dispatch(rolled_in_one_process(ids, -1, planned(LENGTHS), -100), plan=apart, rank=rank),
    )
    plan = planned(FEW)
    mine = torch.full((max(plan.num_local_tokens(rank), 1),), 5)
    assert roll(mine, -1, plan=plan).shape == mine.shape  # also of a rank with a filler


def check_gradients(rank):
    plan = planned(LENGTHS)
    generator = torch.Generator().manual_seed(0)
    for shifts in SHIFTS:
        whole = torch.randn(3, plan.num_tokens, 5, generator=generator).requires_grad_()
        weights = torch.randn(3, plan.num_tokens, 5, generator=generator)
        expected = (
            rolled_in_one_process(whole.movedim(1, 0), shifts, plan).movedim(0, 1) + 0 * whole
        )
        (expected.sin() * weights).sum().backward()
        mine = dispatch(whole.detach(), plan=plan, rank=rank, dim=1).requires_grad_()
        found = roll(mine, shifts, plan=plan, dim=1)
        assert torch.equal(found, dispatch(expected.detach(), plan=plan, rank=rank, dim=1))
        (found.sin() * dispatch(weights, plan=plan, rank=rank, dim=1)).sum().backward()
        assert torch.equal(mine.grad, dispatch(whole.grad, plan=plan, rank=rank, dim=1))


def check_dtypes(rank):
    plan = planned(LENGTHS)
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.float64, torch.bfloat16):
        whole = (torch.arange(plan.num_tokens) % 2).to(dtype)
        found = roll(dispatch(whole, plan=plan, rank=rank), -1, plan=plan)
        assert found.dtype is dtype
        assert torch.equal(
            found, dispatch(rolled_in_one_process(whole, -1, plan), plan=plan, rank=rank)
        )


def roll_refuses():
    import torch.distributed as dist

    rank = dist.get_rank()
    plan = planned(LENGTHS)
    mine = torch.zeros(plan.num_local_tokens(rank))
    for shifts, fill in ((rank - 5, 0), (-1, rank)):
        with pytest.raises(ct.InvalidArgument, match="on all ranks"):
            roll(mine, shifts, plan=plan, fill=fill)
    tree = planned([25], mask="shared_question:[10,5,5,5]")
    with pytest.raises(
        ct.InvalidArgument, match=r"found a branch at \[15, 20\); local_batch has targets"
    ):
        roll(torch.zeros(tree.num_local_tokens(rank)), -1, plan=tree)
    with pytest.raises(ct.InvalidArgument, match="shifts: expected an integer"):
        roll(mine, 1.5, plan=plan)
    with pytest.raises(ct.InvalidArgument, match="tokens"):
        roll(mine[:-1], 1, plan=plan)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_token_gets_the_row_of_another_one_of_its_document(ranks):
    run_ranks(roll_on_ranks, ranks)


def test_ranks_that_differ_all_refuse():
    run_ranks(roll_refuses, 2)
