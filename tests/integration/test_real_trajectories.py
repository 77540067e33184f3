"""Logged conversations of another system become rows, rewards, a snapshot, a training and an adapter in S3."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.preferences.clickhouse_stored import StoredPreferences
from ratchet.core.preferences.clickhouse_tries import Tries
from ratchet.core.preferences.deriving import Deriver
from ratchet.core.preferences.rules.reward_margin import RewardMargin
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import read_policy
from ratchet.core.stores.warehouse import Warehouse
from ratchet.extras.importers.base import ImportOptions
from ratchet.extras.importers.importing import ImportReport, import_file
from ratchet.extras.importers.reading import read_records
from ratchet.extras.importers.tau_bench import TAU_BENCH
from ratchet.reward_computer.app import build as build_reward_computer
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.rl_coordinator.app import build as build_coordinator
from ratchet.rl_coordinator.settings import Settings as CoordinatorSettings
from ratchet.trainer_worker.app import build as build_trainer
from ratchet.trainer_worker.settings import Settings as TrainerSettings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.coordinator import QUICK
from tests.support.messages import AT
from tests.support.real_data import AIRLINE, needs_real_data
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.tiny_models import chat_texts, publish_tiny_model, write_tiny_model
from tests.support.trainer_world import FAST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROLE = "airline"


@dataclass
class Line:
    """Everything from import to training, running in this process but for the training itself."""

    bus: Bus
    warehouse: Warehouse
    objects: Objects
    api: httpx.AsyncClient

    async def imported(self, file: Path) -> ImportReport:
        return await import_file(TAU_BENCH, self.bus, file, ImportOptions(role=ROLE, model="gpt-4o"))

    async def count(self, sql: str) -> int:
        return int((await self.warehouse.rows(sql))[0]["n"])

    async def rewarded(self, number: int) -> None:
        async def probe() -> bool:
            return await self.count("SELECT uniqExact(trajectory_id) AS n FROM rewards") >= number

        await eventually(probe, deadline_s=60)

    async def trained(self, **body: Any) -> dict[str, Any]:
        answer = await self.api.post("/v1/jobs", json={"role": ROLE, **body})
        assert answer.status_code == 201, answer.text
        job_id = answer.json()["training_job_id"]

        async def ended() -> dict[str, Any] | None:
            job = (await self.api.get(f"/v1/jobs/{job_id}")).json()
            return job if job["state"] in {"completed", "failed"} else None

        return await eventually(ended, deadline_s=200)

    async def losses(self, job_id: str) -> list[float]:
        """The stored losses, in the order of steps; empty until the completion is stored too."""
        rows = await self.warehouse.rows(
            "SELECT loss, status FROM training_statuses FINAL WHERE training_job_id = {id:String} AND loss IS NOT NULL"
            " ORDER BY step, at",
            {"id": job_id},
        )
        return [row["loss"] for row in rows] if any(row["status"] == "completed" for row in rows) else []


@asynccontextmanager
async def line(shared: SharedSettings) -> AsyncIterator[Line]:
    objects = prepared_objects(shared)
    async with AsyncExitStack() as stack:
        warehouse = await stack.enter_async_context(prepared_warehouse(shared))
        bus = await stack.enter_async_context(connected(shared))
        await stack.enter_async_context(running_app(build_collector(CollectorSettings(shared=shared, linger_s=0.02))))
        await stack.enter_async_context(running_app(build_reward_computer(RewardSettings(shared=shared))))
        settings = CoordinatorSettings(shared=shared, port=0)
        app = await stack.enter_async_context(running_app(build_coordinator(settings, QUICK)))
        await stack.enter_async_context(running_app(build_trainer(TrainerSettings(shared=shared), FAST)))
        server = next(part for part in app.components if isinstance(part, HttpServer))
        api = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30)
        yield Line(bus, warehouse, objects, await stack.enter_async_context(api))


def hand_made(folder: Path) -> Path:
    """Ten records in tau-bench's format, six of them successes; one more is malformed."""
    records: list[Any] = []
    for number in range(10):
        call = {"name": "lookup", "arguments": json.dumps({"order_id": f"#{number}"})}
        records.append(
            {
                "task_id": number // 2,
                "trial": number % 2,
                "reward": 1.0 if number % 5 < 3 else 0.0,
                "info": {},
                "traj": [
                    {"role": "system", "content": "# Airline Agent Policy\nHelp."},
                    {"role": "user", "content": f"where is booking #{number}?"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
                    },
                    {"role": "tool", "tool_call_id": f"c{number}", "name": "lookup", "content": "on time"},
                    {"role": "assistant", "content": f"Booking {number} is on time."},
                    {"role": "user", "content": "###STOP###"},
                ],
            }
        )
    records.insert(4, {"task_id": 9, "reward": "high", "traj": []})
    file = folder / "results.json"
    file.write_text(json.dumps(records))
    return file


