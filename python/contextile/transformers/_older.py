"""Adapters for models whose layers attend in their own forward, without the attention interface.

An adapter replaces a method of the type's attention module. It computes queries, keys and values
with the module's parts, and leaves attention to a function with the signature of the interface.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from contextile import _core
from contextile.torch import Alibi, RelativeBias, alibi, relative_bias

_MPNET_DISTANCE = 128  # from which all keys share a bucket
# Stands for the mask that a model makes for itself, of which the plan has its own.
_NO_MASK = torch.zeros((1, 1, 1, 1), dtype=torch.bool)


class _Call(NamedTuple):
    """A call of a replaced method."""

    attend: Callable[..., tuple[Tensor, None]]
    module: Any
    given: Mapping[str, Any]  # the method's arguments by name

    def attended(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        dropout: float,
        is_causal: bool = True,
        **more: Any,
    ) -> Tensor:
        """Returns [1, tokens, heads, dim] of q, k and v [1, heads, tokens, dim]."""
        mask = self.given.get("attention_mask")
        # Arguments that the method has no name for are judged as those of the interface.
        more = {**self.given.get("kwargs", {}), "is_causal": is_causal, **more}
        return self.attend(
            self.module,
            q,
            k,
            v,
            None if mask is _NO_MASK else mask,
            scaling=scale,
            dropout=dropout if self.module.training else 0.0,
            **more,
        )[0]

    def refuse(self, *names: str) -> None:
        """Raises if an argument was given that an adapter has not."""
        found = [name for name in names if self.given.get(name) is not None]
        if found:
            raise _core.InvalidArgument(
                f"attention: expected no {found[0]} in {type(self.module).__name__}, which attends "
                "by a plan to its own tokens, found one"
            )

    def kept(self, k: Tensor, v: Tensor, name: str = "cache") -> tuple[Tensor, Tensor]:
        """Puts keys and values into the cache, if there is one."""
        cache = self.given.get(name)
        cache = getattr(cache, "self_attention_cache", cache)
        return (k, v) if cache is None else cache.update(k, v, self.module.layer_idx)


def _heads_of(rows: Tensor, dim: int) -> Tensor:
    """Returns [1, heads, tokens, dim] of [1, tokens, heads * dim]."""
    heads: Tensor = rows.unflatten(-1, (-1, dim))
    return heads.transpose(1, 2)


def _by_head(fused: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Returns q, k and v [1, heads, tokens, dim] of a projection that has them head by head."""
    return tuple(part.transpose(1, 2) for part in fused.unflatten(-1, (-1, 3, dim)).unbind(-2))


def _bloom(call: _Call) -> tuple[Tensor, None]:
    module, given = call.module, call.given
    q, k, v = _by_head(module.query_key_value(given["hidden_states"]), module.head_dim)
    k, v = call.kept(k, v, "layer_past")
    bias, found = alibi(module.num_heads), given["alibi"]
    if not found.is_meta and found.shape[-1] > 1:
        slopes = (found[:, 0, 1] - found[:, 0, 0])[: module.num_heads].float().cpu()
        if not torch.allclose(
            slopes, bias.slopes, rtol=2e-6 if found.dtype == torch.float32 else 1e-2
        ):
            raise _core.InvalidArgument(
                f"attention: expected the slopes of ALiBi's paper in {type(module).__name__}, "
                f"found {slopes[:4].tolist()}"
            )
    out = call.attended(
        q, k, v, scale=module.inv_norm_factor, dropout=module.attention_dropout.p, bias=bias
    )
    out = functional.dropout(module.dense(out.flatten(2)), module.hidden_dropout, module.training)
    return given["residual"] + out, None


def _mpt(call: _Call) -> tuple[Tensor, None]:
    module, bias = call.module, call.given["position_bias"]
    fused = module.Wqkv(call.given["hidden_states"])
    if module.clip_qkv:
        fused = fused.clamp(-module.clip_qkv, module.clip_qkv)
    q, k, v = (_heads_of(part, module.head_dim) for part in fused.chunk(3, dim=2))
    k, v = call.kept(k, v)
    # The bias ends in that of the token before, and 0.
    slopes = None if bias is None or bias.is_meta else Alibi((-bias[:, 0, -2]).float().cpu())
    out = call.attended(
        q, k, v, scale=module.softmax_scale, dropout=module.attn_dropout_p, bias=slopes
    )
    return module.out_proj(out.flatten(2)), None


