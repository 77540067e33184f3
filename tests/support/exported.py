"""The metrics of every service in this process, as one registry."""

from __future__ import annotations

import importlib

from ratchet.local_stack.catalog import SERVICES


def import_all_metrics() -> None:
    """Register what the kernel and every service count."""
    shared = ("ratchet.service.health", "ratchet.bus.consumer", "ratchet.bus.projection")
    for module in (*shared, *(f"{s.module}.metrics" for s in SERVICES)):
        importlib.import_module(module)
