"""Contextile plans and runs context-parallel attention.

``plan`` takes the document lengths of a batch, an attention mask and a cluster. It decides which
device holds which tokens, which device computes which part of attention, and what moves when. A
plan is verified, and can be simulated on any cluster, executed exactly, and drawn.

>>> import contextile as ct
>>> plan = ct.plan([500, 90_000, 40_572], mask="causal", cluster="dgx-h200:4x8", strategy="zigzag")
>>> plan.verify().ok
True

The parts of the package:

* ``advise`` finds the fastest set-up of a training job.
* ``contextile.masks`` and ``contextile.strategies`` make the arguments of ``plan`` and ``compare``.
* ``contextile.torch`` executes plans on tensors of PyTorch, in any ``torch.distributed`` group.
* ``contextile.transformers`` does so for Hugging Face models, and ``contextile.megatron`` for
models
  of Megatron-LM.
* ``NumpyExecutor`` executes plans on NumPy arrays.
* ``contextile.inference`` decodes over a cache of keys and values that ranks share.
* ``contextile.plot`` draws with matplotlib.
"""

from typing import TYPE_CHECKING, Any

from contextile import masks, strategies
from contextile._advise import Advice, advise
from contextile._core import (
    ArrangedDirection,
    ArrangedMask,
    ArrangedRound,
    Arrangement,
    AttentionShape,
    BatchSampler,
    Blocking,
    ChangedStanding,
    CheckFailed,
    Cluster,
    DeviceError,
    EngineCosts,
    Error,
    Gpu,
    HeldExperiment,
    HeldMethod,
    HeldRow,
    InvalidArgument,
    InvalidPlan,
    IoError,
    Mask,
    MaskSpec,
    PlacedTile,
    Plan,
    PlanningFailed,
    Schedule,
    ScheduledMicroBatch,
    Store,
    StrategyChoice,
    Tile,
    TimeBound,
    Transfer,
    Transport,
    TransportError,
    Validation,
    Workload,
    __version__,
    cluster_presets,
    cut_sequences,
    engine_presets,
    gloo_available,
    gloo_transport,
    inproc_group,
    num_gpus,
    open_gpu,
    open_store,
    read_lengths,
    sample_lengths,
    tiles,
)
from contextile._heads import HeadGroup, HeadPlans
from contextile._layer_plans import plans
from contextile._numpy_executor import NumpyExecutor, kernels, run_inproc
from contextile._planning import Comparisons, compare, lower_bound, make_workload, plan, schedule
from contextile._validation import validate

if TYPE_CHECKING:
    from contextile import plot

__all__ = [
    "Advice",
    "ArrangedDirection",
    "ArrangedMask",
    "ArrangedRound",
    "Arrangement",
    "AttentionShape",
    "BatchSampler",
    "Blocking",
    "ChangedStanding",
    "CheckFailed",
    "Cluster",
    "Comparisons",
    "DeviceError",
    "EngineCosts",
    "Error",
    "Gpu",
    "HeadGroup",
    "HeadPlans",
    "HeldExperiment",
    "HeldMethod",
    "HeldRow",
    "InvalidArgument",
    "InvalidPlan",
    "IoError",
    "Mask",
    "MaskSpec",
    "NumpyExecutor",
    "PlacedTile",
    "Plan",
    "PlanningFailed",
    "Schedule",
    "ScheduledMicroBatch",
    "Store",
    "StrategyChoice",
    "Tile",
    "TimeBound",
    "Transfer",
    "Transport",
    "TransportError",
    "Validation",
    "Workload",
    "__version__",
    "advise",
    "cluster_presets",
    "compare",
    "cut_sequences",
    "engine_presets",
    "gloo_available",
    "gloo_transport",
    "inproc_group",
    "kernels",
    "lower_bound",
    "make_workload",
    "masks",
    "num_gpus",
    "open_gpu",
    "open_store",
    "plan",
    "plans",
    "plot",
    "read_lengths",
    "run_inproc",
    "sample_lengths",
    "schedule",
    "strategies",
    "tiles",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name != "plot":
        raise AttributeError(f"module 'contextile' has no attribute '{name}'")
    # Imported on demand: it needs NumPy, which takes a while to import.
    import importlib

    return importlib.import_module("contextile.plot")
