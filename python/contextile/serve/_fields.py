"""Fields of JSON objects from clients: expected, found, where."""

from __future__ import annotations

import json
from typing import Any, NoReturn

_MOST_SHOWN = 80  # characters of a wrong value
_LONGEST_INTEGER = 30  # digits; all fields are of 64 bits


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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("expected each key once")
    return found


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"expected integers of at most {_LONGEST_INTEGER} digits, found {len(text)}")
    return int(text)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"expected numbers, found {text}")


def _check_text(value: Any) -> None:
    """Refuses halves of surrogate pairs, which are no characters."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            one.encode()
        elif isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list):
            pending += one


def parse_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body. Raises Refusal."""
    try:
        found = json.loads(body.decode(), object_pairs_hook=_once, parse_int=_integer, parse_constant=_constant)
        _check_text(found)
    except RecursionError:
        raise Refusal("request: expected JSON of less nesting") from None
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

    def check_keys(self, known: set[str], neutral: dict[str, Any], where: str = "parameters") -> None:
        """Refuses other keys, except with null or the value that changes nothing."""
        for key, value in self._found.items():
            if key in known or value is None or (key in neutral and _equal(value, neutral[key])):
                continue
            raise Refusal(
                f"{key[:_MOST_SHOWN]}: expected {where} of {', '.join(sorted(known))}, found another",
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
