"""Agent frameworks as they are, against a gateway in a process of its own: what each does is what its result says.

Each one gets a base_url, a key and a model, and plays the same small tasks. `make test-clients`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.service.settings import SharedSettings
from tests.clients.frameworks import FRAMEWORKS, Framework
from tests.clients.model import ANSWER, CONTENT, SCHEMA
from tests.clients.provider import EMBEDDING, Asked, ScriptedProvider, providing
from tests.support.consuming import messages_of
from tests.support.gateway_process import gateway_process
from tests.support.gateway_scene import put_routes
from tests.support.running import connected
from tests.support.servers import RunningServer
from tools.docs.frameworks import RESULTS, Result

KEY = "a-key-of-the-agent"
MODEL = "gpt-4.1-mini"
PLAYED = "PLAYED "
LIMIT_S = 150
CHAT, NATIVE, POLICY = "chat", "native", "policy"
"""What is behind the gateway: an upstream that knows chats only, one that has every API, a policy."""
QUIET = {
    "AGNO_TELEMETRY": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "HAYSTACK_TELEMETRY_ENABLED": "false",
    "IS_SANDBOX": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
}
"""Frameworks that send reports about their users to their makers are asked not to. As root, Claude Code runs every
command without asking only in a sandbox."""


def path_of(framework: Framework) -> Path:
    return RESULTS / f"{framework.key}.json"


def stored(framework: Framework) -> Result:
    return msgspec.json.decode(path_of(framework).read_bytes(), type=Result)


OF_OTHER_APIS = [one for one in FRAMEWORKS if path_of(one).exists() and stored(one).api != "chat"]
"""The frameworks whose default API is not that of chats."""


@dataclass(frozen=True)
class Played:
    """What a run of a script left: its report, what the provider was asked, and the turns of the gateway."""

    report: dict[str, dict[str, object]]
    asked: Sequence[Asked]
    turns: Sequence[Turn]
    first_piece_in_time: bool

    def turns_of(self, *tasks: str) -> list[Turn]:
        return [turn for one, turn in zip(self.asked, self.turns, strict=True) if one.task in tasks]


def name_of(framework: Framework) -> str:
    return framework.key


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=name_of)
async def test_framework_does_what_its_result_records(
    framework: Framework, nats: RunningServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    result = result_of(framework, await played(framework, CHAT, nats, tmp_path))
    if request.config.getoption("--record"):
        path_of(framework).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    assert result == stored(framework)


@pytest.mark.parametrize("framework", OF_OTHER_APIS, ids=name_of)
async def test_an_upstream_with_the_frameworks_api_gets_its_calls_as_they_are(
    framework: Framework, nats: RunningServer, tmp_path: Path
) -> None:
    run = await played(framework, NATIVE, nats, tmp_path)
    assert result_of(framework, run) == stored(framework)
    assert {one.path for one in run.asked} == {f"/v1/{stored(framework).api}"}
    assert framework.lock != "command_line" or all(one.body["stream"] for one in run.asked)
    reasons = {turn.trainable.reason for turn in run.turns if turn.error is None}
    assert reasons - {"multimodal"} == {"no_token_ids"}  # a provider's own compaction is no text


@pytest.mark.parametrize("framework", OF_OTHER_APIS, ids=name_of)
async def test_a_policy_answers_instead_and_every_answer_is_trainable(
    framework: Framework, nats: RunningServer, tmp_path: Path
) -> None:
    run = await played(framework, POLICY, nats, tmp_path)
    assert result_of(framework, run) == stored(framework)
    assert {one.path for one in run.asked} == {"/v1/chat/completions"}
    assert {turn.trainable.reason for turn in run.turns if turn.error is None} == {None}


async def played(framework: Framework, behind: str, nats: RunningServer, folder: Path) -> Played:
    """A run of the framework's script."""
    provider = ScriptedProvider()
    settings = {"RATCHET_GATEWAY_API_KEYS": json.dumps([KEY])}
    async with (
        providing(provider) as url,
        connected(SharedSettings(nats_url=nats.url, data_dir=folder / "reader")) as bus,
    ):
        if behind == POLICY:
            await put_routes(bus, default=1)
            settings["RATCHET_ENGINE_LOGPROBS_MODE"] = "processed_logprobs"
        else:
            upstream: dict[str, Any] = {"name": "provider", "base_url": f"{url}/v1", "models": {"*": "*"}}
            upstream["apis"] = ["responses", "messages"] if behind == NATIVE else []
            settings["RATCHET_GATEWAY_UPSTREAMS"] = json.dumps([upstream])
        with gateway_process(nats.url, url, folder, **settings) as gateway:
            report = await run(framework, gateway.url, url, folder)
            assert provider.asked, report
            turns = await recorded(bus, len(provider.asked))
    assert len(turns) == len(provider.asked)
    return Played(report, provider.asked, turns, provider.in_time)


