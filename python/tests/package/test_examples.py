"""Examples in Python, as short as they go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import contextile as ct

pytest.importorskip("torch")
PARITY = Path(__file__).parents[3] / "examples" / "train_gpt" / "parity.py"


def parity(folder, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, PARITY, "--steps", "3", "--ranks", "2", *words, folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
def test_training_is_the_same_by_every_strategy(tmp_path):
    done = parity(tmp_path, "--strategies", "dcp distca")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same" in done.stdout
    # A different loss is found.
    losses = (tmp_path / "dcp.json").read_text()
    (tmp_path / "dcp.json").write_text(losses.replace("5.", "5.1", 1))
    assert parity(tmp_path, "--strategies", "dcp").returncode == 1


def pooled_parity(*words):
    script = PARITY.parents[1] / "train_distca" / "parity.py"
    return subprocess.run(
        [sys.executable, script, "--quick", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.whole
@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
def test_training_through_megatrons_layers_with_pools_is_one_process(tmp_path):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    done = pooled_parity("--megatron", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Megatron's layers: loss" in done.stdout and "the same" in done.stdout
    refused = subprocess.run(
        [
            sys.executable,
            PARITY.parents[1] / "train_distca" / "train_distca.py",
            "--megatron",
            "--nano-batches",
            "1",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (
        refused.returncode == 2
        and "--nano-batches: expected 2 with --megatron, found 1" in refused.stderr
    )


@pytest.mark.whole
@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
def test_training_over_a_pool_of_replicas_and_stages_is_one_process(tmp_path):
    done = pooled_parity(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (
        "Attention of one layer by rank and tick",
        "Idle ticks",
        "Exposed communication over loopback",
        "the same",
    ):
        assert text in done.stdout
    # Idle stages have computed for the others.
    idle = [
        float(line.split()[3])
        for line in done.stdout.splitlines()
        if line.split()[:2] in (["0", "6"], ["1", "6"])
    ]
    assert len(idle) == 2 and min(idle) > 0, done.stdout
