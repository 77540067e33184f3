"""The role's evaluator as a command: answers to prompts go in, held-out results come out, one JSON line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.paired import read_results
from ratchet.canary_deployer.gates.base import HeldoutRun
from ratchet.canary_deployer.subprocess_command import Command, run

MOST_BYTES = 16 * 1024 * 1024
"""Of what the command prints."""


@dataclass(frozen=True, slots=True)
class SubprocessJudge:
    """Runs the command once for all answers of both policies; it is not told which is whose."""

    line: str
    deadline_s: float

    async def judge(self, role: str, answers: Sequence[JsonObject]) -> HeldoutRun:
        """What it says of `answers`."""
        given = b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers)
        ended = await run(Command(self.line, self.deadline_s, MOST_BYTES), {"RATCHET_ROLE": role}, given)
        return HeldoutRun(read_results(ended.lines), ended.seconds, ended.problem)
