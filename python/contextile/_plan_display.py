"""Text and HTML of a plan, for terminals and notebooks: its predicted time next to zigzag's."""

from __future__ import annotations

import base64
import colorsys
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from contextile import _core, _planning
from contextile._display import _mb, _table_html
from contextile._tile_grid import owners_of_grid

if TYPE_CHECKING:
    from contextile._core import Plan

_MOST_TILES = 200_000  # of a picture; more are left out
_MOST_PNG_BYTES = 10_000
_SIDE = 320


def _colour_of(device: int) -> bytes:
    """Returns the red, green and blue of a device: hues far apart for neighbors."""
    shade = colorsys.hls_to_rgb((device * 0.618034) % 1, 0.55 if device % 2 else 0.45, 0.6)
    return bytes(round(255 * part) for part in shade)


def _png(owners: np.ndarray) -> bytes:
    """Returns a PNG with the colors of devices, transparent where there is none."""
    used, indices = np.unique(owners, return_inverse=True)
    colours = np.array(
        [[0, 0, 0, 0] if d < 0 else [*_colour_of(int(d)), 255] for d in used], dtype=np.uint8
    )
    pixels = colours[indices.reshape(owners.shape)]
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)

    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    height, width = owners.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines, 9))
        + chunk(b"IEND", b"")
    )


def _tiles_svg(plan: Plan) -> str:
    """Draws the device of each cell of a grid: queries down, keys across.

    The grid is as fine as ``_MOST_PNG_BYTES`` allows.
    """
    tiles = plan.placed_tiles(limit=_MOST_TILES)
    if tiles is None:
        return f"<p>No picture: the plan has more than {_MOST_TILES} tiles.</p>"
    if not len(tiles):
        return ""
    for cells in (_SIDE, _SIDE // 2, _SIDE // 4, _SIDE // 8):
        png = _png(owners_of_grid(plan, tiles, min(cells, plan.num_tokens)))
        if len(png) <= _MOST_PNG_BYTES:
            break
    image = base64.b64encode(png).decode()
    return (
        f'<svg width="{_SIDE}" height="{_SIDE}" viewBox="0 0 {_SIDE} {_SIDE}" '
        'role="img" aria-label="tiles by device">'
        '<rect width="100%" height="100%" fill="none" stroke="#888"/>'
        f'<image width="{_SIDE}" height="{_SIDE}" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{image}"/></svg>'
    )


def _times_ms(plan: Plan) -> tuple[float, float | None] | None:
    """Returns the predicted ms of a plan and of zigzag for the same batch.

    Times are of attention, one layer of every mask. Zigzag's partial results have the dtype of the
    original, as in comparisons. None if the plan knows no cluster; zigzag's time is None if it
    cannot plan the batch.
    """
    if plan.cluster is None or plan.slice_of is not None:
        return None
    own = plan.simulate().time_us / 1e3
    if plan.strategy == "zigzag":
        return own, None
    masks = {name: plan.mask(i) for i, name in enumerate(plan.mask_names)}
    shape = plan.shape
    try:
        workload = _planning.make_workload(
            [end - begin for begin, end in plan.sequences],
            mask=masks,
            heads=(shape.q_heads, shape.kv_heads),
            head_dim=shape.head_dim,
            value_dim=shape.value_dim,
            dtype=shape.dtype,
        )
        options = _planning.options_of(
            {"backward": plan.has_backward, "wire": "original"},
            shape=workload.shape,
            cluster=plan.cluster,
        )
        zigzag = _core.plan_batch(workload, plan.cluster, _planning.choice_of("zigzag"), options)
    except _core.InvalidArgument:
        return own, None
    return own, zigzag.simulate().time_us / 1e3


def _predicted_text(plan: Plan) -> str:
    """Returns "predicted 16.57 ms, 2.37 times as fast as zigzag"; empty without a prediction."""
    times = _times_ms(plan)
    if times is None:
        return ""
    own, zigzag = times
    text = f"predicted {own:.4g} ms"
    if plan.strategy == "zigzag" or not own:
        return text
    if zigzag is None:
        return f"{text}, zigzag cannot plan this batch"
    return f"{text}, {zigzag / own:.3g} times as fast as zigzag"


def plan_text(plan: Plan) -> str:
    """Returns the text of a plan: strategy, size, and the predicted time next to zigzag's.

    Each display simulates the plan and plans the batch by zigzag.
    """
    parts = [
        repr(plan.strategy),
        f"{plan.num_tokens} tokens",
        f"{len(plan.sequences)} documents",
        f"{plan.nodes} x {plan.devices_per_node} devices",
        _predicted_text(plan),
        f"digest {plan.digest}",
    ]
    return f"Plan({', '.join(part for part in parts if part)})"


def plan_html(plan: Plan) -> str:
    """Returns HTML of a plan: its facts, traffic, predicted times, and the tiles by device.

    It has at most 20 KB, unless names are long.
    """
    facts = [
        ["strategy", plan.strategy],
        ["one layer of attention", _predicted_text(plan)],
        ["batch", f"{plan.num_tokens} tokens, {len(plan.sequences)} documents"],
        ["devices", f"{plan.cluster_name}, {plan.nodes} x {plan.devices_per_node}"],
        ["masks", ", ".join(plan.mask_names)],
        ["digest", plan.digest],
    ]
    facts = [[name, fact] for name, fact in facts if fact]
    if plan.slice_of is not None:
        return _table_html(["plan", f"slice of rank {plan.slice_of}"], facts)
    stats = plan.stats()
    simulation = plan.simulate() if plan.cluster is not None else None
    rows = []
    for name in ("forward", "backward"):
        direction = getattr(stats, name)
        if direction is None:
            continue
        simulated = getattr(simulation, name, None)
        rows.append(
            [
                name,
                str(direction.tiles),
                _mb(direction.inter_bytes),
                _mb(direction.intra_bytes),
                f"{100 * direction.compute_imbalance:.1f}%",
                _mb(direction.peak_memory_bytes),
                "" if simulated is None else f"{simulated.time_us / 1e3:.4g}",
            ]
        )
    head = [
        "one layer",
        "tiles",
        "between nodes MB",
        "inside MB",
        "imbalance",
        "peak MB",
        "predicted ms",
    ]
    return _table_html(["plan", ""], facts) + _table_html(head, rows) + _tiles_svg(plan)
