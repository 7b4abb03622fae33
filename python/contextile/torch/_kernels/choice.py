"""The choice among kernels of attention."""

from __future__ import annotations

from typing import Any

import torch

from contextile import _core
from contextile.torch._kernels.cpu_flash import CpuFlash
from contextile.torch._kernels.flash import Flash
from contextile.torch._kernels.flex import Flex
from contextile.torch._kernels.kernel import Kernel, Params
from contextile.torch._kernels.tiles import Tiles

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel for kernel in (Flash(), Flex(), CpuFlash(), Tiles())
}

# The order of preference by type of device; others have the last.
_PREFERRED = {
    "cuda": ("torch:flash", "torch:flex", "torch:tiles"),
    "cpu": ("torch:cpu", "torch:tiles"),
}
_ELSEWHERE = ("torch:flex", "torch:tiles")

# A kernel on intervals takes a stage whose keys would be copied more often than that, or which has
# more entries: variable-length kernels read each entry's keys from a copy.
_MAX_COPIES = 4
_MAX_ENTRIES = 4096


def check_name(name: str) -> None:
    """Raises InvalidArgument unless there is a kernel of that name, or none is named."""
    if name and name not in KERNELS:
        raise _core.InvalidArgument(
            f"kernel: expected one of the engine torch ({', '.join(KERNELS)}), found {name!r:.80}"
        )


class Choice:
    """The kernels that may run the calls of one shape on one device.

    Raises InvalidArgument with the reason if the named kernel cannot.
    """

    def __init__(self, name: str, params: Params, device: torch.device) -> None:
        check_name(name)
        if name:
            refusal = KERNELS[name].refusal(params, device)
            if refusal:
                raise _core.InvalidArgument(
                    f"kernel {name}: expected calls that it can run, found others: {refusal}"
                )
            self.kernels = [KERNELS[name]]
            return
        names = _PREFERRED.get(device.type, _ELSEWHERE)
        self.kernels = [KERNELS[one] for one in names if not KERNELS[one].refusal(params, device)]

    def of_stage(self, stage: Any) -> Kernel:
        """Returns the kernel of a stage's lists."""
        first = self.kernels[0]
        if first.takes_intervals or first.name == "torch:tiles":
            return first
        copied = sum(int(call.k_offsets[-1]) for call in stage.calls)
        entries = sum(len(call.groups) for call in stage.calls)
        if copied > _MAX_COPIES * stage.num_keys or entries > _MAX_ENTRIES:
            return next((one for one in self.kernels if one.takes_intervals), first)
        return first

    @property
    def may_take_intervals(self) -> bool:
        return any(kernel.takes_intervals for kernel in self.kernels)
