"""The loop, closed: all services as processes of their own, a policy promoted, a bad one refused and rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ratchet.demo.connections import Connections, connect
from ratchet.demo.plan import SMALL, deployer_environment
from ratchet.demo.progress import Progress
from ratchet.demo.report import read_findings
from ratchet.demo.scenario import Scenario
from ratchet.embedded.plan import kernel_of
from ratchet.embedded.settings import StackSettings
from ratchet.embedded.stack import Stack

pytestmark = pytest.mark.timeout(1500)


@dataclass
class Loop:
    """A running stack and what the test needs of it."""

    stack: Stack
    connections: Connections
    scenario: Scenario


@asynccontextmanager
async def loop(directory: Path) -> AsyncIterator[Loop]:
    settings = StackSettings(directory=directory, free_ports=True, env=deployer_environment(SMALL.rollouts))
    async with Stack(settings) as stack:
        kernel = kernel_of(stack.env).model_copy(update={"data_dir": directory / "data" / "test"})
        async with connect(stack, kernel) as connections:
            scenario = Scenario(SMALL, connections, Progress(listen=print), directory / "logs")
            yield Loop(stack, connections, scenario)


async def test_the_loop_closes_while_services_are_killed(tmp_path: Path) -> None:
    async with loop(tmp_path / "state") as here:
        await here.scenario.first_policy()
        await asyncio.gather(here.scenario.improve(), killed(here.stack, "trajectory_collector", "reward_computer"))
        await here.scenario.sabotage()
        await here.scenario.settle()
        story, findings = here.scenario.story, await read_findings(here.connections, here.scenario.story)
    bad = story.bad_version
    assert bad is not None
    first, best = findings.heldout(1), findings.heldout(findings.route.stable.version if findings.route.stable else 0)
    assert first is not None
    assert best is not None
    assert best.rate > first.rate
    assert findings.promoted == [findings.route.stable.version if findings.route.stable else None]
    assert findings.decided(bad, "refuse") is not None
    assert findings.decided(bad, "roll_back") is not None
    assert findings.route.canary is None
    stages = {policy.version: policy.stage for policy in findings.policies}
    assert stages[bad] == "rolled_back"
    assert stages[findings.promoted[0]] == "stable"
    assert stages[1] == "archived"
    assert findings.rewarded == story.ended
    assert findings.ledger
    assert [line for line in findings.ledger if line.missing] == []


async def killed(stack: Stack, *names: str) -> None:
    """SIGKILL services while agents work; the supervisor starts them again."""
    for name in names:
        await stack.kill(name)
