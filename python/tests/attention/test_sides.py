"""Attention between the sources and targets of a batch of pairs."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from contextile.torch import Executor, Sides, cross_attention
from reference import relative_error

SOURCES, TARGETS = [70, 9, 33], [20, 40, 5]
HEADS, DIM = (4, 2), 16


def random(tokens, heads, seed):
    return torch.randn(tokens, heads, DIM, generator=torch.Generator().manual_seed(seed))


def dense(q, k, v, query_lengths, key_lengths, is_causal):
    """Attention of each pair in fp64."""
    outs = []
    for qs, ks, vs in zip(
        q.split(query_lengths), k.split(key_lengths), v.split(key_lengths), strict=True
    ):
        ks, vs = (x.repeat_interleave(HEADS[0] // HEADS[1], 1).movedim(0, 1) for x in (ks, vs))
        scores = qs.movedim(0, 1) @ ks.mT / DIM**0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), float("-inf"))
        outs.append((scores.softmax(-1) @ vs).movedim(0, 1))
    return torch.cat(outs)


@pytest.mark.parametrize("mask", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("strategy", ["dcp", "zigzag"])
def test_sides_attend_as_each_pair_alone(mask, strategy):
    plan = ct.plan(
        **ct.masks.encoder_decoder(SOURCES, TARGETS, layers=(2, 2)),
        cluster="local:1x3",
        strategy=strategy,
        heads=HEADS,
        head_dim=DIM,
        dtype="f32",
        block_size=8,
    )
    queries, keys = (
        (SOURCES if mask == "encoder" else TARGETS),
        (TARGETS if mask == "decoder" else SOURCES),
    )
    q, k, v = (
        random(sum(queries), HEADS[0], 1),
        random(sum(keys), HEADS[1], 2),
        random(sum(keys), HEADS[1], 3),
    )
    dout = random(sum(queries), HEADS[0], 4)

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plan)
        sides = Sides(SOURCES, TARGETS, plan=plan, rank=transport.rank)
        of = {id(SOURCES): sides.source_tokens, id(TARGETS): sides.target_tokens}
        own, other = of[id(queries)], of[id(keys)]
        leaves = [q[own].requires_grad_(), k[other].requires_grad_(), v[other].requires_grad_()]
        out = cross_attention(*leaves, sides=sides, executor=executor, mask=mask)
        out.backward(dout[own])
        return [
            (own, out.detach()),
            *((rows, x.grad) for rows, x in zip((own, other, other), leaves, strict=True)),
        ]

    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    expected = dense(*leaves, queries, keys, mask == "decoder")
    expected.backward(dout.double())
    ranks = ct.run_inproc(3, body)
    for index, one in enumerate([expected.detach(), *(x.grad for x in leaves)]):
        whole = torch.full(one.shape, float("nan"))
        for results in ranks:
            rows, part = results[index]
            whole[rows] = part
        assert relative_error(whole, one) < 1e-5


def test_positions_count_from_the_beginning_of_each_side():
    plan = ct.plan(
        **ct.masks.encoder_decoder(SOURCES, TARGETS),
        cluster="local:1x2",
        strategy="dcp",
        heads=4,
        head_dim=8,
        block_size=8,
    )
    parts = [Sides(SOURCES, TARGETS, plan=plan, rank=rank) for rank in range(2)]
    for lengths, tokens, positions in (
        (SOURCES, "source_tokens", "source_positions"),
        (TARGETS, "target_tokens", "target_positions"),
    ):
        expected = torch.cat([torch.arange(length) for length in lengths])
        found = torch.full((sum(lengths),), -1)
        for sides in parts:
            found[getattr(sides, tokens)] = getattr(sides, positions)
        assert torch.equal(found, expected)


def test_sides_of_other_batches_are_refused():
    plan = ct.plan(
        **ct.masks.encoder_decoder(SOURCES, TARGETS),
        cluster="local:1x1",
        strategy="dcp",
        heads=4,
        head_dim=8,
        dtype="f32",
    )
    with pytest.raises(
        ct.InvalidArgument,
        match=r"sides: expected pairs of \[90, 49, 38\] tokens, as the plan's, found \[90, 49\]",
    ):
        Sides(SOURCES[:2], TARGETS[:2], plan=plan, rank=0)
    with pytest.raises(ct.InvalidArgument, match="expected as many targets as sources"):
        ct.masks.encoder_decoder([3], [])
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(plan)
    sides = Sides(SOURCES, TARGETS, plan=plan, rank=0)
    q, k = torch.randn(65, 4, 8), torch.randn(112, 4, 8)
    with pytest.raises(ct.InvalidArgument, match="q: expected 65 tokens of this rank, found 112"):
        cross_attention(k, k, k, sides=sides, executor=executor)
    with pytest.raises(
        ct.InvalidArgument, match="mask: expected one of encoder, decoder, cross, found 'full'"
    ):
        cross_attention(q, k, k, sides=sides, executor=executor, mask="full")


def test_sides_of_another_plan_or_rank_are_refused():
    def planned(sources, targets):
        return ct.plan(
            **ct.masks.encoder_decoder(sources, targets, layers=(2, 2)),
            cluster="local:1x2",
            strategy="dcp",
            heads=HEADS,
            head_dim=DIM,
            dtype="f32",
            block_size=8,
        )

    plan, reversed_plan = planned(SOURCES, TARGETS), planned(SOURCES[::-1], TARGETS[::-1])
    with pytest.raises(
        ct.InvalidArgument, match="sides: expected the lengths of the plan's sources and targets"
    ):
        Sides(
            [source - 1 for source in SOURCES],
            [target + 1 for target in TARGETS],
            plan=plan,
            rank=0,
        )

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plan)
        rank = transport.rank
        for sides, message in (
            (
                Sides(SOURCES[::-1], TARGETS[::-1], plan=reversed_plan, rank=rank),
                "found those of another plan",
            ),
            (
                Sides(SOURCES, TARGETS, plan=plan, rank=1 - rank),
                f"on rank {rank}, found those of rank {1 - rank}",
            ),
        ):
            q, k = (
                random(len(sides.target_rows), HEADS[0], 1),
                random(len(sides.source_rows), HEADS[1], 2),
            )
            with pytest.raises(ct.InvalidArgument, match=message):
                cross_attention(q, k, k, sides=sides, executor=executor)

    ct.run_inproc(2, body)
