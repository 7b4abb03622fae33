"""Answers of ``contextile.serve`` that keep to a grammar."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llguidance")

from test_serve_clients import (  # noqa: E402, F401
    CHAT,
    asked,
    client_of,
    folder,
    front,
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


def test_chats_keep_to_a_schema(front):  # noqa: F811
    client = client_of(front)
    for temperature in (0, 1):
        answer = client.chat.completions.create(
            model="tiny", messages=CHAT, max_tokens=200, temperature=temperature, seed=3, n=3, response_format=FORMAT
        )
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            check_place(choice.message.content)
    parts = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=200, temperature=0, stream=True, response_format=FORMAT
    )
    check_place("".join(part.choices[0].delta.content or "" for part in parts))


def test_tokens_are_the_likeliest_that_are_allowed(front, model, tokenizer):  # noqa: F811
    import llguidance.hf
    import numpy as np

    words = llguidance.hf.from_tokenizer(tokenizer, n_vocab=model.config.vocab_size, eos_token=[2])
    matcher = llguidance.LLMatcher(words, llguidance.LLMatcher.grammar_from_regex(r"[a-f]{4}( [0-9]+){3}"))
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
        front, prompt=prompt, max_tokens=30, temperature=0, return_token_ids=True, structured_outputs=outputs
    )
    assert answer.status == 200, answer.body
    assert answer.json()["choices"][0]["token_ids"] == tokens[len(prompt) :]


@pytest.mark.parametrize(
    ("outputs", "is_right"),
    [
        ({"json": SCHEMA}, lambda text: check_place(text) is None),
        ({"json": json.dumps(SCHEMA)}, lambda text: check_place(text) is None),
        ({"regex": "[0-9]{3}-[0-9]{2}"}, lambda text: len(text) == 6 and text[3] == "-" and text.replace("-", "").isdigit()),
        ({"choice": ["yes", 'no "never"', "é"]}, lambda text: text in ("yes", 'no "never"', "é")),
        ({"grammar": 'start: "a" ("b" | "c") "d"'}, lambda text: text in ("abd", "acd")),
        ({"grammar": 'root ::= "a" ("b" | "c") "d"'}, lambda text: text in ("abd", "acd")),
    ],
)  # fmt: skip
def test_completions_keep_to_every_kind_of_grammar(front, outputs, is_right):  # noqa: F811
    answer = asked(
        front, prompt=["The", "fox"], n=2, max_tokens=150, temperature=1, seed=1, structured_outputs=outputs
    )
    assert answer.status == 200, answer.body
    for choice in answer.json()["choices"]:
        assert choice["finish_reason"] == "stop"
        assert is_right(choice["text"]), choice


def test_json_objects_are_objects_as_far_as_they_come(front):  # noqa: F811
    answer = asked(
        front, "/v1/chat/completions", messages=CHAT, max_tokens=8, response_format={"type": "json_object"}
    )
    assert answer.json()["choices"][0]["message"]["content"].lstrip().startswith("{"), answer.body


WRONG = [
    ({"response_format": {"type": "xml"}}, "expected type text, json_object or json_schema, found"),
    ({"response_format": "json"}, "expected type text"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "expected response_format of type, found '\"schema\"'"),
    ({"response_format": {"type": "json_schema"}}, "expected json_schema with an object schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
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
    ({"structured_outputs": {"grammar": "start: nothing"}}, "expected a grammar that llguidance takes"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "expected one of json, json_object, regex"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "of choice, grammar, json, json_object, regex, found '\"structural_tag"),
    ({"structured_outputs": {}}, "expected one of"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "no response_format next to it"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos: expected false next to structured_outputs"),
    ({"structured_outputs": {"regex": "a" * 300_000}}, "expected at most 262144 bytes"),
    ({"guided_json": {}}, "found '\"guided_json"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "said"), WRONG, ids=range(len(WRONG)))
def test_what_no_grammar_can_be_made_of_is_refused(front, fields, said):  # noqa: F811
    answer = asked(front, prompt="Hello", max_tokens=4, **fields)
    assert answer.status == 400 and said in answer.json()["error"]["message"], answer.body


def test_nothing_is_asked_by_text(front):  # noqa: F811
    plain = asked(front, prompt="Hello", max_tokens=4, temperature=0).json()["choices"]
    text = {"type": "text"}
    assert asked(front, prompt="Hello", max_tokens=4, temperature=0, response_format=text).json()["choices"] == plain
