"""Predictions held against measured times, from Python and by the program."""

from __future__ import annotations

import gc
import json
import os
import subprocess
from pathlib import Path

import pytest

import contextile as ct

PROGRAM = Path(
    os.environ.get("CONTEXTILE_PROGRAM", Path(__file__).parents[3] / "build" / "contextile")
)
ROWS = """\
source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,direction,ms,\
note,engine
me,judged,dgx-h100:1x2,p2p,zigzag,8K,causal,8,2,128,bf16,forward,0.1,,
me,judged,dgx-h100:1x2,plain,ring,8K,causal,8,2,128,bf16,forward,0.2,,torch
me,fitted,dgx-h100:1x2,p2p,zigzag,8K,causal,8,2,128,bf16,backward,0.3,,
me,judged,dgx-h100:1x2,stripe,,8K,causal,8,2,128,bf16,forward,0.1,striped tokens,
me,judged,dgx-h100:1x3,heads,ulysses,8K|2*4K,causal,8,2,128,bf16,forward+backward,2,,
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_text(ROWS)
    return path


@pytest.fixture(scope="module")
def validation(path):
    return ct.validate(path)


def test_rows_have_both_times_or_a_reason(validation):
    assert [row.line for row in validation.rows] == [2, 3, 4, 5, 6]
    first, second, backward, stripe, heads = validation.rows
    assert (first.source, first.split, first.method, first.strategy) == (
        "me",
        "judged",
        "p2p",
        "zigzag",
    )
    assert (first.cluster, first.kernel, first.engine) == ("dgx-h100:1x2", "", "")
    assert (first.lengths, first.mask, first.direction) == ("8K", "causal", "forward")
    assert (first.experiment, first.note) == ("", "")
    assert (first.shape.q_heads, first.shape.kv_heads, first.shape.head_dim) == (8, 2, 128)
    assert first.measured_ms == 0.1
    assert first.ratio == pytest.approx(first.predicted_ms / 0.1)
    assert first.reason == ""
    assert second.engine == "torch"
    assert (backward.split, backward.direction) == ("fitted", "backward")
    assert (stripe.predicted_ms, stripe.ratio, stripe.strategy) == (None, None, "")
    assert stripe.reason == "no strategy here does the same: striped tokens"
    assert heads.predicted_ms is None
    assert "ulysses splits heads over 3 ranks" in heads.reason
    assert repr(stripe).startswith("HeldRow(line=5, method='stripe', measured_ms=0.1, ")


def test_predicted_times_are_those_of_simulate(validation):
    plan = ct.plan(
        [8192], mask="causal", cluster="dgx-h100:1x2", strategy="zigzag", heads=(8, 2), head_dim=128
    )
    simulation = plan.simulate()
    forward, _, backward, *_ = validation.rows
    assert forward.predicted_ms == pytest.approx(simulation.forward.time_us / 1e3)
    assert backward.predicted_ms == pytest.approx(simulation.backward.time_us / 1e3)


def test_methods_and_experiments_are_summaries(validation):
    fitted, p2p, _, stripe, _ = validation.methods
    assert (fitted.split, fitted.rows, fitted.unpredicted) == ("fitted", 1, 0)
    assert p2p.median_ratio == p2p.furthest_ratio == validation.rows[0].ratio
    assert (stripe.rows, stripe.unpredicted) == (0, 1)
    assert (stripe.median_ratio, stripe.furthest_ratio) == (None, None)
    [experiment] = validation.experiments
    assert experiment.setting == ("dgx-h100:1x2, 8K causal, forward, 8/2 heads of 128, bf16")
    assert (experiment.methods, experiment.pairs) == (2, 1)
    assert experiment.tau == 2 * experiment.pairs_in_order - 1


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"needs the program, {PROGRAM}")
def test_the_program_finds_the_same(validation, path):
    def printed(*arguments: str) -> str:
        return subprocess.run(
            [PROGRAM, "validate", path, *arguments], capture_output=True, text=True, check=True
        ).stdout

    assert printed() == f"{validation}\n"
    document = json.loads(printed("--json"))
    for row, held in zip(document["rows"], validation.rows, strict=True):
        for name in ("line", "source", "split", "method", "strategy", "cluster", "lengths", "mask"):
            assert row[name] == getattr(held, name)
        for name in ("kernel", "engine", "experiment", "reason"):
            assert row.get(name, "") == getattr(held, name)
        assert row["measured_s"] == pytest.approx(held.measured_ms / 1e3, rel=1e-12)
        assert row.get("ratio") == held.ratio
        if held.predicted_ms is None:
            assert "predicted_s" not in row
        else:
            assert row["predicted_s"] == pytest.approx(held.predicted_ms / 1e3, rel=1e-12)
    for summary, method in zip(document["methods"], validation.methods, strict=True):
        for name in ("source", "method", "kind", "split", "rows", "unpredicted"):
            assert summary[name] == getattr(method, name)
        for name in ("median_ratio", "furthest_ratio"):
            assert summary.get(name) == getattr(method, name)
    for found, experiment in zip(document["experiments"], validation.experiments, strict=True):
        for name in ("source", "split", "setting", "methods", "pairs", "pairs_in_order"):
            assert found[name] == getattr(experiment, name)
        assert found.get("tau") == experiment.tau


STEPS = """\
source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,direction,ms,\
wire,model,tp,dp,gradient_overlap
me,judged,dgx-h100:1x8,p2p,zigzag,16K|8K,causal,,,,,step,900,f32,gpt-8b,4,2,off
me,judged,dgx-h100:1x8,p2p,zigzag,8K,causal,8,2,128,bf16,forward,0.1,,,,,
"""


def test_rows_may_be_training_steps(tmp_path):
    steps = tmp_path / "steps.csv"
    steps.write_text(STEPS)
    step, attention = ct.validate(steps).rows
    assert (step.direction, step.model, step.wire) == ("step", "gpt-8b", "f32")
    assert (step.tp, step.cp, step.dp, step.pp, step.micro_batches) == (4, 1, 2, 1, 1)
    assert (step.optimizer, step.gradient_overlap, step.recompute) == ("zero1", "off", "none")
    assert step.linear_mfu == 0.5
    assert (step.shape.q_heads, step.shape.kv_heads) == (8, 2)
    assert step.ratio == pytest.approx(step.predicted_ms / 900)
    assert (attention.model, attention.wire) == ("", None)
    for name in ("tp", "cp", "dp", "pp", "micro_batches", "optimizer", "gradient_overlap"):
        assert getattr(attention, name) is None
    assert (attention.recompute, attention.linear_mfu) == (None, None)
    assert [method.kind for method in ct.validate(steps).methods] == ["step", "attention"]
    steps.write_text(STEPS.replace("gpt-8b", ""))
    with pytest.raises(ct.InvalidArgument, match="line 2: expected a model, .*found none"):
        ct.validate(steps)


def test_parts_outlive_the_whole(path):
    row = ct.validate(path).rows[0]
    [experiment] = ct.validate(path).experiments
    gc.collect()
    assert (row.method, row.reason, experiment.methods) == ("p2p", "", 2)


def test_another_machine_may_be_predicted_on(path):
    heard = []
    other = ct.validate(
        str(path),
        cluster="p4de:1x2",
        progress=lambda what, done, total: heard.append((done, total)),
    )
    own = ct.validate(path, cluster=ct.Cluster.preset("dgx-h100", devices_per_node=2))
    assert other.rows[0].predicted_ms > own.rows[0].predicted_ms
    assert other.rows[4].reason == "measured on 1 x 3 devices, the given cluster has 1 x 2"
    assert heard == [(done, 3) for done in range(3)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("zigzag", "zigzga", r"line 2, strategy: .*did you mean 'zigzag'\?"),
        ("bf16,forward,0.2", "bf16,forward,fast", "line 3, ms: expected a number, found 'fast'"),
        ("fitted", "guessed", "line 4, split: expected one of fitted, judged, found 'guessed'"),
        (",torch", "", "line 3: expected 15 fields, as the header has, found 14"),
        ("q_heads", "heads", "line 1: expected the columns .*, found 'heads'"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(old, new, message, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text(ROWS.replace(old, new, 1))
    with pytest.raises(ct.InvalidArgument, match=f"bad.csv'?: {message}"):
        ct.validate(bad)


def test_wrong_arguments_are_refused(path, tmp_path):
    with pytest.raises(ct.IoError, match="missing.csv"):
        ct.validate(tmp_path / "missing.csv")
    with pytest.raises(ct.InvalidArgument, match="dgx-h100"):
        ct.validate(path, cluster="dgx")
    with pytest.raises(ct.InvalidArgument, match="progress: expected True, False or a function"):
        ct.validate(path, progress=3)
    with pytest.raises(TypeError):
        ct.validate(3)
