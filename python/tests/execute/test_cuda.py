"""Attention on GPUs, without one: a driver in the place of libcuda runs kernels on the CPU, and
tensors of the CPU say that they are a GPU's. The waits of streams are tested with the C++ executor
(device_test)."""

from __future__ import annotations

import contextlib
import ctypes
import math
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

import contextile as ct
from contextile import _core

torch = pytest.importorskip("torch")

from contextile.torch import Executor, attention
from contextile.torch._execute import executor as torch_executor
from reference import dense_mask, inputs, relative_error, run_dense, run_plan

FAKE_DRIVER = Path(__file__).parents[3] / "build/tests/libcontextile_fake_libcuda.so"
LENGTHS = [70, 26, 160, 1]
HEADS = (4, 2)
DIM = 64
BOUND = 2e-2  # of bf16, as on the CPU
KDL_CUDA = 2

needs_fake = pytest.mark.skipif(
    not FAKE_DRIVER.exists(), reason=f"{FAKE_DRIVER} is not built (make test does)"
)


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The folder of kernels for the driver in libcuda's place, which takes any file for a
    kernel."""
    monkeypatch.setenv("CONTEXTILE_FAKE_DEVICE_HAS_ALL_MEMORY", "1")
    for name in ("mma", "paged", "rows"):
        (tmp_path / f"{name}.sm_90a.cubin").write_bytes(b"\x7fELF" + name.encode())
    return str(tmp_path)


@pytest.fixture
def gpu(kernels):
    return ct.open_gpu(library=str(FAKE_DRIVER), kernels=kernels, timeout=20)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    ]


class OnGpu:
    """A tensor of the CPU that claims to be on a GPU."""

    def __init__(self, tensor, ordinal=0):
        self.tensor, self.ordinal = tensor.detach(), ordinal

    def __dlpack_device__(self):
        return KDL_CUDA, self.ordinal

    def __dlpack__(self, **_):
        capsule = torch.utils.dlpack.to_dlpack(self.tensor)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
        tensor.device_type, tensor.device_id = KDL_CUDA, self.ordinal
        return capsule


class RankOnGpu:
    """Gives tensors of the CPU to an executor as a GPU's, and keeps the streams of calls."""

    streams: ClassVar[list[int]] = []
    ordinal: ClassVar[int] = 0

    def __init__(self, *arguments, **options):
        self.rank = _core.RankExecutor(*arguments, **options)

    def __getattr__(self, name):
        found = getattr(self.rank, name)
        if name not in ("forward", "backward"):
            return found

        def call(**given):
            self.streams.append(given["stream"])
            found(
                **{
                    name: OnGpu(x, self.ordinal) if isinstance(x, torch.Tensor) else x
                    for name, x in given.items()
                }
            )

        return call


@pytest.fixture
def executors_of(monkeypatch):
    """PyTorch's layer with tensors of the CPU as a GPU's."""
    monkeypatch.setattr(
        torch_executor, "_core", SimpleNamespace(**{**vars(_core), "RankExecutor": RankOnGpu})
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(Executor, "_guard", lambda self: contextlib.nullcontext())
    monkeypatch.setattr(RankOnGpu, "streams", [])

    def of(gpu, num_ranks):
        group = gpu.group(num_ranks)

        def make(transport):
            executor = Executor(group[transport.rank], gpu=gpu)
            assert executor.device == torch.device("cuda", 0)
            executor._device = torch.device("cpu")
            return executor

        return make

    return of


def planned(ranks, strategy="zigzag", **options):
    options = {"heads": HEADS, "head_dim": DIM, "dtype": "bf16", "mask": "causal", **options}
    return ct.plan(LENGTHS, cluster=f"local:1x{ranks}", strategy=strategy, **options)


@needs_fake
@pytest.mark.parametrize(
    ("strategy", "ranks"), [("zigzag", 1), ("ring", 2), ("dcp", 3), ("auto:steps=20000", 4)]
)
def test_output_and_gradients_are_those_of_one_device(gpu, executors_of, strategy, ranks):
    plan = planned(ranks, strategy)
    tensors = inputs(plan.num_tokens, HEADS, DIM, dtype=torch.bfloat16)
    found = run_plan(plan, tensors, make=executors_of(gpu, ranks))
    expected = run_dense(tensors, dense_mask(ct.make_workload(LENGTHS, mask="causal")))
    for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
        assert relative_error(a, b) < BOUND, name
    assert RankOnGpu.streams == [0] * (2 * ranks)


@needs_fake
def test_tensors_that_begin_between_multiples_of_16_bytes_are_copied(gpu, executors_of):
    plan = planned(1)
    tensors = inputs(plan.num_tokens, HEADS, DIM, dtype=torch.bfloat16)
    shifted = [
        torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x) for x in tensors
    ]
    assert all(x.data_ptr() % 16 != 0 and x.is_contiguous() for x in shifted)
    found = run_plan(plan, shifted, make=executors_of(gpu, 1))
    expected = run_plan(plan, tensors, make=executors_of(gpu, 1))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@needs_fake
