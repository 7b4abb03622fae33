"""The device that computes each cell of a grid of queries and keys."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from contextile._core import Plan

_Ranges = list[tuple[int, int]]


def _hulls(tiles: np.ndarray) -> _Ranges:
    """Returns the hulls (begin, end) of all blocks of some tiles, by begin."""
    pairs = np.unique(np.concatenate([tiles[:, 0:2], tiles[:, 2:4]]), axis=0)
    return [(int(begin), int(end)) for begin, end in pairs]


def has_composite_blocks(tiles: np.ndarray) -> bool:
    """Returns whether the hulls of some blocks overlap, so that blocks have several ranges."""
    hulls = _hulls(tiles)
    return any(end > begin for (_, end), (begin, _) in itertools.pairwise(hulls))


def _block_ranges(plan: Plan, tiles: np.ndarray) -> list[_Ranges]:
    """Returns the ranges of each block; the blocks are those of hulls where these do not overlap.

    Blocks are disjoint, so the begin of its hull names a block.
    """
    if plan.slice_of is not None or not has_composite_blocks(tiles):
        return [[hull] for hull in _hulls(tiles)]
    rounds = json.loads(plan.to_json())["rounds"]
    return [
        [(int(begin), int(end)) for begin, end in block["ranges"]]
        for one in rounds
        for block in one["blocks"]
    ]


def _attended(plan: Plan, mask: int, at: np.ndarray) -> np.ndarray:
    """Returns whether the mask allows each pair (query, key) of the given tokens."""
    allowed = np.zeros((len(at), len(at)), dtype=bool)
    for q0, q1, k0, k1, low, high in plan.mask(mask).bands:
        rows = slice(*np.searchsorted(at, (q0, q1)))
        columns = slice(*np.searchsorted(at, (k0, k1)))
        distance = at[None, columns] - at[rows, None]
        inside = np.ones(distance.shape, dtype=bool)
        if low is not None:
            inside &= distance >= low
        if high is not None:
            inside &= distance <= high
        allowed[rows, columns] |= inside
    return allowed


def owners_of_grid(plan: Plan, tiles: np.ndarray, cells: int, mask: int = 0) -> np.ndarray:
    """Returns the device of each cell's middle, int64 [cells, cells], queries down; -1 for none.

    ``tiles`` are those of ``plan.placed_tiles`` for the mask. A cell whose middle the mask leaves
    out has no device. Exact if a cell is a token. Blocks of a slice are
    their hulls.
    """
    at = ((np.arange(cells) + 0.5) * plan.num_tokens / cells).astype(np.int64)
    blocks = _block_ranges(plan, tiles)
    begins = {min(begin for begin, _ in ranges): b for b, ranges in enumerate(blocks)}
    block_of_cell = np.full(cells, len(blocks))
    for b, ranges in enumerate(blocks):
        for begin, end in ranges:
            block_of_cell[slice(*np.searchsorted(at, (begin, end)))] = b
    device_of = np.full((len(blocks) + 1, len(blocks) + 1), -1, dtype=np.int64)
    q_blocks = [begins[begin] for begin in tiles[:, 0].tolist()]
    k_blocks = [begins[begin] for begin in tiles[:, 2].tolist()]
    device_of[q_blocks, k_blocks] = tiles[:, 4]
    owners: np.ndarray = device_of[block_of_cell[:, None], block_of_cell[None, :]]
    if plan.slice_of is None:
        owners[~_attended(plan, mask, at)] = -1
    return owners
