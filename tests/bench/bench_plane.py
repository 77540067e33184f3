"""What the event plane takes from `publish` to a stored reward: this tree's, other commits', and the bare parts' pace.

Run: `python -m tests.bench.bench_plane --help` (`make bench-plane`); about five minutes. The embedded stacks of all
versions run at the same time and are measured in turn, round by round: the machine's other load meets all alike.
Read the ratios first: publisher, broker, ClickHouse and services share this machine's cores.

    published, stored, rewarded  trajectories a second until the last one is acknowledged, is in ClickHouse, and has its
                                 reward there
    processor                    milliseconds a trajectory, by process
    p50, p99                     milliseconds from `publish` to the reward on the broker, at an even pace
    MB                           resident memory after the last round
    KB kept                      a trajectory, in tables of ClickHouse (compressed) and in streams of the broker

Bare parts: the same bytes published 500 at a time and pulled 500 at a time by nats-py, the same rows inserted 1,000 at
a time: no plane of these parts can be faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from ratchet.bus.testing import eventually
from tests.bench.plane_stacks import HERE, Stack, running_stack

PUBLISHER = Path(__file__).with_name("plane_publisher.py")
WAIT_S = 600.0
LOOK_S = 0.5
PULLED = 500
INSERTED = 1_000
PROCESSES = ("publisher", "nats", "trajectory_collector", "reward_computer", "clickhouse")


@dataclass(frozen=True)
class Case:
    """A kind of trajectory."""

    number: int
    kilobytes: float
    turns: int

    def __str__(self) -> str:
        return f"{self.kilobytes:g} KB, {self.turns} turns"


@dataclass
class Measured:
    """One version and kind of trajectory, over all rounds."""

    published: list[float] = field(default_factory=list[float])
    stored: list[float] = field(default_factory=list[float])
    rewarded: list[float] = field(default_factory=list[float])
    processor_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    waited_ms: list[float] = field(default_factory=list[float])
    recorded_ms: list[float] = field(default_factory=list[float])
    """What the agent itself waited, for each trajectory of the even pace."""

    def together_ms(self) -> float:
        """Processor time a trajectory of all processes, the median of the rounds."""
        return sum(statistics.median(values) for values in self.processor_ms.values())


def publisher(stack: Stack, case: Case, per_second: float | None = None) -> subprocess.Popen[bytes]:
    """The process that publishes; it ends once the broker has everything."""
    words = [str(case.number), str(case.kilobytes), str(case.turns), *([str(per_second)] if per_second else [])]
    env = {"PATH": os.environ["PATH"], **stack.env}
    return subprocess.Popen([stack.python, str(PUBLISHER), *words], env=env, stdout=subprocess.PIPE)


def until(stack: Stack, table: str, rows: int) -> float:
    """When the table has that many rows. It asks seldom: what each question costs ClickHouse counts as the plane's."""
    deadline = time.perf_counter() + WAIT_S
    while stack.count(table) < rows:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{stack.name}: {table} has less than {rows} rows")
        time.sleep(LOOK_S)
    return time.perf_counter()


async def round_of(stack: Stack, case: Case, measured: Measured) -> None:
    """Publish at full pace, and wait for the last reward."""
    before = {table: stack.count(table) for table in ("trajectories", "rewards")}
    processor = stack.processor_s()
    process, started = publisher(stack, case), time.perf_counter()
    stored, rewarded, (out, _) = await asyncio.gather(
        asyncio.to_thread(until, stack, "trajectories", before["trajectories"] + case.number),
        asyncio.to_thread(until, stack, "rewards", before["rewards"] + case.number),
        asyncio.to_thread(process.communicate),
    )
    report = json.loads(out)
    measured.published.append(case.number / report["seconds"])
    measured.stored.append(case.number / (stored - started))
    measured.rewarded.append(case.number / (max(stored, rewarded) - started))
    spent = {name: after - processor[name] for name, after in stack.processor_s().items()}
    for name, seconds in ({"publisher": report["processor_s"]} | spent).items():
        measured.processor_ms[name].append(1000 * seconds / case.number)


async def latency(stack: Stack, case: Case, per_second: float, measured: Measured) -> None:
    """Publish at an even pace, and note when the broker delivers each reward."""
    seen: dict[str, float] = {}
    client = await stack.broker()

    async def on_reward(message: Msg) -> None:
        seen.setdefault(json.loads(message.data)["trajectory_id"], time.time())

    for subject in ("agent.rl.reward.v1", "agent.rl.reward.v1.*"):
        await client.subscribe(subject, cb=on_reward)
    out, _ = await asyncio.to_thread(publisher(stack, case, per_second).communicate)
    report = json.loads(out)
    sent = report["sent"]

    async def delivered() -> bool:
        return sent.keys() <= seen.keys()

    await eventually(delivered, WAIT_S)
    await client.close()
    measured.recorded_ms.extend(1000 * seconds for seconds in report["waited_s"])
    measured.waited_ms.extend(1000 * (seen[name] - at) for name, at in sent.items())


async def sizes(stack: Stack) -> dict[str, dict[str, int]]:
    """Bytes on disk of each table, and of each stream."""
    parts = "system.parts WHERE active AND database = 'ratchet'"
    rows = stack.rows(f"SELECT table, sum(bytes_on_disk) AS n FROM {parts} GROUP BY table")
    client = await stack.broker()
    streams = await client.jetstream().streams_info()
    await client.close()
    return {
        "tables": {str(row["table"]): int(row["n"]) for row in rows},
        "streams": {str(stream.config.name): stream.state.bytes for stream in streams},
    }


