"""The reference has all routes of the control APIs, and no description in an OpenAPI document is cut short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ratchet.cli.interfaces import HAND_WRITTEN, Interface
from tools.docs.api_pages import document, pages


def empty_members(part: Any, place: str = "") -> Iterator[str]:
    """Members without a value: in YAML, what follows a comma inside braces is a member of its own."""
    members = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, below in members:
        if below is None:
            yield f"{place}/{name}"
        yield from empty_members(below, f"{place}/{name}")


def test_reference_has_every_route_of_the_control_apis() -> None:
    page = pages()["http.md"]
    for service in (Interface.COORDINATOR, Interface.DEPLOYER):
        routes = [f"{verb.upper()} {path}" for path, verbs in document(service)["paths"].items() for verb in verbs]
        assert routes
        assert [route for route in routes if f"### {service}: {route}\n" not in page] == []


@pytest.mark.parametrize("service", HAND_WRITTEN)
def test_no_description_of_an_openapi_document_is_cut_at_a_comma(service: Interface) -> None:
    assert list(empty_members(document(service))) == []
