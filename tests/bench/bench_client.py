"""The cost of recording to an agent: `python -m tests.bench.bench_client [TRAJECTORIES]` prints percentiles.

Measured is the time that the agent itself waits: opening the recorder, `turn()` six times, and the end of the `with`
block; with the broker there and with the broker away, for small turns and for large ones.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.client import Client, ClientSettings
from ratchet.core.service.settings import SharedSettings
from tests.support.running import connected
from tests.support.servers import RunningServer, running_nats

TURNS = 6
PACE_S = 0.02
"""An agent's model calls take seconds; this leaves the background 20 ms per trajectory."""
LARGE = "The customer wrote a long letter, and the tool answered with a long table. " * 400


@contextmanager
def broker() -> Iterator[tuple[RunningServer, ClientSettings]]:
    with tempfile.TemporaryDirectory() as directory, running_nats(Path(directory)) as server:
        shared = SharedSettings(nats_url=server.url, data_dir=Path(directory) / "data")
        asyncio.run(_prepare(shared))
        yield server, ClientSettings(shared=shared, close_s=2.0)


async def _prepare(shared: SharedSettings) -> None:
    async with connected(shared):
        pass


def record(client: Client, number: int, text: str) -> float:
    """Milliseconds that one trajectory cost the agent."""
    started = time.perf_counter()
    with client.trajectory(task_id=str(number), instructions="Help.", model="gpt-4o", temperature=0.2) as t:
        for _ in range(TURNS):
            t.turn(
                observation=text,
                action={"type": "tool_call", "tool_name": "lookup", "tool_args": {"order": "K47", "note": text}},
                result={"success": True, "output": text},
                thought_process=["look it up"],
            )
        t.outcome("success", verified_by="environment")
    return 1000 * (time.perf_counter() - started)


def measure(settings: ClientSettings, count: int, text: str) -> list[float]:
    """Costs of `count` trajectories, paced, in ascending order."""
    pause = time.perf_counter()
    costs: list[float] = []
    with Client(agent_id="bench", settings=settings) as client:
        for number in range(count):
            costs.append(record(client, number, text))
            pause += PACE_S
            while time.perf_counter() < pause:
                time.sleep(PACE_S / 10)
    return sorted(costs)


def report(title: str, costs: list[float]) -> str:
    p50, p99 = (costs[min(len(costs) - 1, int(len(costs) * share))] for share in (0.5, 0.99))
    return f"{title:<44} p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   max {costs[-1]:7.2f} ms\n"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    small = "where is my order?"
    sys.stdout.write(
        f"{count} trajectories of {TURNS} turns; cost to the agent per trajectory, all turns and its end\n"
    )
    with broker() as (server, settings):
        sys.stdout.write(report("broker there, 18 B texts", measure(settings, count, small)))
        sys.stdout.write(report("broker there, 30 kB texts (540 kB in all)", measure(settings, count // 4, LARGE)))
        server.kill()
        sys.stdout.write(report("broker away, 18 B texts", measure(settings, count, small)))
        sys.stdout.write(report("broker away, 30 kB texts (540 kB in all)", measure(settings, count // 4, LARGE)))
        server.start()


if __name__ == "__main__":
    main()
