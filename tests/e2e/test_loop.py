"""The loop, closed: all services as processes of their own, a policy promoted, a bad one refused and rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from ratchet.local.demo.claims import Findings, claims, read_findings, seconds_to_roll_back
from ratchet.local.demo.connections import Connections, connect
from ratchet.local.demo.exams import heldout_gate
from ratchet.local.demo.plan import DEMO, EXAMS, FULL, stack_environment, write_held_out
from ratchet.local.demo.progress import Progress
from ratchet.local.demo.scenario import Scenario
from ratchet.local.local_stack.plan import shared_of
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.support.targets import note_target
from tests.support.watched_stack import Watched, watching
from tools.dashboard.boards.deployments import DEPLOYMENTS
from tools.dashboard.boards.events import EVENTS
from tools.dashboard.boards.gateway import GATEWAY
from tools.dashboard.boards.loop import LOOP
from tools.dashboard.boards.models import MODELS
from tools.dashboard.boards.training import TRAINING

PLAN = replace(DEMO, cycle=FULL.cycle, tasks=240, tries=4, rises=None)
"""RLOO on groups of four tries, without a claim about learning: how much one cycle of it learns is a matter of chance,
which docs/learning.md measures."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@dataclass
class Loop:
    """A running stack, its connections, and the scenario that plays on it."""

    stack: Stack
    connections: Connections
    scenario: Scenario
    watched: Watched


@asynccontextmanager
async def loop(directory: Path) -> AsyncIterator[Loop]:
    write_held_out(PLAN, directory)
    settings = StackSettings(directory=directory, free_ports=True, env=stack_environment(PLAN, directory))
    async with Stack(settings) as stack:
        shared = shared_of(stack.env).model_copy(update={"data_dir": directory / "data" / "test"})
        async with connect(stack, shared) as connections:
            scenario = Scenario(PLAN, connections, Progress(listen=print), directory)
            with watching(stack, directory) as watched:
                yield Loop(stack, connections, scenario, watched)


async def test_the_loop_closes_while_services_are_killed(tmp_path: Path, subtests: pytest.Subtests) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}  # of other tests in this process
    async with loop(tmp_path / "state") as here:
        await here.scenario.first_policy()
        await asyncio.gather(here.scenario.improve(), killed(here.stack, "trajectory_collector", "reward_computer"))
        await here.scenario.offer_bad_policy()
        await here.scenario.examine_stable()
        await here.scenario.settle()
        story = here.scenario.story
        with subtests.test("panels"):
            assert await here.watched.unlike(LOOP, TRAINING, MODELS, DEPLOYMENTS, EVENTS, GATEWAY) == []
        findings = await read_findings(here.connections, story, tmp_path / "state" / EXAMS, PLAN.world)
    assert [claim for claim in claims(findings, story, PLAN) if not claim.holds] == []
    assert story.bad_version is not None
    check_policies(findings, bad=story.bad_version)
    check_ledger(findings)
    note_targets(findings)
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child.name() for child in left] == []


def check_policies(findings: Findings, *, bad: int) -> None:
    (good,) = findings.promoted
    stages = {policy.version: policy.stage for policy in findings.policies}
    assert (stages[1], stages[good], stages[bad]) == ("archived", "stable", "rolled_back")
    assert findings.route.stable is not None
    assert (findings.route.stable.version, findings.route.canary) == (good, None)
    assert {1, good} <= set(findings.exams)
    (offered,) = [policy for policy in findings.policies if policy.version == bad]
    run = heldout_gate(offered)
    assert run is not None
    assert run.valid_calls is not None
    assert run.valid_calls > 0.9  # the bad policy decides badly; it does not babble
    refused, overridden, rolled_back = (one for one in findings.verdicts(bad) if one.verdict != "advance")
    assert (refused.verdict, overridden.verdict, rolled_back.verdict) == ("refuse", "start", "roll_back")
    assert (overridden.actor, rolled_back.actor) == ("demo operator", "canary_deployer")
    seconds = seconds_to_roll_back(findings, bad)
    assert seconds is not None
    assert 0 < seconds[0] < PLAN.canary_deadline_s


def note_targets(findings: Findings) -> None:
    """How long jobs waited for the trainer, and the policy that was promoted for its canary."""
    waits = [job.started_at - job.created_at for job in findings.jobs.values() if job.started_at is not None]
    note_target("queue", *(wait.total_seconds() for wait in waits))
    (good,) = findings.promoted
    (policy,) = [policy for policy in findings.policies if policy.version == good]
    begun = findings.decided(good, "start")
    trained = findings.jobs[policy.training_job_id or ""].finished_at
    assert begun is not None
    assert trained is not None
    note_target("deploy", (begun.at - trained).total_seconds())


def check_ledger(findings: Findings) -> None:
    assert [line for line in findings.ledger if line.missing or line.dead] == []
    assert {"RL_TURNS", "RL_TRAJECTORIES", "RL_REWARDS"} <= {line.stream for line in findings.ledger}


async def killed(stack: Stack, *names: str) -> None:
    """SIGKILL services while agents work; the supervisor starts them again."""
    for name in names:
        await stack.kill(name)
