"""The kernels in Triton under its interpreter, against dense attention in float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton.language as tl
from triton.runtime import interpreter

import contextile as ct
from contextile.torch._attention.bias import Terms as BiasTerms
from contextile.torch._kernels import (
    choice,
    triton_attention,
    triton_check,
    triton_row_check,
    triton_rows,
)
from contextile.torch._kernels.kernel import Params
from contextile.torch._kernels.score_terms import ScoreTerms
from contextile.torch._kernels.triton_attention import (
    BackwardBuffers,
    ForwardBuffers,
    Stage,
    Terms,
    Tiling,
)
from contextile.torch._kernels.triton_stage import TritonStage

BLOCK = 128
# The interpreter's time goes by the number of parts rather than by their size.
COARSE = {kernel: Tiling(128, 128, 4, 2) for kernel in ("forward", "fused", "dkv", "dq")}


class Problem(NamedTuple):
    """Rows and keys of a stage in their order there."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    terms: Terms
    places: dict[str, torch.Tensor]


def seen_pairs(low, high, num_keys):
    keys = torch.arange(num_keys)[None, :, None]
    return ((low[:, None] <= keys) & (keys < high[:, None])).any(-1)


def masks(name, n, m):
    """Returns the intervals of ``n`` rows among ``m`` keys."""
    rows = torch.arange(n)[:, None]
    if name == "full":
        low, high = torch.zeros(n, 1), torch.full((n, 1), m)
    elif name == "causal":
        low, high = torch.zeros(n, 1), rows + 1 + m - n
    elif name == "window":
        low, high = rows - 50, rows + 1
    elif name == "intervals":  # four, of which one is empty and two overlap
        low = torch.cat([rows // 3, rows // 2, 60 + 0 * rows, m - 20 - rows // 8], 1)
        high = torch.cat([rows // 3 + 9, rows // 2 + 5, 60 + 0 * rows, m + 0 * rows], 1)
    elif name == "many intervals":  # every other key of some rows: more than are unrolled
        low = 2 * torch.arange(7) + rows // 9
        high = low + 1
    else:
        assert name == "some rows"  # every third row sees nothing, and so do the last keys
        low, high = torch.zeros(n, 1), torch.where(rows % 3 == 1, 0, m - 45)
    return low.clamp(0, m).int(), high.clamp(0, m).int()


def problem(
    mask="causal", n=200, m=230, heads=(2, 2), dim=64, dim_v=None, dtype=torch.float32, **terms
):
    dim_v = dim_v or dim
    gen = torch.Generator().manual_seed(n + m + dim)
    shapes = [(n, heads[0], dim), (m, heads[1], dim), (m, heads[1], dim_v), (n, heads[0], dim_v)]
    tensors = [torch.randn(shape, generator=gen).to(dtype) for shape in shapes]
    groups = 2
    layer_heads = groups * heads[0]
    if terms.pop("with_slopes", False):
        terms["slopes"] = 0.02 * torch.randn(layer_heads, generator=gen)
    if terms.pop("with_table", False):
        terms["table"] = torch.randn(layer_heads, 6, generator=gen)
        terms["buckets"] = (torch.arange(150) // 30 + 1).int()  # no pair has bucket 0
        terms["first_offset"] = -100
        terms["table_gradient"] = torch.full((layer_heads, 6), 0.5, dtype=torch.float64)
    terms.setdefault("scale", dim**-0.5)
    places = {
        "q_positions": torch.arange(n) * 3 % n,
        "k_positions": torch.arange(m) * 7 % m,
        "q_tokens": torch.randperm(1000, generator=gen)[:n],
        "k_tokens": torch.randperm(1000, generator=gen)[:m],
        "q_groups": torch.arange(n) * groups // n,
    }
    places = {name: place.int() for name, place in places.items()}
    return Problem(*tensors, *masks(mask, n, m), Terms(**terms), places)


def by_row(values, groups, heads):
    """[heads of the layer, rows, …] -> [heads of a group, rows, …] of the rows' groups."""
    by_group = values.unflatten(0, (-1, heads))
    return by_group[groups, :, torch.arange(len(groups))].transpose(0, 1)


def reference(given):
    """Returns o, lse, dq, dk, dv and the table's gradient, in float64."""
    q, k, v = (x.double().requires_grad_() for x in given[:3])
    heads, times = q.shape[1], q.shape[1] // k.shape[1]
    terms, places = given.terms, given.places
    groups = places["q_groups"].long()
    scores = torch.einsum("nhd,mhd->hnm", q, k.repeat_interleave(times, 1)) * terms.scale
    if terms.softcap:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    offsets = places["k_positions"].long() - places["q_positions"].long()[:, None]
    if terms.slopes is not None:
        slopes = terms.slopes.double()[:, None, None].expand(-1, len(q), 1)
        scores = scores + by_row(slopes, groups, heads) * offsets
    table = None
    if terms.table is not None:
        table = terms.table.double().requires_grad_()
        at = (offsets - terms.first_offset).clamp(0, len(terms.buckets) - 1)
        scores = scores + by_row(table[:, terms.buckets.long()[at]], groups, heads)
    seen = seen_pairs(given.low, given.high, len(k))
    scores = scores.masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.where(seen, torch.exp(scores - lse.unsqueeze(-1)), 0.0)
    if terms.dropout:
        found = ScoreTerms(terms, q.device).factors(
            slice(0, 2 * heads), places["q_tokens"], places["k_tokens"]
        )
        weights = weights * by_row(found, groups, heads)
    out = torch.einsum("hnm,mhd->nhd", weights, v.repeat_interleave(times, 1))
    # Gradients pass through rows that see nothing as NaN * 0.
    some = seen.any(1)
    out = torch.where(some[:, None, None], out, 0.0)
    inputs = [q, k, v] + ([] if table is None else [table])
    found = torch.autograd.grad((out * given.do.double()).sum(), inputs)
    return (out.detach(), lse.detach().T, *(torch.nan_to_num(x) for x in found))


def block_lists(chosen):
    counts = chosen.sum(1).int()
    found = torch.zeros(len(chosen), max([1, *counts.tolist()]), dtype=torch.int32)
    for number, row in enumerate(chosen):
        found[number, : counts[number]] = row.nonzero().flatten()
    return counts, found


def make_stage(low, high, num_keys, rows, places):
    seen = seen_pairs(low, high, num_keys)
    kinds = torch.zeros(2, -(-len(low) // BLOCK), -(-num_keys // BLOCK), dtype=torch.bool)
    for i in range(kinds.shape[1]):
        for j in range(kinds.shape[2]):
            part = seen[i * BLOCK :, j * BLOCK :][:BLOCK, :BLOCK]
            kinds[1, i, j] = bool(part.all()) and part.shape[1] == BLOCK
            kinds[0, i, j] = bool(part.any()) and not kinds[1, i, j]
    partial, full = kinds
    blocks = [block_lists(one) for one in (partial, full, partial.T, full.T)]
    return Stage(len(low), num_keys, rows, low, high, blocks, places)


def stages_of(given, cuts, by_lists):
    """Returns stages that have the keys between cuts, and the size of the buffers."""
    n, m = len(given.q), len(given.k)
    room = max(n, m) + 37
    gen = torch.Generator().manual_seed(1)
    rows = {}
    for number, kind in enumerate(("q", "o", "do", "dq", "kv", "dkv")):
        count = m if "kv" in kind else n
        order = torch.randperm(room, generator=gen)[:count]
        rows[kind] = order.int() if number % 2 else order
        if by_lists == "none" or (by_lists == "some" and number % 2):
            rows[kind] = slice(5 * number, 5 * number + count)
    found = []
    for a, b in zip((0, *cuts), (*cuts, m), strict=True):
        part = dict(rows)
        for kind in ("kv", "dkv"):
            one = rows[kind]
            part[kind] = slice(one.start + a, one.start + b) if isinstance(one, slice) else one[a:b]
        places = {name: x[a:b] if name[0] == "k" else x for name, x in given.places.items()}
        low, high = ((x - a).clamp(0, b - a) for x in (given.low, given.high))
        found.append(make_stage(low, high, b - a, part, places))
    return found, rows, room


def index(rows):
    return rows if isinstance(rows, slice) else rows.long()


def buffer_of(values, rows, room):
    """Returns a buffer with values in its rows and NaN elsewhere."""
    found = torch.full((room, *values.shape[1:]), math.nan, dtype=values.dtype)
    found[index(rows)] = values
    return found


def assert_rows(buffer, rows, expected, tolerance):
    """Checks the rows, and that no other row was written."""
    values = buffer[index(rows)].double()
    error = (values - expected).abs().nan_to_num(math.inf, posinf=math.inf)
    error = max([0.0, *error[values != expected].tolist()])
    bound = tolerance * max([1.0, *expected[expected.isfinite()].abs().tolist()])
    assert error <= bound, f"expected an error of at most {bound:.2g}, found {error:.2g}"
    assert buffer.isnan().flatten(1).all(1).sum() == len(buffer) - len(expected)


def check(
    given, cuts=(), by_lists="all", ways=(True, False), tolerance=1e-5, tilings=COARSE, none=0.0
):
    """Compares forward and backward with dense attention. Rows without keys have ``none`` as the
    log-sum-exp in backward."""
    stages, rows, room = stages_of(given, cuts, by_lists)
    out, lse, dq, dk, dv, *table = reference(given)
    q, k, v, do = (
        buffer_of(x, rows[kind], room)
        for x, kind in zip(given[:4], ("q", "kv", "kv", "do"), strict=True)
    )
    o, o_lse = (torch.full((room, *x.shape[1:]), math.nan) for x in (out, lse))
    for number, stage in enumerate(stages):
        buffers = ForwardBuffers(q, k, v, o, o_lse)
        triton_attention.forward(buffers, stage, given.terms, is_first=number == 0, tilings=tilings)
    assert_rows(o, rows["o"], out, tolerance)
    assert_rows(o_lse, rows["o"], lse, tolerance)

    final = torch.where(lse == -math.inf, none, lse).float()
    delta = (out * given.do.double()).sum(-1).float()
    numbers = [buffer_of(x, rows["do"], room) for x in (final, delta)]
    results = []
    for deterministic in ways:
        sums = [torch.full((room, *x.shape[1:]), math.nan) for x in (dq, dk, dv)]
        for one in sums[1:]:
            one[index(rows["dkv"])] = 0.25
        terms = given.terms
        if table:
            terms = terms._replace(table_gradient=terms.table_gradient.clone())
        for number, stage in enumerate(stages):
            triton_attention.backward(
                BackwardBuffers(q, k, v, do, *numbers, *sums),
                stage,
                terms,
                is_first=number == 0,
                deterministic=deterministic,
                tilings=tilings,
            )
        assert_rows(sums[0], rows["dq"], dq, tolerance)
        assert_rows(sums[1], rows["dkv"], dk + 0.25, tolerance)
        assert_rows(sums[2], rows["dkv"], dv + 0.25, tolerance)
        if table:
            torch.testing.assert_close(
                terms.table_gradient, table[0] + 0.5, rtol=tolerance, atol=10 * tolerance
            )
        results.append(sums)
    for one, other in zip(results[0], results[-1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2 * tolerance, equal_nan=True)


@pytest.mark.parametrize("by_lists", ["all", "none", "some"])
@pytest.mark.parametrize("mask", ["full", "causal", "window", "intervals", "some rows"])
def test_masks_and_lists_of_rows(mask, by_lists):
    check(problem(mask), by_lists=by_lists)


def test_rows_of_many_intervals():
    check(problem("many intervals", heads=(1, 1), dim=16))


@pytest.mark.parametrize("first_offset", [-(1 << 31), (1 << 31) - 1])
def test_offsets_of_a_table_do_not_wrap_around(first_offset):
    given = problem(n=20, m=20, heads=(1, 1), dim=16, with_table=True)
    check(given._replace(terms=given.terms._replace(first_offset=first_offset)))


@pytest.mark.parametrize(
    "n, m", [(1, 1), (5, 0), (0, 5), (3, 300), (300, 5), (128, 128), (257, 256)]
)
def test_numbers_of_rows_and_keys(n, m):
    check(problem("full", n, m, heads=(1, 1), dim=16))


@pytest.mark.parametrize("none", [0.0, -math.inf])
def test_later_stages_are_merged_into_earlier_ones(none):
    check(problem("intervals", m=300), cuts=(1, 170), none=none)
    check(problem("some rows", m=300), cuts=(140, 260), by_lists="none", none=none)


def test_results_of_rows_that_begin_again_are_not_read():
    given = problem("some rows", heads=(2, 1), dim=16)
    (stage,), rows, room = stages_of(given, (), "all")
    out, lse, *_ = reference(given)
    q, k, v = (
        buffer_of(x, rows[kind], room) for x, kind in zip(given[:3], ("q", "kv", "kv"), strict=True)
    )
    o, o_lse = (torch.full((room, *x.shape[1:]), math.nan) for x in (out, lse))
    o_lse[index(rows["o"])] = -math.inf
    buffers = ForwardBuffers(q, k, v, o, o_lse)
    triton_attention.forward(buffers, stage, given.terms, is_first=False, tilings=COARSE)
    assert_rows(o, rows["o"], out, 1e-5)
    assert_rows(o_lse, rows["o"], lse, 1e-5)


@pytest.mark.parametrize(
    "dim, dim_v", [(64, 64), (80, 80), (128, 64), (64, 128), (256, 256), (5, 24)]
)
def test_head_dims(dim, dim_v):
    check(problem("causal", 150, 150, dim=dim, dim_v=dim_v))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 1), (16, 1)])
def test_grouped_heads(heads):
    check(problem("causal", 140, 140, heads=heads, dim=16))


def widened(handle):
    """Returns an operand of the interpreter's products, which takes bfloat16 for integers."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(wide, tl.float32)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_narrow_dtypes(monkeypatch, dtype, tolerance):
    builder = interpreter.InterpreterBuilder
    product = builder.create_dot
    monkeypatch.setattr(
        builder,
        "create_dot",
        lambda self, a, b, *rest: product(self, widened(a), widened(b), *rest),
    )
    check(problem("window", dtype=dtype, heads=(4, 2)), tolerance=tolerance)


@pytest.mark.parametrize(
    "terms",
    [
        {"scale": -0.2},
        {"softcap": 1.5},
        {"softcap": 1.5, "scale": -0.3},
        {"with_slopes": True},
        {"with_table": True},
        {"dropout": 0.3, "seed": 0x9ABCDEF012345678},
        {"dropout": 0.8, "seed": 3},
        {"softcap": 2.0, "with_slopes": True, "with_table": True, "dropout": 0.2, "seed": 1 << 31},
    ],
    ids=lambda terms: " ".join(terms),
)
def test_terms_of_two_head_groups(terms):
    check(problem("causal", 160, 150, heads=(4, 2), dim=32, **terms), cuts=(130,))


@pytest.mark.parametrize("block_m, block_n", [(64, 32), (32, 64), (16, 128)])
def test_parts_of_blocks(block_m, block_n):
    tilings = dict.fromkeys(COARSE, Tiling(block_m, block_n, 4, 2))
    check(problem("intervals", 140, 150, heads=(2, 1), dim=16), tilings=tilings)


def test_default_tilings_divide_blocks():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for dim in (1, 64, 80, 128, 192, 256):
            for kernel in COARSE:
                tiling = triton_attention.default_tiling(kernel, dtype, dim)
                assert BLOCK % tiling.block_m == BLOCK % tiling.block_n == 0
                assert min(tiling.block_m, tiling.block_n) >= 16
    check(problem("causal", 130, 140, heads=(1, 1), dim=16), tilings=None)


def test_source_of_a_launch_has_what_the_kernel_takes():
    given = problem("causal", 130, 140, heads=(2, 1), dim=16, softcap=2.0)
    (stage,), _, room = stages_of(given, (), "all")
    q, k, v = (torch.empty(room, *x.shape[1:], device="meta") for x in given[:3])
    buffers = ForwardBuffers(q, k, v, q, q[:, :, 0])
    one = triton_attention.forward_launch(buffers, stage, given.terms, is_first=True)
    signature, constants, attributes = one.source()
    assert list(signature) == list(one.kernel.arg_names)
    assert signature["q"] == "*fp32" and signature["q_rows"] == "*i64"
    assert signature["softcap"] == "fp32" and signature["num_rows"] == "i32"
    assert signature["slopes"] == "constexpr" and constants["slopes"] is None
    assert constants["IS_FIRST"] is True and constants["HEAD_DIM"] == 16
    names = {one.kernel.arg_names[number] for (number,) in attributes}
    assert {"q", "q_row", "q_head"} <= names and not {"num_rows", "q_rows"} & names


# ---------------------------------------------------------------------------------- the device


@pytest.mark.parametrize("is_reversed, deterministic", [(True, False), (False, True)])
def test_a_device_is_checked_before_its_first_call(is_reversed, deterministic):
    params = Params(4, 2, 24, 16, torch.float32, -0.2, 5.0)
    problem = triton_check._Problem(params, torch.device("cpu"))
    errors = triton_check._errors(TritonStage(), problem, params, is_reversed, deterministic)
    assert max(errors.values()) <= 1e-5, errors


def test_a_device_with_wrong_results_is_refused(monkeypatch):
    def wrong(buffers, stage, terms, **named):
        forward(buffers, stage, terms, **named)
        buffers.o[17] += 1.0

    forward = triton_attention.forward
    monkeypatch.setattr(triton_attention, "forward", wrong)
    params = Params(4, 4, 16, 16, torch.float32, 0.25, 0.0)
    with pytest.raises(ct.DeviceError, match="torch:triton, cpu: expected errors up to 0.0001 "):
        triton_check.check_on(TritonStage(), params, torch.device("cpu"))


def test_a_device_is_checked_with_terms_inside_of_operators():
    params = Params(4, 2, 16, 16, torch.float32, 0.25, 5.0, has_terms=True)
    with torch.inference_mode():  # as below autograd
        errors = triton_check._checked(TritonStage(), params, torch.device("cpu"))
    assert set(errors) == {"out", "lse", "dq", "dk", "dv", "dtable"}
    assert max(errors.values()) <= 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_checks_do_not_depend_on_the_default_dtype(dtype):
    triton_check._checked.cache_clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        params = Params(2, 2, 16, 16, torch.float32, 0.25, 0.0)
        triton_check.check_on(TritonStage(), params, torch.device("cpu"))
        assert triton_row_check.wrong_rows(triton_rows, torch.device("cpu")) == ""
    finally:
        torch.set_default_dtype(before)


def test_a_compiler_that_is_missing_is_named(monkeypatch):
    def fail(*given, **named):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    monkeypatch.setattr(triton_attention, "forward", fail)
    params = Params(2, 2, 24, 24, torch.float32, 0.25, 0.0)
    cpu = torch.device("cpu")
    with pytest.raises(ct.DeviceError, match="compiles and runs it, found RuntimeError: Please sp"):
        triton_check.check_on(TritonStage(), params, cpu)
    monkeypatch.setattr(TritonStage, "devices", ("cpu",))
    monkeypatch.setitem(choice._PREFERRED, "cpu", ("torch:triton",))
    with pytest.warns(RuntimeWarning, match="Please specify via CC; torch:tiles runs instead"):
        assert choice.checked_kernel_for("", params, cpu).name == "torch:tiles"
    with pytest.raises(ct.DeviceError):
        choice.checked_kernel_for("torch:triton", params, cpu)


def test_a_transposed_table_is_that_table():
    weight = torch.randn(8, 4)
    given = BiasTerms(None, weight.t(), torch.arange(9), -4, 0.0, None)
    terms = ScoreTerms(given, torch.device("cpu"))
    assert terms.table.is_contiguous() and torch.equal(terms.table, weight.t())
