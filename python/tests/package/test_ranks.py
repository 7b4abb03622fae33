"""Other tests rely on this: a rank that fails fails its test."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytest.importorskip("torch")
from ranks import run_alone, run_ranks


def fails_on(rank: str, how: str) -> None:
    import torch.distributed as dist

    print("came", dist.get_rank(), flush=True)
    if dist.get_rank() == int(rank):
        if how == "raise":
            raise KeyError("on purpose")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()  # the peers wait


@pytest.mark.timing
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_the_first_that_fails_ends_all(how):
    with pytest.raises(AssertionError, match="fails_on on 3 ranks") as error:
        run_ranks(fails_on, 3, "1", how)
    assert "came 1" in str(error.value)
    assert ("on purpose" in str(error.value)) == (how == "raise")
    assert run_ranks(fails_on, 2, "1", how, check=False).returncode == 1


def sleeps() -> None:
    time.sleep(3600)


@pytest.mark.timing
def test_ranks_that_do_not_end_fail():
    with pytest.raises(AssertionError, match="sleeps on 2 ranks runs for more than 20 s"):
        run_ranks(sleeps, 2, timeout=20)
    with pytest.raises(AssertionError, match="rank 0 runs for more than 1 s"):
        run_alone(sleeps, 1, timeout=1)


def says() -> None:
    import torch.distributed as dist

    print(
        f"rank {dist.get_rank()} of {os.environ['WORLD_SIZE']}, {os.environ['OMP_NUM_THREADS']} "
        "thread"
    )


def test_outputs_are_those_of_every_rank():
    assert run_ranks(says, 3).stdout == "".join(
        f"rank {rank} of 3, 1 thread\n" for rank in range(3)
    )
    assert run_alone(says, 2) == [f"rank {rank} of 2, 1 thread\n" for rank in range(2)]
