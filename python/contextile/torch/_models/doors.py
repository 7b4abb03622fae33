"""Makes ``scaled_dot_product_attention`` and attention modules of models attend by a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from contextile import _core
from contextile.torch._execute.checkpoints import Contexts, around
from contextile.torch._execute.executor import Executor
from contextile.torch._models.refusals import refused
from contextile.torch._models.rules import Call, Expected, attend, rules_of

_LAYOUTS = ("BHTD", "BTHD")
# Parts of the names of functions and operators that attend: flex_attention, _varlen_attn,
# _transformer_encoder_layer_fwd, …
_ATTEND = ("attention", "attn", "encoder_layer_fwd")
_MORE_OF_FLEX = 2 if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9) else 1
_OWN = (
    torch.ops.contextile.attention,
    torch.ops.contextile.attention.default,
    torch.ops.contextile.attention_backward,
    torch.ops.contextile.attention_backward.default,
)


# -------------------------------------------------------------------------------------------- calls


def _sdpa_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Call]:
    """Binds arguments to the names that scaled_dot_product_attention has."""
    return query, key, value, Call(attn_mask, dropout_p, is_causal, scale, enable_gqa)


class _Mode(TorchFunctionMode):
    def __init__(self, executor: Executor, expected: Expected) -> None:
        super().__init__()
        self.executor, self.expected = executor, expected
        self.has_attended = False
        self._around: list[Any] = []  # a mode may be entered several times

    def __enter__(self) -> _Mode:
        super().__enter__()  # type: ignore[no-untyped-call]  # torch has no types for it
        context = around(self.executor, "use", lambda: self)
        context.__enter__()
        self._around.append(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._around.pop().__exit__(*error)
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch has no types for it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self.has_attended = True
            q, k, v, call = _sdpa_call(*args, **kwargs)
            return attend(self.executor, self.expected, q, k, v, call)
        if _is_other(func):
            return _refused(func.__name__, args)
        return func(*args, **kwargs)


def _is_other(func: Any) -> bool:
    """Returns whether a function attends, and would see only this rank's own tokens."""
    name = getattr(func, "__name__", "")
    return any(word in name for word in _ATTEND) and func not in _OWN


def _refused(name: str, args: tuple[Any, ...]) -> Any:
    error = _core.InvalidArgument(
        f"attention: expected torch.nn.functional.scaled_dot_product_attention, found {name}, "
        "which no plan takes over"
    )
    # flex_attention calls this operator in code that it compiles itself, at the latest.
    if name == "flex_attention" and torch.compiler.is_compiling():
        out = refused(error, args[0], args[2])
        # Behind it, the log-sum-exp of the scores and, since PyTorch 2.9, the largest one.
        return (out, *[out[..., 0].float()] * _MORE_OF_FLEX)
    raise error


