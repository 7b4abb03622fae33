"""Context parallelism for models of Megatron-LM (megatron-core 0.16), with its token layout.

    import contextile.megatron as ctm

    # In the layer spec:
    spec.submodules.self_attention.submodules.core_attention = ctm.CoreAttention
    planner = ctm.Planner(strategy="dcp")        # once, after initialize_model_parallel
    with ctm.use(planner):                       # around training: forward and backward
        train(...)

A layer finds its micro-batch by its tensors and ``packed_seq_params``, so pipelines and recomputed
layers need nothing more. A micro-batch with a group of its own (dynamic context parallelism) is
planned for that group; ``hybrid_batch`` brings schedules of ``contextile.schedule`` into Megatron's
loop. A micro-batch is planned when its first layer runs, or ahead (``Planner.prepare``). Tokens
stay where Megatron puts them: chunks r and 2R-1-r of every sequence are on rank r. RoPE, loss and
data loader stay as they are.
"""

from contextile.megatron._layer_specs import workload_of
from contextile.megatron._module import CoreAttention
from contextile.megatron._planner import Planner, use
from contextile.megatron._schedule import hybrid_batch

__all__ = ["CoreAttention", "Planner", "hybrid_batch", "use", "workload_of"]
