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


class _Strict(yaml.SafeLoader):
    """Refuses a key that stands twice, as compose does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"{sorted(twice)} twice{node.start_mark}")
        return super().construct_mapping(node, deep)


@functools.cache
def compose() -> dict[str, Any]:
    """The file, with its anchors and merge keys resolved."""
    return yaml.load((REPOSITORY / "docker-compose.yml").read_text(), _Strict)


def services() -> dict[str, dict[str, Any]]:
    """Its services."""
    return compose()["services"]


def image(service: str) -> str:
    """The image of a service, tag included."""
    return services()[service]["image"]
