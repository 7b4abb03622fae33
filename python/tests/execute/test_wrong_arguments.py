"""Arguments of wrong types, shapes and ranges, each refused by name: expected and found."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from contextile.torch import (
    Executor,
    Sides,
    alibi,
    attention,
    causal_conv,
    chunks_of,
    collect,
    cross_attention,
    dispatch,
    document_sums,
    documents_of,
    from_score_mod,
    gather_last,
    gather_rows,
    linear_attention,
    local_batch,
    pack,
    relative_bias,
    ssd_scan,
    t5_bias,
    token_log_probs,
)

SHAPE = {
    "cluster": "local:1x1",
    "strategy": "zigzag",
    "heads": (4, 2),
    "head_dim": 8,
    "dtype": "f32",
}
LENGTHS = [12, 8]


def prepared(*args, **changes):
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan(*args, **{**SHAPE, **changes}))
    return executor


def rand(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


ONE = prepared(LENGTHS)
SINK = prepared(LENGTHS, sink=True)
BOTH = prepared(**ct.masks.encoder_decoder([8, 4], [4, 4]), heads=4)
SIDES = Sides([8, 4], [4, 4], plan=BOTH.plan, rank=0)
BY_MASK = prepared([20], mask=ct.masks.from_cu_seqlens([0, 12, 20]))
PLAN, CHUNKS = ONE.plan, chunks_of(ONE)
Q, K = rand(20, 4, 8), rand(20, 2, 8)
X, LABELS, TOKENS = rand(20, 5), torch.arange(20) % 5, list(range(20))
ROWS, HEADS, TABLE = rand(1, 6, 20), rand(1, 20, 2, 4), rand(4, 6)


def attend(q=Q, k=K, v=K, **options):
    return attention(q, k, v, executor=options.pop("executor", ONE), **options)


def cross(q, k=None, **options):
    return cross_attention(
        q,
        rand(12, 4, 8) if k is None else k,
        rand(12, 4, 8),
        executor=BOTH,
        **{"sides": SIDES, **options},
    )


CASES = {
    "q of f64": (
        lambda: attend(Q.double()),
        "expected q of torch.float32, as the plan, found torch.float64",
    ),
    "qkv of f64": (lambda: attend(Q.double(), K.double(), K.double()), "found torch.float64"),
    "k of int64": (
        lambda: attend(k=K.long()),
        "expected k of torch.float32, as the plan, found torch.int64",
    ),
    "q of one dimension": (
        lambda: attend(Q[0, 0]),
        r"expected q \[..., tokens, heads, dim\], found \[8\]",
    ),
    "no executor": (lambda: attend(executor=None), "expected an Executor, found NoneType"),
    "a text as plan": (
        lambda: attend(plan="x"),
        "plan: expected a Plan, or what prepare returned for one, found 'x'",
    ),
    "sink of f64": (
        lambda: attend(executor=SINK, sink=torch.zeros(4).double()),
        "float32 Tensor as sink, found torch.float64",
    ),
    "sink of bool": (
        lambda: attend(executor=SINK, sink=torch.zeros(4).bool()),
        "float32 Tensor as sink, found torch.bool",
    ),
    "a list as sink": (
        lambda: attend(executor=SINK, sink=[0.0] * 4),
        "float32 Tensor as sink, found list",
    ),
    "cross without sides": (lambda: cross(rand(8, 4, 8), sides=None), "expected Sides, found None"),
    "cross of two dimensions": (
        lambda: cross(rand(8, 4)),
        r"q: expected \[tokens, heads, dim\], found \[8, 4\]",
    ),
    "cross of a list": (lambda: cross([1]), "q: expected a Tensor, found list"),
    "cross of f64": (lambda: cross(rand(8, 4, 8).double()), "expected q of torch.float32"),
    "cross with a bias": (
        lambda: cross(rand(8, 4, 8), bias=alibi(4)),
        "bias: expected none with mask='cross'",
    ),
    "sides of other counts": (
        lambda: Sides([8, 4], [4], plan=PLAN, rank=0),
        "expected as many targets as sources, found 2 sources and 1",
    ),
    "sides of a text": (
        lambda: Sides("ab", [4, 4], plan=PLAN, rank=0),
        "source_lengths: expected a whole number, found 'a'",
    ),
    "sides of nothing": (
        lambda: Sides(None, [4], plan=PLAN, rank=0),
        "source_lengths: expected whole numbers, found None",
    ),
    "sides of no plan": (
        lambda: Sides([8], [4], plan=None, rank=0),
        "plan: expected a Plan, found None",
    ),
    "pairs of floats": (
        lambda: ct.masks.encoder_decoder([1.5], [4]),
        "source_lengths: expected a whole number, found 1.5",
    ),
    "pairs of True": (
        lambda: ct.masks.encoder_decoder([True], [4]),
        "expected a whole number, found True",
    ),
    "layers of one side": (
        lambda: ct.masks.encoder_decoder([8], [4], layers=(1,)),
        "layers of two sides",
    ),
    "large labels": (
        lambda: token_log_probs(X, LABELS + 1),
        "labels: expected 0 to 4, or ignore_index -100, found 1 to 5",
    ),
    "negative labels": (
        lambda: token_log_probs(X, LABELS - 1),
        "expected 0 to 4, or ignore_index -100, found -1 to 3",
    ),
    "labels of floats": (
        lambda: token_log_probs(X, LABELS.float()),
        "labels: expected whole numbers, found torch.float32",
    ),
    "logits of ints": (
        lambda: token_log_probs(LABELS[:, None], LABELS),
        "x: expected floating-point .* found torch.int64",
    ),
    "no logits": (
        lambda: token_log_probs(X[:, :0], LABELS),
        r"x: expected floating-point .* found torch.float32 \[20, 0\]",
    ),
    "half a chunk": (
        lambda: token_log_probs(X, LABELS, chunks=2.5),
        "chunks: expected a whole number, found 2.5",
    ),
    "a head of none": (
        lambda: token_log_probs(X, LABELS, head=lambda rows: None),
        "head: expected a Tensor, found NoneType",
    ),
    "a head of one row": (
        lambda: token_log_probs(X, LABELS, head=lambda rows: rows[:1]),
        "head: expected logits of 3 rows",
    ),
    "a text as ignore_index": (
        lambda: token_log_probs(X, LABELS, ignore_index="a"),
        "ignore_index: expected a whole number",
    ),
    "collect a list": (lambda: collect([1.0], plan=PLAN), "collect: expected a Tensor, found list"),
    "collect by a text": (
        lambda: collect(X, plan=PLAN, dim="a"),
        "collect: expected a whole number as dim, found 'a'",
    ),
    "collect over a text": (
        lambda: collect(X, plan=PLAN, group="a"),
        "group: expected a ProcessGroup, found 'a'",
    ),
    "last of no plan": (
        lambda: gather_last(X, plan=None),
        "gather_last, plan: expected a Plan, found None",
    ),
    "sums of truth": (
        lambda: document_sums(X > 0, plan=PLAN),
        "document_sums: expected numbers, found torch.bool",
    ),
    "rows of a table": (
        lambda: gather_rows(X, [[1, 2]], plan=PLAN),
        r"tokens: expected a list of them, found \[1, 2\]",
    ),
    "rows of texts": (
        lambda: gather_rows(X, ["a"], plan=PLAN),
        "tokens: expected whole numbers, found",
    ),
    "rows of large numbers": (
        lambda: gather_rows(X, [2**70], plan=PLAN),
        "tokens: expected whole numbers, found",
    ),
    "dispatch a list": (
        lambda: dispatch([1], plan=PLAN, rank=0),
        "dispatch: expected a Tensor, found list",
    ),
    "dispatch to a text": (
        lambda: dispatch(X, plan=PLAN, rank="a"),
        "dispatch, rank: expected a whole number, found 'a'",
    ),
    "a batch for a text": (
        lambda: local_batch(TOKENS, plan=PLAN, rank="a"),
        "local batch, rank: expected a whole number, found 'a'",
    ),
    "a batch of no plan": (
        lambda: local_batch(TOKENS, plan="p", rank=0),
        "local batch, plan: expected a Plan, found 'p'",
    ),
    "a batch of none": (
        lambda: local_batch(None, plan=PLAN, rank=0),
        "tokens: expected whole numbers, found None",
    ),
    "labels of texts": (
        lambda: local_batch(TOKENS, plan=PLAN, rank=0, labels=["a"] * 20),
        "labels: expected whole numbers",
    ),
    "weights of texts": (
        lambda: local_batch(TOKENS, plan=PLAN, rank=0, loss_weights=["a"] * 20),
        "loss_weights: expected finite numbers",
    ),
    "half an ignore_index": (
        lambda: local_batch(TOKENS, plan=PLAN, rank=0, ignore_index=1.5),
        "ignore_index: expected a whole number",
    ),
    "pack none": (lambda: pack(None), "tokens: expected .* or a list of sequences, found None"),
    "pack texts": (lambda: pack([["a"]]), "sequence 0: expected whole numbers"),
    "a field of none": (
        lambda: pack([[1, 2]]).rows(None),
        "field: expected a list of 1 sequences, found None",
    ),
    "unpack a list": (
        lambda: pack([[1, 2]]).unpack([1, 2]),
        "unpack: expected a Tensor, found list",
    ),
    "slopes of NaN": (lambda: alibi([float("nan")]), "alibi: expected finite slopes"),
    "no slopes": (lambda: alibi([]), "alibi: expected a slope per query head"),
    "True slopes": (lambda: alibi(True), "alibi: expected slopes or a number of heads, found True"),
    "a table of ints": (
        lambda: relative_bias(TABLE.long(), 0),
        "table of floating-point numbers, found torch.int64",
    ),
    "large buckets": (
        lambda: relative_bias(TABLE, 0, buckets=torch.tensor([2**32])),
        "expected buckets below 6, found 4294967296",
    ),
    "buckets of truth": (
        lambda: relative_bias(TABLE, 0, buckets=torch.tensor([True])),
        "buckets: expected whole numbers",
    ),
    "a large offset": (
        lambda: relative_bias(TABLE, 2**40),
        "first_offset: expected a number of 32 bits",
    ),
    "half a distance": (
        lambda: t5_bias(TABLE, bidirectional=False, max_distance=9.5),
        "max_distance: expected a whole number",
    ),
    "a score_mod that fails": (
        lambda: from_score_mod(lambda s: s, heads=4, num_tokens=8),
        "score_mod: expected a function of",
    ),
    "chunks of a mask": (
        lambda: chunks_of(BY_MASK),
        "a length for each document, .* found 2 documents in 1 lengths",
    ),
    "documents of a mask": (
        lambda: documents_of(BY_MASK),
        "found 2 documents in 1 lengths, apart by their mask alone",
    ),
    "no chunks": (
        lambda: causal_conv(ROWS, rand(6, 3), chunks=None),
        "chunks: expected those of chunks_of, found None",
    ),
    "weight of f64": (
        lambda: causal_conv(ROWS, rand(6, 3).double(), chunks=CHUNKS),
        "weight: expected torch.float32 .6, kernel., as x",
    ),
    "weight of others": (
        lambda: causal_conv(ROWS, rand(5, 3), chunks=CHUNKS),
        r"weight: expected .* found torch.float32 \[5, 3\]",
    ),
    "x of ints": (
        lambda: causal_conv(ROWS.long(), rand(6, 3), chunks=CHUNKS),
        "x: expected floating-point .* found torch.int64",
    ),
    "no gates": (
        lambda: linear_attention(HEADS, HEADS, HEADS, gates=None, chunks=CHUNKS, rule=len),
        "expected a dict of gates",
    ),
    "keys of others": (
        lambda: linear_attention(HEADS, HEADS[:, :, :1], HEADS, gates={}, chunks=CHUNKS, rule=len),
        "query and key .* of one shape",
    ),
    "steps of others": (
        lambda: ssd_scan(
            HEADS, rand(1, 20, 3), rand(2), HEADS, HEADS, chunks=CHUNKS, rule=len, chunk_size=4
        ),
        "ssd_scan: expected x",
    ),
    "gather a list": (lambda: CHUNKS.gather([1]), "layout: expected a Tensor, found list"),
    "gather by 7": (
        lambda: CHUNKS.gather(X, dim=7),
        r"layout: expected a dimension of \[20, 5\], found dim=7",
    ),
    "another device": (
        lambda: Executor(ct.inproc_group(1)[0], device="foo"),
        "device: expected one of PyTorch's .cpu, cuda, cuda:N, xpu, mps, .* or emulated",
    ),
    "a number as kernel": (
        lambda: Executor(ct.inproc_group(1)[0], kernel=3),
        "kernel: expected a text, found 3",
    ),
    "cu_seqlens of floats": (
        lambda: ct.masks.from_cu_seqlens([0, 1.5]),
        "cu_seqlens: expected a whole number, found 1.5",
    ),
    "no cu_seqlens": (
        lambda: ct.masks.from_cu_seqlens(None),
        "cu_seqlens: expected ascending numbers from 0, found None",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_arguments_are_refused_by_name(name):
    call, message = CASES[name]
    with pytest.raises(ct.InvalidArgument, match=message):
        call()


def test_labels_of_other_integers_are_taken():
    expected = token_log_probs(X, LABELS)
    assert torch.equal(token_log_probs(X, LABELS.int()), expected) and torch.equal(
        token_log_probs(X, LABELS.to(torch.uint8)), expected
    )
