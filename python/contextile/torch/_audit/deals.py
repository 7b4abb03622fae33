"""Rows of ranks: the layouts that implementations of context parallelism want."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile._planning import make_workload

# Rows of a rank from the boundaries of the documents, its number and the number of ranks; and from
# the mask, if the function has an argument of that name.
LayoutRule = Callable[..., Any]
Layout = str | _core.Plan | LayoutRule

NAMES = ("zigzag", "zigzag_batch", "contiguous")


@dataclass(frozen=True)
class Deal:
    """The rows of a batch and the ranks that hold them. A document's padding follows its tokens.

    ``lengths`` counts the tokens of every document and ``rows`` its tokens and padding. ``parts``
    has each rank's rows of the batch in the order in which the rank holds them.
    """

    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    parts: tuple[Tensor, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.rows)

    @property
    def size(self) -> int:
        return len(self.parts)

    @cached_property
    def documents(self) -> Tensor:
        """[rows] document of every row."""
        return torch.repeat_interleave(torch.arange(len(self.rows)), torch.tensor(self.rows))

    @cached_property
    def positions(self) -> Tensor:
        """[rows] position of every row in its document."""
        return torch.cat([torch.arange(count) for count in self.rows])

    @cached_property
    def is_token(self) -> Tensor:
        """[rows] false for padding."""
        return self.positions < torch.tensor(self.lengths)[self.documents]

    @cached_property
    def owners(self) -> Tensor:
        """[rows] rank that holds every row."""
        owners = torch.empty(self.num_rows, dtype=torch.int64)
        for rank, part in enumerate(self.parts):
            owners[part] = rank
        return owners

    @cached_property
    def places(self) -> Tensor:
        """[rows] place of every row among those of its rank."""
        places = torch.empty(self.num_rows, dtype=torch.int64)
        for part in self.parts:
            places[part] = torch.arange(len(part))
        return places


def bounds(counts: Sequence[int]) -> list[int]:
    """Returns 0 and the running sums of counts."""
    sums = [0]
    for count in counts:
        sums.append(sums[-1] + count)
    return sums


def _zigzag(boundaries: list[int], rank: int, size: int) -> list[int]:
    rows: list[int] = []
    for begin, end in itertools.pairwise(boundaries):
        for chunk in (rank, 2 * size - 1 - rank):
            first, last = (begin + (end - begin) * c // (2 * size) for c in (chunk, chunk + 1))
            rows.extend(range(first, last))
    return rows


def _contiguous(boundaries: list[int], rank: int, size: int) -> list[int]:
    most = -(-boundaries[-1] // size)
    return list(range(min(rank * most, boundaries[-1]), min((rank + 1) * most, boundaries[-1])))


RULES: dict[str, LayoutRule] = {
    "zigzag": _zigzag,
    "zigzag_batch": lambda boundaries, rank, size: _zigzag([0, boundaries[-1]], rank, size),
    "contiguous": _contiguous,
}


def parts_of(layout: Layout, rows: Sequence[int], size: int, mask: str = "") -> tuple[Tensor, ...]:
    """Returns the rows of every rank. Raises InvalidArgument if they are no partition."""
    if isinstance(layout, _core.Plan):
        parts = [torch.from_numpy(layout.local_tokens(rank)).long() for rank in range(size)]
    else:
        rule = RULES[layout] if isinstance(layout, str) else layout
        others = {"mask": mask} if "mask" in inspect.signature(rule).parameters else {}
        parts = [
            torch.as_tensor(rule(bounds(rows), rank, size, **others), dtype=torch.int64).reshape(-1)
            for rank in range(size)
        ]
    together = torch.cat(parts).sort().values
    if not torch.equal(together, torch.arange(sum(rows))):
        raise _core.InvalidArgument(
            f"layout: expected every row from 0 to {sum(rows) - 1} on one rank, found "
            f"{len(together)} rows on {size} ranks"
        )
    return tuple(parts)


def check_layout(layout: Any, lengths: list[int], size: int) -> None:
    """Raises InvalidArgument for what is no layout of these documents on these ranks."""
    if isinstance(layout, str):
        if layout not in NAMES:
            raise _core.InvalidArgument(
                f"layout: expected {', '.join(NAMES)}, a plan or a function, found {layout!r:.80}"
            )
    elif isinstance(layout, _core.Plan):
        if layout.num_devices != size:
            raise _core.InvalidArgument(
                f"layout: expected a plan of {size} ranks, found one of {layout.num_devices}"
            )
        planned = [end - begin for begin, end in layout.sequences]
        if planned != lengths:
            raise _core.InvalidArgument(
                f"layout: expected a plan of documents of {lengths!r:.80} tokens, found one of "
                f"{planned!r:.80}"
            )
    elif not callable(layout):
        raise _core.InvalidArgument(
            f"layout: expected {', '.join(NAMES)}, a plan or a function, found {layout!r:.80}"
        )


def deal(
    lengths: Sequence[int],
    layout: Layout,
    size: int,
    multiple: int,
    pads: bool,
    mask: str = "causal",
) -> Deal:
    """Returns the deal of documents. With ``pads``, each is padded to ``multiple`` rows.

    Raises InvalidArgument if a document would need padding and may have none.
    """
    rows = [-(-length // multiple) * multiple for length in lengths]
    if not pads and rows != list(lengths):
        wrong = next(n for n, row in zip(lengths, rows, strict=True) if n != row)
        raise _core.InvalidArgument(
            f"lengths: expected multiples of {multiple}, because the implementation takes no "
            f"cu_seqlens_padded, found {wrong}"
        )
    return Deal(tuple(lengths), tuple(rows), parts_of(layout, rows, size, mask))


def pairs(mask: str, length: int) -> Tensor:
    """Returns the bool [length, length] of a document's attended pairs (query, key)."""
    workload = make_workload([length], mask=_core.parse_mask_spec(mask))
    dense: Any = workload.mask().dense(length)
    return torch.from_numpy(dense).bool()


def allowed_pairs(mask: str, deal: Deal) -> Tensor:
    """Returns the bool [rows, rows] of a batch's attended pairs; padding attends nothing."""
    allowed = torch.zeros(deal.num_rows, deal.num_rows, dtype=torch.bool)
    for begin, length in zip(bounds(deal.rows), deal.lengths, strict=False):
        here = slice(begin, begin + length)
        allowed[here, here] = pairs(mask, length)
    return allowed
