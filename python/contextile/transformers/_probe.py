"""Finds parts of a model outside attention that read more of a call than a token's own row.

A small copy of the model computes one document whole, and in parts as ranks would hold it.
Attention is replaced by a function of each row alone, so that every row has to be the same.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import math
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from contextile import _core
from contextile.torch._models.parts import is_gathered
from contextile.transformers import _linear
from contextile.transformers._extent import with_extent
from contextile.transformers._local import local_layers
from contextile.transformers._losses import shifts_labels
from contextile.transformers._older import adapted
from contextile.transformers._patches import unpatched
from contextile.transformers._positions import counted
from contextile.transformers._small import small_copies

_ROWS = "contextile_rows"
_TOKENS = 24  # beyond all thresholds of a small copy
# Tokens of parts: within those thresholds, in two pieces, and in the middle.
_PARTS = ([*range(6)], [*range(6, 12), *range(18, 24)], [*range(12, 18)])
_LARGEST_ERROR = 1e-4  # relative to the largest value of a tensor


class Finding(NamedTuple):
    """The outcome of a probe."""

    is_checked: bool  # false: no small copy could be built, or run
    part: str = ""  # the part whose rows differ, or the loss; empty: none does
    reason: str = ""  # why no copy ran
    types: frozenset[type] = frozenset()  # of the copy's modules


# -----------------------------------------------------------------------------------------
# attention


def _projected(rows: Tensor, phase: float) -> Tensor:
    """Returns a number of each row that turns with it."""
    weights = torch.cos(torch.arange(rows.shape[-1], dtype=rows.dtype) + phase)
    return torch.tanh((rows * weights).sum(-1, keepdim=True))


def _attend_to_itself(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Any,
    query_scale: Tensor | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """Stands for attention: a function of a token's own query, key and value."""
    query = query if query_scale is None else query * query_scale
    repeated = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeated, dim=1) for x in (key, value))
    if key.shape[2] != query.shape[2]:  # of an encoder
        key, value = (x[:, :, :1].expand(-1, -1, query.shape[2], -1) for x in (key, value))
    out = value * (1 + 0.5 * _projected(query, 0.0)) + 0.5 * _projected(key, 1.0)
    return out.transpose(1, 2).contiguous(), None


