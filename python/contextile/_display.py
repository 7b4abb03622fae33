"""Text and HTML of errors, tables and comparisons, for terminals and notebooks."""

from __future__ import annotations

import html
import traceback
from collections.abc import Iterable
from typing import Any


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
