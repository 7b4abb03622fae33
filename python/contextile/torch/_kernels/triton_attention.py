"""Attention of one stage on the buffers of the engine, by kernels in Triton.

Rows are read and written through lists of rows, so that nothing is gathered, and partial results
are merged where they are stored. ``forward`` and ``backward`` take the buffers, a ``Stage`` and
``Terms``. ``forward_launch`` and ``backward_launches`` return the same as kernels and arguments,
from which a kernel can be compiled ahead of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from contextile.torch._kernels.triton_kernels import (
    LISTS,
    NUMBERS,
    dkv_kernel,
    dq_kernel,
    forward_kernel,
)

Rows = slice | Tensor  # of a buffer: one run, or an index of int32 or int64


class ForwardBuffers(NamedTuple):
    """Rows [rows, heads of a head group, dim]. A head group has ``q_heads`` and ``kv_heads``."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor  # float32
    lse: Tensor  # float32 [rows, q_heads], -inf where there is no result


class BackwardBuffers(NamedTuple):
    """The same for backward. ``lse`` is that of all stages, ``delta`` the sum of do * out."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    lse: Tensor  # float32 [rows, q_heads], as is delta
    delta: Tensor
    dq: Tensor  # float32, as are dk and dv
    dk: Tensor
    dv: Tensor


class Stage(NamedTuple):
    """Work of one rank between two messages, as ``StageIntervals`` lists it.

    ``rows`` has the rows of the buffers by kind: q and o in forward; q, do and dq in backward, one
    for each row of the stage; kv, in backward also dkv, one for each key. None occurs twice.
    """

    num_rows: int
    num_keys: int
    rows: Mapping[str, Rows]
    low: Tensor  # int32 [num_rows, width]: a row sees key c if low <= c < high in one interval
    high: Tensor
    # Counts [blocks] and lists [blocks, most] of blocks of 128, int32: of keys by rows, those that
    # hold some pairs and those that hold all; of rows by keys, the same. A block of all pairs has
    # 128 keys, and only the last block of rows has fewer rows.
    blocks: Sequence[tuple[Tensor, Tensor]]
    # int32 q_positions, q_tokens and q_groups (head group) [num_rows], k_positions and k_tokens
    # [num_keys]. Bias needs the positions, dropout the tokens, and both need the groups.
    places: Mapping[str, Tensor] | None = None


class Terms(NamedTuple):
    """Terms of scores and weights, as in ``ScoreTerms``. Their heads are those of the layer."""

    scale: float  # any but 0
    softcap: float = 0.0  # 0: none
    slopes: Tensor | None = None  # float32 [q_heads], by the distance of positions
    table: Tensor | None = None  # float32 [q_heads, num_buckets]
    buckets: Tensor | None = None  # int32 or int64, by position of key - of query - first_offset
    first_offset: int = 0
    dropout: float = 0.0
    seed: int = 0  # 64 bits
    table_gradient: Tensor | None = None  # float64 or float32 [q_heads, num_buckets], added to


class Tiling(NamedTuple):
    """Rows and keys that a program takes at a time, powers of two from 16 to 128."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int  # of the pipeline that loads the next tiles


_BY_KEYS = ("fused", "dkv")
# Most intervals of a row for which a variant of its own is compiled; a loop takes more.
_MAX_UNROLLED = 4
KERNEL_NAMES = ("forward", *_BY_KEYS, "dq")

# By kernel, bytes of a number and width of a tile. Without terms, they fit into 99 KiB of shared
# memory on sm_80 and spill at most 104 bytes of registers.
_TILINGS = {
    ("forward", 2, 64): Tiling(128, 64, 8, 2),
    ("forward", 2, 128): Tiling(128, 64, 8, 2),
    ("forward", 2, 256): Tiling(64, 32, 8, 2),
    ("forward", 4, 64): Tiling(64, 32, 8, 2),
    ("forward", 4, 128): Tiling(32, 32, 8, 2),
    ("forward", 4, 256): Tiling(32, 16, 8, 2),
    ("fused", 2, 64): Tiling(64, 64, 8, 2),
    ("fused", 2, 128): Tiling(64, 64, 8, 2),
    ("fused", 2, 256): Tiling(32, 32, 8, 2),
    ("fused", 4, 64): Tiling(32, 32, 8, 2),
    ("fused", 4, 128): Tiling(32, 16, 8, 2),
    ("fused", 4, 256): Tiling(16, 16, 4, 2),
    ("dkv", 2, 64): Tiling(64, 64, 8, 2),
    ("dkv", 2, 128): Tiling(64, 64, 8, 2),
    ("dkv", 2, 256): Tiling(32, 32, 8, 2),
    ("dkv", 4, 64): Tiling(64, 32, 8, 2),
    ("dkv", 4, 128): Tiling(32, 16, 8, 2),
    ("dkv", 4, 256): Tiling(32, 16, 8, 2),
    ("dq", 2, 64): Tiling(64, 64, 4, 2),
    ("dq", 2, 128): Tiling(64, 64, 4, 2),
    ("dq", 2, 256): Tiling(32, 32, 8, 2),
    ("dq", 4, 64): Tiling(64, 32, 8, 2),
    ("dq", 4, 128): Tiling(32, 32, 8, 2),
    ("dq", 4, 256): Tiling(32, 16, 8, 2),
}


