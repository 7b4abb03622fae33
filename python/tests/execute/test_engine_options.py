"""Engines, kernels and devices that an executor refuses, and its description of itself."""

from __future__ import annotations

import json
import re
import types

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

import torch.distributed as dist

from contextile.torch import Executor, alibi, attention, relative_bias
from contextile.torch._engine.launches import Messages, UnderWay
from contextile.torch._execute import devices
from contextile.torch._kernels.flash import Flash
from contextile.torch._kernels.kernel import Params
from ranks import run_ranks


def one(**options):
    return Executor(ct.inproc_group(1)[0], **options)


def plan_of(ranks=1, **shape):
    shape = {"heads": (4, 2), "head_dim": 32, "dtype": "f32", **shape}
    return ct.plan([60, 40], cluster=f"local:1x{ranks}", strategy="zigzag", **shape)


def attend(executor, plan, **terms):
    shape, tokens = plan.shape, plan.num_local_tokens(executor.rank)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[shape.dtype]
    q = torch.randn(tokens, shape.q_heads, shape.head_dim, dtype=dtype)
    k = torch.randn(tokens, shape.kv_heads, shape.head_dim, dtype=dtype)
    v = torch.randn(tokens, shape.kv_heads, shape.value_dim, dtype=dtype)
    return attention(q, k, v, executor=executor, **terms)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "gpu"}, "engine: expected auto, torch or native, found 'gpu'"),
        ({"engine": 3}, "executor, engine: expected a text"),
        (
            {"engine": "native", "kernel": "torch:flex"},
            "kernel: expected one of the engine native (contextile.kernels()), found torch:flex",
        ),
        (
            {"engine": "torch", "kernel": "reference"},
            "engine: expected native with kernel reference, found torch",
        ),
        (
            {"engine": "torch", "device": "emulated"},
            "engine: expected native with device emulated, found torch",
        ),
        ({"kernel": "torch:fast"}, "kernel: expected one of the engine torch (torch:flash, torch:"),
        (
            {"engine": "torch", "flight_folder": "records"},
            "flight_folder: expected none with engine torch",
        ),
        (
            {"kernel": "torch:flash"},
            "kernel torch:flash: expected a device of type cuda, found cpu",
        ),
        ({"device": "xpu"}, "device: expected cpu or emulated, for this PyTorch has no xpu device"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ct.InvalidArgument, match=re.escape(message)):
        one(**options)


def test_ranks_of_a_transport_are_the_engine_natives():
    with pytest.raises(ct.InvalidArgument, match="native for ranks of a Transport, found torch"):
        Executor(ct.inproc_group(2)[0], engine="torch")


@pytest.mark.parametrize(
    ("kernel", "shape", "reason"),
    [
        ("torch:cpu", {"value_dim": 16}, "it takes a value dim equal to the head dim of 32"),
        ("torch:cpu", {"softcap": 5.0}, "it has no softcap"),
    ],
)
def test_a_kernel_that_cannot_run_the_plan_says_why(kernel, shape, reason):
    executor = one(kernel=kernel)
    with pytest.raises(ct.InvalidArgument, match=f"kernel {kernel}: expected calls .* {reason}"):
        executor.prepare(plan_of(**shape))


@pytest.mark.parametrize("terms", [{"bias": alibi(4)}, {"dropout_p": 0.1, "dropout_seed": 1}])
def test_a_kernel_without_bias_and_dropout_refuses_them(terms):
    plan = plan_of()
    executor = one(kernel="torch:flex")
    executor.prepare(plan)
    with pytest.raises(ct.InvalidArgument, match="torch:flex: .* it has no bias and no dropout"):
        attend(executor, plan, **terms)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (alibi(8), "expected a slope for each of 4 query heads, found 8"),
        (relative_bias(torch.zeros(8, 5), -2), "expected 4 heads of 5 biases in the table"),
    ],
)
def test_a_bias_of_other_heads_is_refused(bias, message):
    plan = plan_of()
    executor = one(engine="torch")
    executor.prepare(plan)
    with pytest.raises(ct.InvalidArgument, match=message):
        attend(executor, plan, bias=bias)


