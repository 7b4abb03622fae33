"""Known faults of context parallelism, each with the results that it would give.

A fault is named if its prediction in fp64 fits what was found and the sound result does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._audit import exact
from contextile.torch._audit.deals import NAMES as LAYOUTS
from contextile.torch._audit.deals import Deal, allowed_pairs, pairs, parts_of
from contextile.torch._audit.exact import Inputs, Results

CAUSES = {
    "positions_local": "the mask counts positions inside the shard, not inside the document",
    "packing_leak": "tokens attend other documents of the batch",
    "window_dropped": "the sliding window is ignored",
    "window_off_by_one": "the sliding window is one token too wide or too narrow",
    "mask_dropped": "the mask is ignored",
    "rank_order": "rows of one rank are taken for those of another",
    "other_layout": "the tokens are taken to be dealt in another layout",
    "remote_keys_ignored": "tokens attend the keys of their own rank alone",
    "last_token_lost": "the last token of a document is taken for padding",
    "padding_attended": "tokens attend padding",
    "sink_ignored": "the sink takes no part in the softmax",
    "sink_without_gradient": "the sink gets no gradient",
    "softcap_ignored": "the softcap is not applied",
    "scale_ignored": "the scores have another scale than the one that was given",
    "kv_heads_misassigned": "query heads read the wrong KV heads",
    "lse_merged_wrongly": "partial outputs are merged without the weights of their log-sum-exp",
    "lse_merged_without_maximum": "exponentials overflow or vanish, because partial results are "
    "merged without subtracting the maximum",
    "gradient_times_cp": "gradients are multiplied by the number of ranks, or divided by it",
    "gradient_scaled": "gradients are multiplied by a constant",
    "gradient_not_reduced": "gradients lack the contributions of other ranks",
    "no_gradient": "an input gets no gradient",
    "stale_kv_in_backward": "backward uses what a later forward call left behind",
    "stale_lengths": "a call uses the documents of an earlier call",
    "state_kept": "results depend on earlier calls",
    "non_contiguous_input": "inputs or gradients that are not contiguous are read wrongly",
    "inputs_changed": "the call changes its inputs in place",
    "low_precision_accumulation": "sums are kept in lower precision than fp32",
    "nondeterministic": "the same call gives other bits when it is repeated",
    "future_leak": "tokens attend later tokens that the mask hides",
    "mask_leak": "tokens attend tokens that the mask hides",
    "tokens_lost": "tokens are not attended that the mask shows",
    "dropout_by_local_index": "dropout repeats on several ranks: it is drawn by local indices",
    "dropout_repeats_over_heads": "all heads drop the same weights",
    "dropout_rate": "weights are dropped or scaled by another probability than the given one",
    "dropout_differs_in_backward": "backward drops other weights than forward",
    "label_shifted_at_border": "labels are shifted inside a shard, so its border has wrong ones",
    "labels_cross_documents": "the last token of a document has the next row as its label",
    "labels_not_shifted": "tokens are their own labels",
    "padding_counted": "padding takes part in the loss",
    "mean_of_means": "the means of ranks are averaged, although ranks have different numbers of "
    "labels",
    "gradient_times_dp": "gradients are multiplied by the number of replicas, or divided by it",
    "gradient_differs_between_ranks": "ranks end with different gradients",
    "loss_scaled": "the loss that is logged is multiplied by a constant",
    "not_finite": "results are not finite",
    "raises": "the call raises an error",
    "unknown": "no known fault fits",
}


@dataclass(frozen=True)
class Scene:
    """A batch, and how results are compared.

    ``least`` has the norms that errors are divided by where rows are smaller, or None.
    """

    deal: Deal
    inputs: Inputs
    mask: str
    allowed: Tensor
    tolerance: float
    layout: str = ""
    least: Results | None = None

    def errors(self, found: Results, expected: Results, name: str) -> Tensor:
        """Returns the errors of a tensor by row and head."""
        least = None if self.least is None else getattr(self.least, name)
        return exact.row_errors(
            getattr(found, name), getattr(expected, name), self.deal.is_token, least
        )

    def worst(self, found: Results, expected: Results, names: Sequence[str]) -> float:
        """Returns the largest error of some tensors."""
        return max(float(self.errors(found, expected, name).max()) for name in names)


@dataclass(frozen=True)
class Fault:
    """A cause, in which form it would show, and what it gives."""

    cause: str
    form: str
    predict: Callable[[], Results]


def _dense_rule(mask: str, queries: Tensor, keys: Tensor) -> Tensor:
    """Returns the bool [rows, rows] of a mask where rows have these positions."""
    rule = pairs(mask, int(max(queries.max(), keys.max())) + 1)
    return rule[queries[:, None], keys[None, :]]


def other_masks(mask: str) -> Iterator[tuple[str, str, str]]:
    """Yields a cause, a form and a mask that a fault turns this one into."""
    name, _, parameters = mask.partition(":")
    windowed = name in ("sliding_window", "lambda")
    numbers = [(found.start(), found.end()) for found in re.finditer(r"\d+", parameters)]
    if windowed and numbers:
        begin, end = numbers[-1]
        for change in (1, -1):
            width = int(parameters[begin:end]) + change
            if width > 0:
                other = f"{name}:{parameters[:begin]}{width}{parameters[end:]}"
                yield "window_off_by_one", f"acts as {other}", other
    for other in ("causal", "full"):
        if mask != other:
            yield ("window_dropped" if windowed else "mask_dropped"), f"acts as {other}", other


def _relabeled(scene: Scene, label: Callable[[int, int], int]) -> Tensor | None:
    """Returns the pairs where rank ``a`` takes the keys of rank ``b`` for those of ``label(a, b)``;
    None if a rank has more rows than the one that it is taken for."""
    deal = scene.deal
    allowed = torch.zeros_like(scene.allowed)
    for a, mine in enumerate(deal.parts):
        for b, theirs in enumerate(deal.parts):
            taken = deal.parts[label(a, b)]
            if len(taken) != len(theirs):
                return None
            allowed[mine[:, None], theirs[None, :]] = scene.allowed[mine[:, None], taken[None, :]]
    return allowed


def _local_masks(scene: Scene) -> Iterator[tuple[str, Tensor]]:
    deal, mask = scene.deal, scene.mask
    tokens = deal.is_token[:, None] & deal.is_token[None, :]
    same = (deal.documents[:, None] == deal.documents[None, :]) & tokens
    by_shard = _dense_rule(mask, deal.places, deal.places)
    yield "counts from the shard's first token", by_shard & same
    yield "counts from the shard's first token, in one document", by_shard & tokens
    counted = torch.zeros_like(deal.places)
    for part in deal.parts:
        for document in deal.documents[part].unique():
            mine = part[deal.documents[part] == document]
            counted[mine] = torch.arange(len(mine))
    yield (
        "counts from the document's first token in the shard",
        (_dense_rule(mask, counted, counted) & same),
    )


def _leaks(scene: Scene) -> Iterator[tuple[str, Tensor]]:
    deal = scene.deal
    rows = torch.arange(deal.num_rows)
    tokens = deal.is_token[:, None] & deal.is_token[None, :]
    leaking = _dense_rule(scene.mask, rows, rows) & tokens
    here = deal.owners[:, None] == deal.owners[None, :]
    yield "the batch is one document", leaking
    if deal.size > 1:
        yield "for keys of other ranks", torch.where(here, scene.allowed, leaking)
        yield "for keys of the own rank", torch.where(here, leaking, scene.allowed)


def _lost(scene: Scene) -> Iterator[tuple[str, Tensor]]:
    deal = scene.deal
    last = deal.positions == torch.tensor(deal.lengths)[deal.documents] - 1
    padded = torch.tensor(deal.rows)[deal.documents] > torch.tensor(deal.lengths)[deal.documents]
    for where, lost in (("padded documents", last & padded), ("all documents", last)):
        if bool(lost.any()):
            yield f"as a key, in {where}", scene.allowed & ~lost[None, :]
            yield (
                f"as a key and a query, in {where}",
                (scene.allowed & ~lost[None, :] & ~lost[:, None]),
            )


def _other_layouts(scene: Scene) -> Iterator[tuple[str, Tensor]]:
    deal = scene.deal
    for name in LAYOUTS:
        taken = parts_of(name, deal.rows, deal.size)
        if name == scene.layout or [len(p) for p in taken] != [len(p) for p in deal.parts]:
            continue
        label = torch.empty(deal.num_rows, dtype=torch.int64)
        for part, other in zip(deal.parts, taken, strict=True):
            label[part] = other
        yield f"as {name}", scene.allowed[label[:, None], label[None, :]]


def masks_of_faults(scene: Scene) -> Iterator[tuple[str, str, Tensor]]:
    """Yields a cause, its form and the pairs that it attends instead of the mask's."""
    deal, size = scene.deal, scene.deal.size
    tokens = deal.is_token[:, None] & deal.is_token[None, :]
    same = (deal.documents[:, None] == deal.documents[None, :]) & tokens
    for cause, form, other in other_masks(scene.mask):
        yield cause, form, _dense_rule(other, deal.positions, deal.positions) & same
    if len(deal.rows) > 1:
        for form, allowed in _leaks(scene):
            yield "packing_leak", form, allowed
    if deal.rows != deal.lengths:
        whole = Deal(deal.rows, deal.rows, deal.parts)
        yield "padding_attended", "", allowed_pairs(scene.mask, whole) & deal.is_token[:, None]
    for form, allowed in _lost(scene):
        yield "last_token_lost", form, allowed
    if size == 1:
        return
    for form, allowed in _local_masks(scene):
        yield "positions_local", form, allowed
    labels: dict[str, Callable[[int, int], int]] = {
        "keys come from the other direction of the ring": lambda a, b: (2 * a - b) % size,
        "keys come from the next rank": lambda a, b: (b + 1) % size,
        "keys come from the rank before": lambda a, b: (b - 1) % size,
    }
    for form, label in labels.items():
        relabeled = _relabeled(scene, label)
        if relabeled is not None:
            yield "rank_order", form, relabeled
    for form, allowed in _other_layouts(scene):
        yield "other_layout", form, allowed
    here = deal.owners[:, None] == deal.owners[None, :]
    yield "remote_keys_ignored", "", scene.allowed & here


