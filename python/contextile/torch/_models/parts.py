"""Finds parts of a model that attention over ranks does not cover: those that depend on the order
of tokens.
"""

from __future__ import annotations

import functools
import re
import weakref

from torch import nn

# Modules that mix tokens in the order in which this rank holds them.
_ORDERED = re.compile(
    "Mamba|SSM|R[wW][kK][vV]|[xm]LSTM|Recurrent|RgLru|DeltaNet|ShortConv|LightningAttention"
    "|LinearAttention|Hyena|Retention"
)
# Modules that take one token of a document, by their place or their type.
_POOLING = re.compile(r"(^|\.)(pooler|sequence_summary)$")
_POOLING_TYPES = re.compile(r"^(\w*CLIP|Siglip2?|Tips\w*)Text(Model|Transformer)")
# They see patches or frames, not the tokens of the batch.
_TOWERS = ("vision", "visual", "audio", "speech", "image")


GATHERED = "_contextile_gathered"  # where gather_layers keeps what it needs, in a module


def is_gathered(module: nn.Module) -> bool:
    """Returns whether ``gather_layers`` took a module over."""
    return GATHERED in module.__dict__


def _modules_of(model: weakref.ref[nn.Module]) -> list[tuple[str, nn.Module]]:
    living = model()
    assert living is not None  # the caller has it
    return list(living.named_modules())


@functools.lru_cache(maxsize=64)
def _ordered_part(model: weakref.ref[nn.Module], covered: frozenset[type]) -> str | None:
    modules = _modules_of(model)
    # Layers that run in order by themselves, with all that they contain.
    done = [
        f"{name}." for name, module in modules if type(module) in covered or is_gathered(module)
    ]
    for name, module in modules:
        if f"{name}.".startswith(tuple(done)) or any(tower in name.lower() for tower in _TOWERS):
            continue
        kind = type(module).__name__
        is_convolution = isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1
        # MobileBERT's embeddings join each token's with its neighbors'.
        is_convolution = is_convolution or getattr(module, "trigram_input", False)
        is_named = _ORDERED.search(kind) and not any(place.startswith(f"{name}.") for place in done)
        if is_convolution or isinstance(module, nn.RNNBase) or is_named:
            return f"{name} ({kind})" if name else kind
    return None


def ordered_part(model: nn.Module, covered: frozenset[type] = frozenset()) -> str | None:
    """Returns the name of a part that depends on the order of tokens, if the model has one.

    The modules are those that the model has at the first call. Covered types are left out, as are
    layers that ``gather_layers`` took over.
    """
    return _ordered_part(weakref.ref(model), covered)


@functools.lru_cache(maxsize=64)
def _pooled_part(model: weakref.ref[nn.Module]) -> str | None:
    for name, module in _modules_of(model):
        kind = type(module).__name__
        is_pooling = _POOLING.search(name) or _POOLING_TYPES.search(kind)
        if is_pooling and not any(tower in name.lower() for tower in _TOWERS):
            return f"{name} ({kind})" if name else kind
    return None


def pooled_part(model: nn.Module) -> str | None:
    """Returns the name of a part that takes one token for a document, if the model has one."""
    return _pooled_part(weakref.ref(model))


@functools.lru_cache(maxsize=64)
def _dropping_part(model: weakref.ref[nn.Module]) -> str | None:
    for name, module in _modules_of(model):
        if hasattr(module, "expert_capacity"):
            return f"{name} ({type(module).__name__})"
    return None


def dropping_part(model: nn.Module) -> str | None:
    """Returns the name of a router that drops tokens beyond a capacity, if the model has one."""
    return _dropping_part(weakref.ref(model))


def forget_parts() -> None:
    """Forgets the parts that were found, because modules have changed."""
    _ordered_part.cache_clear()
