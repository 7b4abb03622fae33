"""Ranks that compute the cases of scripts/try-models by a plan, as processes of their own."""

import ctypes
import gc
import json
import mmap
import os
import random
import select
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from model_cases import (
    Result,
    called,
    called_pair,
    forward_of,
    gradients_of,
    labels_of,
    objective,
    router_loss,
    rows_of,
    targets_of,
    tokens_of,
)

import contextile as ct
import contextile.transformers as cth
from contextile.torch import Executor, Sides, local_batch

SECONDS = 40  # for a case
GRACE = 3  # seconds that other ranks have to raise, too
LARGEST_ERROR = 1e-4  # of results, relative to the largest; of losses, relative to the loss
LARGEST_GRADIENT_ERROR = 1e-3  # relative to the largest of the parameter
FIRST = 8  # tokens of a document that the first rank has
BLOCK = 4


def by_place(workload, cluster, options):
    """A strategy that gives the first rank the first tokens of every document, in shuffled blocks.

    Keys move before stage 1. Blocks of pairs are dealt out, because every rank needs both sides.
    """
    del options
    is_of_pairs = "encoder" in workload.mask_names
    cut, blocks = ct.cut_sequences(workload, BLOCK), ct.Blocking()
    places = {
        begin: begin - first for first, end in workload.sequences for begin in range(first, end)
    }
    ranges = [cut.ranges(block) for block in range(len(cut))]
    random.Random(1).shuffle(ranges)
    owners, others = [], cluster.num_devices - 1
    for number, one in enumerate(ranges):
        blocks.add(one)
        place = places[one[0][0]]
        by_first = 0 if not others or place < FIRST else 1 + number % others
        owners.append(place // BLOCK % cluster.num_devices if is_of_pairs else by_first)
    programs = []
    for index in range(len(workload.mask_names)):
        placed, moves = [], set()
        for tile in ct.tiles(workload.mask(index), blocks):
            device, owner = owners[tile.q_block], owners[tile.kv_block]
            placed.append(
                ct.PlacedTile(
                    q_block=tile.q_block,
                    kv_block=tile.kv_block,
                    pairs=tile.pairs,
                    device=device,
                    stage=int(device != owner),
                )
            )
            if device != owner:
                moves.add((tile.kv_block, owner, device))
        keys = [
            ct.Transfer(kind="kv", block=b, src=src, dst=dst, launch_stage=0, need_stage=1)
            for b, src, dst in sorted(moves)
        ]
        gradients = [
            ct.Transfer(kind="dkv", block=b, src=dst, dst=src, launch_stage=2, need_stage=3)
            for b, src, dst in sorted(moves)
        ]
        placed.sort(key=lambda tile: tile.stage)
        forward = ct.ArrangedDirection(tiles=placed, transfers=keys)
        programs.append(
            ct.ArrangedMask(
                forward=forward,
                backward=ct.ArrangedDirection(tiles=placed, transfers=keys + gradients),
            )
        )
    masks = [workload.mask(index) for index in range(len(workload.mask_names))]
    arranged = ct.ArrangedRound(blocks=blocks, owners=owners, masks=masks, programs=programs)
    return ct.Arrangement(strategy="by_place", rounds=[arranged])


def part_of(case, executor):
    """(results, places of their rows) of this rank. Leaves gradients in the model."""
    model, batch, cluster = case.model, case.batch, f"local:1x{executor.size}"
    model.set_attn_implementation(cth.register())
    model.zero_grad(set_to_none=True)
    if batch.targets:
        window = model.config.local_radius if model.config.model_type == "longt5" else None
        pairs = ct.masks.encoder_decoder(batch.lengths, batch.targets, layers=(2, 2), window=window)
        executor.prepare(
            ct.plans(**cth.batch_of(model, **pairs), cluster=cluster, strategy=by_place)
        )
        sides = Sides(batch.lengths, batch.targets, plan=executor.plan, rank=executor.rank)
        places, using = sides.target_tokens, {"sides": sides}
    else:
        executor.prepare(
            ct.plans(list(batch.lengths), cluster=cluster, strategy=by_place, **cth.batch_of(model))
        )
        local = local_batch(tokens_of(batch), plan=executor.plan, rank=executor.rank)
        places = torch.from_numpy(executor.plan.local_tokens(executor.rank))
        using = {"positions": None if "position_ids" in forward_of(model) else local.positions}
    with cth.use(executor, check_model=False, **using), torch.set_grad_enabled(case.is_trained):
        if batch.targets:
            output = called_pair(
                model,
                tokens_of(batch)[sides.source_tokens][None],
                targets_of(batch)[sides.target_tokens][None],
            )
        else:
            labels = labels_of(batch)
            call = (
                local.tokens[None],
                local.positions[None],
                labels[places][None],
                int((labels != -100).sum()),
            )
            output = called(model, *call, case.has_router_loss)
        loss = objective(output, places)
        if case.is_trained:
            loss.backward()
    return Result(rows_of(output).detach(), float(loss.detach()), router_loss(output)), places


def report_of(case, executor, gradients):
    """The report of a rank on a case. ``gradients`` is its row of shared memory."""
    try:
        part, places = part_of(case, executor)
        if case.is_trained:
            found = gradients_of(case.model)
            gradients[: len(found)] = found
        off = part.rows - case.whole.rows[places]
        return {
            "off": float(off.abs().max()) if off.numel() else 0.0,
            "loss": part.loss,
            "router": part.router_loss,
        }
    except ct.Error as error:
        return {
            "outcome": "REFUSED",
            "reason": str(error),
            "is_of_transport": isinstance(error, ct.TransportError),
        }
    except Exception as error:
        return {
            "outcome": "FOREIGN",
            "reason": f"{type(error).__name__}: {error}",
            "is_of_transport": False,
        }


engine = "auto"  # of the ranks' executors


def run_rank(rank, num_ranks, cases, store, pipe, gradients):
    """The program of a rank. The caller ends the process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the caller
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    executor = Executor(timeout=SECONDS, engine=engine)
    rows = iter(gradients)
    for case in cases:
        report = report_of(case, executor, next(rows) if case.is_trained else None)
        os.write(pipe, (json.dumps(report) + "\n").encode())
        if "outcome" in report:
            break
    while True:
        signal.pause()


def reports_of(pipes, num_cases):
    """Lists of the reports of every case, one per rank.

    They end with the first case in which a rank raised or was late.
    """
    texts = dict.fromkeys(pipes, b"")
    for number in range(num_cases):
        deadline = time.monotonic() + SECONDS
        while True:
            told = [
                text.split(b"\n")[number] for text in texts.values() if text.count(b"\n") > number
            ]
            reports = [json.loads(line) for line in told]
            if len(reports) == len(pipes):
                break
            if any("outcome" in report for report in reports):
                deadline = min(deadline, time.monotonic() + GRACE)
            ready, _, _ = select.select(
                [pipe for pipe in pipes if texts[pipe].count(b"\n") <= number],
                [],
                [],
                max(0, deadline - time.monotonic()),
            )
            data = {pipe: os.read(pipe, 65536) for pipe in ready}
            if not ready or not all(data.values()):
                yield [
                    *reports,
                    {
                        "outcome": "FOREIGN",
                        "reason": "a rank died" if ready else "a rank was late",
                        "is_of_transport": True,
                    },
                ]
                return
            for pipe, more in data.items():
                texts[pipe] += more
        yield reports
        if any("outcome" in report for report in reports):
            return


def errors_of(case, reports, gradients):
    """The errors of a case by name, relative to what is allowed: beyond 1 is wrong."""
    largest = float(case.whole.rows.abs().max())
    errors = {"results": max(report["off"] for report in reports) / largest / LARGEST_ERROR}
    for name, whole in (("loss", case.whole.loss), ("router", case.whole.router_loss)):
        off = abs(sum(report[name] for report in reports) - whole)
        errors["loss of routers" if name == "router" else name] = (
            off / max(abs(whole), 1e-2) / LARGEST_ERROR
        )
    if case.is_trained:
        found, begin, most = gradients.sum(0), 0, float(case.gradients.abs().max())
        for name, parameter in case.model.named_parameters():
            if parameter.requires_grad:
                mine = slice(begin, begin := begin + parameter.numel())
                scale = max(float(case.gradients[mine].abs().max()), 1e-3 * most)
                off = float((found[mine] - case.gradients[mine]).abs().max())
                errors[f"gradient of {name}"] = off / scale / LARGEST_GRADIENT_ERROR
    return errors


def judged(case, reports, gradients):
    """(outcome, reason or error) of a case."""
    raised = [report for report in reports if "outcome" in report]
    if raised:
        # A rank whose peer raised may find it gone.
        first = min(raised, key=lambda report: report["is_of_transport"])
        return first["outcome"], first["reason"]
    errors = errors_of(case, reports, gradients)
    name = max(errors, key=errors.get)
    return (
        ("EXACT", f"{errors[name]:.1g}")
        if errors[name] < 1
        else ("WRONG", f"{name}: {errors[name]:.1g} times what is allowed")
    )


def on_ranks(cases, num_ranks):
    """(outcome, reason or error) of each case on ranks, which are processes of their own.

    If the first is refused, others are not tried.
    """
    outcomes = []
    gc.freeze()  # so that ranks share its memory
    while len(outcomes) < len(cases):
        left = cases[len(outcomes) :]
        most = max(sum(p.numel() for p in case.model.parameters()) for case in left)
        # Every case has gradients of its own, because ranks go on while this process reads them.
        trained = [case for case in left if case.is_trained]
        size = 4 * most * num_ranks * max(1, len(trained))
        shared = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.float32).view(
            -1, num_ranks, most
        )
        with tempfile.TemporaryDirectory() as folder:
            processes, pipes = [], []
            try:
                for rank in range(num_ranks):
                    reading, writing = os.pipe()
                    process = os.fork()
                    if process == 0:
                        try:
                            run_rank(
                                rank, num_ranks, left, f"{folder}/store", writing, shared[:, rank]
                            )
                        finally:
                            os._exit(1)
                    os.close(writing)
                    processes.append(process)
                    pipes.append(reading)
                sums = iter(shared)
                for case, reports in zip(left, reports_of(pipes, len(left)), strict=False):
                    outcomes.append(judged(case, reports, next(sums) if case.is_trained else None))
                if outcomes[0][0] == "REFUSED":
                    return outcomes  # with other settings, too
            finally:
                for process, pipe in zip(processes, pipes, strict=False):
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                    os.close(pipe)
    return outcomes