def _falcon(call: _Call) -> tuple[Tensor, None]:
    module, given = call.module, call.given
    call.refuse("alibi")  # it is rounded to bf16 at every position
    fused = module.query_key_value(given["hidden_states"])
    q, k, v = module._split_heads(fused)  # noqa: SLF001  # the layer's own, in transformers
    if module.new_decoder_architecture:  # keys are repeated for every query head
        every = module.num_heads // module.num_kv_heads
        k, v = k[:, :, ::every], v[:, :, ::every]
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    q, k = sys.modules[type(module).__module__].apply_rotary_pos_emb(
        q, k, *given["position_embeddings"]
    )
    k, v = call.kept(k, v, "layer_past")
    out = call.attended(q, k, v, scale=module.inv_norm_factor, dropout=0.0)
    return module.dense(out.flatten(2)), None


def _gpt_neo(call: _Call) -> tuple[Tensor, None]:
    module, given = call.module, call.given
    window = module.config.window_size if module.attention_type == "local" else None
    out = call.attended(
        given["query"],
        given["key"],
        given["value"],
        scale=1.0,
        dropout=module.attn_dropout.p,
        sliding_window=window,
    )
    return out.transpose(1, 2), None


def _gpt_neox_japanese(call: _Call) -> tuple[Tensor, None]:
    module, given = call.module, call.given
    out = call.attended(
        given["query"],
        given["key"],
        given["value"],
        scale=1 / module.norm_factor,
        dropout=module.attention_dropout.p,
    )
    return out.transpose(1, 2), None


def _openai(call: _Call) -> list[Tensor]:
    module, given = call.module, call.given
    scale = 1 / math.sqrt(given["v"].shape[-1]) if module.scale else 1.0
    out = call.attended(
        given["q"],
        given["k"].transpose(-1, -2),
        given["v"],
        scale=scale,
        dropout=module.attn_dropout.p,
    )
    return [out.transpose(1, 2)]


def _bert(call: _Call) -> tuple[Tensor, None]:
    module, given = call.module, call.given
    call.refuse("encoder_hidden_states")
    dim = module.attention_head_size
    q, k, v = (
        _heads_of(part(given["hidden_states"]), dim)
        for part in (module.query, module.key, module.value)
    )
    angles = given.get("sinusoidal_pos")
    if angles is not None:
        turned = (q, k, v) if module.rotary_value else (q, k)
        q, k, v = (*module.apply_rotary_position_embeddings(angles, *turned), v)[:3]
    k, v = call.kept(k, v)
    out = call.attended(
        q, k, v, scale=1 / math.sqrt(dim), dropout=module.dropout.p, is_causal=module.is_decoder
    )
    return out.flatten(2), None


def _mpnet(call: _Call) -> tuple[Tensor]:
    module, given = call.module, call.given
    dim = module.attention_head_size
    q, k, v = (
        _heads_of(part(given["hidden_states"]), dim) for part in (module.q, module.k, module.v)
    )
    out = call.attended(
        q,
        k,
        v,
        scale=1 / math.sqrt(dim),
        dropout=module.dropout.p,
        is_causal=False,
        bias=given.get("position_bias"),
    )
    return (module.o(out.flatten(2)),)


def _mpnet_bias(call: _Call) -> RelativeBias | None:
    """Returns the table by which layers of MPNet have their bias, instead of the bias."""
    call.refuse("position_ids")
    table = call.module.relative_attention_bias.weight.t()
    if table.is_meta:
        return None
    offsets = torch.arange(-_MPNET_DISTANCE, _MPNET_DISTANCE + 1, device="cpu")
    return relative_bias(
        table, -_MPNET_DISTANCE, buckets=call.module.relative_position_bucket(offsets)
    )


