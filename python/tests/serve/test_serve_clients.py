"""Clients of ``contextile serve`` and of ``contextile.serve``: the package ``openai``, evaluation
harnesses, the examples of the pages."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

import test_serve
from test_serve import PROGRAM, ROOT, Server

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% "
    "endfor %}{% if mood %}({{ mood }}){% endif %}{% if add_generation_prompt %}[assistant]{% "
    "endif %}"
)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The quick fox?"}]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the servers; models are small


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return test_serve.make("llama")


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "tiny"
    model.save_pretrained(path)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=test_serve.llama3(), bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def check_program():
    if not Path(PROGRAM).is_file():
        pytest.skip(f"{PROGRAM}: no program there (make build, or CONTEXTILE_PROGRAM)")
    probe = subprocess.run(
        [PROGRAM, "serve", "--port", "99999"], capture_output=True, text=True, check=False
    )
    if "not in this build" in probe.stderr:
        pytest.skip(probe.stderr.strip())


def check_front():
    for package in ("starlette", "uvicorn", "jinja2"):
        pytest.importorskip(package)


def front_command(folder, *options):
    return [sys.executable, "-m", "contextile.serve", str(folder), "--port", "0", *options]


@pytest.fixture(scope="module")
def program(folder):
    check_program()
    command = [
        PROGRAM,
        "serve",
        "--model",
        str(folder),
        "--ranks",
        "2",
        "--port",
        "0",
        "--generation-config",
        "none",
    ]
    with Server(command) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def front(folder):
    check_front()
    with Server(front_command(folder, "--ranks", "2", "--generation-config", "none")) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(params=["program", "front"])
def server(request):
    return request.getfixturevalue(request.param)


def client_of(server):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"http://{server.url.netloc}/v1", api_key="none", max_retries=0)


def asked(server, path="/v1/completions", **fields):
    return server.ask("POST", path, json.dumps(fields))


def greedy(model, tokens, count):
    output = model.generate(
        torch.tensor([tokens]),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return output[0].tolist()[len(tokens) :]


def log_softmax(model, tokens):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)


# -------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_loglikelihoods_are_those_of_transformers(server, model, max_tokens):
    source = random.Random(6)
    prompts = [[source.randrange(3, 310) for _ in range(length)] for length in (1, 2, 40, 130)]
    # The request that lm-eval's local-completions sends.
    fields = {"model": None, "prompt": prompts, "temperature": 0, "seed": 1234}
    answer = asked(server, **fields, max_tokens=max_tokens, logprobs=3, echo=True)
    assert answer.status == 200, answer.body
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    for tokens, choice in zip(prompts, choices, strict=True):
        expected = log_softmax(model, tokens)
        found = choice["logprobs"]
        assert len(found["tokens"]) == len(found["text_offset"]) == len(tokens) + max_tokens
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        for i, token in enumerate(tokens[1:]):
            assert found["token_logprobs"][i + 1] == pytest.approx(
                float(expected[i, token]), abs=1e-4
            )
            top = sorted(found["top_logprobs"][i + 1].values(), reverse=True)[:3]
            assert top == pytest.approx(expected[i].topk(3).values.tolist(), abs=1e-4)
            # The harness takes a token for the likeliest if these two are equal.
            is_greedy = found["token_logprobs"][i + 1] == max(found["top_logprobs"][i + 1].values())
            assert is_greedy == (token == int(expected[i].argmax()))
        if max_tokens:
            assert found["token_logprobs"][-1] == pytest.approx(float(expected[-1].max()), abs=1e-4)


def test_both_servers_give_the_same_answers(program, front):
    for fields in [
        {
            "prompt": "The quick fox",
            "max_tokens": 12,
            "temperature": 0,
            "logprobs": 2,
            "echo": True,
        },
        {
            "prompt": [5, 6, 7],
            "max_tokens": 20,
            "seed": 3,
            "top_k": 50,
            "min_p": 0.01,
            "repetition_penalty": 1.3,
        },
        {
            "prompt": "a",
            "max_tokens": 20,
            "seed": 4,
            "presence_penalty": 1.5,
            "frequency_penalty": 0.5,
            "n": 2,
        },
        {
            "prompt": "a b",
            "max_tokens": 8,
            "seed": 4,
            "logit_bias": {"70": 8},
            "stop_token_ids": [71, 72],
        },
        {
            "prompt": "a b",
            "max_completion_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "stop": ["e", "<s>"],
        },
    ]:
        one, other = (
            asked(server, **fields, return_token_ids=True).json() for server in (program, front)
        )
        for a, b in zip(one["choices"], other["choices"], strict=True):
            assert a["token_ids"] == b["token_ids"] and a["finish_reason"] == b["finish_reason"], (
                fields
            )
            assert a["text"] == b["text"]
            if fields.get("logprobs"):
                assert a["logprobs"]["tokens"] == b["logprobs"]["tokens"]
                assert a["logprobs"]["token_logprobs"][1:] == pytest.approx(
                    b["logprobs"]["token_logprobs"][1:], abs=1e-5
                )
        assert {**one["usage"], "prompt_tokens_details": 0} == {
            **other["usage"],
            "prompt_tokens_details": 0,
        }


# ------------------------------------------------------------------------------------------ openai


def test_the_openai_package_completes(server, model, tokenizer):
    client = client_of(server)
    tokens = tokenizer.encode("The quick")
    whole = client.completions.create(
        model="tiny",
        prompt="The quick",
        max_tokens=12,
        temperature=0,
        logprobs=2,
        extra_headers={"X-Request-Id": "a-1"},
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    choice = whole.choices[0]
    assert choice.model_extra["token_ids"] == greedy(model, tokens, 12)
    assert whole.usage.prompt_tokens == len(tokens) and whole.usage.completion_tokens == 12
    assert whole.id == "cmpl-a-1" and whole._request_id == "a-1"
    assert len(choice.logprobs.tokens) == 12 and len(choice.logprobs.top_logprobs[0]) == 2
    stream = client.completions.create(
        model="tiny",
        prompt="The quick",
        max_tokens=12,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == choice.text
    assert (
        [one.id for one in client.models.list()] == [client.models.retrieve("tiny").id] == ["tiny"]
    )


def test_the_openai_package_chats(front, model, tokenizer):
    client = client_of(front)
    tokens = tokenizer.apply_chat_template(
        CHAT, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    fields = {"model": "tiny", "messages": CHAT, "max_completion_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(
        **fields,
        logprobs=True,
        top_logprobs=2,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    choice = whole.choices[0]
    assert choice.model_extra["token_ids"] == greedy(model, tokens, 12)
    assert choice.message.role == "assistant" and choice.finish_reason == "length"
    assert whole.usage.prompt_tokens == len(tokens)
    content = choice.logprobs.content
    assert len(content) == 12 and content[0].logprob == content[0].top_logprobs[0].logprob
    chunks = list(
        client.chat.completions.create(
            **fields,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        == choice.message.content
    )
    assert (
        chunks[0].choices[0].delta.role == "assistant"
        and chunks[-2].choices[0].finish_reason == "length"
    )
    assert chunks[-1].usage.completion_tokens == 12 and not chunks[-1].choices


def test_chats_use_the_template_of_the_model(front, tokenizer):
    for given in [{}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"mood": "glad"}}]:
        arguments = {"add_generation_prompt": True, **given}
        arguments.update(arguments.pop("chat_template_kwargs", {}))
        expected = tokenizer.apply_chat_template(
            CHAT, tokenize=True, return_dict=False, **arguments
        )
        answer = asked(front, "/v1/chat/completions", messages=CHAT, max_tokens=1, **given).json()
        assert answer["usage"]["prompt_tokens"] == len(expected)
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    plain = [{"role": "user", "content": "a\nb"}]
    one, other = (
        asked(front, "/v1/chat/completions", messages=messages, max_tokens=5, temperature=0).json()[
            "choices"
        ]
        for messages in (parts, plain)
    )
    assert one == other


def test_the_program_says_who_serves_chats(program):
    answer = asked(program, "/v1/chat/completions", messages=CHAT)
    assert (
        answer.status == 501 and "python -m contextile.serve" in answer.json()["error"]["message"]
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": CHAT, "tools": [{"type": "function"}]}, "tools"),
        ({"messages": CHAT, "tool_choice": "required"}, "tool_choice"),
        ({"messages": CHAT, "response_format": {"type": "xml"}}, "response_format"),
        (
            {"messages": CHAT, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
        ),
        (
            {"messages": CHAT, "response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format",
        ),
        ({"messages": CHAT, "guided_json": {"type": "object"}}, "guided_json"),
        (
            {"messages": CHAT, "chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs",
        ),
        ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": CHAT, "prompt": "x"}, "prompt"),
        ({"messages": CHAT, "max_tokens": 10**9}, "max_tokens"),
        ({"messages": CHAT, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": CHAT, "user": 5}, "user"),
        ({"messages": CHAT, "tools": ""}, "tools"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]}, "messages"),
        (
            {"messages": [{"role": "assistant", "content": "Hi", "reasoning_content": "Hm"}]},
            "messages",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Hi", "cache": 1}]}
                ]
            },
            "messages",
        ),
    ],
)
def test_chats_refuse_by_name(front, fields, param):
    answer = asked(front, "/v1/chat/completions", **fields)
    assert answer.status == 400 and answer.json()["error"]["param"] == param, answer.body


def test_an_answer_that_asks_for_nothing_more_is_given(front):
    fields = {
        "tools": [],
        "response_format": {"type": "text"},
        "store": False,
        "parallel_tool_calls": True,
        "logit_bias": None,
        "priority": 0,
        "echo": False,
        "tool_choice": "none",
    }
    messages = [*CHAT, {"role": "assistant", "content": "x", "refusal": None, "annotations": []}]
    messages += [{"role": "tool", "content": "y", "tool_call_id": "1", "name": "f"}]
    answer = asked(front, "/v1/chat/completions", messages=messages, max_tokens=1, **fields)
    assert answer.status == 200, answer.body


def test_long_texts_are_refused_without_being_cut(front):
    for path in ("/v1/completions", "/tokenize"):
        answer = asked(front, path, prompt="ab " * 1_000_000)
        assert answer.status == 400 and "3000000 characters" in answer.json()["error"]["message"]
    answer = asked(
        front, "/v1/chat/completions", messages=[{"role": "user", "content": "ab " * 1_000_000}]
    )
    assert answer.status == 400 and answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.timing
def test_templates_that_loop_are_ended(folder, tmp_path, monkeypatch):
    from contextile.serve import _text

    monkeypatch.setattr(_text, "_TEMPLATE_S", 1.0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "{% for i in range(n) %}{% for j in range(n) %}{% for k in range(n) %}{{ k }}"
        + ("{% endfor %}{% endfor %}{% endfor %}")
    )
    texts = _text.Texts(tokenizer, 100)
    with pytest.raises(_text.TooSlow):
        texts.rendered(CHAT, {"n": 9999})
    assert texts.rendered(CHAT, {"n": 0}) == ""
    assert texts.decode(tokenizer.encode("The end")) == "The end"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda path: (path / "config.json").unlink(),
            "expected a folder with a config.json, found none",
        ),
        (
            lambda path: (path / "tokenizer.json").write_text("{}"),
            "expected a tokenizer that transformers reads, found",
        ),
        (
            lambda path: (path / "tokenizer_config.json").write_text(
                json.dumps(
                    {
                        "auto_map": {"AutoTokenizer": ["tokenization_x.X", None]},
                        "tokenizer_class": "X",
                    }
                )
            ),
            "expected a tokenizer that transformers reads, found",
        ),
        (
            lambda path: (path / "config.json").write_text(
                (path / "config.json")
                .read_text()
                .replace('"model_type": "llama"', '"model_type": "mistral4"')
            ),
            "mistral4",
        ),
    ],
)
def test_folders_that_cannot_be_served_are_one_line(folder, tmp_path, change, words):
    import shutil

    check_front()
    path = tmp_path / "broken"
    shutil.copytree(folder, path)
    (path / "tokenization_x.py").write_text("print('CODE RAN')\n")
    change(path)
    done = subprocess.run(
        front_command(path),
        capture_output=True,
        text=True,
        input="y\n" * 9,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done
    lines = [line for line in done.stderr.splitlines() if line.startswith("serve: ")]
    assert len(lines) == 1 and words in lines[0] and "Traceback" not in done.stderr, done.stderr
    assert "CODE RAN" not in done.stdout


def test_ports_are_checked(folder):
    check_front()
    done = subprocess.run(
        [sys.executable, "-m", "contextile.serve", str(folder), "--port", "70000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "expected 0 to 65535, found 70000" in done.stderr


# ------------------------------------------------------------------------------------------- drafts


def metric(server, name):
    line = next(
        x
        for x in server.ask("GET", "/metrics").body.splitlines()
        if x.startswith(f"contextile_{name} ")
    )
    return int(line.split()[1])


def test_a_draft_model_saves_steps_and_changes_no_token(folder, model):
    """The model drafts for itself, so every draft is accepted."""
    check_front()
    options = (
        "--ranks",
        "2",
        "--generation-config",
        "none",
        "--draft-model",
        str(folder),
        "--draft-tokens",
        "3",
    )
    with Server(front_command(folder, *options)) as server:
        prompt = [5, 9, 11, 30, 7]
        fields = {"prompt": prompt, "max_tokens": 41, "ignore_eos": True, "return_token_ids": True}
        assert asked(server, temperature=0, **fields).tokens == [greedy(model, prompt, 41)]
        assert metric(server, "steps_total") == 1 + 40 // 4
        assert (
            metric(server, "accepted_draft_tokens_total")
            == metric(server, "draft_tokens_total")
            == 30
        )
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--draft-model", "OTHER"),
            "draft_model: expected the model's vocabulary of 320 tokens, found 96",
        ),
        (("--draft-tokens", "3"), "draft_tokens: expected with draft_model"),
    ],
)
def test_wrong_draft_models_are_refused(folder, tmp_path, options, words):
    check_front()
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 96}))
    given = [str(tmp_path) if option == "OTHER" else option for option in options]
    ended = subprocess.run(
        front_command(folder, *given), capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 1 and words in ended.stderr, ended


# ------------------------------------------------------------------------------------------- errors


def test_slow_heads_are_not_waited_for(server):
    """Although fields go on coming; two of them follow a request that is answered."""
    slow = b"GET /version HTTP/1.1\r\nHost: x\r\n"
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection((server.url.hostname, server.url.port)))
            for _ in range(4)
        ]
        for connection, first in zip(
            connections, [slow, slow, slow + b"\r\n" + slow, slow + b"\r\n" + slow], strict=True
        ):
            connection.sendall(first)
            connection.setblocking(False)
        limit = time.monotonic() + 120
        while connections:
            assert time.monotonic() < limit, f"{len(connections)} connections are open"
            assert server.ask("GET", "/version").status == 200
            for connection in list(connections):
                try:
                    connection.sendall(b"X-More: y\r\n")
                    if connection.recv(65536) == b"":
                        connections.remove(connection)
                except BlockingIOError:
                    pass
                except ConnectionError:
                    connections.remove(connection)
            time.sleep(0.2)


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://127.0.0.1:80", "127.0.0.1:80", 200),
        ("https://localhost", "localhost", 200),
        ("http://[::1]:8000", "[::1]:8000", 200),
        ("http://evil.example", None, 403),
        ("null", None, 403),
        # A page whose name points to this machine.
        ("http://evil.example", "evil.example", 403),
        ("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", 403),
        ("http://localhost:1", "localhost:2", 403),
        ("http://[::1", "[::1", 403),
        ("http://[::1]a", "[::1]a", 403),
    ],
)
def test_pages_of_others_are_refused_alike(server, origin, host, status):
    """Also where a browser does not ask before it sends, as with a text."""
    headers = {"Origin": origin, "Content-Type": "text/plain"} | ({"Host": host} if host else {})
    answer = server.ask("POST", "/v1/completions", '{"prompt": "a", "max_tokens": 1}', headers)
    assert answer.status == status, answer.body
    if status == 403:
        assert "--allow-origin" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("", 400, "expected JSON"),
        ("[]", 400, "a JSON object"),
        ("{}", 400, "prompt: expected a text"),
        ("[" * 100_000, 400, ""),
        ('{"prompt": "\\ud800"}', 400, ""),
        ('{"prompt": "a", "prompt": "b"}', 400, "once"),
        ('{"prompt": NaN}', 400, ""),
        ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", 400, ""),
        ('{"prompt": []}', 400, "at least 1 token"),
        ('{"prompt": [320]}', 400, "0 to 319, found '320'"),
        ('{"prompt": [true]}', 400, "found 'true'"),
        ('{"prompt": ["a", 5]}', 400, "expected texts or lists"),
        ('{"prompt": "a", "max_tokens": 1e99}', 400, "max_tokens"),
        ('{"prompt": "a", "top_p": 0}', 400, "top_p"),
        ('{"prompt": "a", "n": 1000}', 400, "n: expected"),
        ('{"prompt": "a", "stop": [""]}', 400, "stop"),
        ('{"prompt": "a", "min_p": 1.5}', 400, "min_p"),
        ('{"prompt": "a", "best_of": 3}', 400, "best_of"),
        ('{"prompt": "a", "logit_bias": {"320": 1}}', 400, "0 to 319"),
        ('{"prompt": "a", "logprobs": 21}', 400, "0 to 20"),
        ('{"prompt": "a", "model": "gpt"}', 404, "expected 'tiny', found"),
        ('{"prompt": "a", "stream_options": {"x": 1}}', 400, "stream_options"),
        ('{"user": 1e999}', 400, ""),
        ('{"user": ' + "[" * 64 + "]" * 64 + "}", 400, "64 levels"),
        (
            '{"prompt": [' + ",".join(["{}"] * 300_000) + "]}",
            400,
            "at most 65536 objects, arrays, keys and texts",
        ),
        (
            '{"prompt": [' + ",".join(['"a"'] * 70_000) + "]}",
            400,
            "at most 65536 objects, arrays, keys and texts",
        ),
    ],
)
def test_wrong_requests_are_refused_alike(server, body, status, words):
    answer = server.ask("POST", "/v1/completions", body)
    assert answer.status == status, answer.body
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "-Infinity",
        "1e999",
        "9" * 5000,
        "[" * 200_000,
        "[" * 65 + "]" * 65,
        '"\\ud800"',
        '{"a": 1, "a": 2}',
        "[{}" + ",{}" * 70_000 + "]",
    ],
)
def test_json_of_clients_has_limits(text):
    fields = pytest.importorskip("contextile.serve._fields")
    with pytest.raises(ValueError):
        fields.parse_json(text)
    assert fields.parse_json("[" * 64 + "]" * 64) and fields.parse_json(
        '{"a": [1.5, {"b": null}]}'
    ) == {"a": [1.5, {"b": None}]}


def test_the_front_writes_no_word_of_clients(folder):
    check_front()
    word = "S3CRET"
    bodies = [
        {"prompt": word, "model": word},
        {word: 1},
        {"prompt": [word, 5]},
        {"prompt": "a", "seed": word},
    ]
    chats = [
        {"messages": [{"role": word}]},
        {"messages": [{"role": "user", "content": word, word: 1}]},
        {"messages": CHAT, "chat_template_kwargs": {"mood": {word: "x"}, "messages": 1}},
        {"messages": CHAT, "tools": [{word: 1}]},
    ]
    with Server(front_command(folder)) as server:
        for path, some in (
            ("/v1/completions", bodies),
            ("/v1/chat/completions", chats),
            (f"/{word}", bodies),
        ):
            for body in [*map(json.dumps, some), f'{{"{word}']:
                assert server.ask("POST", path, body, headers={"X-Request-Id": word}).status in (
                    400,
                    404,
                ), body
        server.process.terminate()
        log = server.process.stderr.read()
        assert word not in log, log


@pytest.mark.timing
def test_a_template_that_does_not_end_does_not_keep_the_front_from_ending(folder, tmp_path):
    check_front()
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    loop = "{% for i in range(99999) %}" * 2 + "{% endfor %}" * 2
    for path in tmp_path.glob("chat_template*"):
        path.unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": loop}))
    with (
        Server(front_command(tmp_path)) as server,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(asked, server, "/v1/chat/completions", messages=CHAT, max_tokens=1)
        busy = Path(f"/proc/{server.process.pid}/task")
        before = len(list(busy.iterdir()))
        while len(list(busy.iterdir())) <= before and not answer.done():
            time.sleep(0.05)
        server.process.terminate()
        assert server.process.wait(60) in (0, 1)
        with contextlib.suppress(Exception):
            answer.result(60)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("--port x 2>/dev/full", 2),
        ("--port x 2>&-", 2),
        ("/no/model 2>/dev/full", 1),
        ("/no/model 2>&-", 1),
    ],
)
def test_exit_codes_stay_where_nothing_can_be_written(given, status):
    check_front()
    command = f"{sys.executable} -m contextile.serve {given}"
    assert (
        subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode
        == status
    )


@pytest.mark.timing
@pytest.mark.parametrize(
    ("code", "status", "error"), [("'no model'", 1, "no model\n"), ("None", 0, ""), ("5", 5, "")]
)
def test_exit_codes_are_those_of_sys_exit(code, status, error):
    check_front()
    program = f"""
