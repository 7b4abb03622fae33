"""The weights that an implementation drops, read from its outputs, and what is wrong with them."""

from __future__ import annotations

import torch
from torch import Tensor

from contextile.torch._audit.deals import Deal
from contextile.torch._audit.exact import Inputs, changed

LEAST_PAIRS = 24  # that two blocks must have in common before equality says anything


def probes(inputs: Inputs, num_rows: int) -> list[Inputs]:
    """Returns inputs whose outputs show every weight: scores are 0, values pick out keys."""
    dim = inputs.v.shape[2]
    sink = None if inputs.sink is None else torch.full_like(inputs.sink, -60.0)  # no weight
    zeros = {"q": torch.zeros_like(inputs.q), "k": torch.zeros_like(inputs.k)}
    found = []
    for first in range(0, num_rows, dim):
        v = torch.zeros_like(inputs.v)
        keys = torch.arange(first, min(first + dim, num_rows))
        v[keys, :, keys - first] = 1
        found.append(changed(inputs, **zeros, v=v, sink=sink, drops=True))
    return found


def factors_of(outs: list[Tensor], allowed: Tensor) -> Tensor:
    """Returns the [q_heads, rows, rows] factors of weights from the outputs of all probes."""
    rows = len(allowed)
    weights = torch.cat(outs, dim=2)[:, :, :rows].double().transpose(0, 1)
    return weights * allowed.sum(1).clamp(min=1)[None, :, None]


def blame(factors: Tensor, allowed: Tensor, deal: Deal, p: float) -> tuple[str, str] | None:
    """Returns the cause of a pattern that no sound dropout has, and its form, or None."""
    kept = factors > 0.5 / (1 - p)
    right = torch.where(kept, 1 / (1 - p), 0.0)
    if bool(((factors - right).abs() > 0.1 / (1 - p))[:, allowed].any()):
        return "dropout_rate", "weights are scaled by something else than 1 / (1 - dropout_p)"
    seen = kept[:, allowed].double()
    spread = (p * (1 - p) / seen.numel()) ** 0.5
    if abs(float(seen.mean()) - (1 - p)) > 6 * spread:
        return "dropout_rate", f"{1 - float(seen.mean()):.3g} of the weights are dropped"
    if len(kept) > 1 and int(allowed.sum()) >= LEAST_PAIRS and bool((kept == kept[:1]).all()):
        return "dropout_repeats_over_heads", ""
    return _repeated_blocks(kept, allowed, deal)


def _repeated_blocks(kept: Tensor, allowed: Tensor, deal: Deal) -> tuple[str, str] | None:
    blocks = [
        (a, b, allowed[mine[:, None], theirs], kept[:, mine[:, None], theirs])
        for a, mine in enumerate(deal.parts)
        for b, theirs in enumerate(deal.parts)
    ]
    for number, (a, b, shown, pattern) in enumerate(blocks):
        for c, d, other_shown, other in blocks[:number]:
            if a == c and b == d:
                continue
            rows, keys = (min(x, y) for x, y in zip(shown.shape, other_shown.shape, strict=True))
            both = shown[:rows, :keys] & other_shown[:rows, :keys]
            if len(kept) * int(both.sum()) < LEAST_PAIRS:
                continue
            if torch.equal(pattern[:, :rows, :keys][:, both], other[:, :rows, :keys][:, both]):
                return (
                    "dropout_by_local_index",
                    f"queries of rank {a} and keys of rank {b} drop what queries of rank {c} and "
                    f"keys of rank {d} do",
                )
    return None
