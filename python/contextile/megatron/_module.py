"""The core attention of a layer spec."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import (
    ensure_metadata_has_dp_cp_group,
    make_sharded_tensors_for_checkpoint,
)
from torch import Tensor

from contextile import _core
from contextile.megatron._layer_specs import Layer, band_of, layer_of, micro_batch_of
from contextile.megatron._planner import Planner, planner_in_use

# The strategies whose plans move what types of communication do; p2p is Megatron-LM's default.
_STRATEGIES = {"a2a": "ulysses", "all_gather": "all_gather", "a2a+p2p": "hybrid"}


class CoreAttention(MegatronModule):  # type: ignore[misc]  # Megatron-LM has no types
    """The ``core_attention`` of a layer spec: exact self attention over the context-parallel group.

    It replaces ``DotProductAttention`` and ``TEDotProductAttention``, and takes their arguments.
    Its parameter ``softmax_offset`` (if ``config.softmax_type`` is ``"learnable"``) has their name
    and shape. The plan says what moves: a ``cp_comm_type`` other than p2p, Megatron-LM's default,
    has to be that of the planner's strategy.

    Raises
    ------
    InvalidArgument
        The layer is one of cross attention or fp8 attention, or logs or clips the largest logit, or
        its mask type, window or ``cp_comm_type`` is not supported.

    Examples
    --------
    ::

        spec = get_gpt_layer_local_spec()
        spec.submodules.self_attention.submodules.core_attention = CoreAttention
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> None:
        super().__init__(config=config)
        self.layer_number = max(1, layer_number)
        self.attn_mask_type = attn_mask_type
        if pg_collection is None:
            pg_collection = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        self.pg_collection = pg_collection
        self.attention_dropout = (
            config.attention_dropout if attention_dropout is None else attention_dropout
        )
        self._cp_comm_type = cp_comm_type
        self._check_config(attention_type)
        self._layer_options = {
            "layer_number": self.layer_number,
            "num_tp_ranks": pg_collection.tp.size(),
            "softmax_scale": softmax_scale,
            "k_channels": k_channels,
            "v_channels": v_channels,
        }
        self._layers: dict[tuple[AttnMaskType, torch.dtype], Layer] = {}
        band_of(config, attn_mask_type, self.layer_number)  # refuses what forward would
        self._make_sink()

    def _check_config(self, attention_type: str) -> None:
        if attention_type != "self":
            raise _core.InvalidArgument(
                f"layer {self.layer_number}: expected self attention, found attention_type "
                f"{attention_type}"
            )
        for name in (
            "qk_clip",
            "log_max_attention_logit",
            "fp8_dot_product_attention",
            "fp8_multi_head_attention",
        ):
            if getattr(self.config, name, False):
                raise _core.InvalidArgument(
                    f"layer {self.layer_number}: {name}: expected off, found on"
                )
        if self.config.softmax_type not in ("vanilla", "off-by-one", "learnable"):
            raise _core.InvalidArgument(
                f"layer {self.layer_number}: softmax_type: expected vanilla, off-by-one or "
                f"learnable, found {self.config.softmax_type}"
            )
        if self._cp_comm_type not in (None, "p2p", *_STRATEGIES):
            raise _core.InvalidArgument(
                f"layer {self.layer_number}: cp_comm_type: expected p2p, {', '.join(_STRATEGIES)}, "
                f"found {self._cp_comm_type!r:.40}"
            )

    def _find_other_communication(self, planner: Planner) -> str | None:
        """Returns what the layer's communication says that the planner's strategy does not do."""
        name, _, options = planner.strategy_text.partition(":")
        sizes = self.config.hierarchical_context_parallel_sizes
        if self._cp_comm_type in _STRATEGIES and name != _STRATEGIES[self._cp_comm_type]:
            wanted = _STRATEGIES[self._cp_comm_type]
            found = (
                f"cp_comm_type: expected p2p, or a type of the planner's strategy ({name}), found "
                f"{self._cp_comm_type}"
            )
        elif sizes and (name != "hybrid" or f"head_parallel={sizes[0]}" not in options.split(",")):
            wanted = f"hybrid:head_parallel={sizes[0]}"
            found = (
                "hierarchical_context_parallel_sizes: expected none, or sizes of the planner's "
                f"strategy ({planner.strategy_text}), found {list(sizes)}"
            )
        else:
            return None
        return f"{found}; the plan says what moves: Planner(strategy={wanted!r})"

    def _make_sink(self) -> None:
        """Makes a logit per query head of this rank that joins the softmax and has no value."""
        self.softmax_offset = None
        if self.config.softmax_type == "vanilla":
            return
        device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
        num_heads = self.config.num_attention_heads // self.pg_collection.tp.size()
        offset = torch.zeros(num_heads, device=device, dtype=self.config.params_dtype)
        if self.config.softmax_type == "off-by-one":
            self.softmax_offset = offset
            return
        self.softmax_offset = torch.nn.Parameter(offset)
        if self.config.perform_initialization:
            with torch.no_grad():
                self.config.init_method(self.softmax_offset)

    def _check_call(
        self,
        query: Tensor,
        key: Tensor,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
    ) -> Planner:
        planner, found = planner_in_use(), None
        if planner is None:
            found = "expected a planner (with contextile.megatron.use(planner)), found none"
        elif attention_mask is not None:
            found = (
                "expected no attention mask, for the plan has the micro-batch's; found one. Leave "
                "it out (--no-create-attention-mask-in-dataloader)"
            )
        elif attention_bias is not None:
            found = "expected no attention bias, found one"
        elif self.training and self.attention_dropout:
            found = f"expected attention_dropout 0, found {self.attention_dropout}"
        elif query.shape[:-2] != key.shape[:-2]:
            found = (
                f"expected keys of the tokens that queries are of, {list(query.shape[:-2])}, found "
                f"{list(key.shape[:-2])}"
            )
        elif self.pg_collection.cp.size() > 1:
            found = self._find_other_communication(planner)
        if planner is None or found is not None:
            raise _core.InvalidArgument(f"layer {self.layer_number}: {found}")
        return planner

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Computes attention of this rank's tokens to their whole sequences.

        Collective over the context-parallel group, or over the micro-batch's own group
        (``cp_group``, ``local_cp_size``). Rows of padding are 0.

        Parameters
        ----------
        query : Tensor
            sbhd [sequence/ranks, batch, q_heads, head_dim] or thd [tokens/ranks, q_heads,
            head_dim].
        key, value : Tensor
            Likewise with the KV heads; the value has value_dim.
        attention_mask, attention_bias : None
            Must be None.
        attn_mask_type : AttnMaskType, optional
            Default: that of the layer spec.
        packed_seq_params : PackedSeqParams, optional
            The sequences of a thd micro-batch, and the group of one that has its own.

        Returns
        -------
        Tensor
            sbhd [sequence/ranks, batch, q_heads * value_dim] or thd [tokens/ranks, q_heads *
            value_dim].

        Raises
        ------
        InvalidArgument
            No planner is in use; there is an attention mask, a bias, or dropout in training; the
            mask type is not causal, padding_causal, no_mask or padding; keys have other tokens than
            the queries (an inference cache); sequences are not multiples of 2 x ranks of the group;
            or fields of ``packed_seq_params`` contradict each other or the tensors.
        TransportError
            A peer failed.
        """
        planner = self._check_call(query, key, attention_mask, attention_bias)
        team = planner.team_of(
            self.layer_number, self.config, self.pg_collection.cp, packed_seq_params
        )
        num_ranks = team.size
        leading = query.shape[:-2]
        num_rows = leading.numel()
        batch_size = leading[1] if len(leading) > 1 else 1
        micro_batch = micro_batch_of(
            packed_seq_params, num_ranks, leading[0] * num_ranks, batch_size
        )
        if sum(micro_batch.lengths) != num_rows * num_ranks:
            raise _core.InvalidArgument(
                f"layer {self.layer_number}: expected {sum(micro_batch.lengths)} tokens of packed "
                f"sequences on {num_ranks} ranks, found {num_rows} on this one"
            )
        kind = attn_mask_type or self.attn_mask_type
        layer = self._layers.get((kind, query.dtype))
        if layer is None:
            layer = layer_of(self.config, kind, dtype=query.dtype, **self._layer_options)
            self._layers[kind, query.dtype] = layer
        sink = (
            None
            if self.softmax_offset is None
            else self.softmax_offset.to(query.device, torch.float32)
        )
        q, k, v = (x.flatten(0, -3) for x in (query, key, value))
        out = planner.attend(team, layer, self.layer_number, micro_batch, q, k, v, sink)
        return out.reshape(*leading, -1)

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[tuple[int, int, int], ...] = (),
        metadata: dict[str, Any] | None = None,
    ) -> Any:
        """Returns the sharded state of ``softmax_offset``, cut over tensor-parallel ranks."""
        state = (
            self.state_dict(prefix="", keep_vars=True)
            if self.config.softmax_type == "learnable"
            else {}
        )
        return make_sharded_tensors_for_checkpoint(
            state,
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            tp_group=self.pg_collection.tp,
            dp_cp_group=ensure_metadata_has_dp_cp_group(metadata)["dp_cp_group"],
        )
