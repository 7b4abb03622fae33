"""Answers of ``contextile.serve`` that keep to a grammar."""

# ruff: noqa: F811  # tests have fixtures of another file as arguments
from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llguidance")

from test_serve import Server
from test_serve_clients import (  # noqa: F401  # fixtures
    CHAT,
    asked,
    client_of,
    folder,
    front,
    front_command,
    model,
    tokenizer,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Ulm"]},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2099},
        "open": {"type": "boolean"},
    },
    "required": ["city", "year", "open"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}


def check_place(text):
    place = json.loads(text)
    assert list(place) == ["city", "year", "open"]
    assert place["city"] in ("Rome", "Ulm")
    assert 1900 <= place["year"] <= 2099
    assert isinstance(place["open"], bool)


def test_chats_keep_to_a_schema(front):
    client = client_of(front)
    for temperature in (0, 1):
        answer = client.chat.completions.create(
            model="tiny",
            messages=CHAT,
            max_tokens=200,
            temperature=temperature,
            seed=3,
            n=3,
            response_format=FORMAT,
        )
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            check_place(choice.message.content)
    parts = client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        max_tokens=200,
        temperature=0,
        stream=True,
        response_format=FORMAT,
    )
    check_place("".join(part.choices[0].delta.content or "" for part in parts))


def test_tokens_are_the_likeliest_that_are_allowed(front, model, tokenizer):
    import llguidance.hf
    import numpy as np

    words = llguidance.hf.from_tokenizer(tokenizer, n_vocab=model.config.vocab_size, eos_token=[2])
    matcher = llguidance.LLMatcher(
        words, llguidance.LLMatcher.grammar_from_regex(r"[a-f]{4}( [0-9]+){3}")
    )
    prompt = tokenizer.encode("The quick fox", add_special_tokens=True)
    tokens = list(prompt)
    while tokens[-1] != 2 and len(tokens) < len(prompt) + 30:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1]
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        logits[torch.tensor(bits[: logits.numel()] == 0)] = -torch.inf
        tokens.append(int(logits.argmax()))
        matcher.consume_token(tokens[-1])
    outputs = {"regex": r"[a-f]{4}( [0-9]+){3}"}
    answer = asked(
        front,
        prompt=prompt,
        max_tokens=30,
        temperature=0,
        return_token_ids=True,
        structured_outputs=outputs,
    )
    assert answer.status == 200, answer.body
    assert answer.json()["choices"][0]["token_ids"] == tokens[len(prompt) :]


@pytest.mark.parametrize(
    ("outputs", "is_right"),
    [
        ({"json": SCHEMA}, lambda text: check_place(text) is None),
        ({"json": json.dumps(SCHEMA)}, lambda text: check_place(text) is None),
        (
            {"regex": "[0-9]{3}-[0-9]{2}"},
            lambda text: len(text) == 6 and text[3] == "-" and text.replace("-", "").isdigit(),
        ),
        ({"choice": ["yes", 'no "never"', "é"]}, lambda text: text in ("yes", 'no "never"', "é")),
        ({"grammar": 'start: "x" ("b" | "c") "y"'}, lambda text: text in ("xby", "xcy")),
        ({"grammar": 'root ::= "x" ("b" | "c") "y"'}, lambda text: text in ("xby", "xcy")),
    ],
)
def test_completions_keep_to_every_kind_of_grammar(front, outputs, is_right):
    answer = asked(
        front,
        prompt=["The", "fox"],
        n=2,
        max_tokens=150,
        temperature=1,
        seed=1,
        structured_outputs=outputs,
    )
    assert answer.status == 200, answer.body
    for choice in answer.json()["choices"]:
        assert choice["finish_reason"] == "stop"
        assert is_right(choice["text"]), choice


def test_json_objects_are_objects_as_far_as_they_come(front):
    answer = asked(
        front,
        "/v1/chat/completions",
        messages=CHAT,
        max_tokens=8,
        response_format={"type": "json_object"},
    )
    assert answer.json()["choices"][0]["message"]["content"].lstrip().startswith("{"), answer.body


