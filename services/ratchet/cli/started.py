"""What a start says: how far it is and what it waits for, then where everything is and who answers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.local.local_stack.catalog import CONSOLE, GATEWAY
from ratchet.local.local_stack.member import WELL
from ratchet.local.local_stack.state import MemberRecord, StackRecord

if TYPE_CHECKING:
    from ratchet.local.local_stack.providers import GatewayUpstream

NAMED = 3
"""Of those that are not ready so many are named: a line has no room for more."""


def how_far(names: Sequence[str], services: Mapping[str, MemberRecord], directory: Path) -> str:
    """How many are ready, and the names of those that are not: why, and where the log is."""
    waiting = [name for name in names if name not in services or services[name].state not in WELL]
    count = f"{len(names) - len(waiting)} of {len(names)} ready"
    if not waiting:
        return count
    more = f" and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
    named = ", ".join(_awaited(name, services.get(name)) for name in waiting[:NAMED])
    begun = [name for name in waiting if name in services]
    where = directory / "logs" / (f"{begun[0]}.log" if len(begun) == 1 else "")
    return f"{count}, not yet {named}{more}; {'see ' if len(begun) == 1 else 'logs in '}{where}"


def _awaited(name: str, member: MemberRecord | None) -> str:
    if member is None:
        return f"{name} (not started: what it needs is not ready)"
    return f"{name} ({member.reason or member.state})"


def where_to_go(record: StackRecord) -> list[str]:
    """What the user of a new stack needs next: who answers, an agent's base URL, and last the console's address."""
    lines = [upstream.line for upstream in upstreams_of_stack(record, {**os.environ, **record.env})]
    if (gateway := record.services.get(GATEWAY)) is not None:
        lines.append(f"agents: export OPENAI_BASE_URL={gateway.url}/v1")
    if CONSOLE in record.services:
        lines.append(f"{CONSOLE} {record.services[CONSOLE].url}/")
    return lines


def upstreams_of_stack(record: StackRecord, environment: Mapping[str, str]) -> list[GatewayUpstream]:
    """The upstreams of the stack's gateway; none where it has no gateway."""
    from ratchet.core.service.settings_file import find_file  # noqa: PLC0415
    from ratchet.local.local_stack.providers import upstreams_of  # noqa: PLC0415 - `down` and `env` read no settings

    return upstreams_of(find_file(os.environ), environment) if GATEWAY in record.services else []


def started_document(directory: Path, record: StackRecord) -> dict[str, object]:
    """The document of `up --json` once everything is ready."""
    services = {name: {"state": member.state, "url": member.url} for name, member in record.services.items()}
    upstreams = [
        {"name": upstream.name, "url": upstream.address, "key_variable": upstream.key_variable}
        for upstream in upstreams_of_stack(record, {**os.environ, **record.env})
    ]
    return {"directory": str(directory), "pid": record.pid, "services": services, "upstreams": upstreams}
