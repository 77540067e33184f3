"""The dashboards, one file each, and what none of them shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tools.dashboard.boards.deployments import DEPLOYMENTS
from tools.dashboard.boards.events import EVENTS
from tools.dashboard.boards.gateway import GATEWAY
from tools.dashboard.boards.learning import LEARNING
from tools.dashboard.boards.loop import LOOP
from tools.dashboard.boards.models import MODELS
from tools.dashboard.boards.training import TRAINING
from tools.dashboard.boards.workflows import WORKFLOWS
from tools.dashboard.panels import Board

BOARDS: Sequence[Board] = (LOOP, TRAINING, MODELS, DEPLOYMENTS, EVENTS, GATEWAY, WORKFLOWS, LEARNING)
"""The first one is Grafana's home."""

UNSHOWN: Mapping[str, str] = {
    "ratchet_consumer_sequence": "a position to compare with the broker's own; the age of what waits has a panel",
    "ratchet_rollout_lease": "a number that counts up; whether a lease has lapsed has a panel",
    "ratchet_batch_handling_seconds": "to look for what is slow in a consumer, whose oldest message has a panel",
    "ratchet_trainer_processes_total": "to measure whether the fork server spares starts",
    "ratchet_engine_bases": "to size an engine's memory",
    "ratchet_engine_base_loads_total": "to size an engine's memory",
    "ratchet_engine_grammars_total": "to measure constrained answers",
    "ratchet_engine_open_requests": "rows that run and wait have a panel, by policy",
    "ratchet_engine_request_seconds": "the gateway's latency, which has panels, includes it",
    "ratchet_gateway_held_bytes": "to size a gateway's memory; what waits has a panel",
    "ratchet_gateway_cache_bytes": "to size the cache; its hits have a panel",
    "ratchet_open_jobs": "what scales workers on Kubernetes; jobs by state have a panel",
    "ratchet_console_listeners": "to size a console",
    "ratchet_swept_bytes_total": "the objects that were swept have a panel",
}
"""Metrics for questions of the moment, and why no panel has them."""
