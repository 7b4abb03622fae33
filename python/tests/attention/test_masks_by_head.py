"""Masks that differ by query head, compared with dense attention on one device."""

from __future__ import annotations

import numpy as np
import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from contextile.torch import (
    Executor,
    alibi,
    attention,
    collect,
    dispatch,
    relative_bias,
    use,
)
from ranks import run_ranks
from reference import inputs, relative_error

LENGTHS = [70, 26, 100, 1]
TOKENS = sum(LENGTHS)
HEADS = (8, 4)
DIM = 16
WINDOW = "sliding_window:9"
BY_HEAD = {
    "halves": ["causal"] * 4 + [WINDOW] * 4,
    "in turn": ["causal", WINDOW] * 4,
    "of no pattern": ["causal", WINDOW, WINDOW, WINDOW, "full", "causal", "full", "full"],
    "all alike": ["causal"] * 8,
}


def plans_of(masks, ranks=2, strategy="dcp", **changes):
    options = {"heads": HEADS, "head_dim": DIM, "dtype": "f32", "block_size": 16, **changes}
    return ct.plans(LENGTHS, mask=masks, cluster=f"local:1x{ranks}", strategy=strategy, **options)


def dense_masks(names):
    return torch.from_numpy(
        np.stack([ct.make_workload(LENGTHS, mask=name).mask(0).dense() for name in names])
    )


def dense(tensors, masks, *, bias=None, sink=None):
    """out, dq, dk, dv and the gradient of a bias table or sink, in fp64."""
    q, k, v, dout = tensors
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    k_all, v_all = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in leaves[1:])
    scores = torch.einsum("qhd,khd->hqk", leaves[0], k_all) * q.shape[-1] ** -0.5
    more = []
    if bias is not None:
        at = torch.cat([torch.arange(length) for length in LENGTHS])
        if hasattr(bias, "table"):
            more = [bias.table.detach().double().requires_grad_()]
            bias = bias._replace(table=more[0], buckets=bias.buckets.long())
        scores = bias(
            scores, 0, torch.arange(len(scores))[:, None, None], at[None, :, None], at[None, None]
        )
    scores = scores.masked_fill(~masks, float("-inf"))
    if sink is not None:
        more = [sink.detach().double().requires_grad_()]
        scores = torch.cat([scores, more[0][:, None, None].expand(-1, len(q), 1)], -1)
    weights = torch.softmax(scores, -1)[..., : len(q)]
    out = torch.einsum("hqk,khd->qhd", weights, v_all)
    out.backward(dout.double())
    return [out.detach(), *(x.grad for x in leaves), *(x.grad for x in more)]


def run(plans, tensors, *, bias=None, sink=None, mask=""):
    q, k, v, dout = tensors

    def body(transport):
        executor = Executor(transport)
        plan = executor.prepare(plans).plan
        leaves = [dispatch(x, plan=plan, rank=transport.rank).requires_grad_() for x in (q, k, v)]
        mine, more = bias, []
        if hasattr(bias, "table"):
            more = [bias.table.detach().clone().requires_grad_()]
            mine = bias._replace(table=more[0])
        if sink is not None:
            more = [sink.detach().clone().requires_grad_()]
        logits = more[0] if sink is not None else None
        out = attention(*leaves, executor=executor, mask=mask, bias=mine, sink=logits)
        out.backward(dispatch(dout, plan=plan, rank=transport.rank))
        return (
            plan.local_tokens(transport.rank),
            [out.detach(), *(x.grad for x in leaves)],
            [x.grad for x in more],
        )

    first = next(iter(plans.values()))
    results = ct.run_inproc((first.plan if hasattr(first, "groups") else first).num_devices, body)
    whole = [torch.empty_like(x) for x in (dout, q, k, v)]
    for tokens, parts, _ in results:
        for array, part in zip(whole, parts, strict=True):
            array[torch.from_numpy(tokens)] = part
    return [
        *whole,
        *(sum(shares) for shares in zip(*(shares for _, _, shares in results), strict=True)),
    ]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("strategy", ["dcp", "zigzag", "ring", "all_gather"])