WRONG = [
    ({"response_format": {"type": "xml"}}, "expected type text, json_object or json_schema, found"),
    ({"response_format": "json"}, "expected type text"),
    (
        {"response_format": {"type": "json_object", "schema": {}}},
        "schema: expected response_format of type, found another",
    ),
    ({"response_format": {"type": "json_schema"}}, "expected json_schema with an object schema"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"not": {}}},
            }
        },
        'Unimplemented keys: ["not"]',
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"not": {}, "x-guidance": {"lenient": True}}},
            }
        },
        "Unimplemented keys",
    ),
    ({"structured_outputs": {"regex": "(a|b"}}, "unclosed group"),
    ({"structured_outputs": {"regex": 5}}, "expected regex as a text, found '5'"),
    ({"structured_outputs": {"json": "{"}}, "expected a JSON schema, found"),
    ({"structured_outputs": {"json_object": False}}, "expected json_object true"),
    ({"structured_outputs": {"choice": []}}, "expected choice of 1 to 1024 texts"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "texts that are not empty"),
    (
        {"structured_outputs": {"grammar": "start: nothing"}},
        "expected a grammar that llguidance takes",
    ),
    (
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "expected one of json, json_object, regex",
    ),
    (
        {"structured_outputs": {"structural_tag": "{}"}},
        "structural_tag: expected structured_outputs of choice, grammar, json",
    ),
    ({"structured_outputs": {}}, "expected one of"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "no response_format next to it",
    ),
    (
        {"structured_outputs": {"regex": "a"}, "ignore_eos": True},
        "ignore_eos: expected false next to structured_outputs",
    ),
    ({"structured_outputs": {"regex": "a" * 300_000}}, "expected at most 262144 bytes"),
    ({"guided_json": {}}, "guided_json: expected parameters of "),
]


@pytest.mark.parametrize(("fields", "said"), WRONG, ids=range(len(WRONG)))
def test_what_no_grammar_can_be_made_of_is_refused(front, fields, said):
    answer = asked(front, prompt="Hello", max_tokens=4, **fields)
    assert answer.status == 400 and said in answer.json()["error"]["message"], answer.body


def test_nothing_is_asked_by_text(front):
    plain = asked(front, prompt="Hello", max_tokens=4, temperature=0).json()["choices"]
    text = {"type": "text"}
    assert (
        asked(front, prompt="Hello", max_tokens=4, temperature=0, response_format=text).json()[
            "choices"
        ]
        == plain
    )


# -------------------------------------------------------------------------------------------- tools


def tool(name, parameters):
    return {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": parameters},
    }


TOOLS = [tool("visit", SCHEMA), tool("wait", None)]


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory, folder):
    import shutil

    import transformers

    path = tmp_path_factory.mktemp("tools") / "tiny"
    shutil.copytree(folder, path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = (
        "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
        + tokenizer.chat_template
    )
    (path / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(path)
    with Server(front_command(path, "--ranks", "2", "--generation-config", "none")) as server:
        yield server
        assert server.stop() == 0


def calls_of(server, **fields):
    """The message and the finish of a chat, and of the same as a stream."""
    client, given = (
        client_of(server),
        {"model": "tiny", "messages": CHAT, "temperature": 0, "tools": TOOLS, **fields},
    )
    whole = client.chat.completions.create(**given).choices[0]
    arguments, names, content, finish = {}, {}, "", None
    for chunk in client.chat.completions.create(**given, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id:
                names[call.index] = call.function.name
                assert call.type == "function"
            arguments[call.index] = arguments.get(call.index, "") + call.function.arguments
        finish = chunk.choices[0].finish_reason or finish
    assert finish == whole.finish_reason and content == (whole.message.content or "")
    found = [
        (call.function.name, call.function.arguments) for call in whole.message.tool_calls or []
    ]
    assert found == [(names[i], arguments[i]) for i in sorted(arguments)]
    return found, whole


def test_a_function_that_is_named_is_called(with_tools):
    choice = {"type": "function", "function": {"name": "visit"}}
    [(name, arguments)], whole = calls_of(with_tools, tool_choice=choice, max_tokens=200)
    assert name == "visit" and whole.finish_reason == "stop" and whole.message.content is None
    check_place(arguments)
    [(name, arguments)], whole = calls_of(with_tools, tool_choice=choice, max_tokens=3)
    assert whole.finish_reason == "length" and arguments.startswith("{")


def test_some_function_is_called(with_tools):
    found, whole = calls_of(
        with_tools, tool_choice="required", parallel_tool_calls=False, max_tokens=400
    )
    assert whole.finish_reason in ("tool_calls", "length")
    if whole.finish_reason == "tool_calls":
        [(name, arguments)] = found
        assert json.loads(arguments) == {} if name == "wait" else check_place(arguments) is None
    found, whole = calls_of(with_tools, tool_choice="required", max_tokens=5)
    assert (
        not found
        and whole.finish_reason == "length"
        and whole.message.content.lstrip().startswith("[")
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"tools": TOOLS, "tool_choice": "always"},
            "expected none, auto, required or a function by name",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "go"}}},
            "one of the tools visit, wait",
        ),
        ({"tool_choice": "required"}, "expected tools next to required"),
        (
            {"tools": [TOOLS[0], TOOLS[0]], "tool_choice": "required"},
            "functions with different names",
        ),
        ({"tools": [tool("x", {"not": {}})], "tool_choice": "required"}, "Unimplemented keys"),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": FORMAT},
            "no response_format",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls: expected true"),
    ],
)
def test_calls_that_cannot_be_asked_for_are_refused(with_tools, fields, said):
    answer = asked(with_tools, "/v1/chat/completions", messages=CHAT, **fields)
    assert answer.status == 400 and said in answer.json()["error"]["message"], answer.body