@contextlib.contextmanager
def use(
    executor: Executor, *, mask: str = "", is_causal: bool | None = True, check_model: bool = True
) -> Iterator[Executor]:
    """Makes ``torch.nn.functional.scaled_dot_product_attention`` attend by a plan, inside ``with``.

    It takes over the calls of a model, compiled ones included. The calls are collective: every rank
    makes them in the same order. Backward may run inside or after. Checkpoints compute forward
    again by the plan of the first time.

    The calls have query [1, q_heads, tokens, head_dim], key [1, kv_heads, tokens, head_dim] and
    value [1, kv_heads, tokens, value_dim], where tokens are this rank's in the plan's local order.
    They may be DTensors that are sharded by heads, as for ``attention``: the plan then has the
    heads of one rank.

    Parameters
    ----------
    executor : Executor
        Prepared for the plan of the batch.
    mask : str
        Name of one of the plan's masks. May be left out if the plan has only one.
    is_causal : bool or None
        The ``is_causal`` that calls are expected to pass. It must agree with the plan's mask, which
        takes its place: True with a mask that attends later tokens is an error. None: only the plan
        counts.
    check_model : bool
        Whether the model is searched for parts outside attention that depend on the order of
        tokens. False allows them: for models that give such parts whole documents.

    Yields
    ------
    Executor

    Raises
    ------
    InvalidArgument
        On entering, if there is no plan or no such mask. In a call, if it has an attn_mask or
        dropout, another scale, dtype, is_causal or shape than the plan, DTensors sharded otherwise
        than by heads, or a batch above 1; also for ``nn.MultiheadAttention``, FlexAttention and
        other functions that attend, as far as PyTorch shows them; if the model has recurrent or
        convolutional layers, or is one of Hugging Face that pools tokens, shifts labels itself, or
        gets other positions than the plan's; if the model is given tokens or positions that
        ``local_batch`` made for another plan. Compiled code is not searched. On leaving, if no call
        was taken over: the model then attended on each rank alone.

    Examples
    --------
    >>> import contextile as ct
    >>> import torch
    >>> from contextile.torch import Executor, use
    >>> from torch.nn.functional import scaled_dot_product_attention
    >>> executor = Executor(ct.inproc_group(1)[0])          # Executor() under torchrun
    >>> plan = ct.plan([60, 40], cluster="local:1x1", strategy="zigzag",
    ...                heads=4, head_dim=32, dtype="f32")
    >>> prepared = executor.prepare(plan)
    >>> q, k, v = torch.randn(3, 1, 4, 100, 32)
    >>> with use(executor):
    ...     out = scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> out.shape
    torch.Size([1, 4, 100, 32])
    """
    prepared = executor.prepared_of(None)
    rules_of(prepared, mask)
    mode = _Mode(executor, Expected(mask, is_causal, check_model))
    with mode:
        yield executor
    if not mode.has_attended:
        raise _core.InvalidArgument(
            "attention: expected a model that calls "
            "torch.nn.functional.scaled_dot_product_attention, found no call"
        )


# -------------------------------------------------------------------------------------------
# modules


class ScaledDotProductAttention(nn.Module):
    """A module that attends by a plan, to replace a model's own, such as torchtitan's.

    It keeps the executor, so no ``use`` is needed around it. Prepare the executor for every batch.

    Parameters
    ----------
    executor : Executor
        The executor that the module attends with.
    mask, is_causal, check_model
        As for ``use``.
    layout : str
        Order of the dimensions of q, k, v and the result: ``"BHTD"`` (batch, heads, tokens, dim) as
        in PyTorch, or ``"BTHD"`` as in torchtitan's modules since 0.3.

    Raises
    ------
    InvalidArgument
        The layout is another one.

    Examples
    --------
    >>> import contextile as ct
    >>> import torch
    >>> from contextile.torch import Executor, ScaledDotProductAttention
    >>> executor = Executor(ct.inproc_group(1)[0])          # Executor() under torchrun
    >>> prepared = executor.prepare(ct.plan([60, 40], cluster="local:1x1", strategy="zigzag",
    ...                                     heads=4, head_dim=32, dtype="f32"))
    >>> attend = ScaledDotProductAttention(executor, layout="BTHD")
    >>> q, k, v = torch.randn(3, 1, 100, 4, 32)
    >>> attend(q, k, v).shape
    torch.Size([1, 100, 4, 32])
    """

    def __init__(
        self,
        executor: Executor,
        *,
        mask: str = "",
        is_causal: bool | None = True,
        check_model: bool = True,
        layout: str = "BHTD",
    ) -> None:
        super().__init__()
        if layout not in _LAYOUTS:
            raise _core.InvalidArgument(
                f"layout: expected {' or '.join(_LAYOUTS)}, found '{layout}'"
            )
        self.executor, self.mask, self.is_causal, self.layout = executor, mask, is_causal, layout
        self.check_model = check_model

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
        """Computes attention of this rank's tokens to the whole batch. Collective.

        Parameters
        ----------
        query : Tensor
            [1, q_heads, tokens, head_dim], or [1, tokens, q_heads, head_dim] in the layout BTHD.
        key, value : Tensor
            Likewise with kv_heads; the value has value_dim.
        attn_mask, dropout_p, is_causal, scale, enable_gqa
            As for ``scaled_dot_product_attention``. They must agree with the plan; attn_mask is
            None.
        **others
            Arguments of a model's own attention. Each must be None.

        Returns
        -------
        Tensor
            Like the query, with value_dim.

        Raises
        ------
        InvalidArgument
            Like calls inside ``use``; also if one of the other arguments is not None.
        """
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise _core.InvalidArgument(
                f"attention: expected no {', '.join(given)}, for the plan has the batch's masks; "
                "found some"
            )
        call = Call(attn_mask, dropout_p, is_causal, scale, enable_gqa)
        expected = Expected(self.mask, self.is_causal, self.check_model)
        return attend(self.executor, expected, query, key, value, call, layout=self.layout)


