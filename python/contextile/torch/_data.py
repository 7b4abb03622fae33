"""A data loader that packs documents into batches, plans ahead, and shares batches out."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from contextile import _core
from contextile._planning import AnyMask, _choice_of, _options_of, cluster_of, make_workload
from contextile.torch._layout import LocalBatch, local_batch, whole_numbers


class Documents(Protocol):
    """A dataset: ``dataset[i]`` has the tokens of document i.

    An attribute ``lengths``, with the tokens of every document, is optional; without it every
    document is read once.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class Piece(NamedTuple):
    """A document of the dataset, or a part of it, in a batch."""

    document: int  # index in the dataset
    begin: int  # first token, in the document
    end: int  # behind the last token


class Step(NamedTuple):
    """A rank's share of a training step."""

    local: LocalBatch
    plan: _core.Plan  # this rank's slice of the batch's plan
    step: int
    pieces: list[Piece]  # the documents of the batch, in order


def _lengths_of(dataset: Any, ignore_fields: frozenset[str]) -> list[int]:
    lengths = getattr(dataset, "lengths", None)
    if lengths is None:
        return [len(_document(dataset, i, ignore_fields)["tokens"]) for i in range(len(dataset))]
    if len(lengths) != len(dataset):
        raise _core.InvalidArgument(f"dataset: expected a length for each of {len(dataset)} documents, found {len(lengths)}")
    return [int(length) for length in lengths]


_FIELDS = ("tokens", "labels", "loss_mask")


def _document(dataset: Any, index: int, ignore_fields: frozenset[str] = frozenset()) -> dict[str, Tensor]:
    """Returns the fields of a document. Refuses those that would not be read."""
    item = dataset[index]
    if not isinstance(item, dict):
        item = {"tokens": item}
    if "tokens" not in item:
        raise _core.InvalidArgument(f"dataset: expected 'tokens' of document {index}, found {', '.join(map(str, item))}")
    unknown = [str(name) for name in item if name not in _FIELDS and name not in ignore_fields]
    if unknown:
        raise _core.InvalidArgument(
            f"dataset: expected {', '.join(_FIELDS)} of document {index}, found {', '.join(unknown)}, too; "
            "ignore_fields= names fields to leave out"
        )
    found = {"tokens": whole_numbers(f"dataset: document {index}", item["tokens"])}
    for name in ("labels", "loss_mask"):
        if item.get(name) is not None:
            field = torch.as_tensor(item[name])
            if field.shape != found["tokens"].shape:
                raise _core.InvalidArgument(
                    f"dataset: expected {list(found['tokens'].shape)} {name} of document {index}, as tokens, "
                    f"found {list(field.shape)}"
                )
            found[name] = field
    return found


class _Batches:
    """Makes the workload of every step, for planners.

    It has no reference to the loader, which would otherwise never be freed.
    """

    def __init__(self, sampler: _core.BatchSampler, mask: Any, num_ranks: int, batch: dict[str, Any]) -> None:
        self._sampler, self._mask, self._num_ranks, self._batch = sampler, mask, num_ranks, batch

    def pieces(self, step: int) -> list[Piece]:
        return [Piece(*piece) for piece in self._sampler.pieces(step)]

    def __call__(self, step: int) -> _core.Workload:
        pieces = self.pieces(step)
        mask = self._mask(pieces) if callable(self._mask) else self._mask
        lengths = [piece.end - piece.begin for piece in pieces]
        return make_workload(lengths, mask=mask, num_ranks=self._num_ranks, **self._batch)


