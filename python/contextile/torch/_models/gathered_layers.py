"""Runs layers that need documents whole on ranks that have them whole."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from contextile import _core
from contextile.torch._execute.executor import Executor
from contextile.torch._models.parts import GATHERED, forget_parts, is_gathered
from contextile.torch._tokens.token_layout import documents_of


class _Gathered:
    """The executor of a gathered layer, and the forward that it had."""

    def __init__(self, executor: Executor, name: str, forward: Any) -> None:
        self.executor, self.name, self.forward = executor, name, forward


def _forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Runs a layer on whole documents. Collective."""
    kept: _Gathered = module.__dict__[GATHERED]
    layout = documents_of(kept.executor)
    given, structure = tree_flatten((args, kwargs))
    moves = [
        isinstance(x, Tensor) and x.dim() >= 2 and x.shape[:2] == (1, layout.num_home_tokens)
        for x in given
    ]
    if not given or not moves[0]:
        found = list(given[0].shape) if given and isinstance(given[0], Tensor) else "none"
        raise _core.InvalidArgument(
            f"{kept.name}: expected [1, {layout.num_home_tokens}, …] as first argument of a layer "
            f"on whole documents, found {found}"
        )
    moved = [layout.gather(x, dim=1) if there else x for x, there in zip(given, moves, strict=True)]

    def run(values: list[Any], begin: int, end: int) -> Tensor:
        part = [x[:, begin:end] if there else x for x, there in zip(values, moves, strict=True)]
        its_args, its_kwargs = tree_unflatten(part, structure)
        out = kept.forward(*its_args, **its_kwargs)
        if not isinstance(out, Tensor) or out.dim() < 2 or out.shape[1] != end - begin:
            raise _core.InvalidArgument(
                f"{kept.name}: expected a layer on whole documents to return [1, {end - begin}, "
                "…], found "
                + (str(list(out.shape)) if isinstance(out, Tensor) else type(out).__name__)
            )
        return out

    outs = [run(moved, part.begin, part.end) for part in layout.parts]
    if not outs:
        # Parameters need gradients on every rank, so a rank without documents computes one token,
        # of which nothing is kept.
        padded = [
            torch.zeros_like(x[:, :1]) if there else x
            for x, there in zip(given, moves, strict=True)
        ]
        outs = [run(padded, 0, 1)[:, :0] + 0 * moved[0].sum()]
    return layout.scatter(torch.cat(outs, dim=1), dim=1)


def gather_layers(model: nn.Module, executor: Executor, *, names: Iterable[str]) -> list[str]:
    """Makes layers compute on whole documents: for layers whose states cannot be passed on.

    Each document goes to one rank, which computes the layer on it alone. Ranks get about as many
    tokens; the longest document must fit on one. Nothing is computed twice.
    ``documents_of(executor).report(row_bytes)`` says what moves.

    Parameters
    ----------
    model : Module
        The model, whose layers are changed in place. Parameters keep their names.
    executor : Executor
        Prepared for the plan of each batch, over a ``torch.distributed`` group.
    names : iterable of str
        Last parts of the layers' names (``"mixer"`` for ``layers.0.mixer``), or names of classes. A
        layer takes [1, tokens, ...] as its first argument and returns one such tensor. Every other
        tensor with this rank's tokens in its second dimension moves, too.

    Returns
    -------
    list of str
        Places of the layers.

    Raises
    ------
    InvalidArgument
        A name fits no module. In a call, if arguments or results have another shape.

    Examples
    --------
    ::

        gather_layers(model, executor, names=["JambaMambaMixer"])
    """
    wanted = [names] if isinstance(names, str) else list(names)
    places, used = [], set()
    for place, module in model.named_modules():
        fitting = {
            name for name in wanted if name in (place.rpartition(".")[2], type(module).__name__)
        }
        if not fitting:
            continue
        used |= fitting
        if is_gathered(module):
            module.__dict__[GATHERED].executor = executor
        else:
            module.__dict__[GATHERED] = _Gathered(executor, place, module.forward)
            module.forward = types.MethodType(_forward, module)
        places.append(place)
    missing = [name for name in wanted if name not in used]
    if missing or not wanted:
        raise _core.InvalidArgument(
            f"model: expected modules called {', '.join(missing) or '…'}, found none"
        )
    forget_parts()
    return places