@pytest.mark.parametrize("kernel", ["", "torch:cpu", "torch:tiles", "torch:flex"])
def test_numbers_that_are_none_reach_the_output(kernel):
    # One piece of 5 keys, which PyTorch's kernel alone would lose.
    plan = ct.plan(
        [5], cluster="local:1x1", strategy="ring", heads=(4, 2), head_dim=32, dtype="f32"
    )
    executor = one(engine="torch", kernel=kernel)
    executor.prepare(plan)
    q, k, v = torch.randn(5, 4, 32), torch.randn(5, 2, 32), torch.randn(5, 2, 32)
    q[2] = torch.nan
    out, lse = attention(q, k, v, executor=executor, return_lse=True)
    assert out[2].isnan().all() and lse[2].isnan().all()
    assert out[:2].isfinite().all() and out[3:].isfinite().all()


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e20])
@pytest.mark.parametrize("kernel", ["torch:cpu", "torch:tiles"])
def test_gradients_of_any_size_are_exact(kernel, size):
    plan = plan_of()
    found = []
    for options in ({"engine": "native"}, {"kernel": kernel}):
        executor = one(**options)
        executor.prepare(plan)
        torch.manual_seed(5)
        q = torch.randn(100, 4, 32, requires_grad=True)
        k, v = torch.randn(2, 100, 2, 32)
        out = attention(q, k, v, executor=executor)
        out.backward(torch.randn(out.shape) * size)
        found.append(q.grad.double() / size)
    assert (found[0] - found[1]).abs().max() <= 1e-5 * found[0].abs().max()


def test_negative_scales_run_in_other_kernels():
    plan = plan_of(scale=-0.5)
    executor = one(engine="torch")
    executor.prepare(plan)
    assert attend(executor, plan).isfinite().all()
    with pytest.raises(ct.InvalidArgument, match="it takes a scale above 0, found -0.5"):
        one(kernel="torch:cpu").prepare(plan)


def test_statistics_of_a_call_prepare_nothing():
    executor = one(engine="torch", plans_prepared=1)
    first, second = plan_of(), plan_of(scale=0.5)
    executor.prepare(first)
    attend(executor, first)
    assert executor.last_stats.sent_bytes == 0
    q, k, v = (torch.randn(100, n, 32, requires_grad=True) for n in (4, 2, 2))
    out = attention(q, k, v, executor=executor)
    executor.prepare(second)
    out.sum().backward()  # takes over the buffers of the second
    with pytest.raises(ct.InvalidArgument, match="last_stats: expected the plan prepared last"):
        _ = executor.last_stats


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeouts_are_above_zero(timeout):
    with pytest.raises(ct.InvalidArgument, match="timeout: expected seconds above 0"):
        one(timeout=timeout)


def test_auto_is_native_on_the_cpu_and_torch_for_its_kernels():
    assert one().engine == "native"
    assert one(kernel="torch:tiles").engine == "torch"
    assert one(device="cpu", engine="torch").engine == "torch"


def test_tensors_of_another_shape_or_dtype_are_refused():
    plan = plan_of()
    executor = one(engine="torch")
    executor.prepare(plan)
    q, k = torch.randn(100, 4, 32), torch.randn(100, 2, 32)
    with pytest.raises(ct.InvalidArgument, match=r"expected k of shape \[100, 2, 32\], found"):
        attention(q, torch.randn(100, 2, 16), k, executor=executor)
    with pytest.raises(ct.InvalidArgument, match=r"expected q of torch.float32"):
        attention(q.half(), k.half(), k.half(), executor=executor)
    with pytest.raises(ct.InvalidArgument, match="expected 0 values of sink, found 4"):
        attention(q, k, k, executor=executor, sink=torch.zeros(4))
    # A refused call ends the group, as it does with the engine native.


@pytest.mark.parametrize(("device", "limits"), [("cpu", 1), ("cuda", 0)])
def test_waits_have_a_limit_on_the_cpu_alone(device, limits):
    # PyTorch's wait for NCCL stops the host if it has one.
    waits = []
    work = types.SimpleNamespace(wait=lambda *given: waits.append(len(given)))
    messages = Messages(None, torch.device(device), 5.0)
    messages.wait(UnderWay([work], [None], []))
    assert waits == [limits]


