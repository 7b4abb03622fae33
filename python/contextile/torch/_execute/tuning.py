"""The choice of tilings of the Triton kernels by time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile import _checks, _core, plan
from contextile.torch._engine.buffers import DTYPES, make_buffers
from contextile.torch._engine.prepared import PreparedLists
from contextile.torch._engine.rank_program import INPUTS, Attention
from contextile.torch._execute.devices import device_of
from contextile.torch._kernels.kernel import Buffers

_SMALLEST_GAIN = 0.02  # of time, for which a tiling is worth another variant
_LOST: Any = getattr(torch, "AcceleratorError", ())  # PyTorch 2.8 and newer
_LAUNCHES = 5  # at a time, so that the device does not wait for the host


class Tuned(NamedTuple):
    """A kernel's tiling: rows and keys of a program, warps, and stages of its pipeline."""

    kernel: str
    tiling: tuple[int, int, int, int]
    seconds: float
    default_seconds: float


def _neighbors(tiling: Any) -> Iterator[Any]:
    """Yields tilings that differ from one in one number."""
    from contextile.torch._kernels.triton_tilings import SIZES, STAGES, WARPS

    for field, allowed in zip(tiling._fields, (SIZES, SIZES, WARPS, STAGES), strict=True):
        at = allowed.index(getattr(tiling, field))
        for other in (at - 1, at + 1):
            if 0 <= other < len(allowed):
                yield tiling._replace(**{field: allowed[other]})


