"""Grammars that answers keep to, by the library llguidance."""

from __future__ import annotations

import importlib.util
import json
import threading
from typing import Any

from contextile.serve._fields import Fields, Refusal, fail, parse_json, shown

_MOST_GRAMMAR_BYTES = 1 << 18
_MOST_CHOICES = 1024
_KINDS = ("json", "json_object", "regex", "choice", "grammar")


class GuideError(RuntimeError):
    """A grammar has no further token, or is too costly to go on with."""


def _line_of(message: str) -> str:
    return " ".join(message.split())[:300]


class Guide:
    """The tokens that may come next, in one completion.

    Source: llguidance's documentation; a mask has a bit for each token of the vocabulary.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def copy(self) -> Guide:
        return Guide(self._matcher.deep_copy())

    def allowed(self) -> bytes:
        """Returns a bit for each token that may be the next one. Raises GuideError."""
        bits = bytes(self._matcher.compute_bitmask())
        self._check()
        return bits

    def take(self, token: int) -> None:
        """Takes the next token. Raises GuideError."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GuideError(_line_of(str(self._matcher.get_error())))


class Guides:
    """Makes guides for a tokenizer of ``transformers``. From several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._words: Any = None

    def make(self, param: str, grammar: str, vocab_size: int, end_tokens: list[int]) -> Guide:
        """Returns the guide of a grammar that a field asked for. Raises Refusal."""
        import llguidance

        words = self._words_of(param, vocab_size, end_tokens)
        matcher = llguidance.LLMatcher(words, grammar, log_level=0)
        guide = Guide(matcher)
        try:
            guide.allowed()
        except GuideError as error:
            fail(param, "a grammar that llguidance takes", str(error))
        warnings = matcher.get_grammar_warnings()
        if warnings:
            fail(
                param,
                "a grammar that llguidance takes without a warning",
                _line_of("; ".join(warnings)),
            )
        return guide

    def _words_of(self, param: str, vocab_size: int, end_tokens: list[int]) -> Any:
        with self._lock:
            if self._words is None:
                import llguidance.hf

                try:
                    self._words = llguidance.hf.from_tokenizer(
                        self._tokenizer, n_vocab=vocab_size, eos_token=end_tokens
                    )
                except Exception as error:
                    raise Refusal(
                        f"{param}: expected none, because llguidance does not take the model's "
                        f"tokenizer: {_line_of(str(error))}",
                        param=param,
                    ) from None
            return self._words


def read_grammar(fields: Fields) -> tuple[str, str] | None:
    """Returns the field with a grammar, and the grammar as llguidance has it.

    Raises Refusal.
    """
    form, outputs = fields.get("response_format"), fields.get("structured_outputs")
    if form is not None and outputs is not None:
        fail("structured_outputs", "no response_format next to it", shown(form))
    if form is not None:
        found, param = _of_response_format(form), "response_format"
    elif outputs is not None:
        found, param = _of_structured_outputs(outputs), "structured_outputs"
    else:
        return None
    if found is None:
        return None
    return param, _grammar(param, *found)


def json_grammar(param: str, schema: dict[str, Any]) -> str:
    """Returns the grammar of JSON that has a schema, for a field. Raises Refusal."""
    return _grammar(param, "json", schema)


def _of_response_format(form: Any) -> tuple[str, Any] | None:
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        fail("response_format", "type text, json_object or json_schema", shown(form))
    Fields(form).check_keys(
        {"type", "json_schema"} if kind == "json_schema" else {"type"}, {}, "response_format"
    )
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_object", True
    given = form.get("json_schema")
    if not isinstance(given, dict) or not isinstance(given.get("schema"), dict):
        fail("response_format", "json_schema with an object schema", shown(form))
    # Answers keep to the schema, strict or not.
    Fields(given).check_keys(
        {"name", "description", "schema", "strict"}, {}, "response_format.json_schema"
    )
    return "json", given["schema"]


def _of_structured_outputs(outputs: Any) -> tuple[str, Any]:
    if not isinstance(outputs, dict):
        fail("structured_outputs", "an object", shown(outputs))
    Fields(outputs).check_keys(set(_KINDS), {}, "structured_outputs")
    given = [(kind, outputs[kind]) for kind in _KINDS if outputs.get(kind) is not None]
    if len(given) != 1:
        fail("structured_outputs", f"one of {', '.join(_KINDS)}", shown(outputs))
    return given[0]


def _grammar(param: str, kind: str, given: Any) -> str:
    if importlib.util.find_spec("llguidance") is None:
        fail(param, "the server to have the package llguidance", "none")
    from llguidance import LLMatcher, grammar_from

    if kind == "json" and isinstance(given, str):
        try:
            given = parse_json(given)
        except ValueError:
            fail(param, "a JSON schema", shown(given))
    expected = {"json": dict, "json_object": bool, "regex": str, "choice": list, "grammar": str}[
        kind
    ]
    if not isinstance(given, expected):
        fail(param, f"{kind} as {_FORMS[kind]}", shown(given))
    size = len(json.dumps(given))
    if size > _MOST_GRAMMAR_BYTES:
        fail(param, f"at most {_MOST_GRAMMAR_BYTES} bytes", str(size))
    if kind == "json_object":
        if not given:
            fail(param, "json_object true", shown(given))
        given = {"type": "object"}
    if kind == "choice":
        if not 1 <= len(given) <= _MOST_CHOICES or not all(
            isinstance(one, str) and one for one in given
        ):
            fail(param, f"choice of 1 to {_MOST_CHOICES} texts that are not empty", shown(given))
        return str(
            LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(one) for one in given))
        )
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(given))
    try:
        if kind == "grammar":
            return str(grammar_from("grammar", given))
        # A client may not weaken what is checked by options in the schema.
        return str(LLMatcher.grammar_from_json_schema(given, overrides={"lenient": False}))
    except (ValueError, RecursionError) as error:
        fail(param, f"{kind} as {_FORMS[kind]}", _line_of(str(error)))


_FORMS = {
    "json": "a JSON schema",
    "json_object": "true",
    "regex": "a text",
    "choice": "a list of texts",
    "grammar": "a grammar in Lark's or GBNF's form",
}
