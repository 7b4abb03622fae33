"""Transports and clusters made from groups of torch.distributed."""

from __future__ import annotations

import atexit
import ipaddress
import os
import random
import re
import socket
import time
import uuid
import weakref
from typing import TYPE_CHECKING, Any

from contextile import _checks, _core
from contextile.torch._ranks import messages

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

TIMEOUT_S = 60.0  # without a byte moving, after which peers count as lost
_LONGEST_LOOK_S = 0.1  # between looks for ranks that have not come


class Connection:
    """The transport between the ranks of a group, and the folder for records of its failures."""

    def __init__(self, transport: _core.Transport, flight_folder: str) -> None:
        self.transport, self.flight_folder = transport, flight_folder


# The connection that was made last, by group. Making one is collective, so all ranks have the same.
_connections: weakref.WeakKeyDictionary[Any, Connection] = weakref.WeakKeyDictionary()
_num_meetings: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by group
# Ranks say goodbye while the interpreter still works.
atexit.register(_connections.clear)


def _address_here() -> str:
    """Returns an address of this machine that the other hosts of the job can reach.

    It is the address of the interface that leads to MASTER_ADDR.
    """
    master = os.environ.get("MASTER_ADDR", "")
    if master:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((master, 9))  # sends nothing
                here: str = probe.getsockname()[0]
                return here
        except OSError:
            pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def check_initialized() -> None:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise _core.InvalidArgument(
            "group: expected a torch.distributed process group, found none; call "
            "torch.distributed.init_process_group first"
        )


def _object_of(group: ProcessGroup | None) -> Any:
    import torch.distributed as dist

    return dist.group.WORLD if group is None else group


def _await_all(group: ProcessGroup | None, where: str, timeout: float) -> None:
    """Returns when all ranks have called it. Raises TransportError that names those that did not.

    The ranks meet in the store of the group, which says who came. A group without a store (over
    MPI) meets in its next collective, which has the group's own timeout.
    """
    import torch.distributed as dist

    key = _object_of(group)
    number = _num_meetings[key] = _num_meetings.get(key, 0) + 1
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    c10d = dist.distributed_c10d
    store = c10d._get_process_group_store(key)  # noqa: SLF001  # torch has no other way to it
    if store is None or size == 1:
        return
    began, look_s = time.monotonic(), 0.001
    came, outcome = f"contextile/{number}", f"contextile/{number}/outcome"
    store.set(f"{came}/{rank}", "")
    num_there = store.add(came, 1)
    while num_there < size and time.monotonic() - began <= timeout and not store.check([outcome]):
        time.sleep(look_s)
        look_s = min(2 * look_s, _LONGEST_LOOK_S)
        num_there = store.add(came, 0)
    # The first rank that saw all of them, or gave up, decides for all.
    if store.compare_set(outcome, "", "all" if num_there == size else "some") == b"all":
        return
    missing = [str(other) for other in range(size) if not store.check([f"{came}/{other}"])]
    if not missing:
        raise _core.TransportError(f"{where}: rank {rank} came when others had given up waiting")
    raise _core.TransportError(
        f"{where}: rank {rank}: rank{'s' if len(missing) > 1 else ''} {', '.join(missing)} of "
        f"{size} did not come in {timeout:g} s (timeout)"
    )


def _hosts(group: ProcessGroup | None) -> list[str]:
    """Returns the host name of every rank. Collective."""
    found: list[str] = messages.gather_over(
        group, "group, hosts", socket.gethostname(), lambda name: messages.text(name, 255)
    )
    return found


def free_port(address: str) -> int:
    """Returns a port without a listener, for a socket that is made later.

    The system gives its ephemeral ports to any connection in the meantime, so one below them is
    tried first.
    """
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first_ephemeral = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first_ephemeral = 0
    draw = random.SystemRandom()
    tried = [draw.randrange(10_000, first_ephemeral) for _ in range(64) if first_ephemeral > 10_000]
    for port in [*tried, 0]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                if port == 0:
                    raise
                continue
            found: int = probe.getsockname()[1]
            return found
    raise AssertionError("port 0 is tried last")


