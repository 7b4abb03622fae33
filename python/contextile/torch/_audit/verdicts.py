"""Ranks of an audit agree on its settings, and on the verdicts of the first one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from contextile import _core
from contextile.torch._audit.faults import check_known
from contextile.torch._audit.findings import AuditFinding, AuditPass
from contextile.torch._ranks import messages

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
_NUMBERS = ("document", "position", "head", "rank")
_FLOATS = ("error", "tolerance")
_TEXTS = ("check", "mask", "form", "tensor")


def agreed_settings(
    group: ProcessGroup | None,
    size: int,
    where: str,
    make: Callable[[], tuple[T, dict[str, Any]]],
) -> T:
    """Returns what ``make`` makes if it fails on no rank and its settings are the same on all.

    Raises InvalidArgument on every rank otherwise. Collective.
    """
    made: T | None = None
    problem: _core.InvalidArgument | None = None
    settings: dict[str, str] = {}
    try:
        made, found = make()
        settings = {name: repr(value)[:400] for name, value in found.items()}
    except _core.InvalidArgument as error:
        problem = error
    if size > 1:
        mine = [str(problem)[:1000] if problem else "", list(settings), list(settings.values())]
        every = messages.gather_over(group, where, mine, _check_settings)
        for rank, (told, _, _) in enumerate(every):
            if told and problem is None:
                raise _core.InvalidArgument(f"{where}, rank {rank}: {told}")
        for rank, (_, names, theirs) in enumerate(every):
            for name, first, other in zip(names, every[0][2], theirs, strict=False):
                if first != other and problem is None:
                    raise _core.InvalidArgument(
                        f"{where}, {name}: expected the same on all ranks, found {first:.80} on "
                        f"rank 0 and {other:.80} on rank {rank}"
                    )
    if problem is not None:
        raise problem
    assert made is not None
    return made


def place_in(group: ProcessGroup | None) -> tuple[int, int]:
    """Returns this rank and the number of ranks; 0 and 1 without ``torch.distributed``.

    Raises InvalidArgument if the group is none, or without this rank.
    """
    if group is None and not dist.is_initialized():
        return 0, 1
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise _core.InvalidArgument(f"group: expected a ProcessGroup, found {group!r:.80}")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise _core.InvalidArgument("group: expected one that this rank is in, found another")
    return rank, size


def _check_settings(value: Any) -> tuple[str, list[str], list[str]]:
    three = messages.items(value, lambda item: item)
    if len(three) != 3:
        raise _core.InvalidArgument(f"expected three items, found {len(three)}")
    names, values = (messages.items(item, messages.text) for item in three[1:])
    return messages.text(three[0]), names, values


def _encoded(verdict: AuditFinding | AuditPass) -> dict[str, Any]:
    row = dict(verdict.__dict__)
    return {name: repr(v) if isinstance(v, float) else v for name, v in row.items()}


def _decoded(value: Any) -> AuditFinding | AuditPass:
    names = [field.name for field in fields(AuditFinding)]
    is_finding = isinstance(value, dict) and "cause" in value
    if not is_finding:
        check, mask, error = messages.fields(value, "check", "mask", "error")
        return AuditPass(messages.text(check), messages.text(mask), _float(error))
    row: dict[str, Any] = dict(zip(names, messages.fields(value, *names), strict=True))
    for name in _TEXTS:
        row[name] = messages.text(row[name])
    for name in _NUMBERS:
        if row[name] is not None:
            row[name] = messages.whole(row[name], 0, 2**40)
    for name in _FLOATS:
        row[name] = _float(row[name])
    check_known(messages.text(row["cause"]))
    return AuditFinding(**row)


def _float(value: Any) -> float:
    try:
        return float(messages.text(value, 40))
    except ValueError:
        raise _core.InvalidArgument(f"expected a number, found {messages.shown(value)}") from None


def from_first(
    group: ProcessGroup | None,
    rank: int,
    size: int,
    judge: Callable[[], AuditFinding | AuditPass],
) -> AuditFinding | AuditPass:
    """Returns the verdict that the first rank reaches. Collective."""
    if size == 1:
        return judge()
    mine: Any = None
    failure: Exception | None = None
    if rank == 0:
        try:
            mine = _encoded(judge())
        except Exception as error:
            failure, mine = error, {"failure": f"{type(error).__name__}: {error}"[:1000]}

    def read(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict) and "failure" in value:
            return messages.text(value["failure"])
        return _decoded(value)

    verdict = messages.gather_over(group, "audit, verdict", mine, read)[0]
    if failure is not None:
        raise failure
    if not isinstance(verdict, (AuditFinding, AuditPass)):
        raise _core.TransportError(f"audit, verdict: rank 0: {verdict}")
    return verdict
