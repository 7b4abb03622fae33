"""Plans a batch for layers of unlike shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contextile import _checks, _core
from contextile._core import Cluster, Plan
from contextile._heads import HeadMasks, HeadPlans, expanded
from contextile._linear_layers import LinearLayers, linear_us_of
from contextile._planning import AnyMask, cluster_of, make_workload, plan

_DEFAULT_HEADS = (32, 8)  # as in make_workload
# The parts of an attention shape that layers of a model may differ in.
_OF_A_SHAPE = ("heads", "head_dim", "value_dim", "scale", "softcap", "sink")


def one_shape_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a workload with the shape of the first mask in place of dicts."""
    dicts = {
        key: next(iter(batch[key].values()), None)
        for key in _OF_A_SHAPE
        if isinstance(batch.get(key), Mapping)
    }
    return {
        key: value
        for key, value in {**batch, **dicts}.items()
        if key not in dicts or value is not None
    }


def _layers_of(entry: Any) -> int:
    is_pair = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], int)
    return entry[1] if is_pair else 1


def check_shapes(mask: Any, batch: Mapping[str, Any]) -> None:
    """Raises unless every dict of a batch has one entry for each mask."""
    masks = mask if isinstance(mask, Mapping) else {"": mask}
    for key in _OF_A_SHAPE:
        given = batch.get(key)
        if isinstance(given, Mapping) and set(given) != set(masks):
            raise _core.InvalidArgument(
                f"{key}: expected one for each of {', '.join(map(repr, masks))}, found "
                f"{', '.join(map(repr, given))}"
            )


