"""One function per request: read it, ask the torch thread, answer in OpenAI's form."""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from datetime import datetime
from typing import Protocol

import structlog

from ratchet.engine_local import metrics
from ratchet.engine_local.domain.answers import Completion, Stamp, chat_answer, text_answer
from ratchet.engine_local.domain.requests import Sampling, read_chat, read_completion
from ratchet.engine_local.registry import Entry, Registry
from ratchet.engine_local.s3_policies import Fetched
from ratchet.engine_local.settings import Settings
from ratchet.engine_local.torch_batch import Job
from ratchet.engine_local.torch_policies import Served
from ratchet.engine_local.transformers_text import ChatText
from ratchet.errors import BadRequest, Conflict, DigestMismatch, NotFound, RatchetError, Rejected, Unavailable
from ratchet.rules.arms import parse_model
from ratchet.service.asgi import Answer, Handler, Request, Response, json_response
from ratchet.service.problems import HttpError
from ratchet.stores.policies import digest_in

log = structlog.get_logger()

REFUSALS = {NotFound: "policy_not_found", DigestMismatch: "digest_mismatch", Rejected: "policy_refused"}
"""Codes of a failed load: its caller must be able to tell a wrong request from a bad moment."""


class Worker(Protocol):
    """Computes jobs elsewhere."""

    def submit(self, served: Served, job: Job) -> None:
        """Accept a job; its callbacks receive how it ended."""
        ...


