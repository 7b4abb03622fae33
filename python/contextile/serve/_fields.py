"""Fields of JSON objects from clients: expected, found, where."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_MOST_SHOWN = 80  # characters of a wrong value
_LONGEST_INTEGER = 30  # digits; all fields are of 64 bits
_MOST_LEVELS = 64  # of nesting
_MOST_NODES = 1 << 16  # objects, arrays, keys and texts of a document


class Refusal(Exception):
    """An answer to a request that is not served, as OpenAI's protocols have it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shown(value: Any) -> str:
    """Returns the beginning of a value as JSON, in quotes."""
    return f"'{json.dumps(value)[:_MOST_SHOWN]}'"


def fail(param: str, expected: str, found: str) -> NoReturn:
    raise Refusal(f"{param}: expected {expected}, found {found}", param=param)


class _Nodes:
    """Counts the objects, arrays, keys and texts of a document."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, count: int) -> None:
        self._count += count
        if self._count > _MOST_NODES:
            raise ValueError(
                f"expected at most {_MOST_NODES} objects, arrays, keys and texts, found more"
            )

    def object_of(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self.add(1 + len(pairs))
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("expected each key once")
        return found


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(
            f"expected integers of at most {_LONGEST_INTEGER} digits, found {len(text)}"
        )
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected numbers of 64 bits, found {text[:_MOST_SHOWN]}")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"expected numbers, found {text}")


def _check(value: Any, nodes: _Nodes) -> None:
    """Counts arrays and texts; refuses deep nesting and halves of surrogate pairs."""
    pending = [([value], 0)]
    while pending:
        values, level = pending.pop()
        if level > _MOST_LEVELS:
            raise ValueError(f"expected at most {_MOST_LEVELS} levels of nesting, found more")
        for one in values:
            if isinstance(one, str):
                nodes.add(1)
                one.encode()
            elif isinstance(one, dict):
                for key in one:
                    key.encode()
                pending.append((list(one.values()), level + 1))
            elif isinstance(one, list):
                nodes.add(1)
                pending.append((one, level + 1))


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text from a client, in time linear in it. Raises ValueError."""
    nodes = _Nodes()
    try:
        found = json.loads(
            text,
            object_pairs_hook=nodes.object_of,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except RecursionError:
        raise ValueError(f"expected at most {_MOST_LEVELS} levels of nesting, found more") from None
    _check(found, nodes)
    return found


def parse_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body. Raises Refusal."""
    try:
        found = parse_json(body.decode())
    except ValueError as error:
        raise Refusal(f"request: expected JSON, found an error: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise Refusal(f"request: expected a JSON object, found {shown(found)}")
    return found


class Fields:
    """A JSON object; a key whose value is null is absent."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def get(self, key: str) -> Any:
        return self._found.get(key)

    def integer(self, key: str, unless: int, least: int, most: int) -> int:
        value = self.get(key)
        if value is None:
            return unless
        if type(value) is not int or not least <= value <= most:
            fail(key, f"an integer of {least} to {most}", shown(value))
        return value

    def number(self, key: str, unless: float, least: float, most: float) -> float:
        value = self.get(key)
        if value is None:
            return unless
        if type(value) not in (int, float) or not least <= value <= most:
            fail(key, f"a number of {least:g} to {most:g}", shown(value))
        return float(value)

    def flag(self, key: str, *, unless: bool) -> bool:
        value = self.get(key)
        if value is None:
            return unless
        if not isinstance(value, bool):
            fail(key, "true or false", shown(value))
        return value

    def check_keys(
        self, known: set[str], neutral: dict[str, Any], where: str = "parameters"
    ) -> None:
        """Refuses other keys, except with null or the value that changes nothing."""
        for key, value in self._found.items():
            if key in known or value is None or (key in neutral and _equal(value, neutral[key])):
                continue
            raise Refusal(
                f"{key[:_MOST_SHOWN]}: expected {where} of {', '.join(sorted(known))}, found "
                "another",
                param=key[:_MOST_SHOWN],
                code="unsupported_parameter",
            )


def _equal(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def token_ids(value: Any, vocab_size: int, where: str) -> list[int]:
    """Returns a list of token ids. Raises Refusal."""
    if not isinstance(value, list):
        fail(where, "a list of token ids", shown(value))
    for token in value:
        if type(token) is not int or not 0 <= token < vocab_size:
            fail(where, f"token ids of 0 to {vocab_size - 1}", shown(token))
    return value
