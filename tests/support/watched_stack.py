"""Dashboards over a real stack: a real Prometheus scrapes it while it works, and tells which panels show something."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from ratchet.bus.testing import eventually
from ratchet.local.local_stack.stack import Stack
from tests.support.prometheus import ABSENT, BINARY, Prometheus, concrete, running_prometheus
from tools.dashboard.panels import Board, Panel

CLOSED = 1
"""A port at which nothing listens: that of services that the stack does not have."""
SHOWN_S = 60.0


@dataclass(frozen=True)
class Watched:
    """What Prometheus has seen since `began`; None where there is no Prometheus."""

    prometheus: Prometheus | None
    began: float

    async def unlike(self, *boards: Board) -> list[str]:
        """Panels that show nothing and name nothing that they need, and those that show something although they do.

        Looks again for `SHOWN_S`: a service sets a gauge in its next round, and Prometheus reads it after that.
        Skips what asks where there is no Prometheus: a part of a test, by `subtests`.
        """
        if self.prometheus is None:
            pytest.skip(ABSENT)
        panels = [(board, panel) for board in boards for row in board.rows.values() for panel in row]
        prometheus, unlike = self.prometheus, list[str]()

        async def are_alike() -> bool:
            unlike[:] = [
                f"{board.title}: {panel.title} {'shows something' if shows else 'shows nothing'}"
                for board, panel in panels
                if (shows := await self._shows(prometheus, panel)) is not (panel.needs is None)
            ]
            return not unlike

        with suppress(AssertionError):  # the caller's says which
            await eventually(are_alike, SHOWN_S)
        return unlike

    async def _shows(self, prometheus: Prometheus, panel: Panel) -> bool:
        now = time.time()
        for query in panel.shows.values():
            values = await prometheus.values(concrete(query, f"{now - self.began:.0f}s"), self.began, now)
            if any(math.isfinite(value) for value in values):
                return True
        return False


@contextmanager
def watching(stack: Stack, directory: Path) -> Iterator[Watched]:
    """A Prometheus that scrapes all services of the stack for the length of a block."""
    if BINARY is None:
        yield Watched(None, time.time())
        return
    ports = {name: port for name, member in stack.members.items() if (port := member.program.health_port)}
    with running_prometheus(directory / "prometheus", {**ports, "*": CLOSED}) as prometheus:
        yield Watched(prometheus, time.time())
