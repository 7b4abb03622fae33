"""Makes layers of Hugging Face models attend by a plan, and describes models to the planner."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from contextile import _checks, _core
from contextile.torch import Executor, RelativeBias, attention
from contextile.torch._attention.bias import Bias
from contextile.torch._attention.sides import Sides, cross_attention
from contextile.torch._batch.calls import model_in_call
from contextile.torch._execute.checkpoints import around
from contextile.torch._execute.dtensor import num_sharers
from contextile.torch._execute.executor import Prepared, Rules
from contextile.torch._models.adapters import register_check
from contextile.torch._models.parts import dropping_part, ordered_part, pooled_part
from contextile.transformers import _linear
from contextile.transformers._batch_of import CHUNKED, FULL, SLIDING, text_config
from contextile.transformers._extent import extent_of_batch, refuse_extent, refuse_noise
from contextile.transformers._layer_kinds import is_causal_of, kind_of, refuse_own_attention
from contextile.transformers._local import local_layers
from contextile.transformers._losses import check_loss
from contextile.transformers._model_masks import (
    Form,
    begin_layers,
    check_blocks,
    check_encoder_reach,
    check_reach,
    check_sides,
    form_of,
    note,
)
from contextile.transformers._older import adapted, has_no_positions
from contextile.transformers._patches import patched
from contextile.transformers._pooled_heads import pooling, pools_by_plan
from contextile.transformers._position_bias import bias_of_layer
from contextile.transformers._positions import counted, counting_part, first_position
from contextile.transformers._probe import check_once


class _Given(NamedTuple):
    """The arguments of ``use``, for layers."""

    executor: Executor | None = None
    check_masks: bool = True
    check_positions: bool = True
    check_models: bool = True
    positions: Tensor | None = None
    sides: Sides | None = None
    dropout_seed: Tensor | None = None


class _Layers:
    """The layers that were called, in order to know the first of a forward and those that are
    missing.
    """

    def __init__(self) -> None:
        # Not a number of calls, which would make compiled code compile again.
        self.was_called = False  # since the innermost `use` began
        # The kinds of layers that were called with sides: encoder, decoder, cross.
        self.kinds: set[str] = set()
        self.last: tuple[float, type] = (math.inf, object)  # number and type of the one called last


# Not a context variable: checkpointing recomputes a layer in backward, on a thread of autograd.
_given = _Given()
_layers = _Layers()


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
    AttentionMaskInterface.register(name, _check_mask)
    return name


def _check_form(form: Form) -> None:
    """Refuses masks that the plan's would not replace, and keeps the others for the layers."""
    prepared = (
        None
        if _given.executor is None or not _given.executor.is_prepared
        else _given.executor.prepared_of(None)
    )
    odd = list(form.odd)
    if form.blocks is not None and prepared is None and bool((form.blocks >= 0).any()):
        odd.append("blockwise_overlay")
    if odd:
        raise _core.InvalidArgument(
            "attention: expected a model whose masks are causal, full or sliding windows, found "
            f"{', '.join(odd)} (tokens that attend each other both ways, such as an image's, or a "
            "prefix); plan the batch with that mask, and let the plan's masks count: "
            "use(executor, check_masks=False)"
        )
    if prepared is None:
        return
    note(prepared, form)
    for name in prepared.mask_names:
        if name.split("_")[0] == ("sliding" if form.window else "full"):
            for part in prepared.parts_of(name):
                check_blocks(prepared, part, form)


def _check_mask(
    *args: Any, attention_mask: Tensor | None = None, mask_function: Any = None, **others: Any
) -> None:
    """Replaces the function that makes a model's mask. Refuses what the plan's masks would drop."""
    # Compiled code cannot look into functions; a model that is compiled is checked where it runs
    # eagerly.
    if mask_function is not None and _given.check_masks and not torch.compiler.is_compiling():
        _check_form(form_of(mask_function))
    if attention_mask is not None and (attention_mask.dim() != 2 or not bool(attention_mask.all())):
        raise _core.InvalidArgument(
            "attention_mask: expected none, or ones, for documents are packed without padding and "
            f"the plan has their masks; found {list(attention_mask.shape)} with "
            f"{int((attention_mask == 0).sum())} zeros"
        )


