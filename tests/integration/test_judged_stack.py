"""A judge on a stack as `ratchet up` starts it: asked through the gateway, weighed once people agree with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.testing import eventually
from ratchet.local.local_stack.state import read_record
from tests.support.command_lines import Shell, ratchet
from tests.support.fake_engine import FakeProvider, providing
from tests.support.running import http_client

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

OBSERVERS = "gateway,trajectory_collector,reward_computer"
SETTINGS = """
[stack]
upstream = "openai"

[gateway]
aliases = {"big-model" = "support"}

[reward_computer]
function_version = "VERSION"
weights = {support = {task_completion = 0.5, judge = 0.5}}
judges = {support = {model = "openai/big-model", calls_per_day = CALLS}}
"""
PEOPLE, CALLS = 52, 59
"""Trajectories that people label, and questions that the judge may be asked in a day."""


@dataclass
class Model:
    """Answers agents, and judges their work: well, or with a verdict that is none."""

    babbles: bool = False
    questions: list[str] = field(default_factory=list[str])

    def answer_to(self, body: dict[str, Any]) -> str:
        asked = body["messages"][-1]["content"]
        if "SCORE" not in body["messages"][0]["content"]:
            return "It arrives today." if is_good(int(asked.split("#")[1])) else "No idea."
        self.questions.append(asked)
        if self.babbles:
            return "What a nice conversation. SCORE: banana"
        return "It says when.\nSCORE: 0.9" if "arrives" in asked else "It says nothing.\nSCORE: 0.1"


def is_good(order: int) -> bool:
    return order % 3 > 0


@dataclass
class JudgedStack:
    """A stack, its agents and its operator."""

    work: Path
    shell: Shell

    def configure(self, version: str) -> None:
        (self.work / "ratchet.toml").write_text(SETTINGS.replace("VERSION", version).replace("CALLS", str(CALLS)))

    @property
    def gateway(self) -> str:
        record = read_record(self.work / ".ratchet")
        assert record is not None
        return record.env["RATCHET_GATEWAY_URL"]

    async def play(self, orders: Iterable[int]) -> None:
        """Runs of one call each, which their environment calls a success."""
        async with http_client(base_url=self.gateway, trust_env=False) as http:
            for order in orders:
                call = {"model": "big-model", "messages": [{"role": "user", "content": f"Where is order #{order}"}]}
                end = {"outcome": {"status": "success", "verified_by": "environment"}}
                for path, body in (
                    (f"/t/o{order}/v1/chat/completions", call),
                    (f"/v1/trajectories/o{order}/end", end),
                ):
                    (await http.post(path, json=body)).raise_for_status()

    async def rewards(self, order: int) -> list[dict[str, Any]]:
        """Of a run, oldest revision first; none before it is stored."""
        shown = await self.shell.ended("trajectories", "show", f"o{order}", "--json")
        return json.loads(shown.out)["rewards"] if shown.code == 0 else []

    async def judge(self) -> dict[str, Any]:
        (report,) = (await self.shell.json("rewards", "judges"))["judges"]
        return report

    async def has_judged(self, number: int) -> bool:
        return (await self.judge())["judged"] == number

    async def notes(self) -> str:
        status = await self.shell.json("status")
        return str(status["services"]["reward_computer"]["notes"])


@asynccontextmanager
async def stack_before(model: Model, work: Path, patch: pytest.MonkeyPatch, shell: Shell) -> AsyncIterator[JudgedStack]:
    patch.chdir(work)
    patch.delenv("RATCHET_DIR", raising=False)
    here = JudgedStack(work, shell)
    here.configure("1")
    provider = FakeProvider(key="the provider's", answer_to=model.answer_to)
    try:
        async with providing(provider) as url:
            settings = {"RATCHET_UPSTREAM_URL_OPENAI": url, "OPENAI_API_KEY": provider.key}
            up = ("up", "--detach", "--free-ports", "--only", OBSERVERS)
            started = await asyncio.to_thread(ratchet, *up, **settings)
            assert started.returncode == 0, started.stderr
            yield here
    finally:
        await asyncio.to_thread(ratchet, "down")


async def test_judge_counts_once_people_agree_with_it_and_keeps_to_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model()
    async with stack_before(model, tmp_path, monkeypatch, Shell(capsys)) as here:
        await here.play(range(PEOPLE))
        await eventually(lambda: here.has_judged(PEOPLE))
        made = await here.judge()
        assert (made["labels"], made["kappa"], made["calibrated"], made["counts"]) == (0, None, False, False)
        assert "uncalibrated" in await here.shell("rewards", "judges")
        first, judged = await here.rewards(0)
        assert first["reward_components"]["judge"]["applicable"] is False
        part = judged["reward_components"]["judge"]
        assert (part["score"], part["weight"], part["reasoning"]) == (0.1, 0.0, "It says nothing.")

        for order in range(PEOPLE):
            await here.shell("feedback", f"o{order}", "--thumbs", "up" if is_good(order) else "down", "--rater", "ann")

        async def agreed() -> bool:
            return (await here.judge())["calibrated"]

        await eventually(agreed)
        assert "no weight yet: raise function_version" in await here.shell("rewards", "judges")

        here.configure("2")
        assert "`ratchet rewards accept standard@2`" in await here.shell(
            "rewards", "recompute", "--function", "standard@2"
        )
        await here.shell("rewards", "accept", "standard@2")
        await here.play([100, 101])

        async def weighed() -> bool:
            return [reward["total_reward"] for reward in await here.rewards(100)] == [1.0, pytest.approx(0.95)]

        await eventually(weighed)
        assert (await here.judge())["counts"]

        model.babbles = True
        await here.play([102])

        async def noted() -> bool:
            return "gives no verdict" in await here.notes()

        await eventually(noted)
        await here.play(range(103, 120))

        async def spent() -> bool:
            return (await here.judge())["calls_today"] == CALLS

        await eventually(spent)

        async def rewarded() -> bool:
            return len(await here.rewards(119)) == 1

        await eventually(rewarded)
        assert len(model.questions) == CALLS
