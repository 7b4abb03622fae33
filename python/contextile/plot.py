"""Draws plans with matplotlib: tiles by device, timelines, and comparisons of strategies.

>>> import contextile as ct
>>> plan = ct.plan([700, 260, 64], cluster="local:2x2", strategy="dcp", block_size=64)
>>> axes = ct.plot.tiles(plan)
>>> axes.get_xlabel()
'key (token)'

Every function draws into the axes it is given, or into a new figure, and returns the axes. Nothing
is shown or saved: call ``axes.figure.savefig``. Most color-blind people can distinguish the
colors. Activities have the colors of the report. Needs ``contextile[plot]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from contextile import _core
from contextile._planning import Comparisons, cluster_of
from contextile._tile_grid import has_composite_blocks, owners_of_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["compare", "device_colours", "loads", "tiles", "timeline"]

ACTIVITY_COLOURS = {
    "attention": "#2f7fd0",
    "merge": "#b56fb0",
    "launch": "#d99a00",
    "exposed": "#e06a3a",
}
MESSAGE_COLOURS = {"sent": "#0f9d77", "received": "#57b6e3"}
DIRECTION_COLOURS = {"forward": "#2f7fd0", "backward": "#d99a00"}
_ACTIVITY_NAMES = {
    "attention": "attention",
    "merge": "merging, copying",
    "launch": "launching",
    "exposed": "waiting",
}
# Colors of Okabe and Ito, without black and yellow. More devices have shades of viridis.
_FEW_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#444444",
    "#a08000",
)
_EMPTY = "#fbfbfc"
_LINE = "#8d96a1"
_MOST_IN_LEGEND = 16
_GRID = 512  # cells per side if there are too many tiles to draw each
_FINE_GRID = 1024  # cells per side if blocks have several ranges
# Top and height of each lane in a row of height 1.
_LANES = {"activity": (-0.42, 0.52), "sent": (0.14, 0.12), "received": (0.28, 0.12)}


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "contextile.plot: expected matplotlib (pip install 'contextile[plot]'), found none"
        ) from error
    return matplotlib


def _new_axes(ax: Any, width: float, height: float, columns: int = 1) -> Any:
    """Returns the given axes, or those of a new figure."""
    _matplotlib()
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), layout="constrained")[1]


def _legend_beside(ax: Any, **handles: Any) -> None:
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8, **handles)


def device_colours(num_devices: int) -> list[str]:
    """Returns a color for every device as #rrggbb.

    Up to eight devices have distinct colors; of more, neighbors look alike.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.plot.device_colours(2)
    ['#0072b2', '#d55e00']
    """
    if num_devices <= len(_FEW_COLOURS):
        return list(_FEW_COLOURS[:num_devices])
    matplotlib = _matplotlib()
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 1, num_devices))
    return [matplotlib.colors.to_hex(shade) for shade in shades]


def _index_of_mask(plan: _core.Plan, mask: str | int | None) -> int:
    names = plan.mask_names
    if mask is None and len(names) == 1:
        return 0
    if isinstance(mask, int) and 0 <= mask < len(names):
        return mask
    if mask not in names:
        raise _core.InvalidArgument(
            f"mask: expected one of the plan's ({', '.join(names)}), found {mask!r}"
        )
    return names.index(mask)


def _check_direction(plan: _core.Plan, direction: str) -> None:
    if direction not in ("forward", "backward"):
        raise _core.InvalidArgument(f"direction: expected forward or backward, found '{direction}'")
    if direction == "backward" and not plan.has_backward:
        raise _core.InvalidArgument(
            "direction: expected forward, for the plan has no backward; found backward"
        )


# -----------------------------------------------------------------------------------------------
# tiles

# Rows and columns of a rectangle (query begin, end; key begin, end), and bounds of key - query.
_Band = tuple[int, int, int, int, int | None, int | None]


def _clipped(
    corners: list[tuple[float, float]], side: float, bound: float
) -> list[tuple[float, float]]:
    """Returns the part of a convex polygon of (key, query) with side · (key - query) <= bound."""
    found = []
    for (k0, q0), (k1, q1) in zip(corners, corners[1:] + corners[:1], strict=True):
        a, b = side * (k0 - q0) - bound, side * (k1 - q1) - bound
        if a <= 0:
            found.append((k0, q0))
        if a * b < 0:
            share = a / (a - b)
            found.append((k0 + share * (k1 - k0), q0 + share * (q1 - q0)))
    return found


def _outline(band: _Band) -> list[tuple[float, float]]:
    """Returns the clipped rectangle around all pairs of a band, each a square of side 1."""
    q0, q1, k0, k1, low, high = band
    corners: list[tuple[float, float]] = [
        (k0, q0),
        (k1, q0),
        (k1, q1),
        (k0, q1),
    ]
    if high is not None:
        corners = _clipped(corners, 1, high + 1)
    if low is not None:
        corners = _clipped(corners, -1, 1 - low)
    return corners


def _draw_rectangles(ax: Axes, rows: np.ndarray, colours: list[str], boundaries: bool) -> None:
    from matplotlib.collections import PolyCollection

    # Hulls of a slice's blocks may cover others, so larger ones are drawn first.
    rows = rows[np.argsort(-(rows[:, 1] - rows[:, 0]) * (rows[:, 3] - rows[:, 2]), kind="stable")]
    q0, q1, k0, k1, device = rows.T
    corners: Any = np.stack(
        [np.stack(x, axis=1) for x in ((k0, q0), (k1, q0), (k1, q1), (k0, q1))], axis=1
    )
    edge = {"edgecolors": "white", "linewidths": 0.4} if boundaries else {"linewidths": 0}
    ax.add_collection(
        PolyCollection(corners, facecolors=[colours[d] for d in device], label="tiles", **edge)
    )


def _owners_of_cells(rows: np.ndarray, num_tokens: int, cells: int) -> np.ndarray:
    """Returns the device that computes most of each grid cell, by area of tiles; -1 for none."""
    size = num_tokens / cells
    q0, q1, k0, k1, device = rows.T
    first_q, first_k = (q0 // size).astype(np.int64), (k0 // size).astype(np.int64)
    rows_of, columns_of = (
        (np.ceil(q1 / size).astype(np.int64) - first_q),
        (np.ceil(k1 / size).astype(np.int64) - first_k),
    )
    count = rows_of * columns_of
    tile = np.repeat(np.arange(len(rows)), count)
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    q, k = first_q[tile] + place // columns_of[tile], first_k[tile] + place % columns_of[tile]
    height = np.minimum(q1[tile], (q + 1) * size) - np.maximum(q0[tile], q * size)
    width = np.minimum(k1[tile], (k + 1) * size) - np.maximum(k0[tile], k * size)
    inside = (q < cells) & (k < cells)
    key = ((q * cells + k) * (device.max() + 1) + device[tile])[inside]
    pairs, inverse = np.unique(key, return_inverse=True)
    area = np.bincount(inverse, weights=(height * width)[inside])
    cell, who = np.divmod(pairs, device.max() + 1)
    order = np.lexsort((area, cell))  # the largest area of a cell last
    owners = np.full(cells * cells, -1, dtype=np.int64)
    owners[cell[order]] = who[order]
    return owners.reshape(cells, cells)


def _draw_cells(ax: Axes, owners: np.ndarray, num_tokens: int, colours: list[str]) -> None:
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(colour) for colour in [*colours, _EMPTY]])
    ax.imshow(
        palette[owners],
        extent=(0, num_tokens, num_tokens, 0),
        interpolation="nearest",
        aspect="equal",
    )


def _device_legend(ax: Axes, colours: list[str]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    if len(colours) <= _MOST_IN_LEGEND:
        handles = [Patch(facecolor=colour, label=f"device {d}") for d, colour in enumerate(colours)]
        _legend_beside(ax, handles=handles)
        return
    edges = np.arange(len(colours) + 1) - 0.5
    scale = ScalarMappable(BoundaryNorm(edges, len(colours)), ListedColormap(colours))
    ax.figure.colorbar(
        scale,
        ax=ax,
        label="device",
        ticks=np.linspace(0, len(colours) - 1, 5).astype(int),
        shrink=0.8,
    )


def tiles(
    plan: _core.Plan,
    *,
    mask: str | int | None = None,
    direction: str = "forward",
    ax: Axes | None = None,
    max_tiles: int = 20_000,
) -> Axes:
    """Draws the device that computes each tile: queries down, keys to the right.

    A rectangle is the part of a tile of two blocks that the mask allows, in the color of its
    device. Black outlines the mask, and dotted lines mark where documents begin. If blocks have
    several ranges, as in zigzag, a grid of at most 1024 x 1024 cells shows the device of each
    cell's middle. If head groups are placed apart, the first one is drawn.

    Parameters
    ----------
    plan : Plan
        A plan, or a rank's slice. Of a slice, the rank's tiles are drawn without the mask, each as
        the hull of its blocks.
    mask : str or int, optional
        Name or index of one of the plan's masks. May be left out if the plan has only one.
    direction : str
        ``"forward"`` or ``"backward"``.
    ax : Axes, optional
        Axes to draw into. Default: those of a new figure.
    max_tiles : int
        Most tiles that are drawn one by one. If there are more, and blocks are single ranges, a
        grid of at most 512 x 512 cells shows the device that computes most of each cell.

    Returns
    -------
    Axes

    Raises
    ------
    InvalidArgument
        The plan has no such mask or direction, or more than 10 million tiles.
    ImportError
        There is no matplotlib.

    Examples
    --------
    >>> import contextile as ct
    >>> plan = ct.plan([700, 260, 64], cluster="local:2x2", strategy="dcp", block_size=64)
    >>> ct.plot.tiles(plan, direction="backward").get_ylabel()
    'query (token)'
    """
    _check_direction(plan, direction)
    index = _index_of_mask(plan, mask)
    rows = plan.placed_tiles(limit=10_000_000, mask=index, direction=direction)
    if rows is None:
        raise _core.InvalidArgument("plan: expected at most 10 million tiles, found more")
    ax = _new_axes(ax, 6.4, 5.4)
    num_tokens, colours = plan.num_tokens, device_colours(plan.num_devices)
    ax.set_facecolor(_EMPTY)
    bands = plan.mask(index).bands if plan.slice_of is None else []
    is_composite = plan.slice_of is None and has_composite_blocks(rows)
    is_whole = is_composite or len(rows) <= max_tiles
    if is_composite:
        owners = owners_of_grid(plan, rows, min(_FINE_GRID, num_tokens), index)
        _draw_cells(ax, owners, num_tokens, colours)
    elif is_whole:
        _draw_rectangles(ax, rows, colours, len(rows) <= 2000)
    else:
        owners = _owners_of_cells(rows, num_tokens, min(_GRID, num_tokens))
        _draw_cells(ax, owners, num_tokens, colours)
    if is_whole:
        _draw_mask(ax, bands)
    _clip_to_mask(ax, bands)
    _draw_documents(ax, plan.sequences, num_tokens)
    ax.set(
        xlim=(0, num_tokens),
        ylim=(num_tokens, 0),
        aspect="equal",
        xlabel="key (token)",
        ylabel="query (token)",
    )
    aggregated = "" if is_whole else f"; of {len(rows)} tiles, cells by who computes most"
    ax.set_title(f"{plan.strategy}: {plan.mask_names[index]}, {direction}{aggregated}", fontsize=10)
    _device_legend(ax, colours)
    return ax


def _clip_to_mask(ax: Axes, bands: Sequence[_Band]) -> None:
    """Hides the parts of tiles and cells outside the mask."""
    from matplotlib.path import Path

    outlines = [corners for corners in map(_outline, bands) if len(corners) > 2]
    if not outlines:
        return
    paths = [Path([*corners, corners[0]], closed=True) for corners in outlines]
    mask = Path.make_compound_path(*paths)
    for one in [*ax.images, *(c for c in ax.collections if c.get_label() == "tiles")]:
        one.set_clip_path(mask, ax.transData)


def _draw_mask(ax: Axes, bands: Sequence[_Band]) -> None:
    from matplotlib.collections import PolyCollection

    outlines = [corners for corners in map(_outline, bands) if len(corners) > 2]
    ax.add_collection(
        PolyCollection(
            outlines, facecolors="none", edgecolors="black", linewidths=0.8, label="mask"
        )
    )


def _draw_documents(ax: Axes, sequences: list[tuple[int, int]], num_tokens: int) -> None:
    """Draws a line where each document but the first begins, unless there are over 200."""
    from matplotlib.collections import LineCollection

    begins = [begin for begin, _ in sequences[1:]] if len(sequences) <= 200 else []
    lines = [
        line for b in begins for line in (((0, b), (num_tokens, b)), ((b, 0), (b, num_tokens)))
    ]
    ax.add_collection(
        LineCollection(lines, colors=_LINE, linewidths=0.6, linestyles="dotted", label="documents")
    )


# --------------------------------------------------------------------------------------------
# timeline


def _simulated(
    what: _core.Plan | _core.Simulation, cluster: _core.Cluster | str | None
) -> _core.Simulation:
    if isinstance(what, _core.Plan):
        return what.simulate(None if cluster is None else cluster_of(cluster), timeline=True)
    if what.forward is None or not any(program.activities for program in what.forward.programs):
        raise _core.InvalidArgument(
            "simulation: expected one with spans (plan.simulate(timeline=True)), found none"
        )
    return what


def _boxes(spans: np.ndarray, lane: str) -> np.ndarray:
    """Returns spans (row, start, end) as rectangles of a lane."""
    top, height = _LANES[lane]
    row, start, end = spans.T
    y0, y1 = row + top, row + top + height
    return np.stack(
        [np.stack(x, axis=1) for x in ((start, y0), (end, y0), (end, y1), (start, y1))], axis=1
    )


def _spans_of(directions: list[Any]) -> dict[str, np.ndarray]:
    """Returns rows (device, start, end) in ms by activity, and for "sent" and "received" messages.

    Every program begins when the previous one ends.
    """
    found: dict[str, list[tuple[float, float, float]]] = {
        name: [] for name in [*ACTIVITY_COLOURS, *MESSAGE_COLOURS]
    }
    begin = 0.0
    for direction in directions:
        for program in direction.programs:
            for device, activity, _, start, end in program.activities:
                found[activity].append((device, (begin + start) / 1e3, (begin + end) / 1e3))
            for src, dst, _, start, end in program.messages:
                found["sent"].append((src, (begin + start) / 1e3, (begin + end) / 1e3))
                found["received"].append((dst, (begin + start) / 1e3, (begin + end) / 1e3))
            begin += program.time_us
    return {name: np.array(rows, dtype=float).reshape(-1, 3) for name, rows in found.items()}


def timeline(
    what: _core.Plan | _core.Simulation,
    *,
    cluster: _core.Cluster | str | None = None,
    direction: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws every device over the simulated time of one layer, forward and then backward.

    Each device has a row. Its thick lane is the device's program: attention, merging and copying,
    launching transfers, and waiting for them (exposed communication). The thin lanes are messages
    that it sends and receives. Blank means that it is done and others are not.

    Parameters
    ----------
    what : Plan or Simulation
        A plan, which is simulated, or the result of ``plan.simulate(timeline=True)``.
    cluster : Cluster or str, optional
        The cluster to simulate a plan on. Default: the one it was planned for.
    direction : str, optional
        ``"forward"`` or ``"backward"``. Default: both, one after the other.
    ax : Axes, optional
        Axes to draw into. Default: those of a new figure.

    Returns
    -------
    Axes

    Raises
    ------
    InvalidArgument
        The simulation has no spans or no such direction, or the cluster does not fit.
    ImportError
        There is no matplotlib.

    Examples
    --------
    >>> import contextile as ct
    >>> plan = ct.plan([700, 324], cluster="local:2x2", strategy="dcp", block_size=64)
    >>> ct.plot.timeline(plan, cluster="dgx-h200:2x2").get_xlabel()
    'time (ms)'
    """
    simulation = _simulated(what, cluster)
    names = [direction] if direction is not None else ["forward", "backward"]
    simulated = {name: getattr(simulation, name, None) for name in names}
    if direction is not None and simulated[direction] is None:
        raise _core.InvalidArgument(
            f"direction: expected one of the simulation's, found '{direction}'"
        )
    directions: dict[str, Any] = {name: one for name, one in simulated.items() if one is not None}
    num_devices = len(next(iter(directions.values())).devices)
    ax = _new_axes(ax, 10.0, min(12.0, 1.6 + 0.35 * num_devices))
    _draw_spans(ax, _spans_of(list(directions.values())))
    end = 0.0
    for name, one in directions.items():
        if end > 0:
            ax.axvline(end / 1e3, color=_LINE, linewidth=0.8)
        ax.text(end / 1e3, -0.55, f" {name}", fontsize=8, color="#5c6570", va="bottom")
        end += one.time_us
    ax.set(
        xlim=(0, max(end / 1e3, 1e-9)),
        ylim=(num_devices - 0.5, -0.5),
        xlabel="time (ms)",
        ylabel="device",
    )
    locator: Any = ax.yaxis.get_major_locator()
    locator.set_params(integer=True)
    _legend_beside(ax)
    return ax