def kept(held: dict[str, dict[str, int]], number: int) -> str:
    """KB that each table and stream holds for a trajectory, of so many."""
    lines = [f"KB kept a trajectory, of {number:,}"]
    for place, sized in held.items():
        each = {name: size / 1000 / number for name, size in sized.items()}
        shown = ", ".join(f"{name} {size:.2f}" for name, size in each.items() if size >= 0.005)
        lines.append(f"{place:12}{sum(each.values()):.2f}: {shown}")
    return "\n".join(lines)


async def bare(stack: Stack, case: Case) -> dict[str, float]:
    """Trajectories a second of the parts alone, with the bytes that the stack holds."""
    client = await stack.broker()
    jetstream = client.jetstream()
    body = (await jetstream.get_last_msg("RL_TRAJECTORIES", "agent.rl.trajectory.v1.bench")).data or b""
    await jetstream.add_stream(name="BARE", subjects=["bare"])
    paces = {"published": await _bare_publish(jetstream, body, case.number)}
    paces["pulled"] = await _bare_pull(jetstream, case.number)
    await jetstream.delete_stream("BARE")
    await client.close()
    return paces | {"inserted": await asyncio.to_thread(_bare_insert, stack, case.number)}


async def _bare_publish(jetstream: JetStreamContext, body: bytes, number: int) -> float:
    started = time.perf_counter()
    for _ in range(0, number, PULLED):
        await asyncio.gather(*(jetstream.publish("bare", body) for _ in range(PULLED)))
    return number / (time.perf_counter() - started)


async def _bare_pull(jetstream: JetStreamContext, number: int) -> float:
    subscription = await jetstream.pull_subscribe("bare", "bare")
    started, pulled = time.perf_counter(), 0
    while pulled < number:
        batch = await subscription.fetch(PULLED, timeout=10)
        await asyncio.gather(*(message.ack() for message in batch))
        pulled += len(batch)
    return pulled / (time.perf_counter() - started)


def _bare_insert(stack: Stack, number: int) -> float:
    """Rows a second from table to table, which no insert over HTTP can pass."""
    stack.rows("CREATE OR REPLACE TABLE ratchet.bare AS ratchet.trajectories")
    started = time.perf_counter()
    for _ in range(0, number, INSERTED):
        stack.rows(f"INSERT INTO ratchet.bare SELECT * FROM ratchet.trajectories LIMIT {INSERTED}")
    return number / (time.perf_counter() - started)


def row(name: str, measured: Measured, stack: Stack) -> str:
    """One line of the table."""
    paces = [statistics.median(values) for values in (measured.published, measured.stored, measured.rewarded)]
    parts = [statistics.median(measured.processor_ms[process]) for process in PROCESSES]
    waits = statistics.quantiles(measured.waited_ms, n=100)
    memory = stack.memory_mb()
    services = "/".join(f"{memory[process]:.0f}" for process in PROCESSES[2:])
    return (
        f"{name:12}" + "".join(f"{pace:10.0f}" for pace in paces) + "".join(f"{part:8.2f}" for part in parts)
    ) + f"{measured.together_ms():8.2f}{waits[49]:8.0f}{waits[98]:8.0f}  {services}"


def heading(case: Case) -> str:
    """The line above a table."""
    paces = "".join(f"{name:>10}" for name in ("published", "stored", "rewarded"))
    parts = "".join(f"{name:>8}" for name in ("client", "broker", "collect", "reward", "store", "all", "p50", "p99"))
    units = "a second, then ms of processor time a trajectory, then ms to the reward, then MB"
    return f"\n{case}: {units}\n{'':12}{paces}{parts}"


async def measure(stacks: list[Stack], case: Case, rounds: int, per_second: float) -> None:
    """All versions in turn, and one table of them."""
    measured = {stack.name: Measured() for stack in stacks}
    for number in range(rounds):
        for stack in stacks if number % 2 == 0 else reversed(stacks):
            await round_of(stack, case, measured[stack.name])
    paced = Case(round(10 * per_second), case.kilobytes, case.turns)
    for stack in stacks:
        await latency(stack, paced, per_second, measured[stack.name])
    print(heading(case))  # noqa: T201
    for stack in stacks:
        print(row(stack.name, measured[stack.name], stack))  # noqa: T201
    print(kept(await sizes(stacks[0]), stacks[0].count("trajectories")))  # noqa: T201
    paces = await bare(stacks[0], case)
    print(f"{'bare parts':12}" + "   ".join(f"{name} {pace:.0f}/s" for name, pace in paces.items()))  # noqa: T201
    ours = measured[HERE]
    for stack in stacks[1:]:
        other = measured[stack.name]
        faster = [mine / theirs for mine, theirs in zip(ours.rewarded, other.rewarded, strict=True)]
        ratio, least, most = statistics.median(faster), min(faster), max(faster)
        cheaper = other.together_ms() / ours.together_ms()
        print(  # noqa: T201
            f"beside {stack.name}: rewarded x{ratio:.2f} ({least:.2f} to {most:.2f}), processor time x{1 / cheaper:.2f}"
        )


async def main() -> None:
    """Parse the command line and print one table for each kind of trajectory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", nargs="*", default=["48aa153"], metavar="COMMIT", help="versions to compare with")
    parser.add_argument("--number", type=int, default=5_000, help="trajectories a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-second", type=float, default=200.0, help="the even pace")
    parser.add_argument("--long", action="store_true", help="30 KB with 20 turns as well")
    words = parser.parse_args()
    cases = [Case(words.number, 3.8, 4), *([Case(words.number // 5, 30, 20)] if words.long else [])]
    for case in cases:  # on stacks of its own: merges of what others left would count as its bytes
        with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
            stacks = [held.enter_context(running_stack(name, Path(folder))) for name in (HERE, *words.beside)]
            await measure(stacks, case, words.rounds, words.per_second)


if __name__ == "__main__":
    asyncio.run(main())
