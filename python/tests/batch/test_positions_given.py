"""Masks without a rule, whose positions and labels are not known: they are given, or refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import contextile.transformers as cth
from contextile.torch import DataLoader, Executor, collect, local_batch, roll
from ranks import run_ranks
from tiny_models import make_tiny

LENGTH, BLOCK = 24, 4  # of a noisy copy, which the clean one follows
LLAMA = (
    "LlamaForCausalLM",
    "LlamaConfig",
    {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    },
)


def block_diffusion(batch, head, q, k):
    """The mask of block diffusion: noisy blocks see themselves and clean blocks before them."""
    noisy_q, noisy_k = q < LENGTH, k < LENGTH
    block_q, block_k = q % LENGTH // BLOCK, k % LENGTH // BLOCK
    return torch.where(
        noisy_q,
        torch.where(noisy_k, block_q == block_k, block_q > block_k),
        ~noisy_k & (block_q >= block_k),
    )


def positions_of(lengths):
    return np.concatenate([np.arange(length) % LENGTH for length in lengths])


def make_plan(size=1, **options):
    given = {
        "mask": ct.masks.from_mask_mod(block_diffusion, num_tokens=2 * LENGTH),
        "heads": (4, 2),
        "head_dim": 8,
        "dtype": "f32",
    }
    return ct.plan(
        [2 * LENGTH],
        cluster=f"local:1x{size}",
        strategy="dcp",
        block_size=4,
        **{**given, **options},
    )


def tokens_and_labels():
    generator = torch.Generator().manual_seed(1)
    clean = torch.randint(3, 64, (LENGTH,), generator=generator)
    is_noisy = torch.rand(LENGTH, generator=generator) < 0.5
    labels = torch.cat([torch.where(is_noisy, clean, -100), torch.full_like(clean, -100)])
    return torch.cat([torch.where(is_noisy, 2, clean), clean]), labels


def test_asks_for_positions():
    plan = make_plan(2)
    tokens, labels = tokens_and_labels()
    for rank in range(2):
        with pytest.raises(
            ct.InvalidArgument,
            match=r"positions: expected a plan with positions \(positions=…\).*\[4, 48\)",
        ):
            local_batch(tokens, plan=plan, rank=rank, shift_labels=labels)
        with pytest.raises(ct.InvalidArgument, match="positions=…"):
            plan.next_tokens(rank)
        with pytest.raises(ct.InvalidArgument, match="positions=…"):
            plan.rolled_tokens(rank)
    assert ct.Plan.from_bytes(plan.to_bytes()).position_segments[-1] == (4, 48, 0, 0, -3)
    assert ct.Plan.from_json(plan.to_json()).digest == plan.digest


def test_asks_for_labels():
    plan = make_plan(2, positions=positions_of)
    tokens, labels = tokens_and_labels()
    assert sorted(np.concatenate([plan.positions(rank) for rank in range(2)]).tolist()) == sorted(
        [*range(LENGTH)] * 2
    )
    with pytest.raises(
        ct.InvalidArgument, match=r"shift_labels.*\[0, 24\) have positions of their own"
    ):
        local_batch(tokens, plan=plan, rank=0)
    with pytest.raises(
        ct.InvalidArgument, match="shift_labels: expected no labels and no loss_mask.*found labels"
    ):
        local_batch(tokens, plan=plan, rank=0, labels=labels, shift_labels=labels)
    parts = [local_batch(tokens, plan=plan, rank=rank, shift_labels=labels) for rank in range(2)]
    for rank, local in enumerate(parts):
        mine = torch.from_numpy(plan.local_tokens(rank))
        assert torch.equal(local.labels, labels[mine])
        assert torch.equal(local.tokens, tokens[mine])
        assert torch.equal(local.positions, mine % LENGTH)
        assert torch.equal(local.loss_weights > 0, local.labels != -100)
    assert float(sum(local.loss_weights.sum() for local in parts)) == pytest.approx(1)
    given = torch.arange(2 * LENGTH, dtype=torch.float32)
    local = local_batch(tokens, plan=plan, rank=0, shift_labels=labels, loss_weights=given)
    assert torch.equal(local.targets.loss_weights, given[local.targets.tokens])
    assert ct.Plan.from_bytes(plan.to_bytes()).position_segments == plan.position_segments
    assert ct.Plan.from_json(plan.to_json()).position_segments == plan.position_segments


def test_positions_that_are_known():
    # In the order in which tokens are stored, whatever the mask.
    plan = make_plan(1, positions=range(2 * LENGTH))
    assert plan.position_segments == [(0, 2 * LENGTH, 0, 0, -1)]
    # Those that a rule sets anyway, and those of one document that are others.
    batch = {"cluster": "local:1x1", "strategy": "zigzag", "heads": (4, 2), "head_dim": 8}
    tree = ct.plan([25], mask="shared_question:[10,5,5,5]", **batch)
    again = ct.plan([25], mask="shared_question:[10,5,5,5]", positions=_in_order(tree), **batch)
    assert again.position_segments == tree.position_segments and again.digest == tree.digest
    plan = ct.plan([3, 2], positions=np.array([5, 6, 7, 0, 1], dtype=np.int32), **batch)
    assert plan.position_segments == [(0, 3, 0, 5, -2), (3, 5, 1, 0, -1)]


def _in_order(plan):
    positions = np.zeros(plan.num_tokens, dtype=np.int64)
    positions[plan.local_tokens(0)] = plan.positions(0)
    return positions


@pytest.mark.parametrize(
    "positions, found",
    [
        ([0, 1], "expected one for each of 48 tokens, found 2"),
        ([0.5] * 48, r"expected whole numbers, one for each token, found \[48\] of float64"),
        ([[0, 1]] * 24, r"found \[24, 2\] of int64"),
        ([-1] * 48, "found -1 of token 0"),
        ("text", "expected whole numbers"),
        (np.array([2**63] * 48, dtype=np.uint64), r"below 2\*\*63"),
        (lambda lengths: None, "expected whole numbers"),
        ([[0], [1, 2]], "expected whole numbers"),
        (torch.ones(48, dtype=torch.bool), "of bool"),
    ],
)
def test_refuses_other_positions(positions, found):
    with pytest.raises(ct.InvalidArgument, match=f"positions: .*{found}"):
        make_plan(1, positions=positions)


def test_bias_needs_positions():
    from contextile.torch import alibi, attention

    x = torch.zeros(2 * LENGTH, 4, 8)
    for options in ({}, {"positions": positions_of}):
        executor = Executor(ct.inproc_group(1)[0])
        executor.prepare(make_plan(1, **options))
        refused = (
            contextlib.nullcontext()
            if options
            else pytest.raises(ct.InvalidArgument, match="positions=…")
        )
        with refused:
            attention(x, x[:, :2], x[:, :2], executor=executor, bias=alibi(4))


def test_bias_needs_positions_that_kernels_compute_with():
    from contextile.torch import alibi, attention

    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(
        ct.plan(
            [4],
            positions=[0, 1, 2, 2**31],
            cluster="local:1x1",
            strategy="zigzag",
            heads=(4, 2),
            head_dim=8,
            dtype="f32",
        )
    )
    x = torch.zeros(4, 4, 8)
    with pytest.raises(
        ct.InvalidArgument,
        match="expected positions up to 1073741824 with a bias, found 2147483648",
    ):
        attention(x, x[:, :2], x[:, :2], executor=executor, bias=alibi(4))


def test_layers_in_order_need_positions():
    from contextile.torch import chunks_of

    for options, found in (
        ({}, "of a mask without a rule"),
        ({"positions": positions_of}, "of a mask without a rule"),
    ):
        executor = Executor(ct.inproc_group(1)[0])
        executor.prepare(make_plan(1, **options))
        with pytest.raises(ct.InvalidArgument, match=found):
            chunks_of(executor)
    executor.prepare(make_plan(1, positions=range(2 * LENGTH)))
    assert chunks_of(executor) is not None


def test_loader_takes_labels_as_they_are():
    tokens, labels = tokens_and_labels()

    class Copies:
        lengths = (2 * LENGTH,)

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return {"tokens": tokens, "shift_labels": labels}

    mask = ct.masks.from_mask_mod(block_diffusion, num_tokens=2 * LENGTH)
    batch = {"heads": (4, 2), "head_dim": 8, "dtype": "f32", "positions": positions_of}
    for ranks in (1, 2):
        weights = 0.0
        for rank in range(ranks):
            loader = DataLoader(
                Copies(),
                cluster=f"local:1x{ranks}",
                strategy="zigzag",
                rank=rank,
                tokens=2 * LENGTH,
                mask=mask,
                end_step=1,
                **batch,
            )
            (step,) = loader
            assert torch.equal(
                step.local.labels, labels[torch.from_numpy(step.plan.local_tokens(rank))]
            )
            assert step.num_labels == int((labels != -100).sum())
            weights += float(step.local.loss_weights.sum())
        assert weights == pytest.approx(1)


def train():
    tokens, labels = tokens_and_labels()
    one, model = make_tiny(*LLAMA, "eager"), make_tiny(*LLAMA, cth.register())
    index = torch.arange(2 * LENGTH)
    is_pair = block_diffusion(0, 0, index[:, None], index[None])
    dense = torch.where(is_pair, 0.0, torch.finfo(torch.float32).min)[None, None]
    whole = one(
        tokens[None], attention_mask=dense, position_ids=index[None] % LENGTH, use_cache=False
    ).logits[0]
    loss = torch.nn.functional.cross_entropy(whole, labels)
    loss.backward()

    import torch.distributed as dist

    executor = Executor()
    plan = make_plan(
        executor.size,
        **{
            **cth.batch_of(model),
            "mask": ct.masks.from_mask_mod(block_diffusion, num_tokens=2 * LENGTH),
        },
        positions=positions_of,
    )
    executor.prepare(plan)
    local = local_batch(tokens, plan=plan, rank=executor.rank, shift_labels=labels)
    with cth.use(executor, check_masks=False):
        logits = model(
            local.tokens[None], position_ids=local.positions[None], use_cache=False
        ).logits[0]
        mine = (
            local.loss_weights
            * torch.nn.functional.cross_entropy(
                logits, local.labels, reduction="none", ignore_index=-100
            )
        ).sum()
        mine.backward()
    found = collect(logits.detach(), plan=plan)
    assert float((found - whole).abs().max() / whole.abs().max()) < 1e-5
    total = mine.detach().clone()
    dist.all_reduce(total)
    assert float(total) == pytest.approx(float(loss), rel=1e-5)
    for (name, parameter), expected in zip(model.named_parameters(), one.parameters(), strict=True):
        dist.all_reduce(parameter.grad)
        assert (
            float((parameter.grad - expected.grad).abs().max() / expected.grad.abs().max()) < 2e-5
        ), name

    # Positions of another kind are refused; labels by rolling are, too.
    with (
        pytest.raises(
            ct.InvalidArgument, match="position_ids: expected those of this rank's tokens"
        ),
        cth.use(executor, check_masks=False),
    ):
        model(
            local.tokens[None], position_ids=torch.arange(len(local.tokens))[None], use_cache=False
        )
    with pytest.raises(ct.InvalidArgument, match="shift_labels"):
        roll(local.tokens, -1, plan=plan)
    executor.prepare(make_plan(executor.size, **{**cth.batch_of(model), "mask": plan.mask()}))
    with (
        pytest.raises(ct.InvalidArgument, match="positions=…"),
        cth.use(executor, check_masks=False),
    ):
        model(local.tokens[None], position_ids=local.positions[None], use_cache=False)


@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
@pytest.mark.parametrize("ranks", [2, 3])
def test_block_diffusion_trains_as_in_one_process(ranks):
    run_ranks(train, ranks)
