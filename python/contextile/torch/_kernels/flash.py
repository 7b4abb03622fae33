"""``torch:flash``: variable-length FlashAttention of aten, one kernel for each call.

PyTorch runs FlashAttention 2, or 3 and 4 once ``torch.nn.attention`` has activated them. On ROCm
other kernels have that operator, whose log-sum-exp may have another shape: they are refused.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from contextile.torch._kernels.kernel import Params, RowKernel, no_terms
from contextile.torch._kernels.row_ops import output_with_delta
from contextile.torch._kernels.stage_calls import Call

_aten = torch.ops.aten


class Flash(RowKernel):
    """aten's variable-length FlashAttention."""

    name = "torch:flash"
    devices = ("cuda",)
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)

    def refusal(self, params: Params) -> str:
        if torch.version.hip is not None:
            return "its log-sum-exp on ROCm is not checked; torch:triton runs there"
        if params.dtype not in self.dtypes:
            return f"it takes {' and '.join(map(str, self.dtypes))}"
        if params.head_dim % 8 != 0 or params.head_dim > 256:
            return f"it takes head dims that are multiples of 8 up to 256, found {params.head_dim}"
        if params.value_dim > params.head_dim:
            return (
                f"it takes a value dim up to the head dim of {params.head_dim}, found "
                f"{params.value_dim}"
            )
        return no_terms(params)

    @staticmethod
    def _padded(x: Tensor, dim: int) -> Tensor:
        return x if x.shape[2] == dim else functional.pad(x, (0, dim - x.shape[2]))

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, params: Params
    ) -> tuple[Tensor, Tensor]:
        left, right = call.fa_window
        out, lse, *_ = _aten._flash_attention_forward(  # noqa: SLF001
            q,
            k,
            self._padded(v, q.shape[2]),
            call.q_offsets,
            call.k_offsets,
            call.max_q,
            call.max_k,
            0.0,
            call.entry_class == "causal",
            False,
            scale=params.scale,
            window_size_left=left,
            window_size_right=right,
        )
        return out[..., : v.shape[2]], lse.transpose(0, 1)  # lse is [heads, rows]

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        do: Tensor,
        lse: Tensor,
        delta: Tensor,
        call: Call,
        params: Params,
    ) -> tuple[Tensor, Tensor, Tensor]:
        left, right = call.fa_window
        dim = q.shape[2]
        no_seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        unused = torch.empty(0, device=q.device)
        dq, dk, dv = _aten._flash_attention_backward(  # noqa: SLF001
            self._padded(do, dim),
            q,
            k,
            self._padded(v, dim),
            self._padded(output_with_delta(do, delta), dim),
            lse.transpose(0, 1).contiguous(),
            call.q_offsets,
            call.k_offsets,
            call.max_q,
            call.max_k,
            0.0,
            call.entry_class == "causal",
            no_seed,
            unused,
            scale=params.scale,
            window_size_left=left,
            window_size_right=right,
        )
        return dq, dk, dv[..., : v.shape[2]]