def test_a_stream_that_is_captured_is_refused(gpu, executors_of, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plan = planned(1)
    tensors = inputs(plan.num_tokens, HEADS, DIM, dtype=torch.bfloat16)
    with pytest.raises(ct.InvalidArgument, match="found one whose work is being captured"):
        run_plan(plan, tensors, make=executors_of(gpu, 1))


@needs_fake
@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ({"dtype": "f32"}, "expected bf16 or f16, found f32"),
        ({"head_dim": 264}, "a multiple of 8 up to 256, found 264"),
    ],
)
def test_what_no_kernel_attends_is_refused_when_a_plan_is_prepared(gpu, shape, error):
    executor = _core.RankExecutor(gpu.group(1)[0], gpu=gpu)
    with pytest.raises(ct.InvalidArgument, match=error):
        executor.prepare(planned(1, **shape))


@needs_fake
def test_tensors_elsewhere_are_refused(gpu):
    plan = planned(1)
    executor = _core.RankExecutor(gpu.group(1)[0], gpu=gpu)
    executor.prepare(plan)
    q, k, v, out = inputs(plan.num_tokens, HEADS, DIM, dtype=torch.bfloat16)
    given = {
        "q": OnGpu(q),
        "k": OnGpu(k),
        "v": OnGpu(v),
        "sink": None,
        "out": OnGpu(out),
        "lse": OnGpu(torch.empty(q.shape[:2])),
        "saved": OnGpu(torch.empty(executor.saved_bytes(0), dtype=torch.uint8)),
    }
    executor.forward(mask=0, call=1, **given)
    for name, there in (
        ("q", q),
        ("lse", torch.empty(q.shape[:2])),
        ("saved", given["saved"].tensor),
    ):
        with pytest.raises(
            ct.InvalidArgument, match=f"{name}: expected a tensor on cuda:0, found one on the CPU"
        ):
            executor.forward(mask=0, call=2, **{**given, name: there})
    with pytest.raises(
        ct.InvalidArgument, match="k: expected a tensor on cuda:0, found one on cuda:1"
    ):
        executor.forward(mask=0, call=2, **{**given, "k": OnGpu(k, 1)})
    on_cpu = _core.RankExecutor(ct.inproc_group(1)[0])
    on_cpu.prepare(plan)
    with pytest.raises(
        ct.InvalidArgument, match="q: expected a tensor on the CPU, found one on cuda:0"
    ):
        on_cpu.forward(mask=0, call=1, **given)


@needs_fake
def test_transports_and_gpus_belong_together(gpu, kernels):
    transport = gpu.group(1)[0]
    assert transport.on_gpu and not ct.inproc_group(1)[0].on_gpu
    with pytest.raises(ct.InvalidArgument, match="gpu: expected that of the transport, found none"):
        _core.RankExecutor(transport)
    with pytest.raises(
        ct.InvalidArgument, match="transport: expected one of the GPU's .*, found 'inproc'"
    ):
        _core.RankExecutor(ct.inproc_group(1)[0], gpu=gpu)
    with pytest.raises(ct.InvalidArgument, match="kernel: expected none beside a GPU"):
        _core.RankExecutor(transport, gpu=gpu, kernel="reference")
    other = ct.open_gpu(library=str(FAKE_DRIVER), kernels=kernels)
    with pytest.raises(
        ct.InvalidArgument, match="gpu: expected a rank that has joined a group of it, found rank 0"
    ):
        _core.RankExecutor(transport, gpu=other)


