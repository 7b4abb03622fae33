#!/usr/bin/env python3
"""Serves a random model over ranks of threads and of processes, as clients meet it: tokens, errors,
lost ranks.

  serve_test.py --program build/contextile [--gloo ON|OFF] [--mpirun PATH]

Ends with 77, and a line that says what is missing, where the program was built without the server.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

MODEL = "random:layers=3,hidden=48,heads=24,kv_heads=2,head_dim=8,ffn=64,vocab=256,window=40"
LIMIT_S = 120  # a hang, even on a machine that is busy with other things


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    def json(self):
        return json.loads(self.body)

    @property
    def tokens(self):
        return [choice["token_ids"] for choice in self.json()["choices"]]


class Server:
    """Starts `command` until its server answers, and the other processes of its group with it.

    A launcher of ranks gets SIGTERM at the end, so that it ends them."""

    def __init__(self, command, others=(), launches=False):
        self.launches = launches
        self.others = [
            subprocess.Popen(other, stderr=subprocess.PIPE, text=True) for other in others
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.url = None
        self.started = ""  # the lines before
        for line in self.process.stdout:
            if line.startswith("serving"):
                self.url = urllib.parse.urlparse(line.split()[1])
                break
            self.started += line
        if self.url is None:
            raise RuntimeError(f"{command}: no server: {self.process.stderr.read()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.launches and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LIMIT_S)
        for process in [self.process, *self.others]:
            process.kill()
            process.wait()

    def send(self, data):
        """Sends bytes on a new connection. Returns the answer until the server closes it, which it
        may do before it has read them all."""
        with socket.create_connection(
            (self.url.hostname, self.url.port), timeout=LIMIT_S
        ) as connection:
            answer = b""
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(65536):
                    answer += piece
            return answer

    def connect(self):
        return http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=LIMIT_S)

    def ask(self, method, path, body=None, headers=None):
        connection = self.connect()
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def complete(self, **asked):
        return self.ask(
            "POST",
            "/v1/completions",
            json.dumps({"return_token_ids": True, "temperature": 0, **asked}),
        )

    def metric(self, name):
        for line in self.ask("GET", "/metrics").body.splitlines():
            if line.startswith(f"contextile_{name} "):
                return int(line.split()[1])
        raise KeyError(name)

    def wait_for(self, name, *values):
        limit = time.monotonic() + LIMIT_S
        while (found := self.metric(name)) not in values:
            assert time.monotonic() < limit, f"{name}: expected {values}, found {found}"
            time.sleep(0.02)

    def stop(self):
        """Sends SIGTERM. Returns the first rank's exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LIMIT_S)
        if status != 0:
            print(f"status {status}: {self.process.stderr.read()}", file=sys.stderr)
        return status


def wait_for_cpu_time(process, seconds):
    """Returns when a process has computed for so long."""
    while process.poll() is None:
        fields = (
            pathlib.Path(f"/proc/{process.pid}/stat")
            .read_text(encoding="ascii")
            .rsplit(") ", 1)[1]
            .split()
        )
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= seconds:
            return
        time.sleep(0.01)


def listening_ports(process):
    """Returns the ports at which a process listens over IPv4."""
    folder, inodes = f"/proc/{process.pid}/fd", set()
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(f"{folder}/{name}").removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


