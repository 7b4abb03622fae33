"""How much a rank of the engine torch does in a call, in numbers that only a plan and the engine's
own code decide: under FakeTensorMode nothing is computed, and nothing is sent."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from lone_rank import LoneRank, NotedRows, Operators, agree_alone, planned, tensors_of
from torch._subclasses.fake_tensor import FakeTensorMode

from contextile.torch._kernels import row_ops
from contextile.torch._kernels.stage_calls import Call
from contextile.torch._kernels.triton_stage import TritonStage


class Work(NamedTuple):
    """Work of one direction, summed over the ranks."""

    entries: int  # of calls of FlashAttention
    calls: int  # of kernels of attention
    launches: int
    messages: int
    sent_bytes: int
    operators: int  # that launch something, except attention
    peak_bytes: int  # the most that a rank's call holds at a time, with its results


# 1,024 tokens of six documents on four ranks, 4/2 heads of 32, bf16: forward and backward, by
# operators around FlashAttention, by Triton kernels for rows around it, and by Triton in place.
EXPECTED = {
    "zigzag": {
        "eager": (
            Work(156, 20, 12, 24, 786432, 200, 915280),
            Work(156, 20, 20, 48, 1572864, 654, 2006176),
        ),
        "fused": (
            Work(156, 20, 12, 24, 786432, 88, 764456),
            Work(156, 20, 20, 48, 1572864, 386, 1872064),
        ),
        "triton": (
            Work(0, 16, 12, 24, 786432, 28, 536720),
            Work(0, 16, 20, 48, 1572864, 188, 1469712),
        ),
    },
    "dcp": {
        "eager": (
            Work(88, 16, 11, 22, 110144, 165, 794464),
            Work(88, 16, 12, 34, 283776, 462, 1362624),
        ),
        "fused": (
            Work(88, 16, 11, 22, 110144, 93, 661880),
            Work(88, 16, 12, 34, 283776, 270, 1278896),
        ),
        "triton": (
            Work(0, 12, 11, 22, 110144, 47, 508944),
            Work(0, 12, 12, 34, 283776, 120, 926928),
        ),
    },
    "auto": {
        "eager": (
            Work(22, 12, 6, 11, 238400, 88, 769072),
            Work(22, 8, 8, 21, 611200, 310, 1666256),
        ),
        "fused": (
            Work(22, 12, 6, 11, 238400, 68, 642696),
            Work(22, 8, 8, 21, 611200, 202, 1479872),
        ),
        "triton": (
            Work(0, 6, 6, 11, 238400, 32, 494576),
            Work(0, 4, 8, 21, 611200, 110, 1070524),
        ),
    },
    "ulysses": {
        "eager": (
            Work(168, 8, 8, 36, 663552, 120, 1207600),
            Work(168, 8, 8, 40, 671744, 396, 2247248),
        ),
        "fused": (
            Work(168, 8, 8, 36, 663552, 104, 1084744),
            Work(168, 8, 8, 40, 671744, 284, 2018144),
        ),
        "triton": (
            Work(0, 4, 8, 36, 663552, 72, 809200),
            Work(0, 4, 8, 40, 671744, 192, 1444688),
        ),
    },
    "distca": {
        "eager": (
            Work(51, 24, 8, 34, 246272, 239, 726544),
            Work(38, 16, 8, 34, 246272, 684, 1408928),
        ),
        "fused": (
            Work(51, 24, 8, 34, 246272, 145, 621064),
            Work(38, 16, 8, 34, 246272, 414, 1337728),
        ),
        "triton": (
            Work(0, 16, 8, 34, 246272, 70, 507920),
            Work(0, 8, 8, 34, 246272, 230, 1027072),
        ),
    },
    "magi": {
        "eager": (
            Work(96, 12, 4, 24, 352256, 163, 1100048),
            Work(96, 12, 8, 48, 704512, 589, 1904080),
        ),
        "fused": (
            Work(96, 12, 4, 24, 352256, 113, 899224),
            Work(96, 12, 8, 48, 704512, 326, 1825888),
        ),
        "triton": (
            Work(0, 8, 4, 24, 352256, 66, 653328),
            Work(0, 8, 8, 48, 704512, 190, 1330176),
        ),
    },
}
OPTIONS = {"dcp": {"block_size": 64}}


class Count(Operators):
    """Counts operators and the bytes of what they make."""

    def __init__(self):
        super().__init__(self.look)
        self.operators = self.attention = self.bytes = self.peak_bytes = 0
        self._living = {}

    def look(self, function, args, kwargs, results):
        given = {id(x.untyped_storage()) for x in tensors_of([args, kwargs])}
        made = tensors_of(results)
        fresh = [x for x in made if id(x.untyped_storage()) not in given]
        for x in fresh:
            self._watch(x.untyped_storage())
        name = function.name()
        if name.startswith("aten::_flash_attention"):
            self.attention += 1
        elif "empty" not in name and any(x.numel() for x in made):
            self.operators += bool(fresh) or function._schema.is_mutable

    def _watch(self, storage):
        number, size = id(storage), storage.nbytes()
        if number in self._living:
            return
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

        def gone(_):
            del self._living[number]
            self.bytes -= size

        self._living[number] = weakref.ref(storage, gone)


def work_of(lone, direction, fused, launches, *given):
    """Runs a call of a rank and returns its work with what it returned."""
    notes, sent = lone.messages.batches, lone.messages.sent_bytes
    before = len(notes), len(fused.names), len(launches)
    with Count() as count:
        results = getattr(lone, direction)(*given)
    batches = [batch for batch in notes[before[0] :] if batch]
    jobs = [job for job, _ in lone.jobs(direction)]
    assert count.attention + len(launches) - before[2] == len(jobs)
    return results, Work(
        sum(job.num_entries for job in jobs if isinstance(job, Call)),
        len(jobs),
        len(batches),
        sum(note.is_sent for batch in batches for note in batch),
        lone.messages.sent_bytes - sent,
        count.operators + len(fused.names) - before[1],
        count.peak_bytes,
    )


def total_of(works):
    """The sum over the ranks, and the most bytes of one."""
    sums = (sum(numbers) for numbers in zip(*works, strict=True))
    return Work(*sums)._replace(peak_bytes=max(work.peak_bytes for work in works))


@pytest.mark.parametrize("way", ["eager", "fused", "triton"])
@pytest.mark.parametrize("strategy", EXPECTED)
def test_a_call_does_as_much_as_is_known_of_it(strategy, way, monkeypatch):
    agree_alone(monkeypatch)
    fused, launches = NotedRows(), []
    if way != "eager":
        monkeypatch.setattr(row_ops, "fused", lambda device: fused)
    if way == "triton":
        kernels = pytest.importorskip("contextile.torch._kernels.triton_attention")
        monkeypatch.setattr(kernels.Launch, "run", lambda launch: launches.append(launch))
        monkeypatch.setattr(TritonStage, "check_on", lambda *given: None)
    plan = planned(strategy, **OPTIONS.get(strategy, {}))
    directions = plan.stats().forward, plan.stats().backward
    works = []
    for rank in range(plan.num_devices):
        with FakeTensorMode(), torch.no_grad():
            lone = LoneRank(plan, rank, "cuda:0", "torch:triton" if way == "triton" else "")
            kept, forward = work_of(lone, "forward", fused, launches)
            _, backward = work_of(lone, "backward", fused, launches, *kept)
        works.append((forward, backward))
        for work, stats in zip(works[rank], directions, strict=True):
            assert work.sent_bytes == stats.devices[rank].sent_bytes
    totals = tuple(total_of(by_rank) for by_rank in zip(*works, strict=True))
    assert [work.launches for work in totals] == [stats.launches for stats in directions]
    assert totals == EXPECTED[strategy][way]


def test_what_a_count_counts():
    with FakeTensorMode():
        x = torch.zeros(256, device="cuda")
        with Count() as count:
            y = x.view(16, 16).transpose(0, 1)  # a view launches nothing
            y = y.contiguous() + 1
            y.add_(1)[:0].mul_(2)  # and neither do operators on nothing
            torch.empty_like(y)
        assert count.operators == 3
        assert (count.bytes, count.peak_bytes) == (1024, 2048)
        del y
        assert count.bytes == 0
