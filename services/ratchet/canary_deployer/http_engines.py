"""The engines that serve policies, over vLLM's API as vLLM and engine_local speak it.

What an engine answers is classified here, once. Its words reach people where they are about the policy (`REFUSED`, in
the form of an error); all else is a fault of the engine, in our words with what an operator can do about it. The
engine's key is in none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import httpx
import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.canary_deployer.replicas import ReplicaFailed, ReplicaUnreachable, ScoredToken
from ratchet.core.errors import RatchetError, Rejected, Unavailable
from ratchet.core.rules.engines import ADAPTERS_ONLY, POLICY_NOT_LOADED, POLICY_REFUSED, PROCESSED_LOGPROBS
from ratchet.core.service.engine_list import EngineSettings, engine_of
from ratchet.core.service.http_client import QUOTED, AsyncApiClient, Peer, Reply, bearer

T = TypeVar("T")

ANSWER_TOKENS = 16
"""Enough to see whether output is broken."""
LOAD_TIMEOUT_S = 300.0
"""Longest time a replica may take to fetch a policy and answer for it."""
PRESENT_S = 5.0
"""How long a replica may take to say that it is there."""
CONNECT_S = 3.0
"""How long a connection may take: the machine of a busy server accepts one at once, one that is off never does."""
GONE = frozenset({502, 504})
"""Statuses of a proxy whose server is away."""
BUSY = frozenset({408, 425, 429, 503})
"""Statuses that say "later"."""
WRONG_KEY = frozenset({401, 403})
NO_ROUTE = frozenset({404, 405, 501})
"""Statuses of a server without the route."""
REFUSED = frozenset({400, 422, POLICY_REFUSED})
"""Statuses of a refusal in the engine's words: vLLM's own are the first two."""
NOT_FOUND = (
    "does not find {model} (404): does it run with Ratchet's plugin, on the same object store? (docs/guides/vllm.md)"
)
TOKEN_ID = "token_id:"  # noqa: S105 - how vLLM spells a token by its id
ID_DIGITS = 10
"""More than any vocabulary needs."""


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: Sequence[_Model]


class _Token(msgspec.Struct, frozen=True):
    logprob: float | None
    rank: int | None = None


class _ChatLogprobs(msgspec.Struct, frozen=True):
    content: Sequence[_Token]


class _ChatChoice(msgspec.Struct, frozen=True):
    logprobs: _ChatLogprobs


class _Chat(msgspec.Struct, frozen=True):
    choices: Sequence[_ChatChoice]


class _TextLogprobs(msgspec.Struct, frozen=True):
    top_logprobs: Sequence[Mapping[str, float | None] | None] | None = None


class _TextChoice(msgspec.Struct, frozen=True):
    prompt_logprobs: Sequence[Mapping[int, _Token] | None] | None = None
    logprobs: _TextLogprobs | None = None


class _Text(msgspec.Struct, frozen=True):
    choices: Sequence[_TextChoice]


class _Tokens(msgspec.Struct, frozen=True):
    tokens: Sequence[int]


class _Blame(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    error: _Blame


class HttpReplica:
    """One server of an engine."""

    def __init__(
        self,
        engine: EngineSettings,
        url: str,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._engine = engine
        self._load_timeout_s = load_timeout_s
        self._key = engine.key()
        self.name = f"{engine.name} at {url}"
        self.adapters_only = engine.kind in ADAPTERS_ONLY
        self.logprobs_mode = engine.logprobs_mode or (PROCESSED_LOGPROBS if engine.kind == "engine_local" else None)
        self.client = AsyncApiClient(Peer(self.name, url, bearer(self._key), connect_s=CONNECT_S), transport)

    async def models(self) -> Sequence[str]:
        """See `Replica`."""
        try:
            reply = await self.client.exchange("GET", "/v1/models", timeout_s=PRESENT_S)
        except Unavailable as error:
            if _unreachable(error):
                raise ReplicaUnreachable(str(error)) from error
            raise Unavailable(f"{error}, but accepts connections: repair it, or end it") from error
        if reply.status in GONE:
            raise ReplicaUnreachable(f"{self.name} answers {reply.status}")
        return [model.id for model in self._read(reply, _Models, "/v1/models").data]

    async def ask(self, model: str, prompt: str) -> Sequence[float | None]:
        """See `Replica`."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": ANSWER_TOKENS,
            "logprobs": True,
        }
        answer = await self._asked("/v1/chat/completions", body, model, _Chat)
        if not answer.choices:
            raise Unavailable(f"{self.name} gives an answer without a choice")
        return [token.logprob for token in answer.choices[0].logprobs.content]

    async def score(self, model: str, ids: Sequence[int], candidates: int) -> Sequence[ScoredToken] | None:
        """See `Replica`."""
        try:
            listed = await self._scored(model, ids, candidates)
        except Rejected:
            if not candidates:
                raise
            candidates = 0
            listed = await self._scored(model, ids, 0)  # an engine with a small `--max-logprobs` gives no candidates
        if listed is None:
            return None
        if len(listed) != len(ids):
            raise Unavailable(f"{self.name} gives {len(listed)} log-probabilities for a prompt of {len(ids)} tokens")
        return [_scored_token(token, of or {}, candidates) for token, of in zip(ids[1:], listed[1:], strict=True)]

    async def candidates(self, model: str, ids: Sequence[int], temperature: float, count: int) -> Mapping[int, float]:
        """See `Replica`."""
        body = {
            **_one_token(model, ids),
            "temperature": temperature,
            "logprobs": count,
            "return_tokens_as_token_ids": True,
        }
        (choice,) = await self._choices(body)
        listed = choice.logprobs.top_logprobs if choice.logprobs else None
        first = listed[0] if listed else None
        ids_named = {_token_id(token): logprob for token, logprob in (first or {}).items()}
        return {token: logprob for token, logprob in ids_named.items() if token is not None and logprob is not None}

    async def chat_ids(self, model: str, tools: Sequence[JsonObject]) -> Sequence[int] | None:
        """See `Replica`. 404 is that of a route: the replica has answered for the policy before."""
        body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "Is it cold?"}]}
        if tools:
            body["tools"] = tools
        reply = await self._reply("/tokenize", body, model)
        return None if reply.status in NO_ROUTE else self._read(reply, _Tokens, model).tokens

    async def unload(self, model: str) -> None:
        """See `Replica`."""
        reply = await self.client.exchange("POST", "/v1/unload_lora_adapter", body={"lora_name": model})
        if reply.status != 404:
            self._content(reply, model)

    async def _scored(
        self, model: str, ids: Sequence[int], candidates: int
    ) -> Sequence[Mapping[int, _Token] | None] | None:
        (choice,) = await self._choices({**_one_token(model, ids), "prompt_logprobs": candidates})
        return choice.prompt_logprobs

    async def _choices(self, body: Mapping[str, object]) -> Sequence[_TextChoice]:
        answer = await self._asked("/v1/completions", body, str(body["model"]), _Text)
        if len(answer.choices) != 1:
            raise Unavailable(f"{self.name} gives {len(answer.choices)} choices where one was asked for")
        return answer.choices

    async def _asked(self, path: str, body: Mapping[str, object], model: str, kind: type[T]) -> T:
        """The answer for a policy, which the replica may have to fetch first."""
        return self._read(await self._reply(path, body, model), kind, model)

    async def _reply(self, path: str, body: Mapping[str, object], model: str) -> Reply:
        try:
            return await self.client.exchange("POST", path, body=body, timeout_s=self._load_timeout_s)
        except Unavailable as error:
            if _unreachable(error):
                raise ReplicaUnreachable(str(error)) from error
            ended = not isinstance(error.__cause__, TimeoutError | httpx.TimeoutException)
            raise ReplicaFailed(f"{self.name} does not finish an answer for {model}: {error}", ended=ended) from error

    def _read(self, reply: Reply, kind: type[T], model: str) -> T:
        content = self._content(reply, model)
        try:
            return decode(content, kind)
        except msgspec.DecodeError as error:
            raise Unavailable(
                f"the answer of {self.name} is none of an engine that gives log-probabilities: does a proxy answer in "
                f"its place? ({error})"
            ) from error

    def _content(self, reply: Reply, model: str) -> bytes:
        if not 200 <= reply.status < 300:
            raise self._error(reply, model)
        return reply.content

    def _error(self, reply: Reply, model: str) -> RatchetError:
        status, name = reply.status, self.name
        if status in WRONG_KEY:
            variable = self._engine.api_key_env or "RATCHET_ENGINE_API_KEY"
            return Unavailable(f"{name} refuses the deployer's key ({status}): set {variable} to the engine's key")
        if status == 404:
            return Unavailable(f"{name} {NOT_FOUND.format(model=model)}")
        words = self._words(reply)
        if status in BUSY:
            busy = Unavailable(f"{name} cannot answer now ({status}): {words or 'without a reason'}")
            return busy.quoting() if words else busy
        if status >= 500:
            return ReplicaFailed(f"{name} answers {status} for {model}; its log says why", ended=False)
        if status not in REFUSED or words is None:
            return Unavailable(f"{name} answers {status}, and not as an engine: does a proxy answer in its place?")
        not_loaded = f"{name} found {model} and could not load it; its log says why: is it out of memory?"
        return Unavailable(not_loaded) if POLICY_NOT_LOADED in words else Rejected(words)

    def _words(self, reply: Reply) -> str | None:
        """The engine's reason on one line, without the key; None for a body that is no engine's error."""
        try:
            message = decode(reply.content, _Refusal).error.message
        except msgspec.DecodeError:
            return None
        line = " ".join(message.split())
        line = line.replace(self._key, "***") if self._key else line
        return line[:QUOTED] or f"it answers {reply.status} without a reason"


