"""The programs of a rank, with their lists on the device of the tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

from contextile import _core
from contextile.torch._kernels.kernel import Kernel
from contextile.torch._kernels.stage_calls import Call, Intervals, RowSet, Upload

# The kinds of data of each direction, and the rows of a call by which they are read and written.
INPUTS = {"forward": ("q", "kv"), "backward": ("q", "kv", "do")}
OUTPUTS = {"forward": ("o",), "backward": ("dq", "dkv")}


class Attention:
    """An attention instruction: its calls, or the same as intervals."""

    def __init__(self, lists: _core.StageAttention, upload: Upload, kernel: Kernel) -> None:
        self.kernel = kernel
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
    """The instructions of this rank in one round."""

    def __init__(self, lists: _core.StageProgram, upload: Upload, kernel: Kernel) -> None:
        self.head_groups: int = lists.head_groups
        self.own_tokens: int = lists.own_tokens
        self.rows: dict[str, int] = lists.rows
        self.retain: list[Any] = lists.retain
        self.begin_cut: int = lists.begin_cut
        self.launches_end: int = lists.launches_end
        self.instructions = [_instruction_of(one, upload, kernel) for one in lists.instructions]

    @property
    def own_rows(self) -> int:
        return self.own_tokens * self.head_groups


def _message_of(lists: _core.StageMessage, upload: Upload) -> Message:
    rows = RowSet()
    rows.add("rows", lists.rows, upload)
    return Message(lists.peer, lists.kind, lists.wire, rows)


def _instruction_of(one: Any, upload: Upload, kernel: Kernel) -> Any:
    if isinstance(one, _core.StageAttention):
        return Attention(one, upload, kernel)
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
