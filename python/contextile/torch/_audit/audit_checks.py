"""The checks of an audit. Each runs calls on all ranks and judges them on the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contextile.torch._audit import dropout_pattern, exact, faults
from contextile.torch._audit.deals import Deal, allowed_pairs, bounds
from contextile.torch._audit.exact import Inputs, Results
from contextile.torch._audit.faults import Scene
from contextile.torch._audit.findings import AuditFinding, AuditPass
from contextile.torch._audit.trial import Case, Failed, Found, Trial

Verdict = AuditFinding | AuditPass

_TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.float16: 6e-3,
    torch.bfloat16: 4e-2,
}
LOW_PRECISION = (torch.float16, torch.bfloat16)
_LARGE = 60.0  # factor of queries, with which exponentials of scores overflow in fp32
_OVERFLOW = 80.0  # log-sum-exp from which they may
_STEP = 1024.0  # change of a value that is perturbed
_MOST_ROUNDING = 3.0  # error over that of a sound implementation in the same precision


@dataclass(frozen=True)
class Setting:
    """An audit's implementation and arguments, which all checks share."""

    trial: Trial
    lengths: tuple[int, ...]
    other_lengths: tuple[int, ...] | None
    short_lengths: tuple[int, ...] | None
    one_document: tuple[int, ...] | None
    deal: Callable[[Sequence[int], str], Deal]
    heads: tuple[int, int]
    head_dim: int
    scale: float
    softcap: float
    has_sink: bool
    layout: str
    seed: int
    judge: Callable[[Callable[[], Verdict]], Verdict]
    passing: dict[str, Found] = field(default_factory=dict)  # by mask, of its values

    @property
    def tolerance(self) -> float:
        return _TOLERANCES[self.trial.dtype]

    def inputs(self, deal: Deal, seed: int = 0) -> Inputs:
        """Returns random inputs of a batch."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)

        def random(count: int) -> Tensor:
            drawn = torch.randn(deal.num_rows, count, self.head_dim, generator=generator)
            return drawn.to(self.trial.dtype)

        q_heads, kv_heads = self.heads
        q, k, v, dout = random(q_heads), random(kv_heads), random(kv_heads), random(q_heads)
        dout[~deal.is_token] = 0
        sink = torch.randn(q_heads, generator=generator) if self.has_sink else None
        return Inputs(q, k, v, dout, self.scale, self.softcap, sink, seed=self.seed + seed)

    def case(self, mask: str, lengths: Sequence[int] | None = None, seed: int = 0) -> Case:
        deal = self.deal(self.lengths if lengths is None else lengths, mask)
        return Case(self.inputs(deal, seed), deal, mask)


def _scene(setting: Setting, case: Case, tolerance: float) -> Scene:
    inputs, dtype = case.inputs, setting.trial.dtype
    allowed = allowed_pairs(case.mask, case.deal)
    # Rows that nearly cancel out have the rounding errors of large ones.
    truth, sound = exact.attend(inputs, allowed), exact.in_precision(inputs, allowed, dtype)
    norms = {
        name: (getattr(sound, name) - getattr(truth, name)).norm(dim=2) * _MOST_ROUNDING
        for name in exact.NAMES[:4]
    }
    assert truth.dq_spread is not None and truth.dk_spread is not None
    # The output is rounded in the row's sum of dout * out; fp32 and fp64 have no wider sums.
    eps = torch.finfo(dtype).eps * (1 if dtype in LOW_PRECISION else 8)
    norms["dq"] = torch.maximum(norms["dq"], eps * truth.dq_spread)
    norms["dk"] = torch.maximum(norms["dk"], eps * truth.dk_spread)
    least = Results(*(norm / tolerance for norm in norms.values()))
    return Scene(case.deal, inputs, case.mask, allowed, tolerance, setting.layout, least)


def _first_wrong(check: str, scene: Scene, found: Results, truth: Results) -> AuditFinding | float:
    """Returns the first difference, without its cause, or the largest error."""
    deal, largest = scene.deal, 0.0
    for name in exact.NAMES[:4]:
        errors = scene.errors(found, truth, name)
        largest = max(largest, float(errors.max()))
        wrong = (errors > scene.tolerance).nonzero()
        if len(wrong):
            row, head = (int(x) for x in wrong[0])
            return AuditFinding(
                check,
                "unknown",
                scene.mask,
                tensor=name,
                document=int(deal.documents[row]),
                position=int(deal.positions[row]),
                head=head,
                rank=int(deal.owners[row]),
                error=float(errors[row, head]),
                tolerance=scene.tolerance,
            )
    return largest


def _named(finding: AuditFinding, cause: str, form: str = "") -> AuditFinding:
    fields = {**finding.__dict__, "cause": faults.check_known(cause), "form": form}
    return AuditFinding(**fields)


def _sink_verdict(check: str, scene: Scene, found: Found, truth: Results) -> AuditFinding | None:
    """Judges the gradient of the sink: its sum over ranks is right, or every rank has it whole."""
    if found.dsinks is None or truth.dsink is None:
        return None
    limit = 10 * scene.tolerance
    whole = max(float(exact.sink_errors(one, truth.dsink).max()) for one in found.dsinks)
    total = found.dsinks.double().sum(0)
    errors = exact.sink_errors(total, truth.dsink)
    if min(whole, float(errors.max())) <= limit:
        return None
    cause = "sink_without_gradient" if float(total.abs().max()) == 0 else "unknown"
    if cause == "unknown" and scene.deal.size > 1:
        for factor in (scene.deal.size, 1 / scene.deal.size):
            if float(exact.sink_errors(total / factor, truth.dsink).max()) <= limit:
                cause = "gradient_times_cp"
    return AuditFinding(
        check,
        cause,
        scene.mask,
        tensor="dsink",
        head=int(errors.argmax()),
        error=float(errors.max()),
        tolerance=limit,
    )


def _judged(check: str, setting: Setting, case: Case, found: Found, factor: float = 1.0) -> Verdict:
    """Compares a call with fp64 and names the cause of the first difference."""
    scene = _scene(setting, case, factor * setting.tolerance)
    truth = exact.attend(case.inputs, scene.allowed)
    first = _first_wrong(check, scene, found.results, truth)
    if isinstance(first, AuditFinding):
        is_missing = first.tensor in found.missing
        cause = ("no_gradient", "") if is_missing else None
        return _named(first, *(cause or faults.explain(found.results, truth, scene)))
    if found.are_changed:
        return AuditFinding(check, "inputs_changed", case.mask)
    return _sink_verdict(check, scene, found, truth) or AuditPass(check, case.mask, first)


def _raised(check: str, mask: str, error: Failed, cause: str = "raises") -> AuditFinding:
    return AuditFinding(check, cause, mask, form=str(error))


# ----------------------------------------------------------------------------------------- checks


def values(setting: Setting, mask: str) -> Verdict:
    """Output and gradients of the given documents."""
    case = setting.case(mask)
    try:
        found = setting.trial.run([case])[0]
    except Failed as error:
        return _raised("values", mask, error)
    verdict = setting.judge(lambda: _judged("values", setting, case, found))
    if isinstance(verdict, AuditPass):
        setting.passing[mask] = found
    return verdict


def _perturbed_rows(deal: Deal) -> list[int]:
    """Returns rows whose change shows leaks: at borders of documents and shards, and inside."""
    begins = bounds(deal.rows)
    longest = max(range(len(deal.lengths)), key=lambda d: deal.lengths[d])
    rows = [begins[longest] + deal.lengths[longest] // 2, begins[0] + deal.lengths[0] - 1]
    if len(deal.rows) > 1:
        rows.append(begins[1])
    borders = (deal.owners[1:] != deal.owners[:-1]).nonzero().flatten() + 1
    rows += [int(row) for row in borders if bool(deal.is_token[int(row)])][:1]
    return list(dict.fromkeys(rows))


def perturbation(setting: Setting, mask: str) -> Verdict:
    """Rows that move when the value of one token changes are those that attend it."""
    case = setting.case(mask)
    rows = _perturbed_rows(case.deal)
    cases = []
    for row in rows:
        v = case.inputs.v.clone()
        v[row] += _STEP
        cases.append(Case(exact.changed(case.inputs, v=v), case.deal, mask))
    try:
        base = setting.trial.run([case], backward=False)[0].results.out
        outs = [setting.trial.run([one], backward=False)[0].results.out for one in cases]
    except Failed as error:
        return _raised("perturbation", mask, error)

    def judge() -> Verdict:
        scene = _scene(setting, case, setting.tolerance)
        for row, out in zip(rows, outs, strict=True):
            wrong = _wrong_moves(scene, row, base, out)
            if wrong is not None:
                return wrong
        return AuditPass("perturbation", mask)

    return setting.judge(judge)


def _wrong_moves(scene: Scene, row: int, base: Tensor, out: Tensor) -> AuditFinding | None:
    deal = scene.deal
    eps = torch.finfo(scene.inputs.q.dtype).eps
    sound = scene.allowed[:, row]
    # The weight of the token is exp(score - lse), so what it adds follows from the truth.
    one = torch.zeros_like(scene.allowed)
    one[:, row] = sound
    lse = exact.attend(scene.inputs, scene.allowed).lse
    alone = exact.attend(exact.changed(scene.inputs, sink=None), one).lse
    assert lse is not None and alone is not None
    step = torch.exp(alone - lse).nan_to_num(0.0) * _STEP * base.shape[2] ** 0.5
    moved = (out.double() - base.double()).norm(dim=2)
    scale = base.double().norm(dim=2)
    counts = deal.is_token[:, None]
    leaking = ((moved > 8 * eps * scale) & ~sound[:, None] & counts).nonzero()
    still = ((moved < 0.1 * step) & (step > 64 * eps * scale) & sound[:, None] & counts).nonzero()
    if not len(leaking) and not len(still):
        return None
    at, head = (int(x) for x in (leaking if len(leaking) else still)[0])
    position, key = int(deal.positions[at]), int(deal.positions[row])
    if len(leaking):
        cause = "future_leak" if key > position else "mask_leak"
        if int(deal.documents[at]) != int(deal.documents[row]):
            cause = "packing_leak"
    else:
        is_last = key == deal.lengths[int(deal.documents[row])] - 1
        cause = "last_token_lost" if is_last else "tokens_lost"
    return AuditFinding(
        "perturbation",
        cause,
        scene.mask,
        form=f"of position {key} of document {int(deal.documents[row])}",
        tensor="out",
        document=int(deal.documents[at]),
        position=position,
        head=head,
        rank=int(deal.owners[at]),
        error=float(moved[at, head] / max(float(scale[at, head]), 1e-30)),
        tolerance=8 * eps,
    )


def contiguity(setting: Setting, mask: str) -> Verdict:
    """Views of a fused projection, and a gradient of the output with other strides."""
    case = setting.case(mask)
    case = Case(exact.changed(case.inputs, strides=True), case.deal, mask)
    try:
        found = setting.trial.run([case])[0]
    except Failed as error:
        return _raised("contiguity", mask, error, "non_contiguous_input")

    def judge() -> Verdict:
        verdict = _judged("contiguity", setting, case, found)
        return (
            _named(verdict, "non_contiguous_input")
            if isinstance(verdict, AuditFinding)
            else verdict
        )

    return setting.judge(judge)


def lengths(setting: Setting, mask: str) -> Verdict:
    """Other documents, after a call with the given ones."""
    case = setting.case(mask, setting.other_lengths, seed=1)
    try:
        setting.trial.run([setting.case(mask)])
        found = setting.trial.run([case])[0]
        again = setting.trial.run([case])[0]
    except Failed as error:
        return _raised("lengths", mask, error)

    def judge() -> Verdict:
        verdict = _judged("lengths", setting, case, found)
        if isinstance(verdict, AuditPass):
            return verdict
        old = setting.case(mask).deal
        if old.num_rows == case.deal.num_rows and old.rows != case.deal.rows:
            stale = exact.attend(case.inputs, allowed_pairs(mask, old))
            scene = _scene(setting, case, setting.tolerance)
            if scene.worst(found.results, stale, ("out",)) <= 2 * setting.tolerance:
                return _named(verdict, "stale_lengths")
        if verdict.cause in ("unknown", "not_finite") and isinstance(
            _judged("lengths", setting, case, again), AuditPass
        ):
            return _named(verdict, "state_kept", "a repeated call is right")
        return verdict

    return setting.judge(judge)


def interleaving(setting: Setting, mask: str) -> Verdict:
    """Two forward calls before their two backward calls, as pipelines have them."""
    cases = [setting.case(mask, seed=seed) for seed in (0, 2)]
    try:
        both = setting.trial.run(cases)
    except Failed as error:
        return _raised("interleaving", mask, error)

    def judge() -> Verdict:
        for case, found in zip(cases, both, strict=True):
            verdict = _judged("interleaving", setting, case, found)
            if isinstance(verdict, AuditFinding):
                is_backward = verdict.tensor != "out"
                return _named(verdict, "stale_kv_in_backward" if is_backward else "state_kept")
        return verdict

    return setting.judge(judge)


def short(setting: Setting, mask: str) -> Verdict:
    """Documents of few tokens, which leave ranks without any where the layout does."""
    case = setting.case(mask, setting.short_lengths, seed=3)
    try:
        found = setting.trial.run([case])[0]
    except Failed as error:
        return _raised("short", mask, error)
    return setting.judge(lambda: _judged("short", setting, case, found))


def large_scores(setting: Setting, mask: str) -> Verdict:
    """Scores whose exponentials overflow, or vanish, unless their maximum is subtracted."""
    case = setting.case(mask, seed=4)
    case = Case(exact.changed(case.inputs, q=case.inputs.q * _LARGE), case.deal, mask)
    try:
        found = setting.trial.run([case])[0]
    except Failed as error:
        return _raised("large_scores", mask, error)
    factor = max(1.0, 2e-3 / setting.tolerance)

    def judge() -> Verdict:
        verdict = _judged("large_scores", setting, case, found, factor)
        if isinstance(verdict, AuditFinding) and verdict.cause in ("unknown", "not_finite"):
            scene = _scene(setting, case, factor * setting.tolerance)
            truth = exact.attend(case.inputs, scene.allowed)
            assert truth.lse is not None
            wrong = scene.errors(found.results, truth, "out") > scene.tolerance
            if bool(wrong.any()) and bool((truth.lse[wrong].abs() > _OVERFLOW).all()):
                return _named(verdict, "lse_merged_without_maximum")
        return verdict

    return setting.judge(judge)


def precision(setting: Setting, mask: str) -> Verdict:
    """Mean error where sums grow, against that of sums in fp32."""
    case = setting.case(mask, setting.one_document, seed=5)
    inputs, tokens = case.inputs, case.deal.is_token[:, None, None]
    # Equal weights of equal values add up in equal steps, whose rounding errors do, too.
    lifted = exact.changed(
        inputs,
        q=torch.zeros_like(inputs.q),
        v=(1 + inputs.v[:1] / 8).expand_as(inputs.v).contiguous(),
        dout=torch.where(tokens, 1 + inputs.dout[:1] / 8, 0.0).to(inputs.dout.dtype),
    )
    case = Case(lifted, case.deal, mask)
    try:
        found = setting.trial.run([case])[0]
    except Failed as error:
        return _raised("precision", mask, error)

    def judge() -> Verdict:
        allowed = allowed_pairs(mask, case.deal)
        truth = exact.attend(lifted, allowed)
        sound = exact.in_precision(lifted, allowed, setting.trial.dtype)
        half = case.deal.positions >= torch.tensor(case.deal.lengths)[case.deal.documents] // 2
        largest = 0.0
        for name, many in (("out", half), ("dv", ~half)):  # rows with long sums
            rows = case.deal.is_token & many
            if not bool(rows.any()):
                continue
            error = exact.mean_error(getattr(found.results, name), getattr(truth, name), rows)
            limit = _MOST_ROUNDING * exact.mean_error(
                getattr(sound, name), getattr(truth, name), rows
            )
            if name == "dv":  # some add the rounded shares of query heads
                limit *= (setting.heads[0] / setting.heads[1]) ** 0.5
            largest = max(largest, error)
            if not error <= limit:
                return AuditFinding(
                    "precision",
                    "low_precision_accumulation",
                    mask,
                    tensor=name,
                    error=error,
                    tolerance=limit,
                )
        return AuditPass("precision", mask, largest)

    return setting.judge(judge)


def determinism(setting: Setting, mask: str) -> Verdict:
    """The same call twice."""
    case = setting.case(mask)
    try:
        first, second = (setting.trial.run([case])[0].results for _ in range(2))
    except Failed as error:
        return _raised("determinism", mask, error)

    def judge() -> Verdict:
        for name in exact.NAMES[:4]:
            one, other = getattr(first, name), getattr(second, name)
            if not torch.equal(one, other):
                row = int((one != other).flatten(1).any(1).nonzero()[0])
                return AuditFinding(
                    "determinism",
                    "nondeterministic",
                    mask,
                    tensor=name,
                    document=int(case.deal.documents[row]),
                    position=int(case.deal.positions[row]),
                    rank=int(case.deal.owners[row]),
                    error=float((one.double() - other.double()).abs().max()),
                )
        return AuditPass("determinism", mask)

    return setting.judge(judge)


def dropout(setting: Setting, mask: str) -> Verdict:
    """The pattern of dropped weights: its rate, its repetitions, and the same one in backward."""
    case = setting.case(mask, seed=6)
    try:
        outs = [
            setting.trial.run([Case(probe, case.deal, mask)], backward=False)[0].results.out
            for probe in dropout_pattern.probes(case.inputs, case.deal.num_rows)
        ]
        dropped = Case(exact.changed(case.inputs, drops=True), case.deal, mask)
        found = setting.trial.run([dropped])[0]
    except Failed as error:
        return _raised("dropout", mask, error)

    def judge() -> Verdict:
        allowed = allowed_pairs(mask, case.deal)
        factors = dropout_pattern.factors_of(outs, allowed)
        blamed = dropout_pattern.blame(factors, allowed, case.deal, setting.trial.dropout_p)
        if blamed is not None:
            return AuditFinding("dropout", blamed[0], mask, form=blamed[1])
        realized = Case(exact.changed(case.inputs, factors=factors), case.deal, mask)
        verdict = _judged("dropout", setting, realized, found, 4.0)
        if isinstance(verdict, AuditFinding):
            is_backward = verdict.tensor in faults.GRADIENTS
            return _named(verdict, "dropout_differs_in_backward" if is_backward else verdict.cause)
        return verdict

    return setting.judge(judge)


ALL: dict[str, Callable[[Setting, str], Verdict]] = {
    "values": values,
    "perturbation": perturbation,
    "contiguity": contiguity,
    "lengths": lengths,
    "interleaving": interleaving,
    "short": short,
    "large_scores": large_scores,
    "precision": precision,
    "determinism": determinism,
    "dropout": dropout,
}
FOR_EVERY_MASK = ("values", "perturbation")


def planned(names: Sequence[str], masks: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the checks to run, with their masks, in order."""
    for name in names:
        for mask in masks if name in FOR_EVERY_MASK else masks[:1]:
            yield name, mask
