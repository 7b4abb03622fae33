"""The audit of an implementation of context-parallel attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from contextile import _checks, _core
from contextile.torch._audit import audit_checks
from contextile.torch._audit.audit_checks import Setting
from contextile.torch._audit.deals import Layout, check_layout, deal
from contextile.torch._audit.findings import AuditFinding, AuditReport
from contextile.torch._audit.trial import KNOWN, Trial, declared_by
from contextile.torch._audit.verdicts import agreed_settings, from_first, place_in
from contextile.torch._audit.watch import Stopped

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_MOST_ROWS = 8192  # of a batch: the reference has matrices of rows x rows in fp64
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class _Asked:
    """The arguments of a call, checked."""

    declared: frozenset[str]
    lengths: list[int]
    heads: tuple[int, int]
    head_dim: int
    masks: list[str]
    layout: Layout
    multiple: int
    scale: float | None
    softcap: float
    sinks: bool
    dropout_p: float
    checks: list[str]
    dtype: torch.dtype

    @property
    def pads(self) -> bool:
        return "cu_seqlens_padded" in self.declared

    def settings(self) -> dict[str, Any]:
        """Returns what must be the same on all ranks."""
        layout = self.layout
        text = layout.digest if isinstance(layout, _core.Plan) else layout
        return {
            **self.__dict__,
            "declared": sorted(self.declared),
            "layout": text if isinstance(text, str) else "function",
        }


def _check_heads(heads: Any) -> tuple[int, int]:
    pair = (heads, heads) if isinstance(heads, int) else tuple(heads)
    if len(pair) != 2:
        raise _core.InvalidArgument(f"audit, heads: expected two numbers, found {heads!r:.80}")
    q_heads, kv_heads = (_checks.whole("audit, heads", count, 1) for count in pair)
    if q_heads % kv_heads:
        raise _core.InvalidArgument(
            f"audit, heads: expected query heads in groups of KV heads, found {q_heads} and "
            f"{kv_heads}"
        )
    return q_heads, kv_heads


def _check_taken(declared: frozenset[str], asked: dict[str, bool]) -> None:
    for name, is_asked in asked.items():
        if is_asked and name not in declared:
            raise _core.InvalidArgument(
                f"audit: expected an implementation that takes {name}, which the call needs; found "
                f"one that takes {', '.join(sorted(declared)) or 'none of the known arguments'}"
            )


def _check_names(name: str, values: Any, known: Iterable[str]) -> list[str]:
    found = list(values)
    for value in found:
        if value not in known:
            raise _core.InvalidArgument(
                f"audit, {name}: expected some of {', '.join(known)}, found {value!r:.80}"
            )
    return found


def _asked(attention: Any, size: int, **given: Any) -> _Asked:
    """Checks the arguments of a call. Raises InvalidArgument."""
    declared = declared_by(attention, KNOWN, 3)
    lengths = _checks.lengths("audit, lengths", given["lengths"])
    if not lengths:
        raise _core.InvalidArgument("audit, lengths: expected at least one document, found none")
    masks = [str(_core.parse_mask_spec(str(mask))) for mask in given["masks"]]
    if not masks:
        raise _core.InvalidArgument("audit, masks: expected at least one mask, found none")
    check_layout(given["layout"], lengths, size)
    dropout_p = _checks.number("audit, dropout_p", given["dropout_p"])
    if not 0 <= dropout_p < 1:
        raise _core.InvalidArgument(
            f"audit, dropout_p: expected a probability below 1, found {dropout_p}"
        )
    if given["dtype"] not in _DTYPES:
        raise _core.InvalidArgument(
            f"audit, dtype: expected {', '.join(map(str, _DTYPES))}, found {given['dtype']!r:.80}"
        )
    sinks = _checks.flag("audit, sinks", given["sinks"])
    softcap = _checks.number("audit, softcap", given["softcap"] or 0.0)
    scale = None if given["scale"] is None else _checks.number("audit, scale", given["scale"])
    multiple = given["multiple"]
    if multiple is None:
        multiple = 2 * size if given["layout"] == "zigzag" else 1
    _check_taken(
        declared,
        {
            "cu_seqlens": len(lengths) > 1,
            "mask": len(masks) > 1,
            "scale": scale is not None,
            "softcap": softcap != 0,
            "sink": sinks,
            "dropout_p": dropout_p > 0,
            "dropout_seed": dropout_p > 0,
        },
    )
    known = audit_checks.ALL
    checks = list(known) if given["checks"] is None else given["checks"]
    return _Asked(
        declared,
        lengths,
        _check_heads(given["heads"]),
        _checks.whole("audit, head_dim", given["head_dim"], 1),
        masks,
        given["layout"],
        _checks.whole("audit, multiple", multiple, 1),
        scale,
        softcap,
        sinks,
        dropout_p,
        _check_names("checks", checks, known),
        given["dtype"],
    )


def _other_lengths(asked: _Asked, lengths: list[int]) -> tuple[int, ...] | None:
    """Returns documents that differ from the given ones, of as many tokens if that is possible."""
    if isinstance(asked.layout, _core.Plan):
        return None
    if lengths[::-1] != lengths:
        return tuple(lengths[::-1])
    unit = 1 if asked.pads else asked.multiple
    first = lengths[0] // unit // 3 * unit
    if first == 0:
        return None
    head = (first, lengths[0] - first) if "cu_seqlens" in asked.declared else (first,)
    return (*head, *lengths[1:])


def _short_lengths(asked: _Asked) -> tuple[int, ...] | None:
    if isinstance(asked.layout, _core.Plan):
        return None
    unit = 1 if asked.pads else asked.multiple
    return (unit, 2 * unit) if "cu_seqlens" in asked.declared else (unit,)


def _one_document(asked: _Asked) -> tuple[int, ...] | None:
    """Returns one document of about as many tokens as the given ones have together."""
    if isinstance(asked.layout, _core.Plan):
        return None
    unit = 1 if asked.pads else asked.multiple
    return (max(unit, sum(asked.lengths) // unit * unit),)


def _not_tested(asked: _Asked, setting: Setting, skipped: dict[str, str]) -> list[str]:
    """Returns what the audit of this call could not test, and why."""
    found = []
    for argument, what in (
        ("cu_seqlens", "several documents in a batch"),
        ("cu_seqlens_padded", "padded documents"),
    ):
        if argument not in asked.declared:
            found.append(f"{what}: the implementation takes no {argument}")
    if asked.pads and tuple(asked.lengths) == setting.deal(asked.lengths, asked.masks[0]).rows:
        found.append("padded documents: no document needs padding")
    for name, is_asked, argument in (
        ("sinks", asked.sinks, "sink"),
        ("softcap", asked.softcap != 0, "softcap"),
        ("scale", asked.scale is not None, "scale"),
        ("dropout", asked.dropout_p > 0, "dropout_p"),
    ):
        if not is_asked:
            why = "not asked" if argument in asked.declared else f"it takes no {argument}"
            found.append(f"{name}: {why}")
    left_out = [name for name in audit_checks.ALL if name not in asked.checks]
    if left_out:
        found.append(f"{', '.join(left_out)}: left out")
    found += [f"{name}: {why}" for name, why in skipped.items()]
    return found


def _unneeded(asked: _Asked, setting: Setting) -> dict[str, str]:
    """Returns the asked checks that say nothing here, and why."""
    why = {}
    if setting.other_lengths is None:
        why["lengths"] = "the layout has one set of lengths"
    if setting.short_lengths is None:
        why["short"] = "the layout has one set of lengths"
    if asked.dtype not in audit_checks.LOW_PRECISION:
        why["precision"] = f"errors of {asked.dtype} are bounded by values"
    if asked.dropout_p == 0:
        why["dropout"] = "no dropout_p"
    return {name: text for name, text in why.items() if name in asked.checks}


def _run(asked: _Asked, setting: Setting, subject: str) -> AuditReport:
    report = AuditReport(subject)
    unneeded = _unneeded(asked, setting)
    skipped = {name: text for name, text in unneeded.items() if name != "dropout"}
    names = [name for name in asked.checks if name not in unneeded]
    later: dict[str, list[str]] = {}  # checks left out, by mask
    for name, mask in audit_checks.planned(names, asked.masks):
        if mask in later:
            later[mask].append(name)
            continue
        try:
            verdict = audit_checks.ALL[name](setting, mask)
        except Stopped as stopped:
            report.findings.append(AuditFinding(name, "raises", mask, form=str(stopped)))
            skipped["later checks"] = "ranks still wait for the one that failed"
            break
        report.add(verdict)
        if setting.trial.is_broken:
            skipped["later checks"] = "some ranks failed where others did not"
            break
        if name == "values" and isinstance(verdict, AuditFinding):
            later[mask] = []
    for mask, names in later.items():
        if names:
            skipped[f"{', '.join(names)} ({mask})"] = "values differ already"
    report.not_tested.extend(_not_tested(asked, setting, skipped))
    return report


def audit(
    attention: Callable[..., torch.Tensor],
    group: ProcessGroup | None = None,
    *,
    lengths: Sequence[int],
    masks: Sequence[Any] = ("causal",),
    heads: int | tuple[int, int] = (8, 2),
    head_dim: int = 64,
    layout: Layout = "zigzag",
    multiple: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    dropout_p: float = 0.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    checks: Sequence[str] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Checks anybody's context-parallel attention against attention in fp64. Collective.

    ``attention(q, k, v, ...)`` is called on every rank with the rank's own rows of the batch,
    [rows, heads, head_dim], and returns their output. Its other arguments are chosen by name:
    ``cu_seqlens`` (int32, of the batch without padding), ``cu_seqlens_padded`` (with it),
    ``positions`` (of this rank's rows in their documents), ``rows`` (in the batch), ``mask`` (the
    rule as text), ``scale``, ``softcap``, ``sink`` (float32 [q_heads]), ``dropout_p`` and
    ``dropout_seed``. It gets those that it declares; the report lists what it does not.

    Parameters
    ----------
    attention : callable
        The implementation. With several ranks it is called in a thread of its own, so that an error
        on one rank is reported by all.
    group : ProcessGroup, optional
        Its ranks. Default: the whole job, or this process alone.
    lengths : sequence of int
        Tokens of the documents of a batch.
    masks : sequence of str or MaskSpec
        Mask rules. More than one needs ``mask``.
    heads : int or (int, int)
        Query heads and KV heads.
    head_dim : int
        Dimension of queries, keys and values.
    layout : str, Plan or callable
        The rows of each rank: ``"zigzag"`` (chunks r and 2n-1-r of every document),
        ``"zigzag_batch"`` (of the whole batch), ``"contiguous"``, a plan's, or
        ``layout(cu_seqlens_padded, rank, size)``, which returns rows of the batch; it also gets
        ``mask`` if it has an argument of that name.
    multiple : int, optional
        Documents are padded to multiples of it, or have to be multiples if the implementation takes
        no ``cu_seqlens_padded``. Default: twice the ranks for ``"zigzag"``, else 1.
    scale, softcap : float, optional
        Scale of scores, default ``head_dim ** -0.5``, and their softcap.
    sinks : bool
        Whether query heads have a sink. Its gradients may be shares of ranks or their sum.
    dropout_p : float
        Probability of dropout. Above 0 it is checked, too.
    dtype : dtype
        Of queries, keys and values.
    device : device, optional
        Default: that of the group.
    checks : sequence of str, optional
        Names of the checks to run. Default: all.
    seed : int
        Of the random inputs, the same on all ranks.

    Returns
    -------
    AuditReport
        The same on all ranks.

    Raises
    ------
    InvalidArgument
        An argument is wrong, differs between ranks, or needs what the implementation does not take.

    Examples
    --------
    >>> import torch
    >>> from contextile.torch import audit
    >>> def attention(q, k, v):                      # one process, one document
    ...     q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    ...     attend = torch.nn.functional.scaled_dot_product_attention
    ...     return attend(q, k, v, is_causal=True).transpose(0, 1)
    >>> audit(attention, lengths=[40], heads=2, head_dim=16).ok
    True
    """
    rank, size = place_in(group)
    make = partial(
        _asked,
        attention,
        size,
        lengths=lengths,
        masks=masks,
        heads=heads,
        head_dim=head_dim,
        layout=layout,
        multiple=multiple,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        dtype=dtype,
        checks=checks,
    )
    asked, setting = agreed_settings(
        group, size, "audit", lambda: _prepared(attention, group, rank, size, make(), device, seed)
    )
    name = getattr(attention, "__name__", type(attention).__name__)
    text = layout if isinstance(layout, str) else "plan" if hasattr(layout, "digest") else "rule"
    subject = f"{name} on {size} rank{'s' if size > 1 else ''}, {text}, {str(dtype)[6:]}"
    return _run(asked, setting, subject)


