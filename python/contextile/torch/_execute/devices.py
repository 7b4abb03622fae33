"""The engine and the device of an executor, on which its ranks agree."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import torch

from contextile import _core
from contextile.torch._ranks import messages

ENGINES = ("auto", "torch", "native")


def device_of(device: str | torch.device, gpu: _core.Gpu | None) -> torch.device:
    """Returns the device of tensors, with its number. Raises InvalidArgument if there is none."""
    if device == "emulated":
        if gpu is not None and not gpu.is_emulated:
            raise _core.InvalidArgument(
                f"device: expected cuda:{gpu.ordinal}, as gpu, found emulated"
            )
        return torch.device("cpu")
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        raise _core.InvalidArgument(
            "device: expected one of PyTorch's (cpu, cuda, cuda:N, xpu, mps, …) or emulated, found "
            f"{device!r:.80}"
        ) from None
    if gpu is not None and gpu.is_emulated:
        if wanted != torch.device("cpu"):
            raise _core.InvalidArgument(f"device: expected emulated, as gpu, found {wanted}")
        return wanted
    if gpu is not None:
        there = torch.device("cuda", gpu.ordinal)
        if wanted not in (torch.device("cpu"), torch.device("cuda"), there):
            raise _core.InvalidArgument(f"device: expected {there}, as gpu, found {wanted}")
        return there
    if wanted.type == "cpu":
        return torch.device("cpu")
    module: Any = getattr(torch, wanted.type, None)
    if module is None or not hasattr(module, "is_available") or not module.is_available():
        raise _core.InvalidArgument(
            f"device: expected cpu or emulated, for this PyTorch has no {wanted.type} device, "
            f"found {wanted}"
        )
    count = module.device_count()
    if wanted.index is not None and wanted.index >= count:
        raise _core.InvalidArgument(
            f"device: expected {wanted.type}:N below {count}, for this PyTorch sees that many, "
            f"found {wanted}"
        )
    if wanted.index is None and hasattr(module, "current_device"):
        return torch.device(wanted.type, module.current_device())
    return wanted


def engine_of(
    engine: str,
    group: Any,
    kernel: str,
    device: torch.device,
    gpu: _core.Gpu | None,
    emulated: bool,
) -> str:
    """Returns the engine, native or torch. Raises InvalidArgument if it cannot have the others."""
    if engine not in ENGINES:
        raise _core.InvalidArgument(
            f"engine: expected {', '.join(ENGINES[:-1])} or {ENGINES[-1]}, found {engine!r:.80}"
        )
    names_torch = kernel.startswith("torch:")
    needs_native = gpu is not None or emulated or bool(kernel and not names_torch)
    has_threads = isinstance(group, _core.Transport) and group.size > 1
    if engine == "auto":
        is_native = needs_native or has_threads or device.type == "cpu" or is_certified(device)
        engine = "torch" if names_torch or not is_native else "native"
    if engine == "native" and names_torch:
        raise _core.InvalidArgument(
            f"kernel: expected one of the engine native (contextile.kernels()), found {kernel}"
        )
    if engine == "native" and device.type not in ("cpu", "cuda"):
        raise _core.InvalidArgument(
            f"device: expected cpu or cuda with the engine native, found {device}"
        )
    if engine == "torch" and needs_native:
        found = f"kernel {kernel}" if kernel else "a Gpu" if gpu is not None else "device emulated"
        raise _core.InvalidArgument(f"engine: expected native with {found}, found torch")
    if engine == "torch" and has_threads:
        raise _core.InvalidArgument(
            "engine: expected native for ranks of a Transport, found torch, which moves data over "
            "a group of torch.distributed"
        )
    return engine


# ------------------------------------------------------------------------------------ certificates


def certificate_file() -> Path:
    """Returns the file in which ``bench/gpu_check`` says that a GPU passed."""
    named = os.environ.get("CONTEXTILE_GPU_CERTIFICATE", "")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named or Path(cache) / "contextile" / "gpu_certificate.json")


def _driver_version() -> str:
    """Returns the version of NVIDIA's driver; empty if it is not known."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((word for word in words if word.replace(".", "").isdigit() and "." in word), "")


def is_certified(device: torch.device) -> bool:
    """Returns whether ``bench/gpu_check`` has passed for this GPU, driver and version.

    Raises InvalidArgument if its file is broken.
    """
    file = certificate_file()
    if device.type != "cuda":
        return False
    try:
        if not file.is_file():
            return False
        found = json.loads(file.read_text(encoding="utf-8"))
        gpu, driver, version = messages.fields(found, "gpu", "driver", "version")
    except (OSError, ValueError, RecursionError, _core.InvalidArgument) as error:
        raise _core.InvalidArgument(
            f"{file}: expected what bench/gpu_check writes, found {error}; remove it"
        ) from None
    mine = (torch.cuda.get_device_name(device), _driver_version(), _core.__version__)
    return mine == (gpu, driver, version)


# -------------------------------------------------------------------------------------- agreements


def _identity_of(device: torch.device) -> str:
    """Returns a name that no other device of the job has; empty for CPUs."""
    if device.type == "cpu":
        return ""
    number = device.index or 0
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(number)
        return str(getattr(properties, "uuid", "")) or f"{socket.gethostname()} {device}"
    return f"{socket.gethostname()} {device}"


def agree_on_engine(transport: _core.Transport, engine: str, device: torch.device) -> None:
    """Raises the same InvalidArgument on every rank unless all have one engine and own devices.

    Collective.
    """
    if transport.size == 1:
        return

    def read(value: Any) -> list[str]:
        return [messages.text(one, 200) for one in messages.fields(value, "engine", "device", "at")]

    # The engine native compares GPUs itself, where NCCL connects them.
    identity = _identity_of(device) if engine == "torch" else ""
    mine = {"engine": engine, "device": identity, "at": str(device)}
    all_ranks = messages.gather(transport.all_gather, "executor", mine, read)
    owner: dict[str, int] = {}
    for rank, (other, name, at) in enumerate(all_ranks):
        if other != all_ranks[0][0]:
            raise _core.InvalidArgument(
                f"executor: expected one engine on all ranks, found {all_ranks[0][0]} on rank 0 "
                f"and {other} on rank {rank}"
            )
        if name and name in owner:
            raise _core.InvalidArgument(
                f"executor: expected a GPU for each rank, found {at} on ranks {owner[name]} "
                f"and {rank}; call torch.cuda.set_device(LOCAL_RANK), or pass "
                'device=f"cuda:{LOCAL_RANK}"'
            )
        owner[name] = rank
