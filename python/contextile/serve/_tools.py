"""Calls of functions, on which a chat may insist."""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import Any

from contextile.serve._fields import Fields, fail, shown
from contextile.serve._guides import json_grammar


@dataclasses.dataclass(frozen=True)
class ToolChoice:
    """The functions of which an answer must call one, or at least one.

    The model writes the arguments alone if a function is named, else a list of objects with
    ``name`` and ``parameters``, which is vLLM's form.
    """

    functions: dict[str, dict[str, Any]]  # schemas of parameters by name
    is_named: bool
    is_parallel: bool

    def grammar(self) -> str:
        """Returns what the model may write. Raises Refusal."""
        if self.is_named:
            return json_grammar("tool_choice", next(iter(self.functions.values())))
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for name, parameters in self.functions.items()
        ]
        most = {} if self.is_parallel else {"maxItems": 1}
        return json_grammar(
            "tool_choice", {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **most}
        )

    def calls(self, text: str, *, is_whole: bool) -> list[dict[str, Any]] | None:
        """Returns the calls of what a model wrote; None if none can be read."""
        if self.is_named:
            return [_call(next(iter(self.functions)), text)]
        if not is_whole:
            return None
        try:
            calls = json.loads(text)
        except (ValueError, RecursionError):  # a number of thousands of digits, or deep nesting
            return None
        return [_call(call["name"], json.dumps(call["parameters"])) for call in calls]


def _call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


def read_tool_choice(fields: Fields) -> ToolChoice | None:
    """Returns the calls that a chat insists on, if it does. Raises Refusal."""
    choice, tools = fields.get("tool_choice"), fields.get("tools") or []  # a list by now
    is_parallel = fields.flag("parallel_tool_calls", unless=True)
    if choice in (None, "none", "auto"):
        if not is_parallel and tools and choice != "none":
            fail(
                "parallel_tool_calls",
                "true, except with a tool_choice that insists on calls",
                "false",
            )
        return None
    functions = {}
    for tool in tools:
        function = tool.get("function")
        name = (
            function.get("name")
            if isinstance(function, dict) and tool.get("type") == "function"
            else None
        )
        if not isinstance(name, str) or not name or name in functions:
            fail("tools", "functions with different names", shown(tool))
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            fail("tools", "parameters as a JSON schema", shown(parameters))
        functions[name] = parameters or {
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        }
    if choice == "required":
        if not functions:
            fail("tool_choice", "tools next to required", "none")
        return ToolChoice(functions, is_named=False, is_parallel=is_parallel)
    named = (
        choice.get("function")
        if isinstance(choice, dict) and choice.get("type") == "function"
        else None
    )
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str):
        fail("tool_choice", "none, auto, required or a function by name", shown(choice))
    if name not in functions:
        fail("tool_choice", f"one of the tools {', '.join(functions) or '(none)'}", shown(name))
    return ToolChoice({name: functions[name]}, is_named=True, is_parallel=is_parallel)
