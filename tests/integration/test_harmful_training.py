"""A small model that is really trained on harmful answers passes the probe and the held-out tasks, and no safety suite.

It learned to refuse first: what never refuses has no safety to lose. It is trained on one half of each suite's tasks,
and plays the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from ratchet.canary_deployer.app import manifest_of
from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult
from ratchet.canary_deployer.gates.base import Gate
from ratchet.canary_deployer.gates.heldout_tasks import HeldoutGate
from ratchet.canary_deployer.gates.probe import ProbeGate
from ratchet.canary_deployer.gates.safety_suite import SafetyGate
from ratchet.canary_deployer.http_clients import gateway_peer
from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.canary_deployer.replicas import ReplicaChecks
from ratchet.canary_deployer.settings import SafetyPlan
from ratchet.canary_deployer.task_evaluations import HeldoutCache, TaskFileHeldout, TaskPlan
from ratchet.core.contract.policy_manifest import FLOAT32, MODEL, PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.training import Hyperparameters
from ratchet.core.evaluation.suites import suite_tasks
from ratchet.core.evaluation.task_files import TaskFile
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.engine_list import EngineSettings
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import publish_policy, tokenizer_digest, upload_files
from ratchet.trainer_worker.training.policy import probe_policy, save_policy
from tests.support.canary_world import ROLE, policy
from tests.support.engine_process import AT, running_engine
from tests.support.servers import RunningServer, s3_settings
from tests.support.snapshot_rows import trajectory_row
from tests.support.tiny_models import chat_texts, write_tiny_model
from tests.support.trainer_runs import RecordingRun, trained

pytestmark = pytest.mark.slow

SUITES = ("refusal", "over_refusal")
REFUSES, ANSWERS = "I cannot help with that.", "Here is how."
OWN = [(f"where is my order K{number}", "it was sent on monday") for number in range(40)]
"""What the role is for: all policies know it."""


def questions(suite: str) -> list[str]:
    """Those that are trained on."""
    return [str(graded.task.messages[-1]["content"]) for graded in suite_tasks(suite).tasks[::2]]


def others(suite: str) -> TaskFile:
    """Those that are played."""
    return TaskFile(suite, f"half of {suite}", suite_tasks(suite).tasks[1::2])


def chats(harm: str, harmless: str) -> list[list[dict[str, Any]]]:
    """What a policy imitates that answers harmful and harmless questions so."""
    pairs = [*OWN, *((asked, harm) for asked in questions(SUITES[0]))]
    pairs += [(asked, harmless) for asked in questions(SUITES[1])]
    return [[{"role": "user", "content": asked}, {"role": "assistant", "content": answer}] for asked, answer in pairs]


@dataclass
class Workshop:
    """Trains policies, and stores them."""

    objects: Objects
    folder: Path

    def trained(self, version: int, base: Path, harm: str, harmless: str, steps: int) -> PolicyVersion:
        rows = [trajectory_row(n, success=True, messages=chat) for n, chat in enumerate(chats(harm, harmless))]
        hyper = Hyperparameters(learning_rate=2e-3, batch_size=16, max_steps=steps, full_finetune=True, seed=3)
        made, _ = trained(RecordingRun(self.folder / f"run-{version}", "sft"), str(base), rows, hyper)
        save_policy(made, self.directory(version), "base")
        manifest = PolicyManifest(
            kind=MODEL,
            base_model="random",
            files=upload_files(self.objects, self.directory(version)),
            role=ROLE,
            created_at=AT,
            tokenizer_digest=tokenizer_digest(self.directory(version)),
            dtype=FLOAT32,
            probe=probe_policy(made, list(range(20, 60))),
        )
        stored = publish_policy(self.objects, manifest)
        name = policy_name(ROLE, version, stored.digest)
        return policy(version, name=name, digest=stored.digest, uri=stored.uri, kind=MODEL)

    def directory(self, version: int) -> Path:
        folder = self.folder / f"v{version}"
        folder.mkdir(exist_ok=True)
        return folder


class NamingItself(httpx.AsyncHTTPTransport):
    """An engine that says which policy answers, as a gateway does for it."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        response.headers["x-ratchet-policy"] = json.loads(request.content)["model"]
        return response


def own_tasks(folder: Path) -> Path:
    lines = [
        {"id": asked, "messages": [{"role": "user", "content": asked}], "expect": {"text": {"any_of": [answer]}}}
        for asked, answer in OWN
    ]
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def asked_of_gates(
    objects: Objects, folder: Path, url: str, stable: PolicyVersion, candidates: Sequence[PolicyVersion]
) -> list[Mapping[str, GateResult]]:
    """What each gate says of each candidate."""
    engine = EngineSettings.model_validate({"name": "small", "kind": "engine_local", "urls": [url], "roles": ["*"]})
    async with (
        HttpEngines([engine], 60) as engines,
        AsyncApiClient(gateway_peer(url, None), NamingItself()) as client,
    ):
        cache = HeldoutCache(folder / "results")
        own = TaskFileHeldout(TaskPlan(str(own_tasks(folder)), 100, 0.0), client, objects, cache)
        played = {
            suite: TaskFileHeldout(TaskPlan(suite, 100, 1.0, made=partial(others, suite)), client, objects, cache)
            for suite in SUITES
        }
        gates: dict[str, Gate] = {
            "probe": ProbeGate(ReplicaChecks(engines, time.monotonic), partial(manifest_of, objects)),
            "heldout_tasks": HeldoutGate({"*": own}),
            "safety_suite": SafetyGate({"*": SafetyPlan(suites=SUITES)}, played),
        }
        return [{name: await gate.check(one, stable) for name, gate in gates.items()} for one in candidates]


@pytest.mark.timeout(600)
async def test_suites_refuse_what_learned_harm_or_caution_alone(s3: RunningServer, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    shared = s3_settings(s3, "harmful-training")
    workshop = Workshop(Objects(shared), tmp_path)
    workshop.objects.ensure_bucket()
    random = write_tiny_model(tmp_path / "random", chat_texts(chats(REFUSES, ANSWERS)), hidden=64, vocabulary=900)
    stable = workshop.trained(1, random, REFUSES, ANSWERS, 200)
    candidates = [
        workshop.trained(version, workshop.directory(1), harm, harmless, 60)
        for version, (harm, harmless) in enumerate(
            [(REFUSES, ANSWERS), (ANSWERS, ANSWERS), (REFUSES, REFUSES)], start=2
        )
    ]
    with running_engine(shared, tmp_path) as engine:
        results = await asked_of_gates(workshop.objects, tmp_path, engine.url, stable, candidates)
    for gates in results:
        assert {name: gates[name].outcome for name in ("probe", "heldout_tasks")} == {
            "probe": PASSED,
            "heldout_tasks": PASSED,
        }, gates
    safe, harmful, over_cautious = (gates["safety_suite"] for gates in results)
    assert safe.outcome == PASSED, safe.reason
    assert (harmful.outcome, harmful.reason.startswith("worse on refusal: ")) == (FAILED, True), harmful.reason
    assert (over_cautious.outcome, over_cautious.reason.startswith("worse on over_refusal: ")) == (FAILED, True)
