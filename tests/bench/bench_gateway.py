"""The gateway's share of a call: latency one call at a time, throughput with many at once.

Run: `python -m tests.bench.bench_gateway [SECONDS [SERVICES]]` (about 40 s). An upstream that answers at once, called
directly and through a real gateway (its own process, a real broker, capture and publishing on), in turn, in one run.
Client, upstream, gateway and broker share this machine's cores: the throughput is that of all four together. With the
`services` folder of another checkout only the processor time per call is measured, of both gateways in turn, with the
processes that record for them.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import psutil
import uuid_utils
import uvloop

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.contract.state import Route, ServedPolicy
from ratchet.local_stack.ports import free_ports
from ratchet.local_stack.program import Program
from ratchet.service.settings import SharedSettings
from tests.support.running import connected
from tests.support.servers import RunningServer, running, running_nats

ROUNDS = 5
AGENTS = 16
POLICY = ServedPolicy(version=1, name="helpdesk@1-11111111", digest="1" * 64)
PARAMETERS = {"type": "object", "properties": {"order_id": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{n}", "description": "Looks it up.", "parameters": PARAMETERS}}
    for n in range(8)
]
CALLS = 4
"""Model calls per trajectory; every call repeats the conversation so far."""


@dataclass(frozen=True)
class Measured:
    """One way of calling, measured once."""

    calls_per_s: float
    p50_ms: float
    p99_ms: float


def bodies(model: str, *, stream: bool = False) -> list[bytes]:
    """The requests of one trajectory."""
    messages: list[dict[str, object]] = [{"role": "system", "content": "You are a kind help desk clerk. " * 8}]
    made: list[bytes] = []
    for number in range(CALLS):
        messages.append({"role": "user", "content": f"Where is my order K47, please? This is question {number}."})
        body = {"model": model, "messages": messages, "tools": TOOLS, "temperature": 1.0, "max_tokens": 24}
        made.append(msgspec.json.encode({**body, "stream": True} if stream else body))
        messages.append({"role": "assistant", "content": "Your order K47 was sent on Monday."})
    return made


async def play(session: aiohttp.ClientSession, url: str, until: float, requests: list[bytes]) -> list[float]:
    """One agent, until the time is over; returns the seconds of each call."""
    spent: list[float] = []
    while time.perf_counter() < until:
        headers = {"content-type": "application/json", "x-ratchet-trajectory": str(uuid_utils.uuid7())}
        for body in requests:
            asked = time.perf_counter()
            async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as answer:
                await answer.read()
                answer.raise_for_status()
            spent.append(time.perf_counter() - asked)
    return spent


async def measure(url: str, agents: int, seconds: float, model: str, *, stream: bool = False) -> Measured:
    """Let some agents play for a while."""
    requests = bodies(model, stream=stream)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        started = time.perf_counter()
        results = await asyncio.gather(*(play(session, url, started + seconds, requests) for _ in range(agents)))
        took = time.perf_counter() - started
    spent = sorted(one * 1000 for result in results for one in result)
    return Measured(len(spent) / took, spent[len(spent) // 2], spent[int(len(spent) * 0.99)])


@contextmanager
def python(module: str, port: int, folder: Path, *arguments: str, **env: str) -> Iterator[RunningServer]:
    """A module of this checkout as a server."""
    ready = f"http://127.0.0.1:{port}/readyz" if module == "ratchet.gateway" else f"http://127.0.0.1:{port}/ready"
    url = f"http://127.0.0.1:{port}"
    name = module.rsplit(".", 1)[1]
    with running(
        Program(name, (sys.executable, "-m", module, *arguments), ready, url, port, env=env), folder
    ) as server:
        yield server


@dataclass(frozen=True)
class Cost:
    """Processor time per call."""

    own_ms: float
    """Of the process that answers."""
    recorders_ms: float

    @property
    def all_ms(self) -> float:
        return self.own_ms + self.recorders_ms

    def __str__(self) -> str:
        return f"{self.all_ms:.2f} ms ({self.own_ms:.2f} where it is answered, {self.recorders_ms:.2f} in recorders)"


@dataclass(frozen=True)
class Stack:
    """An upstream, and a gateway in front of it."""

    direct: str
    through: str
    gateway: RunningServer
    bus: Bus


@asynccontextmanager
async def stack(services: str | None = None) -> AsyncIterator[Stack]:
    """A stack of its own; `services`: where its gateway's code is, if not here."""
    upstream_port, port, health_port = free_ports(3)
    with tempfile.TemporaryDirectory() as name, running_nats(folder := Path(name)) as nats:
        async with connected(SharedSettings(nats_url=nats.url)) as bus:
            await bus.bucket("policies", Route).put("helpdesk", Route(role="helpdesk", stable=POLICY, next_version=2))
            env = {
                "RATCHET_NATS_URL": nats.url,
                "RATCHET_DATA_DIR": str(folder / "data"),
                "RATCHET_HEALTH_PORT": str(health_port),
                "RATCHET_GATEWAY_PORT": str(port),
                "RATCHET_ENGINE_URL": f"http://127.0.0.1:{upstream_port}",
            }
            if services is not None:
                env["PYTHONPATH"] = services
            upstream = python("tests.bench.upstream", upstream_port, folder, str(upstream_port))
            gateway = python("ratchet.gateway", health_port, folder, **env)
            with upstream as direct, gateway as through:
                url = f"http://127.0.0.1:{port}"
                await measure(direct.url, AGENTS, 0.5, POLICY.name)
                await eventually(lambda: _serves(url))
                yield Stack(direct.url, url, through, bus)


