"""The metrics of every service in this process, as one registry."""

from __future__ import annotations

import importlib

from ratchet.embedded.catalog import SERVICES


def import_all_metrics() -> None:
    """Register what the kernel and every service count."""
    kernel = ("ratchet.kernel.health", "ratchet.kernel.consumer", "ratchet.kernel.projection")
    for module in (*kernel, *(f"{s.module}.metrics" for s in SERVICES)):
        importlib.import_module(module)
