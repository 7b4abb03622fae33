"""Runs the local layers of LongT5's encoder, which attend by code of their own, by a plan."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch import RelativeBias
from contextile.transformers._position_bias import local_bias

_MODULE = "transformers.models.longt5.modeling_longt5"

# Attends for a layer: module, q, k and v [1, tokens, heads, head_dim], bias, tokens to either side.
Attend = Callable[[Any, Tensor, Tensor, Tensor, RelativeBias, int], Tensor]


def _check_call(
    self: Any, hidden_states: Tensor, mask: Tensor | None, output_attentions: bool
) -> None:
    name = type(self).__name__
    if hidden_states.shape[0] != 1:
        raise _core.InvalidArgument(
            f"{name}: expected a batch of 1, documents packed; found {hidden_states.shape[0]}"
        )
    if self.training and self.dropout:
        raise _core.InvalidArgument(f"{name}: expected dropout 0, found {self.dropout}")
    if output_attentions:
        raise _core.InvalidArgument(
            f"{name}: expected no output_attentions, for a plan computes no weights, found it"
        )
    if mask is not None:
        ones = torch.ones(hidden_states.shape[:2], device=hidden_states.device)
        of_module = sys.modules[_MODULE]
        make = of_module._get_local_attention_mask  # noqa: SLF001  # a function of transformers
        if not torch.equal(mask, make(ones, self.block_len, mask.device)):
            raise _core.InvalidArgument(
                f"{name}: expected no attention mask, or ones, for documents are packed without "
                "padding, found another"
            )


@contextlib.contextmanager
def local_layers(attend: Attend) -> Iterator[None]:
    """Makes LongT5's local layers call ``attend``, inside ``with``."""
    module = sys.modules.get(_MODULE)
    if module is None:
        yield
        return

    def forward(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor]:
        _check_call(self, hidden_states, mask, output_attentions)
        bias, stands_for_it = local_bias(self, position_bias)
        shape = (*hidden_states.shape[:2], self.n_heads, self.key_value_proj_dim)
        q, k, v = (project(hidden_states).view(shape) for project in (self.q, self.k, self.v))
        out = attend(self, q, k, v, bias, self.local_radius)
        return self.o(out.reshape(*hidden_states.shape[:2], self.inner_dim)), stands_for_it

    kind = module.LongT5LocalAttention
    before = kind.forward
    kind.forward = forward
    try:
        yield
    finally:
        kind.forward = before
