"""What the scripts of all frameworks share: the address, the tasks, the tool, and the report on standard output.

It runs in the environment of each framework, so it imports nothing but Python.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
import urllib.request
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

BASE_URL, KEY, MODEL = os.environ["BASE_URL"], os.environ["KEY"], os.environ["MODEL"]
RUN = {"x-ratchet-run": "nightly-17"}
"""The header that names a run, which the task `plain` sends."""

PLAIN = "task-plain: where are my orders?"
STREAM = "task-stream: where are my orders?"
TOOLS = "task-tools: look up K47, then K48, then say where they are."
PARALLEL = "task-parallel: look up K47 and K48 at once, then say where they are."
SCHEMA = "task-schema: which city, how many days?"
RETRY = "task-retry: where are my orders?"

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"order_id": {"type": "string"}},
    "required": ["order_id"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "look_up", "description": "Says where an order is.", "parameters": PARAMETERS}


def look_up(order_id: str) -> str:
    """Says where an order is.

    Args:
        order_id: the order's number.
    """
    return f"{order_id}-{'packed' if order_id == 'K47' else 'shipped'}"


def heard(pieces: Iterable[str | None]) -> str:
    """All pieces of a stream; the provider hears of it when the first one is here."""
    answer = ""
    for piece in pieces:
        if piece and not answer:
            _report_to_provider()
        answer += piece or ""
    return answer


async def overheard(pieces: AsyncIterable[str | None]) -> str:
    """The same of an asynchronous stream."""
    answer = ""
    async for piece in pieces:
        if piece and not answer:
            await asyncio.to_thread(_report_to_provider)
        answer += piece or ""
    return answer


def play(**tasks: Callable[[], Any]) -> None:
    """Run the tasks in order, in one event loop; print what each answered, or how it failed."""
    report: dict[str, dict[str, Any]] = {}
    with asyncio.Runner() as runner:
        for name, task in tasks.items():
            try:
                answer = runner.run(task()) if inspect.iscoroutinefunction(task) else task()
                report[name] = {"answer": answer if isinstance(answer, dict | list) else str(answer)}
            except BaseException as error:  # noqa: BLE001  whatever a framework raises is the result
                traceback.print_exc()
                report[name] = {"failed": f"{type(error).__name__}: {error}"[:400]}
    sys.stdout.write(f"\nPLAYED {json.dumps(report)}\n")
    sys.stdout.flush()
    os._exit(0)  # threads of telemetry would wait for servers that are not there


def _report_to_provider() -> None:
    request = urllib.request.Request(f"{os.environ['PROVIDER']}/heard", b"{}", {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=20).close()