def _check_rendezvous(value: Any) -> tuple[str, int, str] | None:
    """Returns the address, the port and the run that a rank announces; None if it does not."""
    if value is None:
        return None
    address, port, run_id = messages.fields(value, "address", "port", "run_id")
    try:
        address = str(ipaddress.IPv4Address(messages.text(address)))
    except ValueError:
        raise _core.InvalidArgument(
            f"expected an IPv4 address, found {messages.shown(address)}"
        ) from None
    if re.fullmatch("[0-9a-f]{16}", messages.text(run_id)) is None:
        raise _core.InvalidArgument(
            f"expected a run of 16 hexadecimal digits, found {messages.shown(run_id)}"
        )
    return address, messages.whole(port, 1, 65535), run_id


def connect(
    group: ProcessGroup | None, *, timeout: float, interface_name: str = "", flight_folder: str = ""
) -> _core.Transport:
    """Implements ``make_transport``. Exchanges without a plan in the same group use it, too."""
    import torch.distributed as dist

    check_initialized()
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise _core.InvalidArgument("group: expected one that this rank is in, found another")
    if size == 1:
        return _core.inproc_group(1, timeout=timeout)[0]
    _await_all(group, "make_transport", timeout)
    hosts = _hosts(group)
    announced = None
    if rank == 0:
        address = "127.0.0.1" if len(set(hosts)) == 1 else _address_here()
        announced = {
            "address": address,
            "port": free_port(address),
            "run_id": uuid.uuid4().hex[:16],
        }
    rendezvous = messages.gather_over(group, "group, rendezvous", announced, _check_rendezvous)[0]
    if rendezvous is None:
        raise _core.TransportError(
            "group, rendezvous: message of rank 0: expected its address, found none"
        )
    address, port, run_id = rendezvous
    transport = _core.gloo_transport(
        rank=rank,
        size=size,
        rendezvous=f"tcp://{address}:{port}",
        run_id=run_id,
        interface_name=interface_name,
        connect_timeout=timeout,
        timeout=timeout,
    )
    _connections[_object_of(group)] = Connection(transport, flight_folder)
    return transport


def connection_of(group: ProcessGroup | None) -> Connection:
    """Returns the connection of a group. Collective if it has none yet."""
    key = _object_of(group)
    if key not in _connections:
        connect(group, timeout=TIMEOUT_S)
    return _connections[key]


def make_transport(
    group: ProcessGroup | None = None, *, timeout: float = TIMEOUT_S, interface_name: str = ""
) -> _core.Transport:
    """Connects the ranks of a ``torch.distributed`` group over gloo. Collective.

    ``Executor`` does this by itself; call it to choose the network interface. The first rank's
    address goes over the group; the connections are Contextile's own. Calls that take the group
    instead of an executor, such as ``collect``, use the transport that was made last.

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
        Not all ranks connected in time; it names those that did not come.

    Examples
    --------
    Under torchrun, on every rank::

        executor = Executor(make_transport(interface_name="eth0"))
    """
    return connect(
        group,
        timeout=_checks.number("make_transport, timeout", timeout),
        interface_name=interface_name,
    )


def cluster_of(
    group: ProcessGroup | None = None, *, preset: str = "local", timeout: float = TIMEOUT_S
) -> _core.Cluster:
    """Implements ``Cluster.from_torch``. Collective.

    Hosts become nodes, and the constants are those of the preset. ``timeout`` is the number of
    seconds to wait for ranks.

    Raises
    ------
    InvalidArgument
        Hosts have different numbers of ranks, the ranks of a host are not consecutive, or the
        preset is unknown.
    TransportError
        Not all ranks came in time.
    """
    check_initialized()
    _await_all(group, "from_torch", timeout)
    hosts = _hosts(group)
    runs: list[list[Any]] = []
    for host in hosts:
        if not runs or runs[-1][0] != host:
            runs.append([host, 0])
        runs[-1][1] += 1
    if len({host for host, _ in runs}) != len(runs) or len({count for _, count in runs}) != 1:
        found = ", ".join(f"{count} on {host}" for host, count in runs)
        raise _core.InvalidArgument(
            f"group: expected as many ranks side by side on every host, found {found}"
        )
    return _core.Cluster.preset(preset, nodes=len(runs), devices_per_node=runs[0][1])
