"""``python -m contextile.serve MODEL``: ranks, the engine and the server."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from contextile import _core, _serving
from contextile.serve._app import make_app
from contextile.serve._engine import EngineThread
from contextile.serve._log import log
from contextile.serve._options import ServeOptions, parse_options
from contextile.serve._requests import Limits

_MOST_OPEN = 4096  # connections; more are answered 503
_END_S = 8.0  # from the signal to the end of the process
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
# Fields of generation_config.json that change completions and that the engine does not have, with
# values that change nothing.
_UNSUPPORTED: dict[str, Any] = {
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "penalty_alpha": 0.0,
    "guidance_scale": 1.0,
    "num_beams": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "stop_strings": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
}


def default_sampling(model: str) -> tuple[dict[str, float], list[str]]:
    """Returns the sampling that a model's generation_config.json recommends.

    Also returns its fields that the engine does not have.
    """
    path = Path(model) / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not isinstance(found, dict):
        raise _core.InvalidArgument(f"{path}: expected a JSON object, found {type(found).__name__}")
    sampling = dict(_SAMPLING)
    for name, unless in _SAMPLING.items():
        value = found.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _core.InvalidArgument(f"{path}, {name}: expected a number, found {value!r}")
        sampling[name] = max(value, unless) if name == "top_k" else value
    if found.get("do_sample") is False:
        sampling["temperature"] = 0.0
    ignored = [
        f"{key} {found[key]!r}"
        for key, neutral in _UNSUPPORTED.items()
        if found.get(key) is not None and found[key] != neutral
    ]
    return sampling, ignored


class _Front:
    """The parts of the server that are loaded before ranks wait for each other."""

    def __init__(self, options: ServeOptions) -> None:
        from transformers import AutoTokenizer

        if not (Path(options.model) / "config.json").is_file():
            raise _core.InvalidArgument(
                f"{options.model}: expected a folder with a config.json, found none"
            )
        for path in sorted(Path(options.model).iterdir()):
            # Reading a pipe or a device could wait for ever.
            if path.exists() and not path.is_file() and not path.is_dir():
                raise _core.InvalidArgument(f"{path}: expected a regular file, found another kind")
        try:
            # Nothing is fetched, and no code of the folder is run.
            self.tokenizer = AutoTokenizer.from_pretrained(
                options.model, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise _core.InvalidArgument(
                f"{options.model}: expected a tokenizer that transformers reads, found {reason}"
            ) from None
        self.sampling, self.ignored = dict(_SAMPLING), list[str]()
        if options.generation_config == "model":
            self.sampling, self.ignored = default_sampling(options.model)

    def sampling_text(self) -> str:
        said = [
            f"{name} {value:g}" for name, value in self.sampling.items() if value != _SAMPLING[name]
        ]
        text = f"sampling  {', '.join(said) or 'temperature 1'}, unless a request says otherwise"
        if self.ignored:
            text += f"\nignored   of generation_config.json: {', '.join(self.ignored)}"
        return text


def _meet(options: ServeOptions) -> tuple[_Front | None, list[_core.Transport]]:
    """Returns the front, on the first rank, and this process's ends of the group.

    They are its own under torchrun, else one per thread.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return _Front(options), _core.inproc_group(options.ranks, timeout=options.timeout)
    if options.ranks != 1:
        raise _core.InvalidArgument("--ranks: expected without torchrun, which starts the ranks")
    import torch.distributed as dist

    from contextile.torch import make_transport

    dist.init_process_group("gloo")
    front = _Front(options) if dist.get_rank() == 0 else None
    return front, [make_transport(timeout=options.timeout)]


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _keep_running_on_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)


class _End:
    """Ends the process some seconds after `start`, whatever a step or a request is still at."""

    def __init__(self) -> None:
        self._timer = threading.Timer(_END_S, self._end)
        self._timer.daemon = True

    def start(self) -> None:
        if self._timer.ident is None:  # once
            self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()

    @staticmethod
    def _end() -> None:
        log(f"expected its work to end within {_END_S:.0f} s, found some still under way")
        os._exit(1)


def _end_by_signals() -> None:
    """Lets signals end the process at once, whatever library it waits in."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _follow(transport: _core.Transport, options: ServeOptions) -> None:
    """Runs a rank other than the first until the first stops all."""
    engine = _serving.ServingEngine(transport, options.model, **options.engine)
    while not engine.advance()[2]:
        pass


def _follow_in_thread(transport: _core.Transport, options: ServeOptions) -> threading.Thread:
    def run() -> None:
        try:
            _follow(transport, options)
        except _core.Error as error:
            transport.abort(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _server_of(
    app: Any, options: ServeOptions, front: _Front, engine: EngineThread, end: _End
) -> Any:
    """Returns a server that prints its address when it listens."""
    import uvicorn

    from contextile.serve._request_heads import HeadsInTime

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                port = self.servers[0].sockets[0].getsockname()[1]
                print(front.sampling_text())
                print(f"serving   http://{options.host}:{port}/v1/completions", flush=True)

        async def shutdown(self, sockets: Any = None) -> None:
            end.start()
            engine.stop()  # so that streams end with an error
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            app,
            host=options.host,
            port=options.port,
            http=HeadsInTime,
            limit_concurrency=_MOST_OPEN,
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
    )


def _serve(options: ServeOptions, front: _Front, transports: list[_core.Transport]) -> int:
    """Runs the first rank and the server."""
    followers = [_follow_in_thread(transport, options) for transport in transports[1:]]
    thread = EngineThread(
        lambda: _serving.ServingEngine(transports[0], options.model, **options.engine),
        patience=min(2.0, options.timeout / 4),
    )
    end = _End()
    try:
        engine = thread.start()
        limits = Limits(
            model=options.name or Path(options.model).resolve().name,
            vocab_size=engine.vocab_size,
            max_length=engine.max_length,
            end_tokens=engine.end_tokens,
            sampling=front.sampling,
        )
        app = make_app(
            thread,
            front.tokenizer,
            limits,
            max_connections=options.max_connections,
            max_body_bytes=options.max_body_bytes,
            allow_origin=options.allow_origin,
            host=options.host,
        )
        server = _server_of(app, options, front, thread, end)
        thread.lost = lambda: setattr(server, "should_exit", True)
        _keep_running_on_signals()  # uvicorn raises them again when it has ended
        server.run()
    finally:
        end.start()
        _end_by_signals()  # a second one, while the step under way ends
        thread.stop()
        thread.join()
        if thread.engine is None:
            transports[0].abort("the first rank has no engine")
        for follower in followers:
            follower.join()
        end.cancel()
    if thread.error is not None:
        log(f"the engines were lost: {thread.error}")
    return 0 if server.started and thread.error is None else 1


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGINT or SIGTERM. Returns the exit code."""
    options = parse_options(arguments)
    _end_by_signals()  # until the server runs
    try:
        front, transports = _meet(options)
        if front is not None:
            return _serve(options, front, transports)
        # The first rank ends the others; torchrun sends its signals to all.
        _keep_running_on_signals()
        _follow(transports[0], options)
    except (_core.Error, OSError, ValueError) as error:
        log(str(error))
        return 1
    return 0
