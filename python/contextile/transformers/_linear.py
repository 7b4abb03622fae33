"""Runs the linear and convolutional layers of Hugging Face models on chunks of the batch in order.

Layers of all families call functions of the same names: a causal convolution, and a chunked
recurrence. Inside ``use``, these functions pass states between ranks, and the layers' forward
brings tokens to chunks and back.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from contextile import _core
from contextile.torch import Executor
from contextile.torch._execute.executor import Prepared
from contextile.torch._models.parts import ordered_part
from contextile.torch._models.states import causal_conv, linear_attention, ssd_scan
from contextile.torch._tokens.token_layout import Chunks, chunks_of

_CONV = ("causal_conv1d_fn",)
_DELTA = (*_CONV, "torch_chunk_gated_delta_rule")
_KDA = (*_CONV, "chunk_kimi_delta_attention")
_SSD = (*_CONV, "mamba2_chunk_scan")


class _Family(NamedTuple):
    module: str  # of transformers.models
    layer: str  # name of the class
    functions: tuple[str, ...]  # that every call of such a layer reaches
    others: tuple[str, ...] = ()  # classes that sound like such layers, and attend


FAMILIES = {
    "bailing_hybrid": _Family("bailing_hybrid", "BailingHybridDeltaAttention", _KDA),
    "bamba": _Family("bamba", "BambaMixer", _SSD),
    "falcon_h1": _Family("falcon_h1", "FalconH1Mixer", _SSD),
    "granitemoehybrid": _Family("granitemoehybrid", "GraniteMoeHybridMambaLayer", _SSD),
    "kimi_linear": _Family(
        "kimi_linear", "KimiLinearDeltaAttention", _KDA, ("KimiLinearAttention",)
    ),
    "lara_mini": _Family("lara_mini", "LaraMiniGatedDeltaNet", _DELTA),
    "lfm2": _Family("lfm2", "Lfm2ShortConv", _CONV),
    "lfm2_moe": _Family("lfm2_moe", "Lfm2MoeShortConv", _CONV),
    "lfm3": _Family("lfm3", "Lfm3ShortConv", _CONV),
    "nemotron_h": _Family("nemotron_h", "NemotronHMamba2Mixer", _SSD),
    "olmo_hybrid": _Family("olmo_hybrid", "OlmoHybridGatedDeltaNet", _DELTA),
    "qwen3_5_moe_text": _Family("qwen3_5_moe", "Qwen3_5MoeGatedDeltaNet", _DELTA),
    "qwen3_5_text": _Family("qwen3_5", "Qwen3_5GatedDeltaNet", _DELTA),
    "qwen3_next": _Family("qwen3_next", "Qwen3NextGatedDeltaNet", _DELTA),
}


class _Run:
    """A layer that is computing: its chunks, and the functions that it has called so far."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self.called: set[str] = set()


