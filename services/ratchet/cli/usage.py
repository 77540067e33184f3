"""`ratchet usage`: tokens, cost and latency of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from ratchet.cli.api import require_role
from ratchet.cli.connections import ask_warehouse
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, OptionalRole, Since, since_of
from ratchet.cli.output import print_answer, print_table
from ratchet.core.stores.usage import Usage, usage as usage_of

app = typer.Typer()


@app.command()
def usage(
    by: Annotated[
        Literal["version", "key", "api", "model", "arm", "hour"], typer.Option(help="What to group calls by.")
    ] = "version",
    role: OptionalRole = None,
    since: Since = "7d",
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """What calls used: tokens, cost and latency by version, key, API, model, arm or hour.

    Cost is that of calls with a price (RATCHET_GATEWAY_ENGINE_PRICE, and `prices` of an upstream); `unpriced` counts
    the others. Version 0 of a role is an upstream's model.
    """
    begin, endpoints = since_of(since), locate(directory)
    groups = ask_warehouse(endpoints, lambda warehouse: usage_of(warehouse, by, role, begin))
    if not groups and role is not None:
        require_role(endpoints, role)
    print_answer({"since": begin, "by": by, "usage": groups}, as_json, lambda: show(by, groups))


def show(by: str, groups: Sequence[Usage]) -> None:
    """A table; latencies in milliseconds."""
    columns = (by, "calls", "errors", "cancelled", "prompt", "cached", "completion", "reasoning", "cost $", "unpriced",
               "p50 ms", "p95 ms", "p99 ms", "first token p50 ms")  # fmt: skip
    rows = [
        (
            group.group or "-",
            group.calls,
            group.errors,
            group.cancelled,
            group.prompt_tokens,
            group.cached_tokens,
            group.completion_tokens,
            group.reasoning_tokens,
            f"{group.cost_usd:.4f}",
            group.unpriced,
            *(group.latency_ms or (None, None, None)),
            group.first_token_ms[0] if group.first_token_ms else None,
        )
        for group in groups
    ]
    print_table(columns, rows, "no calls in this time")
