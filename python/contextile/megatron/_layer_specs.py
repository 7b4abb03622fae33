"""Turns micro-batches of Megatron and the attention of its layers into workloads."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from contextile import _core
from contextile._planning import dtype_name, make_workload
from contextile.megatron._groups import group_field_of

# Query q attends key k of its sequence if lo <= k - q <= hi; None is no bound.
Band = tuple[int | None, int | None]

_CAUSAL = (AttnMaskType.causal, AttnMaskType.padding_causal)
_FULL = (AttnMaskType.no_mask, AttnMaskType.padding)


class Layer(NamedTuple):
    """The attention of a layer on a tensor-parallel rank, and the masks of all layers."""

    heads: tuple[int, int]
    head_dim: int
    value_dim: int
    dtype: str
    scale: float  # 0: 1/sqrt(head_dim)
    sink: bool
    band: Band
    layers: tuple[tuple[Band, int], ...]  # number of layers per band, this one's included


class MicroBatch(NamedTuple):
    """The sequences of a micro-batch. Padding comes after the tokens of its sequence."""

    lengths: tuple[int, ...]  # tokens with padding
    num_used: tuple[int, ...]  # tokens without padding
    is_sbhd: bool  # True: a row has one token of every sequence; False: end to end


def band_of(config: TransformerConfig, kind: AttnMaskType, layer_number: int) -> Band:
    """Returns the band of a layer. Raises InvalidArgument if no band describes its mask."""
    if kind not in _CAUSAL and kind not in _FULL:
        known = ", ".join(one.name for one in (*_CAUSAL, *_FULL))
        raise _core.InvalidArgument(
            f"layer {layer_number}: attn_mask_type: expected one of {known}, found {kind.name}"
        )
    is_causal = kind in _CAUSAL
    if not is_layer_window_attention(
        config.window_size, config.window_attn_skip_freq, layer_number
    ):
        return (None, 0 if is_causal else None)
    left, right = config.window_size  # -1 is no bound
    if is_causal and right > 0:
        raise _core.InvalidArgument(
            f"layer {layer_number}: window_size: expected no token ahead of a causal query, found "
            f"{tuple(config.window_size)}"
        )
    return (-left if left >= 0 else None, 0 if is_causal else right if right >= 0 else None)


def name_of(band: Band) -> str:
    """Returns the name of a mask.

    It describes the band completely, so that no layer takes another mask of a plan for its own.
    """
    lo, hi = band
    if lo is None and hi in (None, 0):
        return "full" if hi is None else "causal"
    if lo is not None and hi == 0:
        return f"sliding_window:{1 - lo}"
    return f"window:{'' if lo is None else -lo},{'' if hi is None else hi}"


def layer_of(
    config: TransformerConfig,
    kind: AttnMaskType,
    *,
    layer_number: int = 1,
    num_tp_ranks: int | None = None,
    dtype: torch.dtype | None = None,
    softmax_scale: float | None = None,
    k_channels: int | None = None,
    v_channels: int | None = None,
) -> Layer:
    """Returns the attention of a layer. Defaults are those of a plain layer of the model."""
    num_tp_ranks = num_tp_ranks or config.tensor_model_parallel_size
    if dtype is None:
        dtype = (
            torch.bfloat16 if config.bf16 else torch.float16 if config.fp16 else config.params_dtype
        )
    scale = softmax_scale if softmax_scale is not None else config.softmax_scale
    band = band_of(config, kind, layer_number)
    layers = Counter(band_of(config, kind, number) for number in range(1, config.num_layers + 1))
    layers.setdefault(band, 1)
    return Layer(
        heads=(
            config.num_attention_heads // num_tp_ranks,
            max(config.num_query_groups // num_tp_ranks, 1),
        ),
        head_dim=k_channels or config.kv_channels,
        value_dim=v_channels or config.kv_channels,
        dtype=dtype_name(dtype),
        scale=float(scale or 0.0),
        sink=config.softmax_type != "vanilla",
        band=band,
        layers=tuple(layers.items()),
    )


# Contents of cu_seqlens by tensor, with its version. Reading a GPU's tensor waits for the GPU, and
# all layers read the same ones.
_read: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _numbers_of(tensor: Tensor) -> list[int]:
    numbers: list[int]
    now = tensor._version  # noqa: SLF001  # PyTorch's count of writes has no other name
    version, numbers = _read.get(tensor, (None, []))
    if version != now:
        numbers = tensor.to(torch.int64).tolist()
        _read[tensor] = (now, numbers)
    return numbers


def _sequences_of(name: str, given: Tensor | None) -> list[int]:
    if given is None:
        raise _core.InvalidArgument(f"packed_seq_params: expected {name}, found none")
    ends = _numbers_of(given)
    lengths = [end - begin for begin, end in itertools.pairwise(ends)]
    if not lengths or ends[0] != 0 or min(lengths) < 0:
        raise _core.InvalidArgument(f"{name}: expected ascending from 0, found {ends!r:.80}")
    return lengths


def _thd_of(params: PackedSeqParams) -> MicroBatch:
    num_used = _sequences_of("cu_seqlens_q", params.cu_seqlens_q)
    lengths = num_used
    if params.cu_seqlens_q_padded is not None:
        lengths = _sequences_of("cu_seqlens_q_padded", params.cu_seqlens_q_padded)
    for ending in ("", "_padded"):
        q, kv = (getattr(params, f"cu_seqlens_{side}{ending}") for side in ("q", "kv"))
        if kv is not None and (q is None or _numbers_of(q) != _numbers_of(kv)):
            raise _core.InvalidArgument(
                f"packed_seq_params: expected cu_seqlens_kv{ending} as cu_seqlens_q{ending}, found "
                "another"
            )
    # Lists of unlike lengths are refused below.
    pairs = [(padded, used) for padded, used in zip(lengths, num_used, strict=False) if padded]
    if (
        len(lengths) != len(num_used)
        or any(used > padded for padded, used in pairs)
        or sum(num_used) > sum(lengths)
    ):
        raise _core.InvalidArgument(
            "cu_seqlens_q_padded: expected room for every sequence of cu_seqlens_q "
            f"({num_used!r:.60}), found {lengths!r:.60}"
        )
    return MicroBatch(
        tuple(padded for padded, _ in pairs), tuple(used for _, used in pairs), is_sbhd=False
    )


def _sbhd_of(
    params: PackedSeqParams | None, seq_length: int | None, micro_batch_size: int | None
) -> MicroBatch:
    """Returns the sequences of an sbhd micro-batch. Refuses fields that contradict its tensors."""
    if seq_length is None and params is not None:
        seq_length = params.max_seqlen_q
    if seq_length is None or micro_batch_size is None:
        raise _core.InvalidArgument(
            "micro-batch: expected seq_length and micro_batch_size, or packed_seq_params of thd"
        )
    lengths = (seq_length,) * micro_batch_size
    for name in ("max_seqlen_q", "max_seqlen_kv"):
        found = getattr(params, name, None)
        if found is not None and int(found) != seq_length:
            raise _core.InvalidArgument(
                f"packed_seq_params: {name}: expected {seq_length}, the tokens of an sbhd "
                f"sequence, found {found}"
            )
    for name in ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        given = getattr(params, name, None)
        if given is not None and (ends := _numbers_of(given)) != [
            seq_length * i for i in range(micro_batch_size + 1)
        ]:
            raise _core.InvalidArgument(
                f"packed_seq_params: {name}: expected {micro_batch_size} sbhd sequences of "
                f"{seq_length} tokens, found {ends!r:.60}"
            )
    return MicroBatch(lengths, lengths, is_sbhd=True)


def micro_batch_of(
    params: PackedSeqParams | None,
    num_ranks: int,
    seq_length: int | None,
    micro_batch_size: int | None,
) -> MicroBatch:
    """Returns the sequences of a micro-batch; ``seq_length`` counts the whole sequence.

    Raises InvalidArgument if Megatron cannot cut the sequences over the ranks.
    """
    qkv_format = "sbhd" if params is None else params.qkv_format or "sbhd"
    if qkv_format not in ("sbhd", "thd"):
        raise _core.InvalidArgument(
            f"packed_seq_params: expected qkv_format sbhd or thd, found {qkv_format}"
        )
    if qkv_format == "thd":
        micro_batch = _thd_of(params)
    else:
        micro_batch = _sbhd_of(params, seq_length, micro_batch_size)
    chunks = 2 * num_ranks
    for number, length in enumerate(micro_batch.lengths):
        if num_ranks > 1 and length % chunks:
            raise _core.InvalidArgument(
                f"sequence {number} of the micro-batch: expected a multiple of 2 x {num_ranks} "
                f"tokens (ranks of its group), found {length}"
                + ("; pad it (cu_seqlens_q_padded)" if qkv_format == "thd" else "")
            )
    return micro_batch


def tokens_of_rows(micro_batch: MicroBatch, num_ranks: int, rank: int) -> np.ndarray:
    """Returns the token of the batch in every row of a rank, in Megatron's order."""
    parts, begin = [], 0
    for length in micro_batch.lengths:
        tokens = np.arange(begin, begin + length)
        if num_ranks > 1:
            chunks = tokens.reshape(2 * num_ranks, -1)
            tokens = chunks[[rank, 2 * num_ranks - 1 - rank]].reshape(-1)
        parts.append(tokens)
        begin += length
    return np.stack(parts, axis=1).reshape(-1) if micro_batch.is_sbhd else np.concatenate(parts)


