"""Compares the masks that a model would make for itself with those of a plan."""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from contextile import _core
from contextile.torch._attention.sides import Sides
from contextile.torch._execute.executor import Prepared


class Form(NamedTuple):
    """The pairs that a mask function of ``transformers`` allows."""

    is_causal: bool = True
    window: int | None = None  # number of last tokens, the token itself included
    chunk: int | None = None
    # Numbers of blocks of tokens that attend each other, -1 for none; [1, tokens of this rank].
    blocks: Tensor | None = None
    whole_blocks: bool = False  # true if a block's tokens attend each other beyond the window, too
    odd: tuple[str, ...] = ()  # names of functions that are not known


# Functions of transformers.masking_utils whose effect the plan has in another way.
_PLAIN = {
    "causal_mask_function",
    "packed_sequence_mask_function",  # the plan has the documents
    "padding_mask_function",  # refused by itself
}


def form_of(function: Any) -> Form:
    """Returns what a mask function lets tokens attend."""
    where = getattr(function, "__qualname__", type(function).__name__)
    name = where.split(".<locals>", 1)[0]
    is_known = getattr(function, "__module__", "") == "transformers.masking_utils"
    names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
    cells = {
        key: cell.cell_contents
        for key, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True)
    }
    if not is_known:
        return Form(odd=(where,))
    if name in ("and_masks", "or_masks"):
        return functools.reduce(
            _both if name == "and_masks" else _either, map(form_of, cells["mask_functions"])
        )
    if "mask_function" in cells:  # with offsets, or at other positions
        return form_of(cells["mask_function"])
    if name == "bidirectional_mask_function":
        return Form(is_causal=False)
    if name == "sliding_window_overlay":
        return Form(window=cells["sliding_window"])
    if name == "sliding_window_bidirectional_overlay":
        return Form(is_causal=False, window=cells["sliding_window"] + 1)
    if name == "chunked_overlay":
        return Form(chunk=cells["chunk_size"])
    if name == "blockwise_overlay":
        return Form(blocks=cells["block_sequence_ids"])
    return Form() if name in _PLAIN else Form(odd=(where,))


def _merged(first: Form, second: Form, **changes: Any) -> Form:
    blocks = first.blocks if first.blocks is not None else second.blocks
    return Form(
        first.is_causal and second.is_causal,
        first.window or second.window,
        first.chunk or second.chunk,
        blocks,
        **{
            "whole_blocks": first.whole_blocks or second.whole_blocks,
            "odd": first.odd + second.odd,
            **changes,
        },
    )


def _both(first: Form, second: Form) -> Form:
    return _merged(first, second)


def _either(first: Form, second: Form) -> Form:
    # The window of the one does not limit the blocks of the other.
    beyond = (first.window and second.blocks is not None) or (
        second.window and first.blocks is not None
    )
    return _merged(
        first, second, whole_blocks=bool(beyond) or first.whole_blocks or second.whole_blocks
    )


# --------------------------------------------------------------------------------- of a plan


class _Seen:
    """Forms of the masks that a model needs in a batch."""

    def __init__(self) -> None:
        self.new: list[Form] = []
        self.forms: tuple[Form, ...] = ()


_seen: weakref.WeakKeyDictionary[Prepared, _Seen] = weakref.WeakKeyDictionary()


def note(prepared: Prepared, form: Form) -> None:
    """Keeps the form of a mask that the model needs, before its layers run."""
    _seen.setdefault(prepared, _Seen()).new.append(form)


def begin_layers(prepared: Prepared) -> None:
    """Makes the masks noted since the last first layer those of the layers that follow."""
    seen = _seen.setdefault(prepared, _Seen())
    if seen.new:
        seen.forms = tuple(seen.new)
        seen.new = []


def form_for(prepared: Prepared, kind: str, window: int | None) -> Form | None:
    """Returns the form of the mask that a layer of a kind has, if it is known."""
    forms = {form[:3]: form for form in _seen.setdefault(prepared, _Seen()).forms}
    same = [
        form
        for form in forms.values()
        if form.window == window and (form.chunk is not None) == (kind == "chunked")
    ]
    found = same or list(forms.values())
    return found[0] if len(found) == 1 else None


