"""Bias and dropout of attention on several ranks, compared with dense attention on one."""

from __future__ import annotations

import numpy as np
import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint

from contextile.torch import (
    Executor,
    alibi,
    attention,
    dispatch,
    relative_bias,
    t5_bias,
)
from reference import dense_mask, inputs, relative_error

LENGTHS = [70, 26, 160, 1]
HEADS = (4, 2)
DIM = 32
SEED = 0x1234567890


def philox(counter, seed):
    """Philox4x32-10 of counters [4, ...]."""
    words = [x.astype(np.uint64) for x in counter]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        high = np.uint64(32)
        words = [
            (second >> high) ^ words[1] ^ np.uint64(key[0]),
            second & low,
            (first >> high) ^ words[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words


def dropout_factors(heads, tokens, probability, seed):
    """[heads, queries, keys] of the generator that attention states."""
    h, q, k = np.meshgrid(np.arange(heads), np.arange(tokens), np.arange(tokens), indexing="ij")
    words = np.stack(philox([k // 4, q, h, np.zeros_like(k)], seed))
    word = np.take_along_axis(words, (k % 4)[None], 0)[0]
    return torch.from_numpy(np.where(word < int(probability * 2**32), 0.0, 1 / (1 - probability)))


def dense(tensors, mask, heads, positions, *, bias=None, dropout=0.0, softcap=0.0):
    """out, dq, dk, dv and dtable in fp64."""
    q, k, v, dout = tensors
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    group = heads[0] // heads[1]
    k_all, v_all = (x.repeat_interleave(group, 1) for x in leaves[1:])
    scores = torch.einsum("qhd,khd->hqk", leaves[0], k_all) * DIM**-0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    table = None
    if bias is not None:
        h = torch.arange(heads[0])[:, None, None]
        q_index, k_index = positions[None, :, None], positions[None, None, :]
        if hasattr(bias, "table"):
            table = bias.table.detach().double().requires_grad_()
            bias = bias._replace(table=table, buckets=bias.buckets.long())
        else:
            bias = bias._replace(slopes=bias.slopes.double())
        scores = bias(scores, 0, h, q_index, k_index)
    weights = torch.softmax(
        scores.masked_fill(~torch.from_numpy(mask), float("-inf")), -1
    ).nan_to_num(0.0)
    if dropout:
        weights = weights * dropout_factors(heads[0], len(q), dropout, SEED)
    out = torch.einsum("hqk,khd->qhd", weights, v_all)
    out.backward(dout.double())
    return [out.detach(), *(x.grad for x in leaves), *([] if table is None else [table.grad])]


def run(plan, tensors, *, bias=None, dropout=0.0, again=False, kernel=""):
    """The same by a thread for every rank; the shares of dtable are summed."""
    q, k, v, dout = tensors

    def body(transport):
        executor = Executor(transport, kernel=kernel)
        prepared = executor.prepare(plan)
        rank = transport.rank
        leaves = [dispatch(x, plan=plan, rank=rank).requires_grad_() for x in (q, k, v)]
        mine = bias
        if hasattr(bias, "table"):
            mine = bias._replace(table=bias.table.detach().clone().requires_grad_())

        def attend(*leaves):
            return attention(
                *leaves,
                executor=executor,
                plan=prepared,
                bias=mine,
                dropout_p=dropout,
                dropout_seed=SEED if dropout else None,
            )

        out = checkpoint(attend, *leaves, use_reentrant=False) if again else attend(*leaves)
        out.backward(dispatch(dout, plan=plan, rank=rank))
        share = mine.table.grad if hasattr(mine, "table") else None
        return [out.detach(), *(x.grad for x in leaves)], share

    results = ct.run_inproc(plan.num_devices, body)
    whole = [q.new_empty(dout.shape), torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)]
    for rank, (parts, _) in enumerate(results):
        tokens = torch.from_numpy(plan.local_tokens(rank))
        for array, part in zip(whole, parts, strict=True):
            array[tokens] = part
    if hasattr(bias, "table"):
        whole.append(sum(share for _, share in results))
    return whole


def planned(strategy="zigzag", *, ranks=4, mask="causal", lengths=LENGTHS, heads=HEADS, **options):
    return ct.plan(
        lengths,
        mask=mask,
        cluster=f"local:1x{ranks}",
        strategy=strategy,
        heads=heads,
        head_dim=DIM,
        dtype="f32",
        **options,
    )


def positions_of(plan):
    positions = torch.empty(plan.num_tokens, dtype=torch.int64)
    for rank in range(plan.num_devices):
        positions[torch.from_numpy(plan.local_tokens(rank))] = torch.from_numpy(
            np.asarray(plan.positions(rank))
        ).long()
    return positions


def biases(heads):
    generator = torch.Generator().manual_seed(3)
    return {
        "alibi": alibi(heads),
        "t5": t5_bias(
            torch.randn(heads, 32, generator=generator), bidirectional=True, max_distance=60
        ),
        "t5_decoder": t5_bias(
            torch.randn(heads, 16, generator=generator), bidirectional=False, max_distance=40
        ),
        "relative": relative_bias(torch.randn(heads, 21, generator=generator), -12),
    }


def check(
    plan,
    name="",
    *,
    heads=HEADS,
    dropout=0.0,
    softcap=0.0,
    mask="causal",
    lengths=LENGTHS,
    **options,
):
    bias = biases(heads[0])[name] if name else None
    tensors = inputs(plan.num_tokens, heads, DIM)
    found = run(plan, tensors, bias=bias, dropout=dropout, **options)
    attended = dense_mask(ct.make_workload(lengths, mask=mask))
    expected = dense(
        tensors, attended, heads, positions_of(plan), bias=bias, dropout=dropout, softcap=softcap
    )
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("name", ["alibi", "t5", "t5_decoder", "relative"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_biases_are_those_of_dense_attention(name, ranks):
    check(planned(ranks=ranks), name)


@pytest.mark.parametrize(
    "strategy",
    [
        "ring",
        "ulysses:layout=contiguous",
        "hybrid:head_parallel=2",
        "wlb",
        "magi:chunk=16",
        "dcp",
        "fcp:block=32",
    ],
)
def test_bias_and_dropout_under_any_strategy(strategy):
    heads = (4, 4) if strategy.startswith("ulysses") else HEADS
    check(planned(strategy, heads=heads), "t5", heads=heads, dropout=0.3)


@pytest.mark.parametrize("mask", ["full", "sliding_window:9", "shared_question:0.3,2", "chunked:7"])
@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_masks(mask, name):
    check(planned("dcp", ranks=2, mask=mask), name, mask=mask, dropout=0.1)


def test_a_bias_is_added_after_a_softcap():
    check(planned(ranks=2, softcap=2.0), "relative", softcap=2.0)


@pytest.mark.parametrize("kernel", ct.kernels())
def test_every_kernel_has_them(kernel):
    check(planned(ranks=2), "t5", dropout=0.2, kernel=kernel)


def test_recomputed_layers_drop_the_same_weights():
    check(planned(ranks=2), "t5", dropout=0.4, again=True)


def test_no_plan_changes_which_weights_are_dropped():
    tensors = inputs(sum(LENGTHS), HEADS, DIM)
    results = [
        run(planned(s, ranks=r), tensors, dropout=0.5)
        for s, r in (("zigzag", 1), ("dcp", 2), ("fcp:block=32", 4))
    ]
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert relative_error(two, one) < 1e-5


def test_the_buckets_of_t5_are_those_of_transformers():
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    for bidirectional in (True, False):
        for num_buckets, distance in ((32, 128), (16, 40), (8, 9)):
            bias = t5_bias(
                torch.zeros(1, num_buckets), bidirectional=bidirectional, max_distance=distance
            )
            offsets = torch.arange(-3 * distance, 3 * distance)
            expected = modeling.T5Attention._relative_position_bucket(
                offsets, bidirectional, num_buckets, distance
            )
            found = bias.buckets[(offsets - bias.first_offset).clamp(0, len(bias.buckets) - 1)]
            assert torch.equal(found.long(), expected)


def test_what_cannot_be_done_is_refused():
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(planned(ranks=1))
    q, k, v, _ = inputs(sum(LENGTHS), HEADS, DIM)

    def refused(message, **options):
        with pytest.raises(ct.InvalidArgument, match=message):
            attention(q, k, v, executor=executor, **options)

    refused("expected at least 0 and below 1, found 1.0", dropout_p=1.0, dropout_seed=1)
    refused("dropout_seed: expected a number", dropout_p=0.1)
    refused(
        "dropout_p: expected at least 0 and below 1, found 0.1", dropout_p="0.1", dropout_seed=1
    )
    for seed in (1.5, 2**70, True, torch.tensor([1, 2]), torch.tensor(1.5)):
        refused(
            "dropout_seed: expected a whole number of 64 bits", dropout_p=0.1, dropout_seed=seed
        )
    with pytest.raises(ct.InvalidArgument, match="expected a Tensor as k, found NoneType"):
        attention(q, None, v, executor=executor)
    with pytest.raises(
        ct.InvalidArgument, match="alibi: expected slopes or a number of heads, found 'abc'"
    ):
        alibi("abc")
    with pytest.raises(
        ct.InvalidArgument, match="relative_bias, first_offset: expected a whole number, found -3.5"
    ):
        relative_bias(torch.zeros(4, 3), -3.5)
    with pytest.raises(
        ct.InvalidArgument, match="relative_bias: expected buckets below 3, found 0 to 3"
    ):
        relative_bias(torch.zeros(4, 3), -1, buckets=torch.tensor([0, 3]))
    with pytest.raises(ct.InvalidArgument, match="expected an even number of buckets"):
        t5_bias(torch.zeros(4, 31), bidirectional=True)
    refused(
        "expected what alibi, relative_bias or t5_bias returns, found Tensor",
        bias=torch.zeros(4, 4),
    )
    refused(
        "expected constant slopes", bias=alibi(4)._replace(slopes=torch.ones(4, requires_grad=True))
    )
    with pytest.raises(ct.InvalidArgument, match="expected constant slopes"):
        alibi(torch.ones(4, requires_grad=True))
    with pytest.raises(ct.InvalidArgument, match="max_distance above the 8 distances"):
        t5_bias(torch.zeros(4, 32), bidirectional=True, max_distance=8)


@pytest.mark.parametrize(
    "of_rank",
    [
        lambda rank: {"dropout_p": 0.1, "dropout_seed": 7 + rank},
        lambda rank: {"dropout_p": 0.1 * (1 + rank), "dropout_seed": 7},
        lambda rank: {"bias": alibi(4) if rank == 0 else None},
        lambda rank: {"bias": relative_bias(torch.full((4, 3), float(rank)), -1)},
    ],
)
def test_ranks_whose_terms_differ_hear_of_it(of_rank):
    plan = planned(ranks=2)
    q, k, v, _ = inputs(sum(LENGTHS), HEADS, DIM)

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plan)
        local = [dispatch(x, plan=plan, rank=transport.rank) for x in (q, k, v)]
        with pytest.raises(
            (ct.InvalidArgument, ct.TransportError), match="bias and dropout of digest"
        ):
            attention(*local, executor=executor, **of_rank(transport.rank))

    ct.run_inproc(2, body)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_ranks_whose_sinks_differ_hear_of_it(direction):
    plan = ct.plan(
        LENGTHS,
        cluster="local:1x2",
        strategy="zigzag",
        heads=HEADS,
        head_dim=DIM,
        dtype="f32",
        sink=True,
    )
    q, k, v, _ = inputs(sum(LENGTHS), HEADS, DIM)

    def body(transport):
        executor = Executor(transport)
        executor.prepare(plan)
        local = [dispatch(x, plan=plan, rank=transport.rank).requires_grad_() for x in (q, k, v)]
        sink = torch.full(
            (HEADS[0],),
            0.5 if direction == "backward" else float(transport.rank),
            requires_grad=True,
        )
        errors = (ct.InvalidArgument, ct.TransportError)
        with pytest.raises(errors, match="sinks of digest"):
            out = attention(*local, executor=executor, sink=sink)
            sink.data += transport.rank
            out.sum().backward()

    ct.run_inproc(2, body)


def test_terms_that_do_not_fit_the_plan_are_refused():
    q, k, v, _ = inputs(sum(LENGTHS), HEADS, DIM)
    for bias, message in (
        (alibi(8), "a slope for each of 4 query heads, found 8"),
        (
            relative_bias(torch.zeros(8, 3), -1),
            "expected 4 heads of 3 biases in the table, found 24",
        ),
    ):
        executor = Executor(ct.inproc_group(1)[0])
        executor.prepare(planned(ranks=1))
        with pytest.raises(ct.InvalidArgument, match=message):
            attention(q, k, v, executor=executor, bias=bias)


def test_the_operators_keep_their_promises_to_pytorch(monkeypatch):
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(planned(ranks=1))
    # The operator returns the number of its call, which is a new one every time.
    monkeypatch.setattr(executor, "begin_call", lambda: 1)
    number, index, saved = executor.prepared_of(None).call_of("")
    q, k, v, dout = inputs(sum(LENGTHS), HEADS, DIM)
    table, buckets, first = biases(4)["t5"][:3]
    terms = (None, table.clone().requires_grad_(), buckets, first, 0.2, torch.tensor([SEED]))
    args = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(
        torch.ops.contextile.attention.default, (*args, None, number, index, saved, *terms)
    )
    terms = (None, table, *terms[2:])
    with torch.no_grad():
        out, lse, kept, made_by = torch.ops.contextile.attention(
            q, k, v, None, number, index, saved, *terms
        )
    torch.library.opcheck(
        torch.ops.contextile.attention_backward.default,
        (dout, q, k, v, None, out, lse, kept, made_by, number, index, *terms, True),
    )


def test_compiled_functions_have_them():
    executor = Executor(ct.inproc_group(1)[0])
    prepared = executor.prepare(planned(ranks=1))
    q, k, v, dout = inputs(sum(LENGTHS), HEADS, DIM)

    def gradients(function):
        bias = biases(4)["relative"]
        bias = bias._replace(table=bias.table.clone().requires_grad_())
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        function(*leaves, bias).backward(dout)
        return [*(x.grad for x in leaves), bias.table.grad]

    def attend(q, k, v, bias):
        return attention(
            q, k, v, executor=executor, plan=prepared, bias=bias, dropout_p=0.2, dropout_seed=SEED
        )

    for one, other in zip(
        gradients(torch.compile(attend, fullgraph=True, backend="aot_eager")),
        gradients(attend),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_gpus_have_neither(monkeypatch):
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(planned(ranks=1))
    monkeypatch.setattr(executor, "_gpu", object())
    q, k, v, _ = inputs(sum(LENGTHS), HEADS, DIM)
    for options, found in (
        ({"bias": alibi(4)}, "a bias"),
        ({"dropout_p": 0.1, "dropout_seed": 1}, "dropout"),
    ):
        with pytest.raises(
            ct.InvalidArgument,
            match=rf"on a GPU, whose kernels \(cuda:\*\) have neither, found {found}",
        ):
            attention(q, k, v, executor=executor, **options)
