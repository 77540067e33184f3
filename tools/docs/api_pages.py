"""Writes docs/api for the site: references of client, HTTP and training, the decisions, and what programs read of the
interfaces: OpenAPI and AsyncAPI. Git ignores the folder.

python -m tools.docs.api_pages
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ratchet.cli.interfaces import HAND_WRITTEN, Interface, asyncapi, openapi
from tools.docs.client_reference import client_page
from tools.docs.decisions_index import decisions_page
from tools.docs.http_reference import http_page
from tools.docs.training_reference import training_page

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = ROOT / "contracts"
PAGES = Interface.CONSOLE
"""What its pages ask is for them alone, and in no reference."""


@cache
def document(service: Interface) -> Mapping[str, Any]:
    """OpenAPI of a service."""
    text = openapi(service, CONTRACTS)
    return yaml.load(text, yaml.CSafeLoader) if service in HAND_WRITTEN else json.loads(text)


def documents() -> Mapping[str, str]:
    """OpenAPI of every service, and AsyncAPI of the bus, each by the name of its file."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    made = {
        f"{service}.openapi.{'yaml' if service in HAND_WRITTEN else 'json'}": openapi(service, CONTRACTS)
        for service in Interface
    }
    return {**made, "asyncapi.json": json.dumps(asyncapi(CONTRACTS, version), indent=2, ensure_ascii=False) + "\n"}


def pages() -> Mapping[str, str]:
    """Each page by its name below docs/api."""
    interfaces = {str(service): document(service) for service in Interface if service is not PAGES}
    return {
        "client.md": client_page(),
        "decisions.md": decisions_page(ROOT / "docs" / "adr"),
        "http.md": http_page(interfaces),
        "training.md": training_page(),
    }


def main() -> None:
    """Write them."""
    folder = ROOT / "docs" / "api"
    (folder / "documents").mkdir(parents=True, exist_ok=True)
    files = {f"documents/{name}": text for name, text in documents().items()}
    for name, text in {**pages(), **files}.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