def replace_attention(
    model: nn.Module,
    executor: Executor,
    *,
    name: str = "inner_attention",
    mask: str | Callable[[str], str] = "",
    is_causal: bool | None = True,
    check_model: bool = True,
    layout: str = "BHTD",
) -> list[str]:
    """Replaces the attention modules of a model by ``ScaledDotProductAttention``.

    Parameters
    ----------
    model : Module
        The model, which is changed in place. Call this after weights are initialized and before the
        model is compiled.
    executor, is_causal, check_model, layout
        As for ``ScaledDotProductAttention``.
    name : str
        The attribute that holds a layer's attention of q, k and v.
    mask : str or function
        Name of one of the plan's masks, or a function from a module's place in the model
        (``"layers.3.attention.inner_attention"``) to such a name.

    Returns
    -------
    list of str
        Places of the replaced modules.

    Raises
    ------
    InvalidArgument
        No module has that name, or one has parameters or buffers.

    Examples
    --------
    ::

        replace_attention(model, executor, layout="BTHD")
        logits = model(local.tokens[None], local.positions[None])
    """
    found = [
        (place, parent)
        for place, parent in model.named_modules()
        if isinstance(getattr(parent, name, None), nn.Module)
    ]
    for place, parent in found:
        if any(True for _ in getattr(parent, name).state_dict()):
            raise _core.InvalidArgument(
                f"{place}.{name}: expected a module without parameters, found one with some"
            )
    places = []
    for place, parent in found:
        where = f"{place}.{name}" if place else name
        chosen = mask(where) if callable(mask) else mask
        attend_by_plan = ScaledDotProductAttention(
            executor, mask=chosen, is_causal=is_causal, check_model=check_model, layout=layout
        )
        setattr(parent, name, attend_by_plan)
        places.append(where)
    if not places:
        raise _core.InvalidArgument(f"model: expected modules called {name}, found none")
    return places


# ---------------------------------------------------------------------------------------
# checkpoints


@contextlib.contextmanager
def _both(outer: Any, inner: Any) -> Iterator[None]:
    with outer, inner:
        yield


def checkpoint_contexts(
    executor: Executor, context_fn: Callable[[], tuple[Any, Any]] | None = None
) -> tuple[Any, Any]:
    """Returns the two contexts of a checkpoint, for its ``context_fn``.

    They make the recomputed forward attend by the plan of the first one. That holds wherever
    backward is called, and even if the executor was prepared for another batch since, while the
    plan is among the last ``plans_kept``. Checkpoints of ``torch.utils.checkpoint.checkpoint`` do
    so by themselves; others that take a ``context_fn`` need it.

    Parameters
    ----------
    executor : Executor
        The executor of ``use`` or of the modules, prepared for the plan of the batch.
    context_fn : function, optional
        Another ``context_fn`` that the checkpoint needs, such as that of selective checkpointing.

    Returns
    -------
    tuple of two contexts

    Raises
    ------
    InvalidArgument
        The executor has no plan.

    Examples
    --------
    ::

        checkpoint(block, x, use_reentrant=False,
                   context_fn=lambda: checkpoint_contexts(executor))
    """
    again = Contexts(executor, executor.prepared_of(None))
    if context_fn is None:
        return contextlib.nullcontext(), again
    first, second = context_fn()
    return first, _both(again, second)