def _moved(results: Results, deal: Deal, step: int, names: tuple[str, ...]) -> Results | None:
    """Returns results where every rank has those of the rank ``step`` behind it."""
    rows = torch.empty(deal.num_rows, dtype=torch.int64)
    for rank, part in enumerate(deal.parts):
        other = deal.parts[(rank + step) % deal.size]
        if len(other) != len(part):
            return None
        rows[part] = other
    return results._replace(**{name: getattr(results, name)[rows] for name in names})


def _merged_without_weights(scene: Scene, is_mean: bool) -> Results:
    deal = scene.deal
    total = torch.zeros_like(scene.inputs.dout, dtype=torch.float64)
    count = torch.zeros(deal.num_rows, dtype=torch.float64)
    truth = exact.attend(scene.inputs, scene.allowed)
    for rank in range(deal.size):
        allowed = scene.allowed & (deal.owners == rank)[None, :]
        total += exact.attend(scene.inputs, allowed).out
        count += allowed.any(1)
    return truth._replace(out=total / count.clamp(min=1)[:, None, None] if is_mean else total)


def faults_of(scene: Scene, truth: Results) -> Iterator[Fault]:
    """Yields the faults that change the output."""
    inputs, allowed, size = scene.inputs, scene.allowed, scene.deal.size
    for cause, form, wrong in masks_of_faults(scene):
        if not torch.equal(wrong, allowed):
            yield Fault(cause, form, partial(exact.attend, inputs, wrong))
    if inputs.sink is not None:
        yield Fault(
            "sink_ignored",
            "",
            partial(exact.attend, exact.changed(inputs, sink=None), allowed),
        )
    if inputs.softcap:
        yield Fault(
            "softcap_ignored",
            "",
            partial(exact.attend, exact.changed(inputs, softcap=0.0), allowed),
        )
    for scale in (inputs.q.shape[2] ** -0.5, 1.0):
        if scale != inputs.scale:
            yield Fault(
                "scale_ignored",
                f"acts as {scale:.6g}",
                partial(exact.attend, exact.changed(inputs, scale=scale), allowed),
            )
    if 1 < inputs.k.shape[1] < inputs.q.shape[1]:
        yield Fault(
            "kv_heads_misassigned",
            "head h reads KV head h modulo their number",
            partial(exact.attend, inputs, allowed, kv_head_of=lambda head, _, kv: head % kv),
        )
    for step in range(1, size):
        for names in (("out", "dq", "dk", "dv"), ("out",)):
            moved = _moved(truth, scene.deal, step, names)
            if moved is not None:
                form = f"every rank has the rows of the rank {step} ahead"
                yield Fault("rank_order", form, lambda moved=moved: moved)  # type: ignore[misc]
    if size > 1:
        for form, is_mean in (("their mean is taken", True), ("they are added up", False)):
            yield Fault(
                "lse_merged_wrongly", form, partial(_merged_without_weights, scene, is_mean)
            )


