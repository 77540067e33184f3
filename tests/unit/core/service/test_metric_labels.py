"""The labels of all metrics have few values: each value is a series that Prometheus and the process keep."""

from __future__ import annotations

from tests.support.eventful_exporter import all_metrics, import_all_metrics, labels_of

FEW = {
    "agent_type": "kinds that the contract lists",
    "task_domain": "kinds that the contract lists",
    "arm": "stable, canary, pinned",
    "check": "a service's own",
    "consumer": "declared",
    "projection": "declared",
    "stream": "declared",
    "topic": "declared",
    "part": "services behind the console",
    "engine": "settings",
    "replica": "settings",
    "upstream": "settings",
    "filter": "settings",
    "action": "flag, replace, block, failed",
    "to": "settings",
    "receiver": "settings",
    "key": "keys that an operator made",
    "role": "roles that an operator or a training made: agents cannot create any",
    "policy": "versions of those roles",
    "model_version": "versions of those roles",
    "task_type": "words of the code",
    "test": "words of the code",
    "verdict": "words of the code",
    "actor": "deployer, request",
    "gate": "of the code, and of packages",
    "bound": "low, mean, high",
    "figure": "words of the code",
    "measure": "words of the code",
    "fate": "words of the code",
    "table": "words of the code",
    "pool": "settings, and pools of jobs",
    "kind": "words of the code",
    "outcome": "words of the code",
    "reason": "words of the code",
    "start": "words of the code",
    "state": "words of the code",
    "status": "words of the code, or of HTTP",
    "trainable": "words of the code",
}
"""Label -> why it has few values. What agents write is no label."""


def test_labels_of_all_metrics_are_known_to_have_few_values() -> None:
    import_all_metrics()
    assert {label for metric in all_metrics() for label in labels_of(metric)} == set(FEW)