@contextlib.contextmanager
def _giving(given: _Given) -> Iterator[None]:
    """Gives these to layers, inside ``with``."""
    global _given
    before, _given = _given, given
    try:
        with around(given.executor, __name__, lambda: _again(given)):
            yield
    finally:
        _given = before


@contextlib.contextmanager
def _running(given: _Given) -> Iterator[None]:
    """Makes models attend by a plan, inside ``with``."""
    with _giving(given), patched(lambda: _patches_of(given)):
        yield


@contextlib.contextmanager
def _patches_of(given: _Given) -> Iterator[None]:
    sides, executor = given.sides, cast(Executor, given.executor)
    by_side = (
        (sides.target_positions, sides.source_positions)
        if sides is not None
        else (given.positions, None)
    )
    local = contextlib.nullcontext() if sides is None else local_layers(_attend_local)
    older = adapted(_attend, _check_mask)
    whole = extent_of_batch(executor, are_given=not given.check_positions or sides is not None)
    with (
        pooling(executor),
        counted(*by_side),
        _linear.run_in_order(_begin_ordered),
        older,
        local,
        whole,
    ):
        yield


def _again(given: _Given) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which a checkpoint computes again, inside another ``use`` or none."""
    # Models attend by a plan already inside another.
    is_other = _given.executor is None or (_given.sides is None) != (given.sides is None)
    return _running(given) if is_other else _giving(given)


@contextlib.contextmanager
def use(
    executor: Executor,
    *,
    check_masks: bool = True,
    check_positions: bool = True,
    check_model: bool = True,
    positions: Tensor | None = None,
    sides: Sides | None = None,
    dropout_seed: int | None = None,
) -> Iterator[Executor]:
    """Makes the layers of models attend with an executor, inside ``with``.

    Calls are collective: every rank runs the model on its own tokens. Backward may run inside or
    after, of several batches in any order: layers that are checkpointed compute again as they did
    first, by the plan and the seed of their batch.

    Models with transformers' generic head of classification (``LlamaForSequenceClassification``)
    return the logits of every document [documents, labels] on every rank. ``labels`` are those of
    all documents, and the loss is that of the batch on every rank.

    Parameters
    ----------
    executor : Executor
        Prepared for the plan of the batch.
    check_masks : bool
        Whether the plan's masks must reach as far as the layers' own: causal, sliding layers within
        their window. False lets the plan's masks replace them, such as prefix LM.
    check_positions : bool
        Whether position ids must be those of the plan's documents, from 0, or from the first
        position that the model's embeddings have (2 in RoBERTa). False leaves them to the caller:
        for models with positions of their own kind, or with none at all.
    check_model : bool
        Whether a small copy of the model is tried once, as ``contextile.transformers.check_model``
        does: attention alone may let tokens see each other. If none can be built, a warning says
        that nothing was checked. False is for a model whose other parts you answer for.
    positions : int64 Tensor [local tokens], optional
        Positions for models that count them and take none, such as BART's: ``local.positions``.
    sides : Sides, optional
        Which of this rank's tokens are sources, for models of an encoder and a decoder. The model
        is given this rank's sources and targets; both have the positions of the sides.
    dropout_seed : int, optional
        Needed if layers drop attention weights: the same on every rank, another in every step.
        Seed, layer, head and tokens decide about a weight, so no plan changes a result.

    Yields
    ------
    Executor

    Raises
    ------
    InvalidArgument
        In the first layer, if the model computes something outside attention that depends on the
        order of tokens: recurrent or convolutional layers that pass no states between ranks,
        another pooling head, its own loss of ``labels``, or another part of which a small copy
        gives other rows for a part of a document. In a layer, if it does not fit the plan: another
        shape, scale, softcap or mask, an attention mask, dropout without a seed, a batch above 1,
        positions other than this rank's, or an argument that would be dropped. On leaving, if no
        layer attended: the model then attended on each rank alone.

    Examples
    --------
    ::

        with contextile.transformers.use(executor):
            logits = model(local.tokens[None], position_ids=local.positions[None]).logits
    """
    seed = (
        None
        if dropout_seed is None
        else torch.tensor(_checks.whole("dropout_seed", dropout_seed), dtype=torch.int64)
    )
    if sides is not None:
        check_sides(_prepared(executor), sides)
    _layers.last = math.inf, object
    _layers.kinds.clear()
    before, _layers.was_called = _layers.was_called, False
    try:
        with _running(
            _Given(executor, check_masks, check_positions, check_model, positions, sides, seed)
        ):
            yield executor
        _check_called(sides)
    finally:
        _layers.was_called = _layers.was_called or before


def _check_called(sides: Sides | None) -> None:
    """Raises if layers attended elsewhere than through this module, at the end of ``use``."""
    if sides is not None and 0 < len(_layers.kinds) < 3:
        missing = sorted({"encoder", "decoder", "cross"} - _layers.kinds)
        raise _core.InvalidArgument(
            "attention: expected layers of the encoder and the decoder that attend through "
            f"contextile, found none of kind {' and '.join(missing)}: such layers attended on each "
            "rank alone"
        )
    if not _layers.was_called:
        raise _core.InvalidArgument(
            "attention: expected a model that attends through contextile "
            "(model.set_attn_implementation(register()), and a model that uses the attention "
            "interface), found no call of a layer"
        )


def _prepared(executor: Executor | None) -> Prepared:
    if executor is None or not executor.is_prepared:
        raise _core.InvalidArgument(
            "attention: expected an executor prepared for the batch (with "
            "contextile.transformers.use(executor)), found none"
        )
    return executor.prepared_of(None)


def _check(
    rules: Rules,
    query: Tensor,
    attention_mask: Any,
    dropout: float,
    scaling: float | None,
    softcap: float | None,
) -> None:
    if attention_mask is not None:
        raise _core.InvalidArgument(
            "attention: expected no attention mask, for the plan has the batch's masks; found "
            "one. Pack documents without padding and leave attention_mask out"
        )
    if dropout and (_given.dropout_seed is None or _given.sides is not None):
        remedy = (
            "which layers of encoders and decoders have not"
            if _given.sides is not None
            else "use(executor, dropout_seed=…) draws it"
        )
        raise _core.InvalidArgument(f"attention: expected dropout 0, found {dropout}; {remedy}")
    if query.shape[0] != 1:
        raise _core.InvalidArgument(
            f"attention: expected a batch of 1, documents packed; found {query.shape[0]}"
        )
    if scaling is not None and not math.isclose(scaling, rules.scale, rel_tol=1e-6):
        raise _core.InvalidArgument(
            f"attention: expected the plan's scale {rules.scale:.6g}, found the layer's "
            f"{scaling:.6g}"
        )
    if not math.isclose(softcap or 0.0, rules.softcap, rel_tol=1e-6):
        raise _core.InvalidArgument(
            f"attention: expected the plan's softcap {rules.softcap:g}, found the layer's {softcap}"
        )


def _seed_of(module: Any, name: str) -> Tensor:
    """Returns the seed of a layer's dropout."""
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise _core.InvalidArgument(
            "attention: expected layers with numbers (layer_idx), each of which draws its own "
            f"dropout, found {type(module).__name__} without; set dropout 0"
        )
    digest = hashlib.blake2b(f"{name} {layer}".encode(), digest_size=8).digest()
    return cast(Tensor, _given.dropout_seed) * 0x5851F42D4C957F2D + int.from_bytes(
        digest, "little", signed=True
    )