def _attend_locally(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    """Does the same for tensors [1, tokens, heads, dim]."""
    return _attend_to_itself(module, *(x.transpose(1, 2) for x in (query, key, value)))[0]


def _no_mask(*_: Any, **__: Any) -> None:
    return None


# -------------------------------------------------------------------------------------------- parts


class _Part:
    """The extent of a part of the document. Parts are computed one after the other."""

    def __init__(self, rows: Tensor, sums: list[list[Tensor]]) -> None:
        self._rows, self._sums = rows, sums
        self._mine: list[Tensor] = []

    def longest_position(self, position_ids: Tensor) -> Tensor:
        return torch.tensor(_TOKENS - 1)

    def positions(self) -> Tensor:
        return self._rows

    def has_tokens(self) -> bool:
        return True

    def sum(self, where: str, tensor: Tensor) -> Tensor:
        """Returns the sum over parts, once all of them have told theirs; else this part's."""
        self._mine.append(tensor)
        number = len(self._mine) - 1
        others = [sums[number] for sums in self._sums if len(sums) > number]
        return torch.stack(others).sum(0) if len(others) == len(_PARTS) else tensor

    def told(self) -> list[Tensor]:
        return self._mine


class _Recorder:
    """Keeps the outputs of modules that have a row per token, in the order of their calls."""

    def __init__(self, model: nn.Module, num_rows: int) -> None:
        self._num_rows = num_rows
        self.rows: list[tuple[str, Tensor]] = []
        self._handles = [
            module.register_forward_hook(
                self._hook(f"{name} ({type(module).__name__})" if name else type(module).__name__)
            )
            for name, module in model.named_modules()
        ]

    def _hook(self, name: str) -> Any:
        def hook(module: Any, arguments: Any, output: Any) -> None:
            for tensor in output if isinstance(output, (tuple, list)) else [output]:
                rows = self.rows_of(tensor)
                if rows is not None:
                    self.rows.append((name, rows))

        return hook

    def rows_of(self, tensor: Any) -> Tensor | None:
        """Returns [tokens, width] of a tensor [1, tokens, …] or [tokens, …]."""
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return None
        if tensor.dim() >= 2 and tensor.shape[0] == 1 and tensor.shape[1] == self._num_rows:
            return tensor[0].flatten(1) if tensor.dim() > 2 else tensor[0][:, None]
        if tensor.dim() == 2 and tensor.shape[0] == self._num_rows:
            return tensor
        return None

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


class _Run(NamedTuple):
    modules: list[tuple[str, Tensor]]  # rows of modules, in the order of their calls
    results: list[tuple[str, Tensor]]  # rows of the model
    loss: float | None


def _accepted(kind: type) -> set[str]:
    """Returns the names of arguments of a type's forward, and those that it passes on by name."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base is not nn.Module and "forward" in vars(base):
            parameters = inspect.signature(vars(base)["forward"]).parameters
            names |= set(parameters)
            if all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
                break
    return names


def _run(model: Any, tokens: Tensor, positions: Tensor, labels: Tensor) -> _Run:
    accepted = _accepted(type(model))
    given: dict[str, Any] = {
        "input_ids": tokens[None],
        "position_ids": positions[None],
        "use_cache": False,
    }
    given = {name: value for name, value in given.items() if name in accepted}
    if _has_router_loss(model):
        given["output_router_logits"] = True
    if "decoder_input_ids" in accepted:  # which a model would make of labels, or of its input
        given["decoder_input_ids"] = tokens[None]
    elif "labels" in accepted and shifts_labels(model):
        count = _TOKENS - 1
        given |= {"labels": labels[None], "shift_labels": labels[None], "num_items_in_batch": count}
    recorder = _Recorder(model, len(tokens))
    try:
        with counted(None if "position_ids" in accepted else positions):
            output = model(**given)
    finally:
        recorder.close()
    loss = getattr(output, "loss", None)
    if isinstance(output, Mapping):
        values = dict(output)
    else:
        values = {
            f"result {number}": value
            for number, value in enumerate(output if isinstance(output, tuple) else [output])
        }
    results = [(name, recorder.rows_of(value)) for name, value in values.items()]
    return _Run(
        recorder.rows,
        [(name, rows) for name, rows in results if rows is not None],
        None if loss is None else float(loss),
    )


def _has_router_loss(model: Any) -> bool:
    config = model.config.get_text_config()
    return hasattr(config, "output_router_logits") and hasattr(config, "router_aux_loss_coef")


def _differing(
    whole: list[tuple[str, Tensor]], part: list[tuple[str, Tensor]], places: Tensor
) -> str:
    """Returns the first name whose rows of a part are others than in the whole."""
    by_name: dict[str, list[Tensor]] = {}
    for name, tensor in part:
        by_name.setdefault(name, []).append(tensor)
    seen: Counter[str] = Counter()
    for name, tensor in whole:
        number, others = seen[name], by_name.get(name, [])
        seen[name] += 1
        if number >= len(others) or others[number].shape[1:] != tensor.shape[1:]:
            continue  # of rows of another kind, such as those that an expert takes
        largest = float(tensor.abs().nan_to_num(posinf=0).max())
        difference = float((others[number] - tensor[places]).abs().nan_to_num(posinf=0).max())
        if difference > _LARGEST_ERROR * max(largest, 1e-6):
            return name
    return ""


def _compared(whole: _Run, runs: list[_Run], parts: list[Tensor]) -> str:
    """Returns the first part of a model whose rows differ, if the model's results do."""
    for part, places in zip(runs, parts, strict=True):
        # Modules may get rows in another order, or of some tokens, and do no harm.
        if not whole.results or _differing(whole.results, part.results, places):
            found = _differing(whole.modules, part.modules, places)
            if found or whole.results:
                return found or "its results"
    losses = [part.loss for part in runs if part.loss is not None]
    if (
        whole.loss is not None
        and len(losses) == len(runs)
        and not math.isclose(sum(losses), whole.loss, rel_tol=_LARGEST_ERROR)
    ):
        return "its loss"
    return ""


@contextlib.contextmanager
def _attending_to_itself(model: Any) -> Iterator[None]:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_ROWS, _attend_to_itself)
    AttentionMaskInterface.register(_ROWS, _no_mask)
    model.set_attn_implementation(_ROWS)
    with adapted(_attend_to_itself, _no_mask), local_layers(_attend_locally):
        yield


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keeps what is around a call from a copy: autocast, a default device, checkpoints, ``use``."""
    kept = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with torch.autocast("cpu", enabled=False), torch.device("cpu"), kept, unpatched():
        yield


def _rows_as_they_are(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states


def _leave_out_ordered(small: nn.Module, model: nn.Module) -> None:
    """Takes layers out of a copy that run in order by themselves: inside ``use``, or gathered."""
    gathered = {type(module) for module in model.modules() if is_gathered(module)}
    for module in small.modules():
        if type(module) in _linear.layers_in_order() or type(module) in gathered:
            module.forward = _rows_as_they_are


def _compared_parts(small: Any, tokens: Tensor, labels: Tensor, has_extent: bool) -> str:
    """Returns the first part of a copy that gives other rows for parts of a document."""
    places = torch.arange(_TOKENS)
    parts = [torch.tensor(part) for part in _PARTS]
    # Each by a copy of its own, because frequencies of RoPE keep what they followed.
    whole = _run(copy.deepcopy(small), tokens, places, labels)
    if small.training and _compared(
        whole, [_run(copy.deepcopy(small), tokens, places, labels)], [places]
    ):
        return ""  # it draws random numbers
    sums: list[list[Tensor]] = []
    runs: list[_Run] = []
    for _ in range(2):  # once to tell what is summed, once to get the sums
        extents = [_Part(part, sums) for part in parts]
        runs = []
        for extent, part in zip(extents, parts, strict=True):
            with with_extent(extent) if has_extent else contextlib.nullcontext():
                runs.append(_run(copy.deepcopy(small), tokens[part], part, labels[part]))
        sums[:] = [extent.told() for extent in extents]
    return _compared(whole, runs, parts)


def probe(model: Any, *, has_extent: bool = True) -> Finding:
    """Returns what a small copy of a model makes of parts of a document, outside attention.

    ``has_extent`` is false for parts that are not given the extent of the whole. The model and the
    state of PyTorch's random numbers stay as they are.
    """
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 60, (_TOKENS,), generator=generator, device="cpu")
    labels = torch.cat([tokens[1:], torch.full((1,), -100, device="cpu")])
    reason = "none can be built"
    for small in small_copies(model):
        try:
            _leave_out_ordered(small, model)
            with (
                warnings.catch_warnings(),
                torch.random.fork_rng(devices=[]),
                _alone(),
                _attending_to_itself(small),
            ):
                warnings.simplefilter("ignore")
                with torch.no_grad():
                    part = _compared_parts(small, tokens, labels, has_extent)
                if not part:
                    with contextlib.suppress(Exception), torch.enable_grad():  # if that runs
                        part = _compared_parts(small.train(), tokens, labels, has_extent)
        except Exception as error:
            reason = f"{type(error).__name__}: {error!s:.200}"
            continue
        return Finding(True, part, types=frozenset(map(type, small.modules())))
    return Finding(False, reason=reason)


_found: dict[tuple[type, str], Finding] = {}
_checked: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def pretrained_in(model: Any) -> Any:
    """Returns a model of transformers, or the one that a module wraps, as PEFT's do; else None."""
    from transformers import PreTrainedModel

    return next(
        (
            module
            for module in getattr(model, "modules", tuple)()
            if isinstance(module, PreTrainedModel)
        ),
        None,
    )