class Tests:
    def __init__(self, arguments, folder):
        self.program = arguments.program
        self.gloo = arguments.gloo == "ON"
        self.mpirun = arguments.mpirun
        self.redis = shutil.which("redis-server") if arguments.redis == "ON" else None
        self.folder = folder
        self.expected = None

    def serve(self, *options, ranks=1):
        return Server(
            [
                self.program,
                "serve",
                "--model",
                MODEL,
                "--port",
                "0",
                "--ranks",
                str(ranks),
                *options,
            ]
        )

    def prompts(self):
        source = random.Random(3)
        shared = [source.randrange(256) for _ in range(70)]
        prompts = []
        for i in range(10):
            own = [source.randrange(256) for _ in range(source.randrange(1, 60))]
            prompts.append((shared[: source.randrange(40, 70)] if i % 2 else []) + own)
        return prompts

    def complete_all(self, server):
        """Greedy and sampled tokens of all prompts, requested all at once."""
        asked = [
            {
                "prompt": prompt,
                "max_tokens": 12,
                **({"temperature": 0.9, "top_p": 0.9, "seed": i} if i % 3 == 1 else {}),
            }
            for i, prompt in enumerate(self.prompts())
        ]
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda one: server.complete(**one), asked))
        assert all(answer.status == 200 for answer in answers), [answer.body for answer in answers]
        return [answer.tokens for answer in answers]

    def tokens_of_one_rank(self):
        if self.expected is None:
            with self.serve() as server:
                self.expected = self.complete_all(server)
        return self.expected

    def test_any_number_of_ranks_gives_the_tokens_of_one(self):
        for ranks in (2, 3, 4, 8):
            with self.serve("--page-size", "4", ranks=ranks) as server:
                assert self.complete_all(server) == self.tokens_of_one_rank(), ranks
                assert server.metric("cached_tokens_total") > 0
                assert server.stop() == 0

    def test_processes_over_gloo_give_the_tokens_of_one_rank(self):
        if not self.gloo:
            return
        with Server(
            [
                self.program,
                "launch",
                "-n",
                "3",
                "--grace",
                str(LIMIT_S),
                "--",
                "serve",
                "--model",
                MODEL,
                "--port",
                "0",
                "--hop-b-groups",
                "2",
            ],
            launches=True,
        ) as server:
            assert self.complete_all(server) == self.tokens_of_one_rank()
            assert server.stop() == 0

    def test_requests_that_take_turns_with_layers_give_the_tokens_of_one_rank(self):
        with self.serve("--hop-b", "feed_forward", "--hop-b-groups", "3", ranks=2) as server:
            assert self.complete_all(server) == self.tokens_of_one_rank()
            assert server.stop() == 0

    def test_processes_over_mpi_give_the_tokens_of_one_rank(self):
        if not self.mpirun:
            return
        words = ["--oversubscribe", "-n", "3"] + (
            ["--allow-run-as-root"] if os.geteuid() == 0 else []
        )
        with Server(
            [
                self.mpirun,
                *words,
                self.program,
                "serve",
                "--model",
                MODEL,
                "--port",
                "0",
                "--transport",
                "mpi",
            ],
            launches=True,
        ) as server:
            assert self.complete_all(server) == self.tokens_of_one_rank()

    def test_pages_that_are_short_lose_nothing(self):
        with self.serve(
            "--kv-tokens", "256", "--page-size", "4", "--step-tokens", "64", ranks=2
        ) as server:
            assert self.complete_all(server) == self.tokens_of_one_rank()
            assert server.metric("preemptions_total") > 0
            assert server.metric("kv_pages_free") == 32

    def test_streams_say_the_same(self):
        with self.serve(ranks=2) as server:
            asked = {
                "prompt": "once upon a time",
                "max_tokens": 30,
                "seed": 4,
                "temperature": 1,
                "n": 2,
            }
            whole = server.complete(**asked).json()
            body = server.complete(
                **asked, stream=True, stream_options={"include_usage": True}
            ).body
            events = [line[6:] for line in body.split("\n") if line.startswith("data: ")]
            assert events[-1] == "[DONE]"
            chunks = [json.loads(event) for event in events[:-1]]
            assert chunks[-1]["usage"]["completion_tokens"] == 60 and not chunks[-1]["choices"]
            for index, choice in enumerate(whole["choices"]):
                pieces = [
                    piece
                    for chunk in chunks
                    for piece in chunk["choices"]
                    if piece["index"] == index
                ]
                assert "".join(piece["text"] for piece in pieces) == choice["text"]
                assert [token for piece in pieces for token in piece["token_ids"]] == choice[
                    "token_ids"
                ]
                assert [piece["finish_reason"] for piece in pieces[:-1]] == [None] * (
                    len(pieces) - 1
                )
                assert pieces[-1]["finish_reason"] == choice["finish_reason"] == "length"

    def test_options_do_what_the_protocol_says(self):
        with self.serve(ranks=2) as server:
            plain = server.complete(prompt="abc", max_tokens=40).json()["choices"][0]
            stop = next(c for c in plain["text"][3:] if c.isascii())
            stopped = server.complete(
                prompt="abc", max_tokens=40, stop=["never there", stop]
            ).json()["choices"][0]
            assert (
                stopped["text"] == plain["text"].split(stop)[0]
                and stopped["finish_reason"] == "stop"
            )
            server.wait_for("requests_running", 0)
            echoed = server.complete(prompt="abc", max_tokens=2, echo=True).json()["choices"][0]
            assert echoed["text"].startswith("abc")
            likely = server.complete(prompt="abc", max_tokens=5, logprobs=0).json()["choices"][0][
                "logprobs"
            ]
            assert len(likely["token_logprobs"]) == 5 and all(
                -6 < p <= 0 for p in likely["token_logprobs"]
            )
            several = server.complete(prompt=["abc", [97, 98, 99]], max_tokens=3).json()
            assert (
                several["choices"][0]["token_ids"]
                == several["choices"][1]["token_ids"]
                == plain["token_ids"][:3]
            )
            assert several["usage"] == {
                "prompt_tokens": 6,
                "completion_tokens": 6,
                "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            one, other = (
                server.complete(prompt="abc", max_tokens=30, temperature=1).tokens for _ in range(2)
            )
            assert one != other  # without a seed
            assert server.ask("GET", "/v1/models").json()["data"][0]["id"] == "random"
            assert server.ask("POST", "/tokenize", '{"prompt": "ab"}').json()["tokens"] == [97, 98]
            assert server.ask("POST", "/detokenize", '{"tokens": [97, 195, 164, 255]}').json() == {
                "prompt": "aä\ufffd"
            }
            assert server.ask("GET", "/version").json()["version"].count(".") == 2
            assert server.ask("GET", "/health").status == 200

    def test_drafts_change_no_answer(self):
        """Texts that repeat themselves, whole, as streams, with stop texts and with few tokens."""
        prompts = ["abcabcabcab", "the cat and the dog and the cat and the "]

        def answers(server):
            found = []
            for prompt in prompts:
                for asked in (
                    {},
                    {"temperature": 0.4, "seed": 3},
                    {"ignore_eos": True, "logprobs": 0},
                    {"stop": " "},
                ):
                    whole = server.complete(prompt=prompt, max_tokens=60, **asked).json()
                    found.append(
                        (
                            whole["choices"][0]["token_ids"],
                            whole["choices"][0]["text"],
                            whole["usage"],
                        )
                    )
                for count in (1, 2, 3):
                    assert len(server.complete(prompt=prompt, max_tokens=count).tokens[0]) == count
            body = server.complete(prompt=prompts[0], max_tokens=60, stream=True).body
            pieces = [
                json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: {")
            ]
            assert [t for piece in pieces for t in piece["choices"][0]["token_ids"]] == found[0][0]
            stop = next(c for c in found[0][1][3:] if c.isascii())
            stopped = server.complete(prompt=prompts[0], max_tokens=60, stop=[stop]).json()[
                "choices"
            ][0]
            assert (
                stopped["text"] == found[0][1].split(stop)[0] and stopped["finish_reason"] == "stop"
            )
            server.wait_for("requests_running", 0)
            return found

        shared = ("--tensor-parallel", "1", "--context-parallel", "2", "--prefill-tokens", "4")
        lookups = ("--speculate", "ngram:num_speculative_tokens=5,prompt_lookup_min=1")
        # The draft model of three layers is the model itself.
        itself = ("--draft-model", MODEL)
        small = "random:layers=1,hidden=32,heads=4,kv_heads=2,head_dim=8,ffn=48"
        other = ("--draft-model", small, "--draft-tokens", "2")
        kinds = [
            ((*lookups,), "5 of a request and step, behind 1 to 4 equal tokens"),
            ((*lookups, *shared), "5 of a request and step, behind 1 to 4 equal tokens"),
            ((*itself, *shared), "4 of a request and step, by random: 3 layers"),
            (other, "2 of a request and step, by random: 1 layers"),
        ]
        with self.serve("--no-share-prefixes") as server:
            expected = answers(server)
            steps = server.metric("steps_total")
            assert server.metric("draft_tokens_total") == 0
        for options, text in kinds:
            with self.serve("--no-share-prefixes", *options, ranks=2) as server:
                assert f"drafts    at most {text}" in server.started, server.started
                assert answers(server) == expected
                accepted, drafts = (
                    server.metric("accepted_draft_tokens_total"),
                    server.metric("draft_tokens_total"),
                )
                if options is other:  # which agrees by chance
                    assert 0 <= accepted < drafts
                else:
                    assert 0 < accepted <= drafts and server.metric("steps_total") < steps
                # A stop leaves drafts of an equal model without a use.
                if options[:2] == itself:
                    assert accepted > 0.8 * drafts and server.metric("steps_total") < steps / 2
                assert server.stop() == 0
                rest = server.process.stdout.read()
                assert rest.startswith("drafts    ") and "accepted (" in rest, rest

    def test_wrong_draft_models_are_refused(self):
        wrong = [
            (
                ("--draft-model", "random:vocab=300"),
                "expected the model's vocabulary of 256 tokens, found 300",
            ),
            (
                ("--draft-model", "random:heads=1,kv_heads=1"),
                "--draft-model: decoder: expected at most as many ranks",
            ),
            (("--draft-model", "/nowhere"), "--draft-model: expected a folder"),
            (("--draft-model", "random:blocks=2"), "--draft-model: expected vocab, hidden"),
            (
                ("--draft-model", "random", "--speculate", "ngram"),
                "--draft-model: expected without --speculate",
            ),
            (("--draft-tokens", "3"), "--draft-tokens: expected with --draft-model"),
            (("--draft-model", "random", "--draft-tokens", "0"), "draft-tokens"),
        ]
        for options, words in wrong:
            command = [
                self.program,
                "serve",
                "--model",
                MODEL,
                "--ranks",
                "2",
                "--port",
                "0",
                *options,
            ]
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            assert ended.returncode == 2 and words in ended.stderr, (options, ended)

    def test_what_is_wrong_is_said_and_nothing_is_lost(self):
        wrong = [
            ("", 400, "expected JSON"),
            ("[]", 400, "a JSON object"),
            ("{}", 400, "prompt: expected a text"),
            ('{"prompt": ""}', 400, "at least 1 token"),
            ('{"prompt": []}', 400, "at least 1 token"),
            ('{"prompt": [256]}', 400, "0 to 255, found '256'"),
            ('{"prompt": [-1]}', 400, "found '-1'"),
            ('{"prompt": [1.5]}', 400, "found '1.5'"),
            ('{"prompt": {"a": 1}}', 400, "prompt: expected a text"),
            ('{"prompt": ["a", 5]}', 400, "expected texts or lists"),
            ('{"prompt": "a", "max_tokens": 1e99}', 400, "max_tokens"),
            ('{"prompt": "a", "max_tokens": 18446744073709551615}', 400, "max_tokens"),
            ('{"prompt": "a", "max_tokens": 100000}', 400, "max_tokens"),
            ('{"prompt": "a", "max_tokens": 65536}', 400, "at most"),
            ('{"prompt": "a", "temperature": -1}', 400, "temperature"),
            ('{"prompt": "a", "top_p": 0}', 400, "top_p"),
            ('{"prompt": "a", "n": 1000}', 400, "n: expected"),
            ('{"prompt": "a", "stop": [""]}', 400, "stop"),
            ('{"prompt": "a", "stream": "yes"}', 400, "stream"),
            ('{"prompt": "a", "best_of": 3}', 400, "best_of"),
            ('{"prompt": "a", "tools": [{}]}', 400, "tools"),
            ('{"prompt": "a", "logprobs": 21}', 400, "logprobs"),
            ('{"prompt": "a", "logit_bias": {"256": 1}}', 400, "0 to 255, found '256'"),
            ('{"prompt": "a", "logit_bias": {"1": 101}}', 400, "-100 to 100, found '101'"),
            ('{"prompt": "a", "logit_bias": {"1": 1, "01": 1}}', 400, "different token ids"),
            ('{"prompt": "a", "stop_token_ids": [-1]}', 400, "stop_token_ids"),
            ('{"prompt": "a", "repetition_penalty": 0}', 400, "repetition_penalty"),
            (
                '{"prompt": "a", "max_tokens": 1, "max_completion_tokens": 2}',
                400,
                "max_completion_tokens",
            ),
            ('{"prompt": "a", "response_format": {"type": "json_object"}}', 400, "response_format"),
            (
                '{"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {}}}',
                400,
                "response_format",
            ),
            ('{"prompt": "a", "guided_json": {"type": "object"}}', 400, "guided_json"),
            ('{"prompt": "a", "structured_outputs": {"regex": "a"}}', 400, "structured_outputs"),
            ('{"prompt": "a", "tool_choice": "required"}', 400, "tool_choice"),
            ('{"prompt": "a", "model": "gpt"}', 404, "expected 'random', found"),
            ('{"prompt": "\\ud800"}', 400, ""),
            ("[" * 100_000, 400, "nesting"),
            ('{"prompt": "a", "prompt": "b"}', 400, "once"),
        ]
        with self.serve(ranks=2) as server:
            for body, status, text in wrong:
                answer = server.ask("POST", "/v1/completions", body)
                assert answer.status == status, (body[:80], answer.status, answer.body)
                error = answer.json()["error"]
                assert text in error["message"] and error["type"] == "invalid_request_error", (
                    body[:80],
                    answer.body,
                )
            assert server.ask("GET", "/v1/other").status == 404
            assert (
                server.ask(
                    "POST", "/v1/completions", '{"prompt": "' + "a" * (9 << 20) + '"}'
                ).status
                == 413
            )
            pieces = (b"x" * 2**20 for _ in range(100))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                assert server.ask("POST", "/v1/completions", pieces).status == 413
            form = {"Content-Type": "multipart/form-data; boundary=x"}
            assert server.ask("POST", "/v1/completions", "--x--\r\n", form).status == 415
            assert server.ask("GET", "/v1/models/random").json()["id"] == "random"
            assert server.ask("GET", "/v1/models/other").status == 404
            connection = server.connect()
            connection.connect()
            connection.sock.sendall(b"\x00\xffnothing that is HTTP\r\n\r\n")
            connection.close()
            assert server.complete(prompt="a", max_tokens=3).status == 200
            assert server.metric("requests_running") == 0
            # The type that curl -d gives a body, which is no form.
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            long = json.dumps({"prompt": "a" * 20_000, "max_tokens": 1})
            assert server.ask("POST", "/v1/completions", long, form).status == 200

    def test_clients_that_leave_are_forgotten(self):
        with self.serve(ranks=2) as server:
            connection = server.connect()
            connection.request(
                "POST",
                "/v1/completions",
                json.dumps({"prompt": "a", "max_tokens": 60000, "stream": True}),
            )
            response = connection.getresponse()
            assert response.read(20)
            server.wait_for("requests_running", 1)
            response.close()
            connection.close()
            server.wait_for("requests_running", 0)
            server.wait_for("kv_pages_free", 2048)
            # This also holds while its prompts are computed, which takes minutes, and nothing has
            # been written.
            prompts = [letter * 60_000 for letter in "bcdefghijklm"]
            connection = server.connect()
            connection.request(
                "POST", "/v1/completions", json.dumps({"prompt": prompts, "stream": True})
            )
            server.wait_for("requests_running", *range(1, len(prompts) + 1))
            connection.sock.close()
            server.wait_for("requests_running", 0)
            server.wait_for("requests_waiting", 0)
            assert server.metric("computed_tokens_total") < 60_000 * len(prompts) / 2

    def test_requests_that_two_servers_could_read_differently_are_refused(self):
        begin = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        body = b'{"prompt": "a", "max_tokens": 1}'
        length = b"Content-Length: %d\r\n" % len(body)
        wrong = [
            (begin + length + b"Content-Length: 1\r\n\r\n" + body, b"400"),
            (begin + length + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
            (begin + b"Content-Length : 5\r\n\r\n" + body, b"400"),
            (begin + b"Transfer-Encoding: gzip\r\n\r\n", b"501"),
            (begin + b"Content-Length: 99999999999999999999999\r\n\r\n", b"413"),
            (b"GET /health HTTP/3.0\r\nHost: x\r\n\r\n", b"505"),
            (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
            (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"414"),
            (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
        ]
        with self.serve() as server:
            for data, status in wrong:
                answer = server.send(data)
                head, _, text = answer.partition(b"\r\n\r\n")
                assert head.split()[1] == status, (data[:200], answer)
                assert json.loads(text)["error"]["message"], answer
                assert answer.count(b"Content-Length:") == 1, answer  # no second request follows
            before = self.resident_mib(server)
            endless = server.send(b"GET / HTTP/1.1\r\nA: " + b"x" * (64 << 20))
            assert not endless or endless.startswith(b"HTTP/1.1 431"), endless[:100]
            assert self.resident_mib(server) < before + 16
            assert server.complete(prompt="a", max_tokens=1).status == 200

    def test_requests_one_behind_another_are_answered_in_order(self):
        body = b'{"prompt": "a", "max_tokens": 2, "temperature": 0}'
        post = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        get = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        with (
            self.serve() as server,
            socket.create_connection((server.url.hostname, server.url.port)) as connection,
        ):
            connection.settimeout(LIMIT_S)
            connection.sendall(post + get + post + get)
            answer = b""
            while answer.count(b"HTTP/1.1 200") < 4 or not answer.endswith(b"ok\n"):
                piece = connection.recv(65536)
                assert piece, answer
                answer += piece
            kinds = [b"text_completion" in part for part in answer.split(b"HTTP/1.1 200")[1:]]
            assert kinds == [True, False, True, False], answer

    def test_slow_and_silent_clients_hold_nobody_up(self):
        with self.serve("--max-connections", "4") as server, contextlib.ExitStack() as stack:
            address = (server.url.hostname, server.url.port)
            for i in range(40):
                connection = stack.enter_context(socket.create_connection(address))
                if i % 2:
                    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost")
            streams = []
            for _ in range(4):  # as many as there are threads
                connection = server.connect()
                connection.request(
                    "POST",
                    "/v1/completions",
                    '{"prompt": "a", "max_tokens": 60000, "stream": true}',
                )
                streams.append((connection, connection.getresponse()))
            assert server.ask("GET", "/health").status == 200
            server.wait_for("requests_running", 4)
            for connection, response in streams:
                response.close()
                connection.close()
            assert server.complete(prompt="a", max_tokens=1).status == 200
            # A missing body holds a thread; the end of the server does not wait until it is refused
            # with 408.
            silent = stack.enter_context(socket.create_connection(address, timeout=LIMIT_S))
            silent.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
            )
            assert server.stop() == 0
            with contextlib.suppress(ConnectionError):
                assert b" 408 " not in silent.recv(65536)

    def test_clients_that_leave_are_forgotten_without_streams_too(self):
        with self.serve() as server:
            connection = server.connect()
            connection.request(
                "POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 60000})
            )
            server.wait_for("requests_running", 1)
            connection.close()
            server.wait_for("requests_running", 0)

    def test_tokens_beyond_the_vocabulary_cost_one_request(self):
        model = "random:layers=1,hidden=16,heads=4,kv_heads=2,head_dim=4,ffn=16,vocab=100"
        with Server(
            [self.program, "serve", "--ranks", "2", "--port", "0", "--model", model]
        ) as server:
            # The bytes of a tokenizer of 256 tokens.
            refused = server.complete(prompt="Hello", max_tokens=1)
            assert (
                refused.status == 400 and "vocab" in refused.body
            ) or "tokens of the model's 100" in refused.body
            assert server.complete(prompt=[5], max_tokens=1).status == 200

    def test_prompts_that_are_too_long_are_refused_before_they_take_memory(self):
        with self.serve() as server:
            before = self.resident_mib(server)
            answer = server.complete(prompt="a" * 8_000_000, max_tokens=1, n=32)
            assert (
                answer.status == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
            ), answer.body
            assert self.resident_mib(server) < before + 128

    def test_ranks_that_would_serve_different_things_do_not(self):
        if not self.gloo:
            return
        different = [
            ("--model", MODEL + ",seed=5", "weights"),
            ("--page-size", "32", "--page-size"),
            ("--kv-dtype", "bf16", "--kv-dtype"),
            ("--step-tokens", "7", "--step-tokens"),
            ("--speculate", "ngram", "--speculate"),
            ("--draft-model", "random", "--draft-model"),
        ]
        for option, value, word in different:
            meeting = tempfile.mkdtemp(dir=self.folder)
            command = [
                self.program,
                "serve",
                "--ranks",
                "2",
                "--transport",
                "gloo",
                "--rendezvous",
                f"file://{meeting}",
                "--run-id",
                "a",
                "--port",
                "0",
                "--timeout",
                "20",
            ]
            first = [*command, "--rank", "0", "--model", MODEL]
            second = [
                *command,
                "--rank",
                "1",
                *(() if option == "--model" else ("--model", MODEL)),
                option,
                value,
            ]
            ranks = [
                subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for c in (first, second)
            ]
            for rank in ranks:
                error = rank.communicate(timeout=LIMIT_S)[1]
                assert rank.returncode == 2 and word in error and "on all ranks" in error, (
                    option,
                    rank.returncode,
                    error,
                )

    def test_a_signal_ends_a_server_that_loads_its_weights(self):
        # Takes a minute or two to make.
        large = "random:layers=24,hidden=2048,heads=16,kv_heads=4,head_dim=128,ffn=8192,vocab=256"
        command = [self.program, "serve", "--ranks", "2", "--port", "0", "--model", large]
        for number in (signal.SIGINT, signal.SIGTERM):
            server = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                # It names its port only when it is ready.
                while not (ports := listening_ports(server)):
                    assert server.poll() is None, server.stderr.read()
                    time.sleep(0.01)
                connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=LIMIT_S)
                connection.request("GET", "/health")
                assert connection.getresponse().read() == b"starting\n"
                connection.close()
                server.send_signal(number)
                output, error = server.communicate(timeout=LIMIT_S)
                assert (server.returncode, output, error) == (0, "", ""), (
                    server.returncode,
                    output,
                    error,
                )
            finally:
                server.kill()
                server.wait()

    def test_a_signal_ends_processes_that_load_their_weights(self):
        if not self.gloo:
            return
        # Takes some seconds to make; a rank that got no signal makes it to the end.
        large = "random:layers=4,hidden=2048,heads=16,kv_heads=4,head_dim=128,ffn=8192,vocab=256"
        for to_whom in ("all", "the first", "the second"):
            meeting = tempfile.mkdtemp(dir=self.folder)
            command = [
                self.program,
                "serve",
                "--ranks",
                "2",
                "--transport",
                "gloo",
                "--rendezvous",
                f"file://{meeting}",
                "--run-id",
                "a",
                "--port",
                "0",
                "--model",
                large,
            ]
            ranks = [
                subprocess.Popen(
                    [*command, "--rank", rank],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in "01"
            ]
            try:
                while not listening_ports(ranks[0]):
                    assert ranks[0].poll() is None, ranks[0].stderr.read()
                    time.sleep(0.01)
                wait_for_cpu_time(ranks[1], 1)  # it makes weights
                told = {"all": ranks, "the first": ranks[:1], "the second": ranks[1:]}[to_whom]
                for rank in told:
                    rank.terminate()
                found = [(*rank.communicate(timeout=LIMIT_S), rank.returncode) for rank in ranks]
                assert found == [("", "", 0), ("", "", 0)], (to_whom, found)
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()

    def test_control_c_ends_launched_ranks_well(self):
        if not self.gloo:
            return
        command = [
            self.program,
            "launch",
            "-n",
            "2",
            "--grace",
            str(LIMIT_S),
            "--",
            "serve",
            "--port",
            "0",
            "--model",
            MODEL,
        ]
        launcher = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert any(line.startswith("serving") for line in launcher.stdout)
        os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does, to all of the group
        assert launcher.wait(LIMIT_S) == 0, launcher.stderr.read()

    def test_a_signal_to_a_rank_that_is_ending_changes_nothing(self):
        """The signal comes to the first rank, which ends the other one, and to that one in every
        part of its end."""
        if not self.gloo:
            return
        for delay_ms in range(0, 30, 3):
            meeting = tempfile.mkdtemp(dir=self.folder)
            command = [
                self.program,
                "serve",
                "--model",
                MODEL,
                "--ranks",
                "2",
                "--transport",
                "gloo",
                "--rendezvous",
                f"file://{meeting}",
                "--run-id",
                "a",
                "--port",
                "0",
            ]
            with Server([*command, "--rank", "0"], [[*command, "--rank", "1"]]) as server:
                server.process.send_signal(signal.SIGTERM)
                time.sleep(delay_ms / 1e3)
                server.others[0].send_signal(signal.SIGTERM)
                assert server.process.wait(LIMIT_S) == 0, server.process.stderr.read()
                assert server.others[0].wait(LIMIT_S) == 0, (
                    delay_ms,
                    server.others[0].stderr.read(),
                )

    def test_health_says_what_is_so(self):
        if not self.gloo:
            return
        meeting = tempfile.mkdtemp(dir=self.folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            self.program,
            "serve",
            "--model",
            MODEL,
            "--ranks",
            "2",
            "--transport",
            "gloo",
            "--rendezvous",
            f"file://{meeting}",
            "--run-id",
            "a",
            "--port",
            str(port),
            "--timeout",
            str(3 * LIMIT_S),
        ]
        first = subprocess.Popen(
            [*command, "--rank", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        second = subprocess.Popen([*command, "--rank", "1"], stderr=subprocess.DEVNULL)
        try:
            assert any(line.startswith("serving") for line in first.stdout)

            def health():
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
                connection.request("GET", "/health")
                response = connection.getresponse()
                return response.status, response.read().decode()

            assert health() == (200, "ok\n")
            second.send_signal(signal.SIGSTOP)
            limit = time.monotonic() + LIMIT_S
            while health()[0] == 200:
                assert time.monotonic() < limit
                time.sleep(0.5)
            assert health()[1].startswith("degraded: no step has ended for"), health()
            second.send_signal(signal.SIGCONT)
            limit = time.monotonic() + LIMIT_S
            while health()[0] != 200:
                assert time.monotonic() < limit
                time.sleep(0.5)
        finally:
            for process in (first, second):
                process.kill()
                process.wait()

    def test_the_log_has_a_line_for_each_request(self):
        with self.serve("--log", "requests") as server:
            assert server.complete(prompt="abc", max_tokens=3).status == 200
            assert server.complete(prompt="", max_tokens=3).status == 400
            server.process.send_signal(signal.SIGTERM)
            log = server.process.stderr.read()
            assert "3 prompt tokens" in log and "3 tokens" in log and "length" in log, log
            assert "refused with 400: prompt\n" in log, log

    def test_the_log_quotes_nothing_that_a_client_sent(self):
        word = "S3CRET"
        head = f"Host: x\r\nX-Request-Id: {word}\r\n"
        fields = [
            {"model": word},
            {"stop": [word, ""]},
            {"logit_bias": {word: 1}},
            {"seed": word},
            {word: 1},
            {"stream": True, "stream_options": {word: 1}},
            {"prompt": [1, word]},
        ]
        bodies = [
            {"prompt": ""},
            {"prompt": {word: 1}},
            [word],
            *({"prompt": "a"} | one for one in fields),
        ]
        with self.serve() as server:
            for body in [
                *map(json.dumps, bodies),
                f'{{"{word}',
                f'{{"{word}": 1, "{word}": 2}}',
                f"{word}",
            ]:
                for path in ("/v1/completions", "/tokenize", "/detokenize"):
                    status = server.ask("POST", path, body, {"X-Request-Id": word}).status
                    assert status in (400, 404) or path == "/tokenize", (path, body, status)
            for line in (
                f"GET /{word} HTTP/1.1",
                f"{word} / HTTP/1.1",
                f"GET / {word}/1.1",
                f"GET {word} HTTP/1.1",
                f"GET /v1/models/{word} HTTP/1.1",
                f"{word}",
            ):
                assert b"HTTP/1.1 4" in server.send(f"{line}\r\n{head}\r\n".encode()), line
            for field in (
                f"Expect: {word}",
                f"Transfer-Encoding: {word}",
                f"Content-Length: {word}",
                f"({word}): 1",
                f"{word}\1: 1",
                f"A: {word}\1",
            ):
                answer = server.send(f"GET /health HTTP/1.1\r\n{head}{field}\r\n\r\n".encode())
                assert b"HTTP/1.1 4" in answer or b"HTTP/1.1 501" in answer, (field, answer)
            server.process.send_signal(signal.SIGTERM)
            log = server.process.stderr.read()
            assert log.count("refused with") > 40 and word not in log, log

    def test_requests_of_many_small_objects_are_refused(self):
        with self.serve() as server:
            for objects in (["{}"] * 1_000_000, ['{"a":[]}'] * 500_000):
                body = '{"prompt":[' + ",".join(objects) + '],"max_tokens":1}'
                answer = server.ask("POST", "/v1/completions", body)
                assert answer.status == 400, answer.body
                assert "at most 65536 objects, arrays, keys and texts" in answer.body, answer.body
            assert server.stop() == 0

    def test_requests_that_no_memory_is_left_for_cost_nobody_else(self):
        with self.serve("--kv-tokens", "4096") as server:
            process = server.process.pid
            size = pathlib.Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[0]
            size = int(size) * os.sysconf("SC_PAGE_SIZE") + (300 << 20)
            resource.prlimit(process, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
            body = '{"prompt": [' + ",".join(["1"] * 4_000_000) + "]}"

            def ask(_):
                try:
                    return server.ask("POST", "/v1/completions", body).status
                except ConnectionError:  # no memory for an answer, either
                    return None

            with concurrent.futures.ThreadPoolExecutor(10) as clients:
                found = set(clients.map(ask, range(30)))
            assert found <= {400, 503, None}, found
            assert server.process.poll() is None
            assert server.ask("GET", "/health").status == 200
            assert server.complete(prompt="a", max_tokens=2).status == 200
            assert server.stop() == 0

    def test_a_step_that_does_not_end_does_not_keep_the_server_from_ending(self):
        if not self.gloo:
            return
        folder = tempfile.mkdtemp(dir=self.folder)
        command = [
            self.program,
            "serve",
            "--model",
            MODEL,
            "--ranks",
            "2",
            "--transport",
            "gloo",
            "--rendezvous",
            f"file://{folder}",
            "--run-id",
            "a",
            "--port",
            "0",
        ]
        with Server([*command, "--rank", "0"], [[*command, "--rank", "1"]]) as server:
            server.others[0].send_signal(signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(LIMIT_S) == 3
            assert "found some still under way" in server.process.stderr.read()

    def test_pages_may_call_where_they_are_allowed(self):
        with self.serve("--allow-origin", "https://example.org") as server:
            answer = server.ask("OPTIONS", "/v1/completions")
            assert (
                answer.status == 204
                and answer.headers["Access-Control-Allow-Origin"] == "https://example.org"
            )
            assert (
                server.ask("GET", "/health").headers["Access-Control-Allow-Origin"]
                == "https://example.org"
            )
        with self.serve() as server:
            assert server.ask("GET", "/health").headers["Access-Control-Allow-Origin"] is None

    def test_floods_are_refused_or_served(self):
        with self.serve(
            "--max-waiting", "8", "--max-running", "4", "--max-connections", "32", ranks=2
        ) as server:
            before = self.resident_mib(server)
            with concurrent.futures.ThreadPoolExecutor(100) as pool:
                answers = list(
                    pool.map(lambda i: server.complete(prompt=[i % 256], max_tokens=3), range(600))
                )
            assert {answer.status for answer in answers} <= {200, 429}, {
                answer.status for answer in answers
            }
            # There is always room for as many as may wait.
            assert sum(answer.status == 200 for answer in answers) >= 8
            refused = [answer for answer in answers if answer.status == 429]
            assert all(answer.headers["Retry-After"] == "1" for answer in refused)
            assert self.resident_mib(server) < before + 64
            assert server.complete(prompt="a", max_tokens=3).status == 200

    @staticmethod
    def resident_mib(server):
        pages = int(
            pathlib.Path(f"/proc/{server.process.pid}/statm").read_text(encoding="ascii").split()[1]
        )
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def test_stopping_tells_clients(self):
        with self.serve(ranks=2) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.complete, prompt="a", max_tokens=60000)
            server.wait_for("requests_running", 1)
            assert server.stop() == 0
            assert answer.result().status == 503
            assert "stopped by a signal" in answer.result().json()["error"]["message"]

    def stored_group(self, store, *options):
        """Three processes over gloo that go on without a lost one."""
        run = f"run-{time.monotonic_ns()}"
        folder = pathlib.Path(self.folder) / run
        folder.mkdir()

        def rank(number):
            return [
                self.program,
                "serve",
                "--model",
                MODEL,
                "--port",
                "0",
                "--ranks",
                "3",
                "--transport",
                "gloo",
                "--rendezvous",
                f"file://{folder}",
                "--run-id",
                run,
                "--store",
                store or f"file://{folder}",
                "--timeout",
                "30",
                "--rank",
                str(number),
                *options,
            ]

        return Server(rank(0), [rank(1), rank(2)])

    def test_a_lost_rank_ends_what_had_begun_and_nothing_else(self):
        if self.gloo:
            self.lose_a_rank(None)

    def test_a_rank_is_lost_beside_redis(self):
        if not self.gloo or not self.redis:
            return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = [
            self.redis,
            "--port",
            str(port),
            "--save",
            "",
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
        ]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as redis:
            try:
                self.lose_a_rank(f"redis://127.0.0.1:{port}")
            finally:
                redis.kill()

    def lose_a_rank(self, store):
        with (
            self.stored_group(store, "--max-running", "1") as server,
            concurrent.futures.ThreadPoolExecutor(4) as pool,
        ):
            begun = pool.submit(server.complete, prompt="a", max_tokens=60000)
            server.wait_for("requests_running", 1)
            waiting = [
                pool.submit(server.complete, prompt=prompt, max_tokens=12)
                for prompt in self.prompts()[:3:2]
            ]
            server.wait_for("requests_waiting", 2)
            server.others[1].kill()
            assert begun.result().status == 503, begun.result().body
            assert "engines were lost" in begun.result().json()["error"]["message"]
            expected = self.tokens_of_one_rank()
            assert [answer.result().tokens for answer in waiting] == expected[:3:2]
            assert server.complete(prompt=self.prompts()[3], max_tokens=12).tokens == expected[3]
            assert "2 of 3 are left" in server.process.stdout.readline()
            again = subprocess.run(
                server.others[1].args, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            assert again.returncode == 3, again
            assert "goes on without this rank" in again.stderr, again.stderr
            assert server.complete(prompt=self.prompts()[2], max_tokens=12).tokens == expected[2]
            log = ""  # the server looks every second
            while "rank '2' came back and was refused" not in log:
                line = server.process.stderr.readline()
                assert line, log
                log += line
            assert server.stop() == 0
            assert server.others[0].wait(LIMIT_S) == 0

    def test_without_the_first_rank_all_end(self):
        if not self.gloo:
            return
        with self.stored_group(None) as server:
            server.process.kill()
            for other in server.others:
                assert other.wait(LIMIT_S) == 3, other.stderr.read()
                assert "the first rank is lost, and with it the server" in other.stderr.read()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", required=True)
    parser.add_argument("--gloo", default="OFF")
    parser.add_argument("--mpirun", default="")
    parser.add_argument("--redis", default="OFF")
    parser.add_argument("--only", default="", help="tests whose names have that text")
    arguments = parser.parse_args()
    probe = subprocess.run(
        [arguments.program, "serve", "--port", "99999"], capture_output=True, text=True, check=False
    )
    if "not in this build" in probe.stderr:
        print(probe.stderr.strip())
        return 77
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(arguments, folder)
        for name in [
            name for name in dir(tests) if name.startswith("test_") and arguments.only in name
        ]:
            print(name, flush=True)
            getattr(tests, name)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
