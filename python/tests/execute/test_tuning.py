"""Tilings of Triton's kernels: chosen by time, kept in a file, and taken from there."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

import contextile as ct
from contextile.torch import tune
from contextile.torch._execute import tuning
from contextile.torch._kernels import triton_attention, triton_check, triton_tilings
from contextile.torch._kernels.kernel import Params
from contextile.torch._kernels.triton_attention import Tiling
from contextile.torch._kernels.triton_stage import TritonStage

CPU = torch.device("cpu")
QUICK, WRONG, HUGE = Tiling(32, 32, 4, 2), Tiling(16, 16, 4, 2), Tiling(128, 128, 4, 2)
SHAPE = {"heads": (2, 1), "head_dim": 16, "dtype": "f32", "tokens": 40, "device": "cpu"}


@pytest.fixture
def file(monkeypatch, tmp_path):
    file = tmp_path / "cache" / "tilings.json"
    monkeypatch.setenv("CONTEXTILE_TRITON_TILINGS", str(file))
    monkeypatch.setattr(TritonStage, "devices", ("cpu",))
    triton_tilings.tilings_of.cache_clear()
    monkeypatch.setattr(TritonStage, "check_on", lambda *given: None)
    yield file
    triton_tilings.tilings_of.cache_clear()


def planned():
    return ct.plan([40], cluster="local:1x1", strategy="zigzag", heads=2, head_dim=16, dtype="f32")


def seconds_of(work, device, repeats):
    """Times of launches that are known before they run."""
    return {WRONG: 0.1, QUICK: 0.5}.get(work.__self__.tiling, 1.0)


def test_the_quickest_tiling_with_the_same_results_is_kept(file, monkeypatch):
    def run_as_tiled(launch):
        if launch.tiling == HUGE:
            raise RuntimeError("out of resource: shared memory")
        kept(launch)
        if launch.tiling == WRONG:
            for name in ("o", "dk", "dq"):
                if launch.arguments.get(name) is not None:
                    launch.arguments[name].add_(1.0)

    kept = triton_attention.Launch.run_as_tiled
    monkeypatch.setattr(triton_attention.Launch, "run_as_tiled", run_as_tiled)
    monkeypatch.setattr(tuning, "_neighbors", lambda tiling: [HUGE, WRONG, QUICK])
    monkeypatch.setattr(tuning, "_seconds", seconds_of)
    found = tune(**SHAPE)
    assert [one.kernel for one in found] == ["forward", "fused", "dkv", "dq"]
    assert all(one.tiling == QUICK and one.seconds == 0.5 for one in found), found
    assert all(one.default_seconds == 1.0 for one in found)
    assert triton_tilings.tilings_of(CPU, torch.float32, (16, 16), False) == dict.fromkeys(
        ("forward", "fused", "dkv", "dq"), QUICK
    )
    # Other shapes and machines keep their own.
    assert triton_tilings.tilings_of(CPU, torch.bfloat16, (16, 16), False) == {}
    assert triton_tilings.tilings_of(CPU, torch.float32, (16, 32), False) == {}
    assert triton_tilings.tilings_of(CPU, torch.float32, (16, 16), True) == {}
    tilings = json.loads(file.read_text())
    assert [name.split(",")[0] for name in tilings] == ["cpu"]
    file.write_text(json.dumps({"another GPU, triton 1.0": next(iter(tilings.values()))}))
    triton_tilings.tilings_of.cache_clear()
    assert triton_tilings.tilings_of(CPU, torch.float32, (16, 16), False) == {}


def test_calls_take_the_tilings_of_the_file(file, monkeypatch):
    key = triton_tilings.key_of("forward", torch.float32, (16, 16), False)
    triton_tilings.keep_tilings(CPU, {key: QUICK})
    triton_tilings.keep_tilings(CPU, {key.replace("forward", "dq"): WRONG})  # both are there
    taken = []
    kept = triton_attention.Launch.run
    monkeypatch.setattr(
        triton_attention.Launch, "run", lambda one: (taken.append(one.tiling), kept(one))
    )
    problem = tuning._Problem(planned(), CPU)
    stage = problem._programs["forward"].instructions[0].jobs[0][0]
    _, buffers = problem.launch("forward", None)
    taken.clear()
    TritonStage().run_forward(buffers, stage, True, problem._params)
    assert taken == [QUICK]


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"cpu": 3}', '{"cpu": {"dq": [1, 2]}}', "[" * 100_000),
        *('{"cpu": {"dq": [16, 16, 4, true]}}', '{"cpu": {"dq": [16, 17, 4, 1]}}'),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(file, text):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ct.InvalidArgument, match=r"tilings\.json: expected what .*; remove it"):
        triton_tilings.tilings_of(CPU, torch.float32, (16, 16), False)


def test_a_variant_without_room_runs_with_smaller_tiles(file, monkeypatch):
    def run_as_tiled(launch):
        taken.append(launch.tiling)
        if launch.tiling.block_n > 16:
            raise OutOfResources(200, 100, "shared memory")
        kept(launch)

    taken = []
    kept = triton_attention.Launch.run_as_tiled
    monkeypatch.setattr(triton_attention.Launch, "run_as_tiled", run_as_tiled)
    monkeypatch.setattr(triton_attention, "_smaller", {})
    launch, buffers = tuning._Problem(planned(), CPU).launch("forward", None)
    taken.clear()
    launch.run()
    assert buffers["o"][0].abs().max() > 0.0
    assert taken[0].block_n == 16 and taken[0].num_stages == 1  # as the first launch ended
    assert len(taken) == 1
    assert triton_attention._halves(Tiling(16, 16, 4, 1)) is None


def test_neighbors_differ_in_one_number():
    found = list(tuning._neighbors(Tiling(16, 64, 4, 2)))
    assert len(found) == 7 and Tiling(32, 64, 4, 2) in found and Tiling(16, 64, 4, 3) in found
    assert all(sum(a != b for a, b in zip(one, (16, 64, 4, 2), strict=True)) == 1 for one in found)


def test_shapes_that_no_kernel_takes_are_refused(file):
    with pytest.raises(ct.InvalidArgument, match="repeats: expected 1 or more, found 0"):
        tune(**SHAPE, repeats=0)
    with pytest.raises(ct.InvalidArgument, match="it takes dims up to 256, found 320"):
        tune(**{**SHAPE, "head_dim": 320})


def test_a_cpu_is_refused(monkeypatch):
    with pytest.raises(ct.InvalidArgument, match="torch:triton: expected a device of type cuda"):
        tune(**SHAPE)


def test_a_broken_file_is_the_error_of_the_check_on_a_device(monkeypatch, tmp_path):
    file = tmp_path / "tilings.json"
    file.write_text("{")
    monkeypatch.setenv("CONTEXTILE_TRITON_TILINGS", str(file))
    triton_tilings.tilings_of.cache_clear()
    params = Params(1, 1, 40, 40, torch.float32, 0.25, 0.0)
    with pytest.raises(ct.InvalidArgument, match=r"tilings\.json: expected what .*; remove it"):
        triton_check.check_on(TritonStage(), params, CPU)
    triton_tilings.tilings_of.cache_clear()


def test_a_tiling_that_lost_is_removed(file):
    triton_tilings.keep_tilings(CPU, {"a": QUICK, "b": QUICK})
    triton_tilings.keep_tilings(CPU, {"a": None})
    assert list(json.loads(file.read_text()).values()) == [{"b": list(QUICK)}]
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(file):
    file.parent.write_text("")
    with pytest.raises(ct.InvalidArgument, match=r"tilings\.json: expected a folder"):
        tune(**SHAPE)


@pytest.mark.parametrize("device", ["nonsense", None])
def test_unknown_devices_are_refused(device):
    with pytest.raises(ct.InvalidArgument, match="device: expected one of PyTorch's"):
        tune(**{**SHAPE, "device": device})