def _draw_spans(ax: Axes, spans: dict[str, np.ndarray]) -> None:
    from matplotlib.collections import PolyCollection

    for name, rows in spans.items():
        is_message = name in MESSAGE_COLOURS
        colour = MESSAGE_COLOURS[name] if is_message else ACTIVITY_COLOURS[name]
        boxes: Any = _boxes(rows, name if is_message else "activity")
        label = f"{name} messages" if is_message else _ACTIVITY_NAMES[name]
        ax.add_collection(
            PolyCollection(boxes, facecolors=colour, linewidths=0, label=label, gid=name)
        )


# --------------------------------------------------------------------------------- strategies,
# devices


def compare(rows: Comparisons | Sequence[Any], *, ax: Axes | None = None) -> Axes:
    """Draws the predicted time of one layer's attention under every strategy.

    A line is its lower bound.

    Parameters
    ----------
    rows : Comparisons
        The result of ``contextile.compare``. Bars are in its order. The title names strategies that
        do not apply or failed.
    ax : Axes, optional
        Axes to draw into. Default: those of a new figure.

    Returns
    -------
    Axes

    Raises
    ------
    InvalidArgument
        No strategy applies.
    ImportError
        There is no matplotlib.

    Examples
    --------
    >>> import contextile as ct
    >>> rows = ct.compare([5000, 3192], cluster="dgx-h200:1x4", strategies="zigzag,dcp")
    >>> axes = ct.plot.compare(rows)
    """
    shown = [row for row in rows if row.ok]
    if not shown:
        raise _core.InvalidArgument("comparison: expected a strategy that applies, found none")
    ax = _new_axes(ax, max(4.8, 1.2 + 0.8 * len(shown)), 4.0)
    places = np.arange(len(shown))
    below = np.zeros(len(shown))
    for name, colour in DIRECTION_COLOURS.items():
        times = [getattr(row.simulation, name) for row in shown]
        if any(times):
            heights = np.array([0.0 if one is None else one.time_us / 1e3 for one in times])
            ax.bar(places, heights, 0.7, bottom=below, color=colour, label=name)
            below += heights
    bounds = [
        sum(one.time_us for one in (row.forward_bound, row.backward_bound) if one is not None) / 1e3
        for row in shown
    ]
    ax.hlines(
        bounds, places - 0.4, places + 0.4, colors="black", linewidths=1.5, label="lower bound"
    )
    ax.set_xticks(places, [row.strategy for row in shown], rotation=30, ha="right")
    ax.set_ylabel("predicted time of one layer (ms)")
    left_out = [row.strategy for row in rows if not row.ok]
    ax.set_title(f"without {', '.join(left_out)}" if left_out else "", fontsize=9)
    ax.legend(frameon=False, fontsize=8)
    return ax


