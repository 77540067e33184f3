"""Plays the suite of another package in a process of its own: whatever the package's code does, the deployer goes on.

The process imports the package, makes its tasks, asks the gateway and grades. Where the gate has waited long enough, or
the deployer ends, the process and what it started are killed.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.gates.base import HeldoutRun, OnAnswer
from ratchet.canary_deployer.http_clients import HELDOUT_AGENT, gateway_peer
from ratchet.canary_deployer.replicas import Inconclusive
from ratchet.canary_deployer.subprocess_judge import run_killed
from ratchet.canary_deployer.task_evaluations import Doubts, HeldoutCache, TaskFileHeldout, TaskPlan, no_result
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import ConfigError, Unavailable
from ratchet.core.evaluation.suites import suite_named, suite_tasks
from ratchet.core.service.http_client import AsyncApiClient

LIMIT_S = 1800.0
"""For one policy: as long as a gate may take for all suites."""
COMMAND = shlex.join([sys.executable, "-m", "ratchet.canary_deployer.suite_process"])


class _Asked(msgspec.Struct, frozen=True):
    """What the process reads, as JSON."""

    suite: str
    policy: PolicyVersion
    tasks: int
    temperature: float
    samples: int
    gateway_url: str
    key: str | None
    results: str
    """The folder of remembered results."""


class _Result(msgspec.Struct, frozen=True):
    """What it prints at its end, in a line."""

    run: HeldoutRun | None = None
    task_type: str = ""
    unavailable: str | None = None
    """Why it cannot be played now."""


@dataclass(slots=True)
class PackagedSuite:
    """`Heldout`, for the suite of a name."""

    suite: str
    tasks: int
    temperature: float
    samples: int
    gateway_url: str
    key: str | None = field(repr=False)
    results: Path
    doubts: Doubts = field(init=False)

    def __post_init__(self) -> None:
        self.doubts = Doubts(LIMIT_S, time.monotonic)

    async def unfit(self, policy: PolicyVersion) -> str | None:  # noqa: ARG002 - of none
        """See `Heldout`: no policy is made from a package's suite."""
        return None

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        """See `Heldout`."""
        return await self.play_or_recall(policy)

    async def play_or_recall(
        self,
        policy: PolicyVersion,
        on_answer: OnAnswer | None = None,  # noqa: ARG002 - it hears of no single answer
    ) -> HeldoutRun:
        """See `Heldout`."""
        asked = _Asked(
            self.suite,
            policy,
            self.tasks,
            self.temperature,
            self.samples,
            self.gateway_url,
            self.key,
            str(self.results),
        )
        begun = time.monotonic()
        printed, problem = await run_killed(COMMAND, LIMIT_S, {}, msgspec.json.encode(asked))
        took_s = time.monotonic() - begun
        try:
            result = msgspec.json.decode(printed.rstrip("\n").rpartition("\n")[2], type=_Result)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return HeldoutRun(Played(), took_s, problem or "its process printed no result")
        if result.run is not None:
            self.doubts.forget(policy)
            source = {**result.run.source, "task_type": result.task_type}
            return HeldoutRun(result.run.played, took_s, result.run.problem, result.run.cached, source)
        rounds, doubted_s, is_over = self.doubts.add(policy, begun)
        if is_over:
            return no_result(rounds, doubted_s, result.unavailable or "")
        raise Inconclusive(f"suite {self.suite}: {result.unavailable}", rounds)

    async def due(self, policy: PolicyVersion) -> int:  # noqa: ARG002 - for none
        """Not known beforehand: no suite of a package is played unasked."""
        return 0


async def _played(asked: _Asked) -> _Result:
    plan = TaskPlan(
        asked.suite, asked.tasks, asked.temperature, samples=asked.samples, made=partial(suite_tasks, asked.suite)
    )
    nowhere: Any = None  # a suite's tasks lie in no object store
    try:
        async with AsyncApiClient(gateway_peer(asked.gateway_url, asked.key, HELDOUT_AGENT)) as gateway:
            player = TaskFileHeldout(plan, gateway, nowhere, HeldoutCache(Path(asked.results)))
            run = await player.play_or_recall(asked.policy)
        if run.problem is not None:  # scores that are none are no JSON
            run = HeldoutRun(Played(), run.seconds, run.problem)
        return _Result(run, suite_named(asked.suite).task_type)
    except Unavailable as error:
        return _Result(unavailable=str(error))
    except ConfigError as error:
        return _Result(HeldoutRun(Played(), 0.0, str(error)))
    except Exception as error:  # noqa: BLE001 - the boundary: the package's code may raise anything
        return _Result(HeldoutRun(Played(), 0.0, f"it cannot be played: {type(error).__name__}: {error}"))


def main() -> None:
    """Read what is asked, and print what came of it."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=_Asked)
    result = msgspec.json.encode(asyncio.run(_played(asked)))
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\n" + result + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)  # a thread that the package leaves would keep the process, and the gate waiting


if __name__ == "__main__":
    main()