@pytest.mark.parametrize("name", BY_HEAD)
def test_every_head_attends_as_its_mask_says(name, strategy):
    plans = plans_of(ct.masks.by_head(BY_HEAD[name]), ranks=4, strategy=strategy)
    tensors = inputs(TOKENS, HEADS, DIM)
    assert_equal(run(plans, tensors), dense(tensors, dense_masks(BY_HEAD[name])))


@pytest.mark.parametrize("heads", [(8, 8), (8, 1), (8, 2)])
def test_any_number_of_kv_heads(heads):
    masks = BY_HEAD["of no pattern"]
    tensors = inputs(TOKENS, heads, DIM)
    assert_equal(
        run(plans_of(ct.masks.by_head(masks), heads=heads), tensors),
        dense(tensors, dense_masks(masks)),
    )


def test_groups_have_the_query_heads_that_share_a_mask_and_their_kv_heads():
    def groups(name):
        return [
            (group.q_heads, group.kv_heads)
            for group in plans_of(ct.masks.by_head(BY_HEAD[name]))["by_head"].groups
        ]

    assert groups("halves") == [((0, 1, 2, 3), (0, 1)), ((4, 5, 6, 7), (2, 3))]
    assert groups("in turn") == [((0, 2, 4, 6), (0, 1, 2, 3)), ((1, 3, 5, 7), (0, 1, 2, 3))]
    # The window has one head of the first KV head and both of the second: two groups.
    assert groups("of no pattern")[:3] == [((0, 5), (0, 2)), ((1,), (0,)), ((2, 3), (1,))]
    assert groups("all alike") == [(tuple(range(8)), (0, 1, 2, 3))]


def test_groups_of_one_shape_share_a_plan():
    groups = plans_of(ct.masks.by_head(BY_HEAD["halves"]))["by_head"].groups
    assert groups[0].plan is groups[1].plan and groups[0].plan.mask_names == [
        "by_head.0",
        "by_head.1",
    ]


def test_layers_with_and_without_masks_by_head():
    masks = {"mixed": (ct.masks.by_head(BY_HEAD["in turn"]), 3), "full": "causal"}
    plans = plans_of(masks, heads={"mixed": HEADS, "full": (4, 4)})
    assert list(plans) == ["mixed", "full"]
    for name, heads, one in (
        ("mixed", HEADS, BY_HEAD["in turn"]),
        ("full", (4, 4), ["causal"] * 4),
    ):
        tensors = inputs(TOKENS, heads, DIM)
        assert_equal(run(plans, tensors, mask=name), dense(tensors, dense_masks(one)))


@pytest.mark.parametrize("name", ["halves", "in turn", "of no pattern"])
@pytest.mark.parametrize("more", ["alibi", "relative", "sink"])
def test_biases_and_sinks_are_those_of_the_heads(name, more):
    generator = torch.Generator().manual_seed(3)
    options = {
        "alibi": {"bias": alibi(8)},
        "relative": {"bias": relative_bias(torch.randn(8, 21, generator=generator), -12)},
        "sink": {"sink": torch.randn(8, generator=generator)},
    }[more]
    plans = plans_of(ct.masks.by_head(BY_HEAD[name]), **({"sink": True} if more == "sink" else {}))
    tensors = inputs(TOKENS, HEADS, DIM)
    assert_equal(
        run(plans, tensors, **options), dense(tensors, dense_masks(BY_HEAD[name]), **options)
    )


# ------------------------------------------------------------------------------------ FlexAttention


DOCUMENT = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))


def local_and_global(b, h, q, k):
    return (DOCUMENT[q] == DOCUMENT[k]) & (q >= k) & ((h % 2 == 0) | (q - k < 9))


def alike(b, h, q, k):
    return (q >= k) & (h >= 0)


