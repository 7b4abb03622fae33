"""``torch:tiles``: products and a softmax, for any device, dtype, softcap and terms.

It defines the results of the other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from contextile.torch._kernels.kernel import Params, RowKernel
from contextile.torch._kernels.stage_calls import Call

# Scores in memory at a time.
_MAX_SCORES = {"cpu": 1 << 20}
_MAX_SCORES_ELSEWHERE = 1 << 26


class _Tile(NamedTuple):
    """Rows [a, b) of queries and [c, d) of keys of a call, with the mask between them."""

    a: int
    b: int
    c: int
    d: int
    seen: Tensor | None  # [rows, keys]; None: all
    group: int


def _seen(call: Call, rows: Tensor, keys: Tensor, n: int, m: int) -> Tensor | None:
    """Returns the pairs of an entry of ``n`` rows and ``m`` keys among some of them."""
    distance = keys - rows.unsqueeze(1)
    if call.entry_class == "causal":
        return distance <= m - n
    if call.entry_class == "window":
        return (distance >= 0) & (distance <= call.window)
    return distance >= 0 if call.entry_class == "inverse" else None


def _keys_seen(call: Call, begin: int, end: int, n: int, m: int) -> tuple[int, int]:
    """Returns the keys of an entry that any of its rows [begin, end) sees."""
    if call.entry_class == "causal":
        return 0, end + m - n
    if call.entry_class == "window":
        return begin, end + call.window
    return (begin, m) if call.entry_class == "inverse" else (0, m)


def _tiles(call: Call, num_heads: int, device: torch.device) -> Iterator[_Tile]:
    most = _MAX_SCORES.get(device.type, _MAX_SCORES_ELSEWHERE)
    for (a, b, c, d), group in zip(call.entries(), call.groups, strict=True):
        n, m = b - a, d - c
        step = max(1, most // (num_heads * m))
        for begin in range(0, n, step):
            end = min(begin + step, n)
            first, last = _keys_seen(call, begin, end, n, m)
            rows, keys = (
                torch.arange(low, high, device=device)
                for low, high in ((begin, end), (first, last))
            )
            seen = _seen(call, rows, keys, n, m)
            yield _Tile(a + begin, a + end, c + first, c + last, seen, group)


class Tiles(RowKernel):
    """Products and a softmax for each tile of an entry."""

    name = "torch:tiles"

    def refusal(self, params: Params) -> str:
        return ""

    def _scores(
        self, q: Tensor, k: Tensor, call: Call, tile: _Tile, params: Params
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns scores [KV heads, query heads per KV head, rows, keys], the slope of the softcap
        and the factors of dropout."""
        by_head = _by_head(q[tile.a : tile.b].float(), k.shape[1])
        keys = k[tile.c : tile.d].float().permute(1, 2, 0).unsqueeze(1)
        scores = torch.matmul(by_head, keys) * params.scale
        slope = factors = None
        if params.softcap:
            part = torch.tanh(scores / params.softcap)
            scores, slope = params.softcap * part, 1 - part * part
        if params.terms is not None:
            heads = _heads(tile, q.shape[1])
            places = _places(call, tile)
            bias = params.terms.bias(heads, places["q_positions"], places["k_positions"])
            if bias is not None:
                scores = scores + bias.view_as(scores)
            factors = params.terms.factors(heads, places["q_tokens"], places["k_tokens"])
        if tile.seen is not None:
            scores = scores.masked_fill(~tile.seen, -math.inf)
        return scores, slope, None if factors is None else factors.view_as(scores)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, params: Params
    ) -> tuple[Tensor, Tensor]:
        out = q.new_zeros((len(q), q.shape[1], v.shape[2]), dtype=torch.float32)
        lse = q.new_full(q.shape[:2], -math.inf, dtype=torch.float32)
        for tile in _tiles(call, q.shape[1], q.device):
            scores, _, factors = self._scores(q, k, call, tile, params)
            sums = torch.logsumexp(scores, -1)
            weights = torch.exp(scores - sums.unsqueeze(-1))
            if factors is not None:
                weights = weights * factors
            values = v[tile.c : tile.d].float().permute(1, 0, 2).unsqueeze(1)
            out[tile.a : tile.b] = _by_row(torch.matmul(weights, values))
            lse[tile.a : tile.b] = sums.flatten(0, 1).transpose(0, 1)
        return out, lse

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
        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
        groups = k.shape[1]
        for tile in _tiles(call, q.shape[1], q.device):
            rows, keys = slice(tile.a, tile.b), slice(tile.c, tile.d)
            scores, slope, factors = self._scores(q, k, call, tile, params)
            weights = torch.exp(scores - _by_head(lse[rows].unsqueeze(-1), groups))
            grads = _by_head(do[rows].float(), groups)
            dweights = torch.matmul(grads, v[keys].float().permute(1, 2, 0).unsqueeze(1))
            if factors is not None:
                dweights = dweights * factors
            dscores = weights * (dweights - _by_head(delta[rows].unsqueeze(-1), groups))
            if params.terms is not None:
                places = _places(call, tile)
                params.terms.add_table_gradient(
                    _heads(tile, q.shape[1]),
                    places["q_positions"],
                    places["k_positions"],
                    dscores.flatten(0, 1),
                )
            if slope is not None:
                dscores = dscores * slope
            dscores = dscores * params.scale
            dq[rows] = _by_row(torch.matmul(dscores, k[keys].float().permute(1, 0, 2).unsqueeze(1)))
            queries = _by_head(q[rows].float(), groups)
            dk[keys] += torch.matmul(dscores.transpose(-1, -2), queries).sum(1).transpose(0, 1)
            kept = weights if factors is None else weights * factors
            dv[keys] += torch.matmul(kept.transpose(-1, -2), grads).sum(1).transpose(0, 1)
        return dq, dk, dv


def _by_head(x: Tensor, groups: int) -> Tensor:
    """[rows, query heads, dim] -> [KV heads, query heads per KV head, rows, dim]."""
    by_head: Tensor = x.unflatten(1, (groups, -1))
    return by_head.permute(1, 2, 0, 3)


def _by_row(x: Tensor) -> Tensor:
    """The inverse of ``_by_head``."""
    return x.permute(2, 0, 1, 3).flatten(1, 2)


def _heads(tile: _Tile, heads: int) -> slice:
    """Returns the query heads of the layer that a tile has."""
    return slice(tile.group * heads, (tile.group + 1) * heads)


def _places(call: Call, tile: _Tile) -> dict[str, Tensor]:
    rows = {"q": slice(tile.a, tile.b), "k": slice(tile.c, tile.d)}
    return {name: places[rows[name[0]]] for name, places in call.places.items()}
