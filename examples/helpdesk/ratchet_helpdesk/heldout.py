"""The gate's held-out command: `python -m ratchet_helpdesk.heldout --exams DIR` plays unseen tickets with one policy.

The deployer says in the environment which policy, how many tickets and which (`RATCHET_GATEWAY_URL`, `RATCHET_POLICY`,
`RATCHET_HELDOUT_TASKS`, `RATCHET_HELDOUT_SEED`). Every ticket is played twice, sampled and greedy. The gate judges the
sampled tickets, for agents sample: one JSON line each with `task`, `success`, `score`, tool `calls` and `valid_calls`.
Both modes go into a file of `DIR`, for the report: greedy takes the most likely token everywhere (temperature 0), so a
policy that only became surer of what it did before gains when sampled and gains nothing greedy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import openai
import uuid_utils
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet_helpdesk.agent import Agent, in_parallel, open_client
from ratchet_helpdesk.world import HELD_OUT, Verdict
from ratchet_helpdesk.worlds import HELPDESK, WORLDS, World

SAMPLED, GREEDY = "sampled", "greedy"
TEMPERATURES = {SAMPLED: 1.0, GREEDY: 0.0}
"""By mode. Agents sample at temperature 1, because learning needs tries that differ."""


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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One ticket played once in one mode."""

    task: str
    kind: str
    mode: str
    success: bool
    calls: int
    """Tool calls,"""
    valid_calls: int
    """and those of them that name a tool with its arguments."""

    @classmethod
    def of(cls, task: Any, mode: str, verdict: Verdict, world: World = HELPDESK) -> Answer:
        """The answer to a ticket that closed; `Any`: a task of this world."""
        return cls(
            task=task.task_id,
            kind=world.kind_of(task),
            mode=mode,
            success=verdict.success,
            calls=verdict.tool_calls,
            valid_calls=verdict.valid_tool_calls,
        )

    def gate_line(self) -> str:
        """In the form that the gate reads."""
        line = {
            "task": self.task,
            "success": self.success,
            "score": float(self.success),
            "calls": self.calls,
            "valid_calls": self.valid_calls,
        }
        return json.dumps(line)


async def evaluate(settings: HeldOutSettings, report: Callable[[Answer], None], world: World = HELPDESK) -> None:
    """Play every ticket once in each mode. Raises `openai.APIError` when the gateway does not answer."""
    async with open_client(settings.gateway_url) as client:
        agents = {
            mode: Agent(client, settings.policy, temperature, world) for mode, temperature in TEMPERATURES.items()
        }

        async def work(job: tuple[Any, str]) -> None:
            task, mode = job
            report(Answer.of(task, mode, await agents[mode].play(task, str(uuid_utils.uuid7())), world))

        tasks = world.draw_tasks(HELD_OUT, settings.heldout_tasks, settings.heldout_seed)
        # The modes of one ticket follow each other: the engine still knows its opening.
        await in_parallel(settings.heldout_agents, product(tasks, TEMPERATURES), work)


def exam_path(folder: Path, policy: str) -> Path:
    """The file of all answers of `policy` (`role@version`)."""
    return folder / f"{policy}.json"


def write_exam(folder: Path, policy: str, answers: Sequence[Answer]) -> None:
    """Leave the answers of `policy` in its file: complete, or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = exam_path(folder, policy)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(answers))
    partial.replace(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation; returns 1 when it could not be finished."""
    parser = argparse.ArgumentParser(prog="python -m ratchet_helpdesk.heldout", description=__doc__)
    parser.add_argument("--exams", type=Path, required=True, help="folder for every policy's answers")
    parser.add_argument("--world", choices=sorted(WORLDS), default=HELPDESK.name, help="whose tickets")
    options = parser.parse_args(argv)
    # The environment fills the fields that have no default.
    settings = HeldOutSettings()  # pyright: ignore[reportCallIssue]
    answers: list[Answer] = []
    try:
        asyncio.run(evaluate(settings, answers.append, WORLDS[options.world]))
    except openai.APIError as error:
        sys.stderr.write(f"{settings.policy} could not be evaluated: {error}\n")
        return 1
    sys.stdout.writelines(answer.gate_line() + "\n" for answer in answers if answer.mode == SAMPLED)
    write_exam(options.exams, settings.policy, answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
