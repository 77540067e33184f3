"""What a training measures is shown while it runs, and what it used is counted at its end."""

from __future__ import annotations

from datetime import UTC, datetime

from prometheus_client import REGISTRY

from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.training import CurrentMetrics, Metrics, ResourceUsage
from ratchet.trainer_worker import metrics
from tests.support.training import request

ROLE = "shown"


def status(kind: str, cost_usd: float | None = None, gpu_hours: float | None = None) -> TrainingStatus:
    return TrainingStatus(
        training_job_id=request().training_job_id,
        timestamp=datetime(2026, 11, 21, 12, tzinfo=UTC),
        status=kind,
        role=ROLE,
        metrics=Metrics(current=CurrentMetrics(loss=0.5, reward_mean=0.25)),
        resource_usage=ResourceUsage(peak_memory_gb=2.0, cost_usd=cost_usd, gpu_hours=gpu_hours),
    )


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"role": ROLE, **labels})


def test_figures_of_a_running_training_are_shown_until_it_ends() -> None:
    metrics.show(status("running"))
    assert value("ratchet_training_figure", figure="loss") == 0.5
    assert value("ratchet_training_memory_bytes") == 2e9
    metrics.stop_showing(ROLE)
    assert value("ratchet_training_figure", figure="loss") is None
    assert value("ratchet_training_memory_bytes") is None


def test_cost_and_gpu_hours_are_counted_where_there_are_any() -> None:
    metrics.count_ended(status("failed"))
    assert value("ratchet_training_cost_usd_total") is None
    metrics.count_ended(status("failed", cost_usd=1.5, gpu_hours=0.5))
    assert value("ratchet_training_cost_usd_total") == 1.5
    assert value("ratchet_training_gpu_hours_total") == 0.5
