"""Looks at the services' health ports, and raises an alert of what stays wrong there.

A service says at /readyz why it is not ready, and notes what is wrong although it works. Every such check is an alert,
so a service that learns to notice something new needs no rule here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from ratchet.core.service.alerts import Alerts
from ratchet.core.service.health_ports import ServiceState
from ratchet.notifier.alertmanager import POSTED_KEY
from ratchet.notifier.domain.deliveries import RECEIVER_KEY

LOOK_S = 15.0
"""How often it looks."""
AWAY_S = 120.0
"""A service that is started again answers within."""
CHECK_S = 120.0
"""What lasts shorter mends itself."""
START_S = 300.0
"""Importing torch, or waiting for another one, takes minutes on a busy machine."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What several services may miss, or one is the best witness of: one alert, whichever check names it."""

    key: str
    what: str
    wait_s: float
    """It is raised when it has held for so long."""
    severity: str = "critical"


BROKER = Subject("broker", "the broker is away, or stores nothing", 300.0)
SUBJECTS = {
    "broker": BROKER,
    "bus": BROKER,
    "warehouse": Subject("clickhouse", "ClickHouse is away", 60.0),
    "objects": Subject("object-store", "the object store is away", 60.0),
    "disk": Subject("disk", "a disk is nearly full", 60.0),
    "engines": Subject("engines", "an engine is away", 60.0),
    "spool": Subject("spool", "events are lost on their way to the broker", 0.0),
    "collection": Subject("collection-errors", "more than a tenth of what agents do is not collected", 0.0),
    "errors": Subject("gateway-errors", "more than a tenth of the calls fail", 0.0),
    "trajectories": Subject("no-trajectories", "no trajectory comes any more", 0.0, "warning"),
    "filters": Subject("filters", "filters flag or block calls", 0.0, "warning"),
    "feedback": Subject("no-feedback", "no feedback comes any more", 0.0, "warning"),
}
"""By check."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong now."""

    key: str
    summary: str
    wait_s: float
    severity: str = "critical"


def conditions(states: Sequence[ServiceState]) -> list[Condition]:
    """What is wrong with the services, each thing once.

    While the broker is away, what services say of their own work only follows from that, and is left out.
    """
    made = [*_of_subjects(states), *_of_services(states)]
    if any(condition.key == BROKER.key for condition in made):
        made = [condition for condition in made if not condition.key.startswith("check:")]
    return made


def _of_subjects(states: Sequence[ServiceState]) -> Iterator[Condition]:
    named: dict[Subject, dict[str, str]] = {}
    for state in states:
        for check, reason in {**state.notes, **state.reasons}.items():
            if (subject := SUBJECTS.get(check)) is not None:
                named.setdefault(subject, {})[state.name] = reason
    for subject, reasons in named.items():
        first = next(iter(reasons.values()))
        summary = f"{subject.what} ({', '.join(sorted(reasons))}): {first}"
        yield Condition(subject.key, summary, subject.wait_s, subject.severity)


def _of_services(states: Sequence[ServiceState]) -> Iterator[Condition]:
    for state in states:
        if state.away is not None:
            if state.is_needed:
                yield Condition(f"away:{state.name}", f"{state.name} does not answer: {state.away}", AWAY_S)
            continue
        for reasons, severity, what in ((state.reasons, "critical", "is not ready"), (state.notes, "warning", "works")):
            for check, reason in reasons.items():
                if check not in SUBJECTS:
                    wait_s = START_S if check == "start" else CHECK_S
                    summary = f"{state.name} {what}: {check}: {reason}"
                    yield Condition(f"check:{state.name}:{check}", summary, wait_s, severity)


def unknown(key: str, states: Sequence[ServiceState], *, broker_away: bool) -> bool:
    """Whether nothing can be said of an alert now: its service does not answer, or the broker is away."""
    if broker_away:
        return key.startswith("check:")
    return any(state.away is not None and key.startswith(f"check:{state.name}:") for state in states)


class Watch:
    """Raises and clears the alerts of what services say; `look` is to be called every `LOOK_S`."""

    def __init__(
        self,
        states: Callable[[], Awaitable[Sequence[ServiceState]]],
        alerts: Alerts,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states = states
        self._alerts = alerts
        self._monotonic = monotonic
        self._since: dict[str, float] = {}
        """By key, since when it holds."""

    async def look(self) -> None:
        """Raise what has held for long enough, and clear what holds no longer."""
        await self._alerts.publish_pending()
        states = await self._states()
        now_s, made = self._monotonic(), conditions(states)
        self._since = {condition.key: self._since.get(condition.key, now_s) for condition in made}
        for condition in made:
            if now_s - self._since[condition.key] >= condition.wait_s:
                await self._alerts.raise_alert(condition.key, condition.summary, severity=condition.severity)
        away = BROKER.key in self._since
        open_keys = [key for key in self._alerts.keys if not key.startswith((RECEIVER_KEY, POSTED_KEY))]
        for key in open_keys:
            if key not in self._since and not unknown(key, states, broker_away=away):
                await self._alerts.clear_alert(key)
