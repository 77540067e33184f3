"""docker-compose.yml as tests read it: merged, with the images that it names."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
VARIABLE = re.compile(r"\$\{(\w+)(?::?[-?][^}]*)?\}")
"""`${NAME}`, `${NAME:-default}` and `${NAME:?message}`."""


@functools.cache
def compose() -> dict[str, Any]:
    """The file, with its anchors and merge keys resolved."""
    return yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())


def services() -> dict[str, dict[str, Any]]:
    """Its services."""
    return compose()["services"]


def image(service: str) -> str:
    """The image of a service, tag included."""
    return services()[service]["image"]
