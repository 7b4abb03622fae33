"""Plans batches and compares strategies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from contextile import _checks, _core
from contextile._core import (
    Arrangement,
    AttentionShape,
    ChangedStanding,
    Cluster,
    Comparison,
    Mask,
    MaskSpec,
    Plan,
    PlanOptions,
    Schedule,
    StrategyChoice,
    TimeBound,
    Workload,
)
from contextile._heads import HeadMasks
from contextile._linear_layers import LinearLayers, linear_us_of

# A rule, its text, one rule per document, bands of the batch, or a function that makes them of the
# lengths.
OneMask = MaskSpec | str | Sequence[MaskSpec | str] | Mask | Callable[[list[int]], Mask]
# The same, or several by name; (mask, layers) gives the number of layers.
AnyMask = OneMask | Mapping[str, OneMask | tuple[OneMask, int]]
# Positions of all tokens, arrays included, or a function that makes them of the lengths.
Positions = Sequence[int] | Callable[[list[int]], Any]
AnyStrategy = StrategyChoice | str | Callable[[Workload, Cluster, PlanOptions], Arrangement]
Progress = bool | Callable[[str, int, int], None]


def rule_of(mask: MaskSpec | str) -> MaskSpec:
    return _core.parse_mask_spec(mask) if isinstance(mask, str) else mask


def _entry_of(name: str | None, mask: Any, lengths: list[int]) -> tuple[str, int, Any]:
    layers = 1
    if isinstance(mask, tuple) and len(mask) == 2 and isinstance(mask[1], int):
        mask, layers = mask
    if isinstance(mask, HeadMasks):
        raise _core.InvalidArgument(
            f"mask{f' {name!r}' if name else ''}: expected one for all heads, found one for each "
            f"of {len(mask.masks)} heads; contextile.plans plans groups of heads"
        )
    if callable(mask):
        mask = mask(lengths)
    if isinstance(mask, (str, MaskSpec)):
        rule = rule_of(mask)
        return (name or rule.text.split(":")[0], layers, rule)
    if isinstance(mask, Mask):
        return (name or "mask", layers, mask)
    if isinstance(mask, Sequence) and all(isinstance(rule, (str, MaskSpec)) for rule in mask):
        return (name or "mask", layers, [rule_of(rule) for rule in mask])
    raise _core.InvalidArgument(
        "mask: expected a rule, its text, a rule for each document, a Mask, a function of "
        f"lengths, or a dict of these by name, found {type(mask).__name__}"
    )


def lengths_of(lengths: Any) -> list[int]:
    """Returns lengths from any iterable of whole numbers."""
    try:
        if isinstance(lengths, (str, bytes)):
            raise TypeError
        return [_checks.whole("lengths", length) for length in lengths]
    except TypeError:
        raise _core.InvalidArgument(
            f"lengths: expected a list of whole numbers, found {lengths!r:.80}"
        ) from None


def positions_of(positions: Positions, lengths: list[int]) -> list[int]:
    """Returns the positions of all tokens, from whole numbers or a function of the lengths."""
    import numpy as np  # not needed to build the package

    given = positions(lengths) if callable(positions) else positions
    try:
        numbers = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _core.InvalidArgument(
            f"positions: expected whole numbers, one for each token, found {given!r:.80}"
        ) from error
    if numbers.ndim != 1 or (numbers.size > 0 and numbers.dtype.kind not in "iu"):
        raise _core.InvalidArgument(
            f"positions: expected whole numbers, one for each token, found {list(numbers.shape)} "
            f"of {numbers.dtype}"
        )
    if numbers.size > 0 and int(numbers.max()) >= 2**63:
        raise _core.InvalidArgument(
            f"positions: expected whole numbers below 2**63, found {int(numbers.max())}"
        )
    found: list[int] = numbers.tolist()
    return found


def _whole_or_none(name: str, value: int | None, least: int | None = None) -> int | None:
    return None if value is None else _checks.whole(name, value, least)


class _Options(NamedTuple):
    """Options of a plan as they are given. The strategy decides those that are None."""

    block_size: int | None = None
    wire: str | None = None
    backward: bool = True
    seed: int = 0
    token_limit: int | None = None
    memory_limit_bytes: int | None = None
    force: bool = False
    linear_layers: LinearLayers | None = None
    tokens_multiple: int = 1
    equal_tokens: bool = False

    def checked(self, shape: AttentionShape, cluster: Cluster, progress: Any = None) -> PlanOptions:
        """Returns options of plans for a shape and a cluster.

        Raises InvalidArgument on values of other kinds, and IoError if a model's file is gone.
        """
        is_original = isinstance(self.wire, str) and self.wire == "original"
        roundings = {"max_roundings": _core.ANY_ROUNDINGS} if is_original else {}
        return PlanOptions(
            block_size=_whole_or_none("block_size", self.block_size),
            wire=None if self.wire is None or is_original else dtype_name(self.wire),
            backward=_checks.flag("backward", self.backward),
            seed=_whole_or_none("seed", self.seed, 0) or 0,
            token_limit=_whole_or_none("token_limit", self.token_limit, 1),
            memory_limit_bytes=_whole_or_none("memory_limit_bytes", self.memory_limit_bytes, 1),
            linear_us_per_token=linear_us_of(
                self.linear_layers, shape.q_heads, shape.kv_heads, cluster, shape.head_dim
            ),
            force=_checks.flag("force", self.force),
            tokens_multiple=_checks.whole("tokens_multiple", self.tokens_multiple, 1),
            equal_tokens=_checks.flag("equal_tokens", self.equal_tokens),
            progress=progress,
            **roundings,
        )


def options_of(given: Mapping[str, Any], *, shape: AttentionShape, cluster: Cluster) -> PlanOptions:
    """Returns options of plans by name; those left out have the defaults of ``plan``."""
    return _Options(**given).checked(shape, cluster)


def cluster_of(cluster: Cluster | str | os.PathLike[str]) -> Cluster:
    """Returns a cluster, loading it if a text or a path is given."""
    if isinstance(cluster, Cluster):
        return cluster
    if isinstance(cluster, (str, os.PathLike)):
        return Cluster.load(cluster)
    raise _core.InvalidArgument(
        f"cluster: expected a Cluster, its name or a file, found {type(cluster).__name__}"
    )


def dtype_name(dtype: Any) -> str:
    """Returns 'f32', 'bf16' or 'f16' for a name or a dtype of NumPy or PyTorch."""
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    return {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(name, name)


def make_workload(
    lengths: Sequence[int],
    *,
    mask: AnyMask = "causal",
    heads: int | tuple[int, int] = (32, 8),
    head_dim: int = 128,
    value_dim: int | None = None,
    dtype: Any = "bf16",
    scale: float = 0.0,
    softcap: float = 0.0,
    sink: bool = False,
    home: str | Sequence[tuple[int, int, int]] | None = None,
    num_ranks: int = 1,
    roles: Sequence[tuple[int, int, str]] = (),
    positions: Positions | None = None,
) -> Workload:
    """Makes the description of a batch: documents end to end, their masks, the attention shape.

    Parameters
    ----------
    lengths : sequence of int
        Number of tokens of every document, each at least 1.
    mask
        A rule for all documents (``masks.causal()`` or its text), a list with one rule per
        document, a ``Mask`` of the batch or a function of the lengths that returns one, or a dict
        of several by name. In a dict, ``(mask, layers)`` gives the number of layers that use the
        mask.
    heads : int or (int, int)
        Number of query heads and of KV heads. One number means both.
    head_dim : int
        Dimension of queries and keys.
    value_dim : int, optional
        Dimension of values. Default: ``head_dim``.
    dtype
        ``"f32"``, ``"bf16"``, ``"f16"``, or a dtype of NumPy or PyTorch.
    scale : float
        Factor of the scores. 0 means ``1/sqrt(head_dim)``.
    softcap : float
        The c of ``c·tanh(s/c)``, applied to scores s. 0 means no softcap.
    sink : bool
        Whether every query head has a learnable sink logit.
    home : optional
        Ranks that already hold the tokens: ``"contiguous"``, ``"zigzag"``, a layout file, or
        ascending rows (begin, end, rank). Default: the plan chooses.
    num_ranks : int
        Number of ranks of the context-parallel group, for ``home``.
    roles : sequence of (begin, end, role)
        Ascending token ranges without queries (``"kv_only"``, such as a cached prefix) or without
        keys (``"q_only"``).
    positions : int array [tokens of the batch], or function of the lengths, optional
        The position of every token, for RoPE. Default: those that the rules of the masks set, or
        that a mask without a rule shows: of documents that its pairs keep apart, and of trees.
        Where it shows neither, as for block diffusion, positions are not known, and what needs them
        refuses the plan.

    Returns
    -------
    Workload

    Raises
    ------
    InvalidArgument
        Lengths are not positive, a mask does not fit, or the attention shape is impossible.

    Examples
    --------
    >>> import contextile as ct
    >>> masks = {"full": ("causal", 8), "short": ("chunked:16", 24)}
    >>> workload = ct.make_workload([60, 40], mask=masks)
    >>> workload.num_tokens, workload.mask_names
    (100, ['full', 'short'])
    """
    for name, given in (
        ("heads", heads),
        ("head_dim", head_dim),
        ("value_dim", value_dim),
        ("scale", scale),
        ("softcap", softcap),
        ("sink", sink),
    ):
        if isinstance(given, Mapping):
            raise _core.InvalidArgument(
                f"{name}: expected one for all masks, found one for each of {', '.join(given)}; "
                "contextile.plans plans layers of unlike shapes"
            )
    q_heads, kv_heads = (
        heads if isinstance(heads, (tuple, list)) and len(heads) == 2 else (heads, heads)
    )
    counts = {
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "value_dim": value_dim,
    }
    shape = AttentionShape(
        **{name: _checks.count(name, size) for name, size in counts.items() if size is not None},
        dtype=dtype_name(dtype),
        scale=_checks.number("scale", scale),
        softcap=_checks.number("softcap", softcap),
        sink=_checks.flag("sink", sink),
    )
    all_lengths = lengths_of(lengths)
    masks: list[tuple[str | None, Any]] = (
        list(mask.items()) if isinstance(mask, Mapping) else [(None, mask)]
    )
    entries = [_entry_of(name, one, all_lengths) for name, one in masks]
    if isinstance(home, os.PathLike):
        home = os.fspath(home)
    home_rows: Any = (
        [tuple(row) for row in home]
        if isinstance(home, Sequence) and not isinstance(home, str)
        else home
    )
    role_rows: Any = [tuple(row) for row in roles]
    return _core.make_workload(
        all_lengths,
        shape,
        entries,
        home_rows,
        _checks.count("num_ranks", num_ranks),
        role_rows,
        None if positions is None else positions_of(positions, all_lengths),
    )


class _ProgressBar:
    """Shows planning progress as a bar of tqdm."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError(
                "progress=True: expected tqdm (pip install 'contextile[progress]'), found none"
            ) from error
        self._bar = tqdm(total=1, desc="planning", leave=False)

    def __call__(self, what: str, done: int, total: int) -> None:
        self._bar.set_description(what, refresh=False)
        self._bar.total = max(total, 1)
        self._bar.n = done
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


