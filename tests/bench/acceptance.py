"""The event plane under load and under its neighbours' faults: `python -m tests.bench.acceptance [SCENE ...]`.

Each scene publishes trajectories to a real broker until it acknowledges them, meanwhile does something bad, and then
compares: every acknowledged trajectory has one row, or is a dead letter, or an alert names what is lost; the
ledger balances and agrees with the rows. Prints one line for each scene; the exit code is 1 when one of them failed.
"""
# ruff: noqa: T201

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import nats.errors

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.contract import Alert, Trajectory
from ratchet.core.errors import RatchetError
from ratchet.core.service.runtime import App
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.trajectory_collector.app import build
from ratchet.trajectory_collector.settings import Settings, Tuning
from tests.support.consuming import messages_of
from tests.support.messages import trajectory
from tests.support.running import connected, prepared_warehouse, running_app
from tests.support.servers import RunningServer, running_clickhouse, running_nats

STREAM = "RL_TRAJECTORIES"
SMALL = 5_000
"""Bytes of a trajectory of which only the count matters."""
PART = 100
"""Trajectories before, during and after a fault."""
AT_ONCE = 20
DEADLINE_S = 240.0
FROZEN_S = 30.0
DISK_BYTES, LEFT_BYTES = 200_000_000, 50_000
"""The size of the disk that is filled, and what stays free on it."""
BRIEF_S = 12.0
"""Longer than clients wait for an answer of the broker (5 s), and than they take to notice."""


@dataclass
class Plane:
    """The servers of one scene, what was published, and what the broker acknowledged."""

    nats: RunningServer
    clickhouse: RunningServer
    folder: Path
    bus: Bus
    warehouse: Warehouse
    apps: list[App] = field(default_factory=list[App])
    acknowledged: set[str] = field(default_factory=set[str])
    may_be_lost: set[str] = field(default_factory=set[str])
    """Acknowledged by a broker whose data went away before it was stored."""

    async def publish(self, messages: Iterable[Trajectory]) -> None:
        """As a producer with a spool does: again and again until each is acknowledged."""
        waiting = list(messages)
        while waiting:
            some = waiting[:AT_ONCE]
            try:
                await self.bus.publish_all(some)
            except RatchetError:
                await asyncio.sleep(0.2)
            else:
                self.acknowledged |= {one.trajectory_id for one in some}
                waiting = waiting[AT_ONCE:]

    async def stored(self) -> list[str]:
        """The trajectories that have a row; one with two rows twice."""
        rows = await self.warehouse.rows("SELECT trajectory_id FROM trajectories FINAL")
        return [row["trajectory_id"] for row in rows]

    async def balance(self) -> dict[str, Any]:
        """The ledger of the stream as of the last audit."""
        sql = "SELECT * FROM ledger_balance WHERE stream = {stream:String}"
        rows = await self.warehouse.rows(sql, {"stream": STREAM})
        return rows[0] if rows else {}


