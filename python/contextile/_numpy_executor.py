"""Exact attention on NumPy arrays, by a plan, on one rank of a group."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from contextile import _core

if TYPE_CHECKING:
    import numpy as np


def kernels() -> list[str]:
    """Names of the kernels that this CPU can run, for float32 the preferred one first."""
    return _core.kernel_table()


class Output(NamedTuple):
    """What forward gives."""

    out: np.ndarray  # [local tokens, q_heads, value_dim], as the inputs
    lse: np.ndarray  # float32 [local tokens, q_heads], natural logarithm; -inf where a row attends nothing
    saved: np.ndarray  # uint8: what forward keeps for backward
    plan: _core.Plan  # it was computed by
    call: int  # number of the call, the same on all ranks


class Gradients(NamedTuple):
    """What backward gives."""

    dq: np.ndarray  # [local tokens, q_heads, head_dim]
    dk: np.ndarray  # [local tokens, kv_heads, head_dim]
    dv: np.ndarray  # [local tokens, kv_heads, value_dim]
    dsink: np.ndarray | None  # float32 [q_heads]: this rank's share, to be summed over ranks


def _array(name: str, given: Any) -> np.ndarray:
    """An array of NumPy as it is; what others have (JAX, lists) as one, without a copy where that can be."""
    import numpy as np

    if isinstance(given, np.ndarray):
        array = given
    else:
        try:
            array = np.from_dlpack(given) if hasattr(given, "__dlpack__") else np.asarray(given)
        except (RuntimeError, BufferError) as error:  # bfloat16, a GPU's, one that wants gradients
            raise _core.InvalidArgument(
                f"{name}: expected an array of float32 or float16 on the CPU, found {getattr(given, 'dtype', given)} ({error})"
            ) from error
    if array.ndim != 3:
        raise _core.InvalidArgument(f"{name}: expected [tokens, heads, dim], found {list(array.shape)}")
    return array


class NumpyExecutor:
    """One rank's executor: prepared for a batch's plan, it serves all its layers and calls.

    Arrays are NumPy's, float32 or float16, in the plan's local order of this rank (``plan.local_tokens(rank)``).
    ``contextile.torch.Executor`` is the same for tensors of PyTorch. One thread uses it at a time.

    Parameters
    ----------
    transport
        This rank's end of a group: ``inproc_group`` or ``gloo_transport``.
    kernel
        By name (``kernels()``); empty: the preferred one for the plan's dtype.
    flight_folder
        Where a record of the last instructions goes when a call fails; empty: nowhere.

    Raises
    ------
    InvalidArgument
        There is no such kernel.
    """

    def __init__(self, transport: _core.Transport, *, kernel: str = "", flight_folder: str = "") -> None:
        self._rank = _core.RankExecutor(transport, kernel=kernel, flight_folder=flight_folder)
        self._transport = transport
        self._plan: _core.Plan | None = None
        self._num_calls = 0

    @property
    def plan(self) -> _core.Plan | None:
        """What it is prepared for."""
        return self._plan

    @property
    def last_stats(self) -> _core.ExecutionStats:
        """Bytes and seconds of the last call on this rank."""
        return self._rank.last_stats

    def prepare(self, plan: _core.Plan) -> None:
        """Allocates buffers and checks that every rank holds the same plan. Collective.

        Raises
        ------
        InvalidPlan
            Ranks hold different plans or versions, or the plan is for another number of ranks.
        TransportError
            A peer died or stalled.
        """
        self._plan = None
        self._rank.prepare(plan)
        self._plan = plan

    def forward(self, q: Any, k: Any, v: Any, *, mask: str = "", sink: Any = None) -> Output:
        """Attention of this rank's queries to all keys that the mask lets them see. Collective.

        Shapes
        ------
        q : [local tokens, q_heads, head_dim]
        k : [local tokens, kv_heads, head_dim]
        v : [local tokens, kv_heads, value_dim]
        sink : float32 [q_heads], where ``plan.shape.sink``

        Raises
        ------
        InvalidArgument
            A mask the plan has not, a tensor of another shape or dtype.
        TransportError
            A peer failed.
        """
        import numpy as np

        q, k, v = (_array(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
        index = self._rank.find_mask(mask)
        out = np.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=q.dtype)
        lse = np.empty(q.shape[:2], dtype=np.float32)
        saved = np.empty(self._rank.saved_bytes(index), dtype=np.uint8)
        self._num_calls += 1
        call = self._num_calls
        self._rank.forward(mask=index, call=call, q=q, k=k, v=v, sink=sink, out=out, lse=lse, saved=saved)
        return Output(out, lse, saved, self._plan, call)

    def backward(
        self, dout: Any, q: Any, k: Any, v: Any, output: Output, *, mask: str = "", sink: Any = None
    ) -> Gradients:
        """Gradients for ``dout`` [local tokens, q_heads, value_dim], from what forward was given and gave. Collective.

        Raises
        ------
        InvalidArgument, TransportError
            As forward does.
        """
        import numpy as np

        if self._plan is None or output.plan != self._plan:
            raise _core.InvalidArgument(
                f"backward: expected an executor prepared for the output's plan {output.plan.digest}, found "
                f"{'none' if self._plan is None else self._plan.digest}"
            )
        dout, q, k, v = (_array(name, x) for name, x in (("dout", dout), ("q", q), ("k", k), ("v", v)))
        dq, dk, dv = np.empty(q.shape, q.dtype), np.empty(k.shape, k.dtype), np.empty(v.shape, v.dtype)
        dsink = None if sink is None else np.empty_like(sink)
        self._rank.backward(
            mask=self._rank.find_mask(mask),
            call=output.call,
            q=q,
            k=k,
            v=v,
            sink=sink,
            out=output.out,
            lse=output.lse,
            dout=dout,
            dq=dq,
            dk=dk,
            dv=dv,
            dsink=dsink,
            saved=output.saved,
        )
        return Gradients(dq, dk, dv, dsink)


def run_inproc(num_ranks: int, body: Callable[[_core.Transport], Any], *, timeout: float = 60.0) -> list[Any]:
    """Runs ``body(transport)`` on a thread for each rank of a group in this process.

    Parameters
    ----------
    num_ranks
        1 to 4096.
    body
        What a rank does; an exception on one ends all.
    timeout
        Seconds without a byte moving in the whole group.

    Returns
    -------
    list
        What every rank returned.

    Raises
    ------
    Exception
        The first that a rank raised and that is no echo of another's.
    """
    group = _core.inproc_group(num_ranks, timeout=timeout)
    results: list[Any] = [None] * num_ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(group[rank])
        except BaseException as error:  # noqa: BLE001 – raised again below
            errors.append(error)
            group[rank].abort(str(error))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, _core.TransportError)), errors[0])
    return results
