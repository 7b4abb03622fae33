"""Rows of other tokens of the same documents, such as the labels of multi-token prediction."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._batch.layout import dim_of, mark, with_filler
from contextile.torch._batch.untyped import not_compiled
from contextile.torch._tokens.gather import _meet, _Meeting, _tokens_of_ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def _wire(rows: Tensor) -> Tensor:
    return rows.view(torch.uint8) if rows.dtype is torch.bool else rows


class _Routes:
    """The rows that every rank sends to every other one, for one shift, and their way back."""

    def __init__(self, meeting: _Meeting, shifts: int, device: torch.device) -> None:
        tokens = [of_rank.cpu() for of_rank in _tokens_of_ranks(meeting, device)]
        num_tokens, rank = meeting.plan.num_tokens, meeting.rank
        owner = torch.zeros(num_tokens, dtype=torch.int64)
        row = torch.zeros(num_tokens, dtype=torch.int64)
        begin, end = (torch.zeros(num_tokens, dtype=torch.int64) for _ in range(2))
        for one, mine in enumerate(tokens):
            owner[mine], row[mine] = one, torch.arange(len(mine))
        for first, last in _documents(meeting.plan):
            begin[first:last], end[first:last] = first, last
        self._meeting = meeting

        def routed(receiver: int, sender: int) -> tuple[Tensor, Tensor]:
            """Returns rows of the receiver, in its order, and the sender's rows that go there."""
            receives = tokens[receiver]
            source = receives - shifts
            inside = (source >= begin[receives]) & (source < end[receives])
            source = torch.where(inside, source, receives)
            (at,) = torch.nonzero(inside & (owner[source] == sender), as_tuple=True)
            return at, row[source[at]]

        sent = [routed(other, rank)[1] for other in range(len(tokens))]
        received = [routed(rank, other)[0] for other in range(len(tokens))]
        self.sent_counts = [len(rows) for rows in sent]
        self.received_counts = [len(rows) for rows in received]
        self.sent = torch.cat(sent).to(device)
        self.received = torch.cat(received).to(device)

    def moved(self, rows: Tensor, fill: Any) -> Tensor:
        """Returns the rows that belong at this rank's tokens, ``fill`` where there is none."""
        return self._moved(
            "", rows, fill, self.sent, self.sent_counts, self.received, self.received_counts
        )

    def moved_back(self, rows: Tensor) -> Tensor:
        """Returns every row to the token that it came from, 0 where none came from."""
        return self._moved(
            ", backward", rows, 0, self.received, self.received_counts, self.sent, self.sent_counts
        )

    def _moved(
        self,
        way: str,
        rows: Tensor,
        fill: Any,
        sent: Tensor,
        sent_counts: list[int],
        received: Tensor,
        received_counts: list[int],
    ) -> Tensor:
        leaving = _wire(rows.index_select(0, sent))
        arrived = self._meeting.peers.exchange(
            f"{self._meeting.call}{way}", leaving, sent_counts, received_counts
        )
        result = torch.full_like(rows, fill, memory_format=torch.contiguous_format)
        result[received] = arrived.view(rows.dtype)
        return result


def _documents(plan: _core.Plan) -> list[tuple[int, int]]:
    """Returns the tokens of every document, also of those that masks alone keep apart."""
    for begin, end, _, _, follows in plan.position_segments:
        if follows != -1:
            what = (
                "a branch"
                if follows >= 0
                else "tokens of a mask without a rule, which does not tell what follows them,"
            )
            raise _core.InvalidArgument(
                f"roll: expected documents in which one token follows another, found {what} at "
                f"[{begin}, {end}); local_batch has "
                + ("targets" if follows >= 0 else "shift_labels=")
            )
    return [(begin, end) for begin, end, *_ in plan.position_segments]


class _Roll(torch.autograd.Function):
    """Rows of other tokens. A row goes to one token at most, and so does its gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, routes: _Routes, fill: Any) -> Tensor:
        ctx.routes = routes
        return routes.moved(rows, fill)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.routes.moved_back(gradient), None, None


@not_compiled
def roll(
    tensor: Tensor,
    shifts: int,
    *,
    plan: _core.Plan,
    group: ProcessGroup | None = None,
    dim: int = 0,
    fill: float = 0,
) -> Tensor:
    """Moves rows by ``shifts`` tokens inside every document. Collective; differentiable.

    A token gets the row of the token ``shifts`` before it in its document, whichever rank owns
    that one: with -1 the next token's, as ``torch.roll`` has it. Nothing wraps around, and
    documents do not mix. Multi-token prediction needs tokens and labels that way.

    Moves the rows that change their rank, to their new rank only. Backward sends their gradients
    back.

    Parameters
    ----------
    tensor : Tensor [..., local tokens, ...]
        This rank's rows in local order; the tokens are in dimension ``dim``. Any dtype.
    shifts : int
        The same on every rank.
    plan, group, dim
        As for ``collect``.
    fill : number
        The value of rows whose token would lie outside the document. The same on every rank.

    Returns
    -------
    Tensor [..., local tokens, ...]

    Raises
    ------
    InvalidArgument
        As for ``collect``; also if ranks differ in ``shifts`` or ``fill``, or documents have
        branches, or a mask without a rule that does not tell which token follows which.

    Examples
    --------
    Needs ``torch.distributed``. Labels of the token after the next one::

        second = roll(local.labels, -1, plan=plan, fill=-100)
    """
    try:
        shifts = operator.index(shifts)
    except TypeError:
        raise _core.InvalidArgument(f"shifts: expected an integer, found {shifts!r:.80}") from None
    dim = dim_of("roll", tensor, dim)
    meeting, rows = _meet(f"roll by {shifts} with {fill!r:.80}", tensor, dim, plan, group, "share")
    routes = _Routes(meeting, max(-plan.num_tokens, min(shifts, plan.num_tokens)), rows.device)
    rolled: Tensor = _Roll.apply(rows, routes, fill)
    if rows.shape[0] < tensor.shape[dim]:  # the filler of a rank without tokens
        rolled = with_filler(rolled)
    if rolled.dtype is torch.int64:
        mark(rolled, plan.digest)
    return rolled.movedim(0, dim)
