"""Makes layers of Hugging Face models attend by a plan, and describes models to the planner."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch import Executor, attention
from contextile.torch._executor import Prepared, Rules
from contextile.torch._layout import check_tokens_on_ranks

_FULL = "full"
_SLIDING = "sliding"
# Not a context variable: checkpointing recomputes a layer in backward, on a thread of autograd.
_executor: Executor | None = None
_check_masks = True
_calls = 0  # number of calls of layers since the process began


def register(name: str = "contextile") -> str:
    """Registers Contextile with ``transformers`` as an attention implementation.

    May be called again.

    Parameters
    ----------
    name : str
        Name of the implementation.

    Returns
    -------
    str
        The name.

    Examples
    --------
    ::

        model.set_attn_implementation(contextile.transformers.register())
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, _attend)
    AttentionMaskInterface.register(name, _refuse_padding)
    return name


def _refuse_padding(*args: Any, attention_mask: Tensor | None = None, **others: Any) -> None:
    """Replaces the function that makes a model's mask. Refuses padding."""
    if attention_mask is not None and (attention_mask.dim() != 2 or not bool(attention_mask.all())):
        raise _core.InvalidArgument(
            f"attention_mask: expected none, or ones, for documents are packed without padding and the plan has their masks; "
            f"found {list(attention_mask.shape)} with {int((attention_mask == 0).sum())} zeros"
        )


@contextlib.contextmanager
def use(executor: Executor, *, check_masks: bool = True) -> Iterator[Executor]:
    """Makes the layers of models attend with an executor, inside ``with``.

    Calls are collective: every rank runs the model on its own tokens. If layers are checkpointed,
    run backward inside, too.

    Parameters
    ----------
    executor : Executor
        Prepared for the plan of the batch.
    check_masks : bool
        Whether the plan's masks must reach as far as the layers' own: causal, sliding layers within
        their window. False lets the plan's masks replace them, such as prefix LM.

    Yields
    ------
    Executor

    Raises
    ------
    InvalidArgument
        On entering, if a rank of the plan owns no tokens. In a layer, if it does not fit the plan:
        another shape, scale, softcap or mask, an attention mask, dropout, a batch above 1, or
        positions other than this rank's. On leaving, if no layer attended: the model then attended
        on each rank alone.

    Examples
    --------
    ::

        with contextile.transformers.use(executor):
            logits = model(local.tokens[None], position_ids=local.positions[None]).logits
    """
    global _executor, _check_masks
    before_calls = _calls
    if executor.plan is not None:
        check_tokens_on_ranks(executor.plan)
    before = _executor, _check_masks
    _executor, _check_masks = executor, check_masks
    try:
        yield executor
    finally:
        _executor, _check_masks = before
    if _calls == before_calls:
        raise _core.InvalidArgument(
            "attention: expected a model that attends through contextile (model.set_attn_implementation(register()), and a "
            "model that uses the attention interface), found no call of a layer"
        )


def _text_config(model: Any) -> Any:
    config = getattr(model, "config", model)
    get = getattr(config, "get_text_config", None)
    return get() if get is not None else config


def _windows(config: Any) -> dict[str, tuple[str, int]]:
    """Returns the masks of a model's layers by name, with the number of layers."""
    num_layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    unknown = sorted(set(kinds or []) - {"full_attention", "sliding_attention"})
    if unknown:
        raise _core.InvalidArgument(
            f"model: expected layers of full_attention and sliding_attention, found {', '.join(unknown)}"
        )
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return {_FULL: ("causal", num_layers)}
    if kinds is None:
        return {_SLIDING: (f"sliding_window:{window}", num_layers)}
    rules = {_FULL: ("causal", kinds.count("full_attention")), _SLIDING: (f"sliding_window:{window}", kinds.count("sliding_attention"))}
    return {name: rule for name, rule in rules.items() if rule[1] > 0}


def batch_of(model: Any, **changes: Any) -> dict[str, Any]:
    """Returns the arguments of ``contextile.plan`` that describe a model.

    They are the masks ``full`` and ``sliding`` with the number of layers of each, heads,
    dimensions, dtype, scale, softcap and sinks.

    Parameters
    ----------
    model
        A model or its configuration.
    **changes
        Arguments that replace those found: ``mask={"full": …}``, ``dtype=…``.

    Returns
    -------
    dict

    Raises
    ------
    InvalidArgument
        Layers have another kind of attention than full and sliding.

    Examples
    --------
    >>> from contextile.transformers import batch_of
    >>> from transformers import MistralConfig
    >>> config = MistralConfig(num_hidden_layers=2, sliding_window=64)
    >>> found = batch_of(config, dtype="bf16")
    >>> found["mask"], found["heads"]
    ({'sliding': ('sliding_window:64', 2)}, (32, 8))
    """
    config = _text_config(model)
    heads = config.num_attention_heads
    head_dim = getattr(config, "qk_head_dim", None) or getattr(config, "head_dim", None) or config.hidden_size // heads
    dtype = getattr(model, "dtype", None) or getattr(config, "dtype", None) or torch.float32
    found = {
        "mask": _windows(config),
        "heads": (heads, getattr(config, "num_key_value_heads", None) or heads),
        "head_dim": head_dim,
        "value_dim": (getattr(config, "v_head_dim", None) or head_dim) if hasattr(config, "qk_head_dim") else head_dim,
        "dtype": dtype,
    }
    scalar = getattr(config, "query_pre_attn_scalar", None)
    if scalar is not None:
        found["scale"] = float(scalar) ** -0.5
    elif getattr(config, "attention_multiplier", None) is not None:
        found["scale"] = float(config.attention_multiplier)
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap:
        found["softcap"] = float(softcap)
    if getattr(config, "model_type", "") == "gpt_oss":
        found["sink"] = True
    return {**found, **changes}