@needs_fake
def test_a_transport_of_host_memory_becomes_one_of_the_gpu(gpu, executors_of):
    assert Executor(ct.inproc_group(1)[0], gpu=gpu).transport.on_gpu


def test_what_is_missing_is_said(kernels):
    with pytest.raises(ct.InvalidArgument, match="/none/libcuda.so"):
        ct.open_gpu(library="/none/libcuda.so", kernels=kernels)
    with pytest.raises(ct.InvalidArgument, match="/none/libcuda.so"):
        ct.num_gpus(library="/none/libcuda.so")


@needs_fake
def test_folders_without_kernels_are_named(kernels, tmp_path):
    with pytest.raises(
        ct.InvalidArgument, match=f"expected kernels for .*, found no folder {tmp_path}/nowhere"
    ):
        ct.open_gpu(library=str(FAKE_DRIVER), kernels=f"{tmp_path}/nowhere")


@needs_fake
def test_gpus_that_there_are(gpu, kernels):
    assert (ct.num_gpus(library=str(FAKE_DRIVER)), gpu.name, gpu.ordinal) == (1, "a CPU", 0)
    assert gpu.kernel == "cuda:mma"  # no other is compiled
    with pytest.raises(ct.InvalidArgument, match="wgmma.sm_90a.cubin or .* among its kernels"):
        ct.open_gpu(library=str(FAKE_DRIVER), kernels=kernels, kernel="cuda:wgmma")
    with pytest.raises(ct.InvalidArgument, match="found 3"):
        ct.open_gpu(3, library=str(FAKE_DRIVER), kernels=kernels)
    assert issubclass(ct.DeviceError, ct.Error)


PTX = Path(__file__).parents[3] / "build/cuda/wgmma.compute_90a.ptx"
needs_ptx = pytest.mark.skipif(
    not PTX.exists(), reason=f"{PTX} is not built (cmake --build build --target contextile_ptx)"
)


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setenv("CONTEXTILE_CUDA_KERNELS", str(PTX.parent))
    return ct.open_gpu("emulated")


@needs_ptx
def test_package_brings_every_kernel(monkeypatch):
    monkeypatch.delenv("CONTEXTILE_CUDA_KERNELS", raising=False)
    brought = {file.name for file in (Path(ct.__file__).parent / "cuda").glob("*.ptx")}
    assert brought == {file.name for file in PTX.parent.glob("*.ptx")}
    assert ct.open_gpu("emulated").kernel == "cuda:wgmma"


@needs_ptx
def test_tensors_of_the_cpu_are_those_of_an_emulated_gpu(emulated):
    assert (emulated.name, emulated.kernel, emulated.is_emulated) == (
        "emulated GPU",
        "cuda:wgmma",
        True,
    )
    plan = ct.plan(
        [40, 26],
        cluster="local:1x2",
        strategy="zigzag",
        heads=HEADS,
        head_dim=DIM,
        dtype="bf16",
        mask="causal",
    )
    tensors = inputs(plan.num_tokens, HEADS, DIM, dtype=torch.bfloat16)
    group = emulated.group(2)
    executors = []

    def make(transport):
        executors.append(Executor(group[transport.rank], device="emulated", gpu=emulated))
        return executors[-1]

    found = run_plan(plan, tensors, make=make)
    expected = run_dense(tensors, dense_mask(ct.make_workload([40, 26], mask="causal")))
    for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
        assert relative_error(a, b) < BOUND, name
    assert all(executor.device.type == "cpu" for executor in executors)
    assert all(math.isnan(executor.last_stats.total_s) for executor in executors)


