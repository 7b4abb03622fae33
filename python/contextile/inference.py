"""Decodes over a cache of keys and values that ranks share by tokens.

>>> from contextile.inference import KvCache, KvLayout
>>> layout = KvLayout(num_ranks=4, page_size=16)
>>> cache = KvCache(layout=layout, num_pages=100)
>>> cache.add(1, [5, 6, 7])
0
>>> layout.owner(2), layout.local_length(0, 3)
(2, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from contextile import _core
from contextile._core import KvCache, KvLayout, decode_bytes

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Attended", "KvCache", "KvLayout", "attend", "decode_bytes"]


class Attended(NamedTuple):
    """The result of ``attend``.

    Attributes
    ----------
    out : float32 array [rows, heads of this rank, value_dim]
        Attention to the tokens of all ranks.
    lse : float32 array [rows, heads of this rank]
        Natural logarithm of the sum of exponentials; -inf for rows that see nothing.
    """

    out: np.ndarray
    lse: np.ndarray


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
    """Computes the attention of a decoding step over ranks that share the tokens.

    Collective: every rank calls it with the same requests.

    Parameters
    ----------
    transport : Transport
        This rank's end of the group whose ranks hold the layout's tokens. A CPU transport.
    layout : KvLayout
        The tokens that each rank holds.
    q : float32 array [rows, heads, head_dim]
        This rank's query heads; in the mode ``q_replicated`` those of all ranks, ordered by KV
        head.
    k : array [pages, page_size, kv_heads, head_dim]
    v : array [pages, page_size, kv_heads, value_dim]
        This rank's pages in float32, bfloat16 or float16.
    requests : sequence of (table, rows)
        In the order of their rows. A request has its block table (``KvCache.table``) and, for each
        of its queries, the ascending and disjoint ranges of the request's tokens that the query
        sees.
    mode : str
        ``"ag_rs"``, ``"a2a"`` or ``"q_replicated"``: the way ranks exchange queries and results.
    scale : float, optional
        Factor of the scores. Default: 1 / sqrt(head_dim).
    softcap : float
        The c of c * tanh(s / c). 0 means no softcap.
    hop_b_groups : int
        Number of groups of requests. While the outputs of one group move, attention of the next is
        computed.

    Returns
    -------
    Attended

    Raises
    ------
    InvalidArgument
        Arrays, tables or ranges do not fit.
    TransportError
        A peer died or stalled.

    Examples
    --------
    >>> import contextile as ct
    >>> import numpy as np
    >>> from contextile.inference import KvLayout, attend
    >>> q = np.ones((1, 2, 8), np.float32)                     # one row, two heads
    >>> pages = np.ones((3, 16, 2, 8), np.float32)             # three pages of 16 tokens
    >>> requests = [([0, 2], [[(0, 20)]])]                     # 20 tokens on pages 0 and 2
    >>> attended = attend(ct.inproc_group(1)[0], layout=KvLayout(page_size=16), q=q, k=pages,
    ...                   v=pages, requests=requests)
    >>> attended.out.shape
    (1, 2, 8)
    """
    import numpy as np

    rows, heads, head_dim = (int(n) for n in q.shape)
    if mode == "q_replicated":
        rank, size = transport.rank, transport.size
        heads = heads * (rank + 1) // size - heads * rank // size
    out = np.empty((rows, heads, int(v.shape[-1])), np.float32)
    lse = np.empty((rows, heads), np.float32)
    _core.attend_to_pages(
        transport,
        layout=layout,
        q=q,
        k=k,
        v=v,
        requests=[(list(table), [list(row) for row in rows]) for table, rows in requests],
        out=out,
        lse=lse,
        mode=mode,
        scale=head_dim**-0.5 if scale is None else scale,
        softcap=softcap,
        hop_b_groups=hop_b_groups,
    )
    return Attended(out, lse)
