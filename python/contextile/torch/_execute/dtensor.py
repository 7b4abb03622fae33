"""Attention of ``DTensor`` whose heads are sharded over a mesh, as in tensor parallelism."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

import torch

from contextile import _core


def has_dtensors(*tensors: Any) -> bool:
    """Returns true if one of them is a DTensor. Loads nothing: without the class, none is."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(tensor, module.DTensor) for tensor in tensors)


def check_dtensors(q: Any, k: Any, v: Any, sink: Any, *, dim: int = -2) -> None:
    """Raises InvalidArgument unless all are DTensors and placed as the operators take them.

    ``dim`` is the dimension of heads in q, k and v.
    """
    from torch.distributed.tensor import DTensor

    given = {"q": q, "k": k, "v": v, **({} if sink is None else {"sink": sink})}
    plain = [name for name, tensor in given.items() if not isinstance(tensor, DTensor)]
    if plain:
        raise _core.InvalidArgument(
            f"attention: expected DTensors all over, for some are, found {', '.join(plain)} as "
            "plain tensors (DTensor.from_local)"
        )
    # Mesh, placements and shape in one have no public name.
    specs = {name: tensor._spec for name, tensor in given.items()}  # noqa: SLF001  # see above
    _check_specs(specs, dim)
    _register()


def num_sharers(tensor: Any) -> int:
    """Returns the number of ranks that share the heads of a tensor: 1 of a plain one."""
    if not has_dtensors(tensor):
        return 1
    count = 1
    # A loop, because compiled code takes no generators here.
    for dimension, placement in enumerate(tensor.placements):
        count *= tensor.device_mesh.size(dimension) if placement.is_shard() else 1
    return count


def check_heads_of_rank(found: tuple[int, int], expected: tuple[int, int], sharers: int) -> None:
    """Raises unless a plan's heads are those that a rank has of DTensors with these heads."""
    of_rank = found[0] // sharers, found[1] // sharers
    if of_rank != expected:
        raise _core.InvalidArgument(
            f"attention: expected a plan with the heads of one rank, heads={of_rank}, for "
            f"{sharers} ranks share the DTensors' heads {found}, found one with heads={expected}"
        )


def _check_specs(specs: Mapping[str, Any], dim: int = -2) -> None:
    """Raises unless heads alone are sharded, evenly, over the same mesh dimensions as q's."""
    from torch.distributed.tensor import Replicate, Shard

    q = specs["q"]
    for name, spec in specs.items():
        if spec.mesh != q.mesh:
            raise _core.InvalidArgument(
                f"{name}: expected a DTensor on q's {q.mesh}, found one on {spec.mesh}"
            )
        heads = dim % spec.ndim if name in "qkv" else 0  # the dimension of heads
        num_shares = 1
        for dimension, (found, of_q) in enumerate(zip(spec.placements, q.placements, strict=True)):
            if found not in (Shard(heads), Replicate()):
                raise _core.InvalidArgument(
                    f"{name}: expected a DTensor that is replicated or sharded by heads "
                    f"(Shard({heads})), found {found!r} over dimension {dimension} of the mesh"
                )
            if found.is_shard() != of_q.is_shard():
                raise _core.InvalidArgument(
                    f"{name}: expected heads over the same dimensions of the mesh as q's "
                    f"{q.placements}, found {spec.placements}"
                )
            num_shares *= spec.mesh.size(dimension) if found.is_shard() else 1
        if spec.shape[heads] % num_shares != 0:
            raise _core.InvalidArgument(
                f"{name}: expected heads that {num_shares} ranks share evenly, found "
                f"{spec.shape[heads]}"
            )


def register_if_loaded() -> None:
    """Tells DTensor about the operators if its class is loaded. Compiled calls need that before."""
    if "torch.distributed.tensor" in sys.modules:
        _register()


@functools.cache
def _register() -> None:
    """Tells DTensor how the operators of attention share heads. Done once in a process.

    Over each dimension of a mesh, either all heads are sharded, or everything is replicated. The
    outputs ``saved`` and ``made_by`` mean something only to the rank that wrote them. They count as
    replicated in both cases, so that they pass through as they are.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    whole, first, heads = Replicate(), Shard(0), Shard(1)

    def shardings(
        q: Any, k: Any, v: Any, sink: Any, plan: Any, mask: Any, saved_bytes: Any, *terms: Any
    ) -> list[Any]:
        _check_specs({"q": q, "k": k, "v": v, **({} if sink is None else {"sink": sink})})
        sharded, replicated = (None, None) if sink is None else (first, whole)
        unset = [None] * len(terms)
        return [
            # out, lse, saved, made_by from q, k, v, sink, three numbers and terms, which are unset
            (
                [heads, heads, whole, whole],
                [heads, heads, heads, sharded, None, None, None, *unset],
            ),
            ([whole] * 4, [whole, whole, whole, replicated, None, None, None, *unset]),
        ]

    def backward_shardings(
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        sink: Any,
        out: Any,
        lse: Any,
        saved: Any,
        made_by: Any,
        plan: Any,
        mask: Any,
        *terms: Any,
    ) -> list[Any]:
        sharded, replicated = (None, None) if sink is None else (first, whole)
        unset = [None] * len(terms)
        return [
            # dq, dk, dv, dsink, dtable from dout, q, k, v, sink, out, lse, saved, made_by, two
            # numbers and terms, which are unset
            (
                [heads, heads, heads, first, whole],
                [heads] * 4 + [sharded, heads, heads, whole, whole, None, None, *unset],
            ),
            ([whole] * 5, [whole] * 4 + [replicated] + [whole] * 4 + [None, None, *unset]),
        ]

    register_sharding(torch.ops.contextile.attention.default)(shardings)
    register_sharding(torch.ops.contextile.attention_backward.default)(backward_shardings)
