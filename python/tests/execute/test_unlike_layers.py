"""Models whose layers have unlike shapes: several plans of one placement under one executor."""

from __future__ import annotations

import numpy as np
import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from contextile.torch import DataLoader, Executor, attention, dispatch, local_batch
from reference import inputs, relative_error, run_dense

LENGTHS = [300, 90, 10]
MASKS = {"full": ("causal", 1), "sliding": ("sliding_window:40", 5)}
SHAPES = {"full": ((4, 1), 32), "sliding": ((4, 2), 16)}
BATCH = {
    "mask": MASKS,
    "heads": {name: shape[0] for name, shape in SHAPES.items()},
    "head_dim": {name: shape[1] for name, shape in SHAPES.items()},
    "dtype": "f32",
    "block_size": 16,
}


def plans_of(strategy="dcp", ranks=4, **changes):
    return ct.plans(LENGTHS, cluster=f"local:1x{ranks}", strategy=strategy, **{**BATCH, **changes})


@pytest.mark.parametrize("strategy", ["zigzag", "dcp", "fcp", "ulysses"])
def test_layers_of_two_shapes_have_the_results_of_one_process(strategy):
    changes = {"heads": {"full": (4, 4), "sliding": (8, 4)}} if strategy == "ulysses" else {}
    plans = plans_of(strategy, **changes)
    shapes = {
        name: ((p.shape.q_heads, p.shape.kv_heads), p.shape.head_dim) for name, p in plans.items()
    }
    tensors = {
        name: inputs(sum(LENGTHS), *shape, seed=index)
        for index, (name, shape) in enumerate(shapes.items())
    }

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plans)
        rank, found = transport.rank, []
        for name in ("full", "sliding", "full"):  # forwards of layers in turn, then backwards
            q, k, v, dout = (dispatch(x, plan=plans["full"], rank=rank) for x in tensors[name])
            leaves = [x.requires_grad_() for x in (q, k, v)]
            found.append((name, leaves, attention(*leaves, executor=executor, mask=name), dout))
        for _, _, out, dout in reversed(found):
            out.backward(dout)
        return [(name, [out.detach(), *(x.grad for x in leaves)]) for name, leaves, out, _ in found]

    results = ct.run_inproc(4, body)
    for layer in range(3):
        name = results[0][layer][0]
        plan = plans[name]
        mask = plan.mask(plan.mask_names.index(name)).dense()
        for index, expected in enumerate(run_dense(tensors[name], mask)):
            whole = torch.zeros_like(expected, dtype=torch.float32)
            for rank in range(4):
                whole[torch.from_numpy(plan.local_tokens(rank))] = results[rank][layer][1][index]
            assert relative_error(whole, expected) < 1e-5, (name, index)


def test_all_plans_have_one_placement():
    plans = plans_of()
    first, other = plans["full"], plans["sliding"]
    assert first != other and list(plans) == ["full", "sliding"]
    for rank in range(4):
        assert np.array_equal(first.local_tokens(rank), other.local_tokens(rank))
    # Masks of one shape have one plan.
    same = plans_of(heads=(4, 2), head_dim=16)
    assert same["full"] is same["sliding"] and same["full"].mask_names == ["full", "sliding"]
    assert list(ct.plans([64], cluster="local:1x1", strategy="dcp")) == ["causal"]


def test_the_layers_with_most_work_place_the_tokens():
    alone = ct.plan(
        LENGTHS,
        cluster="local:1x4",
        strategy="dcp",
        mask={"sliding": ("sliding_window:40", 500)},
        heads=(4, 2),
        head_dim=16,
        dtype="f32",
        block_size=16,
    )
    plans = plans_of(mask={"full": ("causal", 1), "sliding": ("sliding_window:40", 500)})
    assert [plans["full"].local_tokens(r).tolist() for r in range(4)] == [
        alone.local_tokens(r).tolist() for r in range(4)
    ]


def test_plans_of_other_placements_are_refused():
    def plan_of(name, **changes):
        one = {"mask": {name: MASKS[name]}, "heads": SHAPES[name][0], "head_dim": SHAPES[name][1]}
        return ct.plan(LENGTHS, cluster="local:1x2", strategy="dcp", **{**BATCH, **one, **changes})

    def prepare(plans):
        return ct.run_inproc(2, lambda transport: Executor(transport).prepare(plans))

    full = plan_of("full")
    with pytest.raises(
        ct.InvalidArgument, match="plan 'sliding': expected the placement of the first plan"
    ):
        prepare({"full": full, "sliding": plan_of("sliding", home="contiguous")})
    home = sorted((*row, rank) for rank in range(2) for row in full.local_ranges(rank))
    prepare({"full": full, "sliding": plan_of("sliding", home=home)})
    with pytest.raises(
        ct.InvalidArgument,
        match="plan 'sliding': expected dtype f32, as the first plan, found bf16",
    ):
        prepare({"full": full, "sliding": plan_of("sliding", home=home, dtype="bf16")})
    with pytest.raises(
        ct.InvalidArgument,
        match=r"mask: expected one of the plan's \(full, sliding\), found 'other'",
    ):
        prepare(
            {
                "other": ct.plan(
                    LENGTHS,
                    cluster="local:1x2",
                    strategy="dcp",
                    **{**BATCH, "heads": 4, "head_dim": 8},
                )
            }
        )
    with pytest.raises(ct.InvalidArgument, match="expected at least one, found none"):
        prepare({})


