"""Partial results of the same queries, merged by their log-sum-exp."""

from __future__ import annotations

from contextile.torch._engine.rank_program import Copy, Reduce
from contextile.torch._kernels.kernel import Buffers
from contextile.torch._kernels.rows import merged, put, take


def reduce_rows(buffers: Buffers, one: Reduce) -> None:
    """Merges results, or adds up gradients, of several sources. All are read first."""
    parts = buffers[one.kind]
    total = [take(part, one.rows["0"]).clone() for part in parts]
    for number, count in enumerate(one.counts[1:], start=1):
        more = [take(part, one.rows[str(number)]) for part in parts]
        if one.kind == "o":
            o, lse = merged(total[0][:count], total[1][:count], *more)
            total[0][:count], total[1][:count] = o, lse
        else:
            for sum_, part in zip(total, more, strict=True):
                sum_[:count] += part
    for part, values in zip(parts, total, strict=True):
        put(part, one.rows["dst"], values)


def copy_rows(buffers: Buffers, one: Copy) -> None:
    """Copies rows, all of which are read first."""
    for part in buffers[one.kind]:
        put(part, one.rows["dst"], take(part, one.rows["src"]).clone())
