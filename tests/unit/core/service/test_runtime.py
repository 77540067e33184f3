"""The life of a service: ordered shutdown, one deadline, and the causes of its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from ratchet.core.errors import BusUnavailable, ConfigError
from ratchet.core.service.health import Health
from ratchet.core.service.runtime import COLLECTED, App, Periodic, supervise


class Recorder:
    """A component that writes down when it starts and stops."""

    def __init__(self, name: str, diary: list[str], *, stubborn: bool = False) -> None:
        self.name, self.diary, self.stubborn = name, diary, stubborn
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        self.diary.append(f"{self.name} runs")
        await self._stopping.wait()
        if self.stubborn:
            await asyncio.Event().wait()
        self.diary.append(f"{self.name} ends")

    async def stop(self) -> None:
        self.diary.append(f"{self.name} is asked to stop")
        self._stopping.set()


class Unfit:
    """A component that finds a wrong setting."""

    async def run(self) -> None:
        raise ConfigError("no such upstream")

    async def stop(self) -> None:
        return


class Broken:
    """A component that fails at once."""

    async def run(self) -> None:
        raise ZeroDivisionError("boom")

    async def stop(self) -> None:
        return


async def test_last_started_stops_first_and_each_finishes_before_next_is_asked() -> None:
    diary: list[str] = []
    stopping = asyncio.Event()
    app = App("test", [Recorder("first", diary), Recorder("second", diary)])
    task = asyncio.create_task(supervise(app, stopping, shutdown_s=5.0))
    while len(diary) < 2:  # noqa: ASYNC110 - a few turns of the loop, no time passes
        await asyncio.sleep(0)
    stopping.set()
    assert await task is True
    assert diary[2:] == ["second is asked to stop", "second ends", "first is asked to stop", "first ends"]


async def test_component_that_does_not_stop_is_cancelled_and_others_still_stop() -> None:
    diary: list[str] = []
    stopping = asyncio.Event()
    stopping.set()
    app = App("test", [Recorder("first", diary), Recorder("stuck", diary, stubborn=True)])
    assert await supervise(app, stopping, shutdown_s=0.05) is True
    assert "stuck ends" not in diary
    assert "first is asked to stop" in diary


async def test_a_component_that_fails_ends_the_service_as_unhealthy() -> None:
    diary: list[str] = []
    app = App("test", [Recorder("other", diary), Broken()])
    assert await supervise(app, asyncio.Event(), shutdown_s=5.0) is False
    assert diary[-1] == "other ends"


async def test_component_that_finds_a_wrong_setting_ends_service_with_that_error() -> None:
    diary: list[str] = []
    app = App("test", [Recorder("other", diary), Unfit()])
    with pytest.raises(ConfigError, match="no such upstream"):
        await supervise(app, asyncio.Event(), shutdown_s=5.0)
    assert diary[-1] == "other ends"


@pytest.mark.parametrize("fault", [BusUnavailable("away"), RecursionError("too deep"), OverflowError(), KeyError("x")])
async def test_the_next_tick_comes_whatever_error_one_raises(fault: Exception) -> None:
    ticks: list[int] = []
    periodic: Periodic

    async def action() -> None:
        ticks.append(len(ticks))
        if len(ticks) == 1:
            raise fault
        await periodic.stop()

    periodic = Periodic(0.001, action)
    await asyncio.wait_for(periodic.run(), 5)
    assert ticks == [0, 1]


async def test_readiness_names_every_reason_and_survives_a_failing_check() -> None:
    async def fine() -> str | None:
        return None

    async def away() -> str | None:
        raise BusUnavailable("broker is away")

    health = Health("test")
    assert await health.reasons() == {"start": "starting"}
    health.starting = None
    health.checks = {"disk": fine, "broker": away}
    assert await health.reasons() == {"broker": "broker is away"}


REFUSED_START = """
import gc
from ratchet.core.errors import ConfigError
from ratchet.core.service.runtime import run
from ratchet.core.service.settings import ServiceSettings

def build(settings):
    print(gc.get_threshold(), gc.get_freeze_count() > 10_000)
    raise ConfigError("no")

run("test", build, ServiceSettings)
"""


def test_service_seldom_looks_for_garbage_and_never_among_its_imports() -> None:
    words = [sys.executable, "-c", REFUSED_START]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[0] == f"{COLLECTED} True"
