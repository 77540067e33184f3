"""The gate's held-out command: `python -m ratchet.demo.heldout` plays unseen tickets with one pinned policy.

The deployer says in the environment which policy, how many tickets and which (`RATCHET_GATEWAY_URL`, `RATCHET_POLICY`,
`RATCHET_HELDOUT_TASKS`, `RATCHET_HELDOUT_SEED`). Every ticket prints one JSON line: `task`,
`success`, `score`, tool `calls` and `valid_calls`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

import openai
import uuid_utils
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.demo.player import Player, in_parallel, open_client
from ratchet.demo.world import HELD_OUT, Task, Verdict, draw_tasks


class HeldOutSettings(BaseSettings):
    """What the deployer asks for."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_", frozen=True)

    gateway_url: str
    """Where to play."""
    policy: str
    """`role@version`."""
    heldout_tasks: int
    """How many tickets."""
    heldout_seed: int = 0
    """Which tickets."""
    heldout_agents: int = 24
    """Tickets at work at the same time."""


async def evaluate(settings: HeldOutSettings, report: Callable[[Task, Verdict], None]) -> None:
    """Play every ticket once. Raises `openai.APIError` when the gateway does not answer."""
    async with open_client(settings.gateway_url) as client:
        player = Player(client, settings.policy)

        async def work(task: Task) -> None:
            report(task, await player.play(task, str(uuid_utils.uuid7())))

        tasks = draw_tasks(HELD_OUT, settings.heldout_tasks, settings.heldout_seed)
        await in_parallel(settings.heldout_agents, iter(tasks), work)


def _print_line(task: Task, verdict: Verdict) -> None:
    line = {
        "task": task.task_id,
        "success": verdict.success,
        "score": float(verdict.success),
        "calls": verdict.tool_calls,
        "valid_calls": verdict.valid_tool_calls,
    }
    sys.stdout.write(json.dumps(line) + "\n")


def main() -> int:
    """Run the evaluation; returns 1 when it could not be finished."""
    # The environment fills the fields that have no default.
    settings = HeldOutSettings()  # pyright: ignore[reportCallIssue]
    try:
        asyncio.run(evaluate(settings, _print_line))
    except openai.APIError as error:
        sys.stderr.write(f"{settings.policy} could not be evaluated: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