@contextlib.contextmanager
def progress_hook(progress: Progress) -> Iterator[Any]:
    """Gives the function to call with progress, or None, and closes a bar at the end."""
    if progress is not True:
        if progress is not False and not callable(progress):
            raise _core.InvalidArgument(
                f"progress: expected True, False or a function, found {progress!r:.80}"
            )
        yield None if progress is False else progress
        return
    bar = _ProgressBar()
    try:
        yield bar
    finally:
        bar.close()


def choice_of(strategy: StrategyChoice | str) -> StrategyChoice:
    if isinstance(strategy, StrategyChoice):
        return strategy
    if not isinstance(strategy, str):
        raise _core.InvalidArgument(
            f"strategy: expected a choice or its text, found {type(strategy).__name__}"
        )
    choices = _core.parse_strategies(strategy)
    if len(choices) != 1:
        raise _core.InvalidArgument(
            f"strategy: expected one, found {len(choices)}; compare() takes several"
        )
    return choices[0]


def _workload_of(
    call: str, lengths: Sequence[int] | Workload, cluster: Cluster, batch: dict[str, Any]
) -> Workload:
    """Returns the workload of lengths and the parts of ``batch`` that are not None."""
    given = {key: value for key, value in batch.items() if value is not None}
    if not isinstance(lengths, Workload):
        return make_workload(lengths, num_ranks=cluster.num_devices, **given)
    if given:
        raise _core.InvalidArgument(
            f"{call}: expected a workload alone, found it with {', '.join(given)}"
        )
    return lengths


