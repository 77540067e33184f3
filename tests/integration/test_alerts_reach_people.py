"""Each alert that operators ask for is sent to a real receiver, and its end, by a real broker."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeClock, eventually
from ratchet.canary_deployer.domain.rollout import FAILED, PASSED
from ratchet.client.losses import Losses
from ratchet.client.recording import Stats
from ratchet.core.contract import Alert
from ratchet.core.contract.state import POLICIES, Job, PolicyVersion
from ratchet.core.contract.training import TrainingError
from ratchet.core.rules.recent_share import RecentShare
from ratchet.core.service.asgi import Request, Response
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.ports import free_ports
from ratchet.notifier.app import Timing, build
from ratchet.notifier.settings import Settings
from ratchet.rl_coordinator.jobs.domain.failures import failure_alerts, recovery_alerts
from tests.support.canary_world import ROLE, CanaryWorld, policy
from tests.support.receivers import Receiver, receiving
from tests.support.running import connected, listening, running_app
from tests.support.servers import Broker, RunningServer, variables
from tests.support.training import after, job

HASTE = 100.0
"""Seconds of the watch's clock in one: five minutes are three seconds."""
FAST = Timing(look_s=0.2, spacing=timedelta(), monotonic=lambda: time.monotonic() * HASTE)


@dataclass
class Service:
    """What a service says at /readyz."""

    reasons: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, str] = field(default_factory=dict[str, str])
    url: str = ""

    async def ready(self, _: Request) -> Response:
        state = {"ready": not self.reasons, "reasons": self.reasons, "notes": self.notes}
        return Response(503 if self.reasons else 200, json.dumps(state).encode())


@asynccontextmanager
async def serving() -> AsyncIterator[Service]:
    service = Service()
    async with listening(lambda _method, _path: service.ready) as url:
        service.url = url
        yield service


@pytest.fixture
def shared(nats: Broker, tmp_path: Path) -> SharedSettings:
    return SharedSettings(nats_url=nats.url, data_dir=tmp_path / "data")


@asynccontextmanager
async def notifying(shared: SharedSettings, receiver: Receiver, **health_urls: str) -> AsyncIterator[None]:
    settings = Settings.model_validate(
        {"shared": shared, "receivers": [receiver.settings()], "health_urls": health_urls}
    )
    async with running_app(build(settings, FAST)):
        yield


async def publish(bus: Bus, alerts: Sequence[Alert]) -> None:
    """Alerts that domain code made, as young as of today."""
    for alert in alerts:
        await bus.publish(replace(alert, at=bus.now()))


def ended(number: int, state: str) -> Job:
    error = TrainingError(code="OOM", message="out of memory") if state == "failed" else None
    return job(training_job_id=f"job-{number}", state=state, attempt=3, finished_at=after(number), error=error)


async def test_three_failed_jobs_reach_a_receiver_and_a_completed_one_ends_it(shared: SharedSettings) -> None:
    jobs = [ended(number, "failed") for number in range(3)]
    async with connected(shared) as bus, receiving() as receiver, notifying(shared, receiver):
        for place, failed in enumerate(jobs):
            await publish(bus, failure_alerts(failed, jobs[: place + 1]))
        failing = ("firing", "trainings-failing:support")
        await eventually(lambda: receiver.has(("firing", "training-failed:support"), failing))
        await publish(bus, recovery_alerts(ended(3, "completed"), jobs))
        over = ("resolved", "trainings-failing:support")
        await eventually(lambda: receiver.has(("resolved", "training-failed:support"), over))
        assert len(receiver.events) == 4


@pytest.mark.parametrize("ending", ["refused", "rolled_back"])
async def test_a_failed_candidate_reaches_a_receiver_and_the_next_ends_it(ending: str, shared: SharedSettings) -> None:
    world = await CanaryWorld().with_policies(1, 2)
    if ending == "refused":
        world.gates["heldout_tasks"].outcome = FAILED
        await world.until("refused")
        world.gates["heldout_tasks"].outcome = PASSED
    else:
        await world.until("running")
        assert await world.play_to_the_end(stable=0.9, canary=0.2) == "rolled_back"
    (failed,) = (alert for alert in world.bus.published(Alert) if not alert.cleared)
    key = f"rollout:{ROLE}:failed"
    async with connected(shared) as bus, receiving() as receiver, notifying(shared, receiver):
        await publish(bus, [failed])
        await eventually(lambda: receiver.has(("firing", key)))
        assert receiver.notifications[0].alerts[0].summary == failed.summary
        await Bucket(world.bus, POLICIES, PolicyVersion).put(f"{ROLE}.3", policy(3))
        await world.until("running")
        await publish(bus, [alert for alert in world.bus.published(Alert) if alert.cleared][-1:])
        await eventually(lambda: receiver.has(("resolved", key)))
        assert receiver.events == [("firing", key), ("resolved", key)]


