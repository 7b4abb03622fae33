"""How much a rank of the engine torch does in a call, in numbers that only a plan and the engine's
own code decide: under FakeTensorMode nothing is computed, and nothing is sent."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from lone_rank import LoneRank, Operators, agree_alone, planned, tensors_of
from torch._subclasses.fake_tensor import FakeTensorMode


class Work(NamedTuple):
    """Work of one direction, summed over the ranks."""

    entries: int  # of calls of FlashAttention
    calls: int
    launches: int
    messages: int
    sent_bytes: int
    operators: int  # that launch something, except FlashAttention
    peak_bytes: int  # the most that a rank's call holds at a time, with its results


# 1,024 tokens of six documents on four ranks, 4/2 heads of 32, bf16: forward and backward.
EXPECTED = {
    "zigzag": (
        Work(156, 20, 12, 24, 786432, 200, 915280),
        Work(156, 20, 20, 48, 1572864, 654, 2074272),
    ),
    "dcp": (
        Work(88, 16, 11, 22, 110144, 165, 794464),
        Work(88, 16, 12, 34, 283776, 462, 1474096),
    ),
    "auto": (
        Work(22, 12, 6, 11, 238400, 88, 769072),
        Work(22, 8, 8, 21, 611200, 310, 1758160),
    ),
    "ulysses": (
        Work(168, 8, 8, 36, 663552, 120, 1320176),
        Work(168, 8, 8, 40, 671744, 396, 2318688),
    ),
    "distca": (
        Work(51, 24, 8, 34, 246272, 239, 726544),
        Work(38, 16, 8, 34, 246272, 684, 1444480),
    ),
    "magi": (
        Work(96, 12, 4, 24, 352256, 163, 1100048),
        Work(96, 12, 8, 48, 704512, 589, 2024144),
    ),
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


def work_of(lone, direction, *given):
    """Runs a call of a rank and returns its work with what it returned."""
    notes, sent = lone.messages.batches, lone.messages.sent_bytes
    before = len(notes)
    with Count() as count:
        results = getattr(lone, direction)(*given)
    batches = [batch for batch in notes[before:] if batch]
    jobs = [job for job, _ in lone.jobs(direction)]
    assert count.attention == len(jobs)
    return results, Work(
        sum(job.num_entries for job in jobs),
        len(jobs),
        len(batches),
        sum(note.is_sent for batch in batches for note in batch),
        lone.messages.sent_bytes - sent,
        count.operators,
        count.peak_bytes,
    )


def total_of(works):
    """The sum over the ranks, and the most bytes of one."""
    sums = (sum(numbers) for numbers in zip(*works, strict=True))
    return Work(*sums)._replace(peak_bytes=max(work.peak_bytes for work in works))


@pytest.mark.parametrize("strategy", EXPECTED)
def test_a_call_does_as_much_as_is_known_of_it(strategy, monkeypatch):
    agree_alone(monkeypatch)
    plan = planned(strategy, **OPTIONS.get(strategy, {}))
    directions = plan.stats().forward, plan.stats().backward
    works = []
    for rank in range(plan.num_devices):
        with FakeTensorMode(), torch.no_grad():
            lone = LoneRank(plan, rank, "cuda:0")
            kept, forward = work_of(lone, "forward")
            _, backward = work_of(lone, "backward", *kept)
        works.append((forward, backward))
        for work, stats in zip(works[rank], directions, strict=True):
            assert work.sent_bytes == stats.devices[rank].sent_bytes
    totals = tuple(total_of(by_rank) for by_rank in zip(*works, strict=True))
    assert [work.launches for work in totals] == [stats.launches for stats in directions]
    assert totals == EXPECTED[strategy]


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