@needs_ptx
def test_one_rank_opens_an_emulated_gpu_by_the_name_of_its_device(emulated):
    executor = Executor(ct.inproc_group(1)[0], device="emulated")
    plan = ct.plan(
        [20], cluster="local:1x1", strategy="zigzag", heads=HEADS, head_dim=DIM, dtype="bf16"
    )
    executor.prepare(plan)
    q, k, v, _ = inputs(20, HEADS, DIM, dtype=torch.bfloat16)
    assert attention(q, k, v, executor=executor).shape == q.shape
    assert executor.transport.on_gpu
    with pytest.raises(ct.InvalidArgument, match="emulated GPU: expected ranks of one process"):
        emulated.join(ct.inproc_group(2)[0])
    with pytest.raises(ct.InvalidArgument, match="device: expected emulated, as gpu, found cuda:0"):
        Executor(ct.inproc_group(1)[0], device="cuda:0", gpu=emulated)


@needs_ptx
def test_arrays_of_numpy_run_on_an_emulated_gpu(emulated):
    plan = ct.plan(
        [20], cluster="local:1x1", strategy="zigzag", heads=HEADS, head_dim=DIM, dtype="f16"
    )
    on_gpu = ct.NumpyExecutor(emulated.group(1)[0], gpu=emulated)
    on_cpu = ct.NumpyExecutor(ct.inproc_group(1)[0])
    q, k, v, _ = (x.numpy() for x in inputs(20, HEADS, DIM, dtype=torch.float16))
    for executor in (on_gpu, on_cpu):
        executor.prepare(plan)
    found, expected = on_gpu.forward(q, k, v), on_cpu.forward(q, k, v)
    assert relative_error(torch.from_numpy(found.out), torch.from_numpy(expected.out)) < BOUND


def test_what_an_emulated_gpu_misses_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("CONTEXTILE_CUDA_KERNELS", str(tmp_path))
    with pytest.raises(
        ct.InvalidArgument, match=r"emulated GPU: expected the PTX .* in .*install-nvcc"
    ):
        Executor(ct.inproc_group(1)[0], device="emulated")
    with pytest.raises(
        ct.InvalidArgument, match="gpu: expected a number or emulated, found 'simulated'"
    ):
        ct.open_gpu("simulated")


@needs_fake
def test_numpy_takes_no_real_gpu(gpu):
    with pytest.raises(
        ct.InvalidArgument,
        match="gpu: expected an emulated one, for arrays on the CPU, found a CPU",
    ):
        ct.NumpyExecutor(gpu.group(1)[0], gpu=gpu)
    with pytest.raises(ct.InvalidArgument, match="device: expected cuda:0, as gpu, found emulated"):
        Executor(ct.inproc_group(1)[0], device="emulated", gpu=gpu)


def test_devices_that_pytorch_has_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ct.InvalidArgument,
        match="device: expected cpu or emulated, for this PyTorch has no cuda device, found cuda:1",
    ):
        Executor(ct.inproc_group(1)[0], device="cuda:1")
    with pytest.raises(ct.InvalidArgument, match="this PyTorch has no meta device, found meta"):
        Executor(ct.inproc_group(1)[0], device="meta")


@needs_fake
def test_a_device_that_is_not_the_gpus(gpu):
    with pytest.raises(ct.InvalidArgument, match="device: expected cuda:0, as gpu, found cuda:1"):
        Executor(ct.inproc_group(1)[0], device="cuda:1", gpu=gpu)


def test_compiled_code_finds_the_number_of_the_plan_on_the_cpu():
    with torch._subclasses.FakeTensorMode():
        q, k = (
            torch.empty(8, 4, 64, device="cuda", dtype=torch.bfloat16),
            torch.empty(8, 2, 64, device="cuda"),
        )
        out, lse, saved, made_by = torch.ops.contextile.attention(q, k, k, None, 7, 0, 64)
    assert (out.device.type, lse.device.type, saved.device.type, made_by.device.type) == (
        "cuda",
        "cuda",
        "cuda",
        "cpu",
    )
