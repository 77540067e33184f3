"""docker-compose.yml as tests read it: merged, with the images that it names, and with the file that adds TLS."""

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


TLS_FILE = "deploy/docker/compose.tls.yml"


@functools.cache
def compose(file: str = "docker-compose.yml") -> dict[str, Any]:
    """A file, with its anchors and merge keys resolved."""
    return yaml.load((REPOSITORY / file).read_text(), _Strict)


@functools.cache
def compose_with_tls() -> dict[str, Any]:
    """Both files, as compose merges them."""
    return _merged(compose(), compose(TLS_FILE))


def _merged(first: Any, second: Any, name: str = "") -> Any:
    """Mappings by their keys, mounts one after the other; of everything else, such as commands, the second file's."""
    if isinstance(first, dict) and isinstance(second, dict):
        both = {key: _merged(first[key], second[key], key) for key in first.keys() & second.keys()}
        return {**first, **second, **both}
    return [*first, *second] if name == "volumes" and isinstance(first, list) else second


def services() -> dict[str, dict[str, Any]]:
    """Its services."""
    return compose()["services"]


def image(service: str) -> str:
    """The image of a service, tag included."""
    return services()[service]["image"]