def _seconds(work: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Returns the median time of a launch after the first one, which compiles it."""
    work()
    times: list[float] = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(_LAUNCHES):
                work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / _LAUNCHES)
        else:
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


class _Problem:
    """One stage with random inputs, whose kernels are launched with any tiling."""

    def __init__(self, made: _core.Plan, device: torch.device) -> None:
        self.device = device
        lists = PreparedLists(made, 0, "torch:triton", device)
        lists.make()
        self._params = lists.params(1, None, False)
        self._shape = made.shape
        generator = torch.Generator().manual_seed(0)

        def drawn(heads: int, dim: int) -> Tensor:
            size = made.num_tokens, heads, dim
            values = torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")
            return values.to(device, DTYPES[made.shape.dtype])

        shape = made.shape
        numbers = [torch.zeros(made.num_tokens, shape.q_heads, device=device) for _ in range(2)]
        self._own = {
            "q": [drawn(shape.q_heads, shape.head_dim)],
            "kv": [drawn(shape.kv_heads, dim) for dim in (shape.head_dim, shape.value_dim)],
            "do": [drawn(shape.q_heads, shape.value_dim), *numbers],
        }
        self._programs = {
            direction: lists.programs_of(0, direction, False)[0]
            for direction in ("forward", "backward")
        }
        # The log-sum-exp and the sum of do * out that backward takes.
        forward, buffers = self.launch("forward", None)
        forward.run()
        out, lse = buffers["o"]
        self._own["do"][1:] = [lse, (out * self._own["do"][0].float()).sum(-1)]

    def launch(self, kernel: str, tiling: Any) -> tuple[Any, Buffers]:
        """Returns a launch of a kernel, and the buffers that it fills."""
        from contextile.torch._kernels import triton_attention as kernels

        direction = "forward" if kernel == "forward" else "backward"
        program = self._programs[direction]
        own = {kind: self._own[kind] for kind in INPUTS[direction]}
        buffers = make_buffers(program, direction, self._shape, own, self.device)
        stage = next(
            job for one in program.instructions if isinstance(one, Attention) for job, _ in one.jobs
        )
        terms = kernels.Terms(self._params.scale, self._params.softcap)
        tilings = None if tiling is None else {kernel: tiling}
        if kernel == "forward":
            parts = kernels.ForwardBuffers(*buffers["q"], *buffers["kv"], *buffers["o"])
            one = kernels.forward_launch(parts, stage, terms, is_first=True, tilings=tilings)
            return one, buffers
        kinds = ("q", "kv", "do", "dq", "dkv")
        grads = kernels.BackwardBuffers(*(part for kind in kinds for part in buffers[kind]))
        launches = kernels.backward_launches(
            grads,
            stage,
            terms,
            is_first=False,
            deterministic=kernel != "fused",
            tilings=tilings,
        )
        return launches[kernel == "dkv"], buffers


def _results(buffers: Buffers) -> list[Tensor]:
    return [part for kind in ("o", "dq", "dkv") for part in buffers.get(kind, [])]


def _is_same(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> bool:
    bound = 1e-4 if dtype == torch.float32 else 2e-2
    return all(
        bool(((one - want).abs().max() <= bound * want.abs().max()).item())
        for one, want in zip(found, expected, strict=True)
    )


def _tune(problem: _Problem, kernel: str, dtype: torch.dtype, repeats: int) -> Tuned:
    """Changes one number of the default tiling at a time, as long as that is quicker."""
    first, buffers = problem.launch(kernel, None)
    first.run()
    expected = [part.clone() for part in _results(buffers)]
    default_s = _seconds(first.run, problem.device, repeats)
    best, best_s = first.tiling, default_s
    seen, improves = {best}, True
    while improves:
        improves = False
        for tiling in _neighbors(best):
            if tiling in seen:
                continue
            seen.add(tiling)
            launch, buffers = problem.launch(kernel, tiling)
            try:
                launch.run_as_tiled()
                if not _is_same(_results(buffers), expected, dtype):
                    continue
                seconds = _seconds(launch.run_as_tiled, problem.device, repeats)
            except _LOST:  # the device is lost to this process
                raise
            except Exception:  # too much shared memory, or a compiler's error
                continue
            if seconds < (1 - _SMALLEST_GAIN) * best_s:
                best, best_s, improves = tiling, seconds, True
                break
    return Tuned(kernel, tuple(best), best_s, default_s)


def tune(
    *,
    heads: tuple[int, int],
    head_dim: int,
    value_dim: int | None = None,
    dtype: str = "bf16",
    tokens: int = 8192,
    device: str | torch.device = "cuda",
    repeats: int = 10,
) -> list[Tuned]:
    """Times tilings of the kernel ``torch:triton`` on this GPU, and keeps the quickest in a file.

    Executors of later processes on a GPU of that name, with these versions of Contextile and
    Triton, take them. The file is ``$CONTEXTILE_TRITON_TILINGS``, or
    ``contextile/triton_tilings.json`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. A tiling whose
    results differ is not taken. Takes some minutes, most of them in the compiler. Call it on one
    rank.

    Parameters
    ----------
    heads : tuple of int
        Query and KV heads.
    head_dim, value_dim : int
        Dimensions of keys and of values (the same).
    dtype : str
        bf16, f16 or f32.
    tokens : int
        Tokens of the causal document that is attended.
    device : str or torch.device
        The GPU.
    repeats : int
        Launches of which the median time counts.

    Returns
    -------
    list of Tuned
        Kernel, tiling, and seconds of a launch with it and with the default one.

    Raises
    ------
    InvalidArgument
        For a shape or a device that the kernels do not take.
    DeviceError
        If the kernels are wrong on the device.
    """
    where = device_of(device, None)
    if _checks.count("tune, repeats", repeats) < 1:
        raise _core.InvalidArgument(f"repeats: expected 1 or more, found {repeats}")
    made = plan(
        [tokens],
        mask="causal",
        cluster="local:1x1",
        strategy="zigzag",
        heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        dtype=dtype,
    )
    with torch.cuda.device(where if where.type == "cuda" else -1):
        return _tuned(made, where, repeats)


def _tuned(made: _core.Plan, where: torch.device, repeats: int) -> list[Tuned]:
    problem = _Problem(made, where)
    from contextile.torch._kernels.triton_attention import KERNEL_NAMES, Tiling
    from contextile.torch._kernels.triton_tilings import (
        check_writable,
        keep_tilings,
        key_of,
        tilings_file,
    )

    check_writable(tilings_file())  # before minutes of work

    dtype, dims = DTYPES[made.shape.dtype], (made.shape.head_dim, made.shape.value_dim)
    with torch.no_grad():
        found = [_tune(problem, kernel, dtype, repeats) for kernel in KERNEL_NAMES]
    keep_tilings(
        where,
        {
            key_of(one.kernel, dtype, dims, False): (
                Tiling(*one.tiling) if one.seconds < one.default_seconds else None
            )
            for one in found
        },
    )
    return found