def _first_position() -> int:
    """Returns the position of the first token of a document in the model that is computing."""
    from transformers import PreTrainedModel

    model, _ = model_in_call(PreTrainedModel) or (None, None)
    return 0 if model is None else first_position(model)


def _compare_positions(prepared: Prepared, position_ids: Any) -> None:
    """Raises unless positions are this rank's in the plan's documents.

    They may begin at the first position that a model has instead of 0. Another constant could be
    one of this rank alone.
    """
    if not isinstance(position_ids, Tensor) or position_ids.dim() not in (2, 3):
        return
    # All layers receive the same tensor. Reading it on a GPU waits for the device, so it is read
    # once.
    is_on_gpu = position_ids.device.type != "cpu"
    if (
        is_on_gpu
        and prepared.positions_checked is not None
        and prepared.positions_checked() is position_ids
    ):
        return
    if position_ids.dim() == 3:  # of M-RoPE, by axis; of text all are equal
        if not bool((position_ids == position_ids[:1]).all()):
            return
        rows = position_ids[0]
    else:
        rows = position_ids
    expected = prepared.positions.to(rows.device)
    if len(expected) == 0:
        return  # this rank has only a filler
    found = rows[0]
    is_same = found.shape == expected.shape and bool(
        torch.equal(found, expected) or torch.equal(found, expected + _first_position())
    )
    if not is_same:
        raise _core.InvalidArgument(
            "position_ids: expected those of this rank's tokens in the documents of the plan that "
            "the executor is prepared for (local_batch(…).positions[None]), which begin "
            f"{expected[:4].tolist()}, found {list(rows.shape)} that begin {found[:4].tolist()}; "
            "models count 0, 1, 2, … where none are given (use(executor, check_positions=False) "
            "leaves positions to you)"
        )
    if is_on_gpu:
        prepared.positions_checked = weakref.ref(position_ids)


