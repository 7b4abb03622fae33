"""Text and HTML of plans and comparisons, for terminals and notebooks."""

from __future__ import annotations

import html
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextile._core import Plan


def error_text(error: BaseException) -> str:
    """Returns an error and its place on one line: "KeyError: 'long' (masks.py:12, masks_of)"."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{text} ({frames[-1].filename}:{frames[-1].lineno}, {frames[-1].name})" if frames else text
    )


def _table_html(head: list[str], rows: list[list[str]]) -> str:
    def cells(tag: str, row: list[str]) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def _mb(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.4g}"


def _tiles_svg(plan: Plan) -> str:
    """Draws the tiles by device: queries down, keys across, one color per device."""
    tiles = plan.placed_tiles(limit=20_000)
    if tiles is None or not len(tiles):
        return ""
    size = 320.0
    scale = size / plan.num_tokens
    colours = [
        f"hsl({(360 * 0.618034 * d) % 360:.0f},60%,{55 if d % 2 else 45}%)"
        for d in range(plan.num_devices)
    ]
    parts = [
        f'<rect x="{k0 * scale:.2f}" y="{q0 * scale:.2f}" '
        f'width="{max((k1 - k0) * scale, 0.5):.2f}" '
        f'height="{max((q1 - q0) * scale, 0.5):.2f}" fill="{colours[device]}"/>'
        for q0, q1, k0, k1, device in tiles.tolist()
    ]
    return (
        f'<svg width="{size:.0f}" height="{size:.0f}" viewBox="0 0 {size:.0f} {size:.0f}" '
        'role="img" aria-label="tiles by device">'
        f'<rect width="100%" height="100%" fill="none" stroke="#888"/>{"".join(parts)}</svg>'
    )


def plan_html(plan: Plan) -> str:
    """Returns HTML of a plan: its facts, traffic, predicted times, and the tiles by device."""
    facts = [
        ["strategy", plan.strategy],
        ["batch", f"{plan.num_tokens} tokens, {len(plan.sequences)} documents"],
        ["devices", f"{plan.cluster_name}, {plan.nodes} x {plan.devices_per_node}"],
        ["masks", ", ".join(plan.mask_names)],
        ["digest", plan.digest],
    ]
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


# Times of one layer: with the linear layers of the fullest device, and of attention alone.
_COMPARISON_HEAD = [
    "strategy",
    "layer ms",
    "time ms",
    "x bound",
    "between nodes MB",
    "inside MB",
    "imbalance",
    "peak MB",
    "",
]


def _comparison_rows(rows: Iterable[Any]) -> list[list[str]]:
    table = []
    for row in rows:
        if not row.ok:
            blank = [""] * (len(_COMPARISON_HEAD) - 2)
            table.append([row.strategy, *blank, row.skipped or row.failed])
            continue
        directions = [
            part for part in (row.statistics.forward, row.statistics.backward) if part is not None
        ]
        bounds = [
            part.time_us for part in (row.forward_bound, row.backward_bound) if part is not None
        ]
        table.append(
            [
                row.strategy,
                f"{row.layer_us / 1e3:.4g}",
                f"{row.time_us / 1e3:.4g}",
                f"{row.time_us / sum(bounds):.3f}" if bounds and sum(bounds) > 0 else "",
                _mb(sum(part.inter_bytes for part in directions)),
                _mb(sum(part.intra_bytes for part in directions)),
                f"{100 * max(part.compute_imbalance for part in directions):.1f}%",
                _mb(max(part.peak_memory_bytes for part in directions)),
                "",
            ]
        )
    return table


def comparison_text(rows: Iterable[Any]) -> str:
    """Returns the rows of `compare` as a text table. The last column says why a row is empty."""
    table = [_COMPARISON_HEAD, *_comparison_rows(rows)]
    widths = [max(len(row[c]) for row in table) for c in range(len(_COMPARISON_HEAD) - 1)]
    lines = []
    for row in table:
        cells = [row[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True)
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def comparison_html(rows: Iterable[Any]) -> str:
    """Returns the rows of `compare` as an HTML table."""
    return _table_html(_COMPARISON_HEAD, _comparison_rows(rows))
