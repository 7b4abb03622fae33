"""Deals the documents of every training step to replicas and their micro-batches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from contextile import _core
from contextile.torch._loader.documents import Piece

Rows = Sequence[tuple[int, int, int]]  # (document, begin, end) of pieces
Dealt = list[list[list[Piece]]]  # by micro-batch and replica


class Waiting(NamedTuple):
    """Pieces that WLB-LLM's packing holds back from one step to the next."""

    queues: Sequence[Rows]
    remained: Rows

    def as_lists(self) -> dict[str, Any]:
        return {
            "queues": [[list(row) for row in queue] for queue in self.queues],
            "remained": [list(row) for row in self.remained],
        }

    @property
    def num_pieces(self) -> int:
        return sum(map(len, self.queues)) + len(self.remained)


NONE_WAITING = Waiting([], [])


def waiting_of(state: Any) -> Waiting:
    """Returns what ``Waiting.as_lists`` made lists of. Raises InvalidArgument for other forms."""
    try:
        queues, remained = state["queues"], state["remained"]
        rows = [[Piece(*map(int, row)) for row in queue] for queue in [*queues, remained]]
        if state.keys() - {"queues", "remained"}:
            raise KeyError
    except (AttributeError, TypeError, KeyError, ValueError):
        raise _core.InvalidArgument(
            f"state: expected waiting documents, found {state!r:.80}"
        ) from None
    return Waiting(list(rows[:-1]), rows[-1])


class _Packing:
    """Packs the pieces of a step into its micro-batches, of all replicas."""

    def __init__(self, text: str, *, tokens: int, count: int) -> None:
        name, _, rest = text.partition(":")
        self.count = count
        self.may_defer = False
        self.wlb, _ = _core.parse_wlb_packing("wlb")
        self.wlb.micro_batches = count
        keys = dict(item.partition("=")[::2] for item in rest.split(",") if item)
        if name == "wlb":
            if "micro_batches" in keys:
                raise _core.InvalidArgument(
                    "packing wlb: expected no micro_batches, which data_parallel and "
                    f"micro_batches give, found {text!r:.80}"
                )
            try:
                self.wlb, self.may_defer = _core.parse_wlb_packing(text)
            except _core.InvalidArgument as error:
                raise _core.InvalidArgument(
                    str(error).replace("one of micro_batches, ", "one of ")
                ) from None
            self.wlb.micro_batches = count
            self.max_tokens = self.wlb.max_tokens = self.wlb.max_tokens or 2 * tokens
        elif name == "dp_balanced":
            for key, value in keys.items():
                if key not in ("max_tokens", "balance") or not value.isdecimal() or int(value) < 1:
                    raise _core.InvalidArgument(
                        "packing dp_balanced: expected max_tokens=N or balance=N, found "
                        f"{key}={value}"
                    )
            self.max_tokens = int(keys.get("max_tokens", tokens))
            self.wlb.balance_tokens = int(keys.get("balance", self.wlb.balance_tokens))
        elif text == "sequential":
            self.max_tokens = tokens
        else:
            raise _core.InvalidArgument(
                "packing: expected sequential, dp_balanced[:key=value,...] or "
                f"wlb[:key=value,...], found {text!r:.80}"
            )
        if self.max_tokens < tokens:
            raise _core.InvalidArgument(
                f"packing: expected max_tokens of at least the {tokens} tokens of a batch, found "
                f"{self.max_tokens}"
            )
        self.name = name

    def pack(self, batches: Sequence[Rows], waiting: Waiting) -> tuple[Sequence[Rows], Waiting]:
        """Returns ``count`` bins of pieces, none empty, and the pieces that wait."""
        if self.name == "sequential":
            return batches, waiting
        arriving = [row for batch in batches for row in batch]
        if self.name == "dp_balanced":
            return _core.pack_dp_balanced(
                arriving, max_tokens=self.max_tokens, multiple=self.count
            ), waiting
        if not self.may_defer:
            return _core.pack_wlb_without_defer(arriving, self.wlb), waiting
        for release_all in (False, True):
            # If a bin is empty, the step releases all that wait: each batch has a document, so that
            # then every bin gets one.
            bins, queues, remained = _core.pack_wlb(
                waiting.queues, waiting.remained, arriving, self.wlb, release_all=release_all
            )
            if all(bins):
                break
        return bins, Waiting(queues, remained)

    def work(self, rows: Rows) -> float:
        return sum(
            _core.packing_workload(end - begin, self.wlb.balance_tokens) for _, begin, end in rows
        )


