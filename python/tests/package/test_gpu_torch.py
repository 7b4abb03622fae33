"""bench/gpu_torch.py without a GPU: its calls have the shapes, dtypes and devices of PyTorch's."""

import importlib.util
import pathlib
import types

import pytest

torch = pytest.importorskip("torch")

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "bench/gpu_torch.py"


class CountingClock:
    def __init__(self):
        self.num_timed = 0

    def of(self, work):
        work()
        self.num_timed += 1
        return 1e-3


def test_every_row_is_timed():
    from torch._subclasses.fake_tensor import FakeTensorMode

    if not SCRIPT.exists():
        pytest.skip("needs the sources")
    spec = importlib.util.spec_from_file_location("gpu_torch", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    bench = object.__new__(module.Bench)
    bench.torch = torch
    bench.clock = CountingClock()
    bench.arguments = types.SimpleNamespace(json=None)
    bench.found = {"verified": {method.name: {"ok": True} for method in module.METHODS}}
    with FakeTensorMode():
        for part in ("documents", "rows", "decode", "linear"):
            before = bench.clock.num_timed
            getattr(bench, part)()
            rows = bench.found[part]
            assert rows and not [row for row in rows if "reason" in row], part
            directions = 1 if part in ("decode", "linear") else 2
            assert bench.clock.num_timed - before == directions * len(rows), part
    # A method with wrong results is not timed.
    bench.found["verified"]["fa2"]["ok"] = False
    assert [method.name for method in bench.methods()] == ["cudnn"]
