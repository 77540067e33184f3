"""What a gateway adds to a call: Ratchet's, LiteLLM's and TensorZero's in front of one mock upstream, in one table.

Run: `make bench-gateway ARGS="..."`, or `python -m tests.bench.bench_gateway --help`; about four minutes. Every way
has processes of its own and all run at the same time; they are measured in turn, in several rounds, so that the rest of
the machine's load meets all of them alike. Read the ratios first: client, upstream and gateway share this machine's
cores. Ratchet records every call on a real broker; the others record nothing. The last lines have what a call costs
as a multiple of the floor: an empty proxy on the same server and client.

    p50, p99      milliseconds that one caller waits more than at the mock itself, until the end of the answer
    calls/s       with many callers at once
    worker, all   milliseconds of processor time a call: of the processes that answer, and with those that record for it
    token         milliseconds more until the first token of a stream of one token each 5 ms
    x             the same as a multiple of Ratchet's
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import uvloop

from ratchet.bus.testing import eventually
from ratchet.gateway.engines.http_connection import ExchangeFailed
from ratchet.gateway.engines.http_pool import HttpPool
from tests.bench.gateways import BESIDE, FLOOR, LITELLM, MOCK, OTHERS, RATCHET, TENSORZERO, Way, all_ways
from tests.bench.upstream import TOKEN

CALLS = 4
"""Model calls per trajectory; every call repeats the conversation so far."""
LONG = 16_000
"""Characters of a large conversation."""
PACE_S = 0.005
WAIT_S = 60.0
PARAMETERS = {"type": "object", "properties": {"order_id": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{n}", "description": "Looks it up.", "parameters": PARAMETERS}}
    for n in range(8)
]


FAILED = Counter[tuple[str, str]]()
"""Calls without an answer, by way and reason."""


class NotAnswered(Exception):
    """An error in the place of an answer."""


@dataclass(frozen=True)
class Case:
    """One kind of call."""

    large: bool
    stream: bool

    def __str__(self) -> str:
        return f"{'16k' if self.large else 'small'}, {'streamed' if self.stream else 'whole'}"


CASES = [Case(large, stream) for large in (False, True) for stream in (False, True)]


@dataclass
class Measured:
    """One way of calling, over all rounds."""

    waited_ms: list[float] = field(default_factory=list[float])
    """Of one caller."""
    calls_per_s: list[float] = field(default_factory=list[float])
    worker_ms: list[float] = field(default_factory=list[float])
    all_ms: list[float] = field(default_factory=list[float])
    token_ms: list[float] = field(default_factory=list[float])

    def percentile(self, share: float) -> float:
        ordered = sorted(self.waited_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def bodies(model: str, case: Case) -> list[bytes]:
    """The requests of one trajectory."""
    messages: list[dict[str, object]] = [{"role": "system", "content": "You are a kind help desk clerk. " * 8}]
    if case.large:
        history = "The order K47 was packed on Friday and handed to the carrier on Saturday morning. "
        messages += [
            {"role": "user", "content": history * (LONG // len(history))},
            {"role": "user", "content": "Well?"},
        ]
    made: list[bytes] = []
    options = {"stream": True, "stream_options": {"include_usage": True}} if case.stream else {}
    for number in range(CALLS):
        messages.append({"role": "user", "content": f"Where is my order K47, please? This is question {number}."})
        body = {"model": model, "messages": messages, "tools": TOOLS, "temperature": 1.0, "max_tokens": 256, **options}
        made.append(msgspec.json.encode(body))
        messages.append({"role": "assistant", "content": "Your order K47 was sent on Monday."})
    return made


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[HttpPool]:
    pool = HttpPool(url, {"content-type": "application/json", "authorization": "Bearer none"}, connect_s=WAIT_S)
    try:
        yield pool
    finally:
        await pool.close()


async def call(pool: HttpPool, body: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[float, float]:
    """Seconds until the first token, and until the end of the answer."""
    asked, first = time.perf_counter(), 0.0
    got = bytearray()
    async with aclosing(await pool.post("/chat/completions", body, headers, first_byte_s=WAIT_S)) as reply:
        async for piece in reply.chunks(WAIT_S):
            got += piece
            if not first and TOKEN.encode() in got:
                first = time.perf_counter()
    if reply.status != 200 or not first:
        raise NotAnswered(f"answer {reply.status}: {got[:300].decode(errors='replace')}")
    return first - asked, time.perf_counter() - asked


async def play(way: Way, case: Case, callers: int, seconds: float) -> list[tuple[float, float]]:
    """Every call of some callers, each in trajectories of several calls, until the time is over."""
    requests = bodies(way.model, case)
    until = time.perf_counter() + seconds
    spent: list[tuple[float, float]] = []

    async def caller() -> None:
        while time.perf_counter() < until:
            headers = way.headers()
            for body in requests:
                try:
                    spent.append(await call(pool, body, headers))
                except (ExchangeFailed, NotAnswered) as error:
                    FAILED[way.name, f"{case}: {error}"] += 1

    async with pooled(way.url) as pool:
        await asyncio.gather(*(caller() for _ in range(callers)))
    if not spent:
        raise NotAnswered(f"no call of {way.name} was answered: {FAILED.most_common(3)}")
    return spent


async def measure(way: Way, case: Case, callers: int, seconds: float, into: Measured) -> None:
    """One round: one caller, then many, with the processor time of what they caused."""
    into.waited_ms += [end * 1000 for _, end in await play(way, case, 1, seconds)]
    await settled(way, 0, -1)
    before, stored, began = way.spent_s(), await way.recorded(), time.perf_counter()
    calls = len(await play(way, case, callers, seconds))
    into.calls_per_s.append(calls / (time.perf_counter() - began))
    await settled(way, calls, stored)
    own, children = (after - then for after, then in zip(way.spent_s(), before, strict=True))
    into.worker_ms.append(own * 1000 / calls)
    into.all_ms.append((own + children) * 1000 / calls)


async def settled(way: Way, calls: int, stored: int) -> None:
    """Until what the calls left to be recorded is stored: it costs processor time too."""
    if way.bus is None:
        return
    last = -1

    async def still() -> bool:
        nonlocal last
        before, last = last, await way.recorded()
        return last == before and last - stored >= calls * 0.99

    await eventually(still, WAIT_S)


async def pace(upstream: str, seconds: float) -> None:
    async with (
        pooled(upstream) as pool,
        aclosing(await pool.post("/pace", str(seconds).encode(), first_byte_s=WAIT_S)) as reply,
    ):
        await reply.read(100, WAIT_S)


Results = dict[tuple[Case, str], Measured]


async def compare(options: argparse.Namespace) -> None:
    async with all_ways(options.beside, set(options.without), as_sent=options.as_sent) as (upstream, ways):
        results: Results = {(case, way.name): Measured() for case in CASES for way in ways}
        for way in ways:
            for case in CASES:
                await play(way, case, 4, 0.3)
        for number in range(options.rounds):
            for case in CASES:
                for way in ways:
                    _note(f"round {number + 1} of {options.rounds}: {case}, {way.name}")
                    await measure(way, case, options.callers, options.seconds, results[case, way.name])
            await pace(upstream, PACE_S)
            for way in ways:
                for case in CASES:
                    if case.stream:
                        calls = await play(way, case, 1, options.seconds / 2)
                        results[case, way.name].token_ms += [first * 1000 for first, _ in calls]
            await pace(upstream, 0)
        _note("")
        print_table(results, [way.name for way in ways], options.callers)
        print_floor(results, [way.name for way in ways if way.name in (RATCHET, BESIDE)])
        for (name, reason), count in FAILED.most_common(10):
            _print(f"{name}: {count} calls failed: {reason}")


def print_table(results: Results, names: list[str], callers: int) -> None:
    """One line for each case and way; the mock's own figures are absolute, the others' are what they add."""
    _print(f"{'':<16}{'':<15}{'p50':>8}{'x':>6}{'p99':>9}{'x':>6}{f'calls/s ({callers})':>14}{'x':>6}"
           f"{'worker':>9}{'x':>6}{'all':>8}{'token':>9}")  # fmt: skip
    for case in CASES:
        lines = {name: _figures(results[case, name], None if name == MOCK else results[case, MOCK]) for name in names}
        ours = lines.get(RATCHET)
        for name, figures in lines.items():
            cells = [_print_pair(figures[at], ours[at] if ours and name != MOCK else None) for at in range(4)]
            token = f"{figures[5]:9.2f}" if case.stream else f"{'':9}"
            _print(
                f"{case!s:<16}{name:<15}{cells[0]}{cells[1]:>15}{cells[2]:>20}{cells[3]:>15}{figures[4]:8.2f}{token}"
            )


def print_floor(results: Results, names: list[str]) -> None:
    """One line for each case and gateway of ours: processor time a call, and as a multiple of the empty proxy's."""
    for case in CASES:
        floor = statistics.median(results[case, FLOOR].worker_ms)
        for name in names:
            measured = results[case, name]
            worker, everything = statistics.median(measured.worker_ms), statistics.median(measured.all_ms)
            recorder = everything - worker
            _print(
                f"{case!s:<16}{name:<15}empty proxy {floor:.2f} ms; worker {worker:.2f}, {worker / floor:.1f} times;"
                f" recorder {recorder:.2f}, {recorder / floor:.1f} times"
            )


