"""Batches as they come: rows with padding, lists, and batches with fewer tokens than ranks."""

from __future__ import annotations

import copy

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from contextile.torch import Executor, attention, dispatch, local_batch, pack, use
from reference import dense_mask, inputs, relative_error, run_dense, run_plan

ROWS = [[7, 8, 9, 4], [5], [3, 2]]
EVERY_STRATEGY = [
    "zigzag",
    "ring",
    "ulysses",
    "hybrid:head_parallel=2",
    "double_ring:head_parallel=2",
    "all_gather",
    "wlb",
    "bytescale",
    "megatron_dynamic",
    "megatron_packed",
    "magi:chunk=16",
    "dcp",
    "fcp:block=32",
    "distca:granularity=16",
    "auto:steps=20000",
]


def padded(side, rows, fill=0):
    width = max(len(row) for row in rows)
    gaps = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor(
        [
            [*gap, *row] if side == "left" else [*row, *gap]
            for row, gap in zip(rows, gaps, strict=True)
        ]
    )


@pytest.mark.parametrize("side", ["left", "right", "list"])
def test_rows_are_packed_and_come_back(side):
    labels = [[token * 10 for token in row] for row in ROWS]
    if side == "list":
        packed = pack(ROWS)
        of_labels = packed.rows(labels)
    else:
        mask = padded(side, [[1] * len(row) for row in ROWS])
        packed = pack(padded(side, ROWS, fill=6), mask)
        of_labels = packed.rows(padded(side, labels, fill=-100))
    assert packed.lengths == [4, 1, 2]
    assert packed.tokens.tolist() == [7, 8, 9, 4, 5, 3, 2]
    assert of_labels.tolist() == [70, 80, 90, 40, 50, 30, 20]
    values = torch.randn(7, 3, requires_grad=True)
    rows = packed.unpack(values, fill=-1.0)
    if side == "list":
        assert [len(row) for row in rows] == packed.lengths
        assert torch.equal(torch.cat(rows), values)
        return
    assert rows.shape == (3, 4, 3)
    assert torch.equal(rows[mask.bool()], values) and bool((rows[mask == 0] == -1).all())
    (rows * 2).sum().backward()
    assert torch.equal(values.grad, torch.full_like(values, 2))


def test_rows_without_padding_need_no_mask():
    tokens = torch.arange(8).view(2, 4)
    packed = pack(tokens)
    assert packed.lengths == [4, 4]
    assert torch.equal(packed.unpack(packed.tokens), tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1], []],), r"sequence 1: expected a list of tokens, found \[0\]"),
        (([],), "expected at least one sequence"),
        (([[1]], torch.ones(1, 1)), "attention_mask: expected none with a list"),
        ((torch.ones(3, dtype=torch.int64),), r"expected \[rows, width\] or a list, found \[3\]"),
        ((torch.ones(2, 3), None), "tokens: expected whole numbers"),
        (
            (torch.ones(2, 3, dtype=torch.int64), torch.ones(3, 2)),
            r"attention_mask: expected \[2, 3\], as the tokens, found \[3, 2\]",
        ),
        (
            (torch.ones(2, 3, dtype=torch.int64), torch.full((2, 3), 2)),
            "attention_mask: expected truth values",
        ),
        (
            (torch.ones(2, 3, dtype=torch.int64), torch.tensor([[1, 0, 1], [1, 1, 1]])),
            "found 1 gaps in row 0",
        ),
        (
            (torch.ones(2, 3, dtype=torch.int64), torch.tensor([[1, 1, 1], [0, 0, 0]])),
            "expected tokens in every row, found none in row 1",
        ),
    ],
)
def test_rows_that_cannot_be_packed_are_refused(arguments, message):
    with pytest.raises(ct.InvalidArgument, match=message):
        pack(*arguments)


def test_fields_that_do_not_fit_are_refused():
    rows, sequences = pack(torch.ones(2, 3, dtype=torch.int64)), pack(ROWS)
    with pytest.raises(
        ct.InvalidArgument, match=r"field: expected \[2, 3\], as the tokens, found \[3, 2\]"
    ):
        rows.rows(torch.ones(3, 2))
    with pytest.raises(
        ct.InvalidArgument, match=r"field: expected sequences of \[4, 1, 2\] values, found \[4, 1\]"
    ):
        sequences.rows(ROWS[:2])
    with pytest.raises(ct.InvalidArgument, match="unpack: expected 6 tokens, found 5"):
        rows.unpack(torch.ones(5))


# ------------------------------------------------------------------------------ ranks without
# tokens


