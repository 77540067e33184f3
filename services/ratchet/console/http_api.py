"""The console's own API: what its pages show beside the answers of coordinator, deployer and gateway.

Each subject has a file of its own, whose `add_routes(api, ...)` serves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.console import events_api, loop_api, records, session_api
from ratchet.console.events import Events
from ratchet.console.loop import Loop
from ratchet.console.records import Records
from ratchet.core.service.control_api import ControlApi

ERRORS: Mapping[int, str] = {
    422: "A parameter or the body is not what this document says.",
    503: "The broker, ClickHouse or the object store is away.",
}


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """What the pages are about."""

    loop: Loop
    events: Events
    records: Records


def console_api(subjects: Subjects) -> ControlApi:
    """The application with all routes."""
    api = ControlApi("Ratchet console", "What the console's pages show. Every error is an ErrorOut.", ERRORS)
    session_api.add_routes(api)
    loop_api.add_routes(api, subjects.loop)
    events_api.add_routes(api, subjects.events)
    records.add_routes(api, subjects.records)
    return api


def described_api() -> ControlApi:
    """The application for its document alone: nothing stands behind its routes."""
    unused: Any = None
    shown = Records(trajectories=unused, tokens=unused, rollouts=unused, training=unused, annotation=unused)
    return console_api(Subjects(loop=unused, events=unused, records=shown))
