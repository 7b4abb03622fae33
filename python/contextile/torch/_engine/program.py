"""The programs of a rank, with their lists on the device of the tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contextile import _core

# The kinds of data of each direction, and the rows of a call by which they are read and written.
INPUTS = {"forward": ("q", "kv"), "backward": ("q", "kv", "do")}
OUTPUTS = {"forward": ("o",), "backward": ("dq", "dkv")}

Rows = slice | Tensor  # of a buffer: one run, or an index, int64


class Upload:
    """Arrays that go to a device together: one copy for each dtype."""

    def __init__(self) -> None:
        self._arrays: dict[str, list[Any]] = {"int64": [], "int32": []}
        self._places: list[Callable[[], None]] = []

    def add(self, array: Any, place: Callable[[Tensor], None]) -> None:
        """Calls ``place`` with the array's tensor when all are there."""
        name = array.dtype.name
        number = len(self._arrays[name])
        self._arrays[name].append(array)
        self._places.append(lambda: place(self._tensors[name][number]))

    def finish(self, device: torch.device) -> int:
        """Copies all arrays. Returns their bytes. Later calls on the current stream see them."""
        self._tensors: dict[str, Any] = {}
        num_bytes = 0
        for name, arrays in self._arrays.items():
            if not arrays:
                continue
            flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))
            if device.type == "cuda":
                flat = flat.pin_memory()
            moved = flat.to(device, non_blocking=True)
            parts = torch.split(moved, [array.size for array in arrays])
            self._tensors[name] = [
                part.view(array.shape) for part, array in zip(parts, arrays, strict=True)
            ]
            num_bytes += moved.nbytes
        for place in self._places:
            place()
        del self._tensors, self._places
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
            upload.add(rows, functools.partial(self.__setitem__, name))


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
        self.mask: Any = None  # a kernel's BlockMask


class Call:
    """One call of variable-length attention. Its entries have one class."""

    def __init__(self, lists: _core.StageCall, upload: Upload) -> None:
        self.entry_class: str = lists.entry_class
        self.window: int = lists.window
        self.is_first: bool = lists.is_first
        self.max_q: int = lists.max_q
        self.max_k: int = lists.max_k
        self.rows = RowSet()
        for kind, rows in lists.rows.items():
            self.rows.add(kind, rows, upload)
        q_offsets: Any = lists.q_offsets
        k_offsets: Any = lists.k_offsets
        groups: Any = lists.groups
        # Where entries begin and end, for kernels that take one at a time.
        self.q_ends: list[int] = q_offsets.tolist()
        self.k_ends: list[int] = k_offsets.tolist()
        self.groups: list[int] = groups.tolist()
        self.q_offsets = self.k_offsets = torch.empty(0)
        upload.add(q_offsets, functools.partial(setattr, self, "q_offsets"))
        upload.add(k_offsets, functools.partial(setattr, self, "k_offsets"))
        self.places: dict[str, Tensor] = {}  # tokens and positions of rows, with terms
        for name in ("q_tokens", "q_positions", "k_tokens", "k_positions"):
            array = getattr(lists, name)
            if len(array):
                upload.add(array, functools.partial(self.places.__setitem__, name))

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


class Attention:
    """An attention instruction: its calls, or the same as intervals."""

    def __init__(self, lists: _core.StageAttention, upload: Upload, kernel: Any) -> None:
        self.kernel = kernel
        self.pairs: int = lists.pairs
        self.num_keys: int = lists.num_keys
        self.num_calls = len(lists.calls)
        # Every call with whether it overwrites its rows of results.
        self.jobs: list[tuple[Any, bool]] = []
        if self.kernel.takes_intervals:
            if lists.pairs > 0:
                self.jobs.append((Intervals(lists.intervals, upload), lists.is_first))
        else:
            self.jobs = [(Call(call, upload), call.is_first) for call in lists.calls]
        self.resets = RowSet()
        for kind, rows in lists.resets.items():
            self.resets.add(kind, rows, upload)


class Message(NamedTuple):
    peer: int
    kind: str
    wire: str
    rows: RowSet  # "rows"


class Launch(NamedTuple):
    id: int
    sends: list[Message]
    recvs: list[Message]


class Wait(NamedTuple):
    id: int


class Reduce(NamedTuple):
    kind: str
    rows: RowSet  # "dst", then "0", "1", …: the sources of its first rows
    counts: list[int]  # of the sources


class Copy(NamedTuple):
    kind: str
    rows: RowSet  # "dst" and "src"


class Program:
    """What this rank executes in one round."""

    def __init__(
        self, lists: _core.StageProgram, upload: Upload, kernel_of: Callable[[Any], Any]
    ) -> None:
        self.head_groups: int = lists.head_groups
        self.own_tokens: int = lists.own_tokens
        self.rows: dict[str, int] = lists.rows
        self.retain: list[Any] = lists.retain
        self.begin_cut: int = lists.begin_cut
        self.launches_end: int = lists.launches_end
        self.instructions: list[Any] = []
        for one in lists.instructions:
            self.instructions.append(_instruction_of(one, upload, kernel_of))

    @property
    def own_rows(self) -> int:
        return self.own_tokens * self.head_groups


def _message_of(lists: _core.StageMessage, upload: Upload) -> Message:
    rows = RowSet()
    rows.add("rows", lists.rows, upload)
    return Message(lists.peer, lists.kind, lists.wire, rows)


def _instruction_of(one: Any, upload: Upload, kernel_of: Callable[[Any], Any]) -> Any:
    if isinstance(one, _core.StageAttention):
        return Attention(one, upload, kernel_of(one))
    if isinstance(one, _core.StageLaunch):
        sends, recvs = ([_message_of(m, upload) for m in end] for end in (one.sends, one.recvs))
        return Launch(one.id, sends, recvs)
    if isinstance(one, _core.StageWait):
        return Wait(one.id)
    rows = RowSet()
    rows.add("dst", one.dst, upload)
    if isinstance(one, _core.StageCopy):
        rows.add("src", one.src, upload)
        return Copy(one.kind, rows)
    sources = one.srcs
    for number, source in enumerate(sources):
        rows.add(str(number), source, upload)
    return Reduce(one.kind, rows, [len(source) for source in sources])