def _bars_of_bytes(ax: Axes, devices: list[Any]) -> None:
    """Draws bytes sent upwards and received downwards, solid between nodes and pale inside."""
    places = np.arange(len(devices))
    for name, sign in (("sent", 1), ("received", -1)):
        inter = np.array([getattr(device, f"inter_{name}_bytes") for device in devices]) / 1e6
        whole = np.array([getattr(device, f"{name}_bytes") for device in devices]) / 1e6
        colour = MESSAGE_COLOURS[name]
        ax.bar(places, sign * inter, 0.8, color=colour, label=f"{name}, between nodes")
        ax.bar(
            places,
            sign * (whole - inter),
            0.8,
            bottom=sign * inter,
            color=colour,
            alpha=0.45,
            label=f"{name}, inside",
        )
    ax.axhline(0, color="black", linewidth=0.8)
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    ax.set(xlabel="device", ylabel="received ↓, sent ↑ (MB)")


def loads(
    plan: _core.Plan, *, direction: str = "forward", ax: Sequence[Axes] | None = None
) -> tuple[Axes, Axes]:
    """Draws each device's attention work and traffic for one layer of every mask.

    Both are counted from the plan. A line marks the mean work.

    Parameters
    ----------
    plan : Plan
        A whole plan.
    direction : str
        ``"forward"`` or ``"backward"``.
    ax : two Axes, optional
        Axes to draw into. Default: those of a new figure.

    Returns
    -------
    (Axes, Axes)
        Work in GFLOP, and megabytes sent and received.

    Raises
    ------
    InvalidArgument
        The plan has no such direction, or is a slice.
    ImportError
        There is no matplotlib.

    Examples
    --------
    >>> import contextile as ct
    >>> plan = ct.plan([700, 324], cluster="local:2x2", strategy="dcp", block_size=64)
    >>> work, traffic = ct.plot.loads(plan)
    """
    _check_direction(plan, direction)
    if plan.slice_of is not None:
        raise _core.InvalidArgument(
            f"plan: expected a whole plan, found the slice of rank {plan.slice_of}"
        )
    devices = getattr(plan.stats(), direction).devices
    compute, traffic = _new_axes(ax, 10.5, 3.4, 2)
    gflop = np.array([device.flops for device in devices]) / 1e9
    compute.bar(np.arange(len(devices)), gflop, 0.8, color=device_colours(len(devices)))
    compute.axhline(gflop.mean(), color="black", linewidth=1, linestyle="dashed", label="mean")
    compute.set(xlabel="device", ylabel="attention work (GFLOP)")
    _bars_of_bytes(traffic, devices)
    for one in (compute, traffic):
        one.xaxis.get_major_locator().set_params(integer=True)
    compute.legend(frameon=False, fontsize=8)
    _legend_beside(traffic)
    compute.set_title(f"{plan.strategy}, {direction}", fontsize=10)
    return compute, traffic
