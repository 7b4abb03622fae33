"""Exact attention by a plan on NumPy arrays, for one rank of a group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from contextile import _core
from contextile._waits import join

if TYPE_CHECKING:
    import numpy as np


def kernels() -> list[str]:
    """Returns the names of the kernels that this CPU can run, the preferred one for float32 first.

    Examples
    --------
    >>> import contextile as ct
    >>> executor = ct.NumpyExecutor(ct.inproc_group(1)[0], kernel=ct.kernels()[0])
    """
    return _core.kernel_table()


class Output(NamedTuple):
    """The result of ``NumpyExecutor.forward``, which ``backward`` takes.

    Attributes
    ----------
    out : array [local tokens, q_heads, value_dim]
        In the dtype of the inputs. Rows that attend nothing are 0.
    lse : float32 array [local tokens, q_heads]
        Natural logarithm of the sum of exponentials; -inf for rows that attend nothing.
    saved : uint8 array
        Data that forward keeps for backward.
    plan : Plan
        The plan that it was computed by.
    call : int
        Number of the call, the same on all ranks.
    """

    out: np.ndarray
    lse: np.ndarray
    saved: np.ndarray
    plan: _core.Plan
    call: int


class Gradients(NamedTuple):
    """The result of ``NumpyExecutor.backward``.

    Attributes
    ----------
    dq : array [local tokens, q_heads, head_dim]
    dk : array [local tokens, kv_heads, head_dim]
    dv : array [local tokens, kv_heads, value_dim]
        Gradients of this rank's tokens, complete over the batch.
    dsink : float32 array [q_heads] or None
        This rank's share, to be summed over ranks. None without a sink.
    """

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dsink: np.ndarray | None


def _array(name: str, given: Any) -> np.ndarray:
    """Returns an array of NumPy, JAX or others as NumPy's, without a copy if possible."""
    import numpy as np

    if isinstance(given, np.ndarray):
        array = given
    else:
        try:
            array = np.from_dlpack(given) if hasattr(given, "__dlpack__") else np.asarray(given)
        except (RuntimeError, BufferError) as error:  # bfloat16, a GPU's, one that wants gradients
            raise _core.InvalidArgument(
                f"{name}: expected an array of float32 or float16 on the CPU, found "
                f"{getattr(given, 'dtype', given)} ({error})"
            ) from error
    if array.ndim != 3:
        raise _core.InvalidArgument(
            f"{name}: expected [tokens, heads, dim], found {list(array.shape)}"
        )
    return array


