"""/metrics: every metric that operators know, with its type, labels and buckets."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from ratchet.bus.testing import eventually
from ratchet.core.service.health import Health, health_app
from ratchet.core.service.http import HttpServer
from tests.support.eventful_exporter import import_all_metrics
from tests.support.running import http_client, running

TIMES = [300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0]
KNOWN: list[tuple[str, str, str, list[str] | list[float]]] = [
    ("trajectory_collector", "agent_rl_trajectories_collected_total", "counter", ["agent_type", "task_domain"]),
    ("trajectory_collector", "agent_rl_trajectory_length", "histogram", [1.0, 3.0, 5.0, 10.0, 20.0, 50.0]),
    ("reward_computer", "agent_rl_trajectory_reward", "histogram", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ("trainer_worker", "agent_rl_training_jobs_total", "counter", ["status"]),
    ("trainer_worker", "agent_rl_training_duration_seconds", "histogram", TIMES),
    ("trainer_worker", "agent_rl_training_samples", "histogram", [1000.0, 5000.0, 10000.0, 50000.0, 100000.0]),
    ("canary_deployer", "agent_rl_model_reward_mean", "gauge", ["model_version"]),
    ("canary_deployer", "agent_rl_model_benchmark_score", "gauge", ["model_version", "task_type"]),
    ("canary_deployer", "agent_rl_model_deployments_total", "counter", ["status"]),
    ("canary_deployer", "agent_rl_model_traffic_percentage", "gauge", ["model_version"]),
    ("canary_deployer", "agent_rl_model_error_rate", "gauge", ["model_version"]),
    ("canary_deployer", "agent_rl_model_errors_total", "counter", ["model_version"]),
]


async def exported() -> str:
    """The answer of /metrics in a process that imported the metrics of every service."""
    import_all_metrics()
    server = HttpServer(health_app(Health("test", starting=None)), "127.0.0.1", 0)
    async with running(server), http_client(trust_env=False) as client:

        async def port() -> int:
            return server.port

        answer = await client.get(f"http://127.0.0.1:{await eventually(port)}/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.text


@pytest.mark.parametrize(("service", "name", "kind", "shape"), KNOWN, ids=[row[1] for row in KNOWN])
async def test_metric_is_exported_as_operators_know_it(
    service: str, name: str, kind: str, shape: list[str] | list[float]
) -> None:
    families = {family.name: family for family in text_string_to_metric_families(await exported())}

    family = families[name.removesuffix("_total")]
    assert family.type == kind
    if kind == "histogram":
        bounds = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
        assert bounds == [*shape, float("inf")]
        assert all(set(sample.labels) <= {"le"} for sample in family.samples)
        return
    collector = REGISTRY._names_to_collectors[name.removesuffix("_total")]
    assert list(collector._labelnames) == shape
    assert collector in vars(__import__(f"ratchet.{service}.metrics", fromlist=["metrics"])).values()


async def test_a_failing_check_is_a_metric() -> None:
    async def broken() -> str:
        return "away"

    health = Health("test", starting=None, checks={"broker": broken})
    transport = httpx.ASGITransport(health_app(health))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        text = (await client.get("/metrics")).text

    assert 'ratchet_check_failing{check="broker"} 1.0' in text
    assert 'ratchet_check_failing{check="start"} 0.0' in text
