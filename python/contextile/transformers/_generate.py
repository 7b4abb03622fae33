"""``generate`` of Hugging Face models with a cache that ranks share by tokens."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    GenerationConfig,
    StoppingCriteria,
)
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import sdpa_mask

from contextile import _core
from contextile.torch._ranks import messages
from contextile.torch._ranks.group import check_initialized
from contextile.torch._ranks.peers import Peers, peers_in

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_NAME = "contextile_generate"
# Number of queries whose scores are in memory at a time. Ranks exchange results once per so many
# queries, so it is the same on all ranks.
_ROWS = 128
_MOST_SHOWN = 400  # characters of an argument in messages
_ATTENDS_BY_ITSELF = (
    "attention: expected a model that uses the attention interface, found a layer that attends by "
    "itself"
)
_sharing: ContextVar[_Sharing | None] = ContextVar("_sharing", default=None)


# -------------------------------------------------------------------------------------------- cache


class _Shard:
    """The tokens of a rank: ranks alternate every ``interleave`` tokens, as in ``KvLayout``."""

    def __init__(self, group: ProcessGroup | None, interleave: int) -> None:
        check_initialized()
        if interleave < 1:
            raise _core.InvalidArgument(
                f"interleave: expected at least 1 token, found {interleave}"
            )
        self.group, self.interleave = group, interleave
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise _core.InvalidArgument("group: expected one that this rank is in, found another")

    @functools.cached_property
    def peers(self) -> Peers:
        """The peers. Collective the first time."""
        return peers_in(self.group)

    def positions(self, begin: int, end: int, device: torch.device | str) -> Tensor:
        """Returns this rank's positions in [begin, end), ascending."""
        positions = torch.arange(begin, end, device=device)
        return positions[positions // self.interleave % self.num_ranks == self.rank]


class _ShardedLayer(DynamicLayer):
    """A layer's keys and values [batch, kv_heads, this rank's tokens, dim].

    The lengths that it reports are those of all ranks.
    """

    is_croppable = False

    def __init__(self, shard: _Shard, window: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers' has no types
        self.is_sliding = window is not None
        self._shard, self._window = shard, window
        self._num_tokens = 0

    def held(self) -> tuple[Tensor, Tensor]:
        """Returns the keys and values of this rank, once there are any."""
        return cast(Tensor, self.keys), cast(Tensor, self.values)

    def _begin(self) -> int:
        """Returns the first position that is kept. Later queries see no earlier one."""
        return 0 if self._window is None else max(self._num_tokens - self._window + 1, 0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]

    def update(
        self, key_states: Tensor, value_states: Tensor, *others: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        """Keeps this rank's new tokens; returns all its keys and values for the queries."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self._begin()
        end = self._num_tokens + key_states.shape[-2]
        mine = self._shard.positions(self._num_tokens, end, key_states.device) - self._num_tokens
        held_keys, held_values = self.held()
        keys = torch.cat([held_keys, key_states[:, :, mine]], dim=-2)
        values = torch.cat([held_values, value_states[:, :, mine]], dim=-2)
        self._num_tokens = end
        num_behind = self._shard.positions(before, self._begin(), "cpu").numel()
        self.keys, self.values = (
            x[:, :, num_behind:].clone() if num_behind else x for x in (keys, values)
        )
        return keys, values

    def get_seq_length(self, *others: Any) -> int:
        return self._num_tokens

    def get_mask_sizes(self, *query: Any) -> tuple[int, int]:
        length, _ = super().get_mask_sizes(*query)
        return length - self._begin(), self._begin()

    def reset(self) -> None:
        if self.is_initialized:
            self.keys, self.values = (x[:, :, :0] for x in self.held())
        self._num_tokens = 0

    def crop(self, *others: Any) -> None:
        raise _core.InvalidArgument(
            "cache: expected tokens that stay, found a way of generating that takes some back"
        )


class ShardedCache(Cache):
    """A model's cache of keys and values on one rank, with that rank's share of the tokens.

    Token p of a sequence, padding included, belongs to rank p // interleave % ranks. Layers with a
    window keep only the tokens that it still reaches.

    Parameters
    ----------
    model
        A model or its configuration.
    group : ProcessGroup, optional
        The ranks that share the cache. Default: the whole job.
    interleave : int
        Number of consecutive tokens on one rank, at least 1.

    Raises
    ------
    InvalidArgument
        ``torch.distributed`` is not initialized, the group is without this rank, or layers do not
        keep keys and values of every token (linear attention, state spaces).

    Examples
    --------
    ::

        cache = ShardedCache(model)
        tokens = generate(model, ids, past_key_values=cache, max_new_tokens=8)
        cache.get_seq_length(), cache.local_bytes
    """

    def __init__(
        self, model: Any, *, group: ProcessGroup | None = None, interleave: int = 1
    ) -> None:
        self.shard = _Shard(group, interleave)
        layers: list[Any] = []
        for layer in DynamicCache(config=getattr(model, "config", model)).layers:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise _core.InvalidArgument(
                    "cache: expected layers with keys and values of full or sliding attention, "
                    f"found {type(layer).__name__}"
                )
            layers.append(_ShardedLayer(self.shard, getattr(layer, "sliding_window", None)))
        super().__init__(layers=layers)

    @property
    def local_bytes(self) -> int:
        """Bytes of keys and values that this rank holds."""
        return sum(
            x.nbytes
            for layer in cast("list[_ShardedLayer]", self.layers)
            if layer.is_initialized
            for x in layer.held()
        )

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *others: Any, **named: Any
    ) -> Any:
        """Adds new tokens, for layers inside ``contextile.transformers.generate`` only.

        Raises InvalidArgument elsewhere.
        """
        sharing = _sharing.get()
        if sharing is None or sharing.cache is not self:
            raise _core.InvalidArgument(
                "past_key_values: expected a ShardedCache in contextile.transformers.generate "
                "alone, found one outside"
            )
        sharing.expect_attended()
        sharing.attended = False
        return super().update(key_states, value_states, layer_idx, *others, **named)


class _Sharing:
    """The cache of a model that generates, and whether the last layer attended through it."""

    def __init__(self, cache: ShardedCache) -> None:
        self.cache = cache
        self.attended = True

    def expect_attended(self) -> None:
        if not self.attended:
            raise _core.InvalidArgument(_ATTENDS_BY_ITSELF)


# ---------------------------------------------------------------------------------------- attention


def _mask(
    *,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Any,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """Returns the columns of a layer's mask that are this rank's tokens.

    The result is bool [batch, 1, queries, keys], true if the query sees the key.
    """
    shard = _current().cache.shard
    positions = shard.positions(kv_offset, kv_offset + kv_length, others.get("device", "cpu"))
    if attention_mask is not None:
        missing = kv_offset + kv_length - attention_mask.shape[-1]
        attention_mask = torch.nn.functional.pad(attention_mask, (0, max(missing, 0)))[:, positions]
    mask = sdpa_mask(
        kv_length=positions.numel(),
        kv_offset=0,
        mask_function=lambda batch, head, query, key: mask_function(
            batch, head, query, positions[key]
        ),
        attention_mask=attention_mask,
        **{**others, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )
    return cast(Tensor, mask)  # None only where skips are allowed


def _current() -> _Sharing:
    sharing = _sharing.get()
    if sharing is None:
        raise _core.InvalidArgument(
            "attention: expected a call of contextile.transformers.generate around it, found none"
        )
    return sharing


def _attend_local(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Computes attention to this rank's keys in fp32.

    The last column is the natural log-sum-exp of the scores; -inf for queries that see no key.
    """
    B, H, T, _ = q_BHTD.shape
    K, S = k_BKSD.shape[1:3]
    scores = (
        torch.einsum("bkgtd,bksd->bkgts", q_BHTD.unflatten(1, (K, H // K)).float(), k_BKSD.float())
        * scale
    )
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask[:, :, None], -torch.inf)
    lse = (
        torch.logsumexp(scores, dim=-1, keepdim=True)
        if S
        else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    )
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0))
    out = torch.einsum("bkgts,bksd->bkgtd", weights, v_BKSD.float())
    return torch.cat([out, lse], dim=-1).reshape(B, H, T, -1)


def _merge(part: Tensor, shard: _Shard, sink_H: Tensor | None) -> Tensor:
    """Merges attention to the keys of all ranks. Collective.

    Parts are added in the order of ranks, so all ranks have the same bits.
    """
    parts = shard.peers.everyones("generate, attention", part)
    lses = [part[..., -1:] for part in parts]
    if sink_H is not None:
        lses.append(sink_H.float()[:, None, None].expand_as(lses[0]))
    highest = torch.stack(lses).amax(dim=0)
    weights = [torch.exp(lse - highest.masked_fill(highest == -torch.inf, 0.0)) for lse in lses]
    total = cast(Tensor, sum(weights))
    # The sink, which comes last, has no value.
    out = sum(weight * part[..., :-1] for weight, part in zip(weights, parts, strict=False))
    return out / total.masked_fill(total == 0, 1.0)  # only padding sees nothing


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attends for a layer. Collective.

    Takes query [batch, q_heads, tokens, dim] and this rank's key and value [batch, kv_heads, …];
    returns [batch, tokens, q_heads, dim].
    """
    sharing = _current()
    sharing.attended = True
    if dropout:
        raise _core.InvalidArgument(
            f"attention: expected dropout 0 (model.eval()), found {dropout}"
        )
    if (
        attention_mask is None
        or attention_mask.shape[-1] != key.shape[-2]
        or attention_mask.dtype != torch.bool
    ):
        found = (
            None
            if attention_mask is None
            else f"{attention_mask.dtype} of {list(attention_mask.shape)}"
        )
        raise _core.InvalidArgument(
            f"attention: expected a causal layer's mask of this rank's {key.shape[-2]} keys, found "
            f"{found} in {type(module).__name__}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device=query.device)
    for begin in range(0, query.shape[2], _ROWS):
        rows = slice(begin, begin + _ROWS)
        part = _attend_local(
            query[:, :, rows], key, value, attention_mask[:, :, rows], scale, softcap
        )
        out[:, :, rows] = _merge(part, sharing.cache.shard, s_aux)
    return out.transpose(1, 2), None


# ----------------------------------------------------------------------------------------- generate


class _Agreement(StoppingCriteria):
    """Never stops. Raises if ranks chose different tokens.

    Otherwise they would later wait for each other in vain.
    """

    def __init__(self, shard: _Shard) -> None:
        self._shard = shard

    def __call__(self, input_ids: Tensor, scores: Any, **others: Any) -> Tensor:
        chosen = input_ids[:, -1].contiguous()
        of_ranks = self._shard.peers.everyones("generate, tokens", chosen)
        for rank, other in enumerate(of_ranks):
            if not torch.equal(other, of_ranks[0]):
                raise _core.InvalidArgument(
                    "tokens: expected the same on every rank (the same weights, arguments and "
                    f"seed), found {of_ranks[0].tolist()} on rank 0 and {other.tolist()} on rank "
                    f"{rank} at position {input_ids.shape[1] - 1}"
                )
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _described(x: Any) -> list[str]:
    """Returns the parts of an argument that ranks compare: a text to show, and a digest.

    The text is the shape of a tensor, the text of simple values, and the type of others.
    """
    if isinstance(x, Tensor):
        return [
            str(list(x.shape)),
            _digest(x.detach().cpu().flatten().contiguous().view(torch.uint8).numpy()),
        ]
    if isinstance(x, GenerationConfig):
        text = str(x.to_dict())
    elif isinstance(x, (list, tuple)):
        text = str([_described(element) for element in x])
    elif x is None or isinstance(x, (bool, int, float, str, dict, torch.dtype, torch.device)):
        text = repr(x)
    else:
        text = type(x).__name__
    return [text[:_MOST_SHOWN], _digest(text.encode("utf-8", "backslashreplace"))]


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def _check_described(value: Any) -> dict[str, list[str]]:
    """Returns the names and descriptions of a rank's arguments."""
    if not isinstance(value, dict):
        raise _core.InvalidArgument(f"expected an object, found {messages.shown(value)}")
    found = {}
    for name, described in value.items():
        parts = messages.items(described, messages.text)
        if len(parts) != 2:
            raise _core.InvalidArgument(
                f"expected a text and a digest, found {messages.shown(described)}"
            )
        found[messages.text(name)] = parts
    return found


def _check_same(arguments: dict[str, Any], shard: _Shard) -> None:
    """Raises InvalidArgument unless all ranks have the same arguments. Collective."""
    mine = {name: _described(x) for name, x in arguments.items()}
    of_ranks = shard.peers.told("generate", mine, _check_described)
    for rank, other in enumerate(of_ranks):
        for name in sorted({*of_ranks[0], *other}):
            first, found = (described.get(name, ["none", ""]) for described in (of_ranks[0], other))
            if first != found:
                raise _core.InvalidArgument(
                    f"{name}: expected the same on every rank, found {first[0]} on rank 0 and "
                    f"{found[0]}{' of other values' if first[0] == found[0] else ''} on rank {rank}"
                )


def _implementation_of(config: Any) -> Any:
    return config._attn_implementation  # noqa: SLF001  # transformers has no public name for it


def _implementations(config: Any) -> Any:
    """Returns a model's attention implementation, by part if parts have configurations."""
    parts = {
        name: _implementation_of(getattr(config, name))
        for name in config.sub_configs
        if hasattr(config, name)
    }
    own = _implementation_of(config)
    return {"": own, **parts} if parts else own


@contextlib.contextmanager
def _shared(model: Any, cache: ShardedCache) -> Iterator[None]:
    """Makes layers of the model attend through the cache inside; restores the model after."""
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _mask)
    before = _implementations(model.config)
    sharing = _Sharing(cache)
    token = _sharing.set(sharing)
    try:
        model.set_attn_implementation(_NAME)
        if _implementation_of(model.config) != _NAME:
            raise _core.InvalidArgument(_ATTENDS_BY_ITSELF)
        yield
        sharing.expect_attended()
    finally:
        model.set_attn_implementation(before)
        _sharing.reset(token)


def generate(
    model: Any,
    input_ids: Tensor | None = None,
    *,
    group: ProcessGroup | None = None,
    interleave: int | None = None,
    **arguments: Any,
) -> Any:
    """Runs ``model.generate`` with a cache that ranks share by tokens.

    Collective. Every rank has the whole model, passes the same arguments (and sets the same seed if
    it samples), and returns the same tokens. A rank attends only to its own tokens' keys and
    values, and ranks exchange results. For b queries of h heads, each of N ranks sends
    (N-1)·b·h·(dim + 1)·4 bytes per layer, however long the context is.

    Parameters
    ----------
    model
        A decoder that uses the attention interface: full and sliding layers, grouped heads,
        softcap, sinks.
    input_ids : int Tensor [batch, tokens]
        Prompts, as ``model.generate`` takes them. Several are padded on the left, with
        ``attention_mask``.
    group, interleave
        As for ``ShardedCache``. Left out with ``past_key_values``.
    **arguments
        Arguments of ``model.generate``. ``past_key_values`` may be the ``ShardedCache`` of an
        earlier call, to continue from it.

    Returns
    -------
    int Tensor [batch, tokens + new tokens]
        Or an output object if ``return_dict_in_generate`` is set.

    Raises
    ------
    InvalidArgument
        Arguments or chosen tokens differ between ranks; the cache is not a ``ShardedCache`` or is
        switched off; ``max_time`` or dropout is set; the model does not use the attention
        interface; the method takes tokens back (assistant models, prompt look-up); or
        ``ShardedCache`` refuses the model.

    Examples
    --------
    Under torchrun, on every rank::

        tokens = generate(model.eval(), ids, max_new_tokens=8, do_sample=False)
    """
    config = arguments.get("generation_config") or model.generation_config
    if arguments.get("use_cache") is False or arguments.get("cache_implementation") is not None:
        raise _core.InvalidArgument(
            "use_cache, cache_implementation: expected none, for ranks share the cache; found one "
            "of them"
        )
    if arguments.get("max_time", config.max_time) is not None:
        raise _core.InvalidArgument(
            "max_time: expected none, for clocks of ranks differ; found one"
        )
    for name in ("assistant_model", "prompt_lookup_num_tokens"):
        if arguments.get(name, getattr(config, name, None)) is not None:
            raise _core.InvalidArgument(
                f"{name}: expected tokens that stay, found a way of generating that takes some back"
            )
    cache = arguments.pop("past_key_values", None)
    if cache is None:
        cache = ShardedCache(model, group=group, interleave=1 if interleave is None else interleave)
    elif not isinstance(cache, ShardedCache):
        raise _core.InvalidArgument(
            f"past_key_values: expected a ShardedCache, found {type(cache).__name__}"
        )
    elif group is not None or interleave is not None:
        raise _core.InvalidArgument(
            "group, interleave: expected none beside past_key_values, which has its own; found "
            "one of them"
        )
    given = {"input_ids": input_ids, "generation_config": config, **arguments}
    shared = {
        "interleave": cache.shard.interleave,
        "past_key_values, tokens": cache.get_seq_length(),
    }
    _check_same({**given, **shared}, cache.shard)
    arguments["cache_implementation"] = None  # whatever the configuration says
    criteria = [*(arguments.pop("stopping_criteria", None) or []), _Agreement(cache.shard)]
    with _shared(model, cache):
        return model.generate(
            input_ids,
            **{
                **arguments,
                "past_key_values": cache,
                "use_cache": True,
                "stopping_criteria": criteria,
            },
        )
