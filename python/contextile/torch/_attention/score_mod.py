"""Recognises FlexAttention's ``score_mod`` as a softcap and a bias by position."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile import _checks, _core
from contextile._flex.rows import check_untouched
from contextile.torch._attention.bias import Alibi, Bias, RelativeBias, Softcap

_SAMPLES = 1 << 16  # pairs of tokens
_MOST_OFFSETS = 1 << 17
_SCORES = (-40.0, -3.0, -0.5, 0.25, 1.0, 7.0, 60.0)
_BOUND = 1e-6  # relative: constants may be fp32


class ScoreMod(NamedTuple):
    """The meaning of a ``score_mod``; see ``from_score_mod``."""

    softcap: float  # for contextile.plan; 0: none
    bias: Bias | None  # for attention


def _refuse(expected: str, found: str) -> _core.InvalidArgument:
    return _core.InvalidArgument(
        f"score_mod: expected {expected}, found {found}; alibi, relative_bias and Softcap of "
        "contextile.torch say which one is meant"
    )


def _evaluate(score_mod: Any, score: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Evaluates score_mod in fp64 at [points] each."""
    batch = torch.tensor(0)
    of_point = lambda s, h, q_index, k_index: score_mod(s, batch, h, q_index, k_index)
    try:
        found = torch.vmap(of_point)(score, head, q, k)
    except Exception as error:
        raise _core.InvalidArgument(
            "score_mod: expected a function of (score, batch, head, q, k) that returns a Tensor, "
            f"found {type(error).__name__}: {error}"
        ) from error
    if found.requires_grad:
        raise _refuse(
            "constants",
            "numbers that require gradients, which a plan would drop: give their table to "
            "relative_bias",
        )
    doubled: Tensor = found.double()
    return doubled


def _is_close(found: Tensor, expected: Tensor) -> bool:
    size = expected.abs().max().clamp(min=1.0)
    return bool(torch.isfinite(found).all()) and bool(
        ((found - expected).abs() <= _BOUND * size).all()
    )


def _softcap_of(score_mod: Any, head: Tensor, q: Tensor, k: Tensor) -> float:
    """Returns the softcap at some points. Raises unless scores are kept or capped before a bias."""
    rows = len(head)
    scores = torch.tensor(_SCORES, dtype=torch.float64)

    def every(x: Tensor) -> Tensor:
        return x.repeat_interleave(len(_SCORES))

    zero = _evaluate(score_mod, torch.zeros(rows, dtype=torch.float64), head, q, k)
    found = (
        _evaluate(score_mod, scores.repeat(rows), every(head), every(q), every(k)).reshape(rows, -1)
        - zero[:, None]
    )
    if _is_close(found, scores.expand_as(found)):
        return 0.0
    at_most = (
        _evaluate(score_mod, torch.full((rows,), 1e30, dtype=torch.float64), head, q, k) - zero
    )
    cap = float(at_most[0])
    capped = cap * torch.tanh(scores / cap) if 0 < cap < 1e29 else scores
    if not _is_close(found, capped.expand_as(found)):
        raise _refuse(
            "score + bias or cap * tanh(score / cap) + bias", "another function of the score"
        )
    return cap


def from_score_mod(score_mod: Any, *, heads: int, num_tokens: int) -> ScoreMod:
    """Recognises a ``score_mod(score, batch, head, q, k)`` of FlexAttention.

    It must be a softcap, a bias that depends on ``k - q`` and the head alone, or the bias after the
    softcap. The results of ``alibi``, ``relative_bias``, ``t5_bias`` and ``Softcap`` are taken as
    they are. Other functions are evaluated at every offset and at 65,536 pairs of tokens: one that
    differs elsewhere is not noticed.

    Parameters
    ----------
    score_mod
        The function. Numbers that it reads must be constants; the table of ``relative_bias`` alone
        gets gradients.
    heads : int
        Number of query heads.
    num_tokens : int
        Number of tokens of the longest document, for which the bias is then accepted.

    Returns
    -------
    ScoreMod
        ``softcap`` for ``contextile.plan`` and ``bias`` for ``attention``.

    Raises
    ------
    InvalidArgument
        The function is none of these.

    Examples
    --------
    >>> from contextile.torch import from_score_mod
    >>> slope = lambda score, b, h, q, k: score - 0.5 * (q - k)
    >>> found = from_score_mod(slope, heads=2, num_tokens=100)
    >>> found.softcap, found.bias.slopes
    (0.0, tensor([0.5000, 0.5000]))
    """
    if isinstance(score_mod, Softcap):
        return ScoreMod(float(score_mod.cap), None)
    if isinstance(score_mod, (Alibi, RelativeBias)):
        return ScoreMod(0.0, score_mod)
    if not callable(score_mod):
        raise _core.InvalidArgument(f"score_mod: expected a function, found {score_mod!r:.40}")
    _checks.count("score_mod, heads", heads)
    _checks.count("score_mod, num_tokens", num_tokens)
    if heads < 1 or not 1 <= num_tokens <= _MOST_OFFSETS // 2:
        raise _core.InvalidArgument(
            f"score_mod: expected at least 1 head and 1 to {_MOST_OFFSETS // 2} tokens, found "
            f"{heads} and {num_tokens}"
        )
    zero = torch.tensor(0)
    check_untouched(
        lambda batch: score_mod(torch.tensor(0.0), batch, zero, zero, zero),
        "score_mod: expected a function of score, head, q and k alone, found one that looks at "
        "the batch",
    )
    generator = torch.Generator().manual_seed(0)

    def draw(most: int, count: int) -> Tensor:
        return torch.randint(most, (count,), generator=generator)

    cap = _softcap_of(score_mod, draw(heads, 64), draw(num_tokens, 64), draw(num_tokens, 64))
    # The bias by head and offset, at a pair for each, and whether other pairs have it, too.
    offsets = torch.arange(1 - num_tokens, num_tokens)
    by_offset = torch.stack(
        [_bias(score_mod, torch.full_like(offsets, h), offsets) for h in range(heads)]
    )
    head, q, k = draw(heads, _SAMPLES), draw(num_tokens, _SAMPLES), draw(num_tokens, _SAMPLES)
    found = _evaluate(score_mod, torch.zeros(_SAMPLES, dtype=torch.float64), head, q, k)
    if not _is_close(found, by_offset[head, k - q + num_tokens - 1]):
        raise _refuse("a bias that depends on k - q and the head alone", "another one")
    return ScoreMod(cap, _recognised(by_offset, offsets))


def _bias(score_mod: Any, head: Tensor, offsets: Tensor) -> Tensor:
    q = (-offsets).clamp(min=0)
    return _evaluate(
        score_mod, torch.zeros(len(offsets), dtype=torch.float64), head, q, q + offsets
    )


def _recognised(by_offset: Tensor, offsets: Tensor) -> Bias | None:
    if not bool(by_offset.any()):
        return None
    num_tokens = int(offsets[-1]) + 1
    slopes = by_offset[:, -1] / max(1, int(offsets[-1]))
    if _is_close(by_offset, slopes[:, None] * offsets):
        return Alibi(slopes.float(), num_tokens)
    # Cut the offsets before the first and after the last change, which count as the outermost.
    change = torch.nonzero((by_offset[:, 1:] != by_offset[:, :-1]).any(0))[:, 0]
    first, last = (0, 0) if not len(change) else (int(change[0]), int(change[-1]) + 1)
    table = by_offset[:, first : last + 1].float().contiguous()
    return RelativeBias(
        table, torch.arange(table.shape[1], dtype=torch.int32), int(offsets[first]), num_tokens
    )