def plan(
    lengths: Sequence[int] | Workload,
    *,
    cluster: Cluster | str,
    strategy: AnyStrategy = "auto",
    mask: AnyMask | None = None,
    heads: int | tuple[int, int] | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    dtype: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: bool | None = None,
    home: str | Sequence[tuple[int, int, int]] | None = None,
    roles: Sequence[tuple[int, int, str]] | None = None,
    positions: Positions | None = None,
    block_size: int | None = None,
    wire: str | None = None,
    backward: bool = True,
    seed: int = 0,
    token_limit: int | None = None,
    memory_limit_bytes: int | None = None,
    linear_layers: LinearLayers | None = None,
    tokens_multiple: int = 1,
    equal_tokens: bool = False,
    force: bool = False,
    progress: Progress = False,
) -> Plan:
    """Plans a batch with a strategy, and verifies the plan.

    Not collective: equal inputs give equal plans on every rank and any number of threads, unless
    the strategy has a time budget. Ctrl-C stops planning.

    Parameters
    ----------
    lengths : sequence of int or Workload
        Number of tokens of every document; or a whole workload, without the parameters from
        ``mask`` to ``positions``.
    cluster : Cluster or str
        A cluster, or a text that ``Cluster.load`` takes, such as ``"dgx-h200:4x8"``.
    strategy : StrategyChoice, str or function
        ``strategies.dcp(divisions=6)``, the text ``"dcp:divisions=6"``, or a function of (workload,
        cluster, options) that returns an ``Arrangement``.
    mask, heads, head_dim, value_dim, dtype, scale, softcap, sink, home, roles, positions
        As for ``make_workload``.
    block_size : int, optional
        Tokens per block. Default: the strategy's own.
    wire : str, optional
        dtype of partial results while they move: ``"f32"``, ``"bf16"``, ``"f16"``, or
        ``"original"`` for that of the strategy's original. Default: the original's, but f32 where
        one would be rounded more than four times on its way.
    backward : bool
        Whether to plan backward, too. False is for prefill.
    seed : int
        Seed of strategies that use random numbers.
    token_limit : int, optional
        Most tokens that a device may own. ``auto`` observes it; the proof checks it.
    memory_limit_bytes : int, optional
        Most bytes of a device in one direction. ``auto`` observes it; the proof checks it.
    linear_layers : float, str or path, optional
        Time of a token outside attention, in one layer, forward, on its device. A device with more
        tokens than others makes them wait, so ``auto`` and choices of block sizes weigh it. A
        number is microseconds, 0 to 1e6. A text is a model: a preset's name, such as
        ``"llama-3-8b"``, or the path of a ``.json`` file. The time of a model is divided by its
        tensor-parallel ranks: its query heads over those of the batch. Default: a guess from the
        attention's width.
    tokens_multiple : int
        Every device owns a multiple of so many tokens, as FP8 (16) and MXFP8 (32) linear layers and
        static shapes need, whatever the strategy. The batch must be a multiple, too.
    equal_tokens : bool
        Whether every device owns as many tokens as any other, which ``tokens_multiple`` divides.
    force : bool
        Whether to plan even if blocks are so small that there are more than 2e8 tiles.
    progress : bool or function
        True shows a bar of tqdm. A function is called with (what, done, total).

    Returns
    -------
    Plan

    Raises
    ------
    InvalidArgument
        The strategy is unknown, options are bad, or the strategy cannot plan this batch; the
        message says why. Also if the heads of the batch are not those of ``linear_layers``, or a
        share of them.
    CheckFailed
        The plan does not verify. The message has the number of violations and the first one.
    IoError
        The file of ``linear_layers`` cannot be read.

    Examples
    --------
    >>> import contextile as ct
    >>> plan = ct.plan([500, 90_000, 40_572], cluster="dgx-h200:4x8", strategy="zigzag")
    >>> plan.num_tokens, plan.num_devices
    (131072, 32)
    """
    the_cluster = cluster_of(cluster)
    batch = {
        "mask": mask,
        "heads": heads,
        "head_dim": head_dim,
        "value_dim": value_dim,
        "dtype": dtype,
        "scale": scale,
        "softcap": softcap,
        "sink": sink,
        "home": home,
        "roles": roles,
        "positions": positions,
    }
    workload = _workload_of("plan", lengths, the_cluster, batch)
    with progress_hook(progress) as hook:
        given = _Options(
            block_size,
            wire,
            backward,
            seed,
            token_limit,
            memory_limit_bytes,
            force,
            linear_layers,
            tokens_multiple,
            equal_tokens,
        )
        options = given.checked(workload.shape, the_cluster, hook)
        if callable(strategy):
            arrangement = strategy(workload, the_cluster, options)
            if not isinstance(arrangement, Arrangement):
                raise _core.InvalidArgument(
                    "strategy: expected a function that returns an Arrangement, found "
                    f"{type(arrangement).__name__}"
                )
            return _core.plan_arrangement(workload, the_cluster, arrangement, options)
        return _core.plan_batch(workload, the_cluster, choice_of(strategy), options)


