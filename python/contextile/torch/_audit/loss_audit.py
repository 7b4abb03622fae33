"""The audit of a training step: its loss, and the gradients that ranks end with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from contextile import _checks, _core
from contextile.torch._audit import loss_faults, watch
from contextile.torch._audit.deals import Layout, bounds, check_layout, deal
from contextile.torch._audit.findings import AuditFinding, AuditPass, AuditReport
from contextile.torch._audit.loss_faults import Batch, Loss
from contextile.torch._audit.trial import declared_by
from contextile.torch._audit.verdicts import agreed_settings, from_first, place_in

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_KNOWN = ("cu_seqlens", "cu_seqlens_padded", "positions", "rows", "labels")
_REDUCTIONS = ("done", "sum", "mean")
_TOLERANCE = 1e-4  # of a gradient in fp32, relative to its norm


class _Bigram(nn.Module):
    """Logits of a token are its row of a table, so that no attention takes part."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table.clone())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


@dataclass(frozen=True)
class _Job:
    """A step on the ranks of a group: ``cp`` consecutive ranks share a replica's batch."""

    step: Callable[..., Any]
    declared: frozenset[str]
    group: ProcessGroup | None
    rank: int
    size: int
    cp: int
    batch: Batch
    reduction: str
    device: torch.device

    @property
    def replicas(self) -> int:
        return self.size // self.cp

    def run(self) -> tuple[Tensor, Tensor, dict[int, str]]:
        """Returns losses [ranks] or none, gradients [ranks, ...] and problems by rank."""
        found, problems = watch.watched(self.group, self.device, self._call)
        table = self.batch.table
        loss, gradient = found if found is not None else (None, torch.zeros_like(table))
        logged = [float(loss is not None), loss or 0.0]
        mine = torch.cat([torch.tensor(logged), gradient.flatten().float().cpu()])
        parts = torch.stack(watch.gathered(self.group, [len(mine)] * self.size, mine))
        losses = parts[:, 1] if bool((parts[:, 0] > 0).all()) else parts[:0, 1]
        return losses, parts[:, 2:].reshape(self.size, *table.shape), problems

    def _call(self) -> tuple[float | None, Tensor]:
        dealt, replica = self.batch.deal, self.rank // self.cp
        part = dealt.parts[self.rank % self.cp]
        values = {
            "cu_seqlens": torch.tensor(bounds(dealt.lengths), dtype=torch.int32),
            "cu_seqlens_padded": torch.tensor(bounds(dealt.rows), dtype=torch.int32),
            "positions": dealt.positions[part],
            "rows": part,
            "labels": self.batch.labels[replica, part],
        }
        keywords = {n: v.to(self.device) for n, v in values.items() if n in self.declared}
        model = _Bigram(self.batch.table.to(self.device))
        found = self.step(model, self.batch.tokens[replica, part].to(self.device), **keywords)
        if model.table.grad is None:
            raise _core.InvalidArgument("step: expected gradients of model's table, found none")
        return None if found is None else float(found), model.table.grad.detach()

    def expected_gradient(self, gradients: Tensor) -> Tensor:
        """Returns the [ranks, ...] gradients that ranks have once the caller has reduced them."""
        if self.reduction == "done":
            return gradients.double()
        total = gradients.double().sum(0, keepdim=True)
        return total / self.size if self.reduction == "mean" else total


def _fits(found: Tensor, expected: Tensor) -> bool:
    return _distance(found, expected) <= _TOLERANCE


def _distance(found: Tensor, expected: Tensor) -> float:
    distance = float((found - expected).norm() / torch.clamp(expected.norm(), min=1e-30))
    return distance if distance == distance else float("inf")


def _factors(job: _Job) -> list[tuple[str, float, str]]:
    found = []
    for name, count in (
        ("gradient_times_cp", job.cp),
        ("gradient_times_dp", job.replicas),
        ("gradient_scaled", job.size),
    ):
        if count > 1:
            found += [(name, float(count), f"by {count}"), (name, 1 / count, f"by 1/{count}")]
    return found


def _judged_gradient(job: _Job, gradients: Tensor) -> AuditFinding | AuditPass:
    batch = job.batch
    expected = loss_faults.sound(batch).value_and_gradient(batch)[1]
    every = job.expected_gradient(gradients)
    errors = [_distance(one, expected) for one in every]
    if max(errors) <= _TOLERANCE:
        return AuditPass("gradient", error=max(errors))
    rank = next(r for r, error in enumerate(errors) if not error <= _TOLERANCE)
    fields: dict[str, Any] = {
        "tensor": "gradient",
        "error": errors[rank],
        "tolerance": _TOLERANCE,
        "rank": rank if job.reduction == "done" else None,
    }
    if not bool(gradients.isfinite().all()):
        return AuditFinding("gradient", "not_finite", **fields)
    if len(every) > 1 and not all(_fits(one, every[0]) for one in every):
        return AuditFinding("gradient", *_not_reduced(job, every), **fields)
    cause, form, loss = _cause(job, every[0], expected)
    if loss is not None:
        row = loss_faults.first_wrong_label(batch, loss.labels)
        if row is not None:
            dealt = batch.deal
            fields["document"] = int(dealt.documents[row])
            fields["position"] = int(dealt.positions[row])
            fields["rank"] = int(dealt.owners[row])
    return AuditFinding("gradient", cause, form=form, **fields)


