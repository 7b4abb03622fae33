"""Context parallelism by plans for models of Megatron-LM (megatron-core 0.16), with its layout of tokens.

    import contextile.megatron as ctm

    spec.submodules.self_attention.submodules.core_attention = ctm.CoreAttention  # in the layer spec
    planner = ctm.Planner(strategy="dcp")        # once, after initialize_model_parallel
    with ctm.use(planner):                       # around training: forward and backward
        train(...)

Every layer sees from its tensors and ``packed_seq_params`` which micro-batch it computes, so micro-batches of a pipeline
and recomputed layers need nothing more. A micro-batch is planned when its first layer comes, or ahead
(``Planner.plan_of``). Tokens stay where Megatron puts them (chunks r and 2R-1-r of every sequence on rank r), and so do
RoPE, loss and data loader.
"""

from contextile.megatron._layers import workload_of
from contextile.megatron._module import CoreAttention
from contextile.megatron._planner import Planner, use

__all__ = ["CoreAttention", "Planner", "use", "workload_of"]
