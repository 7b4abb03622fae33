"""Messages of peers: JSON with checks, and clear errors for all that a peer must not send."""

from __future__ import annotations

import json
import os
import pickle
import threading

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from contextile.torch import Executor, Pool, gather_lengths
from contextile.torch._execute.agreement import agree, agreed
from contextile.torch._ranks import messages
from contextile.torch._ranks.peers import Peers
from ranks import run_ranks


class Command:
    """An object whose pickle runs a command where it is read."""

    def __init__(self, folder) -> None:
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


# Messages that a peer must not send, and what the error says.
MALFORMED = [
    (b"\xff\xfe", "expected UTF-8, found byte 0xff at 0"),
    (b'{"problem": "", ', "expected JSON, found other text at"),
    (b"[" * 100_000, "expected JSON of a few levels, found too many"),
    (
        b'{"problem":"","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "expected JSON of a few levels, found too many",
    ),
    (b'{"problem":"","value":[NaN]}', "expected JSON, found NaN"),
    (b'{"problem":"","value":[Infinity]}', "expected JSON, found Infinity"),
    (b'{"problem":"","value":[1e999]}', "expected numbers of 64 bits, found 1e999"),
    (
        b'{"problem":"","value":[' + b"9" * 100_000 + b"]}",
        "expected whole numbers of 64 bits, found one of 100000 digits",
    ),
    (
        b'{"problem":"","value":[9223372036854775808]}',
        "expected whole numbers of 64 bits, found one of 19 digits",
    ),
    (
        b'{"problem":"","problem":"","value":[1]}',
        "expected fields of different names, found one twice",
    ),
    (
        b'{"problem":"","value":[1],"more":1}',
        "expected an object with problem, value, found fields 'problem', 'value', 'more'",
    ),
    (b'{"problem":""}', "expected an object with problem, value, found fields 'problem'"),
    (b"[]", "expected an object with problem, value, found a list of 0"),
    (b'{"problem":1,"value":[1]}', "expected a text of at most 4000 characters, found 1"),
    (
        b'{"problem":"%s","value":null}' % (b"x" * 4001),
        "expected a text of at most 4000 characters, found one of 4001",
    ),
    (b'{"problem":"","value":7}', "expected a list, found 7"),
    (b'{"problem":"","value":["7"]}', "expected a whole number from 1 to .*, found '7'"),
    (b'{"problem":"","value":[true]}', "expected a whole number from 1 to .*, found true"),
    (b'{"problem":"","value":[0]}', "expected a whole number from 1 to .*, found 0"),
    (b'{"problem":"","value":[1.5]}', "expected a whole number from 1 to .*, found 1.5"),
    (pickle.dumps(("", [1])), "expected UTF-8, found byte 0x80 at 0"),
]


def on_threads(bodies):
    """The results or the errors of the ranks' bodies; ranks are threads."""
    found = [None] * len(bodies)

    def run(rank, transport):
        try:
            found[rank] = bodies[rank](transport)
        except Exception as error:
            found[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank, transport))
        for rank, transport in enumerate(ct.inproc_group(len(bodies), timeout=60))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def says(message: bytes):
    """A rank that sends these bytes in place of its message."""

    def body(transport):
        sizes = [
            int.from_bytes(size, "little")
            for size in transport.all_gather(len(message).to_bytes(8, "little"))
        ]
        if max(sizes) <= messages.MOST_BYTES:
            transport.all_gather(message.ljust(max(sizes), b"\0"))

    return body


def lengths_of(transport):
    executor = Executor(transport)
    pool = Pool(
        executor,
        neighbourhoods=executor.size,
        cluster=f"local:1x{executor.size}",
        heads=(4, 2),
        head_dim=32,
    )
    return gather_lengths([50, 20], pool)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_message_that_does_not_fit_is_an_error_that_names_its_rank(num_ranks):
    for message, expected in MALFORMED:
        found = on_threads([*[lengths_of] * (num_ranks - 1), says(message)])
        for error in found[:-1]:
            assert isinstance(error, ct.TransportError), (message[:40], error)
            assert f"gather_lengths: message of rank {num_ranks - 1}: " in str(error)
            with pytest.raises(ct.TransportError, match=expected):
                raise error


def test_a_message_without_end_is_refused_before_it_comes():
    def body(transport):
        transport.all_gather((2**63).to_bytes(8, "little"))

    found, _ = on_threads([lengths_of, body])
    with pytest.raises(
        ct.TransportError,
        match="message of rank 1: expected 1 to 16777216 bytes, found 9223372036854775808",
    ):
        raise found


def test_no_code_of_a_peer_runs(tmp_path):
    mark = tmp_path / "mark"
    found, _ = on_threads([lengths_of, says(pickle.dumps(("", Command(mark))))])
    assert isinstance(found, ct.TransportError)
    assert not mark.exists()


def test_a_peers_text_gives_a_terminal_no_orders():
    text = "a problem\x1b[2J\r\n\u202etxet"
    message = json.dumps({"problem": text, "value": None}).encode()
    found, _ = on_threads([lengths_of, says(message)])
    assert str(found) == r"gather_lengths, rank 1: a problem\x1b[2J\r\n\u202etxet"


