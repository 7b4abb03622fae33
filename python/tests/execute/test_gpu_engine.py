"""bench/gpu_engine.py, rehearsed on the CPU: whole plans whose ranks are threads."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[3] / "bench/gpu_engine.py"
SMALL = (
    *("--device", "cpu", "--kernels", "torch:tiles", "--ranks", "2", "--heads", "4,2"),
    *("--dim", "16", "--tokens", "256", "--strategies", "dcp", "--repeats", "1"),
)


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_engine", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LENGTHS", (90, 33, 1, 60))
    return module


def run(script, monkeypatch, file, *words):
    """Returns the exit status and the rows of figures."""
    monkeypatch.setattr(sys, "argv", ["gpu_engine.py", *SMALL, "--json", str(file), *words])
    with pytest.raises(SystemExit) as ended:
        script.main()
    return ended.value.code, json.loads(file.read_text())


def test_every_case_is_right_and_times_are_of_both_directions(script, monkeypatch, tmp_path):
    status, rows = run(script, monkeypatch, tmp_path / "figures.json")
    assert status == 0
    results = [row for row in rows if row["part"] == "results"]
    assert len(results) == len(script.CASES)
    assert all(row["ok"] and row["ran"] == "torch:tiles" for row in results), results
    times = [row for row in rows if row["part"] == "times"]
    assert [row["direction"] for row in times] == ["forward", "backward"]
    assert all(0.0 < row["share"] < 1.0 and row["ms"] > 0.0 for row in times)


def test_a_kernel_that_is_wrong_fails_and_is_not_timed(script, monkeypatch, tmp_path):
    tiles = script.KERNELS["torch:tiles"]

    def wrong(q, k, v, call, params):
        out, lse = forward(q, k, v, call, params)
        return out + 1.0, lse

    forward = tiles.forward
    monkeypatch.setattr(tiles, "forward", wrong)
    monkeypatch.setattr(script, "CASES", script.CASES[:2])
    status, rows = run(script, monkeypatch, tmp_path / "figures.json")
    assert status == 1
    assert [row["ok"] for row in rows] == [False, False]


def test_a_budget_ends_it(script, monkeypatch, tmp_path, capsys):
    status, rows = run(script, monkeypatch, tmp_path / "figures.json", "--budget", "0")
    assert (status, rows) == (0, [])
    assert "stopped after 0 s" in capsys.readouterr().out
