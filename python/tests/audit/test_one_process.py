"""Audits without a group, and faults that one process can have."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from contextile.torch import audit
from own_attention import allowed_pairs, factors_of, scores_of

SMALL = {"heads": (4, 2), "head_dim": 8, "lengths": [40]}
# Arguments of a fault, the named cause, and arguments of the audit.
FAULTS = [
    ({"mask": "full"}, "mask_dropped", {}),
    ({"mask": "sliding_window:6"}, "window_off_by_one", {"masks": ["sliding_window:7"]}),
    ({"hidden": -20.0}, "future_leak", {}),
    ({"hidden": -17.0, "ignored": "window"}, "mask_leak", {"masks": ["sliding_window:15"]}),
    ({"scale": 1.0}, "scale_ignored", {}),
    ({"softcap": 0.0}, "softcap_ignored", {"softcap": 2.0}),
    ({"ignored": "sink"}, "sink_ignored", {"sinks": True}),
    ({"ignored": "sink gradient"}, "sink_without_gradient", {"sinks": True}),
    ({"ignored": "v gradient"}, "no_gradient", {}),
    ({"ignored": "order of heads"}, "kv_heads_misassigned", {}),
    ({"gradient": 3.0}, "gradient_scaled", {}),
    ({"ignored": "inputs"}, "inputs_changed", {}),
    ({"factor": torch.nan}, "not_finite", {}),
    ({"factor": 1.01}, "unknown", {}),
    ({"ignored": "heads"}, "dropout_repeats_over_heads", {"dropout_p": 0.4}),
    ({"p": 0.3}, "dropout_rate", {"dropout_p": 0.4}),
    ({"ignored": "forward mask"}, "dropout_differs_in_backward", {"dropout_p": 0.4}),
]


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad, None


def attend(q, k, v, *, mask="causal", scale=None, softcap=0.0, sink=None, dropout_p=0.0,
           dropout_seed=None, hidden=-torch.inf, ignored="", gradient=1.0, factor=1.0):  # fmt: skip
    """Attention of one document."""
    heads, num = q.shape[1], len(q)
    group = heads // k.shape[1]
    if ignored == "v gradient":
        v = v.detach()
    if ignored == "inputs":
        q.data[0] *= 2
    q = _Scaled.apply(q, gradient)
    if ignored == "order of heads":
        k, v = k.repeat(1, group, 1), v.repeat(1, group, 1)
    else:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    places = torch.stack([torch.zeros(num, dtype=torch.int64), torch.arange(num)])
    allowed = allowed_pairs(places, places, mask)
    scale = q.shape[2] ** -0.5 if scale is None else scale
    scores, _ = scores_of(q, k, torch.ones_like(allowed), scale, softcap)
    behind = (
        allowed_pairs(places, places, "causal") if ignored == "window" else torch.ones_like(allowed)
    )
    scores = torch.where(allowed, scores, torch.where(behind, scores + hidden, -torch.inf))
    if sink is not None and ignored != "sink":
        sink = sink.detach() if ignored == "sink gradient" else sink
        scores = torch.cat([scores, sink[:, None, None].expand(-1, num, 1)], 2)
    weights = torch.softmax(scores, 2)[:, :, :num]
    if dropout_p:
        rows = torch.arange(num)
        same = 1 if ignored == "heads" else heads
        drawn = factors_of(dropout_p, dropout_seed, same, rows, rows, num)
        if ignored == "forward mask":
            other = factors_of(dropout_p, dropout_seed + 1, same, rows, rows, num)
            weights = weights * other + (weights * (drawn - other)).detach()
        else:
            weights = weights * drawn
    return torch.einsum("hqk,khd->qhd", weights.to(v.dtype), v) * factor


def planted(p=None, **faults):
    """The attention with a fault, which takes the arguments that the fault leaves."""

    def faulty(q, k, v, mask, softcap=0.0, sink=None, dropout_p=0.0, dropout_seed=None):
        given = {"mask": mask, "softcap": softcap, "sink": sink}
        dropout = {"dropout_p": p if p and dropout_p else dropout_p, "dropout_seed": dropout_seed}
        return attend(q, k, v, **{**given, **dropout, **faults})

    return faulty


@pytest.mark.parametrize(("fault", "cause", "arguments"), FAULTS, ids=lambda value: str(value)[:40])
def test_faults_are_named(fault, cause, arguments):
    report = audit(planted(**fault), **SMALL, **arguments)
    assert report.findings[0].cause == cause, str(report)


def test_a_sound_one_passes():
    report = audit(attend, **SMALL, sinks=True, softcap=2.0, scale=0.2, dropout_p=0.4)
    assert report.ok, str(report)
    assert [one.check for one in report.passed] == [
        "values",
        "perturbation",
        "contiguity",
        "lengths",
        "interleaving",
        "short",
        "large_scores",
        "determinism",
        "dropout",
    ]
    assert report.not_tested == [
        "several documents in a batch: the implementation takes no cu_seqlens",
        "padded documents: the implementation takes no cu_seqlens_padded",
        "precision: errors of torch.float32 are bounded by values",
    ]


def test_state_that_is_kept_is_named():
    longest = [0]

    def kept(q, k, v):  # of the longest document so far, and wrong for shorter ones once
        out = attend(q, k, v)
        if len(q) < longest[0]:
            longest[0] = len(q)
            return out.flip(0)
        longest[0] = len(q)
        return out

    report = audit(kept, **SMALL, checks=["values", "lengths"])
    assert report.causes == ["state_kept"], str(report)


def test_a_finding_says_where():
    report = audit(planted(mask="causal"), **SMALL, masks=["sliding_window:9"], checks=["values"])
    found = report.findings[0]
    assert (found.cause, found.tensor, found.position) == ("window_dropped", "out", 9)
    assert (found.document, found.rank) == (0, 0)
    assert found.error > found.tolerance > 0
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert json.loads(text)["findings"][0]["explanation"] == found.explanation
    assert "out, document 0, position 9" in str(report)