def test_values_and_problems_come_to_every_rank():
    def body(transport):
        executor = Executor(transport)
        found = agreed(executor, "here", None, [transport.rank, [None, True, "ä\n", 2.5]])
        with pytest.raises(ct.InvalidArgument, match="^here, rank 1: OSError: odd .ud800$"):
            agreed(executor, "here", OSError("odd \ud800") if transport.rank == 1 else None)
        return found

    def owner(transport):
        executor = Executor(transport)
        found = agreed(executor, "here", None, [transport.rank, [None, True, "ä\n", 2.5]])
        with pytest.raises(OSError, match="odd"):  # its own class on the rank itself
            agreed(executor, "here", OSError("odd \ud800"))
        return found

    expected = [[rank, [None, True, "ä\n", 2.5]] for rank in range(3)]
    assert on_threads([body, owner, body]) == [expected] * 3


def test_settings_are_compared_as_json():
    def body(transport):
        executor = Executor(transport)
        one = {
            "dtype": torch.float32,
            "sizes": [(1, 2), (3,)],
            "flag": True,
            "count": 3,
            "none": None,
        }
        agree(executor, "here", **one)
        with pytest.raises(
            ct.InvalidArgument,
            match="^here: expected the same dtype on all ranks, found 'torch.float32' on "
            "rank 0 and 'torch.bfloat16' on rank 2$",
        ):
            agree(
                executor,
                "here",
                **{**one, "dtype": torch.bfloat16 if transport.rank == 2 else torch.float32},
            )
        with pytest.raises(ct.InvalidArgument, match="expected the same sizes on all ranks, found"):
            agree(executor, "here", **{**one, "sizes": [[1, 2 + transport.rank]]})
        large = 10**5000
        agree(executor, "here", count=large, sizes=[2**63, -(2**63)])
        with pytest.raises(
            ct.InvalidArgument,
            match="^here: expected the same count on all ranks, found '0x8000000000000000' on "
            "rank 0 and '0x8000000000000001' on rank 1$",
        ):
            agree(executor, "here", count=2**63 + transport.rank)
        return "all"

    assert on_threads([body] * 3) == ["all"] * 3


def over_a_group():
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    peers = Peers(rank, size, None)  # without a transport, as where the build has no gloo
    assert peers.told(
        "here", {"rank": rank}, lambda value: messages.fields(value, "rank")[0]
    ) == list(range(size))
    assert peers.numbers("here", [rank, -1]) == [[other, -1] for other in range(size)]
    with pytest.raises(
        ct.TransportError,
        match="^here: message of rank 1: expected a whole number from 0 to 0, found 1$",
    ):
        peers.told("here", rank, lambda value: messages.whole(value, 0, 0))
    # A message is as long as the longest.
    texts = peers.told("here", "x" * 1000 * rank, messages.text)
    assert texts == ["x" * 1000 * other for other in range(size)]


@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_values_go_over_a_group_of_torch(num_ranks):
    run_ranks(over_a_group, num_ranks)


def announces_another_address():
    import torch.distributed as dist

    from contextile.torch import make_transport
    from contextile.torch._ranks import group as group_module

    if dist.get_rank() == 0:
        told = messages.gather_over

        def gather_over(group, where, value, check):
            if where == "group, rendezvous":
                value = {**value, "address": "example.org; true"}
            return told(group, where, value, check)

        group_module.messages.gather_over = gather_over
    with pytest.raises(
        ct.TransportError,
        match="^group, rendezvous: message of rank 0: expected an IPv4 address, found 'exam",
    ):
        make_transport(timeout=60)


@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
def test_a_rendezvous_is_an_address():
    run_ranks(announces_another_address, 2)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_tensors_of_any_shape_move_and_add_up(num_ranks):
    def body(transport):
        rank, size = transport.rank, transport.size
        peers = Peers(rank, size, None, transport)
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float64):
            for shape in ((), (1,), (7,), (0, 3), (2, 3, 5)):
                whole = torch.arange(3 * max(torch.Size(shape).numel(), 1)).to(dtype)
                whole = whole[: torch.Size(shape).numel()].reshape(shape)
                assert torch.equal(
                    torch.stack(peers.everyones("all", whole + rank)),
                    torch.stack([whole + r for r in range(size)]),
                )
                assert torch.equal(peers.sum("sum", whole + rank), size * whole + sum(range(size)))
        # One element with a stride, as columns have them.
        column = torch.arange(12).reshape(3, 4)[:1, 3]
        assert [part.tolist() for part in peers.everyones("column", column + rank)] == [
            [3 + r] for r in range(size)
        ]
        # Rank a sends a + b rows of a to rank b.
        rows = torch.full((sum(rank + other for other in range(size)), 2), float(rank))
        counts = [rank + other for other in range(size)]
        found = peers.exchange("rows", rows, counts, counts)
        assert found[:, 0].tolist() == [
            float(other) for other in range(size) for _ in range(rank + other)
        ]
        return "all"

    assert on_threads([body] * num_ranks) == ["all"] * num_ranks


def test_a_rendezvous_is_at_no_port_that_connections_are_given():
    from contextile.torch._ranks.group import free_port

    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first = int(file.read().split()[0])
    ports = {free_port("127.0.0.1") for _ in range(20)}
    assert len(ports) > 10  # groups that are made at once rarely draw the same
    assert first <= 10_000 or all(10_000 <= port < first for port in ports)