@pytest.mark.parametrize(
    ("check", "key"),
    [
        ("warehouse", "clickhouse"),
        ("objects", "object-store"),
        ("disk", "disk"),
        ("engines", "engines"),
        ("spool", "spool"),
        ("collection", "collection-errors"),
        ("errors", "gateway-errors"),
        ("trajectories", "no-trajectories"),
        ("feedback", "no-feedback"),
    ],
)
async def test_a_failing_check_reaches_a_receiver_and_its_end(check: str, key: str, shared: SharedSettings) -> None:
    async with (
        connected(shared),
        receiving() as receiver,
        serving() as service,
        notifying(shared, receiver, gateway=service.url),
    ):
        service.notes[check] = "<b>it</b> is wrong"
        await eventually(lambda: receiver.has(("firing", key)))
        service.notes.clear()
        await eventually(lambda: receiver.has(("resolved", key)))
        assert receiver.events == [("firing", key), ("resolved", key)]


async def test_a_trainer_that_is_away_reaches_a_receiver_and_its_end(shared: SharedSettings) -> None:
    async with connected(shared), receiving() as receiver, serving() as service:
        port = int(service.url.rpartition(":")[2])
        (closed,) = free_ports(1, [port])
        async with notifying(shared, receiver, trainer_worker=f"http://127.0.0.1:{closed}"):
            await eventually(lambda: receiver.has(("firing", "away:trainer_worker")))
        async with notifying(shared, receiver, trainer_worker=service.url):
            await eventually(lambda: receiver.has(("resolved", "away:trainer_worker")))
        assert receiver.events == [("firing", "away:trainer_worker"), ("resolved", "away:trainer_worker")]


async def test_a_client_that_loses_messages_reaches_a_receiver_and_its_end(shared: SharedSettings) -> None:
    counts = Stats(published=0, pending=0, overflowed=0, damaged=0, invalid=0, redacted=0, redactions={})
    clock = FakeClock()
    async with connected(shared) as bus, receiving() as receiver, notifying(shared, receiver):
        share = RecentShare(monotonic=clock.monotonic)
        losses = Losses("client:support", lambda: counts, lambda: bus, bus.now, share)
        for published, overflowed in ((0, 0), (100, 50)):
            counts = dataclasses.replace(counts, published=published, overflowed=overflowed)
            await losses.look()
            clock.advance(10)
        await eventually(lambda: receiver.has(("firing", "collection-errors:client:support")))
        clock.advance(700)
        counts = dataclasses.replace(counts, published=1000)
        await losses.look()
        await eventually(lambda: receiver.has(("resolved", "collection-errors:client:support")))
        assert [state for state, _ in receiver.events] == ["firing", "resolved"]


@pytest.mark.own_broker
async def test_a_broker_that_is_away_reaches_a_receiver_and_its_end(
    nats: RunningServer, shared: SharedSettings
) -> None:
    async with receiving() as receiver:
        async with connected(shared) as bus, notifying(shared, receiver):
            await publish(bus, failure_alerts(ended(0, "failed"), []))
            await eventually(lambda: receiver.has(("firing", "training-failed:support")))
            await asyncio.to_thread(nats.kill)
            await eventually(lambda: receiver.has(("firing", "broker")))
        async with notifying(shared, receiver):  # another process of the same notifier, while the broker is away
            await asyncio.to_thread(nats.start)
            await eventually(lambda: receiver.has(("resolved", "broker")))
        assert sorted(receiver.events) == [
            ("firing", "broker"),
            ("firing", "training-failed:support"),
            ("resolved", "broker"),
        ]


@pytest.mark.slow
async def test_a_notifier_that_is_killed_sends_each_alert_once(shared: SharedSettings, tmp_path: Path) -> None:
    async with connected(shared) as bus, receiving() as receiver:
        environment = {
            **os.environ,
            **variables(shared),
            "RATCHET_NOTIFIER_RECEIVERS": json.dumps([receiver.settings()]),
        }
        for number in range(3):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ratchet.notifier"), env=environment, stderr=asyncio.subprocess.DEVNULL
            )
            try:
                alert = failure_alerts(ended(number, "failed"), [])[0]
                await publish(bus, [replace(alert, key=f"k{number}")])
                await eventually(lambda number=number: receiver.has(("firing", f"k{number}")))
            finally:
                process.send_signal(signal.SIGKILL)  # at the very moment at which it was taken, or before
                await process.wait()
        events = receiver.events
    assert [event for event in events if event[0] == "resolved"] == []
    assert len(events) == len({*events}) == 3