def _groups_of(
    masks: Mapping[str, Any], shapes: dict[str, Any]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns groups of masks whose layers have one shape, each with that shape."""
    check_shapes(masks, shapes)
    groups: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name, entry in masks.items():
        own = {
            key: given[name] if isinstance(given, Mapping) else given
            for key, given in shapes.items()
        }
        shape = {key: value for key, value in own.items() if value is not None}
        group = next((group for group, other in groups if other == shape), None)
        if group is None:
            groups.append(({name: entry}, shape))
        else:
            group[name] = entry
    return groups


def _heads_of(given: Any) -> tuple[int, int]:
    """Returns the numbers of query heads and KV heads of a layer."""
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2
    q_heads, kv_heads = given if is_pair else (given, given)
    return _checks.count("q_heads", q_heads, 1), _checks.count("kv_heads", kv_heads, 1)


def _linear_us_of(given: LinearLayers | None, heads: Any, cluster: Cluster) -> float | None:
    """Returns the time of a token outside attention, for the heads of whole layers.

    The groups of heads of a layer have plans of their own, but the layer is computed on one rank.
    """
    by_mask = list(heads.values()) if isinstance(heads, Mapping) else [heads]
    pairs = [_heads_of(_DEFAULT_HEADS if one is None else one) for one in by_mask]
    times = {linear_us_of(given, *pair, cluster) for pair in pairs or [_DEFAULT_HEADS]}
    if len(times) > 1:
        raise _core.InvalidArgument(
            f"linear_layers: expected microseconds, because layers differ in query heads, found "
            f"{given!r:.80} for {', '.join(str(q_heads) for q_heads, _ in pairs)} query heads"
        )
    return times.pop()


def _work_of(lengths: Any, group: dict[str, Any], shape: dict[str, Any]) -> float:
    """Returns the forward work of all layers of a group, up to a constant."""
    batch = make_workload(lengths, mask=group, **shape)
    pairs = sum(
        _layers_of(entry) * batch.mask(index).num_pairs
        for index, entry in enumerate(group.values())
    )
    return pairs * batch.shape.q_heads * (batch.shape.head_dim + batch.shape.value_dim)


def _home_of(first: Plan) -> list[tuple[int, int, int]]:
    """Returns the placement of a plan as ascending rows (begin, end, rank)."""
    joined: list[tuple[int, int, int]] = []
    rows = [
        (begin, end, rank)
        for rank in range(first.num_devices)
        for begin, end in first.local_ranges(rank)
    ]
    for begin, end, rank in sorted(rows):
        if joined and joined[-1][1:] == (begin, rank):
            begin = joined.pop()[0]
        joined.append((begin, end, rank))
    return joined


def _positions_of(plan: Plan) -> list[list[int]]:
    """Returns the parts of a plan's documents in which positions count on."""
    joined: list[list[int]] = []
    for begin, end, document, first, _ in plan.position_segments:
        if joined and joined[-1][2] == document and joined[-1][3] + begin - joined[-1][0] == first:
            joined[-1][1] = end
        else:
            joined.append([begin, end, document, first])
    return joined


def check_placement(first: Plan, other: Plan, name: str) -> None:
    """Raises unless two plans hold the same tokens on every rank, in the same order."""
    ranks = range(first.num_devices) if first.slice_of is None else [first.slice_of]
    is_same = all(
        getattr(first, name) == getattr(other, name)
        for name in ("num_devices", "slice_of", "sequences")
    )
    is_same = is_same and _positions_of(first) == _positions_of(other)
    for rank in ranks if is_same else ():
        own, found = first.local_tokens(rank), other.local_tokens(rank)
        is_same = is_same and len(own) == len(found) and bool((own == found).all())
    if not is_same:
        raise _core.InvalidArgument(
            f"plan '{name}': expected the placement of the first plan, the same tokens on every "
            f"rank in the same order, found another (strategy {other.strategy})"
        )


def plans(
    lengths: Any,
    *,
    cluster: Cluster | str,
    mask: AnyMask | HeadMasks = "causal",
    home: Any = None,
    linear_layers: LinearLayers | None = None,
    **batch: Any,
) -> dict[str, Plan | HeadPlans]:
    """Plans a batch for a model whose layers have unlike shapes: one plan for each shape.

    Heads of a layer that have masks of their own (``masks.by_head``) count as layers. All plans
    have one placement of tokens, that of the layers with the most work. Pass the result to
    ``contextile.torch.Executor.prepare``.

    Parameters
    ----------
    lengths, cluster, home
        As for ``plan``, without a workload.
    mask
        As for ``plan``: masks by name. Each may differ by head.
    linear_layers : float, str or path, optional
        As for ``plan``: the time of a token in a whole layer, with all its heads.
    **batch
        The other arguments of ``plan``. Of ``heads``, ``head_dim``, ``value_dim``, ``scale``,
        ``softcap`` and ``sink``, each is one for all masks, or a dict with one for each.

    Returns
    -------
    dict of Plan or HeadPlans
        The plan of every mask, by its name. Masks of one shape have one plan. Of a mask that
        differs by head, the plans of its groups of heads; one without a name is called ``by_head``.

    Raises
    ------
    InvalidArgument
        As ``plan`` does; also if a dict has other names than the masks, if there are more or fewer
        masks by head than heads, if the strategy does not keep the placement of another plan
        (``wlb``), or if ``linear_layers`` is a model and layers differ in query heads.

    Examples
    --------
    >>> import contextile as ct
    >>> plans = ct.plans([900, 124], mask={"full": "causal", "sliding": "sliding_window:100"},
    ...                  heads=(8, 4), head_dim={"full": 64, "sliding": 32}, cluster="local:1x2",
    ...                  strategy="dcp")
    >>> plans["full"].shape.head_dim, plans["sliding"].shape.head_dim
    (64, 32)
    """
    the_cluster = cluster_of(cluster)
    masks: Any = {"by_head": mask} if isinstance(mask, HeadMasks) else mask
    given = {key: batch.pop(key) for key in _OF_A_SHAPE if batch.get(key) is not None}
    if linear_layers is not None:
        heads_given = given.get("heads", _DEFAULT_HEADS)
        batch["linear_layers"] = _linear_us_of(linear_layers, heads_given, the_cluster)
    are_named = isinstance(masks, Mapping)
    heads = expanded(dict(masks) if are_named else {"": masks}, given, _DEFAULT_HEADS)
    groups = _groups_of(heads.masks, heads.shapes)
    by_name: dict[str, Plan] = {}
    if len(groups) > 1:
        groups.sort(key=lambda pair: -_work_of(lengths, *pair))
    for group, shape in groups:
        one_mask: Any = group if are_named else masks
        one = plan(lengths, cluster=the_cluster, mask=one_mask, home=home, **shape, **batch)
        if by_name:
            check_placement(next(iter(by_name.values())), one, next(iter(group)))
        elif len(groups) > 1:
            home = _home_of(one)
            for alignment in ("tokens_multiple", "equal_tokens"):  # that home has it
                batch.pop(alignment, None)
        by_name.update(dict.fromkeys(one.mask_names, one))
    # The masks keep the order in which they were given.
    return heads.folded({name: by_name[name] for name in heads.masks} if are_named else by_name)