def _not_reduced(job: _Job, every: Tensor) -> tuple[str, str]:
    """Returns the cause of gradients that differ between ranks, as those before a reduction do."""
    expected = loss_faults.sound(job.batch).value_and_gradient(job.batch)[1]
    total = every.sum(0)
    for factor in (1.0, job.size, job.cp, job.replicas):
        if _fits(total / factor, expected):
            return "gradient_not_reduced", "every rank has its own share"
    return "gradient_differs_between_ranks", ""


def _cause(job: _Job, found: Tensor, expected: Tensor) -> tuple[str, str, Loss | None]:
    for cause, factor, form in _factors(job):
        if _fits(found, factor * expected):
            return cause, form, None
    losses = [
        (loss, loss.value_and_gradient(job.batch)[1]) for loss in loss_faults.faults(job.batch)
    ]
    for loss, gradient in losses:
        if _fits(found, gradient):
            return loss.cause, loss.form, loss
    for loss, gradient in losses:
        for _, factor, form in _factors(job):
            if _fits(found, factor * gradient):
                text = ", ".join(filter(None, [loss.form, f"and gradients are multiplied {form}"]))
                return loss.cause, text, loss
    factor = float((found * expected).sum() / expected.square().sum())
    if abs(factor) > 1e-3 and _fits(found, factor * expected):
        return "gradient_scaled", f"by {factor:.4g}", None
    return "unknown", "", None


def _judged_loss(job: _Job, losses: Tensor) -> AuditFinding | AuditPass:
    expected = loss_faults.sound(job.batch).value_and_gradient(job.batch)[0]
    every = job.expected_gradient(losses)
    errors = [abs(float(one) - expected) / expected for one in every]
    rank = next((r for r, error in enumerate(errors) if not error <= _TOLERANCE), None)
    if rank is None:
        return AuditPass("loss", error=max(errors))
    found = float(every[rank])
    fields: dict[str, Any] = {
        "tensor": "loss",
        "rank": rank if job.reduction == "done" else None,
        "error": errors[rank] if errors[rank] == errors[rank] else float("inf"),
        "tolerance": _TOLERANCE,
    }
    text = f"found {found:.6g}, expected {expected:.6g}"
    for loss in loss_faults.faults(job.batch):
        value = loss.value_and_gradient(job.batch)[0]
        if abs(found - value) <= _TOLERANCE * value:
            form = ", ".join(filter(None, [loss.form, text]))
            return AuditFinding("loss", loss.cause, form=form, **fields)
    for _, factor, _form in _factors(job):
        if abs(found - factor * expected) <= _TOLERANCE * factor * expected:
            return AuditFinding("loss", "loss_scaled", form=text, **fields)
    return AuditFinding("loss", "unknown", form=text, **fields)


