"""``torch:triton``: the attention of a stage by Triton kernels of this package.

They read and write the engine's buffers through lists of rows: no key is gathered, and partial
results are merged where they are stored.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from contextile import _core
from contextile.torch._kernels.kernel import Buffers, Kernel, Params
from contextile.torch._kernels.row_ops import has_triton
from contextile.torch._kernels.triton_check import check_on

_MAX_DIM = 256


class TritonStage(Kernel):
    """Triton kernels of a whole stage, for any mask, softcap, bias, dropout and dims."""

    name = "torch:triton"
    takes_intervals = True
    devices = ("cuda",)

    def refusal(self, params: Params) -> str:
        if not has_triton():
            return "it needs the package triton"
        if params.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"it takes float32, bfloat16 and float16, found {params.dtype}"
        largest = max(params.head_dim, params.value_dim)
        return f"it takes dims up to {_MAX_DIM}, found {largest}" if largest > _MAX_DIM else ""

    def check_on(self, params: Params, device: torch.device) -> None:
        check_on(self, params, device)

    def run_forward(self, buffers: Buffers, call: Any, is_first: bool, params: Params) -> None:
        from contextile.torch._kernels import triton_attention as kernels

        parts = kernels.ForwardBuffers(*buffers["q"], *buffers["kv"], *buffers["o"])
        tilings = _tilings(params, parts.q.device)
        kernels.forward(parts, call, _terms(params), is_first=is_first, tilings=tilings)

    def run_backward(self, buffers: Buffers, call: Any, is_first: bool, params: Params) -> None:
        deterministic = torch.are_deterministic_algorithms_enabled()
        has_table = params.terms is not None and params.terms.table_gradient is not None
        if has_table and torch.is_deterministic_algorithms_warn_only_enabled():
            warnings.warn(
                f"contextile: kernel {self.name} adds up the gradient of a table of bias in any "
                "order under torch.use_deterministic_algorithms",
                UserWarning,
                stacklevel=2,
            )
            deterministic = False
        self.backward(buffers, call, is_first, params, deterministic)

    def backward(
        self, buffers: Buffers, call: Any, is_first: bool, params: Params, deterministic: bool
    ) -> None:
        """Does the work of ``run_backward``, in an order that is fixed or not."""
        from contextile.torch._kernels import triton_attention as kernels

        kinds = ("q", "kv", "do", "dq", "dkv")
        parts = kernels.BackwardBuffers(*(part for kind in kinds for part in buffers[kind]))
        terms = _terms(params)
        if deterministic and terms.table_gradient is not None:
            raise _core.InvalidArgument(
                f"kernel {self.name}: expected no gradient of a table of bias under "
                "torch.use_deterministic_algorithms, found one, which it adds up in any order; "
                "kernel='torch:tiles' has a fixed one"
            )
        kernels.backward(
            parts,
            call,
            terms,
            is_first=is_first,
            deterministic=deterministic,
            tilings=_tilings(params, parts.q.device),
        )


def _tilings(params: Params, device: torch.device) -> Any:
    from contextile.torch._kernels.triton_tilings import tilings_of

    dims = params.head_dim, params.value_dim
    return tilings_of(device, params.dtype, dims, params.terms is not None)


def _terms(params: Params) -> Any:
    from contextile.torch._kernels.triton_attention import Terms

    terms = params.terms
    if terms is None:
        return Terms(params.scale, params.softcap)
    return Terms(
        params.scale,
        params.softcap,
        terms.slopes,
        terms.table,
        terms.buckets,
        terms.first_offset,
        terms.dropout,
        terms.seed,
        terms.table_gradient,
    )
