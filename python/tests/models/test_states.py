"""Token layouts, and convolutions and recurrences whose states pass between ranks."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.nn.functional import silu, softplus

from contextile.torch import (
    Chunks,
    Executor,
    causal_conv,
    chunks_of,
    dispatch,
    documents_of,
    linear_attention,
    ssd_scan,
)
from ranks import run_ranks
from reference import relative_error

SHAPE = {"heads": (2, 1), "head_dim": 8, "dtype": "f32"}
BATCHES = [
    [20, 3, 70, 1, 2, 24],
    [120],
    [1, 1, 1, 2, 115],
    [30, 30, 30, 30],
    [9],
    [2, 7],
    [1, 2, 6],
    [3],
]


def plan_of(lengths, size, strategy="dcp", **arguments):
    block_size = 8 if sum(lengths) > 50 else 1
    return ct.plan(
        lengths,
        cluster=f"local:1x{size}",
        strategy=strategy,
        block_size=block_size,
        **SHAPE,
        **arguments,
    )


def whole(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------------------------------- layouts


def move_and_return():
    import torch.distributed as dist

    executor = Executor()
    rank, size = executor.rank, executor.size
    for lengths in BATCHES:
        for strategy in ("zigzag", "dcp", "ring"):
            plan = plan_of(lengths, size, strategy)
            # A slice has only its rank's tokens.
            executor.prepare(
                plan if rank == 0 else ct.Plan.slice_from_bytes(plan.slice_to_bytes(rank))
            )
            for layout in (chunks_of(executor), documents_of(executor)):
                assert layout is (
                    chunks_of(executor) if isinstance(layout, Chunks) else documents_of(executor)
                )
                check_moves(layout, plan, rank)
            chunks = chunks_of(executor)
            begin, end = chunks.begins[rank : rank + 2]
            found = chunks.gather(dispatch(torch.arange(plan.num_tokens), plan=plan, rank=rank))
            assert found.tolist() == list(range(begin, end))
            assert chunks.moved_tokens == Chunks.of_plan(plan, rank=rank).moved_tokens
            held = [documents_of(executor).parts]
            dist.all_gather_object(every := [None] * size, held[0])
            documents = [part.document for parts in every for part in parts]
            assert sorted(documents) == [number for number, length in enumerate(lengths)]


def check_moves(layout, plan, rank):
    rows = dispatch(whole(plan.num_tokens, 3, 2), plan=plan, rank=rank).requires_grad_()
    before = layout.sent_bytes["tokens"]
    there = layout.gather(rows)
    assert there.shape == (layout.num_tokens, 3, 2)
    assert layout.sent_bytes["tokens"] - before == layout.bytes_to_move(48)[rank]
    back = layout.scatter(there * 2)
    assert torch.equal(back, rows * 2)
    back.backward(rows.detach())
    assert torch.equal(rows.grad, 2 * rows.detach())
    swapped = layout.scatter(layout.gather(rows.detach().movedim(0, 2), dim=2), dim=2)
    assert torch.equal(swapped, rows.detach().movedim(0, 2))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_tokens_move_to_chunks_and_documents_and_back(num_ranks):
    run_ranks(move_and_return, num_ranks)


def test_nothing_moves_from_a_contiguous_home():
    plan = plan_of([20, 3, 70, 1, 2, 24], 4, home="contiguous")
    chunks = Chunks.of_plan(plan)
    assert chunks.moved_tokens == [0, 0, 0, 0]
    assert "            0\n" in chunks.report(64) + "\n"


def test_chunks_report_what_moves():
    plan = plan_of([64], 2, "zigzag")  # rank 0 has the first and the last quarter
    chunks = Chunks.of_plan(plan)
    assert chunks.moved_tokens == [16, 16] and chunks.bytes_to_move(10) == [160, 160]
    # There and back, forward and backward, in three layers.
    assert [line.split() for line in chunks.report(10, layers=3).splitlines()[1:]] == [
        ["0", "16", str(4 * 160 * 3)],
        ["1", "16", str(4 * 160 * 3)],
    ]
    with pytest.raises(
        ct.InvalidArgument, match="expected a whole plan, found the slice of rank 1"
    ):
        Chunks.of_plan(ct.Plan.slice_from_bytes(plan.slice_to_bytes(1)))


def test_what_layouts_refuse():
    executor = Executor(ct.inproc_group(1)[0])
    with pytest.raises(ct.InvalidArgument, match="expected prepare before attention"):
        chunks_of(executor)
    executor.prepare(plan_of([64], 1))
    with pytest.raises(ct.InvalidArgument, match="expected 64 tokens in dimension 0, found 63"):
        chunks_of(executor).gather(torch.zeros(63, 2))

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plan_of([64], 2))
        with pytest.raises(ct.InvalidArgument, match="found one made from a transport of 2 ranks"):
            chunks_of(executor)

    ct.run_inproc(2, body)


# ------------------------------------------------------------------------------------------ states


def delta_rule(query, key, value, g, beta, initial_state=None, output_final_state=False):
    """The gated delta rule token by token; g is per head, or per channel of the key (KDA)."""
    heads = value.shape[2]
    query, key = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (query, key))
    state = (
        key.new_zeros(1, heads, key.shape[3], value.shape[3])
        if initial_state is None
        else initial_state
    )
    outs = []
    for t in range(query.shape[1]):
        decay = g[:, t].exp()
        state = state * decay.reshape(1, heads, -1, 1)
        delta = (value[:, t] - torch.einsum("bhkv,bhk->bhv", state, key[:, t])) * beta[
            :, t, :, None
        ]
        state = state + key[:, t, :, :, None] * delta[:, :, None]
        outs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    return torch.stack(outs, dim=1), state if output_final_state else None


def mamba_rule(x, dt, A, B, C, *, dt_bias, dt_softplus, dt_limit, return_final_states):
    """Mamba-2 token by token."""
    dt = softplus(dt + dt_bias).clamp(*dt_limit)
    B, C = (m.repeat_interleave(x.shape[2] // m.shape[2], dim=2) for m in (B, C))
    state = x.new_zeros(1, x.shape[2], x.shape[3], B.shape[3])
    outs = []
    for t in range(x.shape[1]):
        state = (
            state * (dt[:, t] * A).exp()[..., None, None]
            + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        )
        outs.append(torch.einsum("bhpn,bhn->bhp", state, C[:, t]))
    return (torch.stack(outs, dim=1), state) if return_final_states else torch.stack(outs, dim=1)


def delta_of(tensors, chunks=None, channels=1):
    q, k, v, g, beta = tensors
    q, k, v = (
        q.reshape(1, -1, 2, 5),
        torch.nn.functional.normalize(k.reshape(1, -1, 2, 5), dim=3),
        v.reshape(1, -1, 4, 3),
    )
    g = -0.1 * softplus(g.reshape(1, -1, 4, 5))
    gates = {"g": g if channels == 5 else g[..., 0], "beta": beta.reshape(1, -1, 4).sigmoid()}
    if chunks is None:
        return delta_rule(q, k, v, **gates)[0]
    return linear_attention(q, k, v, gates=gates, chunks=chunks, rule=delta_rule)


def kda_of(tensors, chunks=None):
    return delta_of(tensors, chunks, channels=5)


def mamba_of(tensors, chunks=None):
    q, k, v, _, beta = tensors
    given = [
        v.reshape(1, -1, 4, 3),
        beta[None],
        torch.tensor([-0.02, -0.1, -0.5, -1.0], dtype=torch.float64),
        q.reshape(1, -1, 2, 5),
        k.reshape(1, -1, 2, 5),
    ]
    options = {
        "dt_bias": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
        "dt_softplus": True,
        "dt_limit": (0.1, 3.0),
    }
    if chunks is None:
        return mamba_rule(*given, **options, return_final_states=False)
    return ssd_scan(*given, **options, chunks=chunks, rule=mamba_rule)


def conv_of(tensors, chunks=None):
    x = tensors[0].t()[None]
    weight, bias = whole(10, 4, seed=9), whole(10, seed=8)
    if chunks is None:
        padded = torch.nn.functional.pad(x, (3, 0))
        return silu(torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=10))[0].t()
    return silu(causal_conv(x, weight, bias, chunks=chunks))[0].t()


LAYERS = {"delta": delta_of, "kda": kda_of, "mamba": mamba_of, "conv": conv_of}
WIDTHS = (10, 10, 12, 20, 4)


def compute_layers(names):
    executor = Executor()
    for lengths in BATCHES:
        plan = plan_of(lengths, executor.size)
        executor.prepare(plan)
        chunks = chunks_of(executor)
        for name in names.split():
            inputs = [
                whole(plan.num_tokens, width, seed=width + n) for n, width in enumerate(WIDTHS)
            ]
            leaves = [x.clone().requires_grad_() for x in inputs]
            expected = torch.cat(
                [
                    LAYERS[name](part).reshape(len(part[0]), -1)
                    for part in zip(*(x.split(lengths) for x in leaves), strict=True)
                ]
            )
            dout = whole(*expected.shape, seed=7)
            expected.backward(dout)
            local = [dispatch(x, plan=plan, rank=executor.rank).requires_grad_() for x in inputs]
            moved = [chunks.gather(x) for x in local]
            out = chunks.scatter(
                LAYERS[name](moved, chunks).reshape(len(moved[0]), expected.shape[1])
            )
            out.backward(dispatch(dout, plan=plan, rank=executor.rank))
            rows = {"plan": plan, "rank": executor.rank}
            assert relative_error(out, dispatch(expected, **rows)) < 1e-12, (
                f"{name} {lengths}: wrong outputs"
            )
            for leaf, found in zip(leaves, local, strict=True):
                if leaf.grad is not None and len(found) > 0:
                    scale = leaf.grad.abs().max()
                    error = (found.grad - dispatch(leaf.grad, **rows)).abs().max() / scale
                    assert error < 1e-12, f"{name} {lengths}: gradients are off by {error:.1e}"


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_layers_on_chunks_are_those_of_documents(num_ranks):
    run_ranks(compute_layers, num_ranks, " ".join(LAYERS))
