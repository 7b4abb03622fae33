"""A check of the Triton kernels on a device, before the first call there.

Triton compiles them for the device at hand, which may be one where they have never run. A small
stage shows that they are right there. It needs no autograd, so it may run inside of an operator.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._kernels.kernel import Buffers, Params
from contextile.torch._kernels.row_ops import reason_of
from contextile.torch._kernels.score_terms import ScoreTerms

_ROWS, _KEYS, _BLOCK = 200, 160, 128
# Largest difference from float64, relative to the largest number.
_BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


class _Stage:
    """A causal stage with a block of all pairs.

    Its rows lie in order and see one interval of keys, or in reverse order and see two.
    """

    def __init__(self, device: torch.device, is_reversed: bool) -> None:
        self.num_rows, self.num_keys, self.block = _ROWS, _KEYS, _BLOCK
        self.rows: dict[str, Any] = {}
        for kinds, count in ((("q", "o", "do", "dq"), _ROWS), (("kv", "dkv"), _KEYS)):
            reverse = torch.arange(count - 1, -1, -1, device=device)
            self.rows |= dict.fromkeys(kinds, reverse if is_reversed else slice(0, count))
        at = torch.arange(_ROWS, dtype=torch.int32, device=device).unsqueeze(1)
        end, middle = (at + 1).clamp_max(_KEYS), at // 2
        self.low, self.high = torch.zeros_like(at), end
        if is_reversed:
            self.low = torch.cat([self.low, middle], 1)
            self.high = torch.cat([middle, end], 1)
        self.blocks = [
            # Rows 0 to 127 see some of keys 0 to 127; the others all of them, and some of the rest.
            [_list(device, [1, 1]), _list(device, [[0], [1]])],
            [_list(device, [0, 1]), _list(device, [[0], [0]])],
            [_list(device, [1, 1]), _list(device, [[0], [1]])],
            [_list(device, [1, 0]), _list(device, [[1], [0]])],
        ]
        places = {"q": at.flatten(), "k": at.flatten()[:_KEYS].contiguous()}
        self.places = {
            f"{side}_{name}": rows for side, rows in places.items() for name in _PLACE_NAMES
        }
        self.places["q_groups"] = torch.zeros_like(places["q"])


_PLACE_NAMES = ("tokens", "positions")


def _list(device: torch.device, numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _terms(params: Params, device: torch.device) -> ScoreTerms:
    """Returns every term, with the gradient of a table."""
    heads = params.q_heads
    numbers = torch.arange(heads * 8, dtype=torch.float32, device="cpu")
    given = SimpleNamespace(
        slopes=numbers[:heads] / -50.0,
        table=torch.sin(numbers).view(heads, 8),
        buckets=torch.arange(2 * _ROWS + 1, device="cpu") // (_ROWS // 4 + 1),
        first_offset=-_ROWS,
        dropout=0.25,
        seed=torch.tensor(7, device="cpu"),
    )
    return ScoreTerms(given, device, torch.zeros(heads, 8, dtype=torch.float64, device=device))


class _Problem:
    """Inputs in the order of the stage, and what comes out of them in float64."""

    def __init__(self, params: Params, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)

        def drawn(rows: int, heads: int, dim: int) -> Tensor:
            values = torch.randn(
                rows, heads, dim, generator=generator, dtype=torch.float32, device="cpu"
            )
            return values.to(device, params.dtype)

        q_heads, kv_heads = params.q_heads, params.kv_heads
        # Scores of any scale are of the size of 1, and so are their errors.
        size = max(1.0, abs(params.scale) * math.sqrt(params.head_dim))
        self.q = (drawn(_ROWS, q_heads, params.head_dim).float() / size).to(params.dtype)
        self.k = drawn(_KEYS, kv_heads, params.head_dim)
        self.v = drawn(_KEYS, kv_heads, params.value_dim)
        self.do = drawn(_ROWS, q_heads, params.value_dim)
        self.terms = _terms(params, device) if params.has_terms else None
        self.expected = self._results(params)

    def _results(self, params: Params) -> dict[str, Tensor]:
        """Returns out, lse, delta, and gradients; of the table, too, if there are terms."""
        group = params.q_heads // params.kv_heads
        q, do = self.q.double(), self.do.double()
        k, v = (x.double().repeat_interleave(group, 1) for x in (self.k, self.v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * params.scale
        slope: Any = 1.0
        if params.softcap:
            part = torch.tanh(scores / params.softcap)
            scores, slope = params.softcap * part, 1 - part * part
        factors: Any = 1.0
        heads = slice(0, params.q_heads)
        rows = torch.arange(_ROWS, dtype=torch.int32, device=q.device)
        if self.terms is not None:
            bias = self.terms.bias(heads, rows, rows[:_KEYS])
            assert bias is not None
            scores = scores + bias.double()
            factors = self.terms.factors(heads, rows, rows[:_KEYS])
        seen = rows[:, None] >= rows[None, :_KEYS]
        scores = scores.masked_fill(~seen, -math.inf)
        lse = scores.logsumexp(-1)
        weights = torch.exp(scores - lse.unsqueeze(-1))
        kept = weights * factors
        out = torch.einsum("hqk,khd->qhd", kept, v)
        delta = (out * do).sum(-1)
        dscores = weights * (torch.einsum("qhd,khd->hqk", do, v) * factors - delta.t()[..., None])
        found = {"out": out, "lse": lse.t(), "delta": delta}
        if self.terms is not None:
            self.terms.add_table_gradient(heads, rows, rows[:_KEYS], dscores)
            assert self.terms.table_gradient is not None
            found["dtable"] = self.terms.table_gradient.clone()
        dscores = dscores * slope * params.scale
        by_key = {
            "dk": torch.einsum("hqk,qhd->khd", dscores, q),
            "dv": torch.einsum("hqk,qhd->khd", kept, do),
        }
        found["dq"] = torch.einsum("hqk,khd->qhd", dscores, k)
        for name, sums in by_key.items():
            found[name] = sums.unflatten(1, (params.kv_heads, group)).sum(2)
        return found


def _errors(
    kernel: Any, problem: _Problem, params: Params, is_reversed: bool, deterministic: bool
) -> dict[str, float]:
    """Returns the largest error of every result of a stage that runs twice."""
    device, expected = problem.q.device, problem.expected
    stage = _Stage(device, is_reversed)
    turn: Any = (lambda x: x.flip(0)) if is_reversed else (lambda x: x)

    def room(like: Tensor, value: float = 0.0) -> Tensor:
        return torch.full(like.shape, value, dtype=torch.float32, device=device)

    numbers = [turn(expected[name]).float().contiguous() for name in ("lse", "delta")]
    buffers: Buffers = {
        "q": [turn(problem.q).contiguous()],
        "kv": [turn(problem.k).contiguous(), turn(problem.v).contiguous()],
        "do": [turn(problem.do).contiguous(), *numbers],
        "o": [room(problem.do), room(numbers[0], -math.inf)],
        "dq": [room(problem.q)],
        "dkv": [room(problem.k), room(problem.v)],
    }
    if problem.terms is not None and problem.terms.table_gradient is not None:
        problem.terms.table_gradient.zero_()
    for is_first in (True, False):
        kernel.run_forward(buffers, stage, is_first, params)
        kernel.backward(buffers, stage, is_first, params, deterministic)
    # Merged with itself a result keeps its output; gradients are there twice.
    found = {"out": buffers["o"][0], "lse": buffers["o"][1] - math.log(2)}
    found |= {"dq": buffers["dq"][0] / 2, "dk": buffers["dkv"][0] / 2, "dv": buffers["dkv"][1] / 2}
    errors = {
        name: ((turn(one).double() - expected[name]).abs().max() / expected[name].abs().max())
        for name, one in found.items()
    }
    if problem.terms is not None and problem.terms.table_gradient is not None:
        table, want = problem.terms.table_gradient / 2, expected["dtable"]
        errors["dtable"] = (table - want).abs().max() / want.abs().max()
    return {name: float(error) for name, error in errors.items()}


@functools.cache
def _checked(kernel: Any, params: Params, device: torch.device) -> dict[str, float]:
    """Returns the largest error of every result, over its largest number."""
    worst: dict[str, float] = {}
    with torch.no_grad():
        problem = _Problem(params, device)
        inside = params._replace(terms=problem.terms)
        ways = ((True, False), (False, True))
        for is_reversed, deterministic in ways[: 1 if device.type == "cpu" else 2]:
            if deterministic and problem.terms is not None:
                problem.terms.table_gradient = None  # it has no fixed order
            found = _errors(kernel, problem, inside, is_reversed, deterministic)
            for name, error in found.items():
                known = worst.get(name, 0.0)
                worst[name] = error if not error <= known else known
    return worst


def _tilings_note(params: Params, device: torch.device) -> str:
    """Returns where the tilings of a check come from; nothing if they are the default ones."""
    if importlib.util.find_spec("triton") is None:
        return ""
    from contextile.torch._kernels.triton_tilings import tilings_file, tilings_of

    dims = params.head_dim, params.value_dim
    if not tilings_of(device, params.dtype, dims, params.has_terms):
        return ""
    return f" with the tilings of {tilings_file()}; remove it to take the default ones"


def check_on(kernel: Any, params: Params, device: torch.device) -> None:
    """Raises DeviceError unless the kernel is right on a device. The host waits for the first."""
    plain = params._replace(terms=None)
    if device.type == "cpu":  # in Triton's interpreter, whose time goes by heads
        plain = plain._replace(q_heads=params.q_heads // params.kv_heads, kv_heads=1)
    try:
        errors = _checked(kernel, plain, device)
    except _core.InvalidArgument:  # of a file of tilings that is broken
        raise
    except Exception as error:  # of a compiler that is missing, or of the driver
        raise _core.DeviceError(
            f"kernel {kernel.name}, {device}: expected that Triton compiles and runs it, found "
            f"{reason_of(error)}{_tilings_note(params, device)}"
        ) from error
    bound = _BOUNDS[params.dtype]
    wrong = {name: error for name, error in errors.items() if not error <= bound}
    if wrong:
        text = ", ".join(f"{name} {error:.1e}" for name, error in wrong.items())
        raise _core.DeviceError(
            f"kernel {kernel.name}, {device}: expected errors up to {bound:g} in a check against "
            f"float64, found {text}; kernel='torch:tiles' runs on every device"
        )
