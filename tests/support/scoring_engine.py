"""Servers of vLLM's API with a model that is computed by hand: they score prompts and draw tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.core.contract.policy_manifest import Probe
from ratchet.core.rules.engines import POLICY_REFUSED
from ratchet.core.service.engine_list import EngineSettings

VOCABULARY = 32
PROMPT, OUTPUT = [3, 9, 27, 17, 19, 25], [11, 1, 3, 9]
PROCESSED, RAW = "processed_logprobs", "raw_logprobs"
Answers = Callable[[str, dict[str, Any]], Response | None]
"""Path and body to the answer in place of the engine's own; None leaves it to the engine."""


def logprobs(seed: int, context: Sequence[int], temperature: float = 1.0) -> list[float]:
    """The model: log-probabilities of all tokens after `context`."""
    chance = random.Random(f"{seed} {len(context)} {context[-1]}")
    logits = [chance.gauss(0, 3) / temperature for _ in range(VOCABULARY)]
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def probe(seed: int = 0) -> Probe:
    """A probe of a policy with these weights."""
    ids = [*PROMPT, *OUTPUT]
    values = [logprobs(seed, ids[:place])[ids[place]] for place in range(len(PROMPT), len(ids))]
    return Probe(prompt_token_ids=PROMPT, output_token_ids=OUTPUT, logprobs=values)


@dataclass
class ScoringEngine:
    """Finds every policy by its name, but for those that it refuses or lacks."""

    weights: dict[str, int] = field(default_factory=dict[str, int])
    """The seed of a policy's weights; 0 without an entry."""
    broken: set[str] = field(default_factory=set[str])
    """Names, or their part before the digest, that are refused because their files do not verify."""
    missing: set[str] = field(default_factory=set[str])
    """Names that are answered with 404."""
    logprobs_mode: str = PROCESSED
    key: str | None = None
    max_logprobs: int = 20
    resident: list[str] = field(default_factory=list[str])
    base: str | None = None
    """The name of the base model, where it is served too."""
    without_tools: set[str] = field(default_factory=set[str])
    """Names of policies whose chat template shows no tools."""
    answers: Answers | None = None
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    def __post_init__(self) -> None:
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])

    def named(self, path: str) -> list[str]:
        """The models that were asked for at a path, in order."""
        return [str(body.get("model") or body.get("lora_name")) for asked, body in self.asked if asked == path]

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        body: dict[str, Any] = await request.json() if request.method == "POST" else {}
        self.asked.append((path, body))
        scripted = self.answers(path, body) if self.answers else None
        if scripted is not None:
            return scripted
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return refused(401, f"incorrect key {request.headers.get('authorization')}")
        if path == "/v1/models":
            held = [self.base, *self.resident] if self.base else self.resident
            return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in held]})
        if path == "/v1/unload_lora_adapter":
            return self._unload(body["lora_name"])
        kinds = {"/v1/completions": self._complete, "/v1/chat/completions": self._chat, "/tokenize": self._tokenize}
        if path not in kinds:
            return refused(404, f"no such route: {path}")
        return self._refusal(body["model"]) or kinds[path](body)

    def _refusal(self, name: str) -> Response | None:
        """The refusal of a policy; None once it is resident."""
        if self.broken & {name, name.partition("-")[0]}:
            return refused(POLICY_REFUSED, f"sha256 of the files of {name} differs")
        if name in self.missing:
            return refused(404, f"The model `{name}` does not exist.")
        if name not in self.resident and name != self.base:
            self.resident.append(name)
        return None

    def _unload(self, name: str) -> Response:
        if name not in self.resident:
            return refused(404, f"The lora adapter '{name}' cannot be found.")
        self.resident.remove(name)
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    def _complete(self, body: dict[str, Any]) -> Response:
        ids, seed = body["prompt"], self.weights.get(body["model"], 0)
        asked = max(body.get("prompt_logprobs") or 0, body.get("logprobs") or 0)
        if asked > self.max_logprobs:
            return refused(400, f"Requested {asked} logprobs, which is greater than max allowed: {self.max_logprobs}")
        drawn = self._drawn(seed, ids, body)
        choice: dict[str, Any] = {"index": 0, "text": "x", "finish_reason": "length", "logprobs": None}
        if body.get("logprobs"):
            top = {f"token_id:{token}": drawn[token] for token in likeliest(drawn, body["logprobs"])}
            choice["logprobs"] = {"tokens": ["x"], "token_logprobs": [-1.0], "top_logprobs": [top]}
        if (count := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = [None, *(_ranked(seed, ids, place, count) for place in range(1, len(ids)))]
        return JSONResponse({"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice]})

    def _drawn(self, seed: int, ids: Sequence[int], body: Mapping[str, Any]) -> list[float]:
        """The log-probabilities that the engine reports for the token after `ids`."""
        processed = self.logprobs_mode == PROCESSED
        return logprobs(seed, ids, body.get("temperature") or 1.0 if processed else 1.0)

    def _chat(self, _: dict[str, Any]) -> Response:
        content = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]
        return JSONResponse({"choices": [{"index": 0, "logprobs": {"content": content}}]})

    def _tokenize(self, body: dict[str, Any]) -> Response:
        shown = [] if body["model"] in self.without_tools else body.get("tools", [])
        return JSONResponse({"count": 3 + len(shown), "max_model_len": 512, "tokens": [1, 2, *(7 for _ in shown), 3]})


@dataclass
class Fleet(httpx.AsyncBaseTransport):
    """Engines by host name, reached without a network."""

    engines: dict[str, ScoringEngine]
    away: set[str] = field(default_factory=set[str])
    """Hosts that refuse connections."""
    failing: dict[str, Exception] = field(default_factory=dict[str, Exception])
    """By host: the error that ends the connection of every completion."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if host in self.away:
            raise httpx.ConnectError("All connection attempts failed")
        if host in self.failing and request.url.path.endswith("completions"):
            raise self.failing[host]
        return await httpx.ASGITransport(self.engines[host].app).handle_async_request(request)

    def served(self, **settings: Any) -> HttpEngines:
        """These engines as the replicas of one."""
        urls = tuple(f"http://{host}" for host in self.engines)
        plain = {"name": "small", "kind": "vllm", "urls": urls, "roles": ("*",), "logprobs_mode": PROCESSED}
        return HttpEngines([EngineSettings(**(plain | settings))], 5, self)


def refused(status: int, message: str) -> Response:
    """An error in vLLM's form."""
    return JSONResponse({"error": {"message": message, "type": "x", "param": None, "code": status}}, status)


def likeliest(values: Sequence[float], count: int) -> list[int]:
    """The `count` likeliest tokens."""
    return sorted(range(len(values)), key=lambda token: -values[token])[:count]


def _ranked(seed: int, ids: Sequence[int], place: int, count: int) -> dict[str, Any]:
    values = logprobs(seed, ids[:place])
    order = likeliest(values, VOCABULARY)
    tokens = [ids[place], *order[:count]]
    return {
        str(token): {"logprob": values[token], "rank": order.index(token) + 1, "decoded_token": str(token)}
        for token in tokens
    }
