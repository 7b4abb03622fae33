"""Strategies by name, with their options as keywords.

>>> import contextile as ct
>>> ct.strategies.dcp(divisions=6, eps_node=0.2)
StrategyChoice('dcp:divisions=6,eps_node=0.2')

There is one function per strategy of the library, with the names and defaults of the program's
``--strategy NAME:key=value``. ``help(ct.strategies.dcp)`` lists them. Every function that takes a
strategy also takes such a text.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any

from contextile import _core
from contextile._core import StrategyChoice


def _value_of(text: str, values: list[str]) -> Any:
    if values == ["off", "on"]:
        return text == "on"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _annotation_of(option: _core.OptionSpec) -> str:
    if option.values == ["off", "on"]:
        return "bool"
    if option.values:
        return f"Literal[{', '.join(repr(value) for value in option.values)}]"
    # A whole default does not mean that only whole numbers are allowed; for checkers an int is a
    # float.
    return (
        "float | str"
        if isinstance(_value_of(option.default_value, option.values), str)
        else "float"
    )


def _function_of(
    name: str, summary: str, options: list[_core.OptionSpec]
) -> Callable[..., StrategyChoice]:
    defaults = {option.name: _value_of(option.default_value, option.values) for option in options}

    def choose(**given: Any) -> StrategyChoice:
        unknown = sorted(set(given) - set(defaults))
        if unknown:
            raise _core.InvalidArgument(
                f"strategy {name}: expected an option among {', '.join(defaults)}, found "
                f"'{unknown[0]}'"
                if defaults
                else f"strategy {name}: expected no options, found '{unknown[0]}'"
            )
        changed = {key: _text_of(value) for key, value in given.items() if value != defaults[key]}
        return StrategyChoice(name, changed)

    lines = [f"{summary}\n", "Parameters", "----------"] if options else [summary]
    for option in options:
        lines += [
            f"{option.name} : {_annotation_of(option)}, default {option.default_value}",
            f"    {option.help}",
        ]
    choose.__doc__ = "\n".join(lines)
    choose.__name__ = choose.__qualname__ = _identifier(name)
    choose.__module__ = __name__
    shown: Any = choose
    shown.__signature__ = inspect.Signature(
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[option.name],
                annotation=_annotation_of(option),
            )
            for option in options
        ],
        return_annotation=StrategyChoice,
    )
    return choose


def _identifier(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def names() -> list[str]:
    """Returns the names of all strategies, in the order of tables.

    Examples
    --------
    >>> import contextile as ct
    >>> "zigzag" in ct.strategies.names()
    True
    """
    return [name for name, _, _ in _core.strategy_table()]


def parse(text: str) -> list[StrategyChoice]:
    """Returns the strategies of a text, as the program's ``--strategy`` takes it.

    Parameters
    ----------
    text : str
        ``"name:key=value,key=value,other,…"``, or ``"all"`` for every strategy.

    Raises
    ------
    InvalidArgument
        The text has another form.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.strategies.parse("zigzag,dcp:divisions=6")
    [StrategyChoice('zigzag'), StrategyChoice('dcp:divisions=6')]
    """
    return _core.parse_strategies(text)


for _name, _summary, _options in _core.strategy_table():
    globals()[_identifier(_name)] = _function_of(_name, _summary, _options)

__all__ = ["names", "parse", *(_identifier(name) for name in names())]
