"""The metrics of all services in one process; run by `python -m`, each sees events several times a second.

It is a process of its own, so that the registry of the tests stays untouched. The first line of its output is its port.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from itertools import product
from typing import Any, cast

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from ratchet.bus.testing import eventually
from ratchet.core.service.health import Health, health_app
from ratchet.core.service.http import HttpServer
from ratchet.trainer_worker.metrics import FIGURES
from tests.support.compose import REPOSITORY

METRICS = re.compile(r"^from prometheus_client import .*\b(Counter|Gauge|Histogram)\b", re.MULTILINE)
EXAMPLE = "example"
POLICY = "example@1-12345678"
ASKED_FOR = {
    "status": ("succeeded", "failed"),
    "outcome": ("valid", "passed"),
    "stream": ("RL_FEEDBACK",),
    "verdict": ("roll_back",),
    "measure": ("failure",),
    "bound": ("high",),
    "figure": FIGURES,
    "policy": (POLICY,),
    "model_version": (POLICY,),
}
"""Values of labels that panels name."""


def import_all_metrics() -> None:
    """Register the metrics of all modules that have some."""
    services = REPOSITORY / "services"
    for file in sorted(services.rglob("*.py")):
        if METRICS.search(file.read_text()):
            importlib.import_module(".".join(file.relative_to(services).with_suffix("").parts))


def all_metrics() -> set[Counter | Gauge | Histogram]:
    """What was declared, of the modules that are imported."""
    registry: Any = REGISTRY  # it has no public list of them
    return {metric for metric in registry._collector_to_names if isinstance(metric, Counter | Gauge | Histogram)}


def labels_of(metric: Counter | Gauge | Histogram) -> tuple[str, ...]:
    """Names of its labels."""
    return cast("Any", metric)._labelnames


def one_event() -> None:
    """Every metric of ours sees one event under each set of example labels."""
    for metric in all_metrics():
        for values in product(*((EXAMPLE, *ASKED_FOR.get(name, ())) for name in labels_of(metric))):
            child = metric.labels(*values) if values else metric
            if isinstance(child, Counter):
                child.inc()
            elif isinstance(child, Gauge):
                child.set(1)
            else:
                child.observe(0.5)


async def main() -> None:
    """Serve until killed."""
    import_all_metrics()
    server = HttpServer(health_app(Health("exporter", starting=None)), "127.0.0.1", 0)
    serving = asyncio.create_task(server.run())

    async def port() -> int:
        return server.port

    sys.stdout.write(f"{await eventually(port)}\n")
    sys.stdout.flush()
    while not serving.done():
        one_event()
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