# Wavefronts of AMD have 64 lanes, and gfx942 has 64 KiB of shared memory.
_AMD_TILINGS = {
    ("forward", 2, 64): Tiling(128, 64, 4, 2),
    ("forward", 2, 128): Tiling(128, 64, 4, 2),
    ("forward", 2, 256): Tiling(64, 32, 4, 1),
    ("dq", 2, 64): Tiling(64, 64, 4, 2),
    ("dq", 2, 128): Tiling(64, 64, 4, 2),
    ("dq", 2, 256): Tiling(32, 32, 4, 1),
    **{(kernel, 2, width): Tiling(32, 64, 4, 1) for kernel in _BY_KEYS for width in (64, 128)},
    **{(kernel, 2, 256): Tiling(16, 32, 4, 1) for kernel in _BY_KEYS},
    **{(kernel, 4, 64): Tiling(32, 32, 4, 1) for kernel in KERNEL_NAMES},
    **{(kernel, 4, 128): Tiling(32, 16, 4, 1) for kernel in KERNEL_NAMES},
    **{(kernel, 4, 256): Tiling(16, 16, 4, 1) for kernel in KERNEL_NAMES},
}


def width_of(dim: int) -> int:
    """Returns the numbers that a tile has room for, by which tilings differ."""
    return min(256, max(64, int(triton.next_power_of_2(dim))))