def deal_by_work(work: list[float], replicas: int) -> list[list[int]]:
    """Returns the number of the bin of every micro-batch and replica.

    Micro-batch i has the bins whose work is next, largest first. The largest of them goes to the
    replica that has the least work so far. Ties go to the first bin and the first replica.
    """
    order = sorted(range(len(work)), key=lambda i: (-work[i], i))
    totals = [0.0] * replicas
    dealt = []
    for first in range(0, len(order), replicas):
        takers = sorted(range(replicas), key=lambda r: (totals[r], r))
        row = [0] * replicas
        for taker, i in zip(takers, order[first : first + replicas], strict=True):
            row[taker] = i
            totals[taker] += work[i]
        dealt.append(row)
    return dealt


class Dealer:
    """Deals the pieces of every step. Any thread may request any step.

    A step has ``replicas * micro_batches`` batches of the sampler, which are packed again and dealt
    to the replicas.
    """

    def __init__(
        self,
        sampler: _core.BatchSampler,
        *,
        tokens: int,
        replicas: int,
        micro_batches: int,
        packing: str,
        kept_steps: int,
    ) -> None:
        self._sampler = sampler
        self._replicas, self._count = replicas, replicas * micro_batches
        self._packing = _Packing(packing, tokens=tokens, count=self._count)
        self._kept_steps = kept_steps
        self._lock = threading.Lock()
        self._dealt: OrderedDict[int, Dealt] = OrderedDict()
        self._waiting: OrderedDict[int, Waiting] = OrderedDict()  # before a step
        self._begin = (0, NONE_WAITING)

    def begin(self, step: int, waiting: Waiting) -> None:
        """Continues at a step before which these pieces wait."""
        if waiting.num_pieces and not self._packing.may_defer:
            raise _core.InvalidArgument(
                f"state: expected the packing it was saved with, wlb, found {self._packing.name}, "
                f"which would skip {waiting.num_pieces} waiting pieces"
            )
        with self._lock:
            self._begin = (step, waiting)
            self._dealt.clear()
            self._waiting.clear()

    def dealt(self, step: int) -> Dealt:
        """Returns the pieces of a step, by micro-batch and replica."""
        with self._lock:
            if step not in self._dealt:
                self._deal(step, self._waiting_before(step))
            self._dealt.move_to_end(step)
            return self._dealt[step]

    def waiting(self, step: int) -> Waiting:
        """Returns the pieces that wait before a step."""
        with self._lock:
            return self._waiting_before(step)

    @property
    def may_defer(self) -> bool:
        return self._packing.may_defer

    def work(self, pieces: list[Piece]) -> float:
        """Returns the work of a micro-batch, as packing counts it."""
        return self._packing.work(pieces)

    def _waiting_before(self, step: int) -> Waiting:
        if not self._packing.may_defer:
            return NONE_WAITING
        known = {0: NONE_WAITING, self._begin[0]: self._begin[1], **self._waiting}
        at = max(other for other in known if other <= step)
        waiting = known[at]
        for each in range(at, step):
            waiting = self._deal(each, waiting)
        return waiting

    def _deal(self, step: int, waiting: Waiting) -> Waiting:
        bins, waiting = self._packing.pack(
            self._sampler.pieces_of(step * self._count, self._count), waiting
        )
        if self._packing.name == "sequential":
            order = [
                list(range(i, i + self._replicas)) for i in range(0, self._count, self._replicas)
            ]
        else:
            order = deal_by_work([self._packing.work(rows) for rows in bins], self._replicas)
        self._dealt[step] = [
            [[Piece(*row) for row in bins[i]] for i in row_of_bins] for row_of_bins in order
        ]
        self._waiting[step + 1] = waiting
        for kept in (self._dealt, self._waiting):
            while len(kept) > self._kept_steps:
                kept.popitem(last=False)
        return waiting