def schedule(
    lengths: Sequence[int] | Workload,
    *,
    cluster: Cluster | str,
    strategy: StrategyChoice | str = "megatron_dynamic",
    group_strategy: StrategyChoice | str | None = None,
    block_size: int | None = None,
    wire: str | None = None,
    backward: bool = True,
    seed: int = 0,
    token_limit: int | None = None,
    memory_limit_bytes: int | None = None,
    linear_layers: LinearLayers | None = None,
    tokens_multiple: int = 1,
    equal_tokens: bool = False,
    progress: Progress = False,
    **batch: Any,
) -> Schedule:
    """Schedules a batch as micro-batches, each for a group of ranks that fits its sequences.

    A rank runs forward and backward of one micro-batch after another, with a barrier after each
    round, so that it holds the activations of one micro-batch at a time. This is how Megatron-LM's
    dynamic context parallelism and ByteScale run; ``plan`` puts the same work into one plan.
    Sources: Megatron-LM, ``hybrid_cp_schedule.py`` and ``data_schedule.py``; ByteScale (2025).

    Parameters
    ----------
    lengths, cluster, block_size, wire, backward, seed, token_limit, memory_limit_bytes, progress
        As for ``plan``. The limits hold for one micro-batch at a time.
    linear_layers : float, str or path, optional
        As for ``plan``. It counts in the plans inside the groups.
    tokens_multiple, equal_tokens
        As for ``plan``, among the ranks of a group. Every micro-batch must be such a multiple.
    strategy : StrategyChoice or str
        ``megatron_dynamic``, ``megatron_packed`` or ``bytescale``. Their option ``cap`` is the
        number of tokens of a rank: ``max_seqlen_per_dp_cp_rank`` of Megatron-LM.
    group_strategy : StrategyChoice or str, optional
        The strategy inside the groups. Default: that of the original, a zigzag ring.
    **batch
        ``mask``, ``heads`` and the rest, as for ``make_workload``, without ``home``.

    Returns
    -------
    Schedule
        ``rounds``, each with ``micro_batches`` of ``sequences``, ``ranks`` and a ``plan`` for those
        ranks; ``of(rank)`` has the micro-batches of a rank.

    Raises
    ------
    InvalidArgument
        The strategy runs batches at once, options are bad, or a group cannot plan its sequences.
    CheckFailed
        A plan does not verify.
    IoError
        The file of ``linear_layers`` cannot be read.

    Examples
    --------
    >>> import contextile as ct
    >>> schedule = ct.schedule([90_000, 500, 40_572, 1000], cluster="dgx-h200:1x8")
    >>> [[len(batch.ranks) for batch in round.micro_batches] for round in schedule.rounds]
    [[8], [4, 2, 2]]
    """
    the_cluster = cluster_of(cluster)
    workload = _workload_of("schedule", lengths, the_cluster, batch)
    with progress_hook(progress) as hook:
        given = _Options(
            block_size,
            wire,
            backward,
            seed,
            token_limit,
            memory_limit_bytes,
            linear_layers=linear_layers,
            tokens_multiple=tokens_multiple,
            equal_tokens=equal_tokens,
        )
        options = given.checked(workload.shape, the_cluster, hook)
        inside = None if group_strategy is None else choice_of(group_strategy)
        return _core.plan_schedule(workload, the_cluster, choice_of(strategy), options, inside)


