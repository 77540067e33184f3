"""Writes Grafana's dashboards: `python -m tools.dashboard [FOLDER]`.

`make setup` writes them to deploy/grafana/dashboards, which git ignores, and the build of Grafana's image into the
image. Needs Python alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.dashboard.boards import BOARDS
from tools.dashboard.grafana import dashboard, runbook

ROOT = Path(__file__).resolve().parents[2]


def dashboards() -> dict[str, dict[str, Any]]:
    """All of them, by name."""
    page, sections = runbook((ROOT / "docs/operations.md").read_text())
    return {board.name: dashboard(board, sections) for board in BOARDS} | {"runbook": page}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write them to a folder."""
    parser = argparse.ArgumentParser(prog="tools.dashboard", description="Writes Grafana's dashboards.")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=ROOT / "deploy/grafana/dashboards",
        help="where to, by default %(default)s",
    )
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, written in dashboards().items():
        (folder / f"{name}.json").write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
