"""The demo without training: a better prompt is promoted over the agents' own, a harmful one is taken back.

A scripted model (`ratchet_helpdesk.scripted`) stands in for a provider's; everything else is the product.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ratchet.bus.tasks import end
from ratchet.core.service.asgi import Answer, Handler, JsonApi, Request, json_response
from ratchet.core.service.http import HttpServer
from ratchet.core.service.problems import HttpError
from ratchet.local.demo.agents_process import crew
from ratchet.local.demo.progress import AGENTS, CANARY, COLLECTOR, GATE
from ratchet.local.demo.scenario import OPERATOR, DemoFailed, Scenario, at_once, run_command
from ratchet_helpdesk.scripted import REFUSING, RULES, next_message

UPSTREAM, MODEL = "provider", "scripted-model"
BETTER = "\n".join(["{{instructions}}", *RULES.values()])
"""The house rules behind what the agents send."""
HARMFUL = f"{BETTER}\n{REFUSING}"
BODY_BYTES = 1 << 20


class PromptScenario(Scenario):
    """One run of a plan that trains nothing."""

    async def run(self) -> None:
        """The whole story. Raises `DemoFailed` where it cannot go on."""
        with self._progress.step("agents answer tickets by a prompt without the house rules", AGENTS):
            async with crew(self._shift(self._plan.tasks), self._logs / "agents.log") as agents:
                tally = await agents.finish()
            self._count(tally)
        self._progress.note(f"as the agents send it: {tally.successes} of {tally.trajectories} tickets solved")
        with self._progress.step("every ticket gets its reward", COLLECTOR):
            await self.settle()
        with self._progress.step("a prompt with the house rules becomes a candidate: recorded requests, tasks", GATE):
            version = await self._create(BETTER, "the house rules, written down")
            _, state = await at_once(self.examine_stable(), self._after_gates(version))
        await self._note_gate(version)
        if state != "refused":
            with self._progress.step(f"v{version} gets a share of the traffic", CANARY):
                state = await self._canary(version)
        if state != "promoted":
            raise DemoFailed(f"the better prompt v{version} was not promoted ({state})")
        await at_once(self.examine_stable(), self._offer_harmful())
        await self.settle()

    async def _offer_harmful(self) -> None:
        with self._progress.step("a harmful prompt becomes a candidate", GATE):
            version = self.story.bad_version = await self._create(HARMFUL, "fewer costly acts")
            state = await self._after_gates(version)
        await self._overrule(version, state)

    async def _create(self, text: str, reason: str) -> int:
        """Register a prompt, as a person does; returns its version."""
        file = self._directory / "prompt.md"
        await asyncio.to_thread(file.write_text, text)
        options = ["--instructions", str(file), "--reason", reason, "--actor", OPERATOR, "--json"]
        made = await run_command("bundles", "create", self._world.role, *options, "--dir", str(self._directory))
        return msgspec.json.decode(made, type=_Created).version


class _Created(msgspec.Struct):
    """What `ratchet bundles create --json` prints."""

    version: int


def upstreams(url: str, role: str) -> Mapping[str, str]:
    """The gateway's setting for the scripted model as a provider."""
    return {
        "RATCHET_GATEWAY_UPSTREAMS": json.dumps([{"name": UPSTREAM, "base_url": f"{url}/v1", "models": {role: MODEL}}])
    }


@asynccontextmanager
async def scripted_provider() -> AsyncIterator[str]:
    """The scripted model behind OpenAI's API on a free port; yields its URL."""
    server = HttpServer(JsonApi(_find, BODY_BYTES), "127.0.0.1", 0)
    serving = asyncio.create_task(server.run())
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()
        await end(serving)


def _find(method: str, path: str) -> Handler:
    if (method, path) != ("POST", "/v1/chat/completions"):
        raise HttpError(404, path)
    return _chat


async def _chat(request: Request) -> Answer:
    body = request.json_object()
    message, text = _answered(body["messages"]), json.dumps(body["messages"])
    usage = {"prompt_tokens": len(text) // 4, "completion_tokens": 12, "total_tokens": len(text) // 4 + 12}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": MODEL}
    return json_response({**head, "choices": [choice], "usage": usage})


def _answered(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`Any`: chat messages."""
    if messages[0]["role"] != "system":  # the warm-up's prompts have no instructions
        return next_message("", messages)
    return next_message(str(messages[0]["content"]), messages[1:])
