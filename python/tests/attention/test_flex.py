"""FlexAttention's masks as bands."""

from __future__ import annotations

import numpy as np
import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import and_masks, create_block_mask, or_masks

from contextile._flex import rows

LENGTHS = [700, 260, 64, 1, 300]
NUM_TOKENS = sum(LENGTHS)
DOCUMENT = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
OFFSET = torch.repeat_interleave(
    torch.cumsum(torch.tensor([0, *LENGTHS[:-1]]), 0), torch.tensor(LENGTHS)
)


def causal(b, h, q, k):
    return q >= k


def same_document(b, h, q, k):
    return DOCUMENT[q] == DOCUMENT[k]


def window(b, h, q, k):
    return q - k < 200


def documents_of_batches(b, h, q, k):
    return (DOCUMENT[None].expand(2, -1)[b, q] == DOCUMENT[k]) & (q >= k)


MASKS = {
    "causal": causal,
    "documents": and_masks(causal, same_document),
    "window": and_masks(causal, window),
    "prefix": lambda b, h, q, k: (k < 100) | (q >= k),
    "prefix of documents": lambda b, h, q, k: (
        same_document(b, h, q, k) & ((k - OFFSET[k] < 50) | (k <= q))
    ),
    "batches": documents_of_batches,
    "chunks": lambda b, h, q, k: (q // 64 == k // 64) & (k <= q),
    "dilated": lambda b, h, q, k: ((q - k) % 7 == 0) & (q >= k),
    "either": or_masks(window, lambda b, h, q, k: k < 30),
    "where": lambda b, h, q, k: torch.where(q < 500, k <= q, (k <= q) & (q - k < 90)),
    "functions": lambda b, h, q, k: torch.logical_and(torch.ge(q, k), torch.abs(q - k) <= 77),
    "negated": lambda b, h, q, k: ~(q < k),
    "clamped": lambda b, h, q, k: k <= torch.clamp(q, max=900),
    "heads": lambda b, h, q, k: (q >= k) & (q - k < 50 * (h + 1)),
    "nothing": lambda b, h, q, k: (q < 0) & (k >= 0),
    "everything": lambda b, h, q, k: q >= 0,
    "of no form": lambda b, h, q, k: torch.sin(q * 1.0) + torch.cos(k * 1.0) > 0.3,
}


def dense(mask_mod, num_tokens, batch=0, head=0):
    q, k = torch.arange(num_tokens)[:, None], torch.arange(num_tokens)[None]
    found = mask_mod(torch.tensor(batch), torch.tensor(head), q, k)
    return found.expand(num_tokens, num_tokens).numpy()


@pytest.mark.parametrize("num_tokens", [NUM_TOKENS, 1000, 128, 1])
@pytest.mark.parametrize("name", MASKS)
def test_mask_mods_come_out_exactly(name, num_tokens):
    mask = ct.masks.from_mask_mod(MASKS[name], num_tokens=num_tokens, head=1)
    assert np.array_equal(mask.dense(num_tokens), dense(MASKS[name], num_tokens, head=1))


@pytest.mark.parametrize("block", [128, (64, 128)])
@pytest.mark.parametrize("name", MASKS)
def test_block_masks_come_out_exactly(name, block):
    for num_tokens in (NUM_TOKENS, 1000):
        block_mask = create_block_mask(
            MASKS[name], 2, 2, num_tokens, num_tokens, device="cpu", BLOCK_SIZE=block
        )
        mask = ct.masks.from_block_mask(block_mask, batch=1, head=1)
        assert np.array_equal(mask.dense(num_tokens), dense(MASKS[name], num_tokens, 1, 1))


def ranges_of_row(mask, q):
    """Sorted keys of one query."""
    found = []
    for q0, q1, k0, k1, low, high in mask.bands:
        if q0 <= q < q1:
            begin = k0 if low is None else max(k0, q + low)
            end = k1 if high is None else min(k1, q + high + 1)
            if begin < end:
                found.append((begin, end))
    found.sort()
    return [key for begin, end in found for key in (begin, end)]


def assert_same_pairs(a, b, num_tokens):
    assert a.num_pairs == b.num_pairs
    for q in np.random.default_rng(0).integers(num_tokens, size=500):
        assert ranges_of_row(a, q) == ranges_of_row(b, q)


def evaluated(monkeypatch):
    pairs = [0]
    original = rows._evaluate

    def counted(mask_mod, batch, head, q, k):
        pairs[0] += q.shape[0] * q.shape[1] * k.shape[1]
        return original(mask_mod, batch, head, q, k)

    monkeypatch.setattr(rows, "_evaluate", counted)
    return pairs


def test_only_partial_blocks_are_evaluated(monkeypatch):
    pairs = evaluated(monkeypatch)
    num_tokens = 8192
    block_mask = create_block_mask(causal, 1, 1, num_tokens, num_tokens, device="cpu")
    assert ct.masks.from_block_mask(block_mask) == ct.masks.from_mask_mod(
        causal, num_tokens=num_tokens
    )
    assert pairs[0] == 2 * num_tokens * 128


def test_a_long_batch_is_cut_where_its_documents_are(monkeypatch):
    pairs = evaluated(monkeypatch)
    lengths = [100_000, 31, 20_000, 8_000, 3_041]
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = ct.masks.from_mask_mod(
        lambda b, h, q, k: (document[q] == document[k]) & (q >= k) & (q - k < 4096),
        num_tokens=sum(lengths),
    )
    assert_same_pairs(
        mask, ct.make_workload(lengths, mask="sliding_window:4096").mask(0), sum(lengths)
    )
    assert len(mask.bands) == len(lengths)
    assert pairs[0] < 6 * 128 * sum(lengths)


def test_what_is_not_square_is_refused():
    block_mask = create_block_mask(causal, 1, 1, 128, 256, device="cpu")
    with pytest.raises(ct.InvalidArgument, match="as many keys as queries"):
        ct.masks.from_block_mask(block_mask)
    with pytest.raises(ct.InvalidArgument, match="at least 1 token"):
        ct.masks.from_mask_mod(causal, num_tokens=0)


def test_a_mask_mods_own_errors_are_not_hidden():
    def broken(b, h, q, k):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ct.masks.from_mask_mod(broken, num_tokens=64)


OF_TOKEN = {
    "uint8": (torch.arange(300) % 256).to(torch.uint8),
    "int16": (torch.arange(300) * 100).to(torch.int16),
    "int32": (torch.arange(300) * 2**23).to(torch.int32),
    "document": torch.arange(300, dtype=torch.int32) // 70,
}


@pytest.mark.parametrize(
    "mask_mod",
    [
        lambda b, h, q, k, t=OF_TOKEN["uint8"]: (t[q] - t[k]) <= 5,
        lambda b, h, q, k, t=OF_TOKEN["int16"]: t[q] * t[k] > 0,
        lambda b, h, q, k, t=OF_TOKEN["int32"]: t[q] + t[k] > 0,
        lambda b, h, q, k: (q * 2**62) > (k * 2**61),
        lambda b, h, q, k, t=OF_TOKEN["document"]: (t[q] == t[k]) & (q >= k),
    ],
)
def test_integers_that_wrap(mask_mod):
    mask = ct.masks.from_mask_mod(mask_mod, num_tokens=300)
    assert np.array_equal(mask.dense(300), dense(mask_mod, 300))


def test_heads_and_batches_a_block_mask_lacks():
    from torch.nn.attention.flex_attention import BlockMask

    counts = torch.ones(1, 2, 1, dtype=torch.int32)
    indices = torch.zeros(1, 2, 1, 1, dtype=torch.int32)
    two_heads = BlockMask.from_kv_blocks(
        counts, indices, BLOCK_SIZE=16, mask_mod=lambda b, h, q, k: q >= k + h
    )
    # Any batch stands for the only one.
    assert ct.masks.from_block_mask(two_heads, batch=7, head=1).num_pairs == 16 * 15 // 2
    for index in ({"head": 2}, {"head": -1}, {"batch": -1}):
        with pytest.raises(ct.InvalidArgument, match="BlockMask: expected a (batch|head) of 0 to"):
            ct.masks.from_block_mask(two_heads, **index)
    with pytest.raises(ct.InvalidArgument, match="of at least 0, found 0 and -1"):
        ct.masks.from_mask_mod(lambda b, h, q, k: q >= k, num_tokens=4, head=-1)


def test_one_of_the_masks_that_differ_by_head_can_be_chosen():
    def by_head(b, h, q, k):
        return (k <= q) & ((q - k < 8) | (h % 2 == 0))

    block_mask = create_block_mask(by_head, 1, 4, 256, 256, device="cpu")
    with pytest.raises(ct.InvalidArgument, match="looks at the head"):
        ct.masks.from_mask_mod(by_head, num_tokens=256)
    windowed = sum(min(i + 1, 8) for i in range(256))
    assert ct.masks.from_block_mask(block_mask, head=1).num_pairs == windowed
    assert ct.masks.from_mask_mod(by_head, num_tokens=256, head=1).num_pairs == windowed
    of_batches = create_block_mask(
        lambda b, h, q, k: (k <= q) & (q - k < 8 * (b + 1)), 2, 1, 256, 256, device="cpu"
    )
    with pytest.raises(
        ct.InvalidArgument,
        match="expected one mask for all batches, found another for batch 1, head 0",
    ):
        ct.masks.from_block_mask(of_batches)
    # Equal masks of all heads are one.
    same = create_block_mask(lambda b, h, q, k: k <= q, 2, 4, 256, 256, device="cpu")
    assert ct.masks.from_block_mask(same).num_pairs == 256 * 257 // 2
