"""Gives models of Hugging Face the extent of the batch where a rank's call has only a part of it.

Outside attention, some models read the whole call: frequencies of RoPE that follow its longest
position, losses of routers that are products of means over its tokens, scales by a token's place in
it, noise by its length. Here they read the batch of the plan.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from contextile import _core
from contextile.torch import Executor
from contextile.torch._execute.agreement import peers_of
from contextile.torch._execute.executor import Prepared


class Extent(Protocol):
    """The whole of which a rank's call is a part."""

    def longest_position(self, position_ids: Tensor) -> Tensor:
        """Returns the largest position of the batch, on the device of this rank's. Collective."""

    def positions(self) -> Tensor:
        """Returns positions of this rank's tokens in their documents, at least one."""

    def has_tokens(self) -> bool:
        """Returns false if this rank has a filler alone."""

    def sum(self, where: str, tensor: Tensor) -> Tensor:
        """Returns the sum over ranks. Collective."""


class _OfExecutor:
    """The extent of the batch that an executor is prepared for."""

    def __init__(self, executor: Executor, are_given: bool) -> None:
        self._executor = executor
        self._are_given = are_given  # true if the caller answers for positions

    @property
    def _prepared(self) -> Prepared:
        return self._executor.prepared_of(None)

    def longest_position(self, position_ids: Tensor) -> Tensor:
        # The plan knows it. Ranks tell each other positions of other kinds: those of images, or
        # those that the caller answers for.
        if position_ids.dim() < 3 and not self._are_given:
            return torch.tensor(self._prepared.longest_position, device=position_ids.device)
        mine = position_ids.max().reshape(1)
        return torch.stack(peers_of(self._executor).everyones("longest position", mine)).max()

    def positions(self) -> Tensor:
        found = self._prepared.positions
        return found if len(found) > 0 else torch.zeros(1, dtype=torch.int64)

    def has_tokens(self) -> bool:
        return self._prepared.plan.num_local_tokens(self._prepared.rank) > 0

    def sum(self, where: str, tensor: Tensor) -> Tensor:
        return peers_of(self._executor).sum(where, tensor)


# The extent of the call that runs. Not a context variable, as in _attention.
_extent: Extent | None = None


# ------------------------------------------------------------------------------- frequencies of
# RoPE


def _follows_longest(module: Any, layer_type: str | None) -> bool:
    kind: Any = type(module)
    rule = getattr(module, "rope_type", None)
    rule = rule.get(layer_type) if isinstance(rule, dict) else rule
    if not isinstance(rule, str) or rule == "default":
        return False
    return "dynamic" in rule or rule == "longrope" or _takes_longest(kind)


@functools.cache
def _takes_longest(kind: type[nn.Module]) -> bool:
    """Returns whether a forward of RoPE takes the longest position by itself, as PhiMoE's does."""
    forward: Any = inspect.unwrap(kind.forward)
    return "max" in forward.__code__.co_names


