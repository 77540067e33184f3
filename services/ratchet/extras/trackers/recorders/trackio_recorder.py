"""Writes one run with trackio. Run by trackio's own interpreter: it imports nothing of ours.

A run that lacks train steps, since a recorder was killed, is deleted and written again.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

trackio: Any = import_module("trackio")
"""Of the environment that runs this."""


def record(run: dict[str, Any]) -> None:
    """Write the run unless it is there."""
    storage = trackio.SQLiteStorage
    project, name, steps = run["project"], run["id"], run["steps"]
    if name in storage.get_runs(project):
        if storage.get_log_count(project, name) == len(steps):
            return
        storage.delete_run(project, name)
    trackio.init(project=project, name=name, config=run["config"], embed=False, auto_log_gpu=False, auto_log_cpu=False)
    for step in steps:
        trackio.log(step["figures"], step=step["number"])
    trackio.finish()


if __name__ == "__main__":
    record(json.load(sys.stdin))
