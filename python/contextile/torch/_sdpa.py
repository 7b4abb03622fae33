"""Models of plain PyTorch: their calls of ``scaled_dot_product_attention``, and the modules around it, attend by a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from contextile import _core
from contextile.torch._executor import Executor
from contextile.torch._layout import check_tokens_on_ranks
from contextile.torch._rules import Call, attend, recomputed, rules_of

_LAYOUTS = ("BHTD", "BTHD")
# In the names of functions and operators that attend: flex_attention, _varlen_attn, _transformer_encoder_layer_fwd, …
_ATTEND = ("attention", "attn", "encoder_layer_fwd")
_OWN = (
    torch.ops.contextile.attention,
    torch.ops.contextile.attention.default,
    torch.ops.contextile.attention_backward,
    torch.ops.contextile.attention_backward.default,
)


# -------------------------------------------------------------------------------------------- calls


def _sdpa_call(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Arguments by the names of scaled_dot_product_attention."""
    return query, key, value, Call(attn_mask, dropout_p, is_causal, scale, enable_gqa)


class _Mode(TorchFunctionMode):
    def __init__(self, executor: Executor, mask: str, is_causal: bool | None) -> None:
        super().__init__()
        self.executor, self.mask, self.is_causal = executor, mask, is_causal
        self.has_attended = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self.has_attended = True
            q, k, v, call = _sdpa_call(*args, **kwargs)
            return attend(self.executor, self.mask, self.is_causal, q, k, v, call)
        _refuse_other(func)
        return func(*args, **kwargs)


def _refuse_other(func: Any) -> None:
    """Other attention of PyTorch, which would go on among this rank's own tokens."""
    name = getattr(func, "__name__", "")
    if any(word in name for word in _ATTEND) and func not in _OWN:
        raise _core.InvalidArgument(
            f"attention: expected torch.nn.functional.scaled_dot_product_attention, found {name}, which no plan takes over"
        )


@contextlib.contextmanager
def use(executor: Executor, *, mask: str = "", is_causal: bool | None = True) -> Iterator[Executor]:
    """Inside, ``torch.nn.functional.scaled_dot_product_attention`` attends by the plan the executor is prepared for.

    It takes over calls of models of plain PyTorch, compiled ones included, whose tokens are this rank's in the plan's local
    order. Backward may be called inside or behind it. Checkpoints need ``context_fn`` (``checkpoint_contexts``): what they compute
    again in backward no mode of PyTorch sees.

    Parameters
    ----------
    executor
        Prepared for the batch's plan.
    mask
        The name of one of the plan's masks; empty: that of a plan with only one.
    is_causal
        What calls are to say. The plan's mask takes the place of what they say, so a mask that attends later tokens contradicts
        True, as far as its tiles tell; None: the plan alone counts.

    Shapes
    ------
    query : [1, q_heads, tokens, head_dim]
    key : [1, kv_heads, tokens, head_dim]
    value : [1, kv_heads, tokens, value_dim]
        As ``scaled_dot_product_attention`` has them; tokens are this rank's.

    Raises
    ------
    InvalidArgument
        No plan, a mask it has not, a rank without tokens. In a call: an attn_mask, dropout, another scale, is_causal, shape or
        number of heads, a batch of several, other keys than this rank's tokens; a reentrant checkpoint; ``nn.MultiheadAttention``,
        FlexAttention and other functions that attend, where PyTorch lets them be seen. On leaving: no call was taken over, so
        the model attends by itself, every rank among its own tokens.
    """
    prepared = executor.prepared_of(None)
    check_tokens_on_ranks(prepared.plan)
    rules_of(prepared, mask)
    mode = _Mode(executor, mask, is_causal)
    with mode:
        yield executor
    if not mode.has_attended:
        raise _core.InvalidArgument(
            "attention: expected a model that calls torch.nn.functional.scaled_dot_product_attention, found no call"
        )


# ------------------------------------------------------------------------------------------- modules


