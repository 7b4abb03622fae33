"""Partial results of the same queries, merged by their log-sum-exp."""

from __future__ import annotations

from contextile.torch._engine.rank_program import Copy, Reduce
from contextile.torch._kernels.kernel import Buffers
from contextile.torch._kernels.row_ops import put, reduced, take


def reduce_rows(buffers: Buffers, one: Reduce) -> None:
    """Merges results, or adds up gradients, of several sources. All are read first."""
    parts = buffers[one.kind]
    sources = [one.rows[str(number)] for number in range(len(one.counts))]
    for part, values in zip(parts, reduced(parts, sources, one.counts), strict=True):
        put(part, one.rows["dst"], values)


def copy_rows(buffers: Buffers, one: Copy) -> None:
    """Copies rows, all of which are read first."""
    for part in buffers[one.kind]:
        put(part, one.rows["dst"], take(part, one.rows["src"]).clone())
