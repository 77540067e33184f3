"""One function per request: read it, ask the torch thread, answer in OpenAI's form."""

from __future__ import annotations

import asyncio
import hmac
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime

from pydantic import SecretStr

from ratchet.core.errors import BadRequest
from ratchet.core.service.asgi import Answer, EventStream, Handler, Request, Response, json_response
from ratchet.core.service.problems import HttpError
from ratchet.local.engine_local import metrics
from ratchet.local.engine_local.answering import Form, chat_form, events, text_form, whole_answer
from ratchet.local.engine_local.domain.answers import Given, Stamp
from ratchet.local.engine_local.domain.requests import ChatCall, CompletionCall, read_chat, read_completion
from ratchet.local.engine_local.generation import Generations, Prompt
from ratchet.local.engine_local.grammars import Grammars
from ratchet.local.engine_local.registry import Entry, Registry
from ratchet.local.engine_local.resolving import Resolver, unknown_model
from ratchet.local.engine_local.torch_policies import Served
from ratchet.local.engine_local.transformers_text import ChatText

OPEN_PATHS = frozenset({"/health", "/version"})
"""Paths that need no key."""


class Engine:
    """The HTTP API. Runs on one event loop; computing happens in a thread, loading and compiling elsewhere too."""

    def __init__(
        self,
        generations: Generations,
        registry: Registry[Served],
        resolver: Resolver,
        grammars: Grammars,
        now: Callable[[], datetime],
        api_key: SecretStr | None = None,
    ) -> None:
        self._generations = generations
        self._registry = registry
        self._resolver = resolver
        self._grammars = grammars
        self._now = now
        self._key = api_key
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/completions"): self.complete,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/v1/unload_lora_adapter"): self.unload_policy,
            ("GET", "/v1/models"): self.models,
            ("GET", "/health"): self.health,
            ("GET", "/version"): self.version,
        }

    def serve(self, method: str, path: str, handler: Handler) -> None:
        """One more route."""
        self._routes[method, path] = handler

    def route(self, method: str, path: str) -> Handler:
        """The handler of a route. Raises `HttpError` 404 or 405."""
        handler = self._routes.get((method, path))
        if handler is None:
            if any(known == path for _, known in self._routes):
                raise HttpError(405, f"{method} is not allowed on {path}")
            raise HttpError(404, f"no such route: {path}", code="no_such_route")
        key = self._key
        if key is None or path in OPEN_PATHS:
            return handler

        async def guarded(request: Request) -> Answer:
            given = (request.header(b"authorization") or "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), key.get_secret_value().encode()):
                raise HttpError(401, "incorrect API key", kind="authentication_error", code="invalid_api_key")
            return await handler(request)

        return guarded

    async def chat(self, request: Request) -> Answer:
        call = read_chat(request.json_object())
        async with AsyncExitStack() as held:
            entry, text = await self._use(call.model, held)
            # Rendering and tokenising a long conversation takes a while: the loop does not wait for it.
            ids = await asyncio.to_thread(text.chat_ids, call.messages, call.tools)
            form = chat_form(self._given("chatcmpl", call, ids, text), text, call)
            return await self._answer(entry, form, call, held)

    async def complete(self, request: Request) -> Answer:
        call = read_completion(request.json_object())
        async with AsyncExitStack() as held:
            entry, text = await self._use(call.model, held)
            ids = await asyncio.to_thread(_prompt_ids, text, call.prompt)
            form = text_form(self._given("cmpl", call, ids, text), text, call)
            return await self._answer(entry, form, call, held)

    async def tokenize(self, request: Request) -> Response:
        """`POST /tokenize`: the tokens of a chat up to where its answer begins, as vLLM gives them."""
        call = read_chat(request.json_object())
        async with AsyncExitStack() as held:
            entry, text = await self._use(call.model, held)
            ids = await asyncio.to_thread(text.chat_ids, call.messages, call.tools)
            return json_response({"count": len(ids), "max_model_len": entry.served.context, "tokens": ids})

    async def unload_policy(self, request: Request) -> Response:
        """`POST /v1/unload_lora_adapter {lora_name}`: the next call that names the policy loads it again."""
        name = request.json_object().get("lora_name")
        if not isinstance(name, str) or not name:
            raise BadRequest("lora_name must be a text", param="lora_name")
        if not self._registry.remove(name):
            raise unknown_model(name)
        metrics.EVICTIONS.labels("unloaded").inc()
        metrics.RESIDENT.set(len(self._registry))
        return json_response({"lora_name": name})

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`: the policies in memory."""
        listed = [
            {
                "id": entry.name,
                "object": "model",
                "created": int(entry.loaded_at),
                "owned_by": "ratchet",
                "root": entry.uri,
                # Whether its log-probabilities were compared with the trainer's; one that differs is never resident.
                "probe": "matched" if entry.served.probed else "none",
            }
            for entry in self._registry
        ]
        return json_response({"object": "list", "data": listed})

    async def health(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def version(self, _: Request) -> Response:
        return json_response({"version": "0.1.0", "engine": "engine_local"})

    async def _use(self, model: str, held: AsyncExitStack) -> tuple[Entry[Served], ChatText]:
        """The policy of a request, for as long as it is `held`."""
        entry = await self._resolver.resolve(model)
        return entry, held.enter_context(self._registry.using(entry)).text

    async def _answer(
        self, entry: Entry[Served], form: Form, call: ChatCall | CompletionCall, held: AsyncExitStack
    ) -> Answer:
        """The answer, whole or as a stream, which begins with the first token: an error before it has its status."""
        grammar = await self._grammars.grammar(entry.served, call.constraint)
        prompt = Prompt(form.given.prompt_ids, call.sampling, call.options, grammar)
        rows = held.enter_context(self._generations.rows(entry, prompt))
        if not prompt.options.stream:
            return json_response(await whole_answer(form, rows))
        await rows.begun()
        return EventStream(events(form, rows, held.pop_all()))

    def _given(self, kind: str, call: ChatCall | CompletionCall, ids: list[int], text: ChatText) -> Given:
        stamp = Stamp(f"{kind}-{uuid.uuid4().hex}", int(self._now().timestamp()), call.model)
        return Given(stamp, ids, call.options, text.spell)


def _prompt_ids(text: ChatText, prompt: str | list[int]) -> list[int]:
    """Raises `BadRequest`."""
    if isinstance(prompt, str):
        return text.text_ids(prompt)
    if max(prompt) >= text.vocabulary:
        raise BadRequest(f"prompt holds a token id outside the vocabulary of {text.vocabulary}", param="prompt")
    return prompt
