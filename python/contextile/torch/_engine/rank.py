"""One rank of the engine ``torch``: plans prepared for calls, as the native rank has them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from contextile import _core
from contextile.torch._engine.engine_calls import Backward, EngineCall, Forward, Stats, Surroundings
from contextile.torch._engine.launches import Messages
from contextile.torch._engine.prepared import PreparedLists
from contextile.torch._kernels.kernel import without_autocast

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Shared:
    """The parts that the ranks of one executor share."""

    def __init__(self) -> None:
        self.in_call = threading.Lock()  # calls of one thread after the other
        # Lists that a CUDA graph reads, which are kept as long as it may be replayed.
        self.captured: set[PreparedLists] = set()


class TorchRank:
    """Runs one rank's programs of a plan by operators of PyTorch.

    Parameters
    ----------
    transport : Transport
        For agreements between the ranks, on the CPU.
    group : ProcessGroup or None
        The same ranks, over which keys and values move; None for the whole job.
    kernel : str
        Name of the kernel; empty: the preferred one for the calls.
    device : torch.device
        Where the tensors of calls lie.
    timeout : float
        Seconds that a wait may take on the CPU.
    shared : Shared, optional
        The parts that it shares with other ranks of its executor. Default: none are shared.
    """

    def __init__(
        self,
        transport: _core.Transport,
        group: ProcessGroup | None,
        *,
        kernel: str,
        device: torch.device,
        timeout: float,
        shared: Shared | None = None,
    ) -> None:
        self._transport, self._kernel, self._device = transport, kernel, device
        self._messages = Messages(group, device, timeout)
        self._shared = shared or Shared()
        self._around: Surroundings | None = None
        self._has_slices = False
        self._num_begun = self._num_finished = 0  # of the calls that may be in flight together
        self.last_stats = Stats(0, 0, 0.0, 0.0, 0.0)

    # ------------------------------------------------------------------------------------ prepare

    def prepare(self, plan: _core.Plan) -> None:
        """Prepares for a plan, which all ranks give. Collective."""
        with self._alone("prepare"):
            has_slices = _core.agree_on_plan(self._transport, plan)
            lists = PreparedLists(plan, self._transport.rank, self._kernel, self._device)
            with self._working():
                lists.make()
            captured = self._shared.captured
            self._around = Surroundings(lists, self._messages, self._transport, captured)
            self._has_slices = has_slices

    def _surroundings(self) -> Surroundings:
        if self._around is None:
            raise _core.InvalidArgument("executor: expected prepare before a call, found no plan")
        return self._around

    def saved_bytes(self, mask: int) -> int:
        """Returns the bytes that forward under a mask keeps for backward."""
        return self._surroundings().lists.saved_bytes(mask)

    @contextlib.contextmanager
    def _alone(self, where: str) -> Iterator[None]:
        """Refuses a call while another thread is in one."""
        if not self._shared.in_call.acquire(blocking=False):
            raise _core.InvalidArgument(
                f"{where}: expected calls of one thread after the other, found another thread in a "
                "call of this executor"
            )
        try:
            yield
        finally:
            self._shared.in_call.release()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Runs what is inside in the dtypes that it names, whether autocast is on or off.

        Ends the group if this rank fails, so that no peer waits for it in an agreement.
        """
        try:
            with without_autocast(self._device):
                yield
        except Exception as error:
            self._transport.abort(str(error))
            raise

    # -------------------------------------------------------------------------------------- calls

    def forward(self, **tensors: Any) -> None:
        """Fills ``out``, ``lse`` and ``saved``. Collective."""
        self._run(Forward, tensors)

    def backward(self, **tensors: Any) -> None:
        """Fills ``dq``, ``dk``, ``dv``, and ``dsink`` and ``dtable`` if given. Collective."""
        self._run(Backward, tensors)

    def begin_forward(self, **tensors: Any) -> Pending:
        """Begins a forward, which may be under way next to another call."""
        return self._begin(Forward, tensors)

    def begin_backward(self, **tensors: Any) -> Pending:
        """Begins a backward, which may be under way next to another call."""
        return self._begin(Backward, tensors)

    def _run(self, kind: type[EngineCall], tensors: dict[str, Any]) -> None:
        with self._alone(kind.direction), self._working():
            self.last_stats = kind(self._surroundings(), **tensors).finish()

    def _begin(self, kind: type[EngineCall], tensors: dict[str, Any]) -> Pending:
        with self._alone(f"begin_{kind.direction}"), self._working():
            call = kind(self._surroundings(), **tensors)
            # A rank with a slice does not know how far the others go.
            if not self._has_slices:
                call.run.run_to_begin_cut()
            self._num_begun += 1
            return Pending(self, call, self._num_begun - 1)

    def advance(self, call: EngineCall) -> None:
        """Runs a call up to its last launch."""
        with self._alone("advance"), self._working():
            call.agreement.wait()
            call.run.run_to_last_launch()

    def finish(self, call: EngineCall, number: int) -> Stats:
        """Ends a call. Calls are finished in the order in which they began."""
        with self._alone("finish"), self._working():
            if number != self._num_finished:
                raise _core.InvalidArgument(
                    f"rank {self._transport.rank}, finish: expected the call begun as number "
                    f"{self._num_finished}, found number {number}"
                )
            self._num_finished += 1
            self.last_stats = call.finish()
            return self.last_stats

    # ------------------------------------------------------------------------------------- report

    @property
    def memory_bytes(self) -> int:
        """Bytes that the prepared plan keeps on the device between calls."""
        return self._surroundings().lists.index_bytes

    @property
    def kernel(self) -> str:
        """The kernels of the plan's programs."""
        return self._kernel if self._around is None else ", ".join(self._around.lists.kernels)


class Pending:
    """A call that has begun."""

    def __init__(self, rank: TorchRank, call: EngineCall, number: int) -> None:
        self._rank, self._call, self._number = rank, call, number

    def advance(self) -> None:
        """Runs the call up to its last launch; ``finish`` then only waits for results."""
        self._rank.advance(self._call)

    def finish(self) -> Stats:
        """Ends the call. Returns its bytes and seconds."""
        return self._rank.finish(self._call, self._number)
