"""Calls of an implementation on all ranks, of which one may fail while others wait for it."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from contextile.torch._ranks import messages

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

GRACE_S = 5.0  # for ranks that still run after another has failed
_LONGEST_LOOK_S = 0.02

_num_calls = 0


class Stopped(Exception):
    """Ranks wait for others that have failed. ``problems`` are texts by rank."""

    def __init__(self, problems: dict[int, str]) -> None:
        super().__init__(describe(problems))
        self.problems = problems


def describe(problems: dict[int, str]) -> str:
    """Returns what failed, with the ranks that it failed on."""
    first, text = next(iter(problems.items()))
    ranks = [rank for rank, other in problems.items() if other == text]
    where = f"rank {first}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return f"{where}: {text}"


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def watched(
    group: ProcessGroup | None, device: torch.device, work: Callable[[], Any]
) -> tuple[Any, dict[int, str]]:
    """Returns what ``work`` returns here, and the problems of all ranks. Collective.

    The work runs in a thread, so that this rank can hear that another one has failed while the work
    waits for it. Raises Stopped on every rank if work has not ended a while after that; its thread
    is left behind, and the group is of no use any more.
    """
    size = dist.get_world_size(group) if dist.is_initialized() else 1
    outcome: dict[str, Any] = {}
    num_threads = torch.get_num_threads()

    def run() -> None:
        try:
            if size > 1:
                torch.set_num_threads(num_threads)  # a setting of each thread
                if device.type == "cuda":
                    torch.cuda.set_device(device)
            outcome["value"] = work()
        except Exception as error:
            outcome["problem"] = _text(error)

    if size == 1:
        run()
        problem = outcome.get("problem", "")
        return outcome.get("value"), {0: problem} if problem else {}
    _run_in_thread(group, size, run, outcome)
    texts = messages.gather_over(group, "audit", outcome.get("problem", ""), messages.text)
    return outcome.get("value"), {rank: text for rank, text in enumerate(texts) if text}


def _run_in_thread(
    group: ProcessGroup | None, size: int, run: Callable[[], None], outcome: dict[str, Any]
) -> None:
    global _num_calls
    _num_calls += 1
    c10d = dist.distributed_c10d
    world: Any = dist.group.WORLD if group is None else group
    store = c10d._get_process_group_store(world)  # noqa: SLF001  # torch has no other way to it
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(run), daemon=True)
    thread.start()
    if store is None:  # over MPI: the group has its own timeout
        thread.join()
        return
    rank, key = dist.get_rank(group), f"contextile/audit/{_num_calls}"
    look_s, failed_at, is_told = 0.0005, None, False
    while True:
        thread.join(look_s)
        if not thread.is_alive() and not is_told:
            is_told = True
            if "problem" in outcome:
                store.set(f"{key}/problem/{rank}", outcome["problem"])
                store.add(f"{key}/failed", 1)
            store.add(f"{key}/ended", 1)
        if is_told and store.add(f"{key}/ended", 0) == size:
            return
        if failed_at is None and store.add(f"{key}/failed", 0) > 0:
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE_S:
            problems = {
                other: messages.text(
                    store.get(f"{key}/problem/{other}").decode(errors="replace")[:1000]
                )
                for other in range(size)
                if store.check([f"{key}/problem/{other}"])
            }
            raise Stopped(problems)
        look_s = min(2 * look_s, _LONGEST_LOOK_S)
        if not thread.is_alive():
            time.sleep(look_s)


def gathered(
    group: ProcessGroup | None, counts: list[int], mine: torch.Tensor
) -> list[torch.Tensor]:
    """Returns the flat tensors of all ranks, of these many elements. Collective."""
    if len(counts) == 1:
        return [mine.detach().cpu()]
    padded = mine.new_zeros(max(counts), device=messages.device_of(group))
    padded[: len(mine)].copy_(mine.detach())
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    return [part[:count].cpu() for part, count in zip(parts, counts, strict=True)]
