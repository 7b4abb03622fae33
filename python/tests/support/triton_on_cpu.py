"""Triton's interpreter, which runs kernels on tensors of the CPU.

conftest.py turns it on before anything imports Triton.
"""

from __future__ import annotations

from contextile.torch._kernels.triton_stage import TritonStage


def install() -> None:
    """Lets ``torch:triton`` run on the CPU in this process, without a check before."""
    if "cpu" not in TritonStage.devices:
        TritonStage.devices = (*TritonStage.devices, "cpu")
        TritonStage.check_on = lambda *given: None