def _prepared(
    step: Any,
    group: ProcessGroup | None,
    rank: int,
    size: int,
    *,
    lengths: Any,
    cp: int | None,
    layout: Layout,
    multiple: int | None,
    gradients: str,
    vocabulary: int,
    device: Any,
    seed: int,
) -> tuple[_Job, dict[str, Any]]:
    """Checks the arguments. Raises InvalidArgument."""
    where = "audit_loss"
    declared = declared_by(step, _KNOWN, 2)
    counts = _checks.lengths(f"{where}, lengths", lengths)
    ranks = size if cp is None else _checks.whole(f"{where}, cp", cp, 1)
    if size % ranks:
        raise _core.InvalidArgument(
            f"{where}, cp: expected a divisor of the {size} ranks, found {ranks}"
        )
    if max(counts, default=0) < 2:
        raise _core.InvalidArgument(
            f"{where}, lengths: expected a document of at least 2 tokens, found {counts!r:.80}"
        )
    if gradients not in _REDUCTIONS:
        raise _core.InvalidArgument(
            f"{where}, gradients: expected {', '.join(_REDUCTIONS)}, found {gradients!r:.80}"
        )
    if len(counts) > 1 and not {"cu_seqlens", "positions", "labels"} & declared:
        raise _core.InvalidArgument(
            f"{where}: expected a step that takes cu_seqlens, positions or labels, without which "
            "it cannot know several documents; found none of them"
        )
    check_layout(layout, counts, ranks)
    if multiple is None:
        multiple = 2 * ranks if layout == "zigzag" else 1
    _checks.whole(f"{where}, multiple", multiple, 1)
    dealt = deal(counts, layout, ranks, multiple, "cu_seqlens_padded" in declared)
    generator = torch.Generator().manual_seed(_checks.whole(f"{where}, seed", seed, 0))
    _checks.whole(f"{where}, vocabulary", vocabulary, 2)
    tokens = torch.randint(vocabulary, (size // ranks, dealt.num_rows), generator=generator)
    table = torch.randn(vocabulary, vocabulary, generator=generator)
    kind = torch.device("cpu" if device is None else device)
    if device is None and dist.is_initialized() and dist.get_backend(group) == "nccl":
        kind = torch.device("cuda", torch.cuda.current_device())
    batch = Batch(dealt, tokens, table)
    job = _Job(step, declared, group, rank, size, ranks, batch, gradients, kind)
    text = layout if isinstance(layout, str) else "plan" if hasattr(layout, "digest") else "rule"
    settings = {
        "lengths": counts,
        "cp": ranks,
        "layout": text,
        "multiple": multiple,
        "gradients": gradients,
        "vocabulary": vocabulary,
        "seed": seed,
        "declared": sorted(declared),
    }
    return job, settings


def audit_loss(
    step: Callable[..., Any],
    group: ProcessGroup | None = None,
    *,
    lengths: Sequence[int],
    cp: int | None = None,
    layout: Layout = "zigzag",
    multiple: int | None = None,
    gradients: str = "done",
    vocabulary: int = 64,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> AuditReport:
    """Checks the loss of a training step and its gradients against fp64. Collective.

    ``step(model, tokens, ...)`` does on every rank what a training loop does between two updates of
    the optimizer: it calls ``model(tokens)`` with the rank's own tokens, which returns logits
    [rows, vocabulary], computes the loss, calls ``backward`` and reduces the gradient of the
    model's one parameter. It returns the loss that the loop logs, or None. Its other arguments are
    chosen by name: ``cu_seqlens``, ``cu_seqlens_padded``, ``positions``, ``rows`` as for ``audit``,
    and ``labels``: the next token of each, or -100.

    The expected loss is the mean over all tokens of all replicas that have a next token in their
    document.

    Parameters
    ----------
    step : callable
        The step. With several ranks it is called in a thread of its own.
    group : ProcessGroup, optional
        All ranks that share gradients. Default: the whole job, or this process alone.
    lengths : sequence of int
        Tokens of the documents of each replica's batch.
    cp : int, optional
        Consecutive ranks that share a batch; the others are replicas with other tokens. Default:
        all ranks.
    layout, multiple, device, seed
        As for ``audit``.
    gradients : str
        ``"done"`` if the step ends with the reduced gradient on every rank; ``"sum"`` or ``"mean"``
        if the loop takes the sum or mean of all ranks later.
    vocabulary : int
        Number of different tokens.

    Returns
    -------
    AuditReport
        The same on all ranks.

    Raises
    ------
    InvalidArgument
        An argument is wrong or differs between ranks.

    Examples
    --------
    >>> from contextile.torch import audit_loss
    >>> from torch.nn.functional import cross_entropy
    >>> def step(model, tokens, labels):             # one process
    ...     loss = cross_entropy(model(tokens), labels)
    ...     loss.backward()
    ...     return loss.item()
    >>> audit_loss(step, lengths=[20, 12]).ok
    True
    """
    rank, size = place_in(group)
    make = partial(
        _prepared,
        step,
        group,
        rank,
        size,
        lengths=lengths,
        cp=cp,
        layout=layout,
        multiple=multiple,
        gradients=gradients,
        vocabulary=vocabulary,
        device=device,
        seed=seed,
    )
    job = agreed_settings(group, size, "audit_loss", make)
    name = getattr(step, "__name__", type(step).__name__)
    report = AuditReport(f"{name} on {job.replicas} x {job.cp} ranks")
    if "labels" in job.declared:
        report.not_tested.append("labels: the step takes them and makes none")
    try:
        losses, tables, problems = job.run()
    except watch.Stopped as stopped:
        report.findings.append(AuditFinding("step", "raises", form=str(stopped)))
        return report
    if problems:
        report.findings.append(AuditFinding("step", "raises", form=watch.describe(problems)))
        return report
    verdicts = [from_first(group, rank, size, lambda: _judged_gradient(job, tables))]
    if len(losses) == 0:
        report.not_tested.append("loss: the step returns none")
    else:
        verdicts.append(from_first(group, rank, size, lambda: _judged_loss(job, losses)))
    for verdict in verdicts:
        report.add(verdict)
    return report