def _mask_of(band: Band, micro_batch: MicroBatch) -> Any:
    """Returns the mask of a band: a rule if there is one, otherwise bands.

    Padding attends nothing, and nothing attends it.
    """
    name = name_of(band)
    if micro_batch.num_used == micro_batch.lengths and not name.startswith("window"):
        return name
    bands, begin = [], 0
    for length, used in zip(micro_batch.lengths, micro_batch.num_used, strict=True):
        if used:
            bands.append((begin, begin + used, begin, begin + used, *band))
        begin += length
    return _core.mask_from_bands(bands, sum(micro_batch.lengths))


def make_workload_of(layer: Layer, micro_batch: MicroBatch, num_ranks: int) -> _core.Workload:
    """Returns the workload of all layers that differ from this one only in their bands."""
    return make_workload(
        micro_batch.lengths,
        mask={name_of(band): (_mask_of(band, micro_batch), count) for band, count in layer.layers},
        heads=layer.heads,
        head_dim=layer.head_dim,
        value_dim=layer.value_dim,
        dtype=layer.dtype,
        scale=layer.scale,
        sink=layer.sink,
        home="zigzag",
        num_ranks=num_ranks,
    )


def workload_of(
    config: TransformerConfig,
    packed_seq_params: PackedSeqParams | None = None,
    *,
    seq_length: int | None = None,
    micro_batch_size: int | None = 1,
    attn_mask_type: AttnMaskType = AttnMaskType.causal,
) -> _core.Workload:
    """Returns a micro-batch as a workload for ``contextile.plan`` and ``contextile.compare``.

    Not collective.

    Parameters
    ----------
    config : TransformerConfig
        The configuration of the model. Dimensions are those of plain self attention, not of
        multi-latent attention.
    packed_seq_params : PackedSeqParams, optional
        The sequences of a thd micro-batch, padded to multiples of 2 x ranks tokens
        (``cu_seqlens_q_padded``), and the group of a micro-batch that has its own.
    seq_length : int, optional
        Tokens of a whole sequence, for sbhd. Default: ``max_seqlen_q`` of ``packed_seq_params``.
    micro_batch_size : int, optional
        Number of sequences, for sbhd.
    attn_mask_type : AttnMaskType
        The mask type of the layer spec.

    Returns
    -------
    Workload

    Raises
    ------
    InvalidArgument
        Megatron cannot cut the sequences over the ranks, fields of ``packed_seq_params`` contradict
        each other, or the mask is of another kind.

    Examples
    --------
    ::

        workload = workload_of(config, seq_length=8192, micro_batch_size=2)
        print(ct.compare(workload, cluster="dgx-h200:1x8"))
    """
    field = group_field_of(packed_seq_params)
    num_ranks = config.context_parallel_size if field is None else field.size
    micro_batch = micro_batch_of(packed_seq_params, num_ranks, seq_length, micro_batch_size)
    return make_workload_of(layer_of(config, attn_mask_type), micro_batch, num_ranks)
