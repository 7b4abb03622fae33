"""Bias by position and dropout by token, as the kernels of the CPU define them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), table 2.
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF


def _product(x: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Returns the upper and lower 32 bits of products of 32-bit numbers, held as int64."""
    low, high = multiplier & 0xFFFF, multiplier >> 16
    first = x * low  # below 2^48
    second = x * high + (first >> 16)  # below 2^49
    return second >> 16, ((second & 0xFFFF) << 16) | (first & 0xFFFF)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], seed: int) -> tuple[Tensor, ...]:
    """Returns four random words of 32 bits for every counter, held as int64."""
    a, b, c, d = counter
    keys = [seed & _LOW, seed >> 32 & _LOW]
    for _ in range(10):
        first_high, first_low = _product(a, _MULTIPLIERS[0])
        second_high, second_low = _product(c, _MULTIPLIERS[1])
        a, b, c, d = second_high ^ b ^ keys[0], second_low, first_high ^ d ^ keys[1], first_low
        keys = [(key + step) & _LOW for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return a, b, c, d


class ScoreTerms:
    """Terms of a call on the device of its tensors.

    Parameters
    ----------
    terms : Terms
        As the operators take them.
    device : torch.device
        Where the scores are.
    table_gradient : Tensor, optional
        float64 [q_heads, num_buckets], to which backward adds.
    """

    def __init__(
        self, terms: Any, device: torch.device, table_gradient: Tensor | None = None
    ) -> None:
        def there(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
            if tensor is None:
                return None
            # Kernels take rows of a table one after the other; `to` keeps a transposed one.
            return tensor.detach().to(device, dtype, non_blocking=True).contiguous()

        self.slopes = there(terms.slopes, torch.float32)
        self.table = there(terms.table, torch.float32)
        self.buckets = there(terms.buckets, torch.int64)
        self.first_offset: int = terms.first_offset
        self.dropout = float(terms.dropout)
        self.seed = 0 if terms.seed is None else int(terms.seed) & (1 << 64) - 1
        self.table_gradient = table_gradient

    def _buckets_of(self, offsets: Tensor) -> Tensor:
        assert self.buckets is not None
        at = (offsets - self.first_offset).clamp(0, len(self.buckets) - 1)
        return self.buckets[at]

    def bias(self, heads: slice, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """Returns the bias of scores, [heads, rows, keys]; None if there is none."""
        if self.slopes is None and self.table is None:
            return None
        offsets = k_positions.long() - q_positions.long().unsqueeze(1)
        found = None
        if self.slopes is not None:
            found = self.slopes[heads, None, None] * offsets
        if self.table is not None:
            more = self.table[heads][:, self._buckets_of(offsets)]
            found = more if found is None else found + more
        return found

    def factors(self, heads: slice, q_tokens: Tensor, k_tokens: Tensor) -> Tensor | None:
        """Returns the factors of weights, [heads, rows, keys]; None without dropout."""
        if self.dropout == 0.0:
            return None
        keys = k_tokens.long()
        head = torch.arange(heads.start, heads.stop, device=keys.device)[:, None, None]
        group = (keys // 4).expand(len(head), len(q_tokens), -1)
        query = q_tokens.long()[:, None].expand_as(group)
        words = torch.stack(
            philox((group, query, head.expand_as(group), torch.zeros_like(group)), self.seed), -1
        )
        word = words.gather(-1, (keys % 4).expand_as(group).unsqueeze(-1)).squeeze(-1)
        threshold = int(self.dropout * 4294967296.0)
        # Not torch.tensor, which copies from the host and waits for a GPU.
        kept = torch.full((), 1 / (1 - self.dropout), dtype=torch.float32, device=keys.device)
        return torch.where(word < threshold, torch.zeros_like(kept), kept)

    def add_table_gradient(
        self, heads: slice, q_positions: Tensor, k_positions: Tensor, dscores: Tensor
    ) -> None:
        """Adds the gradient of scores, [heads, rows, keys], to that of the table."""
        if self.table is None or self.table_gradient is None:
            return
        offsets = k_positions.long() - q_positions.long().unsqueeze(1)
        buckets = self._buckets_of(offsets).flatten()
        wide = self.table_gradient.dtype
        self.table_gradient[heads].index_add_(1, buckets, dscores.flatten(1).to(wide))