@functools.cache
def _of_batch(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a forward of RoPE whose frequencies are those of the batch's longest position."""

    @functools.wraps(forward)
    def method(
        self: Any, x: Tensor, position_ids: Tensor | None = None, layer_type: str | None = None
    ) -> Any:
        named = {} if layer_type is None else {"layer_type": layer_type}
        extent = _extent if _follows_longest(self, layer_type) else None
        if extent is None or position_ids is None:
            return forward(self, x, position_ids, **named)
        longest = extent.longest_position(position_ids).to(position_ids.dtype)
        # One token more, at the longest position, whose angles are left out.
        longer = torch.cat([position_ids, longest.expand(*position_ids.shape[:-1], 1)], dim=-1)
        angles = forward(self, x, longer, **named)
        return (
            angles[..., :-1, :]
            if isinstance(angles, Tensor)
            else tuple(part[..., :-1, :] for part in angles)
        )

    return method


def _follows_call(forward: Any) -> bool:
    """Returns whether a forward is one that transformers' ``dynamic_rope_update`` made."""
    while forward is not None:
        if (
            getattr(forward, "__globals__", {}).get("__name__")
            == "transformers.modeling_rope_utils"
        ):
            return True
        forward = getattr(forward, "__wrapped__", None)
    return False


def _ropes() -> Iterator[tuple[Any, str, Any]]:
    for kind in nn.Module.__subclasses__():
        if "Rotary" in kind.__name__ and _follows_call(kind.__dict__.get("forward")):
            yield kind, "forward", _of_batch(kind.forward)


# --------------------------------------------------------------------------------- losses of
# routers

_LOSS = "load_balancing_loss_func"


def _is_whole(mask: Tensor | None) -> bool:
    return mask is None or bool(mask.all())


def _balancing_loss(
    gate_logits: Any,
    num_experts: int | None = None,
    top_k: int = 2,
    attention_mask: Tensor | None = None,
) -> Any:
    """Returns this rank's part of the batch's load balancing loss. Collective.

    The loss (Switch Transformer, equations 4 to 6) is the product of two means over tokens, summed
    over experts: the share of tokens that chose an expert, which has no gradient, and the router's
    probability of it. Ranks add up the first, and each takes its part of the second, so that parts
    add up to the loss, and so do their gradients.
    """
    if gate_logits is None or not isinstance(gate_logits, tuple):
        return 0
    if not _is_whole(attention_mask):
        raise _core.InvalidArgument(
            "attention_mask: expected none, or ones, for the loss of routers, found one with zeros"
        )
    has_tokens = _extent is None or _extent.has_tokens()
    device = gate_logits[0].device
    count = cast(int, num_experts)
    chosen = torch.zeros(count, device=device)
    sums, rows = torch.zeros_like(chosen), 0
    for logits in gate_logits:
        logits = logits.to(device) if has_tokens else logits[:0].to(device)  # a filler is no token
        probabilities = torch.softmax(logits, dim=-1)
        experts = probabilities.topk(top_k, dim=-1).indices.flatten()
        chosen = chosen.scatter_add(0, experts, torch.ones_like(experts, dtype=chosen.dtype))
        sums = sums + probabilities.float().sum(dim=0)
        rows += len(logits)
    counts = torch.cat([chosen, chosen.new_tensor([rows])]).double()  # beyond 2**24 exact, too
    if _extent is not None:
        counts = _extent.sum("loss of routers", counts)
    shares, rows_of_all = counts[:-1] / counts[-1], counts[-1]
    return count * (shares.float() * (sums / rows_of_all.float())).sum()


def _unknown_loss(*_: Any, **__: Any) -> Any:
    raise _core.InvalidArgument(
        "output_router_logits: expected a model whose load balancing loss is that of Switch "
        "Transformer (equations 4 to 6), found another, which would be taken of this rank's "
        "tokens alone; leave it out (output_router_logits=False)"
    )


@functools.cache
def _is_known(loss: Callable[..., Any]) -> bool:
    """Returns whether a function computes the loss as ``_balancing_loss`` does."""
    if list(inspect.signature(loss).parameters) != list(
        inspect.signature(_balancing_loss).parameters
    ):
        return False
    generator = torch.Generator().manual_seed(0)
    logits = tuple(torch.randn(13, 5, generator=generator, device="cpu") for _ in range(2))
    with torch.no_grad(), _running(None):
        return torch.allclose(
            torch.as_tensor(loss(logits, 5, 2)), _balancing_loss(logits, 5, 2), rtol=1e-5
        )


def _losses() -> Iterator[tuple[Any, str, Any]]:
    for name, module in list(sys.modules.items()):
        if name.startswith(("transformers.models.", "transformers_modules.")):
            loss = vars(module).get(_LOSS)
            if loss is not None:
                yield module, _LOSS, _balancing_loss if _is_known(loss) else _unknown_loss


# ----------------------------------------------------------------------------------- scales by
# place


@functools.cache
def _by_position(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a forward of Llama 4's attention whose scales follow positions in documents.

    Its layers without RoPE scale queries by the place of a token in the tensor.
    """

    @functools.wraps(forward)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if _extent is None or self.use_rope or not self.attn_temperature_tuning:
            return forward(self, *arguments, **named)
        hidden = named["hidden_states"] if "hidden_states" in named else arguments[0]
        steps = torch.floor(
            (_extent.positions().to(hidden.device).float() + 1.0) / self.floor_scale
        )
        scale = (torch.log1p(steps) * self.attn_scale + 1.0).view(1, 1, -1, 1)
        self.attn_temperature_tuning = False
        try:
            return forward(self, *arguments, **named, query_scale=scale)
        finally:
            self.attn_temperature_tuning = True

    return method


def _scales() -> Iterator[tuple[Any, str, Any]]:
    kind = getattr(
        sys.modules.get("transformers.models.llama4.modeling_llama4"), "Llama4TextAttention", None
    )
    if kind is not None:
        yield kind, "forward", _by_position(kind.forward)


# ------------------------------------------------------------------------------------ noise by
# length

_ALPHA = "neftune_noise_alpha"
_fitted: list[Any] = []  # embeddings whose noise is that of the whole batch


@contextlib.contextmanager
def noise_of(model: nn.Module, tokens: int, tokens_of_all: int) -> Iterator[None]:
    """Makes the noise of NEFTune that of a call with ``tokens_of_all`` tokens, inside ``with``.

    Its deviation is alpha / sqrt(tokens * width) (NEFTune, section 2), of the tokens of the call.
    """
    embeddings = [module for module in model.modules() if getattr(module, _ALPHA, None) is not None]
    before = [getattr(module, _ALPHA) for module in embeddings]
    try:
        for module, alpha in zip(embeddings, before, strict=True):
            setattr(module, _ALPHA, alpha * math.sqrt(tokens / tokens_of_all))
        _fitted.extend(embeddings)
        yield
    finally:
        for module, alpha in zip(embeddings, before, strict=True):
            setattr(module, _ALPHA, alpha)
        del _fitted[len(_fitted) - len(embeddings) :]


def refuse_noise(model: Any) -> None:
    """Raises if embeddings get noise by the number of this rank's tokens."""
    embeddings = model.get_input_embeddings()
    alpha = getattr(embeddings, _ALPHA, None)
    if alpha is not None and embeddings.training and all(one is not embeddings for one in _fitted):
        raise _core.InvalidArgument(
            f"{_ALPHA}: expected none inside use, for noise would scale with this rank's tokens "
            f"(NEFTune), found {alpha:g}; TrainerMixin scales it with the tokens of a row"
        )


# --------------------------------------------------------------------------------- outside of `use`


@functools.lru_cache(maxsize=64)
def _part_of_extent(model: weakref.ref[Any]) -> str | None:
    for name, module in cast(nn.Module, model()).named_modules():
        kind = getattr(module, "rope_type", None)
        layers = kind.keys() if isinstance(kind, dict) else [None]
        if any(_follows_longest(module, layer) for layer in layers):
            return (
                f"{name} ({type(module).__name__}), whose frequencies follow the longest position "
                "of a call"
            )
        if getattr(module, "attn_temperature_tuning", False) and not getattr(
            module, "use_rope", True
        ):
            return (
                f"{name} ({type(module).__name__}), which scales queries by their place in the call"
            )
    return None


def refuse_extent(model: Any, arguments: dict[str, Any]) -> None:
    """Raises if a model reads the whole call and does not run inside ``transformers.use``."""
    if _extent is not None:
        return
    found = _part_of_extent(weakref.ref(model))
    asked = {**arguments.get("kwargs", {}), **arguments}.get("output_router_logits")
    if found is None and (
        getattr(model.config, "output_router_logits", False) if asked is None else asked
    ):
        found = "output_router_logits, which makes a loss of means over the tokens of a call"
    if found is not None:
        raise _core.InvalidArgument(
            "model: expected contextile.transformers.use, which gives models the extent of the "
            f"batch, for {type(model).__name__} has {found}; found attention by contextile.torch "
            "alone"
        )


# ------------------------------------------------------------------------------------------
# together


@contextlib.contextmanager
def _running(extent: Extent | None) -> Iterator[None]:
    global _extent
    before, _extent = _extent, extent
    try:
        yield
    finally:
        _extent = before


@contextlib.contextmanager
def with_extent(extent: Extent) -> Iterator[None]:
    """Gives models an extent, inside ``with``."""
    before: list[tuple[Any, str, Any]] = []
    with _running(extent):
        try:
            for owner, name, replacement in [*_ropes(), *_losses(), *_scales()]:
                before.append((owner, name, getattr(owner, name)))
                setattr(owner, name, replacement)
            yield
        finally:
            for owner, name, original in reversed(before):
                setattr(owner, name, original)


def extent_of_batch(executor: Executor, are_given: bool) -> contextlib.AbstractContextManager[None]:
    """Gives models the extent of the executor's batch, inside ``with``.

    ``are_given`` is true if the caller answers for positions, which may be others than the plan's.
    """
    return with_extent(_OfExecutor(executor, are_given))
