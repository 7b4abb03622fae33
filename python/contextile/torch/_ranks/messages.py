"""Values that ranks tell each other, as JSON.

Nothing that a peer sends is unpickled, evaluated or looked up by name. Messages have a limited
size, and every caller says which values it takes. A message that does not fit raises
TransportError, which names the rank, on every rank that gets it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from contextile import _core

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

MOST_BYTES = 1 << 24  # of one rank's message
MOST_CHARACTERS = 4000  # of a text in it
_MOST_DIGITS = 20  # of a whole number of 64 bits, with its sign

# Returns what a rank's JSON value means; raises InvalidArgument for a value that does not fit.
Check = Callable[[Any], Any]


# --------------------------------------------------------------------------------- text of messages


def encoded(value: Any) -> bytes:
    """Returns the JSON of None, booleans, numbers, texts, lists and dicts."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _whole_of(digits: str) -> int:
    if len(digits) > _MOST_DIGITS or not -(2**63) <= int(digits) < 2**63:
        raise _core.InvalidArgument(
            f"expected whole numbers of 64 bits, found one of {len(digits)} digits"
        )
    return int(digits)


def _float_of(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _core.InvalidArgument(f"expected numbers of 64 bits, found {digits:.20}")
    return value


def _refuse_constant(name: str) -> Any:
    raise _core.InvalidArgument(f"expected JSON, found {name}")


def _dict_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _core.InvalidArgument("expected fields of different names, found one twice")
    return found


def decoded(data: bytes) -> Any:
    """Returns the value of JSON text. Raises InvalidArgument for anything else."""
    try:
        return json.loads(
            data.decode(),
            parse_int=_whole_of,
            parse_float=_float_of,
            parse_constant=_refuse_constant,
            object_pairs_hook=_dict_of,
        )
    except UnicodeDecodeError as error:
        raise _core.InvalidArgument(
            f"expected UTF-8, found byte {data[error.start]:#04x} at {error.start}"
        ) from None
    except json.JSONDecodeError as error:
        raise _core.InvalidArgument(f"expected JSON, found other text at {error.pos}") from None
    except RecursionError:
        raise _core.InvalidArgument("expected JSON of a few levels, found too many") from None


# --------------------------------------------------------------------------------- checks of values


def shown(value: Any) -> str:
    """Describes a value of a message in a few words."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    return f"{value[:40]!a}" if isinstance(value, str) else json.dumps(value)


def whole(value: Any, least: int, most: int) -> int:
    """Returns a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _core.InvalidArgument(
            f"expected a whole number from {least} to {most}, found {shown(value)}"
        )
    return value


def text(value: Any, most: int = MOST_CHARACTERS) -> str:
    """Returns a text of at most ``most`` characters, safe to print: others than those that can be
    printed are escaped, line feeds included."""
    if not isinstance(value, str) or len(value) > most:
        raise _core.InvalidArgument(
            f"expected a text of at most {most} characters, found "
            + (f"one of {len(value)}" if isinstance(value, str) else shown(value))
        )
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)


def items(value: Any, check: Check) -> list[Any]:
    """Returns a list whose items pass a check."""
    if not isinstance(value, list):
        raise _core.InvalidArgument(f"expected a list, found {shown(value)}")
    return [check(item) for item in value]


def fields(value: Any, *names: str) -> list[Any]:
    """Returns the values of an object that has exactly these fields, in their order."""
    if not isinstance(value, dict) or set(value) != set(names):
        found = (
            f"fields {', '.join(map(ascii, list(value)[:8]))}"
            if isinstance(value, dict)
            else shown(value)
        )
        raise _core.InvalidArgument(
            f"expected an object with {', '.join(names)}, found {found:.200}"
        )
    return [value[name] for name in names]


# ------------------------------------------------------------------------------------------ gathers


def gather(
    all_gather: Callable[[bytes], list[bytes]], where: str, value: Any, check: Check
) -> list[Any]:
    """Returns the values of all ranks, by rank, as ``check`` returns them. Collective.

    ``all_gather`` returns the bytes of all ranks, of which all give equally many. Raises
    TransportError on every rank if a rank sent a value that ``check`` does not take, or no JSON.
    """
    mine = encoded(value)
    sizes = [int.from_bytes(size, "little") for size in all_gather(len(mine).to_bytes(8, "little"))]
    for rank, size in enumerate(sizes):
        if not 0 < size <= MOST_BYTES:
            raise _core.TransportError(
                f"{where}: message of rank {rank}: expected 1 to {MOST_BYTES} bytes, found {size}"
            )
    values = []
    for rank, padded in enumerate(all_gather(mine.ljust(max(sizes), b"\0"))):
        try:
            values.append(check(decoded(padded[: sizes[rank]])))
        except _core.InvalidArgument as error:
            raise _core.TransportError(f"{where}: message of rank {rank}: {error}") from None
    return values


def device_of(group: ProcessGroup | None) -> torch.device:
    """Returns the device of tensors that a group communicates: the CPU unless it takes none."""
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if "cpu" in kinds or not kinds[0]:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())


def gather_over(group: ProcessGroup | None, where: str, value: Any, check: Check) -> list[Any]:
    """Does the same by tensors over a group of ``torch.distributed``. Collective."""
    device, num_ranks = device_of(group), dist.get_world_size(group)

    def all_gather(data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
        parts = [torch.empty_like(mine) for _ in range(num_ranks)]
        dist.all_gather(parts, mine, group=group)
        return [part.cpu().numpy().tobytes() for part in parts]

    return gather(all_gather, where, value, check)
