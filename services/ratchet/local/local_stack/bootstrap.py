"""Makes what services expect to find: streams and buckets in the broker, the bucket in S3, the tables in ClickHouse.

With `--stay` it makes streams and buckets, and makes those again that go missing, until it is stopped.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from ratchet.bus.connection import Bus
from ratchet.bus.tasks import UntilStopped
from ratchet.bus.upkeep import LOOK_S
from ratchet.core.errors import RatchetError
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import SharedSettings, read
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse


async def bootstrap(settings: SharedSettings) -> None:
    """Make all of it; running it again changes nothing."""

    async def streams() -> None:
        bus = await Bus.connect(settings.bus, name="bootstrap", contracts=load_contracts())
        try:
            await bus.ensure_streams()
        finally:
            await bus.close()

    async def tables() -> None:
        warehouse = await Warehouse.connect(settings)
        try:
            await warehouse.make_tables()
        finally:
            await warehouse.close()

    def objects() -> None:
        Objects(settings).ensure_bucket()

    await asyncio.gather(streams(), tables(), asyncio.to_thread(objects))


async def keep_streams(settings: SharedSettings) -> None:
    """Make streams and buckets, now and whenever one is gone.

    As long as all are there, the file `streams-are-there` in the data directory is a few seconds old.
    """
    bus = await Bus.connect(settings.bus, name="streams", contracts=load_contracts())
    try:
        await bus.ensure_streams()
        while True:
            with suppress(RatchetError):  # the file grows old
                if not await bus.missing():
                    (settings.data_dir / "streams-are-there").touch()
            await asyncio.sleep(LOOK_S)
    finally:
        await bus.close()


async def until_sigterm(work: Coroutine[Any, Any, None]) -> None:
    """Do the work until SIGTERM, also where nats-py drops a cancel."""
    working = UntilStopped()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.stop)
    await working.run(work)


def main(arguments: Sequence[str]) -> int:
    """`python -m ratchet.local.local_stack.bootstrap`: prepare the servers that the environment names, then end."""
    try:
        settings = read(SharedSettings)
        asyncio.run(until_sigterm(keep_streams(settings)) if "--stay" in arguments else bootstrap(settings))
    except RatchetError as error:
        sys.stderr.write(f"bootstrap: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
