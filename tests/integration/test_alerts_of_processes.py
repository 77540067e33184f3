"""Alerts of services that run as processes of their own reach a real receiver, each once, and so do their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.consumer import Done
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.core.contract import TrainingDispatch, TrainingStatus
from ratchet.core.contract.training import Artifacts, StatusMetadata, TrainingError
from ratchet.core.service.settings import SharedSettings
from tests.integration.test_alerts_reach_people import notifying
from tests.integration.test_canary_deployer import deployer
from tests.support.canary_stage import Stage, stage
from tests.support.canary_traffic import Traffic
from tests.support.canary_world import ROLE as CANARY_ROLE
from tests.support.consuming import consuming
from tests.support.coordinator import ROLE, played, stored
from tests.support.receivers import receiving
from tests.support.running import connected, http_client, prepared_objects, prepared_warehouse, running
from tests.support.servers import Broker, RunningServer
from tests.support.service_process import service_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@asynccontextmanager
async def process(short: str, shared: SharedSettings, folder: Path, **env: str) -> AsyncIterator[RunningServer]:
    """A service of the catalog, ready."""
    with ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, service_process(short, shared, folder, **env))


class Worker:
    """In the place of a trainer: what becomes of each job is decided by the test."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.fails = True
        self._now = now

    async def take(self, batch: Sequence[Received[TrainingDispatch]]) -> list[Done]:
        return [Done([self._status(one.message, "running"), self._end(one.message)]) for one in batch]

    def _end(self, dispatch: TrainingDispatch) -> TrainingStatus:
        if self.fails:
            return self._status(dispatch, "failed", error=TrainingError(code="DATA", message="no row can be read"))
        return self._status(dispatch, "completed", artifacts=Artifacts(final_checkpoint="s3://b/policies/x.json"))

    def _status(self, dispatch: TrainingDispatch, status: str, **more: Any) -> TrainingStatus:
        return TrainingStatus(
            training_job_id=dispatch.training_job_id,
            timestamp=self._now(),
            status=status,
            role=dispatch.request.role,
            attempt=dispatch.attempt,
            metadata=StatusMetadata(worker="w1"),
            **more,
        )


async def test_three_jobs_that_fail_reach_people_and_so_does_the_end(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    prepared_objects(shared_settings)
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        stored(shared_settings, bus, played("a", 1.0)),
        receiving() as receiver,
        notifying(shared_settings, receiver),
        process("coordinator", shared_settings, tmp_path, RATCHET_COORDINATOR_MINIMUM_ROWS="1") as coordinator,
        http_client(base_url=coordinator.url) as api,
    ):
        worker = Worker(bus.now)

        async def ended(number: int) -> str:
            body = {"algorithm": "sft", "base_model": "org/model", "role": ROLE, "idempotency_key": f"{number}"}
            asked = await api.post("/v1/jobs", json=body)
            assert asked.is_success, asked.text
            path = f"/v1/jobs/{asked.json()['training_job_id']}"

            async def state() -> str | None:
                now = (await api.get(path)).json()["state"]
                return now if now in ("failed", "completed") else None

            return await eventually(state) or ""

        async with running(consuming(bus, {TrainingDispatch: worker.take}, "workers")):
            assert [await ended(number) for number in range(3)] == ["failed"] * 3
            failing = ("firing", f"training-failed:{ROLE}"), ("firing", f"trainings-failing:{ROLE}")
            await eventually(lambda: receiver.has(*failing))
            worker.fails = False
            assert await ended(3) == "completed"
            over = ("resolved", f"training-failed:{ROLE}"), ("resolved", f"trainings-failing:{ROLE}")
            await eventually(lambda: receiver.has(*over))
        assert sorted(receiver.events) == sorted([*failing, *over])


@pytest.mark.parametrize("ending", ["refused", "rolled_back"])
async def test_a_candidate_that_fails_reaches_people_and_so_does_the_next(
    ending: str, nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    heldout = (0.9, 0.2 if ending == "refused" else 0.9, 0.9)
    key = f"rollout:{CANARY_ROLE}:failed"
    async with stage(nats, s3, tmp_path, heldout) as test, receiving() as receiver:
        async with deployer(test.settings), notifying(test.settings.shared, receiver):
            await test.finish_job(1)
            await test.stage_is(1, "stable")
            await failed(test, ending)
            await eventually(lambda: receiver.has(("firing", key)))
            await test.finish_job(3)
            await test.stage_is(3, "canary")
            await eventually(lambda: receiver.has(("resolved", key)))
        assert receiver.events == [("firing", key), ("resolved", key)]


async def failed(test: Stage, ending: str) -> None:
    """The second policy is refused by its gates, or taken back after traffic."""
    await test.finish_job(2)
    if ending == "rolled_back":
        await test.stage_is(2, "canary")
        await Traffic(test.bus, {1: 1.0, 2: 0.0}).play(150)
    assert (await test.stage_is(2, ending)).reason is not None


async def test_a_trainer_that_is_killed_reaches_people_and_so_does_its_return(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    prepared_objects(shared_settings)
    async with (
        connected(shared_settings),
        receiving() as receiver,
        process("trainer", shared_settings, tmp_path) as trainer,
        notifying(shared_settings, receiver, trainer_worker=f"http://127.0.0.1:{trainer.program.health_port}"),
    ):
        await asyncio.to_thread(trainer.kill)
        await eventually(lambda: receiver.has(("firing", "away:trainer_worker")))
        await asyncio.to_thread(trainer.start)
        await eventually(lambda: receiver.has(("resolved", "away:trainer_worker")))
        assert receiver.events == [("firing", "away:trainer_worker"), ("resolved", "away:trainer_worker")]