class ScaledDotProductAttention(nn.Module):
    """Attention by a plan as a module, in the place of a model's own: torchtitan's ``inner_attention``, for one.

    It holds on to the executor, so nothing has to be around it; the executor is prepared for every batch.

    Parameters
    ----------
    executor, mask, is_causal
        As of ``use``.
    layout
        Of q, k, v and what is returned: ``"BHTD"`` (batch, heads, tokens, dim) as PyTorch has it, ``"BTHD"`` as torchtitan's
        modules since 0.3.

    Raises
    ------
    InvalidArgument
        Another layout.
    """

    def __init__(
        self, executor: Executor, *, mask: str = "", is_causal: bool | None = True, layout: str = "BHTD"
    ) -> None:
        super().__init__()
        if layout not in _LAYOUTS:
            raise _core.InvalidArgument(f"layout: expected {' or '.join(_LAYOUTS)}, found '{layout}'")
        self.executor, self.mask, self.is_causal, self.layout = executor, mask, is_causal, layout

    def extra_repr(self) -> str:
        return f"mask='{self.mask}', is_causal={self.is_causal}, layout='{self.layout}'"

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool | None = None,
        scale: float | None = None,
        enable_gqa: bool = True,
        **others: Any,
    ) -> Tensor:
        """Attention of this rank's tokens to the whole batch. Collective.

        Shapes
        ------
        query : [1, q_heads, tokens, head_dim], or [1, tokens, q_heads, head_dim] by the layout
        key, value : likewise, with kv_heads
        returns : as query, with value_dim

        Raises
        ------
        InvalidArgument
            As calls inside ``use``; other arguments than None.
        """
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise _core.InvalidArgument(
                f"attention: expected no {', '.join(given)}, for the plan has the batch's masks; found some"
            )
        tensors = (query, key, value)
        if self.layout == "BTHD":
            tensors = tuple(x.transpose(1, 2) for x in tensors)  # type: ignore[assignment]
        call = Call(attn_mask, dropout_p, is_causal, scale, enable_gqa)
        out = attend(self.executor, self.mask, self.is_causal, *tensors, call)
        return out.transpose(1, 2) if self.layout == "BTHD" else out


def replace_attention(
    model: nn.Module,
    executor: Executor,
    *,
    name: str = "inner_attention",
    mask: str | Callable[[str], str] = "",
    is_causal: bool | None = True,
    layout: str = "BHTD",
) -> list[str]:
    """Puts ``ScaledDotProductAttention`` where a model's modules of this name are; returns where they were.

    Parameters
    ----------
    model
        Changed in place. torchtitan's: after its weights are initialized, before it is compiled.
    executor, is_causal, layout
        As of ``ScaledDotProductAttention``.
    name
        The attribute that holds a layer's attention of q, k, v.
    mask
        The name of one of the plan's masks, or a function from where a module is (``"layers.3.attention.inner_attention"``)
        to one.

    Raises
    ------
    InvalidArgument
        No module of that name, or one with parameters or buffers, which attention of q, k, v has none of.
    """
    found = [(place, parent) for place, parent in model.named_modules() if isinstance(getattr(parent, name, None), nn.Module)]
    for place, parent in found:
        if any(True for _ in getattr(parent, name).state_dict()):
            raise _core.InvalidArgument(f"{place}.{name}: expected a module without parameters, found one with some")
    places = []
    for place, parent in found:
        where = f"{place}.{name}" if place else name
        chosen = mask(where) if callable(mask) else mask
        setattr(parent, name, ScaledDotProductAttention(executor, mask=chosen, is_causal=is_causal, layout=layout))
        places.append(where)
    if not places:
        raise _core.InvalidArgument(f"model: expected modules called {name}, found none")
    return places


# --------------------------------------------------------------------------------------- checkpoints


class _Again:
    """Where a checkpoint computes forward again: under the plan of its first time, on any thread, in ``use`` or behind it."""

    def __init__(self, executor: Executor, mode: _Mode | None) -> None:
        self._executor, self._mode, self._kept = executor, mode, executor.prepared_of(None)

    def __enter__(self) -> None:
        recomputed.append((self._executor, self._kept))
        if self._mode is not None:
            self._mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(*error)
        recomputed.pop()


@contextlib.contextmanager
def _both(outer: Any, inner: Any) -> Iterator[None]:
    with outer, inner:
        yield


def checkpoint_contexts(
    executor: Executor, context_fn: Callable[[], tuple[Any, Any]] | None = None
) -> tuple[Any, Any]:
    """For ``context_fn`` of checkpoints: what they compute again attends by the plan it attended by at first.

    Wherever backward is called, and whatever the executor has been prepared for meanwhile, as long as the plan is among the
    last ``plans_kept``. Modules (``replace_attention``) do without, unless plans change between forward and backward, which
    then is an error.

        checkpoint(block, x, use_reentrant=False, context_fn=lambda: checkpoint_contexts(executor))

    Parameters
    ----------
    executor
        That of ``use`` or of the modules, prepared for the batch's plan.
    context_fn
        What else the checkpoint is to have: that of selective checkpointing.

    Raises
    ------
    InvalidArgument
        The executor has no plan.
    """
    modes = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, _Mode) and mode.executor is executor]
    again = _Again(executor, modes[-1] if modes else None)
    if context_fn is None:
        return contextlib.nullcontext(), again
    first, second = context_fn()
    return first, _both(again, second)
