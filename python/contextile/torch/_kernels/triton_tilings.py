"""Tilings of the Triton kernels that were timed on a GPU, in a file."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from contextile import _core
from contextile.torch._kernels.triton_attention import KERNEL_NAMES, Tiling

# The values that a tiling may have.
SIZES = (16, 32, 64, 128)
WARPS = (1, 2, 4, 8, 16)
STAGES = (1, 2, 3, 4, 5, 6)


def tilings_file() -> Path:
    """Returns the file of ``contextile.torch.tune``."""
    named = os.environ.get("CONTEXTILE_TRITON_TILINGS", "")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(named or Path(cache) / "contextile" / "triton_tilings.json")


def key_of(kernel: str, dtype: torch.dtype, dims: tuple[int, int], has_terms: bool) -> str:
    """Returns the name of a tiling in the file, for dims of keys and of values."""
    terms = "terms" if has_terms else "plain"
    return f"{kernel}, {8 * dtype.itemsize} bits, dims {dims[0]} and {dims[1]}, {terms}"


def _machine(device: torch.device) -> str:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{gpu}, contextile {_core.__version__}, triton {triton.__version__}"


def _tiling_of(value: Any) -> Tiling:
    """Raises ValueError unless the value is a tiling."""
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError(f"expected four numbers, found {value!r:.80}")
    for number, allowed in zip(value, (SIZES, SIZES, WARPS, STAGES), strict=True):
        if type(number) is not int or number not in allowed:
            raise ValueError(f"expected one of {allowed}, found {number!r:.80}")
    return Tiling(*value)


def _read(file: Path) -> dict[str, dict[str, Tiling]]:
    """Returns the tilings by machine. Raises InvalidArgument if the file is broken."""
    try:
        if not file.is_file():
            return {}
        found = json.loads(file.read_text(encoding="utf-8"))
        return {
            machine: {name: _tiling_of(value) for name, value in tilings.items()}
            for machine, tilings in found.items()
        }
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise _core.InvalidArgument(
            f"{file}: expected what contextile.torch.tune writes, found {error}; remove it"
        ) from None


@functools.cache
def tilings_of(
    device: torch.device, dtype: torch.dtype, dims: tuple[int, int], has_terms: bool
) -> dict[str, Tiling]:
    """Returns the tilings that were timed on this GPU by these versions, by kernel."""
    found = _read(tilings_file())
    mine = found.get(_machine(device), {}) if found else {}
    keys = {kernel: key_of(kernel, dtype, dims, has_terms) for kernel in KERNEL_NAMES}
    return {kernel: mine[key] for kernel, key in keys.items() if key in mine}


def check_writable(file: Path) -> None:
    """Makes the folder of a file. Raises InvalidArgument unless files can be made there."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise _core.InvalidArgument(
            f"{file}: expected a folder in which tilings can be kept, found {error}; "
            "CONTEXTILE_TRITON_TILINGS names another file"
        ) from None


def keep_tilings(device: torch.device, tilings: Mapping[str, Tiling | None]) -> Path:
    """Writes tilings into the file, by their names there; None removes one. Returns the file."""
    file = tilings_file()
    found = _read(file)
    mine = found.setdefault(_machine(device), {})
    for name, tiling in tilings.items():
        mine.pop(name, None)
        if tiling is not None:
            mine[name] = tiling
    text = json.dumps(found, indent=1) + "\n"
    check_writable(file)
    # A name of its own, because processes of several machines may share the folder.
    number, new = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
    with open(number, "w", encoding="utf-8") as out:
        out.write(text)
    Path(new).replace(file)  # ranks that read it find the old one or this one
    tilings_of.cache_clear()
    return file
