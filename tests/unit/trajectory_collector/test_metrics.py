"""What the collector counts stays small, whatever agents call themselves and their tasks."""

from __future__ import annotations

from prometheus_client import generate_latest

from ratchet.core.contract.trajectory import TaskContext
from ratchet.trajectory_collector.metrics import COLLECTED, count_stored
from tests.support.messages import trajectory


def counted(profile: str | None, domain: str | None) -> None:
    task = TaskContext(task_id="t", instructions="Be helpful.", domain=domain)
    count_stored(trajectory(subordinate_profile=profile, task_context=task))


def count_of(agent_type: str, task_domain: str) -> float:
    return COLLECTED.labels(agent_type, task_domain)._value.get()


def test_metrics_name_the_kinds_that_the_contract_lists() -> None:
    before = count_of("researcher", "coding"), count_of("main", "general")
    counted("researcher", "coding")
    counted(None, None)
    assert (count_of("researcher", "coding"), count_of("main", "general")) == (before[0] + 1, before[1] + 1)


def test_metrics_stay_small_whatever_10000_agents_call_themselves() -> None:
    before = count_of("other", "other")
    for number in range(10_000):
        counted(f"profile {number}", f"domain {number}")
    assert count_of("other", "other") == before + 10_000
    assert len(generate_latest(COLLECTED)) < 8_000
