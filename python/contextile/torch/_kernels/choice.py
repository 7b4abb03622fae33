"""The choice among kernels of attention."""

from __future__ import annotations

import warnings

import torch

from contextile import _core
from contextile.torch._kernels.cpu_flash import CpuFlash
from contextile.torch._kernels.flash import Flash
from contextile.torch._kernels.flex import Flex
from contextile.torch._kernels.kernel import Kernel, Params
from contextile.torch._kernels.tiles import Tiles
from contextile.torch._kernels.triton_stage import TritonStage

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel for kernel in (Flash(), TritonStage(), Flex(), CpuFlash(), Tiles())
}

# The order of preference by type of device; others have the kernel that runs anywhere.
_PREFERRED = {"cuda": ("torch:flash", "torch:triton"), "cpu": ("torch:cpu",)}
_ANYWHERE = "torch:tiles"


def check_name(name: str, device: torch.device) -> None:
    """Raises InvalidArgument unless there is a kernel of that name for the device, or no name."""
    if name and name not in KERNELS:
        raise _core.InvalidArgument(
            f"kernel: expected one of the engine torch ({', '.join(KERNELS)}), found {name!r:.80}"
        )
    if name and not KERNELS[name].runs_on(device):
        raise _core.InvalidArgument(
            f"kernel {name}: expected a device of type {' or '.join(KERNELS[name].devices)}, found "
            f"{device}"
        )


def kernel_for(name: str, params: Params, device: torch.device) -> Kernel:
    """Returns the kernel of calls on a device: the named one, or else the preferred one.

    Raises InvalidArgument with the reason if the named kernel cannot run them.
    """
    if not name:
        candidates = [KERNELS[one] for one in (*_PREFERRED.get(device.type, ()), _ANYWHERE)]
        return next(one for one in candidates if one.runs_on(device) and not one.refusal(params))
    check_name(name, device)
    if refusal := KERNELS[name].refusal(params):
        raise _core.InvalidArgument(
            f"kernel {name}: expected calls that it can run, found others: {refusal}"
        )
    return KERNELS[name]


def checked_kernel_for(name: str, params: Params, device: torch.device) -> Kernel:
    """Returns the same after a check on the device.

    If the preferred kernel fails it, the one that runs anywhere takes its place, with a warning. A
    named kernel raises DeviceError.
    """
    kernel = kernel_for(name, params, device)
    try:
        kernel.check_on(params, device)
    except _core.DeviceError as error:
        if name:
            raise
        warnings.warn(
            f"contextile: {error}; {_ANYWHERE} runs instead", RuntimeWarning, stacklevel=2
        )
        return KERNELS[_ANYWHERE]
    return kernel