def _local_only(scene: Scene, truth: Results) -> Results:
    """Gradients of keys and values from the queries of their own rank alone, of queries from the
    keys of theirs."""
    here = scene.deal.owners[:, None] == scene.deal.owners[None, :]
    return exact.attend(scene.inputs, scene.allowed, backward=scene.allowed & here)


def gradient_faults_of(scene: Scene, truth: Results) -> Iterator[Fault]:
    """Yields the faults that leave the output right."""
    size = scene.deal.size
    if size > 1:
        for factor, form in ((float(size), f"by {size}"), (1 / size, f"by 1/{size}")):
            yield Fault("gradient_times_cp", form, partial(_scaled, truth, factor))
        yield Fault("gradient_not_reduced", "", partial(_local_only, scene, truth))
        for step in range(1, size):
            moved = _moved(truth, scene.deal, step, ("dq", "dk", "dv"))
            if moved is not None:
                form = f"gradients are those of the rank {step} ahead"
                yield Fault("rank_order", form, lambda moved=moved: moved)  # type: ignore[misc]
    for cause, form, wrong in masks_of_faults(scene):
        if not torch.equal(wrong, scene.allowed):
            yield Fault(
                cause,
                f"in backward; {form}" if form else "in backward",
                partial(exact.attend, scene.inputs, scene.allowed, backward=wrong),
            )


