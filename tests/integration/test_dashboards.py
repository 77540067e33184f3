"""The dashboards and the compose file's health checks against real processes: services, and a real Prometheus."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.catalog import SERVICES
from ratchet.local.local_stack.plan import shared_of
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.support.compose import REPOSITORY, services
from tests.support.messages import trajectory
from tests.support.prometheus import BINARY, WITH_PROMETHEUS, Prometheus, concrete, running_prometheus
from tests.support.running import http_client
from tests.unit.deploy.test_dashboards import names
from tools.dashboard.boards import BOARDS

pytestmark = pytest.mark.slow

QUERIES = [query for board in BOARDS for row in board.rows.values() for panel in row for query in panel.shows.values()]
ALERTS = yaml.safe_load((REPOSITORY / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
NOT_HERE = (
    *("agent_rl_training_", "ratchet_training_", "ratchet_trainer_", "ratchet_engine_", "ratchet_workflow"),
    *("ratchet_analyst_", "ratchet_console_", "ratchet_notifications", "ratchet_exported_spans"),
)
"""Metrics of services that this stack does not have."""
LIGHT = ("trajectory_collector", "reward_computer", "rl_coordinator", "gateway", "canary_deployer")
"""Torch takes long to import; trainer and engine show their metrics in the eventful process."""


@pytest.fixture
def eventful() -> Iterator[int]:
    """Port of a process in which every counted event happens."""
    command = [sys.executable, "-m", "tests.support.eventful_exporter"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def silent(prometheus: Prometheus, queries: Iterable[str]) -> list[str]:
    """The queries without a finite answer at the deadline: a rate needs two scrapes."""
    left = list(queries)

    async def none_left() -> bool:
        for query in tuple(left):
            if any(sample["value"][1] != "NaN" for sample in await prometheus.query(query)):
                left.remove(query)
        return not left

    with suppress(AssertionError):  # the caller asserts on what is left
        await eventually(none_left)
    return left


@WITH_PROMETHEUS
async def test_every_panel_shows_data_once_its_events_happen(eventful: int, tmp_path: Path) -> None:
    with running_prometheus(tmp_path / "prometheus", {"*": eventful}) as prometheus:
        assert await silent(prometheus, {concrete(query) for query in QUERIES}) == []


@WITH_PROMETHEUS
async def test_every_alert_is_loaded_and_evaluated(eventful: int, tmp_path: Path) -> None:
    with running_prometheus(tmp_path / "prometheus", {"*": eventful}) as prometheus:

        async def evaluated() -> bool:
            return all(rule["health"] == "ok" for rule in await prometheus.rules())

        await eventually(evaluated)
        assert [rule["name"] for rule in await prometheus.rules()] == [rule["alert"] for rule in ALERTS]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    settings = StackSettings(
        directory=tmp_path / "stack", free_ports=True, only=LIGHT, env={"RATCHET_LOG_LEVEL": "warning"}
    )
    async with Stack(settings) as started:
        yield started


def health_ports(stack: Stack) -> dict[str, int]:
    ports = {name: stack.members[name].program.health_port for name in LIGHT}
    return {name: port for name, port in ports.items() if port}


def health_paths() -> dict[str, str]:
    """The path that each service's health check asks in docker-compose.yml."""
    paths: dict[str, str] = {}
    for spec in SERVICES:
        match = re.search(r"http://127\.0\.0\.1:9100(/\w+)", " ".join(services()[spec.name]["healthcheck"]["test"]))
        assert match
        paths[spec.name] = match[1]
    return paths


async def published(stack: Stack, count: int) -> None:
    """Finished trajectories, as a client sends them."""
    bus = await Bus.connect(shared_of(stack.env).bus, name="test", contracts=load_contracts())
    try:
        await bus.publish_all([trajectory(f"seen-{number}") for number in range(count)])
    finally:
        await bus.close()


async def test_services_answer_the_paths_of_compose_and_export_panel_metrics(stack: Stack, tmp_path: Path) -> None:
    ports = health_ports(stack)
    await published(stack, 3)
    exported = ""
    async with http_client(trust_env=False) as client:
        for name in LIGHT:
            health = await client.get(f"http://127.0.0.1:{ports[name]}{health_paths()[name]}")
            assert health.status_code == 200, (name, health.text)
            exported += (await client.get(f"http://127.0.0.1:{ports[name]}/metrics")).text
        ping = await client.get(f"{stack.env['RATCHET_CLICKHOUSE_URL']}/ping")
        monitor = stack.members["nats"].program.ready_url
        assert ping.status_code == 200
        assert "/healthz" in monitor
        assert (await client.get(monitor)).status_code == 200
    families = set(re.findall(r"^# TYPE (\w+)", exported, re.MULTILINE))
    absent = {name for query in QUERIES for name in names(query)} - {"up"}
    missing = {name for name in absent if name not in families and name.rsplit("_", 1)[0] not in families}
    assert all(name.startswith(NOT_HERE) for name in missing)
    if BINARY is not None:
        await _scraped(stack, ports, tmp_path)


async def _scraped(stack: Stack, ports: dict[str, int], tmp_path: Path) -> None:
    with running_prometheus(tmp_path / "prometheus", {**ports, "*": 1}) as prometheus:
        queries = [
            "sum(agent_rl_trajectories_collected_total) >= 3",
            *(f'up{{service="{name}"}} == 1' for name in LIGHT),
            'ALERTS{alertname="ServiceUnreachable", service="trainer_worker"}',
            "sum(agent_rl_trajectory_reward_count) >= 3",
            "max(ratchet_ledger_missing) == 0",
        ]
        assert await silent(prometheus, queries) == []
