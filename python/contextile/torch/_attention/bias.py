"""Biases of scores that attention computes from positions, without an array of tokens by tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile import _checks, _core
from contextile.torch._batch.layout import tensor_of, whole_numbers


class Alibi(NamedTuple):
    """A bias ``slopes[head] * (key position - query position)``; see ``alibi``."""

    slopes: Tensor
    num_tokens: int = 0  # of the longest document for which it is known; 0: any

    def __call__(self, score: Any, batch: Any, head: Any, q_index: Any, k_index: Any) -> Any:
        """Does the same as FlexAttention's ``score_mod``."""
        return score + self.slopes[head] * (k_index - q_index)


class RelativeBias(NamedTuple):
    """A bias ``table[head, bucket of (key position - query position)]``; see ``relative_bias``."""

    table: Tensor
    buckets: Tensor
    first_offset: int
    num_tokens: int = 0  # of the longest document for which it is known; 0: any

    def __call__(self, score: Any, batch: Any, head: Any, q_index: Any, k_index: Any) -> Any:
        """Does the same as FlexAttention's ``score_mod``."""
        at = (k_index - q_index - self.first_offset).clamp(0, self.buckets.shape[0] - 1)
        return score + self.table[head, self.buckets[at]]


class Softcap(NamedTuple):
    """A softcap as FlexAttention's ``score_mod``: ``cap * tanh(score / cap)``."""

    cap: float

    def __call__(self, score: Any, batch: Any, head: Any, q_index: Any, k_index: Any) -> Any:
        return self.cap * torch.tanh(score / self.cap)


Bias = Alibi | RelativeBias