class HttpEngines:
    """All engines of the settings."""

    def __init__(
        self,
        engines: Sequence[EngineSettings],
        load_timeout_s: float = LOAD_TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._engines = engines
        self._replicas = {
            engine.name: [HttpReplica(engine, url, load_timeout_s, transport) for url in engine.urls]
            for engine in engines
        }

    async def __aenter__(self) -> HttpEngines:
        return self

    async def __aexit__(self, *_: object) -> None:
        for replica in self.everywhere():
            await replica.client.close()

    def replicas(self, role: str) -> Sequence[HttpReplica]:
        """See `Engines`."""
        return self._replicas[engine_of(self._engines, role).name]

    def everywhere(self) -> Sequence[HttpReplica]:
        """See `Engines`."""
        return [replica for replicas in self._replicas.values() for replica in replicas]


def _one_token(model: str, ids: Sequence[int]) -> dict[str, object]:
    """A completion of one token, drawn from the whole distribution whatever the model's own defaults are."""
    neutral = {
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "repetition_penalty": 1,
    }
    return {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 1, **neutral}


def _unreachable(error: Unavailable) -> bool:
    return isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)


def _token_id(token: str) -> int | None:
    digits = token.removeprefix(TOKEN_ID)
    named = token.startswith(TOKEN_ID) and digits.isdecimal() and len(digits) <= ID_DIGITS
    return int(digits) if named else None


def _scored_token(token: int, of: Mapping[int, _Token], candidates: int) -> ScoredToken:
    """The token itself stands among its candidates, also where it is not one of the likeliest."""
    own = of.get(token)
    likely = {other: scored for other, scored in of.items() if (scored.rank or 1) <= candidates}
    known = {other: scored.logprob for other, scored in likely.items() if scored.logprob is not None}
    return ScoredToken(own.logprob if own else None, known)