class DataLoader:
    """Packs documents into batches, plans them ahead, and gives every rank its share.

    Iterating yields ``Step``s: this rank's tokens, positions, labels and loss weights, and its
    slice of the plan. Requesting the next step releases the current one. The batch of a step
    depends only on the dataset, the seed and the step, so all ranks see the same batches in the
    same order. A run can continue from any step (``state_dict``).

    Parameters
    ----------
    dataset
        ``dataset[i]`` has the tokens of a document, or a dict with ``"tokens"`` and, if wanted,
        ``"labels"`` and ``"loss_mask"`` as for ``local_batch``. ``dataset.lengths`` is optional and
        saves reading all documents once.
    cluster, strategy
        As for ``contextile.plan``. Strategies with a time budget are refused, because plans must not
        depend on the machine.
    rank : int
        This rank in the context-parallel group. The group has as many ranks as the cluster devices.
    mask
        As for ``contextile.plan``, or a function from the pieces of a batch (``list[Piece]``) to such
        a mask. The function is called where plans are made.
    tokens : int
        Tokens per batch.
    max_document_tokens : int, optional
        Limit on the tokens of one document in a batch. Default: ``tokens``.
    long_documents : str
        ``"split"`` cuts longer documents into pieces, so that every batch is full. ``"drop"`` leaves
        them out, so that no document is cut.
    seed : int
        Seed of the order of documents, which differs between epochs.
    lookahead : int
        Number of steps that are planned ahead of the slowest rank.
    threads : int
        Number of planning threads of this process, each with a step of its own. 0: other processes
        plan (``serve``).
    store : Store or str, optional
        The store in which processes share plans, or its address (``contextile.open_store``). Default:
        this process plans only for itself.
    run_id : str
        1 to 24 letters, digits, - and _ that distinguish runs in one store.
    first_step : int
        The first step.
    end_step : int, optional
        The step after the last. Default: no end.
    timeout : float
        Seconds to wait for the plan of a step.
    ignore_index : int
        Label of tokens that predict nothing.
    ignore_fields : iterable of str
        Names of further fields that documents have. They are left out; other fields are refused.
    **batch
        ``heads``, ``head_dim``, ``dtype`` and the rest as for ``contextile.make_workload``; also
        ``block_size``, ``wire`` and ``backward``.

    Raises
    ------
    InvalidArgument
        Options are bad, or lengths or masks fit no batch.
    PlanningFailed
        While iterating, if a step could not be planned. Iterating again continues after it.
    TransportError
        While iterating, if a plan did not arrive within the timeout.
    IoError
        The store is gone.

    Examples
    --------
    >>> from contextile.torch import DataLoader
    >>> class Text:
    ...     lengths = [30, 50, 20]
    ...     def __len__(self): return 3
    ...     def __getitem__(self, index): return [index] * self.lengths[index]
    >>> loader = DataLoader(Text(), cluster="local:1x1", rank=0, strategy="zigzag", tokens=100,
    ...                     end_step=2, heads=(4, 2), head_dim=32)
    >>> for step in loader:
    ...     print(step.step, len(step.local.tokens), "tokens")
    0 100 tokens
    1 100 tokens
    >>> loader.state_dict()["step"]
    2
    """

    def __init__(
        self,
        dataset: Documents,
        *,
        cluster: _core.Cluster | str,
        rank: int,
        mask: AnyMask | Callable[[list[Piece]], AnyMask] = "causal",
        strategy: _core.StrategyChoice | str = "auto:steps=4000000",
        tokens: int = 131072,
        max_document_tokens: int | None = None,
        long_documents: str = "split",
        seed: int = 0,
        lookahead: int = 4,
        threads: int = 1,
        store: _core.Store | str | None = None,
        run_id: str = "run",
        first_step: int = 0,
        end_step: int | None = None,
        timeout: float = 600.0,
        ignore_index: int = -100,
        ignore_fields: Iterable[str] = (),
        **batch: Any,
    ) -> None:
        if store is None and threads < 1:
            raise _core.InvalidArgument("data loader: expected a store where no thread plans (threads=0), found none")
        self._dataset = dataset
        self._ignore_fields = frozenset(ignore_fields)
        self._lengths = _lengths_of(dataset, self._ignore_fields)
        sampler = _core.BatchSampler(
            self._lengths,
            tokens=tokens,
            max_document_tokens=max_document_tokens,
            long_documents=long_documents,
            seed=seed,
        )
        the_cluster = cluster_of(cluster)
        if not 0 <= rank < the_cluster.num_devices:
            raise _core.InvalidArgument(f"rank: expected 0 to {the_cluster.num_devices - 1}, found {rank}")
        if max_document_tokens is not None and max_document_tokens < 1:
            raise _core.InvalidArgument(f"max_document_tokens: expected at least 1, found {max_document_tokens}")
        options = {key: batch.pop(key) for key in ("block_size", "wire", "backward") if key in batch}
        self._batches = _Batches(sampler, mask, the_cluster.num_devices, batch)
        self._num_ranks = the_cluster.num_devices
        self._rank = rank
        self._lookahead = lookahead
        self._threads = threads
        self._is_private = store is None
        self._store = _core.open_store(store) if isinstance(store, str) else store or _core.open_store("memory:")
        self._run_id = uuid.uuid4().hex[:24] if self._is_private else run_id
        self._end_step = end_step
        self._timeout = timeout
        self._ignore_index = ignore_index
        self._has_targets: bool | None = None  # unknown until a document was read
        self._next_step = first_step
        self._job = _core.PlanJob(
            sampler=sampler,
            shape=self._batches(first_step).shape,
            cluster=the_cluster,
            choice=_choice_of(strategy),
            options=_options_of(options),
            workload=self._batches,
        )
        self._planner: Any = None
        self._feeds: list[Any] = []
        # Process and thread of the iteration that runs, if one does.
        self._iterated_by: tuple[int, int] | None = None
        what = repr((self._lengths, tokens, max_document_tokens, long_documents, seed))
        self._batches_digest = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()

    def pieces(self, step: int) -> list[Piece]:
        """Returns the documents, or parts of them, that make up the batch of a step, in order."""
        return self._batches.pieces(step)

    # ---------------------------------------------------------------------------------------- planning

    def _planner_from(self, step: int, threads: int) -> Any:
        return _core.LookaheadPlanner(
            self._job,
            self._store,
            run_id=self._run_id,
            first_step=step,
            end_step=self._end_step,
            steps_ahead=self._lookahead,
            threads=threads,
        )

    def serve(self, *, threads: int | None = None, timeout: float = 1e6) -> bool:
        """Plans for ranks in other processes until all of them have finished the last step.

        For processes that take no steps themselves, on any machine that reaches the store. Such a
        process may be killed and started again.

        Parameters
        ----------
        threads : int, optional
            Number of planning threads. Default: that of the loader, at least 1.
        timeout : float
            Seconds after which to return in any case.

        Returns
        -------
        bool
            True if all ranks have finished, False after the timeout.

        Raises
        ------
        InvalidArgument
            The loader has no store.
        """
        if self._is_private:
            raise _core.InvalidArgument("data loader: expected a store to serve from, found none")
        planner = self._planner_from(self._next_step, threads or max(self._threads, 1))
        try:
            return planner.wait_for(timeout=timeout)
        finally:
            planner.close()

    def _open(self) -> None:
        step = self._next_step
        # A private store has no other ranks, so this rank acknowledges their share, too.
        ranks = range(self._num_ranks) if self._is_private else [self._rank]
        self._feeds = [
            _core.PlanFeed(
                self._store, self._job, rank=rank, run_id=self._run_id, first_step=step, timeout=self._timeout
            )
            for rank in sorted(ranks, key=lambda rank: rank != self._rank)
        ]
        if self._threads > 0:
            self._planner = self._planner_from(step, self._threads)

    def close(self) -> None:
        """Stops planning in this process. Iterating again continues at the next step."""
        if self._planner is not None:
            self._planner.close()
        self._planner, self._feeds, self._iterated_by = None, [], None

    # --------------------------------------------------------------------------------------- iterating

    def __iter__(self) -> Iterator[Step]:
        here = (os.getpid(), threading.get_ident())
        if self._iterated_by not in (None, here):
            raise _core.InvalidArgument(
                "data loader: expected one iteration at a time, found another under way in "
                + ("another thread" if self._iterated_by[0] == here[0] else "the process that this one was forked from")
            )
        self.close()
        self._iterated_by = here
        self._open()
        feeds = self._feeds
        try:
            while self._end_step is None or self._next_step < self._end_step:
                step = self._next_step
                try:
                    plan = feeds[0].take(step)
                except _core.PlanningFailed:
                    self._next_step = step + 1  # it would fail again
                    raise
                pieces = self.pieces(step)  # costs a shuffle of all documents
                local = self._local(pieces, plan)
                self._next_step = step + 1
                yield Step(local, plan, step, pieces)
                if self._feeds is not feeds:
                    raise _core.InvalidArgument("data loader: expected to go on, found it closed or iterated anew")
                for feed in feeds:
                    feed.acknowledge(step)
        finally:
            if self._feeds is feeds:
                self.close()

    def _local(self, pieces: list[Piece], plan: _core.Plan) -> LocalBatch:
        """Returns this rank's share.

        Reads only documents that the rank holds tokens of, unless documents have labels or a loss
        mask: the weight of a label depends on the number of labels in the whole batch.
        """
        ranges = np.array(plan.local_ranges(self._rank), dtype=np.int64).reshape(-1, 2)
        tokens = torch.zeros(plan.num_tokens, dtype=torch.int64)
        labels = torch.zeros(plan.num_tokens, dtype=torch.int64)
        wanted = torch.ones(plan.num_tokens, dtype=torch.bool)
        has_targets = self._documents_have_targets(pieces)
        for piece, (begin, end) in zip(pieces, plan.sequences):
            is_local = ((ranges[:, 0] < end) & (begin < ranges[:, 1])).any()
            if not is_local and not has_targets:
                continue
            document = _document(self._dataset, piece.document, self._ignore_fields)
            if document["tokens"].shape != (self._lengths[piece.document],):
                raise _core.InvalidArgument(
                    f"dataset: expected [{self._lengths[piece.document]}] tokens in document {piece.document}, "
                    f"found {list(document['tokens'].shape)}"
                )
            if not has_targets and len(document) > 1:
                raise _core.InvalidArgument(
                    f"dataset: expected labels or a loss_mask in every document or in none, found some in document "
                    f"{piece.document} and none in document {pieces[0].document}"
                )
            part = slice(piece.begin, piece.end)
            tokens[begin:end] = document["tokens"][part]
            labels[begin:end] = whole_numbers("labels", document.get("labels", document["tokens"])[part])
            if "loss_mask" in document:
                wanted[begin:end] = document["loss_mask"][part].to(torch.bool)
        return local_batch(
            tokens,
            plan=plan,
            rank=self._rank,
            labels=labels if has_targets else None,
            loss_mask=wanted if has_targets else None,
            ignore_index=self._ignore_index,
        )

    def _documents_have_targets(self, pieces: list[Piece]) -> bool:
        """Returns true if documents have labels or a loss mask, as the batch's first one shows."""
        if self._has_targets is None:
            fields = _document(self._dataset, pieces[0].document, self._ignore_fields)
            self._has_targets = "labels" in fields or "loss_mask" in fields
        return self._has_targets

    # ------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Returns where the run is: the next step and a digest of the batches.

        It is the same on every rank.

        Returns
        -------
        dict
            ``"step"`` and ``"batches"``.
        """
        return {"step": self._next_step, "batches": self._batches_digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state that ``state_dict`` returned.

        Parameters
        ----------
        state : dict
            The state.

        Raises
        ------
        InvalidArgument
            The state has another form, or belongs to another dataset, seed or batch size.
        """
        step = state.get("step") if isinstance(state, dict) else None
        if not isinstance(step, int) or step < 0:
            raise _core.InvalidArgument(f"state: expected a dict with a step of at least 0, found {state!r:.80}")
        digest = state.get("batches", self._batches_digest)
        if digest != self._batches_digest:
            raise _core.InvalidArgument(
                f"state: expected one of the same documents, seed and tokens ({self._batches_digest}), found {digest}"
            )
        self.close()
        self._next_step = step

    @property
    def statistics(self) -> _core.FeedStatistics:
        """Steps taken, seconds of their planning, and seconds that this rank waited for plans.

        Raises InvalidArgument unless the loader is being iterated.
        """
        if not self._feeds:
            raise _core.InvalidArgument("data loader: expected one that is being iterated, found it closed")
        return self._feeds[0].statistics()

