"""The reference has all routes of the control APIs, and the site what programs read of every interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.docs.api_pages import documents, pages

ROOT = Path(__file__).parents[2]
HTTP = sorted((ROOT / "contracts" / "http").glob("*.yaml"))


def empty_members(part: Any, place: str = "") -> Iterator[str]:
    """Members without a value: in YAML, what follows a comma inside braces is a member of its own."""
    members = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, below in members:
        if below is None:
            yield f"{place}/{name}"
        yield from empty_members(below, f"{place}/{name}")


@pytest.mark.parametrize("service", ["coordinator", "deployer"])
def test_the_reference_has_every_route_of_a_control_api(service: str) -> None:
    document = json.loads(documents()[f"{service}.openapi.json"])
    page = pages()["http.md"]
    routes = [f"{verb.upper()} {path}" for path, verbs in document["paths"].items() for verb in verbs]
    assert routes
    assert [route for route in routes if f"### {service}: {route}\n" not in page] == []


@pytest.mark.parametrize("document", HTTP, ids=lambda path: path.name)
def test_no_description_of_an_openapi_document_is_cut_at_a_comma(document: Path) -> None:
    assert list(empty_members(yaml.safe_load(document.read_text()))) == []