import runpy, sys, types
program = types.ModuleType("contextile.serve._program")
program.main = lambda: sys.exit({code})
sys.modules[program.__name__] = program
runpy.run_module("contextile.serve", run_name="__main__")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (status, error)


@pytest.mark.timing
@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "generation_config.json", "config.json"]
)
def test_pipes_for_files_are_refused(folder, tmp_path, name):
    check_front()
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    ended = subprocess.run(
        front_command(tmp_path), capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 1 and "expected" in ended.stderr, ended


def test_random_bodies_get_answers(front):
    source = random.Random(8)
    seeds = [
        (
            "/v1/completions",
            {"prompt": ["ab", [5, 6]], "max_tokens": 2, "logprobs": 2, "echo": True, "stop": ["x"]},
        ),
        (
            "/v1/completions",
            {"prompt": "é漢😀", "max_tokens": 2, "stream": True, "logit_bias": {"5": 1}, "seed": 1},
        ),
        (
            "/v1/chat/completions",
            {"messages": CHAT, "max_tokens": 2, "chat_template_kwargs": {"mood": "x"}, "n": 2},
        ),
        ("/tokenize", {"prompt": "ab"}),
        ("/detokenize", {"tokens": [5, 6]}),
    ]
    for _ in range(300):
        path, fields = source.choice(seeds)
        body = bytearray(json.dumps(fields, ensure_ascii=source.random() < 0.5).encode())
        for _ in range(source.randrange(4)):
            at = source.randrange(len(body))
            piece = source.choice(
                [
                    b"null",
                    b"[",
                    b"}",
                    b'"',
                    b"-1",
                    b"1e999",
                    b"true",
                    b"\xff",
                    b"\\u0000",
                    b"9" * 40,
                ]
            )
            body[at : at + source.randrange(6)] = piece
        answer = front.ask("POST", path, bytes(body))
        assert answer.status in (200, 400, 404), (path, bytes(body), answer.body)
    assert front.ask("GET", "/health").body == "ok\n"


def test_names_of_requests_come_back(server):
    for given, expected in [("job-7_a.b", "job-7_a.b"), ("x" * 200, None), ("a b", None)]:
        found = server.ask("GET", "/health", headers={"X-Request-Id": given}).headers[
            "X-Request-Id"
        ]
        assert found == expected if expected else re.fullmatch("[0-9a-f]{16,32}", found)


def test_tokens_become_texts_again(server, tokenizer):
    text = "The fox, 1234"
    tokens = asked(server, "/tokenize", prompt=text).json()
    assert tokens["tokens"] == tokenizer.encode(text) and tokens["count"] == len(tokens["tokens"])
    assert asked(server, "/detokenize", tokens=tokens["tokens"]).json() == {"prompt": text}
    assert re.fullmatch(r"[0-9.]+", server.ask("GET", "/version").json()["version"])


# ------------------------------------------------------------------------------------ front and
# ranks


@pytest.mark.timing
def test_a_client_that_leaves_is_not_computed_any_more(front):
    for stream in (True, False):
        connection = front.connect()
        body = {
            "prompt": "a",
            "max_tokens": 500,
            "ignore_eos": True,
            "stream": stream,
            "n": 8,
            "logit_bias": {"2": -100},
        }
        connection.request("POST", "/v1/completions", json.dumps(body))
        if stream:
            assert connection.getresponse().read(10)
        connection.close()
        front.wait_for("requests_running", 0)


def test_a_body_that_is_too_large_is_refused(front):
    assert (
        front.ask("POST", "/v1/completions", json.dumps({"prompt": "a" * (9 << 20)})).status == 413
    )


def test_sampling_is_that_of_the_model_unless_a_request_says(folder, tmp_path):
    check_front()
    copied = tmp_path / "tiny"
    copied.mkdir()
    for path in folder.iterdir():
        (copied / path.name).symlink_to(path)
    (copied / "generation_config.json").unlink()
    config = {"temperature": 0.5, "top_k": 20, "do_sample": False, "min_p": 0.25, "typical_p": 0.9}
    (copied / "generation_config.json").write_text(json.dumps(config))
    with Server(front_command(copied)) as server:
        assert "temperature 0, top_k 20, min_p 0.25, unless" in server.started
        assert "typical_p 0.9" in server.started
        first, second = (
            asked(server, prompt="a", max_tokens=9, seed=seed).json()["choices"] for seed in (1, 2)
        )
        assert first == second
        assert server.stop() == 0


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.whole),
        ["--context-parallel", "2", "--prefill-tokens", "8"],
    ],
)
def test_ranks_of_torchrun_give_the_tokens_of_one(folder, model, tokenizer, options):
    check_front()
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
    ]
    with Server([*launch, *front_command(folder, *options)[2:]]) as server:
        try:
            fields = {"messages": CHAT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
            answer = asked(server, "/v1/chat/completions", **fields, return_token_ids=True)
        finally:
            server.stop()  # its ranks end with it
    tokens = tokenizer.apply_chat_template(
        CHAT, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert answer.tokens == [greedy(model, tokens, 12)]


# -------------------------------------------------------------------------------------------- pages


def blocks_of(page, language):
    return re.findall(
        rf"^```{language}\n(.*?)^```",
        (ROOT / "docs" / page).read_text(encoding="utf-8"),
        re.M | re.S,
    )


def run_curl(page, server):
    lines = [
        line
        for block in blocks_of(page, "sh")
        for line in block.splitlines()
        if line.startswith("curl ")
    ]
    assert lines, page
    for line in lines:
        command = line.replace("curl ", "curl -sS --fail-with-body ").replace(
            "localhost:8000", server.url.netloc
        )
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and '"error"' not in done.stdout, (
            f"{command}\n{done.stdout}{done.stderr}"
        )


def test_examples_of_the_pages_run(program, front):
    run_curl("serving.md", program)
    run_curl("python/serve.md", front)


def test_examples_of_python_run(front):
    pytest.importorskip("openai")
    blocks = [block for block in blocks_of("python/serve.md", "python") if "openai" in block]
    assert blocks
    for block in blocks:
        code = block.replace("localhost:8000", front.url.netloc)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