class _State:
    """The layers that are computing, and how many ``run_in_order`` there are around them."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []  # innermost last
        self.depth = 0


# Not a context variable, for the same reason as in _attention.
_state = _State()


def _modules() -> Iterator[tuple[_Family, Any]]:
    """Yields the families whose modules are loaded, and the modules."""
    for family in FAMILIES.values():
        module = sys.modules.get(f"transformers.models.{family.module}.modeling_{family.module}")
        if module is not None and hasattr(module, family.layer):
            yield family, module


def _layer_types() -> frozenset[type]:
    return frozenset(
        getattr(module, name)
        for family, module in _modules()
        for name in (family.layer, *family.others)
    )


def layers_in_order() -> frozenset[type]:
    """Returns the types of layers that pass states between ranks inside ``use``."""
    return frozenset(getattr(module, family.layer) for family, module in _modules())


def covered_types() -> frozenset[type]:
    """Returns the types of layers that pass states between ranks at the moment: inside ``use``."""
    return _layer_types() if _state.depth > 0 else frozenset()


def covers(model: Any, config: Any) -> bool:
    """Returns whether all layers of a model that need tokens in order get them."""
    if isinstance(model, nn.Module):
        return ordered_part(model, _layer_types()) is None
    return getattr(config, "model_type", "") in FAMILIES


# --------------------------------------------------------------------------------------- functions


def _check_documents(options: dict[str, Any]) -> None:
    for name in ("seq_idx", "cu_seqlens", "cu_seq_lens_q", "initial_state", "initial_states", "z"):
        if options.get(name) is not None:
            raise _core.InvalidArgument(
                f"layer: expected no {name}, for the plan keeps documents apart and passes states, "
                "found some"
            )


def _conv(
    chunks: Chunks,
    conv: Callable[..., Tensor],
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **others: Any,
) -> Tensor:
    _check_documents(others)
    return causal_conv(hidden_states, weight, bias, chunks=chunks, conv=conv, activation=activation)


def _rule(
    chunks: Chunks,
    rule: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    _check_documents(options)
    kept = {
        name: options[name] for name in ("chunk_size", "use_qk_l2norm_in_kernel") if name in options
    }
    gates = {"g": g, "beta": beta}
    return linear_attention(query, key, value, gates=gates, chunks=chunks, rule=rule, **kept), None


def _scan(
    chunks: Chunks,
    rule: Callable[..., Any],
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    **options: Any,
) -> Tensor:
    _check_documents(options)
    names = ("D", "dt_bias", "dt_softplus", "dt_limit")
    kept = {name: options[name] for name in names if name in options}
    return ssd_scan(
        hidden_states, dt, A, B, C, chunks=chunks, rule=rule, chunk_size=chunk_size, **kept
    )


_IN_ORDER: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _conv,
    "torch_chunk_gated_delta_rule": _rule,
    "chunk_kimi_delta_attention": _rule,
    "mamba2_chunk_scan": _scan,
}


def _function_in_order(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    reference = inspect.unwrap(original)  # transformers' own, in fp32, where it has kernels, too

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _state.runs:
            return original(*args, **kwargs)
        run = _state.runs[-1]
        run.called.add(name)
        return _IN_ORDER[name](run.chunks, reference, *args, **kwargs)

    return call


def _no_fused(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a layer take its path of several functions."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return None if _state.runs else original(*args, **kwargs)

    return call


# ------------------------------------------------------------------------------------------ layers


_POSITIONAL = ("hidden_states", "cache", "attention_mask")  # of a layer's arguments


def _check_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tokens: int) -> Tensor:
    """Returns the hidden states of a layer's call. Refuses arguments that would be dropped."""
    given = {**dict(zip(_POSITIONAL, args, strict=False)), **kwargs}
    for cache in ("cache", "cache_params", "past_key_values"):
        if given.get(cache) is not None:
            raise _core.InvalidArgument(
                f"{name}: expected no {cache} inside use (use_cache=False), found one"
            )
    if given.get("attention_mask") is not None:
        raise _core.InvalidArgument(
            f"{name}: expected no attention_mask, for documents are packed without padding, found "
            "one"
        )
    _check_documents(given)
    hidden: Tensor = given["hidden_states"]
    if hidden.dim() != 3 or hidden.shape[:2] != (1, tokens):
        raise _core.InvalidArgument(
            f"{name}: expected this rank's {tokens} tokens in a batch of 1, found "
            f"{list(hidden.shape)}"
        )
    return hidden


def _layer_in_order(
    family: _Family, original: Any, begin: Callable[[nn.Module], tuple[Executor, Prepared]]
) -> Any:
    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        executor, prepared = begin(self)
        chunks = chunks_of(executor, plan=prepared)
        hidden = chunks.gather(
            _check_call(family.layer, args, kwargs, chunks.num_home_tokens), dim=1
        )
        kwargs.pop("hidden_states", None)
        run = _Run(chunks)
        _state.runs.append(run)
        try:
            out = original(self, hidden, *args[1:], **kwargs)
            missing = set(family.functions) - run.called
        finally:
            _state.runs.pop()
        if missing:
            raise _core.InvalidArgument(
                f"{family.layer}: expected a layer that calls {', '.join(family.functions)}, found "
                f"no call of {', '.join(sorted(missing))}"
            )
        return chunks.scatter(out, dim=1)

    return torch.compiler.disable(forward)


@contextlib.contextmanager
def run_in_order(begin: Callable[[nn.Module], tuple[Executor, Prepared]]) -> Iterator[None]:
    """Makes the layers of all families pass states between ranks, inside ``with``.

    ``begin`` is called as each layer begins. It returns the executor and the plan of the batch.
    """
    restored: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        restored.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    if _state.depth == 0:
        for family, module in _modules():
            for name in family.functions:
                put(module, name, _function_in_order(name, module.__dict__[name]))
            if "mamba2_split_conv1d_scan_combined" in module.__dict__:
                fused = "mamba2_split_conv1d_scan_combined"
                put(module, fused, _no_fused(module.__dict__[fused]))
            layer = module.__dict__[family.layer]
            put(layer, "forward", _layer_in_order(family, layer.__dict__["forward"], begin))
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
        for owner, name, value in reversed(restored):
            setattr(owner, name, value)
