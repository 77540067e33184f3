"""Asks a policy, or any other model, over the gateway's OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract.evaluation_task import Task
from ratchet.core.contract.http.gateway import AnsweredModel
from ratchet.core.errors import Conflict, Forbidden, NotFound, Rejected, Unavailable
from ratchet.core.evaluation.playing import Answer
from ratchet.core.rules.bundles import VARIABLES
from ratchet.core.service.http_client import WRONG_REQUEST, AsyncApiClient, Reply

ANSWER_S = 300.0
"""How long one answer may take."""
MOST_TOKENS = 1024
"""Of an answer, where neither its task nor the caller sets another limit: a policy may never end one by itself."""
QUOTED = 200
"""Most characters of a server's refusal in a report."""


class _Choice(msgspec.Struct, frozen=True):
    message: JsonObject


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chat(msgspec.Struct, frozen=True):
    choices: Sequence[_Choice]
    usage: _Usage | None = None


class Exchanging(Protocol):
    """The part of `http_client.AsyncApiClient` that a player needs."""

    async def exchange(
        self, method: str, path: str, *, body: JsonObject, headers: Mapping[str, str] | None = None
    ) -> Reply: ...

    def content_of(self, reply: Reply) -> bytes: ...


async def model_named(client: AsyncApiClient, name: str) -> AnsweredModel:
    """Who would answer at the gateway for a model of this name. Raises `NotFound` where nothing would, `Unavailable`,
    and what its status stands for."""
    return await client.ask("GET", f"/v1/models/{quote(name, safe='@/')}", AnsweredModel)


@dataclass(frozen=True, slots=True)
class HttpPlayer:
    """`playing.Player`. Pinned, its trajectories are in no statistic and no training."""

    client: Exchanging
    model: str
    policy: str | None = None
    """The full name of the policy that has to answer; None where any model may."""
    max_tokens: int | None = MOST_TOKENS
    """Of an answer to a task that sets no limit itself; None where the server has its own."""

    async def answer(self, task: Task, temperature: float, seed: int, trajectory_id: str) -> Answer:
        """See `Player`. Raises `NotFound` or `Rejected` where the model is not there, or not for this key."""
        max_tokens = self.max_tokens if task.max_tokens is None else task.max_tokens
        body: JsonObject = {
            "model": self.model,
            "messages": task.messages,
            "temperature": temperature,
            **({"tools": task.tools} if task.tools else {}),
            **({VARIABLES: task.metadata} if task.metadata else {}),
            **({"max_tokens": max_tokens} if max_tokens is not None else {}),
            **({"seed": seed} if temperature else {}),
        }
        headers = {"x-ratchet-trajectory": trajectory_id}
        reply = await self.client.exchange("POST", "/v1/chat/completions", body=body, headers=headers)
        try:
            content = self.client.content_of(reply)
        except (Forbidden, NotFound, Conflict, Unavailable):
            raise
        except Rejected as error:
            if reply.status not in WRONG_REQUEST:
                raise
            return Answer(refused=" ".join(str(error).split())[:QUOTED])
        by = reply.headers.get("x-ratchet-policy")
        if self.policy is not None and by != self.policy:
            raise Unavailable(f"{by or 'no policy'} answers in the place of {self.policy}")
        try:
            chat = decode(content, _Chat)
            message, usage = chat.choices[0].message, chat.usage or _Usage()
        except (msgspec.DecodeError, IndexError) as error:
            raise Unavailable(f"the answer holds no message: {type(error).__name__}") from error
        return Answer(message=message, prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