def plan_of_few(strategy, ranks=4, lengths=(2,), **options):
    return ct.plan(
        list(lengths),
        cluster=f"local:1x{ranks}",
        strategy=strategy,
        **{"heads": (4, 2), "head_dim": 32, "dtype": "f32", **options},
    )


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_fewer_tokens_than_ranks(strategy):
    for lengths in ([1], [2], [1, 1, 1]):
        plan = plan_of_few(strategy, lengths=lengths)
        assert min(plan.num_local_tokens(rank) for rank in range(4)) == 0
        tensors = inputs(plan.num_tokens, (4, 2), 32)
        for found, expected in zip(
            run_plan(plan, tensors), run_dense(tensors, dense_mask(plan)), strict=True
        ):
            # The gradients of one key are 0.
            assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5)


class Layer(nn.Module):
    """It reshapes as models do, which fails without tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = (
            nn.Embedding(9, 64),
            nn.Linear(64, 8 * 32),
            nn.Linear(128, 9),
        )

    def forward(self, tokens, positions, attend):
        x = self.embed(tokens)[None] + positions[None, :, None] * 0.1
        q, k, v = self.qkv(x).view(1, x.shape[1], -1, 32).split([4, 2, 2], dim=2)
        return self.head(attend(q, k, v).reshape(*x.shape[:2], -1))[0]


def by_sdpa(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def loss_of(model, batch, attend):
    losses = torch.nn.functional.cross_entropy(
        model(batch.tokens, batch.positions, attend), batch.labels, reduction="none"
    )
    return (losses * batch.loss_weights).sum()


@pytest.mark.parametrize("way", ["attention", "use"])
def test_ranks_without_tokens_train(way):
    plan = plan_of_few("zigzag", lengths=[3])
    alone = Layer()
    models = [copy.deepcopy(alone) for _ in range(4)]
    expected = loss_of(
        alone,
        local_batch([4, 7, 1], plan=plan_of_few("zigzag", ranks=1, lengths=[3]), rank=0),
        by_sdpa,
    )
    expected.backward()

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plan)
        local = local_batch([4, 7, 1], plan=plan, rank=transport.rank)
        assert len(local.tokens) == 1  # of a rank without tokens, a filler
        model = models[transport.rank]
        if way == "use":
            with use(executor):
                loss = loss_of(model, local, by_sdpa)
        else:
            loss = loss_of(model, local, lambda *x: attention(*x, executor=executor))
        loss.backward()
        return loss.detach(), [x.grad for x in model.parameters()]

    results = ct.run_inproc(4, body)
    assert torch.allclose(sum(loss for loss, _ in results), expected, rtol=1e-5)
    for number, one in enumerate(alone.parameters()):
        assert relative_error(sum(gradients[number] for _, gradients in results), one.grad) < 1e-5


def test_a_filler_has_no_label_and_attends_nothing():
    plan = plan_of_few("zigzag", sink=True)
    local = local_batch([4, 7], plan=plan, rank=3, ignore_index=-1)
    assert [tensor.tolist() for tensor in local] == [[0], [0], [-1], [0.0], [0]]

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plan)
        q, k, v = (torch.randn(1, 1, heads, 32, requires_grad=True) for heads in (4, 2, 2))
        sink = torch.zeros(4, requires_grad=True)
        out, lse = attention(q, k, v, executor=executor, sink=sink, return_lse=True)
        out.sum().backward()
        return out.detach(), lse, [x.grad for x in (q, k, v, sink)]

    for rank, (out, lse, gradients) in enumerate(ct.run_inproc(4, body)):
        if rank >= 2:
            assert out.shape == (1, 1, 4, 32) and not bool(out.any())
            assert bool((lse == float("-inf")).all())
            assert not any(bool(gradient.any()) for gradient in gradients)
        else:
            assert bool(out.any()) and bool(gradients[3].any())


def test_more_rows_than_a_filler_are_refused():
    plan = plan_of_few("zigzag", ranks=2, lengths=[1])

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plan)
        rows = 2 if transport.rank == 1 else 1
        q, k, v = (torch.randn(rows, heads, 32) for heads in (4, 2, 2))
        with pytest.raises(ct.Error) as error:
            attention(q, k, v, executor=executor)
        return str(error.value)

    assert "expected" in ct.run_inproc(2, body)[1]


def test_dispatch_of_a_rank_without_tokens_is_empty():
    plan = plan_of_few("zigzag")
    assert dispatch(torch.ones(2, 5), plan=plan, rank=3).shape == (0, 5)