# ------------------------------------------------------------------------------------------ models

# Arguments of models whose features replace tokens.
_PIXELS = ("pixel_values", "pixel_values_videos", "input_features")
_POOLS = ("ForSequenceClassification", "ForMultipleChoice", "ForTextEncoding", "RewardModel")


def _check_tower(layer: Any) -> None:
    """Raises if a layer is one of a vision or audio tower, whose tokens the plan does not have."""
    from transformers import PreTrainedModel

    model, _ = model_in_call(PreTrainedModel) or (None, None)
    own, text = getattr(layer, "config", None), text_config(model)
    if (
        text is not getattr(model, "config", None)
        and own is not None
        and type(own) is not type(text)
    ):
        raise _core.InvalidArgument(
            f"attention: expected a layer of the text model, found {type(layer).__name__} of "
            "another part, whose tokens are not the "
            "plan's; leave it its own attention: "
            'set_attn_implementation({"text_config": register()})'
        )


def _check_parts() -> None:
    """Raises if the computing model has experts that drop tokens, or attends elsewhere, too."""
    from transformers import PreTrainedModel

    model, _ = model_in_call(PreTrainedModel) or (None, None)
    if model is None:
        return
    dropping = dropping_part(model)
    if dropping is not None:
        raise _core.InvalidArgument(
            f"model: expected experts without a capacity, found {type(model).__name__} with "
            f"{dropping}, which would drop tokens by how many this rank holds"
        )
    if _given.sides is not None:
        refuse_own_attention(model)


