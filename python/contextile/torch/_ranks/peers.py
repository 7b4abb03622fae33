"""The peers of a rank: what ranks tell each other, and tensors that move without a plan.

Data on the CPU moves over Contextile's own transport, as that of attention does: after its timeout
without a byte, an error names the rank that did not come. Tensors on a GPU move over
``torch.distributed``, once all ranks have met over the transport.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from contextile import _core
from contextile.torch._ranks import messages
from contextile.torch._ranks.group import connection_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_Ends = list[tuple[int, Tensor]]  # of other ranks, each with a contiguous tensor


def _bytes_of(tensor: Tensor) -> Any:
    """Returns the memory of a contiguous tensor as an array of bytes."""
    # A tensor of one element counts as contiguous whatever its strides are.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def equal_parts(count: int, num_parts: int) -> list[int]:
    """Returns the sizes of parts of ``count`` elements, which differ by at most one."""
    return [
        count * (part + 1) // num_parts - count * part // num_parts for part in range(num_parts)
    ]


class Pending:
    """An exchange that has begun."""

    def __init__(self, peers: Peers, where: str, pending: Any) -> None:
        self._peers, self._where, self._pending = peers, where, pending

    def wait(self) -> None:
        """Returns when it has ended."""
        with self._peers.naming(self._where):
            self._pending.wait()


class Peers:
    """The ranks of a group, and this rank's ways to talk to them. All calls are collective.

    Every call takes the name of what it is for, ``where``, with which errors begin. TransportError
    names the rank that died or did not come, and leaves a flight record if there is a folder.

    Parameters
    ----------
    rank, size : int
        Number of this rank, and of ranks.
    group : ProcessGroup or None
        Their group of ``torch.distributed``.
    transport : Transport or None
        Their transport. None: this rank is alone, or the build has no gloo, and everything moves
        over the group.
    flight_folder : str
        Folder for records of exchanges that fail; empty: none.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        group: ProcessGroup | None,
        transport: _core.Transport | None = None,
        flight_folder: str = "",
    ) -> None:
        self.rank, self.size, self.group = rank, size, group
        self._transport, self._flight_folder = transport, flight_folder

    @contextlib.contextmanager
    def naming(self, where: str) -> Iterator[None]:
        """Names what a call was for in its errors, and leaves a flight record."""
        began = time.monotonic()
        try:
            yield
        except _core.TransportError as error:
            text = f"{where}: {error}"
            if self._flight_folder and self._transport is not None:
                with contextlib.suppress(_core.IoError):  # a full disk must not hide why it failed
                    _core.save_exchange_record(
                        self._transport, self._flight_folder, time.monotonic() - began, text
                    )
            raise _core.TransportError(text) from None

    # -----------------------------------------------------------------------------------------
    # values

    def told(self, where: str, value: Any, check: messages.Check) -> list[Any]:
        """Returns the values of all ranks, by rank, which went as JSON and passed ``check``."""
        if self.size == 1:
            return [check(messages.decoded(messages.encoded(value)))]
        transport = self._transport
        if transport is None:
            return messages.gather_over(self.group, where, value, check)

        def all_gather(data: bytes) -> list[bytes]:
            with self.naming(where):
                return transport.all_gather(data)

        return messages.gather(all_gather, where, value, check)

    def numbers(
        self, where: str, mine: list[int], device: torch.device | str = "cpu"
    ) -> list[list[int]]:
        """Returns the numbers of all ranks, as many of each. The group can send from ``device``."""
        place = "cpu" if self._transport is not None else device
        return [
            part.tolist()
            for part in self.everyones(where, torch.tensor(mine, dtype=torch.int64, device=place))
        ]

    def meet(self, where: str) -> None:
        """Returns when all ranks have come."""
        if self._transport is not None and self.size > 1:
            with self.naming(where):
                self._transport.all_gather(b"")

    def give_up(self, text: str) -> None:
        """Ends the group, so that calls of the other ranks raise TransportError with this text."""
        if self._transport is not None and self.size > 1:
            self._transport.abort(text)

    # ----------------------------------------------------------------------------------------
    # tensors

    def everyones(self, where: str, mine: Tensor) -> list[Tensor]:
        """Returns the tensors of all ranks, which have one shape and dtype."""
        mine = mine.detach().contiguous()
        if self.size == 1:
            return [mine]
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        if self._moves(mine):
            parts[self.rank] = mine
            self._exchange(
                where,
                [(rank, mine) for rank in self._others()],
                [(rank, parts[rank]) for rank in self._others()],
            )
        else:
            self.meet(where)
            dist.all_gather(parts, mine, group=self.group)
        return parts

    def exchange(
        self, where: str, rows: Tensor, send_counts: list[int], receive_counts: list[int]
    ) -> Tensor:
        """Sends rows, in the order of ranks, and returns those received in that order."""
        width = rows.shape[1:].numel()
        flat = (
            rows.detach()
            .contiguous()
            .as_strided((rows.shape[0], width), (width, 1))
            .view(torch.uint8)
        )
        received = flat.new_empty((sum(receive_counts), flat.shape[1]))
        if self.size == 1:
            received.copy_(flat)
        elif self._moves(flat):
            leaving = torch.split(flat, send_counts)
            coming = torch.split(received, receive_counts)
            coming[self.rank].copy_(leaving[self.rank])
            self._exchange(
                where,
                [(rank, leaving[rank]) for rank in self._others() if leaving[rank].numel() > 0],
                [(rank, coming[rank]) for rank in self._others() if coming[rank].numel() > 0],
            )
        else:
            self.meet(where)
            dist.all_to_all_single(received, flat, receive_counts, send_counts, group=self.group)
        return received.view(rows.dtype).reshape(received.shape[0], *rows.shape[1:])

    def sum(self, where: str, tensor: Tensor) -> Tensor:
        """Returns the sum over ranks, of the same bits on all ranks.

        On the CPU each rank adds up a part, in the order of ranks and in fp32 at least.
        """
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size == 1:
            return total
        if not self._moves(total):
            self.meet(where)
            dist.all_reduce(total, group=self.group)
            return total
        flat = total.reshape(-1)
        sizes = equal_parts(len(flat), self.size)
        mine = sizes[self.rank]
        parts = self.exchange(where, flat, sizes, [mine] * self.size).view(self.size, mine)
        wide = (
            torch.promote_types(flat.dtype, torch.float32)
            if flat.dtype.is_floating_point
            else flat.dtype
        )
        pieces = torch.split(flat, sizes)
        pieces[self.rank].copy_(parts.sum(0, dtype=wide))
        others = [rank for rank in self._others() if sizes[rank] > 0]
        sends = [(rank, pieces[self.rank]) for rank in self._others() if mine > 0]
        self._exchange(where, sends, [(rank, pieces[rank]) for rank in others])
        return total

    def send(self, where: str, tensor: Tensor, rank: int) -> None:
        """Sends a tensor to one rank. Collective with that rank alone."""
        tensor = tensor.detach().contiguous()
        if self._moves(tensor):
            self._exchange(where, [(rank, tensor)], [])
        else:
            self._exchange(where, [(rank, torch.empty(0))], [])
            dist.send(tensor, self._global(rank), group=self.group)

    def receive(self, where: str, tensor: Tensor, rank: int) -> None:
        """Fills a contiguous tensor with what one rank sends. Collective with that rank alone."""
        if self._moves(tensor):
            self._exchange(where, [], [(rank, tensor)])
        else:
            self._exchange(where, [], [(rank, torch.empty(0))])
            dist.recv(tensor, self._global(rank), group=self.group)

    def begin(self, where: str, sends: _Ends, receives: _Ends) -> Pending:
        """Begins to move contiguous tensors on the CPU; they stay as they are until ``wait``."""
        assert self._transport is not None
        with self.naming(where):
            ends = (
                [(rank, _bytes_of(tensor)) for rank, tensor in one] for one in (sends, receives)
            )
            return Pending(self, where, _core.begin_exchange(self._transport, *ends))

    # ----------------------------------------------------------------------------------------
    # helpers

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _moves(self, tensor: Tensor) -> bool:
        """Returns true if a tensor moves over the transport."""
        return self._transport is not None and tensor.device.type == "cpu"

    def _exchange(self, where: str, sends: _Ends, receives: _Ends) -> None:
        if self._transport is not None:
            self.begin(where, sends, receives).wait()

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def peers_in(group: ProcessGroup | None) -> Peers:
    """Returns the peers of a group. Collective if no transport connects them yet.

    Without ``torch.distributed``, this rank is alone. Raises InvalidArgument if the group is none.
    """
    if group is None and not dist.is_initialized():
        return Peers(0, 1, None)
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise _core.InvalidArgument(f"group: expected a ProcessGroup, found {group!r:.80}")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0 or size == 1 or not _core.gloo_available():
        return Peers(rank, size, group)
    connection = connection_of(group)
    return Peers(rank, size, group, connection.transport, connection.flight_folder)
