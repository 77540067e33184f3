"""An agent: the public `openai` client with the gateway as its `base_url`; nothing else here speaks to a policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from openai import AsyncOpenAI, BadRequestError
from openai.types.chat import ChatCompletion

from ratchet_helpdesk.world import ChatMessage, Verdict
from ratchet_helpdesk.worlds import HELPDESK, World

T = TypeVar("T")

TIMEOUT_S = 60.0
"""Longest wait for one answer."""
TOO_LONG = "context_length_exceeded"
"""Code of the refusal of a conversation that is longer than the policy can read."""


@asynccontextmanager
async def open_client(gateway_url: str) -> AsyncIterator[AsyncOpenAI]:
    """A client for the gateway, which asks for no key."""
    async with AsyncOpenAI(
        base_url=f"{gateway_url.rstrip('/')}/v1", api_key="none", timeout=TIMEOUT_S, max_retries=4
    ) as client:
        yield client


@dataclass(frozen=True, slots=True)
class Agent:
    """Asks `model` and gives its answers to the environment, until the ticket closes. `Any`: a world's own tasks."""

    client: AsyncOpenAI
    model: str
    temperature: float = 1.0
    world: World = HELPDESK

    async def play(self, task: Any, trajectory_id: str) -> Verdict:
        """Work on one ticket. Raises `openai.APIError` when the gateway does not answer.

        A policy that talks until it can no longer read the conversation leaves the ticket open: its own failure.
        """
        verdict, _ = await self.converse(task, trajectory_id)
        return verdict

    async def converse(self, task: Any, trajectory_id: str) -> tuple[Verdict, list[ChatMessage]]:
        """The same, with all that was said."""
        environment = self.world.environment(task)
        messages = environment.opening()
        while environment.open:
            try:
                reply = await self._reply(messages, task.task_id, trajectory_id)
            except BadRequestError as error:
                if error.code != TOO_LONG:
                    raise
                break
            messages += [reply, *environment.answer(reply)]
        return environment.verdict(), messages

    async def _reply(self, messages: list[ChatMessage], customer: str, trajectory_id: str) -> ChatMessage:
        """The policy's answer, as the next request repeats it."""
        # `chat.completions.create` makes the same request, but first walks through every message and tool definition,
        # which takes longer than the rest of the call.
        completion = await self.client.post(
            "/chat/completions",
            cast_to=ChatCompletion,
            body={
                "model": self.model,
                "messages": messages,
                "tools": self.world.tools,
                "temperature": self.temperature,
                "max_tokens": self.world.max_tokens,
                "user": customer,
            },
            options={"headers": {"x-ratchet-trajectory": trajectory_id}},
        )
        message = completion.choices[0].message
        reply: ChatMessage = {"role": "assistant", "content": message.content}
        if message.tool_calls:  # arguments verbatim
            reply["tool_calls"] = [call.model_dump(exclude_unset=True) for call in message.tool_calls]
        return reply


async def in_parallel(count: int, tasks: Iterator[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Let `count` workers take tickets from one pile until it is empty. The first error stops all."""

    async def worker() -> None:
        for task in tasks:
            await work(task)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(worker())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
