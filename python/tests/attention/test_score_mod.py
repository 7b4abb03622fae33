"""FlexAttention's score_mod as a softcap and a bias."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from contextile.torch import (
    Alibi,
    Executor,
    RelativeBias,
    Softcap,
    alibi,
    attention,
    from_score_mod,
    relative_bias,
)

SLOPES = torch.tensor([0.5, 0.25, 0.125])
TABLE = torch.randn(3, 9, generator=torch.Generator().manual_seed(1))
LEARNED = TABLE.clone().requires_grad_()


def by_table(score, b, h, q, k):
    return score + TABLE[h, (k - q + 6).clamp(0, 8)]


def found_in(score_mod):
    return from_score_mod(score_mod, heads=3, num_tokens=60)


def test_functions_of_every_kind_are_recognised():
    assert found_in(lambda score, b, h, q, k: score) == (0.0, None)
    found = found_in(lambda score, b, h, q, k: score - SLOPES[h] * (q - k))
    assert (
        found.softcap == 0.0
        and isinstance(found.bias, Alibi)
        and torch.equal(found.bias.slopes, SLOPES)
    )
    found = found_in(by_table)
    assert isinstance(found.bias, RelativeBias) and found.bias.first_offset == -6
    assert torch.equal(found.bias.table, TABLE)
    assert found_in(lambda score, b, h, q, k: 20 * torch.tanh(score / 20)) == (20.0, None)
    found = found_in(lambda score, b, h, q, k: by_table(5 * torch.tanh(score / 5), b, h, q, k))
    assert found.softcap == 5.0 and torch.equal(found.bias.table, TABLE)


def test_declared_functions_are_taken_as_they_are():
    learned = relative_bias(TABLE.clone().requires_grad_(), -6)
    assert found_in(learned).bias is learned
    assert found_in(alibi(SLOPES)).bias.slopes is SLOPES
    assert found_in(Softcap(30.0)) == (30.0, None)


def test_declared_functions_are_score_mods_themselves():
    index = torch.arange(12)
    score = torch.zeros(3, 12, 12)
    heads, q, k = torch.arange(3)[:, None, None], index[None, :, None], index[None, None, :]
    assert torch.equal(
        relative_bias(TABLE, -6)(score, 0, heads, q, k), by_table(score, 0, heads, q, k)
    )
    assert torch.equal(
        alibi(SLOPES)(score, 0, heads, q, k), SLOPES[:, None, None] * (k - q).expand(3, 12, 12)
    )
    assert torch.equal(Softcap(2.0)(score + 3, 0, heads, q, k), 2 * torch.tanh((score + 3) / 2))


@pytest.mark.parametrize(
    ("score_mod", "message"),
    [
        (lambda score, b, h, q, k: score * 2, "another function of the score"),
        (lambda score, b, h, q, k: 5 * torch.tanh((score + k) / 5), "another"),
        (lambda score, b, h, q, k: score + 0.01 * q * k, "depends on k - q and the head alone"),
        (
            lambda score, b, h, q, k: torch.where(q >= k, score, -float("inf")),
            "another function of the score",
        ),
        (lambda score, b, h, q, k: score + TABLE[b, 0], "looks at the batch"),
        (lambda score, b, h, q, k: score + LEARNED[h, 0], "require gradients"),
    ],
)
def test_other_functions_are_refused(score_mod, message):
    with pytest.raises(ct.InvalidArgument, match=message):
        found_in(score_mod)


@pytest.mark.parametrize(
    "score_mod", [by_table, lambda score, b, h, q, k: score - SLOPES[h] * (q - k)]
)
def test_a_function_that_was_tried_for_short_documents_is_refused_for_longer_ones(score_mod):
    executor = Executor(ct.inproc_group(1)[0])
    for length in (60, 61):
        executor.prepare(
            ct.plan(
                [length], cluster="local:1x1", strategy="zigzag", heads=3, head_dim=16, dtype="f32"
            )
        )
        q = torch.randn(length, 3, 16)
        if length == 60:
            attention(q, q, q, executor=executor, bias=found_in(score_mod).bias)
        else:
            with pytest.raises(
                ct.InvalidArgument,
                match="expected one for documents of 61 tokens, found .* num_tokens=60",
            ):
                attention(q, q, q, executor=executor, bias=found_in(score_mod).bias)


def test_what_is_no_function_is_refused():
    for given in (None, 3):
        with pytest.raises(
            ct.InvalidArgument, match=f"score_mod: expected a function, found {given}"
        ):
            found_in(given)
