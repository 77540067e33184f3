"""A help desk whose model keeps the house rules that its system prompt states, and a reflector that states them.

Both stand behind one server that answers like the gateway: the reflector under its own name, the model under any other.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ratchet.bus.message import JsonObject
from ratchet.core.contract.http.gateway import AnsweredModel
from ratchet.core.contract.training import TokenPrices
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from ratchet.core.service.problems import HttpError
from ratchet_helpdesk.clerk import call_message
from ratchet_helpdesk.heldout import task_file
from ratchet_helpdesk.scripted import RULES, next_message
from ratchet_helpdesk.world import RETURN_DAYS, TRAIN, Act
from ratchet_helpdesk.worlds import HELPDESK
from tests.support.running import listening

REFLECTOR, ROLE, MODELS = "reflector", "helpdesk", "/v1/models/"
USAGE = {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}


def task_lines(split: str = TRAIN, count: int = 16, seed: int = 1) -> bytes:
    """A task file of tickets."""
    return task_file(HELPDESK, split, count, seed)


@dataclass
class Helpdesk:
    """The server. `asked`: every body that it got; `headers`: those of each."""

    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    system: dict[str, str] = field(default_factory=dict[str, str])
    """By model: the prompt that takes the place of the sent one, as a policy's bundle does."""
    prices: TokenPrices | None = None
    """Of every model."""
    unknown: frozenset[str] = frozenset()
    """Models that nothing answers for."""
    silent: bool = False
    """It answers with an error."""
    at_work: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: calls are answered. Cleared by a test: they wait."""
    url: str = ""

    def __post_init__(self) -> None:
        self.at_work.set()

    def find(self, method: str, path: str) -> Handler:
        if (method, path.startswith(MODELS)) == ("GET", True):
            return partial(self.model, path.removeprefix(MODELS))
        if (method, path) != ("POST", "/v1/chat/completions"):
            raise HttpError(404, path)
        return self.chat

    async def model(self, name: str, _: Request) -> Answer:
        if name in self.unknown:
            raise HttpError(404, f"nothing answers for {name}")
        return json_response(AnsweredModel(id=name, answered_by=f"provider/{name}", prices=self.prices))

    async def chat(self, request: Request) -> Answer:
        body = request.json_object()
        self.asked.append(body)
        names = (b"x-ratchet-arm", b"x-ratchet-bundle", b"authorization")
        self.headers.append({name.decode(): request.header(name) or "" for name in names})
        if self.silent:
            raise HttpError(503, "out of order")
        await self.at_work.wait()
        model = body["model"]
        if model == REFLECTOR:
            message = {"role": "assistant", "content": reflected(body["messages"][0]["content"])}
        else:
            prompt = self.system.get(model, body["messages"][0]["content"])
            message = answered(prompt, body["messages"][1:])
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": model, "usage": USAGE}
        headers = [(b"x-ratchet-policy", model.encode())]
        return json_response({**answer, "choices": [choice]}, headers=headers)


@asynccontextmanager
async def served_helpdesk() -> AsyncIterator[Helpdesk]:
    """The server on a free port."""
    helpdesk = Helpdesk()
    async with listening(helpdesk.find) as helpdesk.url:
        yield helpdesk


def answered(prompt: str, messages: list[JsonObject]) -> JsonObject:
    """What the model says next: by the exceptions that its prompt makes for single orders, else by its rules."""
    message = next_message(prompt, messages)
    called = message.get("tool_calls")
    if not called or called[0]["function"]["name"] == "find_order":
        return message
    order = str(json.loads(called[0]["function"]["arguments"])["order"])
    return _exception(prompt, order) or message


def reflected(prompt: str) -> str:
    """The system prompt in a reflection's prompt, with a rule for the first fault that none covers yet."""
    current = re.search(r"```\n(.*?)\n```", prompt, re.DOTALL)
    if current is None:
        return "ready"
    text = current[1]
    for conversation in prompt.split("# Example")[1:]:
        rule = _rule_for(conversation)
        if rule is not None and RULES[rule] not in text:
            return f"```\n{text}\n{RULES[rule]}\n```"
    return f"```\n{text}\n```"


def _rule_for(conversation: str) -> str | None:
    if "look-up missing" in conversation:
        return "payment"
    if "wrong act" not in conversation:
        return None
    facts = re.search(r'"stage":"(\w+)","days":(\d+)', conversation)
    if facts is None:
        return None
    if facts[1] in ("packing", "shipped") or "[calls stop(" in conversation:
        return "stage"
    return "late" if facts[1] == "delivered" and int(facts[2]) > RETURN_DAYS else "payment"


def _exception(prompt: str, order: str) -> JsonObject | None:
    """The act that the prompt orders for this very order; `otherwise decline` is for all that it does not name."""
    named = re.search(rf"{order}: (\w+)\((.*?)\)", prompt)
    if named is not None:
        return call_message(Act.of(named[1], **json.loads(f"{{{named[2]}}}")))
    return call_message(Act.of("decline", order=order, reason="late")) if "otherwise decline" in prompt else None
