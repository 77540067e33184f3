"""The dashboard and the compose file's health checks against real processes: services, and a real Prometheus."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from deploy.grafana.loop_overview import ROWS
from ratchet.embedded.catalog import SERVICES
from ratchet.embedded.settings import StackSettings
from ratchet.embedded.stack import Stack
from ratchet.kernel.bus import Bus
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.settings import KernelSettings
from tests.support.compose import REPOSITORY, services
from tests.support.messages import trajectory
from tests.support.prometheus import BINARY, Prometheus, running_prometheus
from tests.support.waiting import eventually
from tests.unit.deploy.test_dashboard import names

QUERIES = [(panel.title, query) for row in ROWS.values() for panel in row for query in panel.queries.values()]
ALERTS = yaml.safe_load((REPOSITORY / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
WITH_PROMETHEUS = pytest.mark.skipif(BINARY is None, reason="no Prometheus here; `make prometheus` gets Debian's")
LIGHT = ("trajectory_collector", "reward_computer", "rl_coordinator", "gateway", "canary_deployer")
"""Torch takes long to import; trainer and engine show their metrics in the eventful process."""


def concrete(query: str) -> str:
    """The query with values for Grafana's variables, for a scrape every second."""
    return query.replace("$__rate_interval", "10s").replace("$__range", "1m")


@pytest.fixture
def eventful() -> Iterator[int]:
    """Port of a process in which everything happens that can be counted."""
    command = [sys.executable, "-m", "tests.support.eventful_exporter"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def answered(prometheus: Prometheus, query: str) -> None:
    """Wait until a query has a finite answer: a rate needs two scrapes."""

    async def finite() -> bool:
        found = await prometheus.query(query)
        return any(sample["value"][1] != "NaN" for sample in found)

    try:
        await eventually(finite, 60)
    except AssertionError as error:
        raise AssertionError(f"no data for {query}") from error


@WITH_PROMETHEUS
async def test_every_panel_shows_data_once_its_events_happen(eventful: int, tmp_path: Path):
    with running_prometheus(tmp_path / "prometheus", {"*": eventful}) as prometheus:
        for _, query in QUERIES:
            await answered(prometheus, concrete(query))


@WITH_PROMETHEUS
async def test_every_alert_is_loaded_and_evaluated(eventful: int, tmp_path: Path):
    with running_prometheus(tmp_path / "prometheus", {"*": eventful}) as prometheus:

        async def evaluated() -> bool:
            return all(rule["health"] == "ok" for rule in await prometheus.rules())

        await eventually(evaluated, 60)
        assert [rule["name"] for rule in await prometheus.rules()] == [rule["alert"] for rule in ALERTS]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    settings = StackSettings(
        directory=tmp_path / "stack", free_ports=True, only=LIGHT, env={"RATCHET_LOG_LEVEL": "warning"}
    )
    async with Stack(settings) as started:
        yield started


def health_ports(stack: Stack) -> dict[str, int]:
    found = {name: stack.members[name].program.health_port for name in LIGHT}
    return {name: port for name, port in found.items() if port}


def health_paths() -> dict[str, str]:
    """The path that each service's health check asks in docker-compose.yml."""
    found: dict[str, str] = {}
    for spec in SERVICES:
        match = re.search(r"http://127\.0\.0\.1:9100(/\w+)", " ".join(services()[spec.name]["healthcheck"]["test"]))
        assert match
        found[spec.name] = match[1]
    return found


async def published(stack: Stack, count: int) -> None:
    """Finished trajectories, as a client sends them."""
    env = {name.removeprefix("RATCHET_").lower(): value for name, value in stack.env.items()}
    kernel = KernelSettings.model_validate({name: env[name] for name in KernelSettings.model_fields if name in env})
    bus = await Bus.connect(kernel, name="test", contracts=Contracts.load())
    try:
        await bus.publish_all([trajectory(f"seen-{number}") for number in range(count)])
    finally:
        await bus.close()


async def test_services_answer_the_paths_of_the_compose_file_and_export_what_panels_read(stack: Stack, tmp_path: Path):
    ports = health_ports(stack)
    await published(stack, 3)
    exported = ""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for name in LIGHT:
            health = await client.get(f"http://127.0.0.1:{ports[name]}{health_paths()[name]}")
            assert health.status_code == 200, (name, health.text)
            exported += (await client.get(f"http://127.0.0.1:{ports[name]}/metrics")).text
        ping = await client.get(f"{stack.env['RATCHET_CLICKHOUSE_URL']}/ping")
        monitor = stack.members["nats"].program.ready_url
        assert ping.status_code == 200
        assert "/healthz?js-enabled-only=true" in monitor
        assert (await client.get(monitor)).status_code == 200
    families = set(re.findall(r"^# TYPE (\w+)", exported, re.MULTILINE))
    absent = {name for _, query in QUERIES for name in names(query)} - {"up"}
    missing = {name for name in absent if name not in families and name.rsplit("_", 1)[0] not in families}
    assert all(name.startswith(("agent_rl_training_", "ratchet_trainer_", "ratchet_engine_")) for name in missing)
    if BINARY is not None:
        await _scraped(stack, ports, tmp_path)


async def _scraped(stack: Stack, ports: dict[str, int], tmp_path: Path) -> None:
    with running_prometheus(tmp_path / "prometheus", {**ports, "*": 1}) as prometheus:
        async with asyncio.timeout(120):
            await answered(prometheus, "sum(agent_rl_trajectories_collected_total) >= 3")
            for name in LIGHT:
                await answered(prometheus, f'up{{service="{name}"}} == 1')
            await answered(prometheus, 'ALERTS{alertname="ServiceUnreachable", service="trainer_worker"}')
            await answered(prometheus, "sum(agent_rl_trajectory_reward_count) >= 3")
            await answered(prometheus, "max(ratchet_ledger_missing) == 0")
