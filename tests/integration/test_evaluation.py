"""Task files on the real servers: the held-out gate plays them, and `ratchet eval` compares two policies by them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build
from ratchet.canary_deployer.settings import SafetyPlan
from ratchet.core.contract import Start, Turn
from ratchet.core.rules.arms import policy_name
from ratchet.gateway.app import build as build_gateway
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.local.local_stack.ports import free_ports
from tests.support.canary_stage import Stage, stage
from tests.support.canary_traffic import finished_job
from tests.support.canary_world import ROLE
from tests.support.command_lines import ratchet
from tests.support.consuming import messages_of
from tests.support.fake_engine import FakeEngine, serving
from tests.support.gateway_alone import InThisProcess
from tests.support.running import http_client, running_app
from tests.support.servers import Broker, RunningServer

pytestmark = pytest.mark.slow

TASKS = 40
RIGHT = {"role": "assistant", "content": "It arrives today."}
WRONG = {"role": "assistant", "content": "I do not know."}


class Evaluated(Stage):
    """A deployer's surroundings, with a gateway before an engine whose answers a test chooses."""

    models: FakeEngine
    tasks: Path

    def name(self, version: int) -> str:
        """The full name of the policy that the job of this number will have made."""
        artifacts = finished_job(self.objects, version).artifacts
        assert artifacts is not None
        return policy_name(ROLE, version, artifacts.digest)

    async def status(self) -> dict[str, Any]:
        async with http_client() as client:
            return (await client.get(f"http://127.0.0.1:{self.settings.port}/v1/rollouts/{ROLE}")).json()

    async def eval(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and errors of `ratchet eval`."""
        here = {
            "RATCHET_GATEWAY_URL": self.settings.gateway_url,
            "RATCHET_DEPLOYER_URL": f"http://127.0.0.1:{self.settings.port}",
        }
        done = await asyncio.to_thread(ratchet, "eval", *words, "--tasks", str(self.tasks), **here)
        return done.returncode, done.stdout, done.stderr


@asynccontextmanager
async def evaluated(nats: Broker, s3: RunningServer, folder: Path, **settings: Any) -> AsyncIterator[Evaluated]:
    port, tasks, models = free_ports(1)[0], folder / "tasks.jsonl", FakeEngine()
    expect = {"contains": {"all_of": ["arrives"]}}
    lines = [
        json.dumps({"id": f"t{n:02}", "messages": [{"role": "user", "content": f"Where is {n}?"}], "expect": expect})
        for n in range(TASKS)
    ]
    tasks.write_text("\n".join(lines))
    changes = {"task_files": {ROLE: str(tasks)}, "gateway_url": f"http://127.0.0.1:{port}", **settings}
    async with stage(nats, s3, folder, **changes) as plain, serving(models) as engine_url:
        test = Evaluated(plain.settings, plain.bus, plain.objects, plain.engine)
        test.models, test.tasks = models, tasks
        own = test.settings.shared.model_copy(update={"data_dir": folder / "gateway"})
        gateway = GatewaySettings(shared=own, port=port, grace_s=0.0, engine_url=engine_url)
        async with running_app(build_gateway(gateway, recorders=InThisProcess())), running_app(build(test.settings)):
            yield test


def heldout(policy: Any) -> dict[str, Any]:
    return policy.gate["heldout_tasks"]


@pytest.mark.timeout(300)
async def test_the_gate_plays_a_task_file_and_the_command_compares_by_it(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    async with evaluated(nats, s3, tmp_path) as test:
        await test.finish_job(1)
        await test.stage_is(1, "stable")

        test.models.messages[test.name(2)] = WRONG
        await test.finish_job(2)
        worse = heldout(await test.stage_is(2, "refused"))
        assert (worse["outcome"], worse["evidence"]["difference"]) == ("failed", -1.0)
        assert (worse["evidence"]["tasks"], worse["evidence"]["tasks_file"]) == (TASKS, str(test.tasks))

        await test.finish_job(3)
        equal = heldout(await test.stage_is(3, "canary"))
        assert (equal["outcome"], equal["evidence"]["difference"]) == ("passed", 0.0)
        assert equal["evidence"]["stable_cached"] is True

        turns = await messages_of(test.bus, Turn)
        assert {turn.policy.arm for turn in turns} == {"pinned"}, "no played task is in a statistic or in training"
        assert len({turn.trajectory_id for turn in turns}) == 3 * TASKS
        assert await messages_of(test.bus, Start) == []

        code, out, _ = await test.eval(
            ROLE, "--against", f"{ROLE}@2", "--no-worse-than", "0.1", "--samples", "1", "--json"
        )
        report = json.loads(out)
        assert (code, report["verdict"]) == (0, "no worse")
        assert [difference["difference"] for difference in report["differences"]] == [1.0, 1.0]
        assert [summary["policy"] for summary in report["summaries"][:2]] == [test.name(1), test.name(2)]

        answers = tmp_path / "answers.jsonl"
        code, out, errors = await test.eval(
            f"{ROLE}@2", "--against", ROLE, "--no-worse-than", "0.1", "-o", str(answers)
        )
        assert (code, errors.count("\n")) == (1, 1)
        assert "worse at 40" in out
        assert "lacks 'arrives'" in out
        assert len(answers.read_text().splitlines()) == 2 * TASKS

        test.models.failing.add(test.name(2))
        code, out, errors = await test.eval(f"{ROLE}@2")
        assert (code, out) == (1, "")
        assert "ratchet: " in errors


@pytest.mark.timeout(300)
async def test_candidate_that_answers_harmful_requests_is_refused_by_a_suite(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    plans = {ROLE: SafetyPlan(suites=("refusal", "prompt_injection"))}
    async with evaluated(nats, s3, tmp_path, task_files={}, safety_suites=plans) as test:
        test.models.messages[test.name(1)] = {"role": "assistant", "content": "I cannot help with that."}
        await test.finish_job(1)
        await test.stage_is(1, "stable")

        await test.finish_job(2)
        gates = (await test.stage_is(2, "refused")).gate
        assert gates["safety_suite"]["outcome"] == "failed"
        assert {name: one["difference"] for name, one in gates["safety_suite"]["evidence"]["suites"].items()} == {
            "refusal": -1.0,
            "prompt_injection": 0.0,
        }
        turns = await messages_of(test.bus, Turn)
        assert {turn.policy.arm for turn in turns} == {"pinned"}, "nothing of a suite is in a statistic or in training"
        assert len({turn.trajectory_id for turn in turns}) == 2 * 2 * 200


@pytest.mark.timeout(300)
async def test_fault_of_the_engine_is_no_verdict_and_the_tasks_are_played_again(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    async with evaluated(nats, s3, tmp_path) as test:
        await test.finish_job(1)
        await test.stage_is(1, "stable")
        test.models.failing.add(test.name(2))
        await test.finish_job(2)

        async def waits() -> dict[str, Any] | None:
            status = await test.status()
            return status if status.get("fault") else None

        status = await eventually(waits)
        assert status["state"] == "gating"
        assert "heldout_tasks" not in [gate["gate"] for gate in status["gates"]]
        test.models.failing.clear()
        assert heldout(await test.stage_is(2, "canary"))["outcome"] == "passed"
