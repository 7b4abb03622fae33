"""The options of ``python -m contextile.serve``, named as those of ``contextile serve``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class ServeOptions:
    """The model that a server serves, and how it does.

    Attributes
    ----------
    model : str
        A folder of Hugging Face's format.
    name : str, optional
        The name that clients give the model. Default: the folder's.
    generation_config : str
        ``"model"``: requests that do not say are sampled as the model's generation_config.json
        says; ``"none"``: as the protocol does, with temperature 1.
    engine : dict
        Options of ``ServingEngine``.
    """

    model: str
    name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    ranks: int = 1
    timeout: float = 60.0
    generation_config: str = "model"
    max_connections: int = 64
    max_body_bytes: int = 8 << 20
    allow_origin: str | None = None
    engine: dict[str, Any] = dataclasses.field(default_factory=dict)


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, found {value}")
        return value

    return number


_ENGINE: dict[str, tuple[Any, str]] = {
    "kv_tokens": (_at_least(1), "tokens the KV cache holds, over all ranks (default: 65536)"),
    "page_size": (_at_least(1), "tokens of a page of a rank (default: 16)"),
    "interleave": (
        _at_least(1),
        "tokens that go to a rank before the next one's turn (default: 1)",
    ),
    "kv_dtype": (["f32", "bf16", "f16"], "of cached keys and values (default: f32)"),
    "mode": (
        ["auto", "ag_rs", "a2a", "q_replicated"],
        "how ranks come to attention over all tokens",
    ),
    "wire": (["f32", "bf16", "f16"], "of queries and outputs between ranks (default: f32)"),
    "hop_b_groups": (_at_least(1), "groups of requests whose exchanges and attention overlap"),
    "hop_b": (["off", "attention", "feed_forward"], "what overlaps with --hop-b-groups"),
    "max_running": (_at_least(1), "requests that are computed at a time (default: 64)"),
    "max_waiting": (_at_least(1), "requests that wait; more are answered 429 (default: 1024)"),
    "step_tokens": (_at_least(1), "tokens of a step; longer prompts are cut (default: 512)"),
    "pace": (float, "length of steps with prompts, in steps without (default: 3)"),
    "tensor_parallel": (_at_least(1), "ranks that split heads and feed-forward"),
    "context_parallel": (_at_least(1), "ranks that share the tokens of prompts"),
    "decode_context_parallel": (
        _at_least(1),
        "tensor-parallel ranks that share the cache's tokens",
    ),
    "prefill": (
        ["auto", "off", "pass_kv", "pass_q", "all_gather", "ulysses"],
        "with --context-parallel",
    ),
    "prefill_tokens": (_at_least(1), "shorter parts of prompts are computed as decoding does"),
    "draft_model": (str, "folder of a smaller model of the same vocabulary that chooses drafts"),
    "draft_tokens": (
        _at_least(1),
        "most drafts of a request and step by --draft-model (default: 4)",
    ),
}


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError(f"expected 0 to 65535, found {value}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m contextile.serve",
        description=(
            "Serves a model to clients of OpenAI's protocols. `contextile serve --help` explains "
            "the options."
        ),
        allow_abbrev=False,
    )
    unless = ServeOptions("")
    parser.add_argument("model", metavar="MODEL", help="a folder of Hugging Face's format")
    parser.add_argument("--name", help="what clients call the model (default: the folder's name)")
    parser.add_argument(
        "--host", default=unless.host, help="where to listen (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=_port, default=unless.port, help="0: a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--ranks",
        type=_at_least(1),
        default=unless.ranks,
        help="threads that share the model, without torchrun",
    )
    parser.add_argument(
        "--timeout", type=float, default=unless.timeout, help="seconds until a silent rank is lost"
    )
    parser.add_argument(
        "--generation-config", choices=["model", "none"], default=unless.generation_config
    )
    parser.add_argument("--max-connections", type=_at_least(1), default=unless.max_connections)
    parser.add_argument("--max-body-bytes", type=_at_least(1), default=unless.max_body_bytes)
    parser.add_argument(
        "--allow-origin", help="pages of this origin may call the server from scripts"
    )
    engine = parser.add_argument_group("engine")
    for name, (kind, text) in _ENGINE.items():
        metavar = "FOLDER" if kind is str else "N"
        how = {"choices": kind} if isinstance(kind, list) else {"type": kind, "metavar": metavar}
        engine.add_argument("--" + name.replace("_", "-"), help=text, **how)
    engine.add_argument("--share-prefixes", action=argparse.BooleanOptionalAction, default=None)
    return parser


def parse_options(arguments: list[str] | None = None) -> ServeOptions:
    """Returns the options of a command line. Exits on wrong ones."""
    found = vars(_parser().parse_args(arguments))
    engine = {name: found.pop(name) for name in [*_ENGINE, "share_prefixes"]}
    return ServeOptions(
        **found, engine={name: value for name, value in engine.items() if value is not None}
    )
