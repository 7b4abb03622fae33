"""Turns schedules of micro-batches into what Megatron's hybrid context parallelism runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from megatron.core import parallel_state
from torch import Tensor

from contextile import _core
from contextile.megatron._groups import is_megatrons

# A sequence: tensors [tokens] by name, as Megatron's data sets have them.
Sample = Mapping[str, Tensor]


class Part(Protocol):
    """Sequences that some ranks of DP x CP run, each a micro-batch of Megatron."""

    @property
    def sequences(self) -> tuple[int, ...]: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...


class Round(Protocol):
    """Micro-batches between two barriers."""

    @property
    def micro_batches(self) -> Sequence[Part]: ...


class AnySchedule(Protocol):
    """A schedule of ``contextile.schedule``, or anything with its ``rounds``."""

    @property
    def rounds(self) -> Sequence[Round]: ...


def sample_ids_of(schedule: AnySchedule, num_ranks: int) -> list[list[list[int]]]:
    """Returns the sequences of every round and rank of DP x CP, in the order in which they run.

    The last round is one in which all ranks have work if there is any, because Megatron's loop ends
    with a micro-batch on every rank. Raises InvalidArgument if a sequence is not there exactly
    once, or a rank is not of DP x CP.
    """
    rounds: list[list[list[int]]] = []
    seen: set[int] = set()
    for number, one in enumerate(schedule.rounds):
        of_ranks: list[list[int]] = [[] for _ in range(num_ranks)]
        for part in one.micro_batches:
            if not part.ranks or min(part.ranks) < 0 or max(part.ranks) >= num_ranks:
                raise _core.InvalidArgument(
                    f"schedule: round {number}: expected ranks of DP x CP, 0 to {num_ranks - 1}, "
                    f"found {tuple(part.ranks)}"
                )
            for sequence in part.sequences:
                if sequence in seen:
                    raise _core.InvalidArgument(
                        f"schedule: round {number}: expected sequence {sequence} once, found it "
                        "again"
                    )
                seen.add(sequence)
                for rank in part.ranks:
                    of_ranks[rank].append(sequence)
        rounds.append(of_ranks)
    if not seen:
        raise _core.InvalidArgument("schedule: expected sequences, found none")
    full = [number for number, of_ranks in enumerate(rounds) if all(of_ranks)]
    if full:
        rounds.append(rounds.pop(full[-1]))
    return rounds


def _check_groups(rounds: list[list[list[int]]], num_ranks: int) -> None:
    for number, of_ranks in enumerate(rounds):
        for sequence, ranks in _ranks_by_sequence(of_ranks).items():
            if not is_megatrons(ranks, num_ranks):
                raise _core.InvalidArgument(
                    f"schedule: round {number}: sequence {sequence}: expected ranks that Megatron "
                    "has a group of (a power of two of ranks from a multiple of it), found "
                    f"{ranks}; with_ranks=True gives the forward step the ranks"
                )


def _ranks_by_sequence(of_ranks: list[list[int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank, ids in enumerate(of_ranks):
        for sequence in ids:
            found.setdefault(sequence, []).append(rank)
    return found


def _idle_like(sample: Sample) -> dict[str, Tensor]:
    """Returns one token without a share in the loss, for a rank that Megatron's loop wants busy."""
    if "loss_mask" not in sample:
        raise _core.InvalidArgument(
            "samples: expected loss_mask, for ranks without work in the last round, found "
            + ", ".join(sample)
        )
    return {
        name: torch.zeros_like(field[:1]) if name == "loss_mask" else field[:1].clone()
        for name, field in sample.items()
    }


def hybrid_batch(
    schedule: AnySchedule,
    samples: Mapping[int, Sample] | Sequence[Sample] | Callable[[int], Sample],
    *,
    with_ranks: bool = False,
) -> tuple[dict[int, dict[str, Tensor]], list[list[list[int]]]]:
    """Returns a global batch as Megatron's ``hybrid_context_parallel_forward_backward`` takes it.

    It takes the place of what Megatron's ``HybridCPDataLoaderWrapper`` yields: this rank's samples
    by sequence, and the sequences of every round and rank of DP x CP. Megatron runs forward and
    backward of one sequence at a time, so a pack of several sequences becomes as many micro-batches
    on its ranks. If a rank has no work in the last round, it gets one token that counts nothing.

    Parameters
    ----------
    schedule : Schedule
        From ``contextile.schedule``, for all ranks of DP x CP.
    samples : mapping, sequence or function
        ``samples[i]`` has the tensors [tokens] of sequence i by name, its padding included: as many
        tokens as a multiple of 2 x ranks of its group. Only those of this rank are read.
    with_ranks : bool
        Whether samples also have ``cp_ranks``, the ranks of their group. A forward step needs them
        for groups that Megatron does not have (``Planner.group_of``). False refuses such groups.

    Returns
    -------
    (dict, list)

    Raises
    ------
    InvalidArgument
        The schedule has a sequence twice or ranks that are not there, Megatron has no such group,
        or a sample has another number of tokens.

    Examples
    --------
    ::

        schedule = contextile.schedule(lengths, cluster="dgx-h200:1x8", heads=(32, 8))
        batches = iter([hybrid_batch(schedule, samples)])     # the data iterator
    """
    world = parallel_state.get_data_parallel_group(with_context_parallel=True)
    rounds = sample_ids_of(schedule, world.size())
    if not with_ranks:
        _check_groups(rounds, world.size())
    get = samples if callable(samples) else samples.__getitem__
    here: dict[int, dict[str, Tensor]] = {}
    for of_ranks in rounds:
        groups = _ranks_by_sequence(of_ranks)
        for sequence in of_ranks[world.rank()]:
            ranks = groups[sequence]
            here[sequence] = _checked(sequence, get(sequence), len(ranks))
            if with_ranks:
                here[sequence]["cp_ranks"] = torch.tensor(ranks, dtype=torch.int32)
    _fill_last_round(rounds, here, get, world.rank(), with_ranks)
    return here, rounds


def _fill_last_round(
    rounds: list[list[list[int]]],
    here: dict[int, dict[str, Tensor]],
    get: Callable[[int], Sample],
    this_rank: int,
    with_ranks: bool,
) -> None:
    first_free = 1 + max(sequence for of_ranks in rounds for ids in of_ranks for sequence in ids)
    a_sequence = next(sequence for of_ranks in rounds for ids in of_ranks for sequence in ids)
    for rank, ids in enumerate(rounds[-1]):
        if ids:
            continue
        ids.append(first_free + rank)
        if rank == this_rank:
            here[ids[0]] = _idle_like(
                next(iter(here.values())) if here else _checked(a_sequence, get(a_sequence), 1)
            )
            if with_ranks:
                here[ids[0]]["cp_ranks"] = torch.tensor([rank], dtype=torch.int32)


def _checked(sequence: int, sample: Sample, num_ranks: int) -> dict[str, Tensor]:
    lengths = {name: len(field) for name, field in sample.items()}
    length = next(iter(lengths.values()), 0)
    if length == 0 or any(one != length for one in lengths.values()):
        raise _core.InvalidArgument(
            f"samples: sequence {sequence}: expected tensors of equally many tokens, found "
            f"{lengths}"
        )
    if num_ranks > 1 and length % (2 * num_ranks):
        raise _core.InvalidArgument(
            f"samples: sequence {sequence}: expected a multiple of 2 x {num_ranks} tokens (ranks "
            f"of its group), found {length}"
        )
    return dict(sample)
