"""Requests that nobody planned for, made from an OpenAPI document by schemathesis."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation

DOCUMENTS = Path(__file__).parents[2] / "contracts" / "http"
EXAMPLES = 25
"""Requests per route and kind (legal, illegal)."""


async def fuzzed(document: str, base_url: str) -> set[str]:
    """Send them all to the service of contracts/http/`document`; returns the routes that were tried.

    Raises `AssertionError` for an answer that shows a crash.
    """
    schema = await asyncio.to_thread(schemathesis.openapi.from_path, DOCUMENTS / document)
    return await _try_all(list(schema.get_all_operations()), base_url)


async def fuzzed_live(base_url: str) -> set[str]:
    """The same for a service that serves its own document."""
    schema = await asyncio.to_thread(schemathesis.openapi.from_url, f"{base_url}/openapi.json")
    return await _try_all(list(schema.get_all_operations()), base_url)


async def _try_all(operations: list[Any], base_url: str) -> set[str]:
    tried = set[str]()
    for found in operations:
        operation = found.ok()
        for mode in GenerationMode:
            await asyncio.to_thread(_try, operation, mode, base_url)
        tried.add(operation.label)
    return tried


def _try(operation: APIOperation, mode: GenerationMode, base_url: str) -> None:
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
        check(answer.status_code, answer.text, case.as_curl_command())

    try:
        one()
    except Unsatisfiable:
        # A route without parameters has no illegal request.
        if mode is GenerationMode.POSITIVE:
            raise


def check(status: int, text: str, request: str) -> None:
    """An answer is never an internal error, never shows a traceback, and an error says what is wrong."""
    assert status != httpx.codes.INTERNAL_SERVER_ERROR, f"{text}\n{request}"
    assert "Traceback (most recent call last)" not in text, request
    if status >= 400 and status not in {404, 405}:
        assert text.strip(), f"{status} without a word\n{request}"
