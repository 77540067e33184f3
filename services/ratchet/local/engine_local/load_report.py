"""How busy the engine is with each policy in memory, as metrics."""

from __future__ import annotations

from collections.abc import Callable

from ratchet.local.engine_local import metrics
from ratchet.local.engine_local.registry import Registry
from ratchet.local.engine_local.torch_policies import Served
from ratchet.local.engine_local.torch_worker import Load

OBSERVE_S = 1.0


class LoadReport:
    """Sets the metrics of the policies in memory, and removes those of policies that have left."""

    def __init__(self, registry: Registry[Served], load_of: Callable[[Served], Load]) -> None:
        self._registry = registry
        self._load_of = load_of
        self._seen: dict[str, tuple[Served, float]] = {}
        """By name: the policy that was reported, and its busy time then."""

    async def observe(self) -> None:
        """To be called every `OBSERVE_S`."""
        present = {entry.name: entry.served for entry in self._registry}
        for name in self._seen.keys() - present.keys():
            del self._seen[name]
            for metric in (metrics.BUSY, metrics.RUNNING, metrics.WAITING):
                metric.remove(name)
        for name, served in present.items():
            load = self._load_of(served)
            known, busy_s = self._seen.get(name, (served, 0.0))
            metrics.WAITING.labels(name).set(load.waiting)
            metrics.RUNNING.labels(name).set(load.running)
            # A policy that left and came back, or was asked for the first time since, counts from nothing again.
            metrics.BUSY.labels(name).inc(load.busy_s - busy_s if known is served else load.busy_s)
            self._seen[name] = (served, load.busy_s)