class Engine:
    """The HTTP API. Runs on one event loop; loading happens on `loading`, computing in `worker`."""

    def __init__(
        self,
        settings: Settings,
        worker: Worker,
        registry: Registry[Served],
        load: Callable[[str], Fetched],
        loading: Executor,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._registry = registry
        self._load = load
        self._loading = loading
        self._now = now
        self._open = 0
        self._one_load = asyncio.Lock()
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/completions"): self.complete,
            ("POST", "/v1/load_lora_adapter"): self.load_policy,
            ("POST", "/v1/unload_lora_adapter"): self.unload_policy,
            ("GET", "/v1/models"): self.models,
            ("GET", "/health"): self.health,
            ("GET", "/version"): self.version,
        }

    def route(self, method: str, path: str) -> Handler:
        """The handler of a route. Raises `HttpError` 404 or 405."""
        handler = self._routes.get((method, path))
        if handler is None:
            if any(known == path for _, known in self._routes):
                raise HttpError(405, f"{method} is not allowed on {path}")
            raise HttpError(404, f"no such route: {path}", code="no_such_route")
        key = self._settings.api_key
        if key is None or not path.startswith("/v1/"):
            return handler

        async def guarded(request: Request) -> Answer:
            given = (request.header(b"authorization") or "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), key.get_secret_value().encode()):
                raise HttpError(401, "incorrect API key", kind="authentication_error", code="invalid_api_key")
            return await handler(request)

        return guarded

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        call = read_chat(request.json_object())
        entry = self._resident(call.model)
        with self._registry.using(entry) as served:
            text = served.text
            # Rendering and tokenising a long conversation takes a while: the loop does not wait for it.
            ids = await asyncio.to_thread(text.chat_ids, call.messages, call.tools)
            done = await self._complete(entry, ids, call.sampling, call.options.top_logprobs)
            stamp = self._stamp("chatcmpl", call.model)

            def answer() -> Response:
                reply = text.reply(_output_text(text, call.sampling, done), tools=bool(call.tools))
                return json_response(chat_answer(stamp, ids, done, reply, call.options, text.spell))

            return await asyncio.to_thread(answer)

    async def complete(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        call = read_completion(request.json_object())
        entry = self._resident(call.model)
        with self._registry.using(entry) as served:
            text, prompt = served.text, call.prompt

            def prompt_ids() -> list[int]:
                if isinstance(prompt, str):
                    return text.text_ids(prompt)
                if max(prompt) >= text.vocabulary:
                    message = f"prompt holds a token id outside the vocabulary of {text.vocabulary}"
                    raise BadRequest(message, param="prompt")
                return prompt

            ids = await asyncio.to_thread(prompt_ids)
            done = await self._complete(entry, ids, call.sampling, call.options.top_logprobs)
            stamp = self._stamp("cmpl", call.model)

            def answer() -> Response:
                plain = text.plain(_output_text(text, call.sampling, done))
                return json_response(text_answer(stamp, ids, done, plain, call.options, text.spell))

            return await asyncio.to_thread(answer)

    async def load_policy(self, request: Request) -> Response:
        """`POST /v1/load_lora_adapter {lora_name, lora_path, pin?}`: 200 means resident and probed."""
        body = request.json_object()
        name, uri = _text(body, "lora_name"), _text(body, "lora_path")
        async with self._one_load:
            entry = self._registry.get(name)
            if entry is not None and entry.uri != uri:
                raise Conflict(f"{name} is already loaded from {entry.uri}; names are never reused")
            if entry is None:
                entry = await self._loaded(name, uri)
        entry.pinned = entry.pinned or body.get("pin") is True
        return json_response({"lora_name": name, "digest": entry.digest, "probe": _probe(entry)})

    async def unload_policy(self, request: Request) -> Response:
        """`POST /v1/unload_lora_adapter {lora_name}`."""
        name = _text(request.json_object(), "lora_name")
        if not self._registry.remove(name):
            raise _unknown(name)
        metrics.EVICTIONS.labels("unloaded").inc()
        metrics.RESIDENT.set(len(self._registry))
        return json_response({"lora_name": name})

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`: the policies in memory."""
        listed = [
            {
                "id": one.name,
                "object": "model",
                "created": int(one.loaded_at),
                "owned_by": "ratchet",
                "root": one.uri,
                "probe": _probe(one),
            }
            for one in self._registry
        ]
        return json_response({"object": "list", "data": listed})

    async def health(self, _: Request) -> Response:
        """`GET /health`."""
        return json_response({"status": "ok"})

    async def version(self, _: Request) -> Response:
        """`GET /version`."""
        return json_response({"version": "0.1.0", "engine": "engine_local"})

    def _resident(self, name: str) -> Entry[Served]:
        entry = self._registry.get(name)
        if entry is None:
            raise _unknown(name)
        return entry

    async def _loaded(self, name: str, uri: str) -> Entry[Served]:
        if not self._registry.has_room():
            raise Unavailable("no room for another policy: all resident ones are pinned or busy", code="no_room")
        began = time.monotonic()
        try:
            fetched = await asyncio.get_running_loop().run_in_executor(self._loading, self._load, uri)
            _refuse_other_digest(name, fetched.digest)
        except Exception as error:
            metrics.LOADS.labels("refused").inc()
            # Only the kind of error: its text quotes what the caller sent, and only the caller may read it.
            log.warning("policy not loaded", digest=digest_in(uri), error=type(error).__name__)
            if isinstance(error, RatchetError):
                error.code = next((code for kind, code in REFUSALS.items() if isinstance(error, kind)), error.code)
            raise
        now = time.monotonic()
        entry = Entry(name, fetched.digest, uri, fetched.served, self._now().timestamp(), now)
        evicted = self._registry.add(entry)
        metrics.LOADS.labels("loaded").inc()
        metrics.LOAD_SECONDS.observe(now - began)
        metrics.EVICTIONS.labels("room").inc(len(evicted))
        metrics.RESIDENT.set(len(self._registry))
        log.info("policy loaded", policy=name, digest=fetched.digest, seconds=round(now - began, 3), evicted=evicted)
        return entry

    async def _complete(self, entry: Entry[Served], ids: list[int], sampling: Sampling, top: int) -> Completion:
        room = entry.served.context - len(ids)
        if room < 1:
            message = f"the prompt has {len(ids)} tokens; the model's context is {entry.served.context}"
            raise BadRequest(message, code="context_length_exceeded", param="messages")
        if self._open >= self._settings.max_requests:
            metrics.REQUESTS.labels(entry.name, "refused").inc()
            raise HttpError(429, "the engine is full, try again", kind="rate_limit_error", code="engine_full")
        limit = min(sampling.max_tokens or self._settings.default_max_tokens or room, room)
        self._open += 1
        metrics.OPEN.set(self._open)
        outcome, began = "cancelled", time.monotonic()
        try:
            done = await self._submit(entry.served, ids, sampling, limit, top)
            outcome = done.finish_reason
        except Exception:
            outcome = "failed"
            raise
        finally:
            self._open -= 1
            metrics.OPEN.set(self._open)
            metrics.REQUESTS.labels(entry.name, outcome).inc()
        metrics.LATENCY.observe(time.monotonic() - began)
        metrics.TOKENS.labels("generated").inc(len(done.token_ids))
        metrics.TOKENS.labels("reused").inc(done.cached_tokens)
        metrics.TOKENS.labels("computed").inc(done.prompt_tokens - done.cached_tokens)
        return done

    def _submit(
        self, served: Served, ids: list[int], sampling: Sampling, limit: int, top: int
    ) -> Awaitable[Completion]:
        """Hand the job over; cancelling the returned future drops it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Completion] = loop.create_future()

        def settle(result: Completion | Exception) -> None:
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def deliver(result: Completion | Exception) -> None:
            """Called from the torch thread. On a closed loop no caller waits."""
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result)

        def drop(future: asyncio.Future[Completion]) -> None:
            job.cancelled = future.cancelled()

        stops_in = served.text.stop_finder(sampling.stop) if sampling.stop else None
        job = Job(ids, sampling, limit, done=deliver, failed=deliver, top_logprobs=top, stops_in=stops_in)
        answer.add_done_callback(drop)
        self._worker.submit(served, job)
        return answer

    def _stamp(self, kind: str, model: str) -> Stamp:
        return Stamp(f"{kind}-{uuid.uuid4().hex}", int(self._now().timestamp()), model)


def _probe(entry: Entry[Served]) -> str:
    """Whether the policy's log-probabilities were compared with the trainer's; one that differs is never resident."""
    return "matched" if entry.served.probed else "none"


def _output_text(text: ChatText, sampling: Sampling, done: Completion) -> str:
    """What was generated, up to the first stop text."""
    return text.until_stop(text.text(done.token_ids, sampling.stop_token_ids), sampling.stop)


def _text(body: dict[str, object], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} must be a text", param=name)
    return value


def _refuse_other_digest(name: str, digest: str) -> None:
    """A name that carries a digest must carry this one."""
    try:
        named = parse_model(name).digest
    except ValueError:
        return
    if named is not None and not digest.startswith(named):
        raise Rejected(f"{name} names digest {named}..., the manifest's is {digest[:8]}...")


def _unknown(name: str) -> HttpError:
    return HttpError(404, f"The model `{name}` does not exist.", kind="NotFoundError", code="model_not_found")
