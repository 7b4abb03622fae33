"""Audits of training steps: a sound one passes, and faults of labels, means and sums are named."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from contextile.torch import audit_loss
from ranks import run_ranks

NONE = -100
LENGTHS = [37, 5, 1, 22]


class Step:
    """A training step in which all ranks know all tokens, with faults that can be planted.

    ``cp`` consecutive ranks share a batch.
    """

    __name__ = "Step"

    def __init__(self, cp, fault=""):
        self.fault = fault
        groups = [
            dist.new_group(list(range(first, first + cp)))
            for first in range(0, dist.get_world_size(), cp)
        ]
        self.group = groups[dist.get_rank() // cp]
        self.cp = cp

    def labels(self, tokens, rows, cu_seqlens, cu_seqlens_padded):
        """The next tokens of rows, from the rows of all ranks of the batch."""
        num_rows = int(cu_seqlens_padded[-1])
        batch = torch.zeros(num_rows, dtype=torch.int64)
        batch[rows] = tokens
        dist.all_reduce(batch, group=self.group)
        labels = batch.roll(-1)
        ends = cu_seqlens_padded[:-1].long() + cu_seqlens.diff()
        if self.fault == "labels_not_shifted":
            labels = batch.clone()
        if self.fault == "padding_counted":
            labels[num_rows - 1] = NONE
            return labels[rows]
        document = torch.searchsorted(cu_seqlens_padded.long(), rows, right=True) - 1
        if self.fault == "labels_cross_documents":
            labels[num_rows - 1] = NONE
            return torch.where(rows < ends[document], labels[rows], NONE)
        last = ends[document] if self.fault == "labels_not_shifted" else ends[document] - 1
        found = torch.where(rows < last, labels[rows], NONE)
        if self.fault == "label_shifted_at_border":
            local = tokens.roll(-1)
            local[-1:] = NONE
            found = torch.where(found == NONE, NONE, local)
        return found

    def __call__(self, model, tokens, *, rows, cu_seqlens, cu_seqlens_padded):
        labels = self.labels(tokens, rows, cu_seqlens, cu_seqlens_padded)
        total = cross_entropy(model(tokens), labels, ignore_index=NONE, reduction="sum")
        count = (labels != NONE).sum()
        if self.fault == "mean_of_means":
            loss = total / count.clamp(min=1) / dist.get_world_size()
        else:
            dist.all_reduce(count)
            loss = total / count
        loss.backward()
        grad = model.table.grad
        if self.fault != "gradient_not_reduced":
            dist.all_reduce(grad)
        if self.fault == "gradient_times_cp":
            grad *= self.cp
        if self.fault == "gradient_times_dp":
            grad /= dist.get_world_size() // self.cp
        if self.fault == "not_finite":
            grad[0, 0] = torch.nan
        if self.fault == "gradient_differs_between_ranks":
            grad *= 1 + dist.get_rank()
        loss = loss.detach()
        if self.fault != "gradient_not_reduced":
            dist.all_reduce(loss)
        return loss * 3 if self.fault == "loss" else loss


IN_BOTH = {
    "label_shifted_at_border",
    "labels_cross_documents",
    "labels_not_shifted",
    "padding_counted",
    "mean_of_means",
}
IN_GRADIENT = {
    "gradient_times_cp",
    "gradient_not_reduced",
    "gradient_differs_between_ranks",
    "not_finite",
}


def audit_steps(cp):
    cp = int(cp)
    replicas = dist.get_world_size() // cp
    report = audit_loss(Step(cp), lengths=LENGTHS, cp=cp)
    assert report.ok, str(report)
    assert [one.check for one in report.passed] == ["gradient", "loss"]
    for fault in sorted(IN_BOTH):
        report = audit_loss(Step(cp, fault), lengths=LENGTHS, cp=cp)
        assert report.causes == [fault], f"{fault}: {report}"
        assert [one.tensor for one in report.findings] == ["gradient", "loss"]
    named = IN_GRADIENT | ({"gradient_times_dp"} if replicas not in (1, cp) else set())
    for fault in sorted(named):
        report = audit_loss(Step(cp, fault), lengths=LENGTHS, cp=cp)
        assert report.findings[0].cause == fault, f"{fault}: {report}"
        assert report.findings[0].tensor == "gradient"
    report = audit_loss(Step(cp, "loss"), lengths=LENGTHS, cp=cp)
    assert [one.tensor for one in report.findings] == ["loss"], str(report)


@pytest.mark.parametrize(("num_ranks", "cp"), [(2, 2), (4, 2), (3, 3), (4, 4)])
def test_steps(num_ranks, cp):
    run_ranks(audit_steps, num_ranks, str(cp))


def first_wrong_label():
    report = audit_loss(
        Step(2, "label_shifted_at_border"), lengths=[40], layout="contiguous", vocabulary=16
    )
    found = report.findings[0]
    # The last token of the first shard.
    assert (found.document, found.position, found.rank) == (0, 19, 0), str(report)
    assert found.form == "its last is ignored"


def test_the_border_is_named():
    run_ranks(first_wrong_label, 2)


def reduced_later():
    rank = dist.get_rank()

    def step(model, tokens, *, labels):
        loss = cross_entropy(model(tokens), labels, ignore_index=NONE, reduction="sum")
        loss = loss / sum(length - 1 for length in LENGTHS)
        loss.backward()
        return loss.item()

    report = audit_loss(step, lengths=LENGTHS, gradients="sum", layout="contiguous")
    assert report.ok, str(report)
    assert report.not_tested == ["labels: the step takes them and makes none"]
    report = audit_loss(step, lengths=LENGTHS, gradients="mean", layout="contiguous")
    assert report.causes[0] == "gradient_times_cp"
    assert report.findings[0].form == "by 1/2"

    def failing(model, tokens, *, labels):
        raise ValueError("no loss")

    report = audit_loss(failing, lengths=LENGTHS, layout="contiguous")
    assert report.findings[0].form == "ranks 0, 1: ValueError: no loss"
    for wrong, text in (
        ({"gradients": "max"}, "found 'max'"),
        ({"cp": 3}, "a divisor of the 2 ranks"),
        ({"lengths": [1, 1]}, "at least 2 tokens"),
        ({"vocabulary": 1}, "at least 2"),
        ({"seed": rank}, "seed: expected the same"),
    ):
        arguments = {"lengths": LENGTHS, "layout": "contiguous", **wrong}
        with pytest.raises(ct.InvalidArgument, match=text):
            audit_loss(step, **arguments)
    with pytest.raises(ct.InvalidArgument, match="takes cu_seqlens, positions or labels"):
        audit_loss(lambda model, tokens: None, lengths=LENGTHS)


def test_gradients_may_be_reduced_later():
    run_ranks(reduced_later, 2)
