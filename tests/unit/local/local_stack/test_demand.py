"""A job makes trainer and engine start, a policy the engine; nothing does in a stack that has neither."""

from __future__ import annotations

import asyncio

import msgspec

from ratchet.bus.kv import Bucket
from ratchet.bus.tasks import end
from ratchet.bus.testing import FakeBroker, FakeBus, connect, eventually
from ratchet.core.contract.state import JOBS, POLICIES
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.catalog import ENGINE, TRAINER
from ratchet.local.local_stack.demand import needed_members, start_when_needed


async def put(bus: FakeBus, bucket: str, key: str, value: str) -> None:
    await Bucket(bus, bucket, msgspec.Raw).put(key, msgspec.Raw(value.encode()))


async def test_a_stack_without_jobs_and_policies_needs_no_engine() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    assert await needed_members(bus) == set()
    await put(bus, JOBS, "old", '{"state": "completed"}')
    assert await needed_members(bus) == set()


async def test_a_policy_needs_the_engine_and_an_open_job_both() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    await put(bus, POLICIES, "support", '{"role": "support"}')
    assert await needed_members(bus) == {ENGINE}
    await put(bus, JOBS, "new", '{"state": "queued"}')
    assert await needed_members(bus) == {ENGINE, TRAINER}


async def test_a_job_that_cannot_be_read_needs_both() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    await put(bus, JOBS, "odd", '{"state": 5}')
    assert await needed_members(bus) == {ENGINE, TRAINER}


async def test_members_start_when_the_first_job_comes() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    started: list[str] = []
    watching = asyncio.create_task(start_when_needed(bus, started.append))
    await put(bus, JOBS, "old", '{"state": "failed"}')
    await put(bus, JOBS, "new", '{"state": "queued"}')

    async def both() -> bool:
        return {*started} == {TRAINER, ENGINE}

    await eventually(both, deadline_s=30)
    await end(watching)
