"""The model of train_distca.py in Megatron's layers and pipeline, with pools of replicas."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch.nn import functional

import contextile.megatron as ctm


def on_cpus() -> None:
    """Replaces what megatron-core takes for granted of a GPU."""

    def without_gpu(make):
        def made(*sizes, **options):
            if options.get("device") == "cuda":
                options["device"] = "cpu"
            return make(
                *sizes, **{key: value for key, value in options.items() if key != "pin_memory"}
            )

        return made

    torch.cuda.current_device = lambda: "cpu"
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.synchronize = lambda *_: None
    for name in ("tensor", "ones", "zeros", "empty"):
        setattr(torch, name, without_gpu(getattr(torch, name)))


def config_of(like, stages: int, context: int) -> TransformerConfig:
    """The configuration of a ``Gpt`` with the sizes of ``like``, the module train_distca."""
    return TransformerConfig(
        num_layers=like.LAYERS,
        hidden_size=like.HIDDEN,
        ffn_hidden_size=like.FEED_FORWARD,
        num_attention_heads=like.HEADS,
        num_query_groups=like.KV_HEADS,
        kv_channels=like.DIM,
        normalization="RMSNorm",
        layernorm_epsilon=torch.finfo(torch.float32).eps,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        rotary_interleaved=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        calculate_per_token_loss=True,
        pipeline_dtype=torch.float32,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        context_parallel_size=context,
        pipeline_model_parallel_size=stages,
        finalize_model_grads_func=finalize_model_grads,
    )


def by_group(weight: torch.Tensor, like) -> torch.Tensor:
    """Rows of queries, keys and values as Megatron has them: those of a key head side by side."""
    rows = weight.unflatten(0, (-1, like.DIM))
    q, k, v = rows.split([like.HEADS, like.KV_HEADS, like.KV_HEADS])
    return torch.cat([q.unflatten(0, (like.KV_HEADS, -1)), k[:, None], v[:, None]], dim=1).flatten(
        0, 2
    )


def weights_of(gpt, first_layer: int, like) -> dict[str, torch.Tensor]:
    """The weights of a ``Gpt`` by Megatron's names. Layers count from the stage's first."""
    weights = {
        "embedding.word_embeddings.weight": gpt.embed.weight,
        "decoder.final_layernorm.weight": gpt.norm.weight,
        "output_layer.weight": gpt.head.weight,
    }
    for number, layer in enumerate(gpt.layers[first_layer:]):
        parts = {
            "input_layernorm": layer.norm.weight,
            "self_attention.linear_qkv": by_group(layer.project.weight, like),
            "self_attention.linear_proj": layer.out.weight,
            "pre_mlp_layernorm": layer.feed_norm.weight,
            "mlp.linear_fc1": layer.up.weight,
            "mlp.linear_fc2": layer.down.weight,
        }
        weights.update(
            {f"decoder.layers.{number}.{name}.weight": weight for name, weight in parts.items()}
        )
    return weights


class MegatronRanks:
    """This rank's stage of the model, in Megatron's data parallelism."""

    def __init__(self, gpt, like) -> None:
        on_cpus()
        stages, context = like.STAGES, like.CONTEXT
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=stages, context_parallel_size=context
        )
        config = config_of(like, stages, context)
        spec = get_gpt_layer_local_spec(normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = ctm.CoreAttention
        model = GPTModel(
            config,
            spec,
            vocab_size=like.VOCABULARY,
            max_sequence_length=1 << 20,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
        )
        weights = weights_of(
            gpt, parallel_state.get_pipeline_model_parallel_rank() * like.LAYERS // stages, like
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
        self.model = DistributedDataParallel(
            config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model
        )
        self.labels_of = like.labels_of
        self.planner = ctm.Planner(pool="dp_cp", strategy=like.STRATEGY)
        self.replica = parallel_state.get_data_parallel_rank()
        self.context, self.rank = context, parallel_state.get_context_parallel_rank()

    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self.model.parameters())

    def local(self, lengths: list[int], tokens: torch.Tensor, labels: torch.Tensor):
        """This rank's tokens and labels of documents padded to multiples of 2 x ranks."""
        pieces = 2 * self.context
        padded = [-(-length // pieces) * pieces for length in lengths]
        rows = []
        for end, length in zip(torch.tensor(padded).cumsum(0).tolist(), padded, strict=True):
            chunks = torch.arange(end - length, end).chunk(pieces)
            rows += [chunks[self.rank], chunks[-1 - self.rank]]
        ends, padded_ends = (
            functional.pad(torch.tensor(n).cumsum(0), (1, 0)).int() for n in (lengths, padded)
        )
        params = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            cu_seqlens_q_padded=padded_ends,
            cu_seqlens_kv_padded=padded_ends,
            max_seqlen_q=max(padded),
            max_seqlen_kv=max(padded),
        )

        def mine(given, fill):
            parts = (
                functional.pad(x, (0, n - len(x)), value=fill)
                for x, n in zip(given.split(lengths), padded, strict=True)
            )
            return torch.cat(list(parts))[torch.cat(rows)][None]

        return mine(tokens, 0), mine(labels, -100), params

    def step(self, data, model):
        """Megatron's forward step."""
        tokens, labels, params = self.local(*next(data))
        has_label = labels >= 0
        losses = model(
            tokens,
            torch.zeros_like(tokens),
            None,
            labels=labels.clamp(min=0),
            packed_seq_params=params,
        )

        def loss_of(losses):
            loss = (losses * has_label).sum()
            return loss, has_label.sum().int(), loss.detach().clone()

        return losses, loss_of

    def train(self, batch: list, num_labels: int) -> torch.Tensor:
        """Adds the gradients of a step, and returns its loss."""
        mine = [of_replicas[self.replica] for of_replicas in batch]
        self.model.zero_grad_buffer()
        with ctm.use(self.planner):
            losses = get_forward_backward_func()(
                forward_step_func=self.step,
                data_iterator=iter([(*one, self.labels_of(*one)) for one in mine]),
                model=[self.model],
                num_microbatches=len(mine),
                seq_length=len(mine[0][1]),
                micro_batch_size=1,
            )
        for parameter in self.parameters():
            parameter.grad = parameter.main_grad
        loss = torch.stack(losses).sum() if losses else torch.zeros(())
        dist.all_reduce(loss)
        return loss / num_labels
