"""The rows of a micro-batch on the ranks of its neighbourhood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contextile import _checks, _core
from contextile._planning import lengths_of

# Token counts of the documents of a micro-batch.
Lengths = Sequence[int]
# (document, begin, end): rows of a document. They attend its keys from 0 to end.
_DocumentRows = tuple[int, int, int]
# (document, begin, end, rank of the neighbourhood), by document and position.
_Places = list[tuple[int, int, int, int]]


class Rows(NamedTuple):
    """The tokens of a micro-batch that a rank computes; none on an idle rank.

    Attributes
    ----------
    tokens : int64 Tensor [rows]
        Their indices in the micro-batch, whose documents lie end to end.
    positions : int64 Tensor [rows]
        Their positions in the documents, for RoPE.
    sequence_ids : int64 Tensor [rows]
        Numbers of their documents.
    counts : tuple of int
        Rows of every nano-batch, one after another.
    """

    tokens: Tensor
    positions: Tensor
    sequence_ids: Tensor
    counts: tuple[int, ...]


def micro_batches_of(given: Any) -> list[list[int] | None]:
    """Returns the lengths of every neighbourhood's micro-batch; None if it is idle."""
    try:
        if isinstance(given, (str, bytes, Mapping)):
            raise TypeError
        each = list(given)
    except TypeError:
        raise _core.InvalidArgument(
            "pool: expected a list with document lengths, or None, for every neighbourhood's "
            f"micro-batch, found {given!r:.80}"
        ) from None
    found: list[list[int] | None] = []
    for n, lengths in enumerate(each):
        try:
            found.append(None if lengths is None else lengths_of(lengths) or None)
        except _core.InvalidArgument as error:
            raise _core.InvalidArgument(f"pool, neighbourhood {n}: {error}") from None
    return found


def check_nano_batches(nano_batches: Any) -> None:
    """Raises InvalidArgument unless there are 1 or 2."""
    if _checks.count("pool, nano_batches", nano_batches) not in (1, 2):
        raise _core.InvalidArgument(f"pool: expected 1 or 2 nano-batches, found {nano_batches}")


def no_rows(nano_batches: int) -> Rows:
    """Returns the rows of an idle rank."""
    empty = torch.empty(0, dtype=torch.int64)
    return Rows(empty, empty, empty, (0,) * nano_batches)


def _contiguous(rows: Sequence[_DocumentRows], size: int) -> _Places:
    """Deals rows in sequence, equally many to every rank (DistCA, section 6.1)."""
    total = sum(end - begin for _, begin, end in rows)
    places: _Places = []
    placed, rank = 0, 0
    for document, begin, end in rows:
        while begin < end:
            while total * (rank + 1) // size <= placed:
                rank += 1
            taken = min(end - begin, total * (rank + 1) // size - placed)
            places.append((document, begin, begin + taken, rank))
            begin, placed = begin + taken, placed + taken
    return places


def _zigzag(rows: Sequence[_DocumentRows], size: int) -> _Places:
    """Cuts documents into 2·size pieces; rank r has pieces r and 2·size - 1 - r (Megatron-LM)."""
    places: _Places = []
    for document, _, length in rows:
        if length % (2 * size) != 0:
            raise _core.InvalidArgument(
                f"pool, layout zigzag: expected lengths in multiples of {2 * size} (2 x ranks of a "
                f"neighbourhood), found {length}"
            )
        piece = length // (2 * size)
        places += [
            (document, i * piece, (i + 1) * piece, min(i, 2 * size - 1 - i))
            for i in range(2 * size)
        ]
    return places


class Layout:
    """The nano-batches of one micro-batch, and the ranks that hold their rows."""

    def __init__(
        self, lengths: Lengths, nano_batches: int, size: int, mask: str, layout: str
    ) -> None:
        self.lengths = lengths_of(lengths)
        whole = [(i, 0, length) for i, length in enumerate(self.lengths)]
        self.parts: list[list[_DocumentRows]] = (
            [whole] if nano_batches == 1 else _core.nano_batches(self.lengths, [mask])
        )
        self.parts += [[] for _ in range(nano_batches - len(self.parts))]
        least = min(sum(end - begin for _, begin, end in part) for part in self.parts)
        if least < size:
            raise _core.InvalidArgument(
                f"pool: expected a token in every nano-batch on each of the {size} ranks of a "
                f"neighbourhood, found a micro-batch of {sum(self.lengths)} tokens in "
                f"{nano_batches} nano-batches, one of {least}"
            )
        place = _zigzag if layout == "zigzag" else _contiguous
        self.places = [place(part, size) for part in self.parts]
        self.first_token = np.concatenate([[0], np.cumsum(self.lengths)])

    def tokens_of(self, part: int, rank: int) -> np.ndarray:
        """Returns a rank's rows of a nano-batch, ascending in the micro-batch."""
        found = [
            np.arange(self.first_token[document] + begin, self.first_token[document] + end)
            for document, begin, end, owner in self.places[part]
            if owner == rank
        ]
        return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)

    def rows_of(self, tokens: Sequence[np.ndarray]) -> Rows:
        """Describes rows, given by nano-batch."""
        whole = np.concatenate(list(tokens))
        documents = np.searchsorted(self.first_token, whole, side="right") - 1
        return Rows(
            torch.from_numpy(whole),
            torch.from_numpy(whole - self.first_token[documents]),
            torch.from_numpy(documents),
            tuple(len(rows) for rows in tokens),
        )