def _bart(call: _Call) -> tuple[Tensor, None]:
    module, given = call.module, call.given
    call.refuse("key_value_states", "attn_prompt")
    q, k, v = (
        _heads_of(part(given["hidden_states"]), module.head_dim)
        for part in (module.q_proj, module.k_proj, module.v_proj)
    )
    k, v = call.kept(k, v)
    out = call.attended(
        q, k, v, scale=module.scaling, dropout=module.dropout, is_causal=module.is_decoder
    )
    return module.out_proj(out.flatten(2)), None


class _Adapter(NamedTuple):
    kind: str  # type of the model
    owner: str  # class of the module
    method: str
    run: Callable[[_Call], Any]


_ADAPTERS = (
    _Adapter("bloom", "BloomAttention", "forward", _bloom),
    _Adapter("falcon", "FalconAttention", "forward", _falcon),
    _Adapter("gpt_neo", "GPTNeoSelfAttention", "_attn", _gpt_neo),
    _Adapter("gpt_neox_japanese", "GPTNeoXJapaneseAttention", "_attn", _gpt_neox_japanese),
    _Adapter("megatron_bert", "MegatronBertSelfAttention", "forward", _bert),
    _Adapter("mpnet", "MPNetEncoder", "compute_position_bias", _mpnet_bias),
    _Adapter("mpnet", "MPNetSelfAttention", "forward", _mpnet),
    _Adapter("mpt", "MptAttention", "forward", _mpt),
    _Adapter("mvp", "MvpAttention", "forward", _bart),
    _Adapter("openai", "Attention", "_attn", _openai),
    _Adapter("rembert", "RemBertSelfAttention", "forward", _bert),
    _Adapter("roformer", "RoFormerSelfAttention", "forward", _bert),
    _Adapter("tapas", "TapasSelfAttention", "forward", _bert),
    _Adapter("trocr", "TrOCRAttention", "forward", _bart),
    _Adapter("xglm", "XGLMAttention", "forward", _bart),
)
_TYPES = {
    adapter.kind.replace("openai", "openai-gpt").replace("megatron_bert", "megatron-bert")
    for adapter in _ADAPTERS
}


def has_no_positions(model: Any) -> bool:
    """Returns whether a model has positions in its bias alone, which the plan gives it."""
    return getattr(getattr(model, "config", None), "model_type", "") in ("bloom", "mpt")


def _replaced(adapter: _Adapter, original: Any, attend: Callable[..., Any]) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return adapter.run(_Call(attend, self, signature.bind(self, *arguments, **named).arguments))

    return method


def _masks_of(make: Any, check_mask: Callable[..., Any]) -> Any:
    """Returns a function for masks that makes none for the adapted types."""

    def masks(*arguments: Any, **named: Any) -> Any:
        if getattr(named.get("config"), "model_type", "") not in _TYPES:
            return make(*arguments, **named)
        check_mask(*arguments, **named)
        return _NO_MASK

    return masks


@contextlib.contextmanager
def adapted(attend: Callable[..., Any], check_mask: Callable[..., Any]) -> Iterator[None]:
    """Makes modules of the adapted types attend by a function, inside ``with``.

    ``check_mask`` is called with what masks would be made of.
    """
    from transformers.masking_utils import AttentionMaskInterface

    before: list[tuple[Any, str, Any]] = []
    known = getattr(AttentionMaskInterface, "_global_mapping", {})
    masks_before = {name: known[name] for name in ("eager", "sdpa") if name in known}
    try:
        for adapter in _ADAPTERS:
            owner = getattr(
                sys.modules.get(f"transformers.models.{adapter.kind}.modeling_{adapter.kind}"),
                adapter.owner,
                None,
            )
            if owner is not None:  # the model's type was imported
                original = getattr(owner, adapter.method)
                before.append((owner, adapter.method, original))
                setattr(owner, adapter.method, _replaced(adapter, original, attend))
        for name, make in masks_before.items() if before else ():
            AttentionMaskInterface.register(name, _masks_of(make, check_mask))
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)
        for name, make in masks_before.items():
            AttentionMaskInterface.register(name, make)
