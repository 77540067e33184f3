"""Makes what services expect to find: streams and buckets in the broker, the bucket in S3, the tables in ClickHouse."""

from __future__ import annotations

import asyncio
import sys

from ratchet.kernel.bus import Bus
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.errors import RatchetError
from ratchet.kernel.objects import Objects
from ratchet.kernel.resources import resource_dir
from ratchet.kernel.settings import KernelSettings, read
from ratchet.kernel.warehouse import Warehouse


async def bootstrap(settings: KernelSettings) -> None:
    """Running it again changes nothing."""
    await asyncio.gather(_streams(settings), asyncio.to_thread(_objects, settings), _tables(settings))


async def _streams(settings: KernelSettings) -> None:
    bus = await Bus.connect(settings, name="bootstrap", contracts=Contracts.load())
    try:
        await bus.ensure_streams()
    finally:
        await bus.close()


def _objects(settings: KernelSettings) -> None:
    Objects(settings).ensure_bucket()


async def _tables(settings: KernelSettings) -> None:
    warehouse = await Warehouse.connect(settings)
    try:
        await warehouse.migrate(resource_dir("deploy") / "clickhouse")
    finally:
        await warehouse.close()


def main() -> int:
    """`python -m ratchet.embedded.bootstrap`: prepare the servers that the environment names, then end."""
    try:
        asyncio.run(bootstrap(read(KernelSettings)))
    except RatchetError as error:
        sys.stderr.write(f"bootstrap: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