def test_an_executor_describes_its_engine_and_kernels():
    plan = plan_of()
    executor = one(engine="torch")
    executor.prepare(plan)
    assert executor.describe() == (
        f"engine torch on cpu, rank 0 of 1\nplan zigzag of 100 tokens ({plan.digest}): torch:cpu"
    )
    native = one()
    native.prepare(plan)
    assert native.describe().startswith("engine native on cpu, rank 0 of 1\nplan zigzag")


# ------------------------------------------------------------------------------------ certificates


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU of PyTorch that is not there, and the file of its certificate."""
    file = tmp_path / "certificate.json"
    monkeypatch.setenv("CONTEXTILE_GPU_CERTIFICATE", str(file))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(devices, "_driver_version", lambda: "570.86.15")
    return file


def test_auto_takes_the_engine_native_on_a_gpu_only_with_a_certificate(gpu):
    device = torch.device("cuda", 0)

    def engine():
        return devices.engine_of("auto", None, "", device, None, False)

    assert engine() == "torch"
    passed = {"gpu": "NVIDIA H200", "driver": "570.86.15", "version": ct.__version__}
    gpu.write_text(json.dumps(passed))
    assert engine() == "native"
    for name in passed:
        gpu.write_text(json.dumps({**passed, name: "another"}))
        assert engine() == "torch"
    for broken in ("", "[" * 10_000, "[]", "{}", "\udcff"):
        gpu.write_bytes(broken.encode(errors="surrogateescape"))
        with pytest.raises(ct.InvalidArgument, match=r"expected what bench/gpu_check writes"):
            engine()


# ------------------------------------------------------------------------------------ several ranks


def differ() -> None:
    """Ranks that choose differently all hear of it, and so do ranks in different calls."""
    rank = dist.get_rank()
    with pytest.raises(ct.InvalidArgument, match="one engine on all ranks, found native on rank 0"):
        Executor(engine="native" if rank == 0 else "torch")
    executor = Executor(engine="torch")
    plan = plan_of(ranks=2)
    executor.prepare(plan)
    terms = {"dropout_p": 0.5, "dropout_seed": 1 + rank}
    with pytest.raises((ct.InvalidArgument, ct.TransportError), match="the same one|gave up"):
        attend(executor, plan, **terms)


def test_ranks_that_differ_all_hear_of_it():
    run_ranks(differ, 2)


def lose_a_rank() -> None:
    executor = Executor(engine="torch", timeout=8)
    plan = plan_of(ranks=3)
    executor.prepare(plan)
    attend(executor, plan)
    if dist.get_rank() == 1:
        return
    with pytest.raises(ct.TransportError):
        attend(executor, plan)


@pytest.mark.timing
def test_a_rank_that_ends_is_an_error_of_the_others():
    run_ranks(lose_a_rank, 3)


def test_autocast_does_not_reach_into_kernels():
    plan = plan_of(dtype="bf16")
    executor = one(engine="torch", kernel="torch:tiles")
    executor.prepare(plan)
    torch.manual_seed(0)
    q, k, v = (torch.randn(100, heads, 32, dtype=torch.bfloat16) for heads in (4, 2, 2))
    want = attention(q, k, v, executor=executor, return_lse=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention(q, k, v, executor=executor, return_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_threads_with_two_plans_of_an_executor_are_refused():
    executor = one(engine="torch")
    executor.prepare(plan_of())
    executor.prepare(plan := plan_of(softcap=5.0))
    with (
        executor._shared.in_call,
        pytest.raises(ct.InvalidArgument, match="found another thread in a call"),
    ):
        attend(executor, plan)


def test_a_certificate_with_a_name_too_long_is_refused(monkeypatch):
    monkeypatch.setenv("CONTEXTILE_GPU_CERTIFICATE", "x" * 5000)
    with pytest.raises(ct.InvalidArgument, match="expected what bench/gpu_check writes"):
        devices.is_certified(torch.device("cuda", 0))


def test_flash_is_refused_on_rocm(monkeypatch):
    params = Params(4, 2, 64, 64, torch.bfloat16, 0.125, 0.0)
    assert Flash().refusal(params) == ""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "on ROCm is not checked" in Flash().refusal(params)