def noise(size: int, seed: object) -> str:
    """Text that compression does not shrink much."""
    return Random(str(seed)).randbytes(size // 2).hex()


def some(name: str, number: int, size: int = SMALL) -> list[Trajectory]:
    """Trajectories of a size."""
    return [trajectory(f"{name}-{n}", labels={"text": noise(size, (name, n))}) for n in range(number)]


async def sizes(plane: Plane) -> None:
    """300 trajectories of 50 KB, 60 of 500 KB, 4 of 20 MB."""
    await plane.publish(some("many", 300, 50_000))
    await plane.publish(some("large", 60, 500_000))
    await plane.publish(trajectory(f"huge-{n}", labels={"text": f"word {n} " * 2_500_000}) for n in range(4))


async def _around(plane: Plane, fault: Callable[[], Awaitable[None]], mend: Callable[[], Awaitable[None]]) -> None:
    """Publish before, during and after a fault."""
    await plane.publish(some("before", PART))
    await fault()
    during = asyncio.create_task(plane.publish(some("during", PART)))
    try:
        await mend()
    finally:
        await during
    await plane.publish(some("after", PART))


async def clickhouse_frozen(plane: Plane) -> None:
    """ClickHouse answers nothing for 30 s (SIGSTOP)."""
    await _frozen(plane, plane.clickhouse, FROZEN_S)


async def broker_frozen(plane: Plane) -> None:
    """The broker answers nothing for 12 s (SIGSTOP)."""
    await _frozen(plane, plane.nats, BRIEF_S)


async def _frozen(plane: Plane, server: RunningServer, seconds: float) -> None:
    async def freeze() -> None:
        os.kill(server.pid, signal.SIGSTOP)

    async def thaw() -> None:
        await asyncio.sleep(seconds)
        os.kill(server.pid, signal.SIGCONT)

    await _around(plane, freeze, thaw)


async def clickhouse_killed(plane: Plane) -> None:
    """ClickHouse is killed (SIGKILL) in mid-insert and comes back after 5 s."""

    async def kill() -> None:
        await asyncio.to_thread(plane.clickhouse.kill)

    async def start() -> None:
        await asyncio.sleep(5)
        await asyncio.to_thread(plane.clickhouse.start)

    await _around(plane, kill, start)


async def table_detached(plane: Plane) -> None:
    """The table of trajectories is detached for 10 s, then that of the ledger."""

    async def detach() -> None:
        await plane.warehouse.command("DETACH TABLE trajectories")

    async def attach() -> None:
        await asyncio.sleep(10)
        await plane.warehouse.command("ATTACH TABLE trajectories")
        await plane.warehouse.command("DETACH TABLE ledger_entries")
        await asyncio.sleep(10)
        await plane.warehouse.command("ATTACH TABLE ledger_entries")

    await _around(plane, detach, attach)


async def disk_full(plane: Plane) -> None:
    """ClickHouse's disk is full for 10 s."""
    disk = plane.folder / "clickhouse"
    ballast = disk / "ballast"

    async def fill() -> None:
        with ballast.open("wb") as file:
            file.write(bytes(max(0, shutil.disk_usage(disk).free - LEFT_BYTES)))

    async def free() -> None:
        await asyncio.sleep(10)
        ballast.unlink()

    await _around(plane, fill, free)


async def broker_restored(plane: Plane) -> None:
    """The broker's data is replaced by a copy that is 100 trajectories older."""
    await _replaced(plane, with_copy=True)


async def broker_wiped(plane: Plane) -> None:
    """The broker comes back without any data."""
    await _replaced(plane, with_copy=False)


async def _replaced(plane: Plane, *, with_copy: bool) -> None:
    data, copy = plane.folder / "nats", plane.folder / "copy"
    await plane.publish(some("before", PART))
    await asyncio.to_thread(plane.nats.stop)
    await asyncio.to_thread(shutil.copytree, data, copy)
    await asyncio.to_thread(plane.nats.start)

    async def seen() -> bool:
        return len(await plane.stored()) > PART

    async def replace() -> None:
        await plane.publish(some("between, and seen", PART // 2))
        await eventually(seen)  # a copy shows its age only after its later messages were read
        await plane.publish(some("between", PART // 2))
        await asyncio.to_thread(plane.nats.kill)
        plane.may_be_lost = set(plane.acknowledged)
        await asyncio.to_thread(shutil.rmtree, data)
        if with_copy:
            await asyncio.to_thread(shutil.copytree, copy, data)
        await asyncio.to_thread(plane.nats.start)

    async def nothing() -> None:
        return

    await _around(plane, replace, nothing)


async def plain(plane: Plane) -> None:
    """No fault but the clocks of the scene's collectors."""
    await plane.publish(some("plain", 3 * PART))


@dataclass(frozen=True)
class Scene:
    """A fault, and the collectors that meet it."""

    play: Callable[[Plane], Awaitable[None]]
    clocks: Sequence[timedelta] = (timedelta(0),)
    """One collector for each: how wrong its clock is."""
    small_disk: bool = False
    """Whether ClickHouse has a disk of its own, which can be filled: needs the right to mount one."""


SCENES = {
    "sizes": Scene(sizes),
    "clickhouse frozen": Scene(clickhouse_frozen),
    "clickhouse killed": Scene(clickhouse_killed),
    "table detached": Scene(table_detached),
    "disk full": Scene(disk_full, small_disk=True),
    "broker frozen": Scene(broker_frozen),
    "broker wiped": Scene(broker_wiped),
    "broker restored": Scene(broker_restored),
    "clock a day slow": Scene(plain, (timedelta(days=-1),)),
    "clock a year fast": Scene(plain, (timedelta(days=365),)),
    "two collectors, clocks apart": Scene(clickhouse_killed, (timedelta(hours=-3), timedelta(hours=3))),
}


@contextmanager
def small_disk(folder: Path) -> Generator[None]:
    """A file system in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@asynccontextmanager
async def plane_of(scene: Scene, folder: Path) -> AsyncGenerator[Plane]:
    """Servers and collectors of a scene."""
    disk = small_disk(folder / "clickhouse") if scene.small_disk else nullcontext()
    with disk, running_nats(folder) as nats, running_clickhouse(folder) as clickhouse:
        shared = SharedSettings(
            nats_url=nats.url, clickhouse_url=clickhouse.url, data_dir=folder / "data", clickhouse_timeout_s=10
        )
        settings = Settings(shared=shared)
        tuning = Tuning(ack_wait_s=5.0, audit_interval_s=0.5)
        async with connected(shared) as bus, prepared_warehouse(shared) as warehouse, AsyncExitStack() as running:
            plane = Plane(nats, clickhouse, folder, bus, warehouse)
            for wrong in scene.clocks:

                def clock(wrong: timedelta = wrong) -> datetime:
                    return utc_now() + wrong

                plane.apps.append(
                    await running.enter_async_context(running_app(build(settings, now=clock, tuning=tuning)))
                )
            yield plane


async def verdict(plane: Plane) -> str | None:
    """What is wrong at the end; None when all is in order."""

    async def settled() -> bool:
        try:
            lacking = plane.acknowledged - set(await plane.stored()) - plane.may_be_lost
            red = [await app.checks["ledger"]() for app in plane.apps]
            last = (await plane.bus.extent(STREAM)).last
            audited = (await plane.balance()).get("watermark", 0)
        except (RatchetError, nats.errors.Error):  # a server is on its way back
            return False
        return not lacking and not any(red) and audited == last

    try:
        await eventually(settled, DEADLINE_S)
    except AssertionError:
        lacking = plane.acknowledged - set(await plane.stored())
        return f"{len(lacking)} lack, {[await app.checks['ledger']() for app in plane.apps]}"
    stored = await plane.stored()
    lost = plane.acknowledged - set(stored)
    loss_alerts = [
        alert.key
        for alert in await messages_of(plane.bus, Alert)
        if alert.key.startswith(("lost:", "rewound:", "remade:"))
    ]
    letters = (await plane.bus.extent("RL_DEADLETTERS")).last
    balance = await plane.balance()
    wrong = [
        f"{len(stored) - len(set(stored))} rows twice" if len(stored) != len(set(stored)) else "",
        f"{letters} dead letters" if letters else "",
        f"{len(lost)} lost without an alert" if lost and not loss_alerts else "",
        "no alert about the broker" if plane.may_be_lost and not loss_alerts else "",
        f"ledger {balance}" if balance["missing"] or balance["absent"] or balance["dead"] else "",
        f"stored {balance['stored']} of {len(stored)} by the ledger"
        if not plane.may_be_lost and balance["stored"] != len(stored)
        else "",
    ]
    return "; ".join(filter(None, wrong)) or None


async def run(name: str) -> bool:
    """Play one scene; prints how it went."""
    began = time.monotonic()
    scene = SCENES[name]
    with tempfile.TemporaryDirectory() as folder:
        async with plane_of(scene, Path(folder)) as plane:
            await scene.play(plane)
            wrong = await verdict(plane)
            stored, acknowledged = len(set(await plane.stored())), len(plane.acknowledged)
    took = time.monotonic() - began
    print(f"{name}: {wrong or 'in order'} ({acknowledged} acknowledged, {stored} stored, {took:.0f} s)", flush=True)
    return wrong is None


async def main(names: Sequence[str]) -> int:
    """Play scenes one after the other."""
    return 0 if all([await run(name) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:] or list(SCENES))))
