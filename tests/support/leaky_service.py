"""A service in which everything fails while secrets are at hand: run as a program, for its standard error.

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
from ratchet.contract import Trajectory
from ratchet.contract.trajectory import TaskContext
from ratchet.service.contracts import load_contracts
from ratchet.service.http import HttpServer
from ratchet.service.logs import configure_logs
from ratchet.service.runtime import App, Periodic, supervise
from ratchet.service.settings import SharedSettings
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
SAID = "; ".join(SECRETS.values())
SECRET_TRAJECTORY = trajectory("secret", task_context=TaskContext(task_id="t", instructions=SAID))


def fail(said: str = SAID) -> None:
    """Raises what quotes all secrets, while they are at hand."""
    held = {"authorization": f"Bearer {SECRETS['key']}", "body": said}
    raise ValueError(f"could not convert string to float: {json.dumps(held)!r}")


def fail_while_handling(said: str = SAID) -> None:
    """The same as the cause of an error of ours."""
    try:
        fail(said)
    except ValueError as error:
        raise KeyError(said) from error


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
    await bus.publish(SECRET_TRAJECTORY)
    await bus.nc.publish(Trajectory.TOPIC, json.dumps({"trajectory_id": SAID}).encode())
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
                answered = await client.post(f"http://127.0.0.1:{server.port}/", content=SAID, headers=JSON)
    await server.stop()
    await serving


async def forgotten() -> None:
    """A task that nobody waits for, and a callback: asyncio's own logger tells of them, with their arguments."""

    async def broken(said: str) -> None:
        fail(said)

    task = asyncio.create_task(broken(SAID))
    await asyncio.wait([task])
    del task
    asyncio.get_running_loop().call_soon(fail, SAID)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def said() -> None:
    """Lines that name what they should not."""
    log = structlog.get_logger()
    known = {kind: SECRETS[kind] for kind in ("key", "card", "mail")}  # by their form
    log.error(
        "refused", reason=str(known), headers={"a": [known]}, message=SECRET_TRAJECTORY, error=ValueError(f"'{SAID}'")
    )
    logging.getLogger("any.library").error("cannot read %r", SAID)
    try:
        fail_while_handling()
    except KeyError:
        logging.getLogger("any.library").exception("cannot read %r", SAID)
        log.exception("cannot read")


async def thread() -> None:
    running = threading.Thread(target=fail, args=(SAID,))
    running.start()
    running.join()


async def main(url: str) -> None:
    bus = await Bus.connect(SharedSettings(nats_url=url).bus, name="leaky", contracts=load_contracts())
    await bus.ensure_streams()
    scenes = [periodic(), component(), consumer(bus), projection(bus), outbox(), http(), forgotten(), said(), thread()]
    for scene in scenes:
        await scene
        sys.stdout.write(f"{scene.__name__}\n")
    await bus.close()


if __name__ == "__main__":
    configure_logs("leaky", "debug")
    asyncio.run(main(sys.argv[1]))
    sys.stdout.write("uncaught\n")
    fail_while_handling()
