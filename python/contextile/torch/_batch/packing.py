"""Batches of rows, padded or in lists, as one packed batch of documents, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contextile import _checks, _core
from contextile.torch._batch.layout import tensor_of, truth_values, whole_numbers


def _values(name: str, given: Any) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise _core.InvalidArgument(f"{name}: expected numbers, found {given!r:.80}") from None


class Packed:
    """The tokens of a batch of rows as documents, end to end, without padding. ``pack`` makes it.

    Attributes
    ----------
    tokens : int64 Tensor [tokens of the batch]
        Token ids, for ``local_batch``.
    lengths : list of int
        Tokens of each row, for ``contextile.plan``. Rows are documents, in their order.
    """

    def __init__(
        self, lengths: list[int], shape: tuple[int, int] | None, places: Tensor | None
    ) -> None:
        self.lengths = lengths
        self.tokens: Tensor = torch.empty(0, dtype=torch.int64)
        self._shape = shape  # of padded rows; None: a list of sequences
        self._places = places  # of the tokens in the flat padded rows

    def rows(self, field: Any) -> Tensor:
        """Returns a field of the batch, such as labels or a loss mask, packed like its tokens.

        Parameters
        ----------
        field : Tensor [rows, width, ...], or a list of [length, ...]
            Like what ``pack`` was given.

        Returns
        -------
        Tensor [tokens of the batch, ...]

        Raises
        ------
        InvalidArgument
            The field has other rows or lengths than the tokens.
        """
        if self._shape is None:
            if not isinstance(field, Sequence) or isinstance(field, str):
                raise _core.InvalidArgument(
                    f"field: expected a list of {len(self.lengths)} sequences, found {field!r:.80}"
                )
            parts = [_values("field", part) for part in field]
            found = [len(part) if part.dim() > 0 else 0 for part in parts]
            if found != self.lengths:
                raise _core.InvalidArgument(
                    f"field: expected sequences of {self.lengths} values, found {found}"
                )
            if len({part.shape[1:] for part in parts}) > 1:
                raise _core.InvalidArgument(
                    "field: expected values of one shape, found "
                    f"{[list(part.shape) for part in parts[:8]]}"
                )
            return torch.cat(parts)
        tensor = _values("field", field)
        if tuple(tensor.shape[:2]) != self._shape:
            raise _core.InvalidArgument(
                f"field: expected {list(self._shape)}, as the tokens, found {list(tensor.shape)}"
            )
        return tensor.flatten(0, 1)[self._at(tensor.device)]

    def unpack(self, packed: Tensor, *, fill: float = 0) -> Any:
        """Returns rows of the form that ``pack`` was given. Differentiable.

        Parameters
        ----------
        packed : Tensor [tokens of the batch, ...]
            Such as what ``collect`` returns.
        fill : number
            The value of padding.

        Returns
        -------
        Tensor [rows, width, ...], or a list of Tensors [length, ...]

        Raises
        ------
        InvalidArgument
            There are more or fewer tokens than in the batch.
        """
        _checks.number("unpack, fill", fill)
        if tensor_of("unpack", packed).dim() == 0:
            raise _core.InvalidArgument(
                f"unpack: expected {sum(self.lengths)} tokens, found a number"
            )
        if packed.shape[0] != sum(self.lengths):
            raise _core.InvalidArgument(
                f"unpack: expected {sum(self.lengths)} tokens, found {packed.shape[0]}"
            )
        if self._shape is None:
            return list(torch.split(packed, self.lengths))
        rows, width = self._shape
        padded = packed.new_full((rows * width, *packed.shape[1:]), fill)
        padded = padded.index_copy(0, self._at(packed.device), packed)
        return torch.unflatten(padded, 0, (rows, width))

    def _at(self, device: torch.device) -> Tensor:
        assert self._places is not None
        return self._places.to(device)


def _packed_list(sequences: Sequence[Any]) -> Packed:
    parts = [
        whole_numbers(f"tokens: sequence {number}", one) for number, one in enumerate(sequences)
    ]
    for number, part in enumerate(parts):
        if part.dim() != 1 or len(part) == 0:
            raise _core.InvalidArgument(
                f"tokens: sequence {number}: expected a list of tokens, found {list(part.shape)}"
            )
    packed = Packed([len(part) for part in parts], None, None)
    packed.tokens = torch.cat(parts)
    return packed


def _packed_rows(tokens: Tensor, attention_mask: Any) -> Packed:
    shape = tuple(tokens.shape)
    if attention_mask is None:
        is_token = torch.ones(shape, dtype=torch.bool, device=tokens.device)
    else:
        is_token = truth_values("attention_mask", attention_mask).to(tokens.device)
        if tuple(is_token.shape) != shape:
            raise _core.InvalidArgument(
                f"attention_mask: expected {list(shape)}, as the tokens, found "
                f"{list(is_token.shape)}"
            )
    counts = is_token.sum(1)
    # A document is one run of tokens: padding is before it or after it.
    begins = is_token[:, :1].sum(1) + (is_token[:, 1:] & ~is_token[:, :-1]).sum(1)
    for row, (count, runs) in enumerate(zip(counts.tolist(), begins.tolist(), strict=True)):
        if count == 0:
            raise _core.InvalidArgument(
                f"attention_mask: expected tokens in every row, found none in row {row}"
            )
        if runs > 1:
            raise _core.InvalidArgument(
                "attention_mask: expected padding before or after the tokens of a row, found "
                f"{runs - 1} gaps in row {row}"
            )
    packed = Packed(
        counts.tolist(), (shape[0], shape[1]), torch.nonzero(is_token.flatten()).squeeze(1)
    )
    packed.tokens = packed.rows(whole_numbers("tokens", tokens))
    return packed


def pack(tokens: Any, attention_mask: Any = None) -> Packed:
    """Makes one packed batch of a batch of rows.

    Parameters
    ----------
    tokens : int Tensor [rows, width], or a list of sequences of token ids
        The rows may be padded on the left or the right.
    attention_mask : Tensor [rows, width], optional
        1 for tokens and 0 for padding. Default: there is none.

    Returns
    -------
    Packed
        It also packs further fields (``rows``) and makes rows of results (``unpack``).

    Raises
    ------
    InvalidArgument
        A row or sequence has no tokens, or padding between them; the shapes differ; or a list comes
        with an attention mask.

    Examples
    --------
    >>> import torch
    >>> from contextile.torch import pack
    >>> packed = pack(torch.tensor([[7, 8, 9], [5, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]]))
    >>> packed.lengths, packed.tokens.tolist()
    ([3, 1], [7, 8, 9, 5])
    >>> packed.unpack(packed.tokens * 10, fill=-1).tolist()
    [[70, 80, 90], [50, -1, -1]]
    """
    if isinstance(tokens, Tensor):
        if tokens.dim() != 2 or tokens.shape[0] == 0:
            raise _core.InvalidArgument(
                f"tokens: expected [rows, width] or a list, found {list(tokens.shape)}"
            )
        return _packed_rows(tokens, attention_mask)
    if attention_mask is not None:
        raise _core.InvalidArgument(
            "attention_mask: expected none with a list of sequences, found one"
        )
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        raise _core.InvalidArgument(
            f"tokens: expected [rows, width] or a list of sequences, found {tokens!r:.80}"
        )
    if len(tokens) == 0:
        raise _core.InvalidArgument("tokens: expected at least one sequence, found none")
    return _packed_list(tokens)