def test_a_mask_mod_that_looks_at_the_head_has_masks_by_head():
    found = ct.masks.from_mask_mod(local_and_global, num_tokens=TOKENS, heads=8)
    assert isinstance(found, ct.masks.HeadMasks)
    expected = dense_masks(BY_HEAD["in turn"])
    assert np.array_equal(np.stack([mask.dense() for mask in found.masks]), expected.numpy())
    tensors = inputs(TOKENS, HEADS, DIM)
    assert_equal(run(plans_of(found), tensors), dense(tensors, expected))


def test_a_block_mask_whose_heads_differ_has_masks_by_head():
    block_mask = create_block_mask(local_and_global, 1, 8, TOKENS, TOKENS, device="cpu")
    assert ct.masks.from_block_mask(block_mask) == ct.masks.from_mask_mod(
        local_and_global, num_tokens=TOKENS, heads=8
    )
    one = ct.masks.from_block_mask(block_mask, head=1)
    assert one == ct.masks.from_mask_mod(local_and_global, num_tokens=TOKENS, head=3)


def test_heads_whose_masks_are_equal_have_one():
    causal = ct.masks.from_mask_mod(lambda b, h, q, k: q >= k, num_tokens=TOKENS, heads=8)
    assert isinstance(causal, ct.Mask)
    assert ct.masks.from_mask_mod(alike, num_tokens=TOKENS, heads=8) == causal
    assert (
        ct.masks.from_block_mask(create_block_mask(alike, 1, 8, TOKENS, TOKENS, device="cpu"))
        == causal
    )


# --------------------------------------------------------------------------------------- real ranks


def train(name, strategy):
    executor = Executor()
    plan = executor.prepare(
        ct.plans(
            LENGTHS,
            mask=ct.masks.by_head(BY_HEAD[name]),
            cluster=ct.Cluster.from_torch(),
            strategy=strategy,
            heads=HEADS,
            head_dim=DIM,
            dtype="f32",
            block_size=16,
        )
    ).plan
    tensors = inputs(TOKENS, HEADS, DIM)
    q, k, v, dout = (dispatch(x, plan=plan, rank=executor.rank) for x in tensors)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = attention(*leaves, executor=executor, return_lse=True)
    assert lse.shape == out.shape[:-1]
    out.backward(dout)
    found = [collect(x, plan=plan) for x in (out.detach(), *(leaf.grad for leaf in leaves))]
    assert_equal(found, dense(tensors, dense_masks(BY_HEAD[name])))


@pytest.mark.parametrize(
    ("name", "strategy", "ranks"),
    [("halves", "dcp", 2), ("of no pattern", "zigzag", 4), ("in turn", "dcp", 4)],
)
def test_real_ranks(name, strategy, ranks):
    run_ranks(train, ranks, name, strategy)


# ------------------------------------------------------------------------------- models and
# refusals


def prepared_alone(name="in turn", **changes):
    executor = Executor(ct.inproc_group(1)[0])
    return executor, executor.prepare(plans_of(ct.masks.by_head(BY_HEAD[name]), ranks=1, **changes))


def test_models_of_plain_pytorch_attend_by_head():
    executor, prepared = prepared_alone()
    tensors = inputs(TOKENS, HEADS, DIM)
    q, k, v, _ = (dispatch(x, plan=prepared.plan, rank=0).transpose(0, 1)[None] for x in tensors)
    with use(executor, check_model=False):
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(
            0, 1
        )
    expected = dense(tensors, dense_masks(BY_HEAD["in turn"]))[0]
    assert relative_error(out, dispatch(expected, plan=prepared.plan, rank=0)) < 1e-5