async def learn(
    line: Line, records: list[Any], folder: Path, *, algorithm: str = "sft", **hyperparameters: Any
) -> dict[str, Any]:
    """Store a tiny base whose tokenizer was trained on the records; `sft` learns from the successes alone."""
    chats = [record["traj"] for record in records if isinstance(record, dict) and record.get("traj")]
    directory = await asyncio.to_thread(write_tiny_model, folder / "base", list(chat_texts(chats)), vocabulary=600)
    base = await asyncio.to_thread(publish_tiny_model, line.objects, directory, ROLE, AT)
    return await line.trained(
        algorithm=algorithm,
        base_model=base.uri,
        dataset={"sample_size": 1000} | ({"filter": {"min_reward": 0.3}} if algorithm == "sft" else {}),
        hyperparameters={"learning_rate": 0.01, "batch_size": 4, "seed": 1} | hyperparameters,
    )


async def test_logged_successes_train_an_adapter_whose_loss_falls(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    file = hand_made(tmp_path)
    async with line(shared_settings) as here:
        report = await here.imported(file)
        assert (report.published, [one.index for one in report.malformed]) == (10, [4])
        await here.rewarded(10)
        job = await learn(here, read_records(file), tmp_path, max_steps=30, max_length=256)
        await check_learned(here, job, successes=6, kind="adapter")


@needs_real_data
async def test_real_trajectories_train_a_model_whose_loss_falls_and_import_twice_changes_nothing(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    async with line(shared_settings) as here:
        report = await here.imported(AIRLINE)
        assert (report.published, report.malformed) == (120, [])
        await here.rewarded(120)
        assert await here.count("SELECT count() AS n FROM latest_rewards WHERE components['task_completion'] = 1") == 36
        await here.imported(AIRLINE)
        assert await here.count("SELECT count() AS n FROM trajectories") == 120
        job = await learn(
            here, read_records(AIRLINE), tmp_path, batch_size=2, max_steps=12, max_length=4000, full_finetune=True
        )
        await check_learned(here, job, successes=36, kind="model")


@needs_real_data
async def test_real_pairs_train_a_model_that_prefers_the_chosen_answers(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    """That it prefers the pairs it learnt from is all that is asserted: 46 pairs cannot show more."""
    async with line(shared_settings) as here:
        await here.imported(AIRLINE)
        await here.rewarded(120)
        deriver = Deriver(Tries(here.warehouse), StoredPreferences(here.warehouse), here.bus, RewardMargin())
        assert (await deriver.derive([ROLE], lambda _done, _total: None)).done.published == 46

        async def stored() -> bool:
            return await here.count("SELECT count() AS n FROM preferences FINAL") == 46

        await eventually(stored, deadline_s=60)
        # The instructions alone are 2,100 tokens; the answers are learnt from as far as they fit.
        hyperparameters = {"batch_size": 2, "max_steps": 6, "max_length": 3000, "full_finetune": True}
        job = await learn(here, read_records(AIRLINE), tmp_path, algorithm="dpo", **hyperparameters)
        assert (job["state"], job["trajectories"]) == ("completed", 46), job.get("error")
        artifacts = job["artifacts"]
        policy = await asyncio.to_thread(read_policy, here.objects, artifacts["final_checkpoint"], artifacts["digest"])
        assert (policy.manifest.algorithm, policy.manifest.metrics["pairs"]) == ("dpo", 46)
        curves = await asyncio.to_thread(here.objects.get, artifacts["training_curves"])
        steps = [json.loads(text) for text in curves.decode().splitlines()]
        assert steps[0]["margin"] == pytest.approx(0.0, abs=1e-2)
        assert statistics.fmean(step["margin"] for step in steps[-3:]) > 0.1


async def check_learned(here: Line, job: dict[str, Any], successes: int, kind: str) -> None:
    """The job completed on exactly the successes, its loss fell, and what it made is in S3 under its digest."""
    assert job["state"] == "completed", job.get("error")
    assert job["trajectories"] == successes
    artifacts = job["artifacts"]
    policy = await asyncio.to_thread(read_policy, here.objects, artifacts["final_checkpoint"], artifacts["digest"])
    assert policy.manifest.kind == kind
    assert policy.manifest.training_samples == successes

    assert await eventually(lambda: here.losses(job["training_job_id"]))
    curves = await asyncio.to_thread(here.objects.get, artifacts["training_curves"])
    losses = [json.loads(line)["loss"] for line in curves.decode().splitlines()]
    assert losses[-1] < 0.9 * losses[0], losses
