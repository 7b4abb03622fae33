"""The calls of a stage on the device: rows of buffers, entries and intervals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contextile import _core

Rows = slice | Tensor  # of a buffer: one run, or an index


def wait_for_copies(device: torch.device) -> None:
    """Returns when what this stream has copied is there, for the calls of any stream."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def mark_used(tensors: list[Tensor], device: torch.device, marked: dict[Any, int]) -> None:
    """Keeps tensors, once they are freed, until the current stream has run what reads them.

    ``marked`` has the number of tensors for which that is known, by stream.
    """
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return
    stream = torch.cuda.current_stream(device)
    for tensor in tensors[marked.get(stream, 0) :]:
        tensor.record_stream(stream)
    marked[stream] = len(tensors)


class Upload:
    """Arrays of int32 that go to a device together: indices, which become int64, and others."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []  # those of which the others are views
        self._indices: list[tuple[Any, Callable[[Tensor], None]]] = []
        self._others: list[tuple[Any, Callable[[Tensor], None]]] = []

    def add(self, array: Any, place: Callable[[Tensor], None]) -> None:
        """Calls ``place`` with the array's tensor when all are there."""
        self._others.append((array, place))

    def add_index(self, array: Any, place: Callable[[Tensor], None]) -> None:
        """Does the same with an index of rows."""
        self._indices.append((array, place))

    def finish(self, device: torch.device) -> int:
        """Copies all arrays. Returns their bytes. Calls on any stream see them."""
        num_bytes = 0
        for arrays, dtype in ((self._indices, torch.int64), (self._others, torch.int32)):
            if not arrays:
                continue
            flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array, _ in arrays]))
            if device.type == "cuda":
                flat = flat.pin_memory()
            moved = flat.to(device, non_blocking=True).to(dtype)
            parts = torch.split(moved, [array.size for array, _ in arrays])
            for (array, place), part in zip(arrays, parts, strict=True):
                place(part.view(array.shape))
            num_bytes += moved.nbytes
            self.tensors.append(moved)
        wait_for_copies(device)
        self._indices, self._others = [], []
        return num_bytes


class RowSet(dict[str, Rows]):
    """Rows of buffers by name: of a kind, or of a part of an instruction."""

    def add(self, name: str, rows: Any, upload: Upload) -> None:
        """Takes an array of rows, as a slice if they are one run."""
        if len(rows) == 0 or (
            rows[-1] - rows[0] + 1 == len(rows) and bool((np.diff(rows) == 1).all())
        ):
            first = int(rows[0]) if len(rows) else 0
            self[name] = slice(first, first + len(rows))
        else:
            upload.add_index(rows, functools.partial(self.__setitem__, name))


# With terms: token and position of every row and key.
_PLACES = ("q_tokens", "q_positions", "k_tokens", "k_positions")


def _add_places(
    places: dict[str, Tensor], lists: Any, names: tuple[str, ...], upload: Upload
) -> None:
    for name in names:
        array = getattr(lists, name)
        if len(array):
            upload.add(array, functools.partial(places.__setitem__, name))


class Intervals:
    """A stage as one call of FlexAttention."""

    def __init__(self, lists: _core.StageIntervals, upload: Upload) -> None:
        self.rows = RowSet()
        for kind, rows in lists.rows.items():
            self.rows.add(kind, rows, upload)
        self.num_rows = len(lists.rows["q"])
        self.num_keys = len(lists.rows["kv"])
        self.block = lists.block
        self.low = self.high = torch.empty(0)
        upload.add(lists.low, functools.partial(setattr, self, "low"))
        upload.add(lists.high, functools.partial(setattr, self, "high"))
        # Numbers and lists of blocks: of keys by queries, partial and full; of queries by keys.
        self.blocks: list[list[Any]] = []
        for counts, indices in lists.blocks:
            pair: list[Any] = [None, None]
            upload.add(counts, functools.partial(pair.__setitem__, 0))
            upload.add(indices, functools.partial(pair.__setitem__, 1))
            self.blocks.append(pair)
        self.places: dict[str, Tensor] = {}
        _add_places(self.places, lists, ("q_groups", *_PLACES), upload)
        self.mask: Any = None  # a kernel's BlockMask


class Call:
    """One call of variable-length attention. Its entries have one class."""

    def __init__(self, lists: _core.StageCall, upload: Upload) -> None:
        self.entry_class: str = lists.entry_class
        self.window: int = lists.window
        self.max_q: int = lists.max_q
        self.max_k: int = lists.max_k
        self.rows = RowSet()
        for kind, rows in lists.rows.items():
            self.rows.add(kind, rows, upload)
        q_offsets: Any = lists.q_offsets
        k_offsets: Any = lists.k_offsets
        groups: Any = lists.groups
        # The rows at which entries begin and end, for kernels that take one at a time.
        self.q_ends: list[int] = q_offsets.tolist()
        self.k_ends: list[int] = k_offsets.tolist()
        self.groups: list[int] = groups.tolist()
        self.q_offsets = self.k_offsets = torch.empty(0)
        upload.add(q_offsets, functools.partial(setattr, self, "q_offsets"))
        upload.add(k_offsets, functools.partial(setattr, self, "k_offsets"))
        self.places: dict[str, Tensor] = {}
        _add_places(self.places, lists, _PLACES, upload)

    @property
    def num_rows(self) -> int:
        return self.q_ends[-1]

    @property
    def num_keys(self) -> int:
        return self.k_ends[-1]

    @property
    def num_entries(self) -> int:
        return len(self.groups)

    @property
    def fa_window(self) -> tuple[int, int]:
        """Keys to the left and to the right of the bottom-right diagonal; -1: all."""
        return {
            "full": (-1, -1),
            "causal": (-1, 0),
            "window": (self.window, 0),
            "inverse": (0, -1),
        }[self.entry_class]

    def entries(self) -> list[tuple[int, int, int, int]]:
        """Returns the rows of queries and of keys of every entry, [a, b) and [c, d)."""
        return list(zip(self.q_ends, self.q_ends[1:], self.k_ends, self.k_ends[1:], strict=False))