def test_strategies_that_do_not_keep_a_placement_are_refused():
    batch = {
        **BATCH,
        "mask": {"full": "causal", "sliding": "sliding_window:100"},
        "heads": 4,
        "block_size": 64,
    }
    with pytest.raises(
        ct.InvalidArgument, match=r"expected the placement of the first plan.*\(strategy wlb\)"
    ):
        ct.plans([900, 330, 57], cluster="local:1x4", strategy="wlb", **batch)


def test_shapes_by_mask_are_refused_where_there_is_one_plan():
    with pytest.raises(
        ct.InvalidArgument,
        match=(
            "heads: expected one for all masks, found one for each of full, sliding; "
            "contextile.plans"
        ),
    ):
        ct.plan(LENGTHS, cluster="local:1x2", **BATCH)
    with pytest.raises(
        ct.InvalidArgument,
        match="head_dim: expected one for each of 'full', 'sliding', found 'full'",
    ):
        plans_of(head_dim={"full": 32})


def test_batches_of_several_plans_may_be_in_flight():
    def body(transport):
        executor = Executor(transport, plans_kept=2)
        handles = [executor.prepare(plans_of(ranks=2, block_size=block)) for block in (16, 32)]
        outs = []
        for handle in handles:
            rows = handle.plan.num_local_tokens(transport.rank)
            for name, (heads, dim) in SHAPES.items():
                q, k, v = (
                    torch.ones(rows, count, dim, requires_grad=True)
                    for count in (heads[0], heads[1], heads[1])
                )
                outs.append((q, attention(q, k, v, executor=executor, plan=handle, mask=name)))
        for q, out in outs:
            out.sum().backward()
            assert q.grad is not None
        executor.close()
        return True

    assert ct.run_inproc(2, body) == [True, True]


def test_tokens_of_any_of_the_plans_are_this_batch():
    plans = plans_of(ranks=1)
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(plans)

    class Layer(torch.nn.Module):
        def forward(self, tokens, mask):
            heads, dim = SHAPES[mask]
            q, k, v = (
                torch.ones(len(tokens), count, dim) for count in (heads[0], heads[1], heads[1])
            )
            return attention(q, k, v, executor=executor, mask=mask)

    for plan in plans.values():
        local = local_batch(torch.arange(sum(LENGTHS)), plan=plan, rank=0)
        for name in plans:
            assert Layer()(local.tokens, name).shape[0] == sum(LENGTHS)
    other = local_batch(
        torch.arange(400), plan=ct.plan([400], cluster="local:1x1", strategy="dcp"), rank=0
    )
    with pytest.raises(ct.InvalidArgument, match="made for another"):
        Layer()(other.tokens, "full")


class Text:
    """Documents of one token each, again and again."""

    lengths = (70, 30, 50, 20, 90)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return [index + 1] * self.lengths[index]


def loader_of(rank, **changes):
    options = {
        "cluster": "local:1x2",
        "strategy": "dcp",
        "tokens": 128,
        "end_step": 3,
        "micro_batches": 2,
        **BATCH,
        **changes,
    }
    return DataLoader(Text(), rank=rank, **options)


def test_a_loader_plans_layers_of_unlike_shapes():
    def body(transport):
        executor, found = Executor(transport), []
        for step in loader_of(transport.rank):
            assert (
                step.plans["full"].shape.head_dim == 32
                and step.plans["sliding"].shape.kv_heads == 2
            )
            executor.prepare(step.plans)
            for name, ((q_heads, kv_heads), dim) in SHAPES.items():
                x = step.local.tokens[:, None, None].float()
                q, k, v = (
                    x.expand(-1, heads, dim).contiguous() for heads in (q_heads, kv_heads, kv_heads)
                )
                # All values that a token attends are those of its document.
                assert relative_error(attention(q, k, v, executor=executor, mask=name), q) < 1e-6
            lengths = [piece.num_tokens for piece in step.pieces]
            expected = ct.plans(lengths, cluster="local:1x2", strategy="dcp", **BATCH)
            assert {name: plan.digest for name, plan in step.plans.items()} == {
                name: plan.digest for name, plan in expected.items()
            }
            found.append((step.step, step.micro_batch, float(step.local.loss_weights.sum())))
        return found

    ranks = ct.run_inproc(2, body)
    assert [one[:2] for one in ranks[0]] == [
        (step, micro_batch) for step in range(3) for micro_batch in range(2)
    ]
    for step in range(3):
        assert (
            abs(sum(weight for rank in ranks for number, _, weight in rank if number == step) - 1)
            < 1e-5
        )


def test_a_loader_of_layers_of_one_shape_has_plans_by_mask():
    (step,) = loader_of(0, heads=(4, 2), head_dim=16, end_step=1, micro_batches=1)
    assert step.plans == {"full": step.plan, "sliding": step.plan}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"store": "memory:"},
            "layers of one shape with a schedule or a store, found a dict of shapes",
        ),
        (
            {"schedule": "bytescale", "strategy": None, "micro_batches": 1},
            "layers of one shape with a schedule or a store",
        ),
        ({"strategy": "auto:budget_ms=50"}, "without a time budget"),
        (
            {"head_dim": {"full": 32}},
            "head_dim: expected one for each of 'full', 'sliding', found 'full'",
        ),
        ({"mask": "causal"}, "expected one for each of '', found 'full', 'sliding'"),
    ],
)
def test_shapes_that_a_loader_cannot_plan_are_refused(changes, message):
    with pytest.raises(ct.InvalidArgument, match=message):
        loader_of(0, **changes)