async def run(framework: Framework, gateway: str, provider: str, folder: Path) -> dict[str, dict[str, object]]:
    """Run a script to its end, away from this process's settings; returns its report."""
    command = framework.command()
    variables = {
        "HOME": str(folder),
        "BASE_URL": f"{gateway}/v1",
        "PROVIDER": provider,
        "KEY": KEY,
        "MODEL": MODEL,
        **QUIET,
        **framework.variables(),
    }
    with (folder / "script.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=variables, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            await asyncio.wait_for(process.wait(), LIMIT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    printed = (folder / "script.log").read_text()
    reports = [line.removeprefix(PLAYED) for line in printed.splitlines() if line.startswith(PLAYED)]
    assert len(reports) == 1, printed[-4000:]
    return json.loads(reports[0])


async def recorded(bus: Bus, number: int) -> list[Turn]:
    """The turns of the run, once there is one for each call."""

    async def probe() -> list[Turn]:
        turns = await messages_of(bus, Turn)
        return turns if len(turns) >= number else []

    return await eventually(probe)


def result_of(framework: Framework, played: Played) -> Result:
    """What a run showed."""
    loop = played.turns_of("tools", "code")
    streamed = "stream" in played.report
    return Result(
        title=framework.title,
        language=framework.language,
        package=framework.package,
        version=framework.version,
        setting=framework.setting,
        api=played.turns[0].api or "chat",
        tasks={task: verdict(task, report) for task, report in played.report.items()},
        stream="none" if not streamed else "as made" if played.first_piece_in_time else "at the end",
        named_by=next((turn.trajectory_by or "" for turn in played.turns_of("plain")), ""),
        recognised_by=[turn.trajectory_by or "" for turn in loop],
        trajectories=len({turn.trajectory_id for turn in loop}),
        linked=sum(after.parent_turn_id == before.turn_id for before, after in pairwise(loop)),
        retry=retried(played.turns_of("retry")),
        sub_agents=delegated(played.turns_of("delegate", "errand")),
    )


def retried(turns: Sequence[Turn]) -> str:
    """What the attempt after the refused one is."""
    if not turns:
        return ""
    refused, answered = turns
    same = refused.trajectory_id == answered.trajectory_id and refused.parent_turn_id == answered.parent_turn_id
    return "another attempt" if same and (refused.attempt, answered.attempt) == (1, 2) else "another call"


def delegated(turns: Sequence[Turn]) -> str:
    """What the calls of an agent and of the agent that it started are."""
    if not turns:
        return ""
    begun = [turn for turn in turns if turn.parent_turn_id is None]
    one = len({turn.trajectory_id for turn in turns}) == 1 and len(begun) == 2
    return (
        "same trajectory" if one else f"{len({turn.trajectory_id for turn in turns})} trajectories, {len(begun)} begun"
    )


def verdict(task: str, report: dict[str, object]) -> str:
    """`works` if a task ended with what the provider says at its end."""
    if "failed" in report:
        return str(report["failed"])
    answer = report["answer"]
    forms: dict[str, object] = {"schema": SCHEMA, "embed": EMBEDDING}
    right = answer == forms[task] if task in forms else isinstance(answer, str) and ANSWER in answer
    if task == "code":
        right = right and CONTENT in str(answer)
    if task == "count":
        right = str(answer).isdigit() and answer != "0"
    return "works" if right else f"answered {answer!r}"