def test_models_of_transformers_attend_by_head():
    pytest.importorskip("transformers")
    import contextile.transformers as cth
    from tiny_models import make_tiny

    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = make_tiny("LlamaForCausalLM", "LlamaConfig", sizes)
    names = ["causal", WINDOW, "causal", WINDOW]
    masks = torch.from_numpy(
        np.stack([ct.make_workload([64], mask=name).mask(0).dense() for name in names])
    )
    tokens = torch.arange(64) % 97
    model.set_attn_implementation("eager")
    # A mask of four dimensions is added to scores as it is.
    expected = model(tokens[None], attention_mask=torch.where(masks, 0.0, -1e30)[None]).logits
    model.set_attn_implementation(cth.register())
    batch = cth.batch_of(model, mask={"full": (ct.masks.by_head(names), 2)})
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plans([64], cluster="local:1x1", strategy="zigzag", **batch))
    assert executor.plan.local_tokens(0).tolist() == list(range(64))
    with cth.use(executor, check_masks=False):
        assert relative_error(model(tokens[None]).logits, expected) < 1e-5
    with (
        pytest.raises(ct.InvalidArgument, match="mask 'full.1': expected causal, as the layer"),
        cth.use(executor),
    ):
        model(tokens[None])


def test_compiled_functions_attend_by_head():
    executor, prepared = prepared_alone()
    q, k, v, dout = inputs(TOKENS, HEADS, DIM)

    def gradients(function):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        function(*leaves).backward(dout)
        return [x.grad for x in leaves]

    def attend(q, k, v):
        return attention(q, k, v, executor=executor, plan=prepared)

    for one, other in zip(
        gradients(torch.compile(attend, fullgraph=True, backend="aot_eager")),
        gradients(attend),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_what_heads_have_not_is_refused(monkeypatch):
    executor, _ = prepared_alone()
    q, k, v, _ = inputs(TOKENS, HEADS, DIM)

    def refused(message, q=q, k=k, v=v, **options):
        with pytest.raises(ct.InvalidArgument, match=message):
            attention(q, k, v, executor=executor, **options)

    refused(
        "mask 'by_head': expected 8 heads of queries and 4 of keys and values, found 7, 4 and 4",
        q=q[:, :7],
    )
    refused("found 8, 5 and 4", k=torch.cat([k, k[:, :1]], 1))
    refused("bias: expected one for each of 8 query heads, found 9", bias=alibi(9))
    refused(
        "dropout_p: expected 0 under a mask that differs by head", dropout_p=0.1, dropout_seed=1
    )
    refused(r"expected one of the plan's \(by_head\), found 'full'", mask="full")
    monkeypatch.setattr("contextile.torch._attention.by_head.has_dtensors", lambda *_: True)
    refused("expected no DTensors under mask 'by_head', which differs by head")


def test_masks_by_head_that_do_not_fit_are_refused():
    masks = ct.masks.by_head(BY_HEAD["halves"])
    with pytest.raises(
        ct.InvalidArgument,
        match="mask: expected one for all heads, found one for each of 8 heads; contextile.plans",
    ):
        ct.plan(LENGTHS, mask=masks, cluster="local:1x1")
    with pytest.raises(ct.InvalidArgument, match="mask 'mixed': expected one for all heads"):
        ct.make_workload(LENGTHS, mask={"mixed": (masks, 2)})
    with pytest.raises(
        ct.InvalidArgument,
        match="mask 'by_head': expected a mask for each of 32 query heads, .* found 8 masks",
    ):
        ct.plans(LENGTHS, mask=masks, cluster="local:1x1")
    with pytest.raises(ct.InvalidArgument, match="mask 'm.0': expected another name"):
        plans_of({"m": masks, "m.0": "causal"})
    for wrong, found in (
        ([], "found none"),
        ([3], "for head 0, found int"),
        (["causal", None], "for head 1, found NoneType"),
    ):
        with pytest.raises(ct.InvalidArgument, match=f"by_head: expected .*{found}"):
            ct.masks.by_head(wrong)
    with pytest.raises(
        ct.InvalidArgument, match="mask_mod: expected heads= of at least 1 alone, found head=1, too"
    ):
        ct.masks.from_mask_mod(alike, num_tokens=64, head=1, heads=8)
    with pytest.raises(
        ct.InvalidArgument, match="expected heads= of at least 1 alone, found heads=0"
    ):
        ct.masks.from_mask_mod(alike, num_tokens=64, heads=0)
    with pytest.raises(ct.InvalidArgument, match="expected heads=, or head= for one of them"):
        ct.masks.from_mask_mod(alike, num_tokens=64)