def check_call(prepared: Prepared) -> None:
    """Raises if the model that is computing would be wrong on a part of the tokens."""
    from transformers import PreTrainedModel

    found = model_in_call(PreTrainedModel)
    if found is None:
        return  # a part of a model, or layers that are recomputed in backward
    model, arguments = found
    name = type(model).__name__
    ordered = ordered_part(model, _linear.covered_types())
    if ordered is not None:
        raise _core.InvalidArgument(
            f"model: expected one in which attention alone mixes tokens, found {name} with "
            f"{ordered}, which would run over this rank's tokens in the order in which it holds "
            "them (contextile.torch.gather_layers gives it whole documents)"
        )
    pools = pools_by_plan(model)
    if name.endswith(_POOLS) and not pools:
        raise _core.InvalidArgument(
            "model: expected one with an output for every token, or transformers' generic head of "
            f"classification inside contextile.transformers.use, found {name}, which pools those "
            "of this rank alone; run the model below its head and pool by gather_last or collect"
        )
    pooled = pooled_part(model)
    if pooled is not None:
        raise _core.InvalidArgument(
            f"model: expected one with an output for every token, found {name} with {pooled}, "
            "which takes one token of this rank for the whole document; leave it out "
            "(add_pooling_layer=False) and pool what collect returns"
        )
    check_loss(model, arguments, pools)
    refuse_noise(model)
    refuse_extent(model, arguments)
    if _given.check_models:
        check_once(model)
    pixels = [key for key in _PIXELS if arguments.get(key) is not None]
    if pixels:
        raise _core.InvalidArgument(
            f"{pixels[0]}: expected none inside use, for the model would merge the features of all "
            "images into this rank's tokens; "
            'found some. Give mm_encoder_outputs={"image": local_images(…)}'
        )
    is_given = _given.positions is not None or _given.sides is not None
    counting = (
        counting_part(model, is_given)
        if _given.check_positions and not prepared.counts_from_zero
        else None
    )
    if counting is not None:
        raise _core.InvalidArgument(
            f"model: expected one whose positions can be given, found {name} with {counting}, "
            "which counts them from this rank's input_ids"
        )
    if (
        not _given.check_positions
        or prepared.counts_from_zero
        or _given.sides is not None
        or has_no_positions(model)
    ):
        return
    if _given.positions is not None:
        _compare_positions(prepared, _given.positions[None])
    elif arguments.get("position_ids") is not None:
        _compare_positions(prepared, arguments["position_ids"])
    else:
        accepts = "position_ids" in inspect.signature(type(model).forward).parameters
        hint = (
            "give position_ids=local.positions[None]"
            if accepts
            else "use(executor, positions=local.positions) gives it them"
        )
        raise _core.InvalidArgument(
            f"position_ids: expected those of this rank's tokens, found none: {name} would count "
            f"0, 1, 2, … on every rank; {hint} (use(executor, check_positions=False) is for models "
            "without positions)"
        )


register_check("transformers", check_call)

# Arguments that layers pass on and that change nothing about their attention.
_WITHOUT_EFFECT = {
    "cache_position",
    "is_causal",
    "labels",
    "logits_to_keep",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "past_key_values",
    "position_ids",
    "return_dict",
    "shift_labels",
    "use_cache",
}


def _check_others(others: dict[str, Any]) -> None:
    """Raises on arguments of a layer that would be dropped."""
    for name, value in others.items():
        if name in _WITHOUT_EFFECT or value is None or value is False:
            continue
        raise _core.InvalidArgument(
            f"attention: expected no {name}, for attention by a plan has no such thing, found "
            + (
                f"a tensor of {list(value.shape)}"
                if isinstance(value, Tensor)
                else f"{value!r:.40}"
            )
        )