class Comparisons(Sequence[Comparison]):
    """The result of ``compare``: rows of strategies, fastest first. It prints as a table.

    The order is that of ``layer_us``: attention plus the linear layers of the device that owns the
    most tokens, because a training step takes both. ``time_us`` is attention alone.

    Attributes
    ----------
    sensitivity : list of ChangedStanding or None
        The strategies on the cluster as it is, and with each constant changed. None unless
        ``compare`` was called with ``sensitivity``.
    """

    def __init__(
        self, rows: list[Comparison], sensitivity: list[ChangedStanding] | None = None
    ) -> None:
        self._rows = sorted(rows, key=lambda row: (not row.ok, row.layer_us or 0.0))
        self.sensitivity = sensitivity

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self._rows)

    def best(self) -> Comparison:
        """Returns the row with the least layer_us. Raises InvalidArgument if none applies."""
        if not self._rows or not self._rows[0].ok:
            raise _core.InvalidArgument("comparison: expected a strategy that applies, found none")
        return self._rows[0]

    def __repr__(self) -> str:
        from contextile._display import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from contextile._display import comparison_html

        return comparison_html(self)


def compare(
    lengths: Sequence[int] | Workload,
    *,
    cluster: Cluster | str,
    strategies: Sequence[StrategyChoice | str] | str = "all",
    block_size: int | None = None,
    wire: str | None = None,
    backward: bool = True,
    seed: int = 0,
    linear_layers: LinearLayers | None = None,
    tokens_multiple: int = 1,
    equal_tokens: bool = False,
    sensitivity: str | None = None,
    **batch: Any,
) -> Comparisons:
    """Plans a batch with several strategies and predicts the time of each.

    Every row has three times of one layer, forward and backward, in microseconds. ``time_us`` is
    attention. ``layer_us`` adds the linear layers of the device that owns the most tokens, and
    ``uneven_us`` is the part of it that uneven tokens cost.

    Parameters
    ----------
    lengths, cluster, block_size, wire, backward, seed
        As for ``plan``.
    strategies : str or sequence
        Choices and texts, or one text with several: ``"zigzag,dcp:divisions=6"`` or ``"all"``.
    sensitivity : str, optional
        ``"kept"`` also simulates the plans on clusters with one constant halved or doubled.
        ``"replan"`` plans again for each such cluster, which takes as long as that many
        comparisons. Both compare times of attention.
    linear_layers : float, str or path, optional
        As for ``plan``. It also prices the linear layers in ``layer_us``.
    tokens_multiple, equal_tokens
        As for ``plan``. Strategies with micro-batches keep to them among the ranks of a group.
    **batch
        ``mask``, ``heads`` and the rest, as for ``make_workload``.

    Returns
    -------
    Comparisons
        Rows, those with the least ``layer_us`` first. ``skipped`` says why a strategy does not
        apply, and ``failed`` says what went wrong in one; both are empty for the others.

    Raises
    ------
    InvalidArgument
        A strategy is unknown, options are bad, or the batch is.
    IoError
        The file of ``linear_layers`` cannot be read.

    Examples
    --------
    >>> import contextile as ct
    >>> rows = ct.compare([5000, 3192], cluster="dgx-h200:1x4", strategies="zigzag,dcp")
    >>> len(rows), rows.best().ok
    (2, True)
    >>> rows.best().layer_us > rows.best().time_us
    True
    """
    if sensitivity not in (None, "kept", "replan"):
        raise _core.InvalidArgument(
            f"sensitivity: expected 'kept', 'replan' or None, found {sensitivity!r:.80}"
        )
    the_cluster = cluster_of(cluster)
    workload = _workload_of("compare", lengths, the_cluster, batch)
    if isinstance(strategies, str):
        choices = _core.parse_strategies(strategies)
    else:
        choices = [choice_of(strategy) for strategy in strategies]
    given = _Options(
        block_size,
        wire,
        backward,
        seed,
        linear_layers=linear_layers,
        tokens_multiple=tokens_multiple,
        equal_tokens=equal_tokens,
    )
    options = given.checked(workload.shape, the_cluster)
    rows, standings = _core.compare(workload, the_cluster, choices, options, sensitivity == "kept")
    if sensitivity == "replan":
        standings = _core.replan_standings(workload, the_cluster, choices, options)
    return Comparisons(rows, standings if sensitivity else None)


def lower_bound(
    workload: Workload, *, cluster: Cluster | str, direction: str = "forward"
) -> TimeBound:
    """Returns a time that no plan of the workload can beat, for one layer of every mask.

    Parameters
    ----------
    workload : Workload
        The batch, from ``make_workload``.
    cluster : Cluster or str
        As for ``plan``.
    direction : str
        ``"forward"`` or ``"backward"``.

    Returns
    -------
    TimeBound
        The bound in microseconds and its parts.

    Raises
    ------
    InvalidArgument
        The workload or the cluster is bad, or the direction is another one.

    Examples
    --------
    >>> import contextile as ct
    >>> bound = ct.lower_bound(ct.make_workload([8192]), cluster="dgx-h200:1x4")
    >>> bound.time_us > 0
    True
    """
    return _core.lower_bound(workload, cluster_of(cluster), direction)
