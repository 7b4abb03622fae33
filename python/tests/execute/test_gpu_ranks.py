"""Ranks of torchrun with a GPU each, without one: processes that meet over gloo and move data over
NCCL. The libraries of the driver and of NCCL are the tests' own and run on the CPU."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import contextile as ct
from contextile import _core

torch = pytest.importorskip("torch")
if not ct.gloo_available():
    pytest.skip("this build has no gloo", allow_module_level=True)

from test_cuda import BOUND, DIM, FAKE_DRIVER, HEADS, LENGTHS, RankOnGpu

from contextile.torch import Executor, attention, collect, dispatch
from contextile.torch._execute import executor as torch_executor
from ranks import run_ranks
from reference import dense_mask, inputs, relative_error, run_dense

FAKE_NCCL = FAKE_DRIVER.with_name("libcontextile_fake_libnccl_processes.so")
pytestmark = pytest.mark.skipif(
    not (FAKE_DRIVER.exists() and FAKE_NCCL.exists()),
    reason=f"{FAKE_DRIVER} or {FAKE_NCCL} is not built (make test does)",
)


def opened(folder: str, local_rank: int) -> ct.Gpu:
    """Returns a GPU of the tests' driver. Its kernels and NCCL's messages are in the folder."""
    os.environ |= {
        "CONTEXTILE_FAKE_DEVICE_HAS_ALL_MEMORY": "1",
        "CONTEXTILE_FAKE_DEVICES": "2",
        "CONTEXTILE_FAKE_NCCL": folder,
    }
    return ct.open_gpu(
        local_rank,
        library=str(FAKE_DRIVER),
        nccl_library=str(FAKE_NCCL),
        kernels=folder,
        timeout=20,
    )


def take_tensors_of_the_cpu() -> None:
    """Lets PyTorch's layer take tensors of the CPU for a GPU's, in this process."""
    torch_executor._core = SimpleNamespace(**{**vars(_core), "RankExecutor": RankOnGpu})
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=0)
    Executor._guard = lambda self: contextlib.nullcontext()
    RankOnGpu.ordinal = int(os.environ["LOCAL_RANK"])


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name in ("mma", "paged", "rows"):
        (tmp_path / f"{name}.sm_90a.cubin").write_bytes(b"\x7fELF" + name.encode())
    return str(tmp_path)


def attend(folder: str, strategies: str) -> None:
    take_tensors_of_the_cpu()
    local_rank = int(os.environ["LOCAL_RANK"])
    executor = Executor(gpu=opened(folder, local_rank))
    assert executor.transport.name == "nccl"
    assert executor.device == torch.device("cuda", local_rank)
    executor._device = torch.device("cpu")
    tensors = inputs(sum(LENGTHS), HEADS, DIM, dtype=torch.bfloat16)
    expected = run_dense(tensors, dense_mask(ct.make_workload(LENGTHS, mask="causal")))
    for strategy in strategies.split():
        plan = ct.plan(
            LENGTHS, cluster="local:1x2", strategy=strategy, heads=HEADS, head_dim=DIM, dtype="bf16"
        )
        executor.prepare(plan)
        local = [dispatch(x, plan=plan, rank=executor.rank).requires_grad_() for x in tensors[:3]]
        out = attention(*local, executor=executor)
        out.backward(dispatch(tensors[3], plan=plan, rank=executor.rank))
        for found, one in zip([out, *(x.grad for x in local)], expected, strict=True):
            assert relative_error(collect(found, plan=plan), one) < BOUND, strategy


def test_ranks_with_a_gpu_each_attend_over_nccl(folder):
    run_ranks(attend, 2, folder, "zigzag dcp")


def share_a_gpu(folder: str) -> None:
    take_tensors_of_the_cpu()
    gpu = opened(folder, 0)  # as without torch.cuda.set_device
    with pytest.raises(ct.InvalidArgument) as refused:
        Executor(gpu=gpu)
    print(refused.value)


def test_ranks_on_one_gpu_are_named_on_all_ranks(folder):
    said = run_ranks(share_a_gpu, 2, folder).stdout
    assert said.count("found GPU 0 of ") == 2, said
    assert said.count("for ranks 0 and 1;") == 2, said
    assert said.count('torch.cuda.set_device(LOCAL_RANK) first, or pass device=f"cuda:') == 2, said