def _name_for(
    prepared: Prepared,
    kind: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    s_aux: Tensor | None,
) -> str:
    """Returns the name of the plan's mask for a layer: its kind, or kind_2, … of another shape."""
    names = prepared.mask_names
    if kind in ("encoder", "decoder", "cross") and _given.sides is None:
        raise _core.InvalidArgument(
            "attention: expected use(executor, sides=…) with a plan for masks.encoder_decoder, "
            "for the model has an encoder and a decoder, found none"
        )
    if kind not in names and len(names) == 1 and names[0] not in (SLIDING, FULL, CHUNKED):
        return names[0]
    prepared.rules_of(kind)
    sharers = num_sharers(query)
    shape = (query.shape[1] // sharers, key.shape[1] // sharers), (query.shape[3], value.shape[3])
    for name in names:
        rules = prepared.rules[name]
        if name == kind or name.startswith(f"{kind}_"):
            is_scale = scaling is None or math.isclose(scaling, rules.scale, rel_tol=1e-6)
            if (rules.heads, rules.dims, rules.has_sink) == (
                *shape,
                s_aux is not None,
            ) and is_scale:
                return name
    return kind


def _begin(module: Any) -> tuple[Prepared, bool]:
    """Notes a call of a layer. Returns the plan, and whether the layer is the first of a forward.

    It is the first where layers are numbered; all are where they are not.
    """
    _layers.was_called = True
    prepared = _prepared(_given.executor)
    if torch.compiler.is_compiling():
        return prepared, False
    layer = getattr(module, "layer_idx", None) or 0
    is_first = not layer or layer < _layers.last[0] or _layers.last == (layer, type(module))
    _layers.last = layer, type(module)
    if is_first:
        begin_layers(prepared)
    return prepared, is_first


def _begin_ordered(module: Any) -> tuple[Executor, Prepared]:
    """Returns the executor and the plan for a layer that runs in order. Checks the model."""
    prepared, is_first = _begin(module)
    if is_first:
        check_call(prepared)
    return cast(Executor, _given.executor), prepared


def _attend_by_side(
    prepared: Prepared,
    kind: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: RelativeBias | None,
    window: int | None,
) -> Tensor:
    """Attends for a layer of an encoder or a decoder, with tensors [1, tokens, heads, …]."""
    sides, executor = cast(Sides, _given.sides), cast(Executor, _given.executor)
    if _given.check_masks and kind == "encoder":
        check_encoder_reach(prepared, sides, window)
    elif _given.check_masks and window is not None:
        raise _core.InvalidArgument(
            f"attention: expected a {kind} that attends all its tokens, found a window of "
            f"{window + 1}"
        )
    _layers.kinds.add(kind)
    return cross_attention(
        query[0],
        key[0],
        value[0],
        sides=sides,
        executor=executor,
        plan=prepared,
        mask=kind,
        bias=bias,
    )[None]


def _attend_local(
    module: Any, query: Tensor, key: Tensor, value: Tensor, bias: RelativeBias, window: int
) -> Tensor:
    """Attends for a local layer of LongT5's encoder."""
    prepared, _ = _begin(module)
    _check_parts()
    _name_for(prepared, "encoder", query, key, value, 1.0, None)
    _check(prepared.rules["encoder"], query, None, 0.0, 1.0, None)
    check_call(prepared)
    return _attend_by_side(prepared, "encoder", query, key, value, bias, window)


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
    position_bias: Tensor | None = None,
    bias: Bias | None = None,
    query_scale: Tensor | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """Attends for a layer. Collective.

    Takes query [1, q_heads, tokens, head_dim], key and value [1, kv_heads, tokens, …] and returns
    [1, tokens, q_heads, value_dim]. ``query_scale`` [1, 1, tokens, 1] scales the queries of tokens.
    """
    if query_scale is not None:
        query = (query * query_scale).to(query.dtype)
    prepared, is_first = _begin(module)
    is_compiling = torch.compiler.is_compiling()
    if is_first:
        _check_parts()
        _check_tower(module)
    is_causal = is_causal_of(module, other)
    kind = kind_of(module, sliding_window, is_causal)
    if _given.sides is not None and kind not in ("encoder", "decoder", "cross"):
        raise _core.InvalidArgument(
            "attention: expected a layer of an encoder or a decoder, by its configuration "
            f"(is_encoder_decoder), with sides, found {type(module).__name__} of kind {kind}"
        )
    name = _name_for(prepared, kind, query, key, value, scaling, s_aux)
    rules = prepared.rules[name]
    _check(rules, query, attention_mask, dropout, scaling, softcap)
    if (s_aux is not None) != rules.has_sink:
        raise _core.InvalidArgument(
            "attention: expected a plan with sinks, as the layer has (batch_of(model, "
            "sink=True)), found one without"
            if s_aux is not None
            else (
                "attention: expected a layer with sinks, as the plan has (sink=False leaves them "
                "out), found one without"
            )
        )
    if _given.check_masks and not is_compiling and _given.sides is None:
        for part in prepared.parts_of(name):
            check_reach(prepared, part, kind, sliding_window, is_causal)
    _check_others(other)
    if is_first:
        check_call(prepared)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if _given.sides is not None:
        bias = bias_of_layer(module, position_bias, is_cross=kind == "cross")
        window = sliding_window if sliding_window is None else sliding_window - 1
        return _attend_by_side(prepared, kind, q, k, v, bias, window), None
    if _given.check_positions and not is_compiling:
        _compare_positions(prepared, other.get("position_ids"))
    out = attention(
        q,
        k,
        v,
        executor=cast(Executor, _given.executor),
        plan=prepared,
        mask=name,
        sink=None if s_aux is None else s_aux.float(),
        bias=bias if bias is not None else bias_of_layer(module, position_bias),
        dropout_p=dropout,
        dropout_seed=_seed_of(module, name) if dropout else None,
    )
    return out, None