def _prepared(
    attention: Callable[..., torch.Tensor],
    group: ProcessGroup | None,
    rank: int,
    size: int,
    asked: _Asked,
    device: torch.device | str | None,
    seed: int,
) -> tuple[tuple[_Asked, Setting], dict[str, Any]]:
    """Returns what the checks need, and the settings that all ranks must share."""

    def dealt(counts: Sequence[int], mask: str) -> Any:
        return deal(counts, asked.layout, size, asked.multiple, asked.pads, mask)

    num_rows = dealt(asked.lengths, asked.masks[0]).num_rows
    if num_rows > _MOST_ROWS:
        raise _core.InvalidArgument(
            f"audit, lengths: expected at most {_MOST_ROWS} rows in all, found {num_rows}"
        )
    where = torch.device("cpu" if device is None else device)
    if device is None and dist.is_initialized() and dist.get_backend(group) == "nccl":
        where = torch.device("cuda", torch.cuda.current_device())
    trial = Trial(
        attention,
        asked.declared,
        group,
        rank,
        where,
        asked.dtype,
        asked.dropout_p,
        asked.scale is not None,
    )
    setting = Setting(
        trial,
        tuple(asked.lengths),
        _other_lengths(asked, asked.lengths),
        _short_lengths(asked),
        _one_document(asked),
        dealt,
        asked.heads,
        asked.head_dim,
        asked.scale if asked.scale is not None else asked.head_dim**-0.5,
        asked.softcap,
        asked.sinks,
        asked.layout if isinstance(asked.layout, str) else "",
        seed,
        partial(from_first, group, rank, size),
    )
    return (asked, setting), {**asked.settings(), "seed": seed}