def _scaled(truth: Results, factor: float) -> Results:
    dsink = None if truth.dsink is None else factor * truth.dsink
    return Results(
        truth.out, factor * truth.dq, factor * truth.dk, factor * truth.dv, dsink, truth.lse
    )


GRADIENTS = ("dq", "dk", "dv")


class _Fit:
    """True for predictions that fit some tensors of what was found, much better than sound results
    do."""

    def __init__(self, found: Results, truth: Results, scene: Scene, names: Sequence[str]) -> None:
        self._found, self._scene, self.names = found, scene, names
        self._most = min(2 * scene.tolerance, scene.worst(found, truth, names) / 2)

    def __call__(self, predicted: Results) -> bool:
        return self._scene.worst(self._found, predicted, self.names) <= self._most


def _common_factor(found: Results, truth: Results, scene: Scene, fits: _Fit) -> float | None:
    """Returns the one number that gradients are multiplied by, if there is one."""
    rows = scene.deal.is_token
    pairs = [(getattr(found, n)[rows].double(), getattr(truth, n)[rows]) for n in fits.names]
    square = sum(float(t.square().sum()) for _, t in pairs)
    factor = sum(float((f * t).sum()) for f, t in pairs) / max(square, 1e-30)
    return factor if abs(factor) > 1e-3 and fits(_scaled(truth, factor)) else None


def explain(found: Results, truth: Results, scene: Scene) -> tuple[str, str]:
    """Returns the cause, and its form, of results that are not the sound ones."""
    rows = scene.deal.is_token
    if not all(bool(getattr(found, n)[rows].isfinite().all()) for n in exact.NAMES[:4]):
        return "not_finite", ""
    if scene.worst(found, truth, ("out",)) > scene.tolerance:
        fits = _Fit(found, truth, scene, ("out",))
        nearly = None
        for fault in faults_of(scene, truth):
            predicted = fault.predict()
            if fits(predicted):
                if scene.worst(found, predicted, GRADIENTS) <= 2 * scene.tolerance:
                    return fault.cause, fault.form
                nearly = nearly or (fault.cause, fault.form)
        if nearly is not None:  # the output alone fits
            return nearly
    else:
        wrong = [n for n in GRADIENTS if scene.worst(found, truth, (n,)) > scene.tolerance]
        fits = _Fit(found, truth, scene, wrong)
        for fault in gradient_faults_of(scene, truth):
            if fits(fault.predict()):
                return fault.cause, fault.form
        factor = _common_factor(found, truth, scene, fits)
        if factor is not None:
            return "gradient_scaled", f"by {factor:.4g}"
    return ("low_precision_accumulation", "") if _is_noise(found, truth, scene) else ("unknown", "")


def _is_noise(found: Results, truth: Results, scene: Scene) -> bool:
    """True if errors are small and everywhere, as those of rounding are."""
    rows = scene.deal.is_token
    errors = torch.stack(
        [scene.errors(found, truth, name)[rows].amax(1) for name in exact.NAMES[:4]]
    ).amax(0)
    return float(errors.max()) < 60 * scene.tolerance and bool(
        (errors > scene.tolerance / 10).double().mean() > 0.5
    )


def check_known(cause: str) -> str:
    """Returns a cause of the list."""
    if cause not in CAUSES:
        raise _core.InvalidArgument(f"cause: expected one of {', '.join(CAUSES)}, found {cause!r}")
    return cause
