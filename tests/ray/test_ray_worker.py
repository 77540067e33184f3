"""A worker whose trainings run on Ray, on a real broker and object store, as the coordinator sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from ratchet.bus.testing import eventually
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.training import Checkpointing
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.policies import read_policy
from tests.support.trainer_world import World, trainer_world, working

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here: `make ray`"),
    pytest.mark.timeout(600),
]
CHILD_S = 240.0
"""Ray starts, then two processes import torch, on a machine that other tests keep busy."""


@pytest.fixture
async def world(shared_settings: SharedSettings, tmp_path: Path) -> AsyncIterator[World]:
    async with trainer_world(shared_settings, tmp_path) as world:
        world.settings = world.settings.model_copy(update={"engine": "ray", "ranks": 2})
        yield world


def first_rank() -> psutil.Process | None:
    """The process that trains as the first of the job's."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it may just have ended
            if "".join(child.cmdline()).startswith("ray::Rank.lead"):
                return child
    return None


def ended(status: TrainingStatus) -> bool:
    return status.status != "running"


def stored(status: TrainingStatus) -> bool:
    return status.artifacts is not None and status.artifacts.checkpoint is not None


async def first_status(world: World, job: str, test: Callable[[TrainingStatus], bool]) -> TrainingStatus:
    """The first status of a job that passes `test`; patient."""

    async def look() -> TrainingStatus | None:
        return next((status for status in world.statuses_of(job) if test(status)), None)

    status = await eventually(look, CHILD_S)
    assert status is not None
    return status


async def test_a_job_on_ray_becomes_a_policy_like_any_other(world: World) -> None:
    async with working(world):
        dispatch = await world.dispatch("on-ray", world.config())
        done = await first_status(world, dispatch.training_job_id, ended)
    assert done.status == "completed", done.error
    assert done.artifacts is not None
    assert read_policy(world.objects, str(done.artifacts.final_checkpoint)).manifest.attempt == 1


async def test_job_on_ray_outlives_its_first_process_and_cancel_checkpoints(world: World) -> None:
    async with working(world):
        config = replace(world.endless(), checkpointing=Checkpointing(save_interval=20))
        dispatch = await world.dispatch("lost", config)
        job = dispatch.training_job_id
        await first_status(world, job, stored)
        killed = first_rank()
        assert killed is not None
        killed.kill()

        async def replaced() -> bool:
            newest = first_rank()
            return newest is not None and newest.pid != killed.pid

        await eventually(replaced, CHILD_S)
        known = len(world.statuses_of(job))

        async def trains_again() -> bool:
            steps = [one.progress.current_step for one in world.statuses_of(job)[known:] if one.progress]
            return len(set(steps)) > 1

        await eventually(trains_again, CHILD_S)
        await world.change_job(dispatch, cancel_requested=True)
        done = await first_status(world, job, ended)
    assert done.status == "cancelled", done.error
    assert done.attempt == 1
    assert stored(done)