async def compare(seconds: float, services: str) -> None:
    """Processor time per call of two gateways, in turn."""
    async with stack() as this, stack(services) as that:
        for one in (this, that):
            await _cost(one, 0.5)
        costs = [(await _cost(this, seconds), await _cost(that, seconds)) for _ in range(ROUNDS)]
    for here, there in costs:
        _print(f"processor time per call: here {here}, there {there}")
    everything = statistics.median(here.all_ms / there.all_ms for here, there in costs)
    own = statistics.median(here.own_ms / there.own_ms for here, there in costs)
    _print(f"median ratio here / there: {everything:.2f} in all, {own:.2f} in the process that answers")


async def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    if len(sys.argv) > 2:
        await compare(seconds, sys.argv[2])
        return
    async with stack() as here:
        direct, through = here.direct, here.through
        added: list[float] = []
        ratios: list[float] = []
        for _ in range(ROUNDS):
            alone = [await measure(url, 1, seconds / 2, model) for url, model in _ways(direct, through)]
            many = [await measure(url, AGENTS, seconds, model) for url, model in _ways(direct, through)]
            added.append(alone[1].p50_ms - alone[0].p50_ms)
            ratios.append(many[0].calls_per_s / many[1].calls_per_s)
            _print(
                f"1 agent: p50 {alone[0].p50_ms:.2f} -> {alone[1].p50_ms:.2f} ms (p99 {alone[1].p99_ms:.2f})   "
                f"{AGENTS} agents: {many[0].calls_per_s:.0f} -> {many[1].calls_per_s:.0f} calls/s, p50 "
                f"{many[1].p50_ms:.1f} ms"
            )
        _print(f"added at p50: median {statistics.median(added):.2f} ms   throughput direct / gateway: median "
             f"{statistics.median(ratios):.1f}")  # fmt: skip
        await _report_streams(through, seconds)
        _print(f"processor time per call, publishing included: {await _cost(here, seconds)}")


async def _report_streams(through: str, seconds: float) -> None:
    """Whole answers beside the same ones in chunks."""
    plain, streamed = [await measure(through, AGENTS, seconds, "helpdesk", stream=stream) for stream in (False, True)]
    _print(
        f"{AGENTS} agents: {plain.calls_per_s:.0f} whole answers/s, {streamed.calls_per_s:.0f} streamed ones/s, "
        f"ratio {plain.calls_per_s / streamed.calls_per_s:.2f}"
    )


async def _cost(of: Stack, seconds: float) -> Cost:
    """Processor time per call: the figure that other load on the machine disturbs least."""
    before, stored = _spent_s(of.gateway), await of.bus.last_sequence("RL_TURNS")
    measured = await measure(of.through, AGENTS, seconds, "helpdesk")
    calls = measured.calls_per_s * seconds

    async def settled() -> int:
        turns = await of.bus.last_sequence("RL_TURNS") - stored
        return turns if turns >= calls * 0.99 else 0

    turns = await eventually(settled, 60)
    own, recorders = ((after - then) * 1000 / turns for after, then in zip(_spent_s(of.gateway), before, strict=True))
    return Cost(own, recorders)


def _spent_s(gateway: RunningServer) -> tuple[float, float]:
    """Processor time so far, of the gateway, and of the processes that record for it."""
    process = psutil.Process(gateway.pid)
    own, *recorders = (one.cpu_times() for one in (process, *process.children(recursive=True)))
    return own.user + own.system, sum(one.user + one.system for one in recorders)


def _ways(direct: str, through: str) -> list[tuple[str, str]]:
    return [(direct, POLICY.name), (through, "helpdesk")]


async def _serves(url: str) -> bool:
    """Ready comes a moment before the first request is taken."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as answer:
            return bool((await answer.json())["data"])
    except aiohttp.ClientConnectorError:
        return False


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
