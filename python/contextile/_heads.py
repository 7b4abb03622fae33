"""Masks that differ by query head, and plans for the groups of heads that share one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contextile import _core
from contextile._core import Mask, MaskSpec, Plan


@dataclasses.dataclass(frozen=True)
class HeadMasks:
    """A mask for every query head: ``masks.by_head`` makes it, ``contextile.plans`` plans it."""

    masks: tuple[Any, ...]

    def distinct(self) -> tuple[list[Any], list[int]]:
        """Returns the masks without repetitions, and the index of every head's mask among them."""
        found: list[Any] = []
        index = []
        for mask in self.masks:
            at = next(
                (i for i, other in enumerate(found) if type(other) is type(mask) and other == mask),
                len(found),
            )
            if at == len(found):
                found.append(mask)
            index.append(at)
        return found, index


class HeadGroup(NamedTuple):
    """Query heads that share a mask, and the KV heads that they read.

    Every KV head is read by equally many of these query heads.
    """

    plan: Plan
    mask: str  # its name in the plan
    q_heads: tuple[int, ...]
    kv_heads: tuple[int, ...]


class HeadPlans(NamedTuple):
    """The plans of a mask that differs by head: one for each group of heads."""

    groups: tuple[HeadGroup, ...]

    @property
    def plan(self) -> Plan:
        """The plan of the first group, which says where tokens are."""
        return self.groups[0].plan

    @property
    def heads(self) -> tuple[int, int]:
        """Numbers of query heads and of KV heads of all groups together."""
        return sum(len(group.q_heads) for group in self.groups), 1 + max(
            max(group.kv_heads) for group in self.groups
        )


def head_masks(masks: Sequence[Any]) -> HeadMasks:
    """Returns masks by head, with texts parsed. Raises InvalidArgument on anything but masks."""
    found = []
    for head, mask in enumerate(masks):
        if isinstance(mask, str):
            mask = _core.parse_mask_spec(mask)
        if not isinstance(mask, (MaskSpec, Mask)) and not callable(mask):
            raise _core.InvalidArgument(
                "by_head: expected a rule, its text, a Mask or a function of lengths for head "
                f"{head}, found {type(mask).__name__}"
            )
        found.append(mask)
    if not found:
        raise _core.InvalidArgument("by_head: expected a mask for every query head, found none")
    return HeadMasks(tuple(found))


class _Heads(NamedTuple):
    """A group of heads before it is planned."""

    mask: Any
    q_heads: list[int]
    kv_heads: list[int]


def _groups_of(name: str, masks: HeadMasks, heads: Any) -> list[_Heads]:
    """Groups query heads by mask, and by how many of a KV head's query heads share it."""
    q_heads, kv_heads = heads if isinstance(heads, (tuple, list)) else (heads, heads)
    if len(masks.masks) != q_heads or kv_heads < 1 or q_heads % kv_heads != 0:
        raise _core.InvalidArgument(
            f"mask '{name}': expected a mask for each of {q_heads} query heads, which {kv_heads} "
            f"KV heads divide, found {len(masks.masks)} masks"
        )
    distinct, index = masks.distinct()
    per_kv = q_heads // kv_heads
    groups: dict[tuple[int, int], _Heads] = {}
    for kv_head in range(kv_heads):
        own: dict[int, list[int]] = {}
        for head in range(kv_head * per_kv, (kv_head + 1) * per_kv):
            own.setdefault(index[head], []).append(head)
        for at, readers in own.items():
            group = groups.setdefault((at, len(readers)), _Heads(distinct[at], [], []))
            group.q_heads.extend(readers)
            group.kv_heads.append(kv_head)
    return list(groups.values())


class Expanded(NamedTuple):
    """Masks of which each is for all heads of its layers, and the groups of heads behind them."""

    masks: dict[str, Any]
    shapes: dict[str, Any]
    groups: dict[str, dict[str, _Heads]]  # by mask that differs by head, by name among `masks`

    def folded(self, plans: Mapping[str, Plan]) -> dict[str, Any]:
        """Returns plans by the names that were given; HeadPlans where a mask differs by head."""
        found: dict[str, Any] = {}
        of = {part: name for name, parts in self.groups.items() for part in parts}
        for part, plan in plans.items():
            name = of.get(part, part)
            if name in self.groups:
                parts = self.groups[name].items()
                found[name] = HeadPlans(
                    tuple(
                        HeadGroup(plans[p], p, tuple(heads.q_heads), tuple(heads.kv_heads))
                        for p, heads in parts
                    )
                )
            else:
                found[name] = plan
        return found


def expanded(
    masks: Mapping[str, Any], shapes: dict[str, Any], default_heads: tuple[int, int]
) -> Expanded:
    """Replaces every mask that differs by head by one for each group of its heads."""
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    groups: dict[str, dict[str, _Heads]] = {}
    for name, entry in masks.items():
        mask, layers = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, None)
        if not isinstance(mask, HeadMasks):
            found[name], origin[name] = entry, name
            continue
        given = shapes.get("heads", default_heads)
        parts = _groups_of(
            name, mask, given.get(name, default_heads) if isinstance(given, Mapping) else given
        )
        groups[name] = {f"{name}.{index}": part for index, part in enumerate(parts)}
        for part_name, part in groups[name].items():
            found[part_name], origin[part_name] = (
                (part.mask if layers is None else (part.mask, layers)),
                name,
            )
    if not groups:
        return Expanded(dict(masks), shapes, {})
    odd = [part for parts in groups.values() for part in parts if part in masks]
    if odd:
        raise _core.InvalidArgument(
            f"mask '{odd[0]}': expected another name, for a group of heads has it"
        )
    by_part = {key: dict(given) for key, given in shapes.items() if isinstance(given, Mapping)}
    for key, given in by_part.items():
        if set(given) == set(masks):  # otherwise the names are refused as they were given
            shapes = {**shapes, key: {part: given[name] for part, name in origin.items()}}
    sizes = {
        part: (len(own.q_heads), len(own.kv_heads))
        for parts in groups.values()
        for part, own in parts.items()
    }
    heads = shapes.get("heads", default_heads)
    shapes = {
        **shapes,
        "heads": {
            part: sizes.get(part) or (heads[part] if isinstance(heads, Mapping) else heads)
            for part in found
        },
    }
    return Expanded(found, shapes, groups)
