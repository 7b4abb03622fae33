"""Messages of a launch over a group of ``torch.distributed``: one batch of sends and receives."""

from __future__ import annotations

import datetime
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from contextile import _core
from contextile.torch._engine.buffers import DTYPES
from contextile.torch._engine.rank_program import Launch, Message
from contextile.torch._kernels.kernel import Buffers
from contextile.torch._kernels.row_ops import put, take_as

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Tags count the messages of a pair of ranks, so that those over gloo meet in order. They begin
# where those of a program that counts its own from 0 are unlikely to be.
_FIRST_TAG = 1 << 24
_NUM_TAGS = 1 << 24
# Messages so far by function and peer. All users of a group share them: their calls may be under
# way together.
_counts: weakref.WeakKeyDictionary[Any, Counter[Any]] = weakref.WeakKeyDictionary()


class UnderWay:
    """A launch under way. Its operations keep what is sent and received until the wait."""

    def __init__(self, works: list[Any], ops: list[Any], landing: list[Any]) -> None:
        self.works, self.ops, self.landing = works, ops, landing


class Messages:
    """The messages of one rank."""

    def __init__(self, group: ProcessGroup | None, device: torch.device, timeout: float) -> None:
        self._group = group
        # A wait with a timeout would stop the host until a GPU is done.
        is_on_host = device.type == "cpu"
        self._limits = (datetime.timedelta(seconds=timeout),) if is_on_host else ()
        self._peers: dict[int, int] = {}
        self.sent_bytes = self.received_bytes = 0

    def _peer(self, rank: int) -> int:
        """Returns a rank's number among all ranks of the job."""
        if rank not in self._peers:
            self._peers[rank] = (
                rank if self._group is None else dist.get_global_rank(self._group, rank)
            )
        return self._peers[rank]

    def _op(self, function: Any, peer: int, tensor: Tensor) -> Any:
        counts = _counts.setdefault(
            dist.group.WORLD if self._group is None else self._group, Counter()
        )
        tag = _FIRST_TAG + counts[function, peer] % _NUM_TAGS
        counts[function, peer] += 1
        return dist.P2POp(function, tensor, self._peer(peer), group=self._group, tag=tag)

    def launch(self, one: Launch, buffers: Buffers) -> UnderWay:
        """Begins to send rows as they are now, and to receive."""
        ops, landing = [], []
        for message in one.sends:
            for part in buffers[message.kind]:
                leaving = take_as(part, message.rows["rows"], _wire(message, part))
                self.sent_bytes += leaving.nbytes
                ops.append(self._op(dist.isend, message.peer, leaving))
        for message in one.recvs:
            rows = message.rows["rows"]
            for part in buffers[message.kind]:
                wire = _wire(message, part)
                if isinstance(rows, slice) and part.dtype == wire:
                    coming = part[rows]
                else:
                    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
                    coming = part.new_empty((count, *part.shape[1:]), dtype=wire)
                    landing.append((part, rows, coming))
                self.received_bytes += coming.nbytes
                ops.append(self._op(dist.irecv, message.peer, coming))
        return UnderWay(self.start(ops), ops, landing)

    def start(self, ops: list[Any]) -> list[Any]:
        """Begins one batch, which NCCL runs as one kernel."""
        works: list[Any] = dist.batch_isend_irecv(ops) if ops else []
        return works

    def wait(self, launch: UnderWay) -> None:
        """Returns when all has come; on a GPU, once the current stream waits for it."""
        for number, work in enumerate(launch.works):
            try:
                work.wait(*self._limits)
            except RuntimeError as error:
                # Backends that fuse a batch have one work for it.
                is_fused = len(launch.works) < len(launch.ops)
                at = "batch" if is_fused else _text_of(launch.ops[number])
                raise _core.TransportError(f"messages: {at}: {error}") from error
        for part, rows, coming in launch.landing:
            put(part, rows, coming)


def _text_of(op: Any) -> str:
    return f"{'send to' if op.op is dist.isend else 'receive from'} rank {op.peer} of the job"


def _wire(message: Message, part: Tensor) -> torch.dtype:
    """Returns the dtype in which a part travels. Numbers of rows are float32 always."""
    return DTYPES[message.wire] if part.dim() == 3 else torch.float32
