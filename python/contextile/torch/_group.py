"""Transports and clusters made from groups of torch.distributed."""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING, Any

from contextile import _core

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def _address_here() -> str:
    """Returns an address of this machine that the other hosts of the job can reach.

    It is the address of the interface that leads to MASTER_ADDR.
    """
    master = os.environ.get("MASTER_ADDR", "")
    if master:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((master, 9))  # sends nothing
                return probe.getsockname()[0]
        except OSError:
            pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _check_initialized() -> None:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise _core.InvalidArgument(
            "group: expected a torch.distributed process group, found none; call torch.distributed.init_process_group first"
        )


def _hosts(group: ProcessGroup | None) -> list[Any]:
    """Returns the host name of every rank. Collective."""
    import torch.distributed as dist

    hosts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    return hosts


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def make_transport(
    group: ProcessGroup | None = None, *, timeout: float = 60.0, interface_name: str = ""
) -> _core.Transport:
    """Connects the ranks of a ``torch.distributed`` group over gloo. Collective.

    ``Executor`` does this by itself; call it to choose the network interface. The first rank's
    address is broadcast over the group; the connections are Contextile's own.

    Parameters
    ----------
    group : ProcessGroup, optional
        The ranks to connect. Default: the whole job.
    timeout : float
        Seconds to wait for connections, and later seconds without a byte moving after which peers
        count as lost.
    interface_name : str
        The network interface to use. Default: the one that leads to the first rank.

    Returns
    -------
    Transport
        This rank's end of the group.

    Raises
    ------
    InvalidArgument
        ``torch.distributed`` is not initialized, the group is without this rank, or this build has
        no gloo.
    TransportError
        Not all ranks connected in time.

    Examples
    --------
    Under torchrun, on every rank::

        executor = Executor(make_transport(interface_name="eth0"))
    """
    import torch.distributed as dist

    _check_initialized()
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise _core.InvalidArgument("group: expected one that this rank is in, found another")
    if size == 1:
        return _core.inproc_group(1, timeout=timeout)[0]
    hosts = _hosts(group)
    shared: list[Any] = [None]
    if rank == 0:
        address = "127.0.0.1" if len(set(hosts)) == 1 else _address_here()
        shared = [(address, _free_port(address), uuid.uuid4().hex[:16])]
    dist.broadcast_object_list(shared, src=dist.get_global_rank(group, 0) if group is not None else 0, group=group)
    address, port, run_id = shared[0]
    return _core.gloo_transport(
        rank=rank,
        size=size,
        rendezvous=f"tcp://{address}:{port}",
        run_id=run_id,
        interface_name=interface_name,
        connect_timeout=timeout,
        timeout=timeout,
    )


def cluster_of(group: ProcessGroup | None = None, *, preset: str = "local") -> _core.Cluster:
    """Implements ``Cluster.from_torch``. Collective.

    Hosts become nodes, and the constants are those of the preset.

    Raises
    ------
    InvalidArgument
        Hosts have different numbers of ranks, the ranks of a host are not consecutive, or the preset
        is unknown.
    """
    _check_initialized()
    hosts = _hosts(group)
    runs: list[list[Any]] = []
    for host in hosts:
        if not runs or runs[-1][0] != host:
            runs.append([host, 0])
        runs[-1][1] += 1
    if len({host for host, _ in runs}) != len(runs) or len({count for _, count in runs}) != 1:
        found = ", ".join(f"{count} on {host}" for host, count in runs)
        raise _core.InvalidArgument(f"group: expected as many ranks side by side on every host, found {found}")
    return _core.Cluster.preset(preset, nodes=len(runs), devices_per_node=runs[0][1])
