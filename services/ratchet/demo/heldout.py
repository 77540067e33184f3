"""The gate's held-out command: `python -m ratchet.demo.heldout --exams DIR` plays unseen tickets with a pinned policy.

The deployer says in the environment which policy, how many tickets and which (`RATCHET_GATEWAY_URL`, `RATCHET_POLICY`,
`RATCHET_HELDOUT_TASKS`, `RATCHET_HELDOUT_SEED`). Every ticket is played twice, sampled and greedy. What was sampled, as
agents sample, is the gate's: one JSON line per ticket with `task`, `success`, `score`, tool `calls` and `valid_calls`.
Both go into a file of `DIR`, for the report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import openai
import uuid_utils
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.demo.exams import SAMPLED, TEMPERATURES, Answer, answer_of, write_exam
from ratchet.demo.player import Player, in_parallel, open_client
from ratchet.demo.world import HELD_OUT, Task, draw_tasks


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


async def evaluate(settings: HeldOutSettings, report: Callable[[Answer], None]) -> None:
    """Play every ticket once in each mode. Raises `openai.APIError` when the gateway does not answer."""
    async with open_client(settings.gateway_url) as client:
        players = {mode: Player(client, settings.policy, heat) for mode, heat in TEMPERATURES.items()}

        async def work(job: tuple[Task, str]) -> None:
            task, mode = job
            report(answer_of(task, mode, await players[mode].play(task, str(uuid_utils.uuid7()))))

        tasks = draw_tasks(HELD_OUT, settings.heldout_tasks, settings.heldout_seed)
        # The modes of one ticket follow each other: the engine still knows its opening.
        await in_parallel(settings.heldout_agents, product(tasks, TEMPERATURES), work)


def gate_line(answer: Answer) -> str:
    """An answer in the form that the gate reads."""
    line = {
        "task": answer.task,
        "success": answer.success,
        "score": float(answer.success),
        "calls": answer.calls,
        "valid_calls": answer.valid_calls,
    }
    return json.dumps(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation; returns 1 when it could not be finished."""
    parser = argparse.ArgumentParser(prog="python -m ratchet.demo.heldout", description=__doc__)
    parser.add_argument("--exams", type=Path, required=True, help="folder for every policy's answers")
    options = parser.parse_args(argv)
    # The environment fills the fields that have no default.
    settings = HeldOutSettings()  # pyright: ignore[reportCallIssue]
    answers: list[Answer] = []
    try:
        asyncio.run(evaluate(settings, answers.append))
    except openai.APIError as error:
        sys.stderr.write(f"{settings.policy} could not be evaluated: {error}\n")
        return 1
    sys.stdout.writelines(gate_line(answer) + "\n" for answer in answers if answer.mode == SAMPLED)
    write_exam(options.exams, settings.policy, answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
