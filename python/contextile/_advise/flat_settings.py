"""Files of training engines as pairs of keys and values, the form of ``_core.read_engine_setup``.

Keys of sections are joined by dots. Lists of numbers and texts are one value with blanks between.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

from contextile import _core

_MAX_DEPTH = 64
# A text of YAML may name a part many times, so its values can outgrow its bytes.
_MAX_VALUES = 100_000


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _pairs(value: Any, key: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > _MAX_DEPTH:
        raise _core.InvalidArgument(f"settings: expected at most {_MAX_DEPTH} levels, found more")
    inside = f"{key}." if key else ""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _pairs(item, f"{inside}{_text(name)}", depth + 1)
    elif not isinstance(value, list):
        yield key, _text(value)
    elif any(isinstance(item, (dict, list)) for item in value):
        for index, item in enumerate(value):
            yield from _pairs(item, f"{inside}{index}", depth + 1)
    else:
        yield key, " ".join(_text(item) for item in value)


def flatten(settings: Any) -> list[tuple[str, str]]:
    """Returns the values of a file as pairs of keys and texts, in order.

    Raises
    ------
    InvalidArgument
        The file is no mapping, is nested too deeply, or has too many values.

    Examples
    --------
    >>> from contextile._advise import flatten
    >>> flatten({"model": {"sizes": [2, 4], "fp8": None}})
    [('model.sizes', '2 4'), ('model.fp8', 'null')]
    """
    if not isinstance(settings, dict):
        raise _core.InvalidArgument(
            f"settings: expected sections of keys and values, found {type(settings).__name__}"
        )
    pairs: list[tuple[str, str]] = []
    for pair in _pairs(settings, "", 0):
        if len(pairs) == _MAX_VALUES:
            raise _core.InvalidArgument(
                f"settings: expected at most {_MAX_VALUES} values, found more"
            )
        pairs.append(pair)
    return pairs


def flat_toml(text: str) -> list[tuple[str, str]]:
    """Returns the settings of a TOML file (torchtitan). Raises InvalidArgument."""
    try:
        settings = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _core.InvalidArgument(f"settings: expected TOML, found {error}") from error
    return flatten(settings)


def flat_json(text: str) -> list[tuple[str, str]]:
    """Returns the settings of a JSON file (DeepSpeed). Raises InvalidArgument."""
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _core.InvalidArgument(f"settings: expected JSON, found {error}") from error
    return flatten(settings)


def flat_yaml(text: str) -> list[tuple[str, str]]:
    """Returns the settings of a YAML file (accelerate, TRL, Megatron-Bridge).

    Raises
    ------
    InvalidArgument
        The text is no YAML, has objects of Python, or is not one mapping.
    ImportError
        PyYAML is not installed.
    """
    import yaml  # type: ignore[import-untyped]  # PyYAML brings no types

    try:
        settings = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _core.InvalidArgument(f"settings: expected YAML, found {error}") from error
    return flatten(settings)
