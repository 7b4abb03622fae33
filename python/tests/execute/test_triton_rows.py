"""Triton kernels on rows of buffers equal the operators of the engine, under Triton's interpreter.

The interpreter runs one program after another: it finds wrong numbers and wrong addresses, not
races.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from contextile.torch._engine import merge
from contextile.torch._engine.rank_program import Reduce
from contextile.torch._kernels import row_ops as eager
from contextile.torch._kernels import triton_row_check, triton_rows

# Differences of infinities are expected, and NumPy warns of them.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")

ROWS = 23  # of a buffer
HEADS_AND_DIMS = [(1, 1), (3, 8), (2, 96), (5, 20)]
INF = float("inf")


def index(*rows):
    return torch.tensor(rows, dtype=torch.int64)


RUN, INDEX = slice(3, 10), index(20, 0, 7, 8, 22, 1, 4)  # 7 rows each
SELECTIONS = [pytest.param(RUN, id="run"), pytest.param(INDEX, id="index")]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def lse_with_infinities(*shape):
    """Numbers of which a third is -inf."""
    return torch.randn(shape).mul(4).masked_fill(torch.rand(shape) < 1 / 3, -INF)


def partial(rows, heads, dim):
    """A partial result: rows that saw nothing are 0."""
    lse = lse_with_infinities(rows, heads)
    return torch.randn(rows, heads, dim).masked_fill((lse == -INF)[..., None], 0.0), lse


def strided(values):
    """The same values in a padded row of a longer tensor, with heads before rows."""
    rows, heads, dim = values.shape
    longer = torch.full((heads, rows + 1, dim + 3), torch.nan, dtype=values.dtype)
    view = longer.transpose(0, 1)[1:, :, :dim]
    view.copy_(values)
    return view


def assert_equal(found, expected, bound=1e-6):
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


# ----------------------------------------------------------------------------------------- merges


@pytest.mark.parametrize("heads, dim", HEADS_AND_DIMS)
@pytest.mark.parametrize("rows", SELECTIONS)
def test_merge_rows_equals_the_operators(rows, heads, dim):
    parts = list(partial(ROWS, heads, dim))
    out, more_lse = partial(7, heads, dim)
    expected = [part.clone() for part in parts]
    eager.merge_rows(expected, rows, out, more_lse, is_first=False)

    triton_rows.merge_rows(*parts, rows, strided(out), more_lse.t().contiguous().t())

    assert_equal(parts[0], expected[0])
    assert_equal(parts[1], expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("is_first", [False, True], ids=["merge", "first"])
def test_narrow_results_equal_the_operators(dtype, is_first):
    parts = list(partial(ROWS, 3, 40))
    out, more_lse = partial(7, 3, 40)
    expected = [part.clone() for part in parts]
    eager.merge_rows(expected, INDEX, out.to(dtype), more_lse, is_first)

    function = triton_rows.put_partial if is_first else triton_rows.merge_rows
    function(*parts, INDEX, strided(out.to(dtype)), more_lse)

    assert_equal(parts[0], expected[0])
    assert_equal(parts[1], expected[1])


@pytest.mark.parametrize("rows", SELECTIONS)
def test_put_partial_overwrites(rows):
    parts = [torch.full((ROWS, 2, 5), torch.nan), torch.full((ROWS, 2), torch.nan)]
    out, more_lse = partial(7, 2, 5)

    triton_rows.put_partial(*parts, rows, strided(out), more_lse)

    assert torch.equal(parts[0][rows], out)
    assert torch.equal(parts[1][rows], more_lse)
    assert parts[0].isnan().any(-1).any(-1).sum() == ROWS - 7


def test_a_side_without_weight_leaves_no_trace():
    o, lse = torch.full((3, 1, 4), 2.0), torch.tensor([[1.0], [-INF], [-INF]])
    o[1] = torch.nan  # what an earlier round left
    out, more_lse = torch.full((3, 1, 4), 3.0), torch.tensor([[-INF], [1.0], [-INF]])
    out[0], out[2] = torch.inf, torch.nan

    triton_rows.merge_rows(o, lse, slice(0, 3), out, more_lse)

    assert o[:, 0, 0].tolist() == [2.0, 3.0, 2.0]
    assert lse[:, 0].tolist() == [1.0, 1.0, -INF]


def test_a_log_sum_exp_that_is_no_number_stays_visible():
    o, lse = torch.ones(2, 1, 1), torch.tensor([[1.0], [torch.nan]])

    triton_rows.merge_rows(o, lse, slice(0, 2), o.clone(), torch.tensor([[torch.nan], [-INF]]))

    assert lse.isnan().all() and o.isnan().all()


@pytest.mark.parametrize("difference", [0.0, 1e-4, 3.0, 20.0, 80.0, 200.0])
def test_merges_are_exact_for_any_difference(difference):
    o, out = torch.tensor([[[1.0]], [[1.0]]]), torch.tensor([[[-2.0]], [[-2.0]]])
    lse = torch.tensor([[0.0], [difference]])
    more_lse = lse.flip(0)
    expected_lse = torch.logaddexp(lse.double(), more_lse.double())
    weight = torch.sigmoid(more_lse.double() - lse.double())[..., None]
    expected = o.double() * (1 - weight) + out.double() * weight

    triton_rows.merge_rows(o, lse, slice(0, 2), out, more_lse)

    assert_equal(o, expected.float())
    assert_equal(lse, expected_lse.float())


# ------------------------------------------------------------------------------- copies and sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5,), (2, 96), (1, 1), (3, 512)])
@pytest.mark.parametrize("rows", SELECTIONS)
def test_take_rows_equals_the_operators(rows, shape, dtype):
    part = torch.randn(ROWS, *shape)

    found = triton_rows.take_rows(part, rows, dtype)

    assert found.is_contiguous()
    # The interpreter cuts bfloat16 off, GPUs round.
    bound = 2**-7 if dtype == torch.bfloat16 else 0.0
    assert_equal(found, eager.take(part, rows).to(dtype), bound)


def test_rows_keep_their_bits_on_the_way():
    part = torch.randn(ROWS, 2, 24).to(torch.bfloat16)
    arrived = torch.zeros_like(part)

    triton_rows.put_rows(arrived, INDEX, triton_rows.take_rows(part, INDEX, torch.bfloat16))

    assert torch.equal(arrived[INDEX], part[INDEX])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["put", "add"])
@pytest.mark.parametrize("rows", SELECTIONS)
def test_put_and_add_equal_the_operators(rows, name, dtype):
    for heads, dim in HEADS_AND_DIMS:
        part = torch.randn(ROWS, heads, dim)
        values = torch.randn(7, heads, dim).to(dtype)
        expected = part.clone()
        getattr(eager, name)(expected, rows, values)

        getattr(triton_rows, f"{name}_rows")(part, rows, strided(values))

        assert_equal(part, expected)


@pytest.mark.parametrize("name", ["put", "add"])
def test_parts_of_two_dimensions_take_transposed_values(name):
    part, values = torch.randn(ROWS, 6), torch.randn(6, 7).t()
    expected = part.clone()
    getattr(eager, name)(expected, INDEX, values)

    getattr(triton_rows, f"{name}_rows")(part, INDEX, values)

    assert_equal(part, expected)


def test_rows_that_repeat_are_all_added():
    part, values = torch.randn(ROWS, 2, 40), torch.randn(90, 2, 40)
    rows = torch.randint(0, 4, (90,))
    expected = part.double().index_add(0, rows, values.double()).float()

    triton_rows.add_rows(part, rows, values)

    assert_equal(part, expected, 1e-5)


# ------------------------------------------------------------------------------- several sources

SOURCES = [RUN, INDEX, index(19, 2, 3, 4), slice(16, 19), index(11), slice(0, 0), slice(12, 14)]
COUNTS = [7, 7, 4, 3, 1, 0, 2]


@pytest.mark.parametrize("num", range(1, len(SOURCES) + 1))
def test_several_sources_equal_the_operators(num):
    parts = list(partial(ROWS, 3, 24))
    gradient = torch.randn(ROWS, 2, 10)
    of_engine = {"o": [part.clone() for part in parts], "dq": [gradient.clone()]}
    for kind in of_engine:
        rows = {str(number): SOURCES[number] for number in range(num)} | {"dst": INDEX}
        merge.reduce_rows(of_engine, Reduce(kind, rows, COUNTS[:num]))

    o, lse = triton_rows.reduce_partials(*parts, SOURCES[:num], COUNTS[:num])
    sums = triton_rows.sum_rows(gradient, SOURCES[:num], COUNTS[:num])
    triton_rows.put_partial(*parts, INDEX, o, lse)
    triton_rows.put_rows(gradient, INDEX, sums)

    assert_equal(parts[0], of_engine["o"][0])
    assert_equal(parts[1], of_engine["o"][1])
    assert torch.equal(gradient, of_engine["dq"][0])


# ------------------------------------------------------------------------------------------ edges


@pytest.mark.parametrize("rows", [slice(4, 4), index()], ids=["run", "index"])
def test_no_rows_change_nothing(rows):
    o, lse = partial(ROWS, 2, 8)
    before = o.clone(), lse.clone()

    for function in (triton_rows.merge_rows, triton_rows.put_partial):
        function(o, lse, rows, torch.empty(0, 2, 8), torch.empty(0, 2))
    triton_rows.put_rows(o, rows, torch.empty(0, 2, 8))
    triton_rows.add_rows(o, rows, torch.empty(0, 2, 8))

    assert triton_rows.take_rows(o, rows, torch.bfloat16).shape == (0, 2, 8)
    assert triton_rows.sum_rows(o, [rows, rows], [0, 0]).shape == (0, 2, 8)
    assert [x.shape for x in triton_rows.reduce_partials(o, lse, [rows], [0])] == [
        (0, 2, 8),
        (0, 2),
    ]
    assert torch.equal(o, before[0])
    assert torch.equal(lse, before[1])


def test_programs_share_no_rows_and_leave_none_out():
    # One program has 2048 / 4 lines: rows and programs end at different lines.
    part = torch.arange(700 * 3 * 4, dtype=torch.float32).view(700, 3, 4)
    rows = torch.randperm(700)

    assert torch.equal(triton_rows.take_rows(part, rows, torch.float32), part[rows])
    assert torch.equal(triton_rows.take_rows(part, slice(1, 699), torch.float32), part[1:699])


def test_wrong_arguments_are_refused():
    o, lse = torch.zeros(ROWS, 2, 8), torch.zeros(ROWS, 2)
    with pytest.raises(
        ValueError, match=r"expected values of shape \(7, 2, 8\), found \(6, 2, 8\)"
    ):
        triton_rows.merge_rows(o, lse, RUN, torch.zeros(6, 2, 8), torch.zeros(7, 2))
    with pytest.raises(ValueError, match=r"expected values of shape \(7, 2\), found \(7, 8\)"):
        triton_rows.put_partial(o, lse, RUN, torch.zeros(7, 2, 8), torch.zeros(7, 8))
    with pytest.raises(ValueError, match="expected a contiguous part of 2 or 3 dimensions"):
        triton_rows.put_rows(o.transpose(0, 1), slice(0, 1), torch.zeros(1, ROWS, 8))
    with pytest.raises(ValueError, match="expected a contiguous part of 2 or 3 dimensions"):
        triton_rows.reduce_partials(o, torch.zeros(2, ROWS).t(), [RUN], [7])
    for counts in ([7, 6], [7]):
        with pytest.raises(ValueError, match=r"rows of sources, .*, found \[7, 7\]"):
            triton_rows.sum_rows(o, [RUN, INDEX], counts)
    with pytest.raises(ValueError, match="expected a float32 part, found torch.bfloat16"):
        triton_rows.add_rows(o.to(torch.bfloat16), RUN, torch.zeros(7, 2, 8))


def test_addresses_have_64_bits():
    # Memory that is never touched is never there.
    part = torch.empty(2**31 // 256 + 5, 2, 128, dtype=torch.int8)
    run, rows = slice(len(part) - 2, len(part)), index(len(part) - 3, 0)
    values = torch.randint(-128, 128, (2, 2, 128)).to(torch.int8)

    for selection in (run, rows):
        triton_rows.put_rows(part, selection, values)

        assert torch.equal(part[selection], values)
        assert torch.equal(triton_rows.take_rows(part, selection, torch.int8), values)


@pytest.mark.parametrize("is_head", [False, True], ids=["rows", "heads"])
def test_values_that_lie_far_apart_are_found(is_head):
    values = torch.empty(3, 2**30 // 16, 16, dtype=torch.int8)[:, :1]
    values.copy_(torch.randint(-128, 128, (3, 1, 16)))
    values = values.transpose(0, 1) if is_head else values
    part = torch.zeros(values.shape, dtype=torch.int8)

    triton_rows.put_rows(part, slice(0, len(part)), values)

    assert torch.equal(part, values)


# ----------------------------------------------------------------------------- output and a check


@pytest.mark.parametrize("size", [1.0, 1e-15, 1e15, 0.0])
@pytest.mark.parametrize("heads, dim", HEADS_AND_DIMS)
def test_output_with_delta_equals_the_operators(heads, dim, size):
    do, delta = strided(torch.randn(7, heads, dim) * size), torch.randn(7, heads) * size * size
    found = triton_rows.output_with_delta(do, delta)
    assert_equal(found, eager.output_with_delta(do, delta))
    assert found.is_contiguous() and found.isfinite().all()
    assert len(triton_rows.output_with_delta(do[:0], delta[:0])) == 0


def test_a_check_passes_and_names_kernels_that_are_wrong(monkeypatch):
    cpu = torch.device("cpu")
    assert triton_row_check.wrong_rows(triton_rows, cpu) == ""
    monkeypatch.setattr(triton_rows, "add_rows", triton_rows.put_rows)
    monkeypatch.setattr(triton_rows, "sum_rows", lambda *given: torch.full((100, 3, 40), torch.nan))
    assert triton_row_check.wrong_rows(triton_rows, cpu) == "add_rows, sum_rows"