def alibi(slopes: Tensor | Sequence[float] | int) -> Alibi:
    """Returns the bias of ALiBi: ``slopes[head] * (key position - query position)``.

    It is also a ``score_mod`` of FlexAttention.

    Parameters
    ----------
    slopes : Tensor, sequence of float, or int
        A slope per query head, constants; or the number of heads, for the slopes of the paper.

    Returns
    -------
    Alibi

    Examples
    --------
    >>> from contextile.torch import alibi
    >>> alibi(4).slopes
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    if isinstance(slopes, bool):
        raise _core.InvalidArgument(f"alibi: expected slopes or a number of heads, found {slopes}")
    if isinstance(slopes, int):
        slopes = _published_slopes(slopes)
    try:
        found = torch.as_tensor(slopes, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _core.InvalidArgument(
            f"alibi: expected slopes or a number of heads, found {slopes!r:.40}"
        ) from error
    if found.dim() != 1 or len(found) == 0:
        raise _core.InvalidArgument(
            f"alibi: expected a slope per query head, found a tensor of {list(found.shape)}"
        )
    if not bool(found.isfinite().all()):
        raise _core.InvalidArgument(f"alibi: expected finite slopes, found {found.tolist()[:8]}")
    if found.requires_grad:
        raise _core.InvalidArgument(
            "alibi: expected constant slopes, for they get no gradient; found ones with "
            "requires_grad"
        )
    return Alibi(found)


def _published_slopes(heads: int) -> list[float]:
    """Returns the slopes of Press et al., "Train short, test long" (ICLR 2022)."""
    if heads < 1:
        raise _core.InvalidArgument(f"alibi: expected at least 1 head, found {heads}")
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    return slopes + [2.0 ** (-4 * (2 * i + 1) / whole) for i in range(heads - whole)]


def relative_bias(
    table: Tensor, first_offset: int, *, buckets: Tensor | None = None
) -> RelativeBias:
    """Returns a bias by the offset from query to key: ``table[head, bucket(offset)]``.

    It is also a ``score_mod`` of FlexAttention.

    Parameters
    ----------
    table : Tensor [q_heads, num_buckets]
        Biases. The gradient that a rank gets is its share; sum it over the group, like that of any
        parameter that all ranks hold.
    first_offset : int
        The least offset (key position - query position) that has a bucket. Smaller offsets count as
        it, larger ones as the last.
    buckets : integer Tensor [offsets], optional
        Bucket of every offset from the first on. Default: a bucket for each.

    Returns
    -------
    RelativeBias
    """
    if not tensor_of("relative_bias", table).is_floating_point():
        raise _core.InvalidArgument(
            f"relative_bias: expected a table of floating-point numbers, found {table.dtype}"
        )
    if table.dim() != 2 or table.shape[1] < 1:
        raise _core.InvalidArgument(
            f"relative_bias: expected a table [q_heads, num_buckets], found {list(table.shape)}"
        )
    _checks.count("relative_bias, first_offset", first_offset)
    numbers = (
        torch.arange(table.shape[1])
        if buckets is None
        else whole_numbers("relative_bias, buckets", buckets)
    )
    if numbers.dim() != 1:
        raise _core.InvalidArgument(
            f"relative_bias: expected whole numbers of buckets by offset, found {numbers.dtype} "
            f"{list(numbers.shape)}"
        )
    is_known = len(numbers) > 0 and not torch.compiler.is_compiling()
    if is_known and not 0 <= int(numbers.min()) <= int(numbers.max()) < table.shape[1]:
        raise _core.InvalidArgument(
            f"relative_bias: expected buckets below {table.shape[1]}, found {int(numbers.min())} "
            f"to {int(numbers.max())}"
        )
    return RelativeBias(
        table, numbers.to(device="cpu", dtype=torch.int32).contiguous(), first_offset
    )


def t5_bias(table: Tensor, *, bidirectional: bool, max_distance: int = 128) -> RelativeBias:
    """Returns the relative bias of T5.

    Parameters
    ----------
    table : Tensor [q_heads, num_buckets]
        Biases: the transposed weight of ``relative_attention_bias``.
    bidirectional : bool
        Whether later keys have half of the buckets, as in encoders; in decoders they count as the
        query's own.
    max_distance : int
        Distance from which all keys share a bucket.

    Returns
    -------
    RelativeBias
    """
    _checks.flag("t5_bias, bidirectional", bidirectional)
    _checks.count("t5_bias, max_distance", max_distance)
    if tensor_of("t5_bias", table).dim() != 2:
        raise _core.InvalidArgument(
            f"t5_bias: expected a table [q_heads, num_buckets], found {list(table.shape)}"
        )
    if bidirectional and table.shape[1] % 2 != 0:
        raise _core.InvalidArgument(
            "t5_bias: expected an even number of buckets, half of them for later keys, found "
            f"{table.shape[1]}"
        )
    num_buckets = table.shape[1] // 2 if bidirectional else table.shape[1]
    exact = num_buckets // 2
    if exact < 1 or max_distance <= exact:
        raise _core.InvalidArgument(
            f"t5_bias: expected a max_distance above the {exact} distances with buckets of their "
            f"own, at least 1, found {max_distance}"
        )
    offset = torch.arange(-max_distance, max_distance + 1)
    distance = offset.abs() if bidirectional else (-offset).clamp(min=0)
    far = (
        torch.log(distance.float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    )
    bucket = torch.where(distance < exact, distance, exact + far.clamp(min=0).to(torch.int64))
    bucket = bucket.clamp(max=num_buckets - 1)
    if bidirectional:
        bucket = bucket + (offset > 0) * num_buckets
    return relative_bias(table, -max_distance, buckets=bucket)


class Terms(NamedTuple):
    """Bias and dropout as the operators take them."""

    slopes: Tensor | None = None
    table: Tensor | None = None
    buckets: Tensor | None = None
    first_offset: int = 0
    dropout: float = 0.0
    seed: Tensor | None = None  # int64, one number

    @property
    def has_any(self) -> bool:
        return self.slopes is not None or self.table is not None or self.dropout > 0.0

    def on_host(self) -> Terms:
        """Returns the terms that can be read without waiting for a device."""

        def is_elsewhere(tensor: Tensor | None) -> bool:
            return tensor is not None and tensor.device.type != "cpu"

        found = self._replace(slopes=None) if is_elsewhere(self.slopes) else self
        if is_elsewhere(self.table) or is_elsewhere(self.buckets):
            found = found._replace(table=None, buckets=None)
        return found

    def native(self) -> _core.ScoreTerms | None:
        """Returns them as the library reads them. The tensors lie on the CPU."""
        if not self.has_any:
            return None
        for name, tensor in (
            ("slopes", self.slopes),
            ("table", self.table),
            ("buckets", self.buckets),
        ):
            if tensor is not None and tensor.device.type != "cpu":
                raise _core.InvalidArgument(
                    f"bias: expected {name} on the CPU, found {name} on {tensor.device}"
                )

        def read(
            tensor: Tensor | None,
        ) -> Any:  # the library's functions name arrays of NumPy alone
            return None if tensor is None else tensor.detach().float().contiguous()

        buckets: Any = self.buckets
        return _core.ScoreTerms(
            slopes=read(self.slopes),
            table=read(self.table),
            buckets=buckets,
            num_buckets=0 if self.table is None else self.table.shape[1],
            first_offset=self.first_offset,
            dropout=self.dropout,
            seed=0 if self.seed is None else int(self.seed) & (1 << 64) - 1,
        )


def terms_of(bias: Bias | None, dropout: float, seed: int | Tensor | None) -> Terms:
    """Returns the terms of a call. Raises InvalidArgument on any that there are not."""
    if not isinstance(dropout, (int, float, torch.SymFloat)) or not 0.0 <= dropout < 1.0:
        raise _core.InvalidArgument(f"dropout_p: expected at least 0 and below 1, found {dropout}")
    if dropout > 0.0 and seed is None:
        raise _core.InvalidArgument(
            "dropout_seed: expected a number with dropout_p, the same on every rank and another "
            "for every call, found none"
        )
    drawn = None if seed is None or dropout == 0.0 else _seed_of(seed)
    if isinstance(bias, Alibi):
        if bias.slopes.requires_grad:
            raise _core.InvalidArgument(
                "bias: expected constant slopes, for they get no gradient; found ones with "
                "requires_grad"
            )
        return Terms(slopes=bias.slopes, dropout=dropout, seed=drawn)
    if isinstance(bias, RelativeBias):
        return Terms(
            table=bias.table,
            buckets=bias.buckets,
            first_offset=bias.first_offset,
            dropout=dropout,
            seed=drawn,
        )
    if bias is not None:
        raise _core.InvalidArgument(
            "bias: expected what alibi, relative_bias or t5_bias returns, found "
            f"{type(bias).__name__}"
        )
    return Terms(dropout=dropout, seed=drawn)


def _seed_of(seed: Any) -> Tensor:
    if isinstance(seed, Tensor):
        if seed.numel() == 1 and seed.dtype in (torch.int64, torch.int32):
            return seed.to(torch.int64).reshape(1)
        raise _core.InvalidArgument(
            f"dropout_seed: expected a whole number of 64 bits, found a tensor of {seed.dtype} "
            f"{list(seed.shape)}"
        )
    if (
        not isinstance(seed, (int, torch.SymInt))
        or isinstance(seed, bool)
        or not -(1 << 63) <= seed < 1 << 63
    ):
        raise _core.InvalidArgument(
            f"dropout_seed: expected a whole number of 64 bits, found {seed!r:.40}"
        )
    return torch.as_tensor(seed, dtype=torch.int64).reshape(1)


def check_known(bias: Bias | None, longest_document: int) -> None:
    """Raises if a bias was recognised for shorter documents only."""
    if bias is not None and 0 < bias.num_tokens < longest_document:
        raise _core.InvalidArgument(
            f"bias: expected one for documents of {longest_document} tokens, found one that "
            f"from_score_mod recognised for num_tokens={bias.num_tokens}"
        )
