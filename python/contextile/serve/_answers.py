"""Answers of OpenAI's protocols: whole, and in pieces of a stream."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from contextile import _serving
from contextile.serve._requests import Asked
from contextile.serve._text import Texts, TokenText, id_name

_LEAST_LOGPROB = -9999.0  # JSON has no infinity


@dataclasses.dataclass
class Piece:
    """A part of a completion, or all of it."""

    index: int
    text: str = ""
    tokens: list[int] = dataclasses.field(default_factory=list)
    scored: list[tuple[int, float | None, list[tuple[int, float]]]] = dataclasses.field(
        default_factory=list
    )
    offsets: list[int] = dataclasses.field(default_factory=list)
    finish: str | None = None

    def add(self, other: Piece) -> None:
        self.text += other.text
        self.tokens += other.tokens
        self.scored += other.scored
        self.offsets += other.offsets
        self.finish = other.finish


class Completion:
    """One completion of a call, as its tokens come."""

    def __init__(self, asked: Asked, texts: Texts, index: int) -> None:
        self._asked, self._texts, self._index = asked, texts, index
        self._prompt = asked.prompts[index // asked.n]
        self._text = TokenText(texts, self._prompt, asked.stops)
        self._is_first = True
        self._offset = 0
        self.cached_tokens = 0
        self.is_finished = False

    def add(self, event: _serving.EngineEvent) -> Piece:
        """Returns the piece that an event adds; the last one has a finish."""
        piece = Piece(self._index)
        if self._is_first:
            self._is_first = False
            self.cached_tokens = event.cached_tokens
            if self._asked.echo:
                self._echo(event, piece)
        if event.token >= 0:
            piece.tokens.append(event.token)
            # A token that ends the request is not part of its text.
            if event.finish != "stop":
                piece.text += self._text.add(event.token)
            if self._asked.logprobs:
                self._score(piece, event.token, event.logprob, event.top)
        if self._text.stopped:
            piece.finish = "stop"
        elif event.finish:
            piece.text += self._text.finish()
            piece.finish = "stop" if self._text.stopped else event.finish
        self.is_finished = piece.finish is not None
        return piece

    def _echo(self, event: _serving.EngineEvent, piece: Piece) -> None:
        piece.text = self._asked.prompt_texts[self._index // self._asked.n]
        if not self._asked.logprobs:
            return
        self._score(piece, self._prompt[0], None, [])
        top, num_top = event.prompt_top, self._asked.num_top
        for i, logprob in enumerate(event.prompt_logprobs):
            some = [its for its in top[i * num_top : (i + 1) * num_top] if its[0] >= 0]
            self._score(piece, self._prompt[i + 1], logprob, some)

    def _score(
        self, piece: Piece, token: int, logprob: float | None, top: list[tuple[int, float]]
    ) -> None:
        piece.scored.append((token, logprob, top))
        piece.offsets.append(self._offset)
        self._offset += self._texts.length(token)


def _number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB


def _with_chosen(
    token: int, logprob: float, top: list[tuple[int, float]]
) -> list[tuple[int, float]]:
    return top if any(one == token for one, _ in top) else [*top, (token, logprob)]


def _completion_logprobs(piece: Piece, num_top: int, texts: Texts) -> dict[str, Any]:
    tops: list[dict[str, float] | None] = []
    for token, logprob, top in piece.scored:
        if logprob is None:
            tops.append(None)
            continue
        names: dict[str, float] = {}
        for one, its in _with_chosen(token, logprob, top):
            name = texts.name(one)
            names[id_name(one) if name in names else name] = _number(its)
        tops.append(names)
    return {
        "tokens": [texts.name(token) for token, _, _ in piece.scored],
        "token_logprobs": [
            None if logprob is None else _number(logprob) for _, logprob, _ in piece.scored
        ],
        "top_logprobs": tops if num_top else None,
        "text_offset": piece.offsets,
    }


def _chat_logprobs(piece: Piece, texts: Texts) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        name = texts.name(token)
        has_text = name != id_name(token)
        return {
            "token": name,
            "logprob": _number(logprob),
            "bytes": list(name.encode()) if has_text else None,
        }

    content = [
        {**entry(token, logprob or 0.0), "top_logprobs": [entry(*its) for its in top]}
        for token, logprob, top in piece.scored
    ]
    return {"content": content, "refusal": None}


class Answers:
    """The JSON of a call's answers."""

    def __init__(
        self, asked: Asked, texts: Texts, *, number: str, model: str, created: int
    ) -> None:
        self._asked, self._texts = asked, texts
        self._held: dict[int, Piece] = {}  # of answers that are lists of calls
        prefix, kind = (
            ("chatcmpl-", "chat.completion") if asked.is_chat else ("cmpl-", "text_completion")
        )
        self._head = {"id": prefix + number, "object": kind, "created": created, "model": model}

    def whole(self, pieces: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        choices = []
        for piece in pieces:
            choice = self._choice(piece)
            if self._asked.is_chat:
                choice["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
                calls = self._calls(choice, piece)
                if calls:
                    choice["message"] |= {"content": None, "tool_calls": calls}
            choices.append(choice)
        return {**self._head, "choices": choices, "usage": usage}

    def chunk(self, piece: Piece, *, is_first: bool) -> dict[str, Any]:
        choice = self._choice(piece)
        if self._asked.is_chat:
            delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
            if self._asked.tool_choice:
                delta |= self._call_delta(choice, piece, is_first=is_first)
            elif piece.text or is_first:
                delta["content"] = piece.text
            choice["delta"] = delta
        return {**self._chunk_head(), "choices": [choice]}

    def _calls(self, choice: dict[str, Any], piece: Piece) -> list[dict[str, Any]] | None:
        """Returns the calls that a whole answer makes, if the chat insists on them."""
        if not self._asked.tool_choice:
            return None
        calls = self._asked.tool_choice.calls(piece.text, is_whole=piece.finish == "stop")
        # OpenAI and vLLM have it so: a function that was named is no decision of the model.
        if calls and piece.finish == "stop" and not self._asked.tool_choice.is_named:
            choice["finish_reason"] = "tool_calls"
        return calls

    def _call_delta(
        self, choice: dict[str, Any], piece: Piece, *, is_first: bool
    ) -> dict[str, Any]:
        """Arguments of a function that was named come as they are written, other calls at last."""
        asked = self._asked.tool_choice
        if asked is None:
            return {}
        if asked.is_named:
            call = asked.calls(piece.text, is_whole=False)
            part = call[0] if call and is_first else {"function": {"arguments": piece.text}}
            return {"tool_calls": [{"index": 0, **part}]}
        held = self._held.setdefault(piece.index, Piece(piece.index))
        held.add(piece)
        if piece.finish is None:
            return {}
        calls = self._calls(choice, held)
        if calls is None:
            return {"content": held.text}
        return {"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]}

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {**self._chunk_head(), "choices": [], "usage": usage}

    def _chunk_head(self) -> dict[str, Any]:
        return (
            {**self._head, "object": "chat.completion.chunk"} if self._asked.is_chat else self._head
        )

    def _choice(self, piece: Piece) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": piece.index,
            "finish_reason": piece.finish,
            "logprobs": None,
        }
        if self._asked.logprobs:
            choice["logprobs"] = (
                _chat_logprobs(piece, self._texts)
                if self._asked.is_chat
                else _completion_logprobs(piece, self._asked.num_top, self._texts)
            )
        if not self._asked.is_chat:
            choice["text"] = piece.text
        if self._asked.return_tokens:
            choice["token_ids"] = piece.tokens
        return choice


def usage_of(asked: Asked, completions: list[Completion], num_tokens: int) -> dict[str, Any]:
    """Returns the counts of a call's tokens."""
    num_prompt = sum(map(len, asked.prompts))
    cached = sum(completions[i].cached_tokens for i in range(0, len(completions), asked.n))
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt + num_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