def check_once(model: Any) -> bool:
    """Does what ``check_model`` does, and nothing for a model that has passed. Not collective."""
    if model not in _checked:
        _checked[model] = check_model(model)
    return _checked[model]


def _others(model: nn.Module, types: frozenset[type]) -> str:
    """Returns the parts of a model that replace those of its class, except adapters of PEFT."""
    others = []
    for place, module in model.named_modules():
        kind = type(module)
        is_own = "forward" in module.__dict__ and not is_gathered(module)
        is_known = kind in types or any(
            base in types for base in kind.__mro__[1:-1] if base is not nn.Module
        )
        if is_own or (
            not is_known and kind.__module__.split(".")[0] not in ("torch", "peft", "bitsandbytes")
        ):
            others.append(f"{place or 'forward'} ({kind.__name__})")
    return ", ".join(others[:4]) + (", …" if len(others) > 4 else "")


def check_model(model: Any) -> bool:
    """Checks that attention alone lets the tokens of a model's call see each other.

    A small copy of the model with random weights computes one document whole, and in parts as ranks
    hold it. Rows must be the same, and the loss the sum of those of the parts. Layers that run in
    order by themselves (``use``, ``gather_layers``) are left out. Each class of models is tried
    once for a configuration, which takes some tenths of a second. ``use`` and ``TrainerMixin`` do
    this for their models. Not collective.

    A copy is made of the class and the configuration, with 24 tokens, for evaluation and for
    training without dropout. It does not show what hooks do, what begins beyond so many tokens, or
    parts that replace those of the class; a warning names these.

    Parameters
    ----------
    model : PreTrainedModel, or a module that wraps one
        It stays as it is, as do PyTorch's random numbers.

    Returns
    -------
    bool
        True if the copy's parts were those of the whole. False if no copy could be built so small,
        or run, so that nothing was checked; a warning says so.

    Raises
    ------
    InvalidArgument
        Rows or the loss are others: by the name of the first part of the model that differs.

    Examples
    --------
    >>> from contextile.transformers import check_model
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    ...                      num_attention_heads=4, vocab_size=100)
    >>> check_model(LlamaForCausalLM(config))
    True
    """
    given, model = model, pretrained_in(model)
    if model is None:
        raise _core.InvalidArgument(
            f"model: expected a PreTrainedModel of transformers, found {type(given).__name__}"
        )
    key = type(model), repr(model.config.to_dict())
    finding = _found.get(key)
    if finding is None:
        finding = _found[key] = probe(model)
    name = type(model).__name__
    if finding.part:
        raise _core.InvalidArgument(
            f"model: expected one in which attention alone mixes tokens, found {name}, of which a "
            f"small copy gives other rows for a part of a document, first in {finding.part}"
        )
    logger = logging.getLogger("contextile")
    if not finding.is_checked:
        logger.warning(
            "model: no small copy of %s runs, so nothing of it was checked (%s)",
            name,
            finding.reason,
        )
    elif others := _others(model, finding.types):
        logger.warning(
            "model: %s has parts that a small copy of its class has not, so they were not "
            "checked: %s",
            name,
            others,
        )
    return finding.is_checked
