"""Completions and chats that clients ask for."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import random
import re
from collections.abc import Callable
from typing import Any

from contextile.serve._fields import Fields, Refusal, fail, parse_json, shown, token_ids
from contextile.serve._guides import Guide, read_grammar
from contextile.serve._text import Texts, TooSlow
from contextile.serve._tools import ToolChoice, read_tool_choice

MOST_COMPLETIONS = 128  # of a call, over all prompts
MOST_LOGPROBS = 20  # alternatives
MOST_PROMPT_LOGPROBS = 1 << 18  # of a call, alternatives included
_MOST_STOPS, _MOST_STOP_BYTES, _MOST_STOP_TOKENS = 16, 1000, 128
_MOST_BIASES = 1024

_COMMON = {
    *(
        "model",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
    ),
    *(
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "stop",
        "stop_token_ids",
    ),
    *("stream", "stream_options", "logprobs", "ignore_eos", "return_token_ids", "user"),
    *("response_format", "structured_outputs"),
}
_COMPLETION = _COMMON | {"prompt", "echo", "add_special_tokens"}
_CHAT = _COMMON | {
    *("messages", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"),
    *("chat_template_kwargs", "add_generation_prompt"),
}
# Values of other fields that ask for nothing.
_NEUTRAL: dict[str, Any] = {
    "best_of": 1,
    "include_stop_str_in_output": False,
    "length_penalty": 1,
    "logits_processors": [],
    "metadata": {},
    "min_tokens": 0,
    "priority": 0,
    "service_tier": "auto",
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "store": False,
    "suffix": "",
    "tools": [],
    "use_beam_search": False,
}
_NEUTRAL_CHAT: dict[str, Any] = {
    **_NEUTRAL,
    "continue_final_message": False,
    "echo": False,
    "functions": [],
    "modalities": ["text"],
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """The lengths that a model allows, and the sampling of requests that do not say."""

    model: str
    vocab_size: int
    max_length: int  # tokens of prompt and output
    end_tokens: list[int]
    sampling: dict[str, float]  # temperature, top_p, top_k, min_p, repetition_penalty


@dataclasses.dataclass
class Asked:
    """A call: n completions of each prompt."""

    prompts: list[list[int]] = dataclasses.field(default_factory=list)
    prompt_texts: list[str] = dataclasses.field(default_factory=list)  # repeated by echo
    is_chat: bool = False
    max_tokens: int = 16
    n: int = 1
    sampling: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    stops: list[str] = dataclasses.field(default_factory=list)
    stop_tokens: list[int] = dataclasses.field(default_factory=list)
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    logprobs: bool = False
    num_top: int = 0
    return_tokens: bool = False
    guide: Guide | None = None
    tool_choice: ToolChoice | None = None

    def engine_requests(self) -> list[dict[str, Any]]:
        """Returns the arguments of ``EngineThread.submit``, n for each prompt."""
        return [
            {
                "prompt": prompt,
                "max_tokens": self.max_tokens,
                "stop_tokens": self.stop_tokens,
                "num_logprobs": self.num_top,
                "scores_prompt": self.echo and self.logprobs,
                "seed": (self.seed + i) % 2**64,
                "guide": self.guide.copy() if self.guide else None,
                **self.sampling,
            }
            for prompt in self.prompts
            for i in range(self.n)
        ]


def read_completion(found: dict[str, Any], texts: Texts, limits: Limits) -> Asked:
    """Returns the call of a body of /v1/completions. Raises Refusal."""
    fields = Fields(found)
    fields.check_keys(_COMPLETION, _NEUTRAL)
    _check_model(fields, limits)
    asked = Asked(n=fields.integer("n", 1, 1, MOST_COMPLETIONS))
    _read_prompts(fields, texts, limits, asked)
    _read_common(fields, texts, limits, asked, unless=16)
    asked.echo = fields.flag("echo", unless=False)
    if fields.get("logprobs") not in (None, False):
        asked.logprobs = True
        asked.num_top = fields.integer("logprobs", 0, 0, min(MOST_LOGPROBS, limits.vocab_size))
    count = sum(map(len, asked.prompts)) * asked.n * (1 + asked.num_top)
    if asked.echo and asked.logprobs and count > MOST_PROMPT_LOGPROBS:
        fail(
            "logprobs",
            f"at most {MOST_PROMPT_LOGPROBS} of a call's prompts, alternatives included",
            str(count),
        )
    return asked


def read_chat(found: dict[str, Any], texts: Texts, limits: Limits) -> Asked:
    """Returns the call of a body of /v1/chat/completions. Raises Refusal."""
    fields = Fields(found)
    fields.check_keys(_CHAT, _NEUTRAL_CHAT)
    _check_model(fields, limits)
    asked = Asked(is_chat=True, n=fields.integer("n", 1, 1, MOST_COMPLETIONS))
    asked.prompts = [_chat_prompt(fields, texts, limits)]
    asked.prompt_texts = [""]
    _check_prompt(asked.prompts[0], limits)
    _read_common(fields, texts, limits, asked, unless=limits.max_length - len(asked.prompts[0]))
    asked.tool_choice = read_tool_choice(fields)
    if asked.tool_choice:
        _read_guide(fields, texts, limits, asked, ("tool_choice", asked.tool_choice.grammar()))
    asked.logprobs = fields.flag("logprobs", unless=False)
    asked.num_top = fields.integer("top_logprobs", 0, 0, min(MOST_LOGPROBS, limits.vocab_size))
    if asked.num_top and not asked.logprobs:
        fail("top_logprobs", "logprobs true next to it", shown(fields.get("logprobs")))
    return asked


def _check_model(fields: Fields, limits: Limits) -> None:
    model = fields.get("model")
    if model not in (None, limits.model):
        raise Refusal(
            f"model: expected '{limits.model}', found {shown(model)}",
            status=404,
            param="model",
            code="model_not_found",
        )


def _too_long(limits: Limits, found: str) -> Refusal:
    return Refusal(
        f"prompt: expected at most {limits.max_length} tokens of prompt and output, found {found}",
        param="prompt",
        code="context_length_exceeded",
    )


def _check_text(text: str, texts: Texts, limits: Limits) -> None:
    """Refuses a text that is too long before it is cut into tokens, which takes its time."""
    if texts.is_too_long(text):
        raise _too_long(limits, f"a text of {len(text)} characters")


def _check_prompt(tokens: list[int], limits: Limits) -> None:
    if not tokens:
        fail("prompt", "at least 1 token", "none")
    if len(tokens) > limits.max_length:
        raise _too_long(limits, f"{len(tokens)} of prompt")
    token_ids(tokens, limits.vocab_size, "prompt")


def _read_prompts(fields: Fields, texts: Texts, limits: Limits, asked: Asked) -> None:
    prompt = fields.get("prompt")
    if not isinstance(prompt, (str, list)):
        fail("prompt", "a text or token ids", "none" if prompt is None else shown(prompt))
    several = (
        prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list))
        else [prompt]
    )
    if len(several) * asked.n > MOST_COMPLETIONS:
        fail(
            "prompt",
            f"at most {MOST_COMPLETIONS} completions",
            f"{len(several)} prompts of {asked.n}",
        )
    special = fields.flag("add_special_tokens", unless=True)
    for one in several:
        if isinstance(one, str):
            _check_text(one, texts, limits)
            tokens, text = texts.encode(one, add_special_tokens=special), one
        elif isinstance(one, list):
            _check_prompt(one, limits)  # before it is made text, which takes its time
            tokens = token_ids(one, limits.vocab_size, "prompt")
            text = texts.decode(tokens, skip_special_tokens=True)
        else:
            fail("prompt", "texts or lists of token ids", shown(one))
        _check_prompt(tokens, limits)
        asked.prompts.append(tokens)
        asked.prompt_texts.append(text)


def _read_common(
    fields: Fields, texts: Texts, limits: Limits, asked: Asked, *, unless: int
) -> None:
    _read_length(fields, limits, asked, unless)
    given = limits.sampling
    asked.sampling = {
        "temperature": fields.number("temperature", given["temperature"], 0, 2),
        "top_p": fields.number("top_p", given["top_p"], 1e-6, 1),
        "top_k": max(fields.integer("top_k", int(given["top_k"]), -1, 2**31 - 1), 0),
        "min_p": fields.number("min_p", given["min_p"], 0, 1),
        "repetition_penalty": fields.number(
            "repetition_penalty", given["repetition_penalty"], 0.01, 100
        ),
        "presence_penalty": fields.number("presence_penalty", 0, -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", 0, -2, 2),
        "logit_bias": _logit_bias(fields, limits),
    }
    asked.seed = fields.integer("seed", random.getrandbits(63), -(2**63), 2**63 - 1)
    _read_stops(fields, texts, limits, asked)
    _read_guide(fields, texts, limits, asked, read_grammar(fields))
    asked.stream = fields.flag("stream", unless=False)
    options = fields.get("stream_options")
    if options is not None:
        if not isinstance(options, dict):
            fail("stream_options", "an object", shown(options))
        if not asked.stream:
            fail("stream_options", "stream true next to it", shown(fields.get("stream")))
        inner = Fields(options)
        inner.check_keys({"include_usage"}, {"include_obfuscation": False}, "stream_options")
        asked.include_usage = inner.flag("include_usage", unless=False)
    asked.return_tokens = fields.flag("return_token_ids", unless=False)
    if not isinstance(fields.get("user") or "", str):
        fail("user", "a text", shown(fields.get("user")))


def _read_length(fields: Fields, limits: Limits, asked: Asked, unless: int) -> None:
    given = [fields.get(name) for name in ("max_tokens", "max_completion_tokens")]
    if None not in given and given[0] != given[1]:
        fail("max_completion_tokens", "max_tokens, which is given, too", shown(given[1]))
    name = "max_tokens" if given[1] is None else "max_completion_tokens"
    asked.max_tokens = fields.integer(name, unless, 0, limits.max_length)
    for prompt in asked.prompts:
        if len(prompt) + asked.max_tokens > limits.max_length:
            raise _too_long(limits, f"{len(prompt)} + {asked.max_tokens}")


def _logit_bias(fields: Fields, limits: Limits) -> list[tuple[int, float]]:
    found = fields.get("logit_bias")
    if found is None:
        return []
    if not isinstance(found, dict):
        fail("logit_bias", "an object", shown(found))
    if len(found) > _MOST_BIASES:
        fail("logit_bias", f"at most {_MOST_BIASES} tokens", str(len(found)))
    biases: dict[int, float] = {}
    for key, bias in found.items():
        token = int(key) if key.isascii() and key.isdigit() and len(key) < 11 else -1
        if not 0 <= token < limits.vocab_size or token in biases:
            fail("logit_bias", f"different token ids of 0 to {limits.vocab_size - 1}", shown(key))
        if type(bias) not in (int, float) or not abs(bias) <= 100:
            fail("logit_bias", "numbers of -100 to 100", shown(bias))
        biases[token] = float(bias)
    return list(biases.items())


def _read_stops(fields: Fields, texts: Texts, limits: Limits, asked: Asked) -> None:
    stop = fields.get("stop")
    stops = [] if stop is None else stop if isinstance(stop, list) else [stop]
    if len(stops) > _MOST_STOPS:
        fail("stop", f"at most {_MOST_STOPS} sequences", str(len(stops)))
    if not fields.flag("ignore_eos", unless=False):
        asked.stop_tokens = list(limits.end_tokens)
    for text in stops:
        if not isinstance(text, str) or not 1 <= len(text.encode()) <= _MOST_STOP_BYTES:
            fail("stop", f"texts of 1 to {_MOST_STOP_BYTES} bytes", shown(text))
        token = texts.special(text)  # it has no text in which a stop could be found
        if token is not None:
            asked.stop_tokens.append(token)
    asked.stops = stops
    tokens = fields.get("stop_token_ids")
    if tokens is None:
        return
    if isinstance(tokens, list) and len(tokens) > _MOST_STOP_TOKENS:
        fail("stop_token_ids", f"at most {_MOST_STOP_TOKENS} token ids", str(len(tokens)))
    asked.stop_tokens += token_ids(tokens, limits.vocab_size, "stop_token_ids")


def _read_guide(
    fields: Fields, texts: Texts, limits: Limits, asked: Asked, found: tuple[str, str] | None
) -> None:
    if found is None:
        return
    param, grammar = found
    if asked.guide is not None:
        fail(param, "no response_format and no structured_outputs next to it", "one")
    if fields.get("ignore_eos"):
        fail(
            "ignore_eos",
            f"false next to {param}, after which the end of the text is all that is left",
            "true",
        )
    if not limits.end_tokens:
        fail(param, "a model that has a token for the end of a text", "none")
    asked.guide = texts.guides.make(param, grammar, limits.vocab_size, limits.end_tokens)


# -------------------------------------------------------------------------------------------- chats


def _chat_prompt(fields: Fields, texts: Texts, limits: Limits) -> list[int]:
    template = texts.tokenizer.chat_template
    if not template:
        raise Refusal(
            "messages: expected a model with a chat template, found one without", param="messages"
        )
    given: dict[str, Any] = {
        "add_generation_prompt": fields.flag("add_generation_prompt", unless=True)
    }
    given.update(_template_arguments(fields, texts))
    tools = _tools(fields, str(template))
    if tools:
        given["tools"] = tools
    messages = _messages(fields, str(template))
    try:
        text = texts.rendered(messages, given)
    except TooSlow:
        fail(
            "messages", "a chat that the model's template renders in 10 s", "one that takes longer"
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:300]
        raise Refusal(
            f"messages: expected what the model's template takes, found {reason}", param="messages"
        ) from None
    _check_text(text, texts, limits)
    return texts.encode(text, add_special_tokens=False)


def _template_arguments(fields: Fields, texts: Texts) -> dict[str, Any]:
    given = fields.get("chat_template_kwargs")
    if given is None:
        return {}
    if not isinstance(given, dict):
        fail("chat_template_kwargs", "an object", shown(given))
    taken = {*inspect.signature(texts.tokenizer.apply_chat_template).parameters, "messages"}
    for key in given:
        if key in taken:
            fail("chat_template_kwargs", "variables of the template", shown(key))
    return given


def _tools(fields: Fields, template: str) -> list[Any]:
    tools = fields.get("tools")
    if tools is None or tools == []:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        fail("tools", "a list of objects", shown(tools))
    if fields.get("tool_choice") == "none":
        return []
    if "tools" not in template:
        fail("tools", "none, because the model's template has no place for them", str(len(tools)))
    return tools


def _messages(fields: Fields, template: str) -> list[dict[str, Any]]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        fail("messages", "a list of messages", shown(messages))
    # Once for each key, because templates are long.
    has_place = functools.cache(
        lambda key: re.search(rf"\b{re.escape(key)}\b", template) is not None
    )
    return [_message(one, has_place) for one in messages]


def _message(found: Any, has_place: Callable[[str], bool]) -> dict[str, Any]:
    if not isinstance(found, dict) or not isinstance(found.get("role"), str):
        fail("messages", "objects with a role", shown(found))
    message = {key: value for key, value in found.items() if value not in (None, [], {})}
    # The order of calls and results says what a result belongs to.
    known = {"role", "content"} | ({"name", "tool_call_id"} if message["role"] == "tool" else set())
    for key in message:
        if key not in known and not has_place(key):
            fail(
                "messages",
                f"keys that the model's template has a place for, {', '.join(sorted(known))}",
                shown(key),
            )
    content = message.get("content", "" if "tool_calls" in message else None)
    if isinstance(content, list):
        content = "\n".join(_part(part) for part in content)
    if not isinstance(content, str):
        fail("messages", "content as a text or parts of text", shown(content))
    message["content"] = content
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(message["tool_calls"])
    return message


def _part(found: Any) -> str:
    if (
        not isinstance(found, dict)
        or found.get("type") != "text"
        or not isinstance(found.get("text"), str)
    ):
        fail("messages", "parts of type text", shown(found))
    for key, value in found.items():
        if key not in ("type", "text") and value is not None:
            fail("messages", "parts with type and text alone", shown(key))
    return str(found["text"])


def _tool_calls(found: Any) -> list[Any]:
    """Returns the calls with their arguments as objects, as templates expect them."""
    calls = []
    for call in found if isinstance(found, list) else [None]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            fail("messages", "tool_calls as a list of calls of functions", shown(found))
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = parse_json(arguments)
            except ValueError:
                fail("messages", "arguments of tool_calls as JSON", shown(arguments))
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return calls
