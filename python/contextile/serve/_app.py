"""The routes of the server, for any ASGI server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from contextile import _core
from contextile.serve._answers import Answers, Completion, Piece, usage_of
from contextile.serve._engine import EngineThread, Stream
from contextile.serve._fields import Fields, Refusal, fail, parse_object, shown, token_ids
from contextile.serve._log import log_bug
from contextile.serve._origins import is_own_page
from contextile.serve._requests import Asked, Limits, read_chat, read_completion
from contextile.serve._text import Texts

_BODY_S = 30.0  # for a body to come
_BETWEEN_LOOKS_S = 0.2  # at whether a client is still there
_USUAL_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ID = "X-Request-Id"

Handler = Callable[[Request], Awaitable[Response]]
Read = Callable[[dict[str, Any], Texts, Limits], Asked]


def make_app(
    engine: EngineThread,
    tokenizer: Any,
    limits: Limits,
    *,
    max_connections: int = 64,
    max_body_bytes: int = 8 << 20,
    allow_origin: str | None = None,
    host: str = "127.0.0.1",
) -> Starlette:
    """Returns an ASGI application that serves an engine.

    Parameters
    ----------
    engine : EngineThread
        Started; it is stopped when the application shuts down.
    tokenizer : PreTrainedTokenizerBase
        Of ``transformers``; chats need its chat template.
    limits : Limits
        Names the model, its lengths and its default sampling.
    max_connections : int
        Number of requests that are read and, unless they are streams, answered at a time; others
        wait.
    max_body_bytes : int
        Longer bodies are answered 413.
    allow_origin : str, optional
        Origin of the pages whose scripts may call the server, beside those of the server itself;
        ``"*"``: all. Others are answered 403.
    host : str
        Name or address that the server listens on.
    """
    server = _Server(
        engine, Texts(tokenizer, limits.max_length), limits, max_connections, max_body_bytes
    )

    def of_pages(handler: Handler) -> Handler:
        """Refuses pages that may not call the server."""

        async def checked(request: Request) -> Response:
            origin = request.headers.get("origin")
            if (
                origin is not None
                and allow_origin not in ("*", origin)
                and not is_own_page(origin, request.headers.get("host", ""), host)
            ):
                raise Refusal(
                    "origin: expected a page of this server, by its address, or of --allow-origin, "
                    f"found {shown(origin)}",
                    status=403,
                )
            return await handler(request)

        return checked

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        engine.bind(asyncio.get_running_loop())
        yield
        engine.stop()

    origins = [allow_origin] if allow_origin else []
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=[_ID],
    )
    return Starlette(
        routes=[
            Route(path, _named(of_pages(handler)), methods=[method])
            for method, path, handler in server.routes()
        ],
        middleware=[cors] if origins else [],
        exception_handlers={HTTPException: _not_found, Exception: _failed},
        lifespan=lifespan,
    )


def _named(handler: Handler) -> Handler:
    """Answers refusals, and gives each answer the name of its request."""

    async def named(request: Request) -> Response:
        given = request.headers.get(_ID, "")
        request.state.number = given if _USUAL_ID.fullmatch(given) else uuid.uuid4().hex
        try:
            response = await handler(request)
        except Refusal as refusal:
            response = _refused(refusal)
        except ClientDisconnect:
            response = Response(status_code=400)  # read by no client
        except HTTPException:
            raise
        except Exception as error:
            log_bug(error)
            response = await _failed(request, error)
        response.headers[_ID] = request.state.number
        return response

    return named


def _refused(refusal: Refusal) -> JSONResponse:
    headers = {"Retry-After": "1"} if refusal.status == 429 else None
    return JSONResponse(refusal.body, refusal.status, headers)


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = (
        "expected POST /v1/completions, /v1/chat/completions, /tokenize or /detokenize, GET "
        f"/v1/models, /version, /health or /metrics, found {request.method} "
        f"{request.url.path[:200]}"
    )
    return _refused(Refusal(message, status=status))


async def _failed(_: Request, __: Exception) -> Response:
    return _refused(Refusal("an internal error", status=500, kind="server_error"))


class _Stream(StreamingResponse):
    """A stream whose call ends with it, even if it never begins."""

    def __init__(self, call: _Call, content: AsyncIterator[str]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (OSError, ClientDisconnect):
            raise
        except Exception as error:
            log_bug(error)
        finally:
            self._call.cancel()


def _event(data: Any) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"


class _Server:
    def __init__(
        self,
        engine: EngineThread,
        texts: Texts,
        limits: Limits,
        max_connections: int,
        max_body_bytes: int,
    ) -> None:
        self._engine, self._texts, self._limits = engine, texts, limits
        self._turns = asyncio.Semaphore(max_connections)
        self._max_body_bytes = max_body_bytes
        self._created = int(time.time())

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/v1/completions", self.complete),
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model:path}", self.model),
            ("GET", "/version", self.version),
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.metrics),
        ]

    async def _object(self, request: Request) -> dict[str, Any]:
        async def read() -> bytes:
            body = bytearray()
            async for some in request.stream():
                if len(body) + len(some) > self._max_body_bytes:
                    raise Refusal(
                        f"request: expected at most {self._max_body_bytes} bytes", status=413
                    )
                body += some
            return bytes(body)

        try:
            body = await asyncio.wait_for(read(), _BODY_S)
        except TimeoutError:
            raise Refusal(f"request: expected a body within {_BODY_S:.0f} s", status=408) from None
        return await run_in_threadpool(parse_object, body)

    # ---------------------------------------------------------------------------------- completions

    async def complete(self, request: Request) -> Response:
        return await self._answer(request, read_completion)

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, read_chat)

    async def _answer(self, request: Request, read: Read) -> Response:
        found = await self._object(request)  # first, because it may come slowly
        async with self._turns:
            return await self._answer_now(request, found, read)

    async def _answer_now(self, request: Request, found: dict[str, Any], read: Read) -> Response:
        asked = await run_in_threadpool(read, found, self._texts, self._limits)
        answers = Answers(
            asked,
            self._texts,
            number=request.state.number,
            model=self._limits.model,
            created=int(time.time()),
        )
        call = _Call(self._engine, asked, self._texts)
        if not asked.stream:
            return await self._whole(request, call, answers)
        try:
            # Nothing is sent before it is certain that the engines take it.
            first = await call.next()
        except BaseException:
            call.cancel()
            raise
        return _Stream(call, self._pieces(call, answers, first))

    async def _whole(self, request: Request, call: _Call, answers: Answers) -> Response:
        work = asyncio.ensure_future(call.all())
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_BETWEEN_LOOKS_S)
                if not work.done() and await request.is_disconnected():
                    raise ClientDisconnect
            pieces = work.result()
            return JSONResponse(await run_in_threadpool(answers.whole, pieces, call.usage()))
        finally:
            work.cancel()
            call.cancel()

    async def _pieces(
        self, call: _Call, answers: Answers, first: Piece | None
    ) -> AsyncIterator[str]:
        begun: set[int] = set()
        try:
            piece = first
            while piece is not None:
                if piece.text or piece.finish or piece.scored or call.asked.return_tokens:
                    yield _event(answers.chunk(piece, is_first=piece.index not in begun))
                    begun.add(piece.index)
                piece = await call.next()
            if call.asked.include_usage:
                yield _event(answers.usage_chunk(call.usage()))
            yield "data: [DONE]\n\n"
        except Refusal as refusal:
            yield _event(refusal.body)

    # ---------------------------------------------------------------------------------- other
    # answers

    async def tokenize(self, request: Request) -> Response:
        fields = Fields(await self._object(request))
        fields.check_keys({"model", "prompt", "add_special_tokens"}, {}, "fields")
        prompt = fields.get("prompt")
        if not isinstance(prompt, str):
            fail("prompt", "a text", shown(prompt))
        if self._texts.is_too_long(prompt):
            fail(
                "prompt",
                f"a text that may have {self._limits.max_length} tokens",
                f"{len(prompt)} characters",
            )
        special = fields.flag("add_special_tokens", unless=True)
        tokens = await run_in_threadpool(self._texts.encode, prompt, add_special_tokens=special)
        return JSONResponse(
            {"count": len(tokens), "max_model_len": self._limits.max_length, "tokens": tokens}
        )

    async def detokenize(self, request: Request) -> Response:
        fields = Fields(await self._object(request))
        fields.check_keys({"model", "tokens"}, {}, "fields")
        tokens = token_ids(fields.get("tokens"), self._limits.vocab_size, "tokens")
        return JSONResponse({"prompt": await run_in_threadpool(self._texts.decode, tokens)})

    def _model(self) -> dict[str, Any]:
        limits = self._limits
        return {
            "id": limits.model,
            "object": "model",
            "created": self._created,
            "owned_by": "contextile",
            "max_model_len": limits.max_length,
        }

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        if request.path_params["model"] == self._limits.model:
            return JSONResponse(self._model())
        raise Refusal(
            f"model: expected '{self._limits.model}', found {shown(request.path_params['model'])}",
            status=404,
            param="model",
            code="model_not_found",
        )

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": _core.__version__})

    async def health(self, _: Request) -> Response:
        return (
            PlainTextResponse("ok\n") if self._engine.is_well else PlainTextResponse("lost\n", 503)
        )

    async def metrics(self, _: Request) -> Response:
        metrics = self._engine.engine.metrics if self._engine.engine is not None else []
        lines = [
            f"# TYPE contextile_{name} "
            f"{'counter' if name.endswith('_total') else 'gauge'}\ncontextile_{name} {value}\n"
            for name, value in metrics
        ]
        return PlainTextResponse("".join(lines))


class _Call:
    """The completions of a call, computed together."""

    def __init__(self, engine: EngineThread, asked: Asked, texts: Texts) -> None:
        self.asked = asked
        self._streams: list[Stream] = []
        self._completions = [
            Completion(asked, texts, i) for i in range(len(asked.prompts) * asked.n)
        ]
        self._num_tokens = 0
        self._events: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        for i, arguments in enumerate(asked.engine_requests()):
            self._streams.append(engine.submit(index=i, events=self._events, **arguments))

    async def next(self) -> Piece | None:
        """Returns the next piece of any completion; None after the last. Raises Refusal."""
        while not all(completion.is_finished for completion in self._completions):
            index, event = await self._events.get()
            if isinstance(event, Refusal):
                raise event
            completion = self._completions[index]
            if completion.is_finished:
                continue
            self._num_tokens += event.token >= 0
            piece = completion.add(event)
            if completion.is_finished:
                self._streams[index].cancel()
            return piece
        return None

    async def all(self) -> list[Piece]:
        """Returns the whole completions."""
        pieces = [Piece(i) for i in range(len(self._completions))]
        while (piece := await self.next()) is not None:
            pieces[piece.index].add(piece)
        return pieces

    def usage(self) -> dict[str, Any]:
        return usage_of(self.asked, self._completions, self._num_tokens)

    def cancel(self) -> None:
        """Ends what is still under way."""
        for stream in self._streams:
            stream.cancel()
