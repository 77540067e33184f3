"""Writes one run with wandb, offline. Run by wandb's own interpreter: it imports nothing of ours.

A run's directory has the file `complete` once all of it is written; one without is of a recorder that was killed, and
is replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

wandb: Any = import_module("wandb")
"""Of the environment that runs this."""

COMPLETE = "complete"


def record(run: dict[str, Any]) -> None:
    """Write the run unless it is there."""
    directory = Path(os.environ["WANDB_DIR"])
    for before in (directory / "wandb").glob(f"offline-run-*-{run['id']}"):
        if (before / COMPLETE).exists():
            return
        shutil.rmtree(before)
    quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True)
    written = wandb.init(
        project=run["project"],
        id=run["id"],
        name=run["name"],
        config=run["config"],
        tags=[run["status"]],
        dir=str(directory),
        mode="offline",
        settings=quiet,
    )
    for step in run["steps"]:
        written.log(step["figures"], step=step["number"])
    written.finish(exit_code=0 if run["status"] == "FINISHED" else 1)
    (Path(written.dir).parent / COMPLETE).touch()


if __name__ == "__main__":
    record(json.load(sys.stdin))