def default_tiling(
    kernel: str, dtype: torch.dtype, dim: int, *, has_terms: bool = False, is_amd: bool = False
) -> Tiling:
    """Returns a tiling that fits into 99 KiB of shared memory, or into 64 KiB on AMD.

    ``kernel`` is "forward", "fused" (all gradients by one kernel), "dkv" or "dq", and ``dim`` the
    larger one of keys and values. Terms need registers, so tiles are smaller with them.
    """
    width = width_of(dim)
    found = (_AMD_TILINGS if is_amd else _TILINGS)[kernel, dtype.itemsize, width]
    if not has_terms:
        return found
    most = max(16, found.block_m // 2) if width == 256 and kernel != "forward" else 64
    num_warps = found.num_warps if is_amd else 8
    return Tiling(min(found.block_m, most), min(found.block_n, 32), num_warps, found.num_stages)


Tilings = Mapping[str, Tiling]  # by kernel, as in ``default_tiling``


# ---------------------------------------------------------------------------------- launches

_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


# Tilings that took the place of others, which a device had no room for, by what was compiled.
_smaller: dict[Any, Tiling] = {}


def _halves(tiling: Tiling) -> Tiling | None:
    """Returns the next smaller tiling: without a pipeline, then with half of a tile."""
    if tiling.num_stages > 1:
        return tiling._replace(num_stages=1)
    if max(tiling.block_m, tiling.block_n) == 16:
        return None
    name = "block_n" if tiling.block_n >= tiling.block_m else "block_m"
    return tiling._replace(**{name: getattr(tiling, name) // 2})


class Launch(NamedTuple):
    """A kernel with its arguments. Tensors may be on the device ``meta``, to compile only."""

    kernel: Any
    size: int  # rows, or keys
    heads: int
    arguments: dict[str, Any]
    tiling: Tiling

    @property
    def grid(self) -> int:
        """Number of programs."""
        block = self.tiling.block_n if self.kernel is dkv_kernel else self.tiling.block_m
        return -(-self.size // block) * self.heads

    def run(self) -> None:
        """Runs on the current stream of the tensors' device.

        A variant that needs more shared memory than the device has runs with smaller tiles.
        """
        if self.grid == 0:
            return
        constants = tuple(value for name, value in self.arguments.items() if name.isupper())
        key = self.kernel, self.arguments["q"].device, self.arguments["q"].dtype, constants
        one = self.with_tiling(_smaller.get(key, self.tiling))
        while True:
            try:
                return one.run_as_tiled()
            except triton.runtime.errors.OutOfResources:
                smaller = _halves(one.tiling)
                if smaller is None:
                    raise
                one = one.with_tiling(smaller)
                _smaller[key] = smaller

    def with_tiling(self, tiling: Tiling) -> Launch:
        """Returns the same with another tiling."""
        if tiling == self.tiling:
            return self
        blocks = {"BLOCK_M": tiling.block_m, "BLOCK_N": tiling.block_n}
        return self._replace(arguments=self.arguments | blocks, tiling=tiling)

    def run_as_tiled(self) -> None:
        """Runs with this tiling or raises Triton's OutOfResources."""
        options = {"num_warps": self.tiling.num_warps, "num_stages": self.tiling.num_stages}
        with torch.cuda.device_of(self.arguments["q"]):
            self.kernel[(self.grid,)](**self.arguments, **options)

    def source(self) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
        """Returns signature, constants and attributes for ``triton.compiler.ASTSource``.

        The compiled kernel takes the arguments that are no constants, in the kernel's order. Those
        with an attribute must be multiples of 16.
        """
        signature: dict[str, str] = {}
        constants: dict[str, Any] = {}
        attributes: dict[tuple[int], Any] = {}
        for number, name in enumerate(self.kernel.arg_names):
            value = self.arguments[name]
            if value is None or name.isupper():
                signature[name], constants[name] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[name] = _POINTERS[value.dtype]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
            is_any = name in constants or name in LISTS or name in NUMBERS
            is_multiple = isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)
            if not is_any and is_multiple:
                attributes[(number,)] = [["tt.divisibility", 16]]
        return signature, constants, attributes


def _row_lists(stage: Stage, *kinds: str) -> dict[str, Any]:
    """Returns lists and first rows of kinds that are all runs or, if one is not, all lists."""
    found: dict[str, Any] = {}
    are_runs = all(isinstance(stage.rows[kind], slice) for kind in kinds)
    for kind in kinds:
        rows = stage.rows[kind]
        first = rows.start if are_runs and isinstance(rows, slice) else 0
        if isinstance(rows, slice) and not are_runs:
            device = stage.low.device
            rows = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=device)
        found |= {f"{kind}_rows": None if are_runs else rows, f"{kind}_first": first}
    return found


def _strides(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    found = {}
    for name, tensor in tensors.items():
        found[f"{name}_row"] = tensor.stride(0)
        if tensor.dim() == 3:
            found[f"{name}_head"] = tensor.stride(1)
    return found


def _signed(word: int) -> int:
    """Returns 32 bits as int32, so that all words have one type."""
    return word - (1 << 32) if word >> 31 else word


def _term_arguments(stage: Stage, terms: Terms) -> dict[str, Any]:
    found: dict[str, Any] = {"scale": float(terms.scale), "softcap": terms.softcap or None}
    places = stage.places or {}
    if terms.slopes is not None or terms.table is not None:
        found |= {name: places[name] for name in ("q_positions", "k_positions", "q_groups")}
        found["slopes"] = terms.slopes
    if terms.table is not None:
        assert terms.buckets is not None
        found |= {"table": terms.table, "buckets": terms.buckets}
        found |= {"first_offset": terms.first_offset, "num_offsets": len(terms.buckets)}
        found |= {"num_buckets": terms.table.shape[1], "table_gradient": terms.table_gradient}
    if terms.dropout:
        found |= {name: places[name] for name in ("q_tokens", "k_tokens", "q_groups")}
        found["seed_low"] = _signed(terms.seed & 0xFFFFFFFF)
        found["seed_high"] = _signed(terms.seed >> 32 & 0xFFFFFFFF)
        found["threshold"] = _signed(int(terms.dropout * 4294967296.0))
        found["keep_scale"] = 1.0 / (1.0 - terms.dropout)
    return found


def _launch(
    kernel: Any, tensors: Mapping[str, Tensor], stage: Stage, terms: Terms, tiling: Tiling
) -> Launch:
    """Returns a launch over heads and over parts of rows, or of keys for their gradients."""
    by_keys = kernel is dkv_kernel
    (q_heads, head_dim), (kv_heads, value_dim) = tensors["q"].shape[1:], tensors["v"].shape[1:]
    partial, full = stage.blocks[2:] if by_keys else stage.blocks[:2]
    width = stage.low.shape[1]
    found = {
        **tensors,
        **_strides(tensors),
        **_term_arguments(stage, terms),
        **{"low": stage.low, "high": stage.high, "width": width},
        **{"WIDTH": width if width <= _MAX_UNROLLED else 0},
        **{"partial_counts": partial[0], "partial_lists": partial[1]},
        **{"full_counts": full[0], "full_lists": full[1]},
        **{"partial_width": partial[1].shape[1], "full_width": full[1].shape[1]},
        **{"num_rows": stage.num_rows, "num_keys": stage.num_keys},
        **{"q_heads": q_heads, "kv_heads": kv_heads},
        **{"HEAD_DIM": head_dim, "BLOCK_D": max(16, triton.next_power_of_2(head_dim))},
        **{"VALUE_DIM": value_dim, "BLOCK_DV": max(16, triton.next_power_of_2(value_dim))},
        **{"BLOCK_M": tiling.block_m, "BLOCK_N": tiling.block_n},
    }
    row_kinds = [kind for kind in ("q", "o", "do", "dq") if kind in tensors]
    key_kinds = ["kv", "dkv"] if by_keys else ["kv"]
    found |= _row_lists(stage, *row_kinds) | _row_lists(stage, *key_kinds)
    size, heads = (stage.num_keys, kv_heads) if by_keys else (stage.num_rows, q_heads)
    # Arguments that a variant does not have are None.
    arguments = {name: found.get(name) for name in kernel.arg_names}
    return Launch(kernel, size, heads, arguments, tiling)


def _tiling(
    kernel: str, tensors: Mapping[str, Tensor], terms: Terms, tilings: Tilings | None
) -> Tiling:
    if tilings is not None and kernel in tilings:
        return tilings[kernel]
    q, v = tensors["q"], tensors["v"]
    has_terms = terms.slopes is not None or terms.table is not None or terms.dropout != 0.0
    return default_tiling(
        kernel,
        q.dtype,
        max(q.shape[2], v.shape[2]),
        has_terms=has_terms,
        is_amd=torch.version.hip is not None,
    )


def forward_launch(
    buffers: ForwardBuffers,
    stage: Stage,
    terms: Terms,
    *,
    is_first: bool,
    tilings: Tilings | None = None,
) -> Launch:
    """Returns what ``forward`` runs."""
    tensors = buffers._asdict()
    tiling = _tiling("forward", tensors, terms, tilings)
    one = _launch(forward_kernel, tensors, stage, terms, tiling)
    one.arguments["IS_FIRST"] = is_first
    return one


def backward_launches(
    buffers: BackwardBuffers,
    stage: Stage,
    terms: Terms,
    *,
    is_first: bool,
    deterministic: bool,
    tilings: Tilings | None = None,
) -> list[Launch]:
    """Returns what ``backward`` runs, after it set rows of dq to zero where they are sums."""
    tensors = buffers._asdict()
    if not deterministic:
        tiling = _tiling("fused", tensors, terms, tilings)
        return [_launch(dkv_kernel, tensors, stage, terms, tiling)]
    by_rows = {name: part for name, part in tensors.items() if name not in ("dk", "dv")}
    by_keys = {name: part for name, part in tensors.items() if name != "dq"}
    found = [
        _launch(dq_kernel, by_rows, stage, terms, _tiling("dq", tensors, terms, tilings)),
        _launch(dkv_kernel, by_keys, stage, terms, _tiling("dkv", tensors, terms, tilings)),
    ]
    found[0].arguments["IS_FIRST"] = is_first
    return found


def forward(
    buffers: ForwardBuffers,
    stage: Stage,
    terms: Terms,
    *,
    is_first: bool,
    tilings: Tilings | None = None,
) -> None:
    """Computes the attention of a stage and merges it into o and lse of its rows.

    With ``is_first`` they are overwritten. A row that sees no key gets the output 0 and the
    log-sum-exp -inf, or keeps what it has. ``tilings`` may replace default ones, by kernel.
    """
    forward_launch(buffers, stage, terms, is_first=is_first, tilings=tilings).run()


def backward(
    buffers: BackwardBuffers,
    stage: Stage,
    terms: Terms,
    *,
    is_first: bool,
    deterministic: bool,
    tilings: Tilings | None = None,
) -> None:
    """Adds the gradients of a stage to dq, dk and dv of its rows and keys.

    With ``is_first``, rows of dq are overwritten. Rows whose ``lse`` is -inf have no gradients.
    If ``deterministic``, two kernels compute the scores, and no sum depends on the order of
    programs, except that of ``table_gradient``. Otherwise one kernel adds to dq by atomics.
    """
    if is_first and not deterministic:
        rows = stage.rows["dq"]
        if isinstance(rows, slice):
            buffers.dq[rows].zero_()
        else:
            buffers.dq.index_fill_(0, rows.long(), 0.0)
    for one in backward_launches(
        buffers,
        stage,
        terms,
        is_first=is_first,
        deterministic=deterministic,
        tilings=tilings,
    ):
        one.run()
