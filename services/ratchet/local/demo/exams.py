"""Exams: how a policy does on the gate's held-out tickets, greedy and sampled side by side, kind by kind.

The gate samples alone, as agents do. So the demo asks each policy itself, and leaves one file of answers for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Unavailable
from ratchet.core.evaluation.http_player import HttpPlayer
from ratchet.core.evaluation.playing import Plan, play
from ratchet.core.evaluation.task_files import parse_tasks
from ratchet.core.service.files import write_whole
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet_helpdesk.heldout import Answer, held_out_file
from ratchet_helpdesk.world import HELD_OUT
from ratchet_helpdesk.worlds import World

Z_95 = 1.959964
"""Two-sided 95 % of the normal distribution."""
ANSWER_S = 60.0
"""Longest wait for one answer."""
AT_ONCE = 24
"""Tickets at work at the same time."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """`successes` out of `trials` (at least one)."""

    successes: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.trials or self.trials == 0:
            raise ValueError(f"{self.successes} of {self.trials} is no proportion")

    @property
    def rate(self) -> float:
        """The share of successes."""
        return self.successes / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval: unlike rate ± 2 errors it stays in [0, 1] and holds for rates near its ends."""
        n, p, z = self.trials, self.rate, Z_95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def is_above(self, other: Proportion) -> bool:
        """Whether this interval lies wholly above the other's."""
        return self.interval[0] > other.interval[1]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.2f} [{low:.2f}, {high:.2f}]"


@dataclass(frozen=True, slots=True)
class GateRun:
    """A policy's sampled run of the held-out tickets at the gate."""

    reason: str
    valid_calls: float | None
    """Share of its tool calls that were well formed; None when no tool was called."""


@dataclass(frozen=True, slots=True)
class Exam:
    """All answers of one policy; every ticket is played once in each mode."""

    answers: Sequence[Answer]

    def success(self, mode: str, kinds: Collection[str] | None = None) -> Proportion | None:
        """Solved tickets of these kinds, of all when absent; None when there was none to solve."""
        answers = [answer for answer in self.answers if answer.mode == mode]
        chosen = [answer.success for answer in answers if kinds is None or answer.kind in kinds]
        return Proportion(sum(chosen), len(chosen)) if chosen else None

    def valid_calls(self) -> Proportion | None:
        """Tool calls that were well formed; None when no tool was called."""
        calls = sum(answer.calls for answer in self.answers)
        return Proportion(sum(answer.valid_calls for answer in self.answers), calls) if calls else None

    @property
    def kinds(self) -> list[str]:
        """The kinds of tickets that came up, in the alphabet's order."""
        return sorted({answer.kind for answer in self.answers})


def heldout_gate(policy: PolicyVersion) -> GateRun | None:
    """What the gate with the held-out tickets says of a candidate; None where it was not asked."""
    result = (policy.gate or {}).get("heldout_tasks")
    if result is None:
        return None
    valid = result["evidence"].get("candidate_valid_calls")
    return GateRun(result["reason"], valid if isinstance(valid, float) else None)


async def take_exam(gateway_url: str, policy: str, world: World, tickets: int, seed: int) -> Exam:
    """Ask a policy, by its full name, every held-out ticket once in each mode. Raises `Unavailable`."""
    kinds = {task.task_id: world.kind_of(task) for task in world.draw_tasks(HELD_OUT, tickets, seed)}
    file = parse_tasks(held_out_file(world, tickets, seed), "held-out tickets")
    headers = {"x-ratchet-agent": "exam"}
    async with AsyncApiClient(Peer("the gateway", gateway_url, headers, ANSWER_S)) as client:
        plan = Plan(samples=1, at_once=AT_ONCE)
        tries = await play(HttpPlayer(client, policy, policy), file.tasks, plan, clock=time.monotonic)
    if unanswered := [tried.fault for tried in tries if tried.fault is not None]:
        raise Unavailable(f"{policy} left {len(unanswered)} tickets unanswered: {unanswered[0]}")
    return Exam(
        [
            Answer(
                task=tried.task,
                kind=kinds[tried.task],
                mode=tried.mode,
                success=tried.success,
                calls=tried.calls,
                valid_calls=tried.valid_calls,
            )
            for tried in tries
        ]
    )


def write_exam(folder: Path, policy: str, exam: Exam) -> None:
    """Leave the exam of `policy` (`role@version`) in its file: complete, or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{policy}.json", msgspec.json.encode(exam.answers), durable=False)


def read_exam(folder: Path, policy: str) -> Exam | None:
    """The exam of `policy` (`role@version`); None when it has taken none."""
    try:
        return Exam(msgspec.json.decode((folder / f"{policy}.json").read_bytes(), type=list[Answer]))
    except FileNotFoundError:
        return None


def read_exams(folder: Path, role: str, versions: Iterable[int]) -> Mapping[int, Exam]:
    """The exams of those versions of a role that took one."""
    exams = {version: read_exam(folder, f"{role}@{version}") for version in versions}
    return {version: exam for version, exam in exams.items() if exam is not None}
