"""Token layouts for layers that need tokens in order, and the moves to them and back."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from contextile import _core
from contextile.torch._batch.layout import dim_of
from contextile.torch._execute.agreement import peers_of
from contextile.torch._execute.executor import Executor, Prepared
from contextile.torch._ranks import messages
from contextile.torch._ranks.peers import Peers

L = TypeVar("L", bound="TokenLayout")
Ranges = Sequence[tuple[int, int]]  # of tokens of the batch, half-open


def _check_ranges(value: Any, num_tokens: int) -> Ranges:
    """Returns ranges that a rank sent, which lie in the batch and together have no more tokens."""
    ranges = []
    for pair in messages.items(
        value, lambda pair: messages.items(pair, lambda end: messages.whole(end, 0, num_tokens))
    ):
        if len(pair) != 2 or pair[0] > pair[1]:
            raise _core.InvalidArgument(f"expected ranges of tokens, found {pair!a:.40}")
        ranges.append((pair[0], pair[1]))
    if (total := sum(end - begin for begin, end in ranges)) > num_tokens:
        raise _core.InvalidArgument(
            f"expected ranges of at most {num_tokens} tokens, found {total}"
        )
    return ranges


def _peers_of(executor: Executor) -> Peers:
    """Returns the peers of an executor. Raises InvalidArgument if it has only a transport."""
    if executor.size > 1 and executor.has_transport:
        raise _core.InvalidArgument(
            "executor: expected one of a torch.distributed group, over which layers in order move "
            f"tokens and states; found one made from a transport of {executor.size} ranks"
        )
    return peers_of(executor)


def _homes_on(peers: Peers, plan: _core.Plan) -> list[Ranges]:
    """Returns the ranges of tokens that each rank has in a plan, or in slices of it. Collective."""
    mine = plan.local_ranges(peers.rank)
    return peers.told("token layout", mine, lambda value: _check_ranges(value, plan.num_tokens))


class Part(NamedTuple):
    """The part of a document that a rank has in a layout."""

    document: int
    begin: int  # rows of this rank, half-open
    end: int


class _Order:
    """The rank and the row of every token of the batch in one layout."""

    def __init__(self, ranges: Sequence[Ranges], num_tokens: int) -> None:
        self.tokens = [_tokens(rows) for rows in ranges]
        self.rank = np.full(num_tokens, -1, dtype=np.int64)
        self.row = np.zeros(num_tokens, dtype=np.int64)
        for rank, tokens in enumerate(self.tokens):
            self.rank[tokens] = rank
            self.row[tokens] = np.arange(len(tokens))


def _tokens(ranges: Ranges) -> np.ndarray:
    return np.concatenate([np.arange(0), *(np.arange(begin, end) for begin, end in ranges)])


class _Way(NamedTuple):
    """The rows that a rank sends, and those it takes, on the way from a layout to another."""

    send: Tensor  # rows that leave, by destination
    send_counts: list[int]
    receive_counts: list[int]
    source: Tensor  # each row's place among the rank's own rows, followed by those received


def _way(rank: int, size: int, start: _Order, goal: _Order) -> _Way:
    mine = start.tokens[rank]
    leaves = np.flatnonzero(goal.rank[mine] != rank)
    to = goal.rank[mine[leaves]]
    order = np.lexsort((goal.row[mine[leaves]], to))
    wanted = goal.tokens[rank]
    source = start.row[wanted].copy()
    comes = np.flatnonzero(start.rank[wanted] != rank)
    by_sender = comes[np.argsort(start.rank[wanted[comes]], kind="stable")]
    source[by_sender] = len(mine) + np.arange(len(comes))
    return _Way(
        torch.from_numpy(leaves[order]),
        np.bincount(to, minlength=size).tolist(),
        np.bincount(start.rank[wanted[comes]], minlength=size).tolist(),
        torch.from_numpy(source),
    )


class TokenLayout:
    """Places of tokens while layers compute that need them in order.

    A rank brings its rows of a plan to the layout with ``gather``, and those of a result back with
    ``scatter``. Both are collective and differentiable, and only tokens move whose rank differs.

    Attributes
    ----------
    num_tokens : int
        Number of tokens of this rank in the layout.
    parts : list of Part
        Documents, or parts of documents, of this rank, in the order of its rows.
    moved_tokens : list of int
        Number of tokens that each rank sends on the way to the layout. The way back sends as many.
    sent_bytes : Counter
        Bytes that this rank has sent so far, counted in calls: ``"tokens"`` and ``"states"``.
    """

    def __init__(
        self, homes: Sequence[Ranges], goals: Sequence[Ranges], sequences: Ranges, peers: Peers
    ) -> None:
        total = sum(end - begin for begin, end in sequences)
        home, goal = _Order(homes, total), _Order(goals, total)
        if np.any(home.rank < 0):
            raise _core.InvalidArgument(
                f"plan: expected a rank for each of {total} tokens, found none for "
                f"{int((home.rank < 0).sum())}"
            )
        self.peers = peers
        self.num_home_tokens = len(home.tokens[peers.rank])
        self.num_tokens = len(goal.tokens[peers.rank])
        self.parts = _parts(goals[peers.rank], sequences)
        moves = home.rank != goal.rank
        self.moved_tokens = np.bincount(home.rank[moves], minlength=peers.size).tolist()
        self._returned_tokens = np.bincount(goal.rank[moves], minlength=peers.size).tolist()
        self.sent_bytes: Counter[str] = Counter()
        self._ways = (
            _way(peers.rank, peers.size, home, goal),
            _way(peers.rank, peers.size, goal, home),
        )
        self._on_device: dict[torch.device, tuple[_Way, _Way]] = {}

    def bytes_to_move(self, row_bytes: int) -> list[int]:
        """Returns the bytes that each rank sends to bring rows of ``row_bytes`` to the layout."""
        return [count * row_bytes for count in self.moved_tokens]

    def report(self, row_bytes: int, *, layers: int = 1) -> str:
        """Returns a table of what ranks send per step: forward and backward, there and back.

        Parameters
        ----------
        row_bytes : int
            Bytes per token of a layer's input and of its output, such as 2 * hidden size for bf16.
        layers : int
            Number of layers.
        """
        lines = [f"{'rank':>4}  {'tokens moved':>12}  {'bytes per step':>14}"]
        for rank, (there, back) in enumerate(
            zip(self.moved_tokens, self._returned_tokens, strict=True)
        ):
            lines.append(f"{rank:>4}  {there:>12}  {2 * (there + back) * row_bytes * layers:>14}")
        return "\n".join(lines)

    def gather(self, rows: Tensor, *, dim: int = 0) -> Tensor:
        """Brings this rank's rows of the plan to the layout. Collective; differentiable.

        Parameters
        ----------
        rows : Tensor [..., local tokens, ...]
            In the plan's local order, in dimension ``dim``.
        dim : int
            The dimension of the tokens.

        Returns
        -------
        Tensor [..., tokens of the layout, ...]

        Raises
        ------
        InvalidArgument
            ``dim`` has another number of tokens than this rank owns.
        """
        return self._move(rows, dim, 0, self.num_home_tokens)

    def scatter(self, rows: Tensor, *, dim: int = 0) -> Tensor:
        """Brings rows of the layout back to the ranks that own them. The inverse of ``gather``."""
        return self._move(rows, dim, 1, self.num_tokens)

    def _move(self, rows: Tensor, dim: int, way: int, expected: int) -> Tensor:
        dim = dim_of("layout", rows, dim)
        if rows.shape[dim] != expected:
            raise _core.InvalidArgument(
                f"layout: expected {expected} tokens in dimension {dim}, found {rows.shape[dim]}"
            )
        moved: Tensor = _Move.apply(rows.movedim(dim, 0), self, way)
        return moved.movedim(0, dim)

    def move_rows(self, rows: Tensor, way: int) -> Tensor:
        """Moves rows to the layout (way 0) or back (way 1), without gradients."""
        device = rows.device
        if device not in self._on_device:
            there, back = (
                one._replace(send=one.send.to(device), source=one.source.to(device))
                for one in self._ways
            )
            self._on_device[device] = there, back
        chosen = self._on_device[device][way]
        if any(self.moved_tokens):
            leaving = rows.index_select(0, chosen.send)
            self.sent_bytes["tokens"] += leaving.numel() * leaving.element_size()
            received = self.peers.exchange(
                "token layout", leaving, chosen.send_counts, chosen.receive_counts
            )
            rows = torch.cat([rows, received])
        return rows.index_select(0, chosen.source)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, layout: TokenLayout, way: int) -> Tensor:
        ctx.layout, ctx.way = layout, way
        return layout.move_rows(rows, way)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.layout.move_rows(gradient, 1 - ctx.way), None, None


def _parts(ranges: Ranges, sequences: Ranges) -> list[Part]:
    """Returns the parts of documents that ascending ranges hold, in the order of their rows."""
    parts, row = [], 0
    ends = [end for _, end in sequences]
    for begin, end in ranges:
        while begin < end:
            document = int(np.searchsorted(ends, begin, side="right"))
            stop = min(end, ends[document])
            parts.append(Part(document, row, row + stop - begin))
            row += stop - begin
            begin = stop
    return parts


# ----------------------------------------------------------------------------------------- chunks


class Chunks(TokenLayout):
    """A contiguous chunk of the packed batch on every rank, in the order of ranks.

    Chunks are equal up to a token. If the plan already has one range of tokens on every rank, in
    order, those are the chunks, and nothing moves.

    Attributes
    ----------
    begins : list of int
        The first token of each rank's chunk, and the number of tokens of the batch.
    """

    def __init__(self, homes: Sequence[Ranges], sequences: Ranges, peers: Peers) -> None:
        total = sum(end - begin for begin, end in sequences)
        merged = [_merged(ranges) for ranges in homes]
        flat = [one for ranges in merged for one in ranges]
        if all(len(ranges) <= 1 for ranges in merged) and flat == sorted(flat):
            sizes = [sum(end - begin for begin, end in ranges) for ranges in merged]
            self.begins = [0, *np.cumsum(sizes).tolist()]
        else:
            self.begins = [total * rank // peers.size for rank in range(peers.size + 1)]
        self._sequences = sequences
        self._spreads: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}
        super().__init__(
            homes, [[ends] for ends in itertools.pairwise(self.begins)], sequences, peers
        )

    @classmethod
    def of_plan(cls, plan: _core.Plan, *, rank: int = 0) -> Chunks:
        """Returns the chunks of a whole plan, for reports. It cannot move tokens to other ranks.

        Examples
        --------
        >>> import contextile as ct
        >>> from contextile.torch import Chunks
        >>> plan = ct.plan([60, 40], cluster="local:1x2", strategy="zigzag", block_size=16,
        ...                heads=(4, 2), head_dim=32)
        >>> chunks = Chunks.of_plan(plan)
        >>> print(chunks.report(2 * 1024, layers=3))
        rank  tokens moved  bytes per step
           0            30          737280
           1            30          737280
        """
        check_documents(plan)
        return cls(_homes(plan), plan.sequences, Peers(rank, plan.num_devices, None))

    @functools.cached_property
    def previous(self) -> int | None:
        """The rank with the token before this chunk, if it is of the same document."""
        begin, end = self.begins[self.peers.rank : self.peers.rank + 2]
        if begin == end or begin == self._document_begin(begin):
            return None
        return int(np.searchsorted(self.begins, begin - 1, side="right")) - 1

    @functools.cached_property
    def following(self) -> int | None:
        """The rank with the token after this chunk, if it is of the same document."""
        begin, end = self.begins[self.peers.rank : self.peers.rank + 2]
        if begin == end or end == self.begins[-1] or end == self._document_begin(end):
            return None
        return int(np.searchsorted(self.begins, end, side="right")) - 1

    def _document_begin(self, token: int) -> int:
        document = np.searchsorted([end for _, end in self._sequences], token, side="right")
        return self._sequences[int(document)][0]

    def tail_before(self, rank: int, width: int) -> tuple[int, int]:
        """Returns the range of at most ``width`` tokens before a rank's chunk, of its document."""
        begin, end = self.begins[rank : rank + 2]
        if begin == end:
            return begin, begin
        return max(begin - width, self._document_begin(begin)), begin

    def tails(self, width: int) -> tuple[list[list[tuple[int, int]]], list[int]]:
        """Returns this rank's rows that each rank needs as a tail, and the rows it gets of each."""
        me = self.peers.rank

        def overlap(owner: int, reader: int) -> tuple[int, int]:
            low, high = self.tail_before(reader, width)
            return max(low, self.begins[owner]), min(high, self.begins[owner + 1])

        sends = [overlap(me, reader) for reader in range(self.peers.size)]
        gets = [overlap(owner, me) for owner in range(self.peers.size)]
        rows = [[(b - self.begins[me], e - self.begins[me])] if b < e else [] for b, e in sends]
        return rows, [max(e - b, 0) for b, e in gets]

    def needs_tails(self, width: int) -> bool:
        """True if some rank needs tokens before its chunk."""
        return any(
            low < high for low, high in (self.tail_before(r, width) for r in range(self.peers.size))
        )

    def spread(self, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns indices that put ``width`` zeros before every part but the first, and undo it.

        The first index [tail + chunk + 1] rows, of which the last is 0, the second their result.
        """
        key = (width, device)
        if key not in self._spreads:
            low, high = self.tail_before(self.peers.rank, width)
            tail = high - low
            zero = tail + self.num_tokens
            pieces = [np.arange(tail) if self.parts else np.array([zero])]
            kept, at = [], tail
            for number, part in enumerate(self.parts):
                if number > 0:
                    pieces.append(np.full(width, zero))
                    at += width
                pieces.append(tail + np.arange(part.begin, part.end))
                kept.append(at + np.arange(part.end - part.begin))
                at += part.end - part.begin
            self._spreads[key] = (
                torch.from_numpy(np.concatenate(pieces)).to(device),
                torch.from_numpy(np.concatenate([np.arange(0), *kept])).to(device),
            )
        return self._spreads[key]


def _merged(ranges: Ranges) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in ranges:
        if merged and merged[-1][1] == begin:
            merged[-1] = (merged[-1][0], end)
        elif begin < end:
            merged.append((begin, end))
    return merged


def _homes(plan: _core.Plan) -> list[Ranges]:
    if plan.slice_of is not None:
        raise _core.InvalidArgument(
            f"plan: expected a whole plan, found the slice of rank {plan.slice_of}"
        )
    return [plan.local_ranges(rank) for rank in range(plan.num_devices)]


def check_documents(plan: _core.Plan) -> None:
    """Raises InvalidArgument unless every document of a plan is one row of tokens."""
    rows = plan.position_segments
    odd = [row for row in rows if row[4] < -1]
    if odd:
        raise _core.InvalidArgument(
            "plan: expected documents whose tokens follow one another, for layers that run in "
            f"order, found tokens [{odd[0][0]}, {odd[0][1]}) of a mask without a rule, which does "
            "not tell that (positions= that count from 0 do)"
        )
    begins = [row[0] for row in rows]
    sequences = [begin for begin, end in plan.sequences if begin < end]
    documents = [row[0] for row in rows if row[4] < 0]  # those that follow no token
    if documents != sequences:
        raise _core.InvalidArgument(
            "plan: expected a length for each document, for layers that run in order, found "
            f"{len(documents)} documents in {len(sequences)} lengths, apart by their mask alone "
            "(such as from_cu_seqlens); give plan the lengths of documents"
        )
    if begins != sequences:
        raise _core.InvalidArgument(
            "plan: expected documents without branches, for layers that run in order, found "
            f"{len(begins)} branches in {len(plan.sequences)} documents"
        )


def _kept(prepared: Prepared, name: str, make: Callable[[], L]) -> L:
    if name not in prepared.layouts:
        prepared.layouts[name] = make()
    layout: L = prepared.layouts[name]
    return layout


def chunks_of(executor: Executor, *, plan: _core.Plan | Prepared | None = None) -> Chunks:
    """Returns the chunks of a prepared plan. The first call for a plan is collective.

    Parameters
    ----------
    executor : Executor
        Prepared for the plan of the batch, over a ``torch.distributed`` group.
    plan : Plan or Prepared, optional
        A plan that the executor keeps. Default: the one that was prepared last.

    Returns
    -------
    Chunks

    Raises
    ------
    InvalidArgument
        The executor has no such plan, its documents have branches, or only a transport connects the
        ranks.

    Examples
    --------
    >>> import contextile as ct
    >>> import torch
    >>> from contextile.torch import Executor, chunks_of
    >>> executor = Executor(ct.inproc_group(1)[0])          # Executor() under torchrun
    >>> prepared = executor.prepare(ct.plan([60, 40], cluster="local:1x1", strategy="zigzag",
    ...                                     heads=(4, 2), head_dim=32))
    >>> chunks = chunks_of(executor)
    >>> x = chunks.gather(torch.randn(100, 64))             # this rank's chunk, in order
    >>> chunks.scatter(x.cumsum(0)).shape
    torch.Size([100, 64])
    """
    prepared = executor.prepared_of(plan)

    def make() -> Chunks:
        check_documents(prepared.plan)
        peers = _peers_of(executor)
        homes = _homes_on(peers, prepared.plan)
        return Chunks(homes, prepared.plan.sequences, peers)

    return _kept(prepared, "chunks", make)


# -------------------------------------------------------------------------------- whole documents


class WholeDocuments(TokenLayout):
    """Whole documents on ranks, dealt so that ranks have about as many tokens."""

    def __init__(self, homes: Sequence[Ranges], sequences: Ranges, peers: Peers) -> None:
        total = sum(end - begin for begin, end in sequences)
        held = _Order(homes, total).rank
        goals: list[list[tuple[int, int]]] = [[] for _ in range(peers.size)]
        loads = [0] * peers.size
        for begin, end in sorted(sequences, key=lambda one: (one[0] - one[1], one[0])):
            own = np.bincount(held[begin:end], minlength=peers.size)
            rank = min(range(peers.size), key=lambda r: (loads[r], -own[r], r))
            goals[rank].append((begin, end))
            loads[rank] += end - begin
        super().__init__(homes, [sorted(one) for one in goals], sequences, peers)


def documents_of(
    executor: Executor, *, plan: _core.Plan | Prepared | None = None
) -> WholeDocuments:
    """Returns the layout of whole documents of a prepared plan, like ``chunks_of``."""
    prepared = executor.prepared_of(plan)

    def make() -> WholeDocuments:
        check_documents(prepared.plan)
        peers = _peers_of(executor)
        homes = _homes_on(peers, prepared.plan)
        return WholeDocuments(homes, prepared.plan.sequences, peers)

    return _kept(prepared, "documents", make)
