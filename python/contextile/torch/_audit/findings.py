"""The report of an audit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from contextile.torch._audit.faults import CAUSES


@dataclass(frozen=True)
class AuditFinding:
    """The first difference that a check found, and its likely cause.

    ``document``, ``position``, ``head`` and ``rank`` say where it is, or are None: a position is
    counted in its document, and the rank is the one that holds the token. ``error`` is relative to
    the norm of the row, and a sound result has at most ``tolerance``.
    """

    check: str
    cause: str
    mask: str = ""
    form: str = ""
    tensor: str = ""
    document: int | None = None
    position: int | None = None
    head: int | None = None
    rank: int | None = None
    error: float = 0.0
    tolerance: float = 0.0

    @property
    def explanation(self) -> str:
        """The cause as a clause."""
        return CAUSES[self.cause]

    def __str__(self) -> str:
        places = [
            f"{name} {value}"
            for name in ("document", "position", "head", "rank")
            if (value := getattr(self, name)) is not None
        ]
        where = ", ".join(([self.tensor] if self.tensor else []) + places)
        error = f"error {self.error:.3g}, tolerance {self.tolerance:.3g}" if self.tolerance else ""
        found = ": ".join(filter(None, [where, error]))
        head = f"{self.check} ({self.mask})" if self.mask else self.check
        form = f" ({self.form})" if self.form else ""
        return f"{head}: {found or 'failed'}\n    {self.cause}: {self.explanation}{form}"


@dataclass(frozen=True)
class AuditPass:
    """A check that found nothing, and the largest error that it saw."""

    check: str
    mask: str = ""
    error: float = 0.0


@dataclass(frozen=True)
class AuditReport:
    """The outcome of an audit, which is ``ok`` without findings.

    ``not_tested`` says, one sentence each, what the audit could not test and why.
    """

    subject: str
    findings: list[AuditFinding] = field(default_factory=list)
    passed: list[AuditPass] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)

    def add(self, verdict: AuditFinding | AuditPass) -> None:
        """Adds what a check found."""
        if isinstance(verdict, AuditFinding):
            self.findings.append(verdict)
        else:
            self.passed.append(verdict)

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.findings

    @property
    def causes(self) -> list[str]:
        """The causes of all findings, each once, the first finding's first."""
        return list(dict.fromkeys(finding.cause for finding in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON can hold it; errors that are not finite become text."""
        findings = []
        for one in self.findings:
            row = {**asdict(one), "explanation": one.explanation}
            row["error"] = one.error if one.error < float("inf") else "inf"
            findings.append(row)
        return {
            "subject": self.subject,
            "ok": self.ok,
            "findings": findings,
            "passed": [asdict(one) for one in self.passed],
            "not_tested": list(self.not_tested),
        }

    def __str__(self) -> str:
        failed, total = len(self.findings), len(self.findings) + len(self.passed)
        verdict = f"sound in {total} checks" if self.ok else f"{failed} of {total} checks failed"
        lines = [f"audit of {self.subject}: {verdict}"]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [
            f"  {one.check}{f' ({one.mask})' if one.mask else ''}: passed"
            + (f", largest error {one.error:.2g}" if one.error else "")
            for one in self.passed
        ]
        lines += [f"  not tested: {sentence}" for sentence in self.not_tested]
        return "\n".join(lines)
