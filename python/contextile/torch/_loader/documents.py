"""Documents of a dataset and their fields, which are checked so that none is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from contextile import _checks, _core
from contextile.torch._batch.layout import finite_numbers, truth_values, whole_numbers


class Documents(Protocol):
    """A dataset: ``dataset[i]`` has the tokens of document i.

    An attribute ``lengths``, with the tokens of every document, is optional; without it every
    document is read once.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class Piece(NamedTuple):
    """A document of the dataset, or a part of it, in a batch."""

    document: int  # index in the dataset
    begin: int  # first token, in the document
    end: int  # behind the last token

    @property
    def num_tokens(self) -> int:
        return self.end - self.begin


OWN_FIELDS = ("tokens", "labels", "loss_mask", "loss_weights", "shift_labels")
_REMEDIES = "sequence_fields= names fields of whole documents, ignore_fields= those to leave out"


def _names_of(option: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise _core.InvalidArgument(f"{option}: expected names, found the text {names!r:.80}")
    if not hasattr(names, "__iter__"):
        raise _core.InvalidArgument(f"{option}: expected names, found {names!r:.80}")
    return tuple(_checks.text(option, name) for name in names)


def _count_of(dataset: Any) -> int:
    """Returns the number of documents. Raises InvalidArgument if they cannot be read by number."""
    try:
        count = len(dataset)
        if count > 0 and (
            isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__")
        ):
            raise TypeError
        return count
    except (TypeError, NotImplementedError):
        raise _core.InvalidArgument(
            "dataset: expected one with len(dataset) and dataset[i], because documents are dealt "
            f"by number, found {type(dataset).__name__}"
            + (", which can only be iterated" if hasattr(dataset, "__iter__") else "")
        ) from None


class DocumentReader:
    """Reads documents. All must have the fields of the first one that was read.

    Fields are the tokens, labels (shifted or not), loss mask and weights, further fields with a row
    per token, and those of ``sequence_fields``, with one value per document.
    """

    def __init__(
        self, dataset: Any, *, ignore_fields: Iterable[str], sequence_fields: Iterable[str]
    ) -> None:
        self._dataset = dataset
        self._ignored = frozenset(_names_of("ignore_fields", ignore_fields))
        self.sequence_fields = _names_of("sequence_fields", sequence_fields)
        bad = [name for name in self.sequence_fields if name in OWN_FIELDS or name in self._ignored]
        if bad:
            raise _core.InvalidArgument(
                f"sequence_fields: expected names other than {', '.join(OWN_FIELDS)} and those of "
                f"ignore_fields, found {', '.join(bad)}"
            )
        self._has_ignored = False  # the first document that was read
        self._lengths: list[int] | None = None
        self._first: int | None = None  # the first document that was read
        # Dtype and shape of its fields: of one token, or of the whole document.
        self._forms: dict[str, tuple[torch.dtype, torch.Size]] = {}
        self._kept: dict[int, dict[str, Tensor]] = {}

    def lengths(self) -> list[int]:
        """Returns the number of tokens of every document."""
        if self._lengths is None:
            lengths = getattr(self._dataset, "lengths", None)
            count = _count_of(self._dataset)
            if lengths is None:
                lengths = [len(self._fields_of(i)["tokens"]) for i in range(count)]
            if len(lengths) != count:
                raise _core.InvalidArgument(
                    f"dataset: expected a length for each of {count} documents, found "
                    f"{len(lengths)}"
                )
            self._lengths = [_checks.whole("dataset: lengths", length) for length in lengths]
        return self._lengths

    def names(self, document: int) -> list[str]:
        """Returns the names of the fields that documents have, reading one if none was read."""
        if self._first is None:
            self.read(document)
        return list(self._forms)

    def keep(self, documents: Iterable[int]) -> None:
        """Keeps these documents once they are read, and no others."""
        self._kept = {document: self._kept.get(document, {}) for document in documents}

    def read(self, document: int) -> dict[str, Tensor]:
        """Returns the fields of a document."""
        if self._kept.get(document):
            return self._kept[document]
        fields = self._fields_of(document)
        expected = self.lengths()[document]
        if fields["tokens"].shape != (expected,):
            raise _core.InvalidArgument(
                f"dataset: expected [{expected}] tokens in document {document}, found "
                f"{list(fields['tokens'].shape)}"
            )
        self._check_form(document, fields)
        if document in self._kept:
            self._kept[document] = fields
        return fields

    def rows(self, pieces: Sequence[Piece], is_needed: Sequence[bool]) -> dict[str, Tensor]:
        """Returns the fields with a row per token, of a batch: the pieces' rows, end to end.

        Rows of pieces that are not needed are zeros.
        """
        count = sum(piece.num_tokens for piece in pieces)
        rows: dict[str, Tensor] = {"tokens": torch.zeros(count, dtype=torch.int64)}
        at = 0
        for piece, needed in zip(pieces, is_needed, strict=True):
            if needed:
                for name, field in self.read(piece.document).items():
                    if name in self.sequence_fields:
                        continue
                    if name not in rows:
                        rows[name] = field.new_zeros((count, *field.shape[1:]))
                    rows[name][at : at + piece.num_tokens] = field[piece.begin : piece.end]
            at += piece.num_tokens
        for name in self._forms.keys() - rows.keys() - set(self.sequence_fields):
            dtype, shape = self._forms[name]  # of a rank that needs no piece
            rows[name] = torch.zeros((count, *shape), dtype=dtype)
        return rows

    def targets(self, pieces: Sequence[Piece], ignore_index: int) -> Tensor:
        """Returns the label that each token is, or has if labels are shifted.

        It is ``ignore_index`` where none is wanted.
        """
        parts = [torch.zeros(0, dtype=torch.int64)]
        for piece in pieces:
            fields, part = self.read(piece.document), slice(piece.begin, piece.end)
            labels = fields.get("shift_labels", fields.get("labels", fields["tokens"]))[part]
            if "loss_mask" in fields:
                labels = torch.where(fields["loss_mask"][part], labels, ignore_index)
            parts.append(labels)
        return torch.cat(parts)

    def values(self, pieces: Sequence[Piece]) -> dict[str, Tensor]:
        """Returns the fields of whole documents, [pieces, ...] each."""
        return {
            name: torch.stack([self.read(piece.document)[name] for piece in pieces])
            for name in self.sequence_fields
        }

    # ------------------------------------------------------------------------------------- checks

    def _fields_of(self, document: int) -> dict[str, Tensor]:
        item = self._dataset[document]
        if not isinstance(item, dict):
            item = {"tokens": item}
        missing = sorted(self._ignored - item.keys())
        if missing and not self._has_ignored:
            raise _core.InvalidArgument(
                f"ignore_fields: expected fields of document {document}, "
                f"{', '.join(map(str, item))}, found {', '.join(missing)}"
            )
        self._has_ignored = True  # later documents may lack them
        item = {name: value for name, value in item.items() if name not in self._ignored}
        for name in OWN_FIELDS[1:]:
            if name in item and item[name] is None:
                del item[name]
        if "tokens" not in item:
            raise _core.InvalidArgument(
                f"dataset: expected 'tokens' of document {document}, found "
                f"{', '.join(map(str, item)) or 'none'}"
            )
        fields = {}
        for name, value in item.items():
            try:
                fields[name] = torch.as_tensor(value)
            except (TypeError, ValueError, RuntimeError, OverflowError):
                raise _core.InvalidArgument(
                    f"dataset: expected numbers in {name} of document {document}, found "
                    f"{type(value).__name__} {value!r:.60}"
                ) from None
        tokens = fields["tokens"] = whole_numbers(f"dataset: document {document}", fields["tokens"])
        if tokens.ndim != 1:
            raise _core.InvalidArgument(
                f"dataset: expected [tokens] tokens of document {document}, found "
                f"{list(tokens.shape)}"
            )
        for name, field in fields.items():
            where = f"dataset: {name} of document {document}"
            if name in self.sequence_fields:
                continue
            own = name in OWN_FIELDS
            if field.ndim == 0 or field.shape[0] != len(tokens) or (own and field.ndim > 1):
                raise _core.InvalidArgument(
                    f"dataset: expected [{len(tokens)}{'' if own else ', …'}] {name} of document "
                    f"{document}, as tokens, found "
                    f"{list(field.shape)}" + ("" if own else f"; {_REMEDIES}")
                )
            if name in ("labels", "shift_labels"):
                fields[name] = whole_numbers(where, field)
            elif name == "loss_mask":
                fields[name] = truth_values(where, field)
            elif name == "loss_weights":
                fields[name] = finite_numbers(where, field)
        return fields

    def _check_form(self, document: int, fields: dict[str, Tensor]) -> None:
        forms = {
            name: (field.dtype, field.shape if name in self.sequence_fields else field.shape[1:])
            for name, field in fields.items()
        }
        missing = [name for name in self.sequence_fields if name not in forms]
        if missing:
            raise _core.InvalidArgument(
                f"dataset: expected {', '.join(missing)} of document {document} (sequence_fields), "
                f"found {', '.join(forms)}"
            )
        if self._first is None:
            self._first, self._forms = document, forms
        if forms.keys() != self._forms.keys():
            raise _core.InvalidArgument(
                f"dataset: expected {', '.join(self._forms)} of document {document}, as of "
                f"document {self._first}, found {', '.join(forms)}"
            )
        for name, form in forms.items():
            if form != self._forms[name]:
                (dtype, shape), (its_dtype, its_shape) = self._forms[name], form
                raise _core.InvalidArgument(
                    f"dataset: expected {dtype} {list(shape)} in {name} of document {document}, as "
                    f"in document {self._first}, found {its_dtype} {list(its_shape)}"
                )
