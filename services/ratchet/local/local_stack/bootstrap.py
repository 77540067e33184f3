"""Makes what services expect to find: streams and buckets in the broker, the bucket in S3, the tables in ClickHouse."""

from __future__ import annotations

import asyncio
import sys

from ratchet.bus.connection import Bus
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


def main() -> int:
    """`python -m ratchet.local.local_stack.bootstrap`: prepare the servers that the environment names, then end."""
    try:
        asyncio.run(bootstrap(read(SharedSettings)))
    except RatchetError as error:
        sys.stderr.write(f"bootstrap: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
