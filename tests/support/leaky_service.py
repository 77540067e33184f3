"""A service in which everything fails while secrets are in scope: run as a program, for its standard error.

    python -m tests.support.leaky_service nats://127.0.0.1:4222

Writes the name of each scene to standard output once it is over. Every scene holds `SECRETS` in local variables, in
the arguments of its functions and in its message; some raise exceptions that quote them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpx
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Outcome
from ratchet.bus.envelope import Record
from ratchet.bus.outbox import Outbox
from ratchet.bus.received import Received
from ratchet.bus.spool import NoSpool
from ratchet.bus.testing import FakeBus
from ratchet.core.contract import Trajectory
from ratchet.core.contract.trajectory import TaskContext
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.logs import configure_logs
from ratchet.core.service.runtime import App, Periodic, supervise
from ratchet.core.service.settings import SharedSettings
from tests.support.consuming import consuming, projecting
from tests.support.fake_bus import fake_broker
from tests.support.messages import trajectory

SECRETS = {
    "key": "sk-live-0123456789abcdefgh",
    "card": "4111111111111111",
    "mail": "mia@example.com",
    "password": "hunter2-correct-horse",
    "prompt": "my daughter is ill and cannot sleep",
}
JSON = {"content-type": "application/json"}
ALL_SECRETS = "; ".join(SECRETS.values())
SECRET_TRAJECTORY = trajectory("secret", task_context=TaskContext(task_id="t", instructions=ALL_SECRETS))


def fail(text: str = ALL_SECRETS) -> None:
    """Raises an error that quotes all secrets, while they are in local variables."""
    held = {"authorization": f"Bearer {SECRETS['key']}", "body": text}
    raise ValueError(f"could not convert string to float: {json.dumps(held)!r}")


def fail_while_handling(text: str = ALL_SECRETS) -> None:
    """The same as the cause of an error of ours."""
    try:
        fail(text)
    except ValueError as error:
        raise KeyError(text) from error


async def periodic() -> None:
    async def action() -> None:
        ticking.set()
        fail_while_handling()

    ticking = asyncio.Event()
    ticker = Periodic(0.01, action)
    running = asyncio.create_task(ticker.run())
    await ticking.wait()
    await ticker.stop()
    await running


async def component() -> None:
    class Broken:
        async def run(self) -> None:
            fail()

        async def stop(self) -> None:
            return

    await supervise(App("leaky", [Broken()]), asyncio.Event(), 1.0)


async def consumer(bus: Bus) -> None:
    async def handle(batch: Sequence[Received[Any]]) -> Sequence[Outcome]:
        handled.set()
        fail_while_handling(batch[0].message.task_context.instructions)
        return []

    handled = asyncio.Event()
    loop = consuming(bus, {Trajectory: handle}, "leaky", batch=10)
    running = asyncio.create_task(loop.run())
    await bus.nc.publish(Trajectory.TOPIC, json.dumps({"trajectory_id": ALL_SECRETS}).encode())
    await bus.publish(SECRET_TRAJECTORY)  # after the dead letter, for the loop stops once this one is handled
    await handled.wait()
    await loop.stop()
    await running


async def projection(bus: Bus) -> None:
    def step(state: int | None, received: Received[Any]) -> int:
        fail(received.message.task_context.instructions)
        return 0

    leaky = projecting(bus, "leaky", Trajectory, kind=int, step=step)
    folding = asyncio.create_task(leaky.run())
    await leaky.wait_for(1)
    await leaky.stop()
    await folding


async def outbox() -> None:
    class Broken(FakeBus):
        async def publish_record(self, record: Record) -> None:
            published.set()
            fail_while_handling(str(record))

    async def broken() -> Bus:
        return Broken(fake_broker())

    published = asyncio.Event()
    box = Outbox(load_contracts(), "leaky", NoSpool())
    box.put(SECRET_TRAJECTORY)
    running = asyncio.create_task(box.run(broken))
    await published.wait()
    await box.stop()
    await running


async def http() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        fail(str(await receive()))

    server = HttpServer(app, "127.0.0.1", 0)
    serving = asyncio.create_task(server.run())
    async with httpx.AsyncClient(trust_env=False) as client:
        answered = None
        while answered is None:
            with suppress(httpx.ConnectError):
                answered = await client.post(f"http://127.0.0.1:{server.port}/", content=ALL_SECRETS, headers=JSON)
    await server.stop()
    await serving


async def forgotten() -> None:
    """A task that no code awaits, and a callback: asyncio's own logger reports them, with their arguments."""

    async def broken(text: str) -> None:
        fail(text)

    task = asyncio.create_task(broken(ALL_SECRETS))
    await asyncio.wait([task])
    del task
    asyncio.get_running_loop().call_soon(fail, ALL_SECRETS)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def log_lines() -> None:
    """Log lines with secrets in them."""
    log = structlog.get_logger()
    known = {kind: SECRETS[kind] for kind in ("key", "card", "mail")}  # by their form
    log.error(
        "refused",
        reason=str(known),
        headers={"a": [known]},
        message=SECRET_TRAJECTORY,
        error=ValueError(f"'{ALL_SECRETS}'"),
    )
    logging.getLogger("any.library").error("cannot read %r", ALL_SECRETS)
    try:
        fail_while_handling()
    except KeyError:
        logging.getLogger("any.library").exception("cannot read %r", ALL_SECRETS)
        log.exception("cannot read")


async def thread() -> None:
    running = threading.Thread(target=fail, args=(ALL_SECRETS,))
    running.start()
    running.join()


async def main(url: str) -> None:
    bus = await Bus.connect(SharedSettings(nats_url=url).bus, name="leaky", contracts=load_contracts())
    await bus.ensure_streams()
    scenes = [
        periodic(),
        component(),
        consumer(bus),
        projection(bus),
        outbox(),
        http(),
        forgotten(),
        log_lines(),
        thread(),
    ]
    for scene in scenes:
        await scene
        sys.stdout.write(f"{scene.__name__}\n")
    await bus.close()


if __name__ == "__main__":
    configure_logs("leaky", "debug")
    asyncio.run(main(sys.argv[1]))
    sys.stdout.write("uncaught\n")
    fail_while_handling()
