"""Odd requests, legal and illegal, that schemathesis makes from an OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ratchet.cli.interfaces import HAND_WRITTEN, Interface, openapi
from tests.support.contract_files import ROOT

CONFORMS = [status_code_conformance, content_type_conformance, response_schema_conformance]
"""The document names every status that comes, and what comes with it."""
EXAMPLES = 6
"""Requests per route and kind (legal, illegal)."""


async def fuzzed(service: Interface, base_url: str, apart_from: Collection[str] = frozenset()) -> dict[str, set[int]]:
    """Send them all to a service, by its document; returns the statuses of its answers by route.

    `apart_from`: routes that are not asked.

    Raises `AssertionError` for an answer that shows a crash.
    """
    with TemporaryDirectory() as name:
        schema = await asyncio.to_thread(schemathesis.openapi.from_path, _written(Path(name))[service])
        return await _try_all(schema, base_url, apart_from)


def _written(directory: Path) -> dict[Interface, Path]:
    """The documents of all services beside each other, as they name each other in their references."""
    files = {
        service: directory / f"{service}.openapi.{'yaml' if service in HAND_WRITTEN else 'json'}"
        for service in Interface
    }
    for service, file in files.items():
        file.write_text(openapi(service, ROOT))
    return files


async def fuzzed_live(base_url: str) -> dict[str, set[int]]:
    """The same for a service that serves its own document."""
    schema = await asyncio.to_thread(schemathesis.openapi.from_url, f"{base_url}/openapi.json", wait_for_schema=60.0)
    return await _try_all(schema, base_url)


def unreached(statuses: dict[str, set[int]]) -> list[str]:
    """Routes without a name in their path that only ever answered 404: they are not there at all."""
    return [route for route, seen in statuses.items() if "{" not in route and seen <= {404}]


async def _try_all(
    schema: schemathesis.schemas.BaseSchema, base_url: str, apart_from: Collection[str] = frozenset()
) -> dict[str, set[int]]:
    statuses: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.label in apart_from:
            continue
        seen = statuses.setdefault(operation.label, set())
        for mode in GenerationMode:
            seen |= await asyncio.to_thread(_try, operation, mode, base_url)
    return statuses


def _try(operation: APIOperation, mode: GenerationMode, base_url: str) -> set[int]:
    seen = set[int]()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case) -> None:
        answer = case.call(base_url=base_url, timeout=30)
        seen.add(answer.status_code)
        check(answer.status_code, answer.text, case.as_curl_command())
        case.validate_response(answer, checks=CONFORMS)

    try:
        one()
    except Unsatisfiable:
        # A route without parameters has no illegal request.
        if mode is GenerationMode.POSITIVE:
            raise
    return seen


def check(status: int, text: str, request: str) -> None:
    """An answer is never an internal error, never shows a traceback, and an error says what is wrong."""
    assert status != httpx.codes.INTERNAL_SERVER_ERROR, f"{text}\n{request}"
    assert "Traceback (most recent call last)" not in text, request
    if status >= 400 and status not in {404, 405}:
        assert text.strip(), f"{status} without a word\n{request}"
