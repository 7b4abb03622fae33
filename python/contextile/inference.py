"""Decoding over a cache of keys and values that ranks share by tokens.

>>> from contextile.inference import KvCache, KvLayout
>>> layout = KvLayout(num_ranks=4, page_size=16)
>>> cache = KvCache(layout=layout, num_pages=100)
>>> cache.add(1, [5, 6, 7])
0
>>> layout.owner(2), layout.local_length(0, 3)
(2, 1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from contextile import _core
from contextile._core import KvCache, KvLayout, decode_bytes

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Attended", "KvCache", "KvLayout", "attend", "decode_bytes"]


class Attended(NamedTuple):
    """Attention of a rank's query heads to the tokens of all ranks."""

    out: np.ndarray  # float32 [rows, heads of this rank, value_dim]
    lse: np.ndarray  # float32 [rows, heads of this rank], natural logarithm; -inf where a row sees nothing


def attend(
    transport: _core.Transport,
    *,
    layout: KvLayout,
    q: Any,
    k: Any,
    v: Any,
    requests: Sequence[tuple[Sequence[int], Sequence[Sequence[tuple[int, int]]]]],
    mode: str = "a2a",
    scale: float | None = None,
    softcap: float = 0.0,
    hop_b_groups: int = 1,
) -> Attended:
    """A decoding step's attention over ranks that share the tokens. Collective.

    Parameters
    ----------
    transport
        This rank's end of the group whose ranks hold the layout's tokens.
    q
        This rank's query heads; with ``q_replicated`` those of all ranks, by KV head.
    k, v
        This rank's pages, float32, bfloat16 or float16.
    requests
        In the order of their rows: a block table (``KvCache.table``), and for each query the ranges of the request's
        tokens that it sees, ascending and disjoint.
    mode
        ``ag_rs``, ``a2a`` or ``q_replicated``: how ranks come to it (``docs/inference.md``).
    scale
        Of scores; None: 1 / sqrt(head_dim).
    softcap
        c of c * tanh(s / c); 0: none.
    hop_b_groups
        Groups of requests: while outputs of one are on their way, the next one's attention is computed.

    Shapes
    ------
    q [rows, heads, head_dim], k [pages, page_size, kv_heads, head_dim], v [pages, page_size, kv_heads, value_dim]

    Raises
    ------
    InvalidArgument
        Arrays, tables and ranges that do not fit.
    TransportError
        A peer died or stalled.
    """
    import numpy as np

    rows, heads, head_dim = (int(n) for n in q.shape)
    if mode == "q_replicated":
        rank, size = transport.rank, transport.size
        heads = heads * (rank + 1) // size - heads * rank // size
    out = np.empty((rows, heads, int(v.shape[-1])), np.float32)
    lse = np.empty((rows, heads), np.float32)
    _core.attend_to_pages(
        transport, layout=layout, q=q, k=k, v=v, requests=[(list(table), [list(row) for row in rows]) for table, rows in requests],
        out=out, lse=lse, mode=mode, scale=head_dim**-0.5 if scale is None else scale, softcap=softcap,
        hop_b_groups=hop_b_groups,
    )  # fmt: skip
    return Attended(out, lse)
