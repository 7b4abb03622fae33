"""Runs a function of a test on real ranks: processes over torch.distributed's gloo.

They are forked from a process that has imported what most tests import: seconds of each rank
otherwise. Their environment is that of torchrun's processes. The tests of examples and of the
server start torchrun itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
import unittest.mock
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

# The engine of executors that name none, on ranks that begin while it is set.
ENGINE = "CONTEXTILE_TEST_ENGINE"
PRELOADED = ("numpy", "pytest", "torch", "contextile.torch", "transformers.modeling_utils")


@dataclass
class Rank:
    """A process, and the files of what it writes."""

    process: BaseProcess
    stdout: Path
    stderr: Path


class Ranks:
    """``function(*arguments)``, a function of a module in this folder, on ``num_ranks`` processes.
    Those that still run are killed when the block ends."""

    def __init__(self, function, num_ranks: int, arguments: tuple[str, ...]) -> None:
        import torch.distributed as dist

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            [name for name in PRELOADED if importlib.util.find_spec(name.split(".")[0])]
        )
        # As torchrun has it, the store outlives every rank.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.folder = tempfile.TemporaryDirectory()
        self.ranks = []
        for rank in range(num_ranks):
            environment = {
                "RANK": rank,
                "WORLD_SIZE": num_ranks,
                "LOCAL_RANK": rank,
                "LOCAL_WORLD_SIZE": num_ranks,
                "GROUP_RANK": 0,
                "GROUP_WORLD_SIZE": 1,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": self.store.port,
                "TORCHELASTIC_USE_AGENT_STORE": True,
                "TORCHELASTIC_RESTART_COUNT": 0,
                "TORCHELASTIC_RUN_ID": "tests",
                ENGINE: os.environ.get(ENGINE, "auto"),
            }
            files = [Path(self.folder.name) / f"{rank}.{stream}" for stream in ("stdout", "stderr")]
            process = context.Process(
                target=main,
                args=(
                    function.__module__,
                    function.__name__,
                    arguments,
                    {name: str(value) for name, value in environment.items()},
                    *map(str, files),
                ),
            )
            # The first rank starts the process with the imports.
            with unittest.mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
                process.start()
            self.ranks.append(Rank(process, *files))

    def __enter__(self) -> list[Rank]:
        return self.ranks

    def __exit__(self, *_) -> None:
        for rank in self.ranks:
            rank.process.kill()
            rank.process.join()
        self.folder.cleanup()


def run_ranks(
    function, num_ranks: int, *arguments: str, timeout: float = 300, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs ``function(*arguments)`` on ``num_ranks`` processes. The first that fails ends all."""
    deadline = time.monotonic() + timeout
    with Ranks(function, num_ranks, arguments) as ranks:
        running = {rank.process.sentinel: rank.process for rank in ranks}
        failed = late = False
        while running and not failed and not late:
            ended = connection.wait(list(running), timeout=max(0.0, deadline - time.monotonic()))
            late = not ended
            for process in [running.pop(sentinel) for sentinel in ended]:
                process.join()
                failed = failed or process.exitcode != 0
        stdout, stderr = (
            "".join(
                getattr(rank, name).read_text() for rank in ranks if getattr(rank, name).exists()
            )
            for name in ("stdout", "stderr")
        )
    what = f"{function.__name__} on {num_ranks} ranks"
    if late:
        raise AssertionError(f"{what} runs for more than {timeout} s:\n{stdout}\n{stderr}")
    if check and failed:
        raise AssertionError(f"{what}:\n{stdout}\n{stderr}")
    return subprocess.CompletedProcess(what, int(failed), stdout, stderr)


def run_alone(function, num_ranks: int, *arguments: str, timeout: float = 300) -> list[str]:
    """The same where a rank that fails ends no other. Returns each output."""
    deadline = time.monotonic() + timeout
    with Ranks(function, num_ranks, arguments) as ranks:
        for rank in ranks:
            rank.process.join(max(0.0, deadline - time.monotonic()))
        outputs = [rank.stdout.read_text() + rank.stderr.read_text() for rank in ranks]
        for r, rank in enumerate(ranks):
            assert not rank.process.is_alive(), (
                f"{function.__name__}: rank {r} runs for more than {timeout} s: {outputs}"
            )
    return outputs


def leave_together() -> None:
    """Returns when every rank has called it. It does not use gloo, which loses a barrier's last
    message if a rank leaves with messages unread."""
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"came/{rank}", "")
    store.wait([f"came/{other}" for other in range(size)])


def main(
    module: str,
    name: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    stdout: str,
    stderr: str,
) -> None:
    """The program of a rank."""
    for path, stream in ((stdout, 1), (stderr, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), stream)
    os.environ.update(environment)

    import torch
    import torch.distributed as dist

    from contextile.torch import Executor

    Executor.__init__.__kwdefaults__["engine"] = os.environ[ENGINE]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        getattr(importlib.import_module(module), name)(*arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # peers may wait in collectives
    # An executor that an error's traceback keeps alive says no goodbye below. Peers that still wait
    # for a third rank would take this rank for dead.
    dist.barrier()
    dist.destroy_process_group()
    # The process does not go through the interpreter's end. There, a thread of PyTorch's gloo that
    # still drops the last reference to a collective's tensors waits for an interpreter that is
    # gone, and the process is aborted (PyTorch 2.15).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
