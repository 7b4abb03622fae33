"""Runs a function of a test on real ranks: torchrun's processes over torch.distributed's gloo."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).parent


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def run_ranks(
    function, num_ranks: int, *arguments: str, timeout: float = 300, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs ``function(*arguments)``, a function of a module in this folder, with torchrun on
    ``num_ranks`` processes."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", __file__,
         function.__module__, function.__name__, *arguments],
        env=_environment(), capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    if check and done.returncode != 0:
        raise AssertionError(f"{function.__name__} on {num_ranks} ranks:\n{done.stdout}\n{done.stderr}")
    return done


def free_port() -> int:
    """A port of this machine that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_alone(function, num_ranks: int, *arguments: str, timeout: float = 300) -> list[str]:
    """The same without a launcher, which would end all ranks with the first. Returns each
    output."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, function.__module__, function.__name__, *arguments],
            env={**_environment(), "RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(num_ranks)
    ]  # fmt: skip
    try:
        return [rank.communicate(timeout=timeout)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def leave_together() -> None:
    """Returns when every rank has called it, on rank 0 when the others may have left. It does not
    use gloo, which loses a barrier's last message if a rank leaves with messages unread."""
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"came/{rank}", "")
    store.wait([f"came/{other}" for other in range(size)])
    store.set(f"left/{rank}", "")
    if rank == 0:  # has the store
        store.wait([f"left/{other}" for other in range(size)])


def main() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module, name, *arguments = sys.argv[1:]
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


if __name__ == "__main__":
    main()
