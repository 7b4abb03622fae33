"""Audits of a ring and of Ulysses: sound ones pass, and every planted fault is named."""

from __future__ import annotations

import os
import sys

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

import torch.distributed as dist

from contextile.torch import audit
from contextile.torch._audit import watch
from own_attention import Ring, Ulysses
from ranks import leave_together, run_ranks

SMALL = {"heads": (4, 2), "head_dim": 8}
LENGTHS = [37, 5, 1, 22]
RING = {**SMALL, "lengths": LENGTHS, "masks": ["causal", "sliding_window:7"]}
SOME = ("values", "perturbation")

# Fault -> other arguments than those above. The named cause has the fault's name.
IN_RING = {
    "positions_local": {"checks": SOME},
    "packing_leak": {"checks": SOME},
    "window_dropped": {"checks": SOME},
    "window_off_by_one": {"checks": SOME},
    "lse_merged_without_maximum": {"checks": ("values", "large_scores")},
    "gradient_times_cp": {"checks": SOME},
    "stale_kv_in_backward": {"checks": ("values", "interleaving", "lengths")},
    "last_token_lost": {"checks": SOME},
    "non_contiguous_input": {"checks": ("values", "contiguity")},
    "sink_without_gradient": {"checks": SOME, "sinks": True},
    "dropout_by_local_index": {"checks": ("values", "dropout"), "dropout_p": 0.4},
    "rank_order": {"checks": SOME},
    "low_precision_accumulation": {
        "checks": ("values", "precision"),
        "dtype": torch.float16,
        "lengths": [250],
    },
    "nondeterministic": {"checks": ("values", "determinism")},
    "lse_merged_wrongly": {"checks": SOME},
    "padding_attended": {"checks": SOME, "masks": ["full"]},
}
IN_ULYSSES = {
    "packing_leak": {},
    "positions_local": {},
    "stale_lengths": {},
    "kv_heads_misassigned": {},
    "sink_without_gradient": {"sinks": True},
}


def sound_ring(dtypes):
    for dtype in (getattr(torch, name) for name in dtypes.split()):
        report = audit(
            Ring(), **RING, dtype=dtype, sinks=True, softcap=8.0, scale=0.3, dropout_p=0.4
        )
        assert report.ok, str(report)
        assert {one.check for one in report.passed} >= {"values", "dropout", "lengths"}


def planted_in_ring(faults):
    for fault in faults.split():
        report = audit(Ring(fault=fault), **{**RING, **IN_RING[fault]})
        assert report.causes == [fault], f"{fault}: {report}"


def sound_ulysses():
    for layout in ("contiguous", "zigzag_batch"):
        report = audit(Ulysses(), **RING, layout=layout, sinks=True)
        assert report.ok, str(report)


def planted_in_ulysses():
    for fault, others in IN_ULYSSES.items():
        report = audit(Ulysses(fault=fault), **RING, layout="contiguous", **others)
        assert report.causes == [fault], f"{fault}: {report}"


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_a_sound_ring_passes(num_ranks):
    dtypes = {2: "bfloat16 float32", 3: "float16", 4: "float32"}
    run_ranks(sound_ring, num_ranks, dtypes[num_ranks])


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_faults_of_a_ring_are_named(num_ranks):
    run_ranks(planted_in_ring, num_ranks, " ".join(IN_RING))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_sound_ulysses_passes(num_ranks):
    run_ranks(sound_ulysses, num_ranks)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_faults_of_ulysses_are_named(num_ranks):
    run_ranks(planted_in_ulysses, num_ranks)


def raising():
    """Rank 1 raises before a collective in which the others wait for it."""

    def attend(q, k, v):
        if dist.get_rank() == 1:
            raise RuntimeError("no such\nkernel")
        dist.all_reduce(torch.ones(1))
        return q

    watch.GRACE_S = 0.5
    report = audit(attend, lengths=[24], **SMALL)
    assert report.causes == ["raises"], str(report)
    assert report.findings[0].form == r"rank 1: RuntimeError: no such\nkernel"
    assert "later checks: ranks still wait for the one that failed" in report.not_tested
    print(report)
    sys.stdout.flush()
    leave_together()
    os._exit(0)  # the group is of no use any more


def test_a_rank_that_raises_is_named():
    done = run_ranks(raising, 3)
    assert done.stdout.count("the call raises an error") == 3


def refusals():
    def bare(q, k, v):
        return q

    def with_mask(q, k, v, *, mask):
        return q

    def with_other(q, k, v, *, planet):
        return q

    rank = dist.get_rank()
    for call, wanted in (
        (lambda: audit(bare, lengths=[24], sinks=True), "takes sink"),
        (lambda: audit(bare, lengths=[24], masks=["causal", "full"]), "takes mask"),
        (lambda: audit(bare, lengths=[8, 8]), "takes cu_seqlens"),
        (lambda: audit(bare, lengths=[24], dropout_p=0.5), "takes dropout_p"),
        (lambda: audit(bare, lengths=[24], softcap=3.0), "takes softcap"),
        (lambda: audit(bare, lengths=[24], scale=3.0), "takes scale"),
        (lambda: audit(bare, lengths=[25]), "expected multiples of 4"),
        (lambda: audit(bare, lengths=[]), "at least one document"),
        (lambda: audit(bare, lengths=[24], layout="spiral"), "found 'spiral'"),
        (lambda: audit(bare, lengths=[24], checks=["speed"]), "found 'speed'"),
        (lambda: audit(bare, lengths=[24], heads=(4, 3)), "groups of KV heads"),
        (lambda: audit(with_mask, lengths=[24], masks=["oval"]), "oval"),
        (lambda: audit(with_other, lengths=[24]), "planet"),
        (lambda: audit(3, lengths=[24]), "a callable"),
        (lambda: audit(bare, lengths=[24], dtype="f32"), "found 'f32'"),
        (lambda: audit(bare, lengths=[20_000]), "at most 8192 rows"),
        (lambda: audit(bare, lengths=[24 + 4 * rank]), "expected the same on all ranks"),
        (lambda: audit(bare, lengths=[24 if rank else 25]), "expected multiples of 4"),
        (lambda: audit(bare, lengths=[4], layout=lambda *_: [0]), "every row from 0 to 3"),
    ):
        with pytest.raises(ct.InvalidArgument, match=wanted):
            call()


def test_wrong_arguments_are_refused_on_all_ranks():
    run_ranks(refusals, 2)
