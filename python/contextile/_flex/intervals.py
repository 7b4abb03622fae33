"""Evaluates functions of integers on intervals: the result bounds all values they may take.

Results are never too narrow. Unknown operations raise ``Unsupported``, and the caller evaluates
numbers instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# torch has no types for it.
_broadcast: Callable[..., tuple[Tensor, ...]] = torch.broadcast_tensors
_MOST = 1 << 30  # sums and products of two such numbers fit into 64 bits


class Unsupported(Exception):
    """Raised for an operation that is not implemented on intervals."""


class Interval:
    """Integers from ``low`` to ``high``, both included, with one interval per element.

    Truth values are 0 and 1.
    """

    def __init__(self, low: Tensor, high: Tensor, is_narrow: bool = False) -> None:
        self.low = low
        self.high = high
        self.is_narrow = is_narrow  # fewer than 64 bits: arithmetic might wrap

    @staticmethod
    def of(value: Any) -> Interval:
        """Returns a number or a tensor of integers as intervals of one value each."""
        if isinstance(value, Interval):
            return value
        tensor = torch.as_tensor(value)
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dim() > 1:
            raise Unsupported(f"a constant of {tensor.dtype} with shape {list(tensor.shape)}")
        # A tensor without dimensions takes the type of its partner, like a number.
        is_narrow = tensor.dim() > 0 and tensor.dtype not in (torch.int64, torch.bool)
        tensor = tensor.to(torch.int64)
        return Interval(tensor, tensor, is_narrow)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(function, args, kwargs or {})

    # Python's operators. Those with a tensor on the left arrive through __torch_function__.
    def __add__(self, other: Any) -> Interval:
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Interval:
        return _subtract(self, other)

    def __rsub__(self, other: Any) -> Interval:
        return _subtract(other, self)

    def __mul__(self, other: Any) -> Interval:
        return _multiply(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Interval:
        return _floor_divide(self, other)

    def __mod__(self, other: Any) -> Interval:
        return _remainder(self, other)

    def __neg__(self) -> Interval:
        _numbers(self)
        return Interval(-self.high, -self.low)

    def __abs__(self) -> Interval:
        return _absolute(self)

    def __lt__(self, other: Any) -> Interval:
        return _less(self, other)

    def __le__(self, other: Any) -> Interval:
        return _less_equal(self, other)

    def __gt__(self, other: Any) -> Interval:
        return _less(other, self)

    def __ge__(self, other: Any) -> Interval:
        return _less_equal(other, self)

    def __eq__(self, other: Any) -> Any:
        return _equal(self, other)

    def __ne__(self, other: Any) -> Any:
        return _not(_equal(self, other))

    __hash__ = None  # type: ignore[assignment]  # object declares a method

    def __and__(self, other: Any) -> Interval:
        return _and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Interval:
        return _or(self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Interval:
        return _xor(self, other)

    __rxor__ = __xor__

    def __invert__(self) -> Interval:
        return _not(self)

    def __bool__(self) -> bool:
        raise Unsupported("a decision by a value")

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"attribute {name}")


def _truth(low: Tensor, high: Tensor) -> Interval:
    return Interval(low.to(torch.int64), high.to(torch.int64))


def _numbers(*values: Any) -> list[Interval]:
    """Returns intervals whose sums and products do not wrap. Raises Unsupported otherwise."""
    intervals = [Interval.of(value) for value in values]
    if any(interval.is_narrow for interval in intervals):
        raise Unsupported("arithmetic on integers of fewer than 64 bits")
    for interval in intervals:
        if bool(((interval.low < -_MOST) | (interval.high > _MOST)).any()):
            raise Unsupported("arithmetic on integers that might wrap")
    return intervals


def _add(a: Any, b: Any) -> Interval:
    a, b = _numbers(a, b)
    return Interval(a.low + b.low, a.high + b.high)


def _subtract(a: Any, b: Any) -> Interval:
    a, b = _numbers(a, b)
    return Interval(a.low - b.high, a.high - b.low)


def _multiply(a: Any, b: Any) -> Interval:
    a, b = _numbers(a, b)
    corners = torch.stack(
        _broadcast(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
    )
    return Interval(corners.amin(0), corners.amax(0))


def _constant_above_zero(value: Any, what: str) -> Tensor:
    b = Interval.of(value)
    if not torch.equal(b.low, b.high) or bool((b.low <= 0).any()):
        raise Unsupported(f"{what} by what is no constant above 0")
    return b.low


def _floor_divide(a: Any, b: Any) -> Interval:
    (a,), divisor = _numbers(a), _constant_above_zero(b, "a division")
    return Interval(
        torch.div(a.low, divisor, rounding_mode="floor"),
        torch.div(a.high, divisor, rounding_mode="floor"),
    )


def _remainder(a: Any, b: Any) -> Interval:
    (a,), divisor = _numbers(a), _constant_above_zero(b, "a remainder")
    quotient = _floor_divide(a, divisor)
    is_one = quotient.low == quotient.high
    return Interval(
        torch.where(is_one, a.low % divisor, 0), torch.where(is_one, a.high % divisor, divisor - 1)
    )


def _absolute(a: Any) -> Interval:
    (a,) = _numbers(a)
    crosses = (a.low <= 0) & (a.high >= 0)
    low = torch.where(crosses, 0, torch.minimum(a.low.abs(), a.high.abs()))
    return Interval(low, torch.maximum(a.low.abs(), a.high.abs()))


def _less(a: Any, b: Any) -> Interval:
    a, b = Interval.of(a), Interval.of(b)
    return _truth(a.high < b.low, a.low < b.high)


def _less_equal(a: Any, b: Any) -> Interval:
    a, b = Interval.of(a), Interval.of(b)
    return _truth(a.high <= b.low, a.low <= b.high)


def _equal(a: Any, b: Any) -> Interval:
    a, b = Interval.of(a), Interval.of(b)
    certain = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _truth(certain, (a.low <= b.high) & (b.low <= a.high))


def _bits(a: Any) -> Interval:
    interval = Interval.of(a)
    if bool(((interval.low < 0) | (interval.high > 1)).any()):
        raise Unsupported("bits of numbers")
    return interval


def _and(a: Any, b: Any) -> Interval:
    a, b = _bits(a), _bits(b)
    return Interval(a.low & b.low, a.high & b.high)


def _or(a: Any, b: Any) -> Interval:
    a, b = _bits(a), _bits(b)
    return Interval(a.low | b.low, a.high | b.high)


def _xor(a: Any, b: Any) -> Interval:
    a, b = _bits(a), _bits(b)
    certain = (a.low == a.high) & (b.low == b.high)
    return Interval(torch.where(certain, a.low ^ b.low, 0), torch.where(certain, a.low ^ b.low, 1))


def _not(a: Any) -> Interval:
    a = _bits(a)
    return Interval(1 - a.high, 1 - a.low)


def _where(condition: Any, a: Any, b: Any) -> Interval:
    condition, a, b = _bits(condition), Interval.of(a), Interval.of(b)
    may_a, may_b = condition.high != 0, condition.low == 0
    low = torch.where(may_a & may_b, torch.minimum(a.low, b.low), torch.where(may_a, a.low, b.low))
    high = torch.where(
        may_a & may_b, torch.maximum(a.high, b.high), torch.where(may_a, a.high, b.high)
    )
    return Interval(low, high, a.is_narrow or b.is_narrow)


def _minimum(a: Any, b: Any) -> Interval:
    a, b = Interval.of(a), Interval.of(b)
    return Interval(
        torch.minimum(a.low, b.low), torch.minimum(a.high, b.high), a.is_narrow or b.is_narrow
    )


def _maximum(a: Any, b: Any) -> Interval:
    a, b = Interval.of(a), Interval.of(b)
    return Interval(
        torch.maximum(a.low, b.low), torch.maximum(a.high, b.high), a.is_narrow or b.is_narrow
    )


def _clamp(a: Any, min: Any = None, max: Any = None) -> Interval:
    result = Interval.of(a)
    result = result if min is None else _maximum(result, min)
    return result if max is None else _minimum(result, max)


class _Table:
    """Finds the least and greatest value of any run of a tensor of integers.

    It keeps those of runs of 1, 2, 4, … values from every place.
    """

    def __init__(self, values: Tensor) -> None:
        self.is_narrow = values.dtype not in (torch.int64, torch.bool)
        values = values.to(torch.int64)
        self.least, self.greatest = [values], [values]
        half = 1
        while 2 * half <= len(values):
            for table, of_two in ((self.least, torch.minimum), (self.greatest, torch.maximum)):
                table.append(of_two(table[-1][:-half], table[-1][half:]))
            half *= 2

    def of(self, index: Interval) -> Interval:
        length = (index.high - index.low + 1).clamp(min=1)
        level = torch.floor(torch.log2(length.to(torch.float64))).to(torch.int64)
        low, high = torch.empty_like(index.low), torch.empty_like(index.low)
        for one in torch.unique(level).tolist():
            chosen = level == one
            first, last = index.low[chosen], index.high[chosen] - (1 << one) + 1
            low[chosen] = torch.minimum(self.least[one][first], self.least[one][last])
            high[chosen] = torch.maximum(self.greatest[one][first], self.greatest[one][last])
        return Interval(low, high, self.is_narrow)


def _look_up(values: Tensor, index: Any, tables: dict[Any, _Table]) -> Interval:
    if isinstance(index, tuple):
        *first, index = index
        if not all(isinstance(i, int) or (isinstance(i, Tensor) and i.dim() == 0) for i in first):
            raise Unsupported("an index of several intervals")
        place = tuple(int(i) for i in first)
        key: Any = (id(values), place)
        values = values[place]
    else:
        key = (id(values), ())
    if not isinstance(index, Interval) or values.dim() != 1 or values.is_floating_point():
        raise Unsupported("an index of another form")
    if bool((index.low < 0).any()) or bool((index.high >= len(values)).any()):
        raise Unsupported("an index that may be outside")
    if key not in tables:
        tables[key] = _Table(values)
    return tables[key].of(index)


_NAMES: dict[Callable[..., Interval], str] = {
    _add: "add __add__ __radd__",
    _subtract: "sub subtract __sub__",
    _multiply: "mul multiply __mul__ __rmul__",
    _floor_divide: "floor_divide __floordiv__",
    _remainder: "remainder __mod__",
    _absolute: "abs absolute __abs__",
    _less: "lt less __lt__",
    _less_equal: "le less_equal __le__",
    _equal: "eq __eq__",
    _and: "logical_and bitwise_and __and__ __rand__",
    _or: "logical_or bitwise_or __or__ __ror__",
    _xor: "logical_xor bitwise_xor __xor__ __rxor__",
    _not: "logical_not bitwise_not __invert__",
    _where: "where",
    _minimum: "minimum",
    _maximum: "maximum",
    _clamp: "clamp clip",
}
_FORMS: dict[Any, Callable[..., Interval]] = {}
for _form, _names in _NAMES.items():
    for _name in _names.split():
        for _owner in (torch, Tensor):
            if hasattr(_owner, _name):
                _FORMS[getattr(_owner, _name)] = _form
for _owner in (torch, Tensor):
    for _name, _swapped in {
        "gt": _less,
        "greater": _less,
        "__gt__": _less,
        "ge": _less_equal,
        "__ge__": _less_equal,
        "greater_equal": _less_equal,
        "rsub": _subtract,
        "__rsub__": _subtract,
    }.items():
        if hasattr(_owner, _name):
            _FORMS[getattr(_owner, _name)] = lambda a, b, form=_swapped: form(b, a)
    for _name in ("ne", "not_equal", "__ne__"):
        if hasattr(_owner, _name):
            _FORMS[getattr(_owner, _name)] = lambda a, b: _not(_equal(a, b))


def _call(function: Any, args: Any, kwargs: Any) -> Any:
    form = _FORMS.get(function)
    if form is None:
        raise Unsupported(getattr(function, "__name__", repr(function)))
    return form(*args, **kwargs)


def _has_interval(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_has_interval(part) for part in value)
    return isinstance(value, Interval)


class _LookUps(TorchFunctionMode):
    """Handles ``tensor[interval]``, which PyTorch would not pass to Interval."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[Any, _Table] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is Tensor.__getitem__ and _has_interval(args[1]):
            with torch._C.DisableTorchFunction():  # noqa: SLF001  # has no public name
                return _look_up(args[0], args[1], self._tables)
        if _has_interval(args) or _has_interval(tuple((kwargs or {}).values())):
            with torch._C.DisableTorchFunction():  # noqa: SLF001  # has no public name
                return _call(function, args, kwargs or {})
        return function(*args, **(kwargs or {}))


def on_intervals(function: Any, batch: Tensor, head: Tensor, q: Interval, k: Interval) -> Interval:
    """Evaluates ``function(batch, head, q, k)`` on intervals; returns one truth value per interval.

    Raises
    ------
    Unsupported
        The function does something that is not implemented on intervals.
    """
    try:
        with _LookUps():
            found = function(batch, head, q, k)
    except Unsupported:
        raise
    except Exception as error:  # the function expected a tensor
        raise Unsupported(str(error)) from error
    found = _bits(found)
    low, high = _broadcast(found.low, found.high)
    return Interval(low.expand(q.low.shape), high.expand(q.low.shape))