def _figures(measured: Measured, base: Measured | None) -> list[float]:
    """p50, p99, calls/s, worker, all, token."""
    token = statistics.median(measured.token_ms) if measured.token_ms else 0.0
    alone = [measured.percentile(0.5), measured.percentile(0.99)]
    if base is not None:
        alone = [alone[0] - base.percentile(0.5), alone[1] - base.percentile(0.99)]
        token -= statistics.median(base.token_ms) if base.token_ms else 0.0
    return [*alone, *map(statistics.median, (measured.calls_per_s, measured.worker_ms, measured.all_ms)), token]


def _print_pair(value: float, ours: float | None) -> str:
    shown = f"{value:8.0f}" if value >= 100 else f"{value:8.2f}"
    return shown + (f"{value / ours:6.1f}" if ours is not None and ours > 0 else f"{'':6}")


async def watch_memory(options: argparse.Namespace) -> None:
    """Resident memory of Ratchet's gateway while it answers many calls of ever new trajectories."""
    async with all_ways(None, {LITELLM, TENSORZERO}) as (_, ways):
        way = next(one for one in ways if one.name == RATCHET)
        calls, case = 0, Case(large=False, stream=False)
        _print(f"{'calls':>10}{'worker MiB':>12}{'recorders MiB':>15}{'calls/s':>9}")
        while calls < options.calls:
            began, before = time.perf_counter(), calls
            portion = min(options.calls - calls, max(options.calls // 20, 1))
            while calls - before < portion:
                calls += len(await play(way, case, options.callers, options.seconds))
            per_s = (calls - before) / (time.perf_counter() - began)
            own, recorders = (one / 2**20 for one in way.resident())
            _print(f"{calls:>10}{own:>12.0f}{recorders:>15.0f}{per_s:>9.0f}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _note(line: str) -> None:
    """What is under way, on one line that the next one replaces."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{line}")
        sys.stderr.flush()


def parsed() -> argparse.Namespace:
    about, _, legend = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=legend, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement (1)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, default=32, help="at once, for calls/s and processor time (32)")
    parser.add_argument(
        "--without", nargs="+", default=[], choices=[RATCHET, LITELLM, TENSORZERO], help="ways to leave out"
    )
    parser.add_argument(
        "--beside", metavar="SERVICES", help="also the gateway of another checkout, by its services folder"
    )
    parser.add_argument("--as-sent", action="store_true", help="the role has no policy: an upstream answers")
    parser.add_argument("--calls", type=int, help="instead: memory of Ratchet's gateway over so many calls")
    options = parser.parse_args()
    if not OTHERS.exists() and options.calls is None and not {LITELLM, TENSORZERO} <= set(options.without):
        parser.error(
            f"{OTHERS} does not exist: `make bench-gateway` makes it, `--without litellm tensorzero` needs none"
        )
    return options


if __name__ == "__main__":
    options = parsed()
    uvloop.run(compare(options) if options.calls is None else watch_memory(options))
