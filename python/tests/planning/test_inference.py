"""A cache that ranks share, and attention to it, compared with NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import contextile as ct
from contextile.inference import KvCache, KvLayout, attend, decode_bytes

HEADS, KV_HEADS, DIM, VALUE_DIM = 8, 2, 16, 12


def dense(q, k, v, seen):
    """Attention of one query to the tokens it sees, in float64."""
    out = np.zeros((HEADS, VALUE_DIM))
    lse = np.full(HEADS, -np.inf)
    tokens = [t for begin, end in seen for t in range(begin, end)]
    if tokens:
        for h in range(HEADS):
            scores = (
                k[tokens, h // (HEADS // KV_HEADS)].astype(float)
                @ q[h].astype(float)
                / np.sqrt(DIM)
            )
            lse[h] = np.log(np.sum(np.exp(scores)))
            out[h] = np.exp(scores - lse[h]) @ v[tokens, h // (HEADS // KV_HEADS)].astype(float)
    return out, lse


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["ag_rs", "a2a", "q_replicated"])
def test_attention_is_that_of_one_device(num_ranks, mode):
    if HEADS % num_ranks and mode != "q_replicated":
        pytest.skip("ranks that do not divide the heads")
    random = np.random.default_rng(num_ranks)
    layout = KvLayout(num_ranks=num_ranks, interleave=2, page_size=4)
    cache = KvCache(layout=layout, num_pages=40)
    lengths = [1, 30, 57]
    k, v = (
        [random.standard_normal((n, KV_HEADS, d), np.float32) for n in lengths]
        for d in (DIM, VALUE_DIM)
    )
    for i, length in enumerate(lengths):
        assert cache.add(i, random.integers(0, 1000, length).tolist()) == 0
    rows = [[[(0, 1)]], [[(0, 29)], [(0, 30)]], [[(0, 3), (40, 57)], []]]
    requests = [(cache.table(i), rows[i]) for i in range(3)]
    q = random.standard_normal((5, HEADS, DIM), np.float32)
    expected = [
        dense(q[n], k[i], v[i], seen)
        for n, (i, seen) in enumerate((i, s) for i in range(3) for s in rows[i])
    ]

    def run(transport):
        rank = transport.rank
        pages = [np.full((40, 4, KV_HEADS, d), np.nan, np.float32) for d in (DIM, VALUE_DIM)]
        for i, length in enumerate(lengths):
            for position, slot in enumerate(layout.slots(cache.table(i), rank, 0, length)):
                assert (slot >= 0) == (layout.owner(position) == rank)
                if slot >= 0:
                    for page, tensor in zip(pages, (k, v), strict=True):
                        page[slot // 4, slot % 4] = tensor[i][position]
        mine = slice(HEADS * rank // num_ranks, HEADS * (rank + 1) // num_ranks)
        before = transport.sent_bytes
        found = attend(
            transport,
            layout=layout,
            q=q if mode == "q_replicated" else q[:, mine],
            k=pages[0],
            v=pages[1],
            requests=requests,
            mode=mode,
            hop_b_groups=1 if mode == "ag_rs" else 2,
        )
        for n, (out, lse) in enumerate(expected):
            np.testing.assert_allclose(found.out[n], out[mine], atol=2e-6)
            np.testing.assert_allclose(found.lse[n], lse[mine], atol=4e-6)
        if HEADS % num_ranks == 0:
            assert transport.sent_bytes - before == decode_bytes(
                mode=mode,
                num_ranks=num_ranks,
                num_rows=5,
                heads=HEADS // num_ranks,
                head_dim=DIM,
                value_dim=VALUE_DIM,
            )

    ct.run_inproc(num_ranks, run)


def test_cache_shares_prefixes_and_says_when_it_is_full():
    cache = KvCache(layout=KvLayout(num_ranks=2, page_size=4), num_pages=4)
    prompt = list(range(17))
    assert cache.add(1, prompt) == 0 and len(cache.table(1)) == 3
    assert cache.add(2, prompt) == 16 and cache.table(2)[:2] == cache.table(1)[:2]
    assert cache.add(3, [9] * 9) is None and 3 not in cache
    assert cache.append(1, [5]) and cache.tokens(1) == [*prompt, 5]
    cache.fork(1, 4)
    cache.truncate(4, 16)
    assert cache.length(4) == 16 and cache.num_requests == 3
    cache.free(1)
    cache.free(2)
    assert (cache.free_pages, cache.cached_tokens(prompt)) == (2, 16)
    with pytest.raises(ct.InvalidArgument, match="expected a request that was added, found 9"):
        cache.free(9)


def test_what_does_not_fit_is_said():
    with pytest.raises(ct.InvalidArgument):
        KvLayout(num_ranks=2, interleave=3, page_size=4)
    layout = KvLayout(num_ranks=1, page_size=4)
    with pytest.raises(ct.InvalidArgument, match="rank: expected 0 to 0, found 1"):
        layout.local_length(1, 5)
    (transport,) = ct.inproc_group(1)
    pages = np.zeros((2, 4, 2, 16), np.float32)
    q = np.zeros((1, 8, 16), np.float32)
    for message, changed in {
        "pages of 0 to 2, found 7": {"requests": [([7], [[(0, 1)]])]},
        r"expected \[pages, page_size, kv_heads, dim\]": {"k": pages[0]},
        "expected the same dtype, pages and heads": {"v": pages[:, :2]},
        "expected one of ag_rs, a2a, q_replicated": {"mode": "ring"},
        "the group's 1 ranks, found 2": {"layout": KvLayout(num_ranks=2, page_size=4)},
    }.items():
        with pytest.raises(ct.InvalidArgument, match=message):
            attend(
                transport,
                **{
                    "layout": layout,
                    "q": q,
                    "k": pages,
                    "v": pages,
                    "requests": [([0], [[(0, 1)]])],
                    **changed,
                },
            )


def test_the_package_brings_the_library_that_it_loads_by_name():
    libraries = Path(ct.__file__).parent / "_libs"
    if not libraries.is_dir():
        pytest.skip("the package is not installed as a wheel")
    assert (libraries / "libopenblas.so.0").is_file(), sorted(
        path.name for path in libraries.iterdir()
    )