class NumpyExecutor:
    """The executor of one rank for NumPy arrays.

    Prepared for the plan of a batch, it serves all layers and calls of that batch. Arrays have the
    plan's dtype, float32 or float16, and lie in the plan's local order of this rank
    (``plan.local_tokens(rank)``). ``contextile.torch.Executor`` is the same for tensors of PyTorch.
    Threads use it one after the other: a call while another thread is in one raises
    ``InvalidArgument``.

    Parameters
    ----------
    transport : Transport
        This rank's end of a group, from ``inproc_group`` or ``gloo_transport``.
    kernel : str
        Name of the kernel (``kernels()``). Default: the preferred one for the plan's dtype.
    flight_folder : str
        Folder for a record of the last instructions if a call fails. Default: no record.
    gpu : Gpu, optional
        An emulated GPU (``open_gpu("emulated")``), whose kernels then run. It takes float16, and
        the transport is one of ``gpu.group``.

    Raises
    ------
    InvalidArgument
        There is no such kernel, or the GPU is a real one.

    Examples
    --------
    One rank; ``run_inproc`` runs several on threads:

    >>> import contextile as ct
    >>> import numpy as np
    >>> plan = ct.plan([60, 40], cluster="local:1x1", strategy="zigzag",
    ...                heads=(4, 2), head_dim=32, dtype="f32")
    >>> executor = ct.NumpyExecutor(ct.inproc_group(1)[0])
    >>> executor.prepare(plan)
    >>> q, k, v = (np.ones((100, heads, 32), dtype=np.float32) for heads in (4, 2, 2))
    >>> output = executor.forward(q, k, v)
    >>> output.out.shape
    (100, 4, 32)
    >>> executor.backward(np.ones_like(output.out), q, k, v, output).dk.shape
    (100, 2, 32)
    """

    def __init__(
        self,
        transport: _core.Transport,
        *,
        kernel: str = "",
        flight_folder: str = "",
        gpu: _core.Gpu | None = None,
    ) -> None:
        if gpu is not None and not gpu.is_emulated:
            raise _core.InvalidArgument(
                f"gpu: expected an emulated one, for arrays on the CPU, found {gpu.name}"
            )
        self._rank = _core.RankExecutor(
            transport, kernel=kernel, flight_folder=flight_folder, gpu=gpu
        )
        self._transport = transport
        self._plan: _core.Plan | None = None
        self._num_calls = 0

    @property
    def plan(self) -> _core.Plan | None:
        """The plan that it is prepared for; None before the first."""
        return self._plan

    @property
    def last_stats(self) -> _core.ExecutionStats:
        """Bytes and seconds of this rank's last call."""
        return self._rank.last_stats

    def prepare(self, plan: _core.Plan) -> None:
        """Allocates buffers and checks that every rank holds the same plan. Collective.

        Parameters
        ----------
        plan : Plan
            A whole plan, or this rank's slice.

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
        """Computes attention of this rank's queries to all keys that the mask lets them see.

        Collective: every rank calls it, in the same order.

        Parameters
        ----------
        q : array [local tokens, q_heads, head_dim]
        k : array [local tokens, kv_heads, head_dim]
        v : array [local tokens, kv_heads, value_dim]
            This rank's tokens in local order, in the plan's dtype.
        mask : str
            Name of one of the plan's masks. May be left out if the plan has only one.
        sink : float32 array [q_heads], optional
            A sink logit per query head. Needed if and only if ``plan.shape.sink`` is true.

        Returns
        -------
        Output

        Raises
        ------
        InvalidArgument
            The executor is not prepared, the plan has no such mask, an array has another shape or
            dtype, or ranks meet in different calls.
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
        self._rank.forward(
            mask=index, call=call, q=q, k=k, v=v, sink=sink, out=out, lse=lse, saved=saved
        )
        plan = cast(_core.Plan, self._plan)  # find_mask refuses an executor without one
        return Output(out, lse, saved, plan, call)

    def backward(
        self, dout: Any, q: Any, k: Any, v: Any, output: Output, *, mask: str = "", sink: Any = None
    ) -> Gradients:
        """Computes the gradients of a forward call. Collective.

        Parameters
        ----------
        dout : array [local tokens, q_heads, value_dim]
            Gradient of ``output.out``.
        q, k, v, mask, sink
            The same as in the forward call.
        output : Output
            The result of the forward call.

        Returns
        -------
        Gradients

        Raises
        ------
        InvalidArgument
            As ``forward`` does; also if the executor was prepared for another plan since.
        TransportError
            A peer failed.
        """
        import numpy as np

        if self._plan is None or output.plan != self._plan:
            raise _core.InvalidArgument(
                "backward: expected an executor prepared for the output's plan "
                f"{output.plan.digest}, found {'none' if self._plan is None else self._plan.digest}"
            )
        dout, q, k, v = (
            _array(name, x) for name, x in (("dout", dout), ("q", q), ("k", k), ("v", v))
        )
        dq, dk, dv = (
            np.empty(q.shape, q.dtype),
            np.empty(k.shape, k.dtype),
            np.empty(v.shape, v.dtype),
        )
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


def run_inproc(
    num_ranks: int, body: Callable[[_core.Transport], Any], *, timeout: float = 60.0
) -> list[Any]:
    """Runs ``body(transport)`` on one thread per rank of a group in this process.

    Parameters
    ----------
    num_ranks : int
        Number of ranks, 1 to 4096.
    body : function
        The work of a rank. An exception on one rank ends all of them.
    timeout : float
        Seconds without a byte moving in the whole group after which ranks give up.

    Returns
    -------
    list
        The results of all ranks, in order.

    Raises
    ------
    Exception
        The first exception of a rank that is not merely the echo of another rank's.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.run_inproc(3, lambda transport: transport.rank)
    [0, 1, 2]
    """
    group = _core.inproc_group(num_ranks, timeout=timeout)
    results: list[Any] = [None] * num_ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(group[rank])
        except BaseException as error:
            errors.append(error)
            group[rank].abort(str(error))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            join(thread)
    except BaseException as interrupt:
        for end in group:
            end.abort(type(interrupt).__name__)
        raise
    if errors:
        raise next(
            (error for error in errors if not isinstance(error, _core.TransportError)), errors[0]
        )
    return results