@functools.lru_cache(maxsize=8)
def _in_blocks(plan: _core.Plan, mask: int, rank: int) -> np.ndarray:
    """Returns whether each of a rank's tokens attends a later one, or is attended by an earlier."""
    change = np.zeros(plan.num_tokens + 1, dtype=np.int64)
    for q_begin, q_end, k_begin, k_end, low, high in plan.mask(mask).bands:
        least, most = (
            max(low if low is not None else 1, 1),
            plan.num_tokens if high is None else high,
        )
        if most < least:
            continue
        for begin, end in (
            (max(q_begin, k_begin - most), min(q_end, k_end - least)),
            (max(k_begin, q_begin + least), min(k_end, q_end + most)),
        ):
            if begin < end:
                change[begin] += 1
                change[end] -= 1
    return (np.cumsum(change[:-1]) > 0)[plan.local_tokens(rank)]


def check_blocks(prepared: Prepared, name: str, form: Form) -> None:
    """Raises unless the plan's mask lets the tokens of the model's blocks attend each other."""
    if form.blocks is None or name not in prepared.rules:
        return
    asked = (form.blocks[0] >= 0).cpu().numpy()
    plan, index = prepared.mask_of(name)
    planned = _in_blocks(plan, index, prepared.rank)
    if len(asked) != len(planned) or bool((asked != planned).any()):
        raise _core.InvalidArgument(
            f"mask '{name}': expected one in which the model's {int(asked.sum())} tokens of "
            "images, or of a prefix, on this rank attend both ways (blockwise_overlay), found one "
            f"with {int(planned.sum())}; image_masks makes the masks of a batch"
        )


def check_reach(
    prepared: Prepared, name: str, kind: str, window: int | None, is_causal: bool
) -> None:
    """Raises unless the plan's mask reaches as far back and ahead as a layer does."""
    joined = prepared.joined_branches[name]
    if joined is not None:
        raise _core.InvalidArgument(
            f"mask '{name}': expected branches that do not attend each other, as positions have "
            f"them, found token {joined} of one that attends token {joined - 1} of another; rules "
            "such as windows do not follow the branches of a tree (use(executor, "
            "check_masks=False) leaves masks to the plan)"
        )
    longest, offsets = prepared.longest_document, prepared.rules[name].offsets
    form = form_for(prepared, kind, window)
    if form is not None:
        is_causal = form.is_causal
        window = window or form.window or form.chunk
    back = min(longest, window or longest) - 1
    expected = (-back, 0 if is_causal else back)
    low, high = expected
    if form is not None and form.blocks is not None:
        low = min(offsets[0], low) if form.whole_blocks else low
        high = max(offsets[1], 0)
    if offsets != (low, high):
        rule = f"a window of {window}" if window else "causal" if is_causal else "full"
        both_ways = " both ways" if window and not is_causal else ""
        raise _core.InvalidArgument(
            f"mask '{name}': expected {rule}{both_ways}, as the layer, keys {expected[0]} to "
            f"{expected[1]} from the query; found {offsets[0]} to {offsets[1]} (use(executor, "
            "check_masks=False) leaves masks to the plan)"
        )


def check_sides(prepared: Prepared, sides: Sides) -> None:
    """Raises unless the plan has the masks of an encoder and a decoder, and these sides are its."""
    for name in ("encoder", "decoder", "cross"):
        if name not in prepared.mask_names:
            raise _core.InvalidArgument(
                "plan: expected one for masks.encoder_decoder, found masks "
                f"{', '.join(prepared.mask_names)}"
            )
        plan, index = prepared.mask_of(name)
        pairs = sides.pairs_of(name, plan.mask(index))
        if plan.mask(index).num_pairs != pairs:
            raise _core.InvalidArgument(
                f"mask '{name}': expected the {pairs} pairs of the sides, found "
                f"{plan.mask(index).num_pairs}"
            )
        sides.check_plan(plan, prepared.rank)
    if len(sides.target_rows) == 0 or len(sides.source_rows) == 0:
        raise _core.InvalidArgument(
            f"sides: expected sources and targets on every rank, found {len(sides.source_rows)} "
            f"and {len(sides.target_rows)} on rank {prepared.rank}; a smaller block_size spreads "
            "them"
        )


def check_encoder_reach(prepared: Prepared, sides: Sides, window: int | None) -> None:
    """Raises unless the plan's encoder mask reaches as many tokens to either side as a layer."""
    reach = sides.longest_source - 1 if window is None else min(window, sides.longest_source - 1)
    found = prepared.rules["encoder"].offsets
    if found != (-reach, reach):
        raise _core.InvalidArgument(
            f"mask 'encoder': expected {reach} tokens to either side, as the layer attends, found "
            f"keys {found[0]} to {found[1]} from the query (masks.encoder_decoder(…, window=…); "
            "use(executor, check_masks=False) leaves masks to the plan)"
        )