def _prepared(executor: Executor | None) -> Prepared:
    if executor is None or executor._current is None:
        raise _core.InvalidArgument(
            "attention: expected an executor prepared for the batch (with contextile.transformers.use(executor)), found none"
        )
    return executor._current


def _check(rules: Rules, query: Tensor, attention_mask: Any, dropout: float, scaling: float | None, softcap: float | None) -> None:
    if attention_mask is not None:
        raise _core.InvalidArgument(
            "attention: expected no attention mask, for the plan has the batch's masks; found one. Pack documents without "
            "padding and leave attention_mask out"
        )
    if dropout:
        raise _core.InvalidArgument(f"attention: expected dropout 0, found {dropout}")
    if query.shape[0] != 1:
        raise _core.InvalidArgument(f"attention: expected a batch of 1, documents packed; found {query.shape[0]}")
    if scaling is not None and not math.isclose(scaling, rules.scale, rel_tol=1e-6):
        raise _core.InvalidArgument(f"attention: expected the plan's scale {rules.scale:.6g}, found the layer's {scaling:.6g}")
    if not math.isclose(softcap or 0.0, rules.softcap, rel_tol=1e-6):
        raise _core.InvalidArgument(f"attention: expected the plan's softcap {rules.softcap:g}, found the layer's {softcap}")


def _check_reach(prepared: Prepared, rules: Rules, name: str, window: int | None, is_causal: bool) -> None:
    """Raises unless the plan's mask reaches as far back and ahead as the layer does."""
    if not _check_masks or torch.compiler.is_compiling():
        return
    if not is_causal:
        raise _core.InvalidArgument(
            "attention: expected a causal layer, found one that attends both ways (use(executor, check_masks=False) leaves "
            "masks to the plan)"
        )
    longest = prepared.longest_document
    expected = (1 - min(longest, window or longest), 0)
    if rules.offsets != expected:
        kind = f"a window of {window}" if window else "causal"
        raise _core.InvalidArgument(
            f"mask '{name}': expected {kind}, as the layer, keys {expected[0]} to {expected[1]} from the query; found "
            f"{rules.offsets[0]} to {rules.offsets[1]} (use(executor, check_masks=False) leaves masks to the plan)"
        )


def _check_positions(prepared: Prepared, position_ids: Any) -> None:
    """Raises if positions were not given.

    Models then count their own tokens from 0, which is wrong unless the rank holds exactly those.
    """
    if torch.compiler.is_compiling() or not isinstance(position_ids, Tensor) or position_ids.dim() != 2:
        return
    # All layers receive the same tensor. Reading it on a GPU waits for the device, so it is read
    # once.
    is_on_gpu = position_ids.device.type != "cpu"
    if is_on_gpu and prepared.positions_checked is not None and prepared.positions_checked() is position_ids:
        return
    counted = torch.arange(position_ids.shape[1], device=position_ids.device)
    if torch.equal(position_ids[0], counted) and not torch.equal(prepared.positions.to(counted.device), counted):
        raise _core.InvalidArgument(
            "position_ids: expected those of this rank's tokens (local_batch(…).positions[None]), found 0, 1, 2, …, which "
            "models take where none are given"
        )
    if is_on_gpu:
        prepared.positions_checked = weakref.ref(position_ids)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """Attends for a layer. Collective.

    Takes query [1, q_heads, tokens, head_dim], key and value [1, kv_heads, tokens, …] and returns
    [1, tokens, q_heads, value_dim].
    """
    global _calls
    _calls += 1
    prepared = _prepared(_executor)
    names = prepared.mask_names
    name = _SLIDING if sliding_window is not None else _FULL
    if name not in names and len(names) == 1 and names[0] not in (_SLIDING, _FULL):
        name = names[0]
    prepared.call_of(name)
    rules = prepared.rules[name]
    _check(rules, query, attention_mask, dropout, scaling, softcap)
    _check_reach(prepared, rules, name, sliding_window, other.get("is_causal", getattr(module, "is_causal", True)) is not False)
    _check_positions(prepared, other.get("position_ids"))
    out = attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        executor=_executor,  # type: ignore[arg-type]
        plan=prepared,
        mask=name,
        sink=None if s_aux is None else s_aux.float(),
    )
    return out, None
