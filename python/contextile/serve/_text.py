"""Texts of tokens, as they come."""

from __future__ import annotations

import copy
import ctypes
import threading
from typing import Any

from contextile.serve._guides import Guides

_BEFORE = 5  # tokens of the prompt that decide on the space before the first word
_HELD = 8  # tokens that may make a character together

_TEMPLATE_S = 10.0  # for a chat to be rendered
_REPLACEMENT = "\ufffd"


def id_name(token: int) -> str:
    """Returns the name of a token that has no text of its own."""
    return f"token_id:{token}"


class TooSlow(Exception):
    """A template took longer than it may."""


class _Deadline:
    """Raises TooSlow in the thread of the block if it takes longer. Loops of Python end, a single
    operation does not."""

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self._thread = threading.get_ident()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def _raise(self, error: type[BaseException] | None) -> None:
        what = None if error is None else ctypes.py_object(error)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), what)

    def _end(self) -> None:
        with self._lock:
            if not self._is_over:
                self._raise(TooSlow)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            self._raise(None)  # what was not raised yet
        self._timer.cancel()


class Texts:
    """A tokenizer of ``transformers`` for several threads."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.guides = Guides(tokenizer)
        self._lock = threading.Lock()  # fast tokenizers change themselves while they encode
        # Decoding never waits for a long text that is being encoded.
        self._decoder = copy.deepcopy(tokenizer)
        self._decoder_lock = threading.Lock()
        longest = max((len(word.encode()) for word in tokenizer.get_vocab()), default=1)
        self._most_bytes = max_length * longest  # of a text that may be short enough
        self._names: dict[int, str] = {}
        self._lengths: dict[int, int] = {}

    def is_too_long(self, text: str) -> bool:
        """Returns True if a text can only have more tokens than a request may have."""
        return len(text) > self._most_bytes or len(text.encode()) > self._most_bytes

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with self._lock:
            tokens = list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
            bos = self.tokenizer.bos_token_id
            if add_special_tokens and bos is not None and tokens[:2] == [bos, bos]:
                return list(self.tokenizer.encode(text, add_special_tokens=False))  # no second one
            return tokens

    def decode(self, tokens: list[int], *, skip_special_tokens: bool = True) -> str:
        with self._decoder_lock:
            return str(
                self._decoder.decode(
                    tokens,
                    skip_special_tokens=skip_special_tokens,
                    clean_up_tokenization_spaces=False,
                )
            )

    def rendered(self, messages: list[Any], given: dict[str, Any]) -> str:
        """Returns a chat as the model's template writes it. Raises TooSlow, and what it raises."""
        with _Deadline(_TEMPLATE_S):
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **given))

    def special(self, text: str) -> int | None:
        """Returns the special token that is written as `text`, if there is one."""
        if (
            text not in self.tokenizer.all_special_tokens
            and text not in self.tokenizer.get_added_vocab()
        ):
            return None
        return int(self.tokenizer.convert_tokens_to_ids(text))

    def name(self, token: int) -> str:
        """Returns the text by which answers name a token."""
        if token not in self._names:
            text = self.decode([token], skip_special_tokens=False)
            self._names[token] = text if text and _REPLACEMENT not in text else id_name(token)
        return self._names[token]

    def length(self, token: int) -> int:
        """Returns the number of characters of a token; a part of a character counts as one."""
        if token not in self._lengths:
            self._lengths[token] = len(self.decode([token]))
        return self._lengths[token]


class TokenText:
    """The text of a request's tokens up to a stop sequence; only what is certain."""

    def __init__(self, texts: Texts, prompt: list[int], stops: list[str]) -> None:
        self._texts, self._stops = texts, stops
        self._tokens = prompt[-_BEFORE:]
        self._given = len(self._tokens)  # tokens whose text was given out
        self._held = ""  # what may begin a stop sequence
        self.stopped = False

    def add(self, token: int) -> str:
        """Returns the text that is certain with another token."""
        self._tokens.append(token)
        return self._cut(self._new(is_last=False))

    def finish(self) -> str:
        """Returns the rest, if no tokens follow."""
        rest = self._cut(self._new(is_last=True))
        if self.stopped:
            return rest
        held, self._held = self._held, ""
        return rest + held

    def _new(self, *, is_last: bool) -> str:
        before = self._texts.decode(self._tokens[: self._given])
        whole = self._texts.decode(self._tokens)
        is_open = whole.endswith(_REPLACEMENT) and len(self._tokens) - self._given < _HELD
        if is_open and not is_last:
            return ""
        # The last tokens stay, because they decide on spaces.
        self._tokens = self._tokens[-_BEFORE:]
        self._given = len(self._tokens)
        return whole[len(before) :]

    def _cut(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        first = min((at for at in (text.find(stop) for stop in self._stops) if at >= 0), default=-1)
        if first >= 0:
            self.stopped, self._held = True, ""
            return text[:first]
        kept = max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _begun(text: str, stop: str) -> int:
    """Returns the number of characters at the end of the text that begin the stop sequence."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
