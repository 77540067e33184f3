"""How much atomic batches gain over single publishes, on a broker that syncs before it acknowledges.

Run: `python -m tests.bench.bench_bus` (about 20 s). Both ways in turn, ratios pair by pair, in one run.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from ratchet.bus.connection import Bus
from ratchet.core.contract import Trajectory
from ratchet.core.service.settings import SharedSettings
from tests.support.messages import trajectory
from tests.support.running import connected
from tests.support.servers import running_nats

MESSAGES = 2_000
ROUNDS = 5


async def measure(bus: Bus, name: str, *, together: bool) -> float:
    """Messages per second when all are published together, or each awaited before the next."""
    batch: list[Trajectory] = [trajectory(f"{name}-{n}") for n in range(MESSAGES if together else MESSAGES // 10)]
    started = time.perf_counter()
    if together:
        await bus.publish_all(batch)
    else:
        for one in batch:
            record = bus.seal(one)
            await bus.nc.jetstream().publish(record.subject, record.body, headers=record.headers)
    return len(batch) / (time.perf_counter() - started)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_nats(Path(folder)) as nats:
        settings = SharedSettings(nats_url=nats.url)
        async with connected(settings) as bus:
            ratios: list[float] = []
            for round_number in range(ROUNDS):
                single = await measure(bus, f"single-{round_number}", together=False)
                batched = await measure(bus, f"batch-{round_number}", together=True)
                ratios.append(batched / single)
                print(f"single {single:8.0f}/s   batched {batched:8.0f}/s   ratio {ratios[-1]:5.1f}")  # noqa: T201
            print(f"median ratio {statistics.median(ratios):.1f}")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
